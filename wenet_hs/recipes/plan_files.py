# SPDX-License-Identifier: Apache-2.0
"""The files of a plan in the folder of an experiment: when they are written, kept, or refused."""

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wenet_hs.base.files import file_sha256
from wenet_hs.config.load import config_changes, make_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.config.yaml_file import Settings, read_yaml
from wenet_hs.recipes.config_choice import is_own
from wenet_hs.recipes.expected_record import (
    FORMAT,
    ExpectedRecord,
    OutputsRecord,
    PartRecord,
    write_expected,
)
from wenet_hs.recipes.expected_time import (
    GIGABYTE,
    ExpectedTime,
    describe_expected_time,
    measure_expected_time,
)
from wenet_hs.recipes.plan import (
    FILE_SETTINGS,
    Draft,
    PlanOptions,
    check_warmup,
    describe_size,
    draft_plan,
    drop_settings_of_other_heads,
    first_part_overrides,
)
from wenet_hs.recipes.plan_names import FIRST_PART, PLAN
from wenet_hs.recipes.plan_record import (
    InputChange,
    PlanRecord,
    first_change,
    make_inputs,
    make_record,
    read_plan_record,
    record_text,
    relative_path,
)
from wenet_hs.recipes.plan_text import first_part_text, plan_text
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError, WenetHsError

PATH_SETTINGS = frozenset({*FILE_SETTINGS, "encoder_conf.cache", "tokenizer_conf.bpe_path"})
"""Settings of a plan whose values are paths; they change when the project is moved."""


@dataclass(frozen=True, kw_only=True)
class PlanFiles:
    """The files of a plan in the folder of an experiment."""

    folder: Path
    """The folder of the experiment."""

    @property
    def plan(self) -> Path:
        """The config of the trainings, which the user may edit."""
        return self.folder / PLAN

    @property
    def first_part(self) -> Path:
        """The config of the first part of training, which follows from the plan."""
        return self.folder / FIRST_PART

    @property
    def record(self) -> Path:
        """The inputs of the plan, and what was decided."""
        return self.folder / "plan.json"

    def has_trainings(self) -> bool:
        """Whether a training has begun in the folder."""
        return any(self.folder.glob("*/train.yaml"))

    def read(self) -> PlanRecord | None:
        """The record of the plan; None: there is no plan.

        Raises: DataError if the record is damaged, ConfigError if there is a plan without a record.
        """
        if not self.plan.is_file():
            return None
        if not self.record.is_file():
            fault = f"its inputs are unknown, as {self.record.name} is missing"
            to_do = f"give another --exp, or remove {self.plan} to plan again"
            raise ConfigError(self.plan, fault, to_do)
        return read_plan_record(self.record)

    def is_edited(self, record: PlanRecord) -> bool:
        """Whether plan.yaml is not as it was written with this record."""
        return file_sha256(self.plan) != record.plan_sha256


def describe_plan(options: PlanOptions, json_file: Path | None = None) -> list[str]:
    """The size, the steps and the expected time of a training, as two lines for the user.

    The plan of the experiment is neither written nor changed.

    `json_file`: the same is written there as data; None: nothing is written.
    Raises ConfigError or DataError as `draft_plan` does, and for a damaged plan.json.
    """
    plan_record = PlanFiles(folder=options.out).read()
    draft = draft_plan(options, _config_chosen_before(options, plan_record))
    expected_record = _record_of_time(draft, _measure_time(draft, options))
    if json_file is not None:
        write_expected(json_file, expected_record)
    return [describe_size(draft, options.base), expected_record.sentence]


def _record_of_time(draft: Draft, expected: ExpectedTime) -> ExpectedRecord:
    """The expected time and the decisions of a draft as a record. Disk space is in bytes there."""
    outputs = None
    if expected.outputs is not None:
        outputs = OutputsRecord(
            seconds=expected.outputs.seconds,
            bytes=round(GIGABYTE * expected.outputs.gigabytes),
            folder=expected.outputs.folder,
        )
    parts = [PartRecord(steps=part.steps, seconds=part.seconds) for part in expected.parts]
    return ExpectedRecord(
        format=FORMAT,
        hours=draft.hours,
        size=draft.decisions.size,
        parts=tuple(parts),
        outputs=outputs,
        checkpoint_bytes=round(GIGABYTE * expected.checkpoint_gigabytes),
        has_time_limit=expected.has_time_limit,
        machine=expected.machine,
        sentence=describe_expected_time(expected),
    )


def update_plan(options: PlanOptions) -> list[str]:
    """Write plan.yaml, the plan of an experiment, or keep the one that is there.

    - There is no plan yet: it is written.
    - Its inputs are the same: the plan is kept, also if it was edited. An unedited plan of a
      project that was moved is written again with the new paths.
    - Only `--override_config` or the content of the YAML has changed, and a training has begun: the
      plan is kept, and a line names the change.
    - Other changes: an unedited plan without trainings is made again, any other one is refused.

    first_part.yaml is written or removed as the plan says. Processes that plan in one folder at the
    same time wait for each other.

    Returns: lines for the user.
    Raises: ConfigError or DataError as `draft_plan` does; DataError if plan.json is damaged;
        ConfigError if it is missing, if the plan is refused, or if an edited plan has a fault.
    """
    files = PlanFiles(folder=options.out)
    with _only_process(options.out):
        record = files.read()
        draft = draft_plan(options, _config_chosen_before(options, record))
        if record is None:
            return _make_plan(files, draft, options)
        change = first_change(record.inputs, make_inputs(options, draft), files.plan)
        if change is None:
            return _keep_or_move_plan(files, record, draft, options)
        if change.keeps_begun_plan and files.has_trainings():
            lines = _keep_plan(files, read_yaml(files.plan), record, draft, options)
            return [*lines, f"{files.plan}: since it was made: {change.now}"]
        if files.has_trainings() or files.is_edited(record):
            raise _refusal(files, change)
        again = f"{files.plan}: made again, for {change.now} instead of {change.before}"
        return [again, *_make_plan(files, draft, options)]


def _refusal(files: PlanFiles, change: InputChange) -> ConfigError:
    """The error for a changed input of a plan that must not be replaced."""
    to_do = f"give another --exp, remove {files.plan} to plan again, or {change.repeat}"
    return ConfigError(change.now, f"{files.plan} was made with {change.before}", to_do)


def _config_chosen_before(options: PlanOptions, record: PlanRecord | None) -> str | None:
    """The name of the config that the plan of a record chose for the encoder of `--encoder`.

    The plan may have been made on another machine, where another config is chosen.

    None: no encoder is given, there is no plan, the plan is for another encoder, or the user had
    named its config.
    """
    if options.encoder is None or record is None:
        return None
    if record.inputs.encoder != relative_path(options.encoder, options.out):
        return None
    is_named_by_user = not is_own(Path(record.inputs.config))
    return None if is_named_by_user else Path(record.decisions.config).name


def _measure_time(draft: Draft, options: PlanOptions) -> ExpectedTime:
    return measure_expected_time(
        draft.config,
        draft.choice.path,
        hours=draft.hours,
        first_steps=draft.decisions.first_steps,
        num_threads=options.num_threads,
    )


def _make_plan(files: PlanFiles, draft: Draft, options: PlanOptions) -> list[str]:
    """Measure the expected time and write all files. Returns lines for the user."""
    size_line = describe_size(draft, options.base)
    time_line = describe_expected_time(_measure_time(draft, options))
    _write_files(files, draft, options, time_line)
    return [size_line, time_line, f"{files.plan}: the config of the trainings, to read and to edit"]


def _write_files(files: PlanFiles, draft: Draft, options: PlanOptions, time_line: str) -> None:
    """Write plan.yaml, plan.json and first_part.yaml.

    An old plan is removed first, and the new one is written after its record plan.json. So at no
    time is there a plan with the record of another one.

    `time_line`: the sentence about the expected time.
    """
    text = plan_text(draft, options, files.plan, time_line)
    record = make_record(
        options,
        draft,
        expected_time=time_line,
        plan_sha256=hashlib.sha256(text.encode("utf-8")).hexdigest(),
    )
    files.plan.unlink(missing_ok=True)
    write_atomic(files.record, record_text(record))
    write_atomic(files.plan, text)
    _write_first_part(files, read_yaml(files.plan), record, options)


def _keep_or_move_plan(
    files: PlanFiles,
    record: PlanRecord,
    draft: Draft,
    options: PlanOptions,
) -> list[str]:
    """Keep a plan whose inputs are the same. Returns lines for the user.

    An unedited plan is written again if only its paths differ from the draft, as the project was
    moved. The expected time is not measured again.
    """
    plan_settings = read_yaml(files.plan)
    if not files.is_edited(record) and _differs_only_in_paths(plan_settings, draft):
        _write_files(files, draft, options, record.expected_time)
        return [f"{files.plan}: kept as it was made, with the new paths of its files"]
    return _keep_plan(files, plan_settings, record, draft, options)


def _differs_only_in_paths(plan_settings: Settings, draft: Draft) -> bool:
    """Whether a plan has at least one other path than the draft, and no other difference."""
    plan = make_config(plan_settings, (), ExperimentConfig)
    changed_keys = {change.key for change in config_changes(plan, draft.config)}
    return bool(changed_keys) and changed_keys <= PATH_SETTINGS


def _keep_plan(
    files: PlanFiles,
    plan_settings: Settings,
    record: PlanRecord,
    draft: Draft,
    options: PlanOptions,
) -> list[str]:
    """Write first_part.yaml, and leave the plan as it is. Returns lines for the user.

    The first line says that the plan is kept. There is a line for each setting that
    `--override_config` replaces in the trainings. If the plan was edited, there is also a line for
    each path in it that is another one than the draft has, as after the project was moved.

    `plan_settings`: the content of plan.yaml.
    Raises ConfigError if the plan was edited and has a fault.
    """
    _write_first_part(files, plan_settings, record, options)
    replaced_lines = _describe_replaced_settings(files, plan_settings, options)
    if not files.is_edited(record):
        return [f"{files.plan}: kept as it was made", *replaced_lines]
    lines = [f"{files.plan}: kept as it was edited", *replaced_lines]
    plan = make_config(plan_settings, (), ExperimentConfig)
    for change in config_changes(plan, draft.config):
        if change.key in PATH_SETTINGS:
            setting = f"{change.key} is {change.old!r}, but of this project {change.new!r}"
            lines.append(f"{files.plan}: {setting}; correct it there")
    return lines


def _describe_replaced_settings(
    files: PlanFiles,
    plan_settings: Settings,
    options: PlanOptions,
) -> Iterator[str]:
    """A line per setting of the plan that `--override_config` replaces in the trainings."""
    overrides = drop_settings_of_other_heads(plan_settings, options.overrides)
    plan = make_config(plan_settings, (), ExperimentConfig)
    config_of_trainings = make_config(plan_settings, overrides, ExperimentConfig)
    for change in config_changes(plan, config_of_trainings):
        setting = f"{change.key} is {change.old!r}, but --override gives {change.new!r}"
        yield f"{files.plan}: {setting}, which counts"


def _write_first_part(
    files: PlanFiles,
    plan_settings: Settings,
    record: PlanRecord,
    options: PlanOptions,
) -> None:
    """Write first_part.yaml, or remove it if the trainings have no first part.

    It is the config of the first part of training, by CTC only, and follows from plan.yaml. It also
    has the settings of `--override_config`, which may be others than when the plan was made.
    Recipes give them to the second part as flags of `train`. They cannot do so for the first part:
    a number of steps among them would replace that of the first part.

    `plan_settings`: the content of plan.yaml.
    Raises ConfigError if an edited plan has a fault, or the first part would end in its warm-up.
    """
    steps = record.decisions.first_steps
    plan = make_config(plan_settings, (), ExperimentConfig)  # raises the faults of an edited plan
    if steps == 0:
        files.first_part.unlink(missing_ok=True)
        return
    check_warmup(plan, steps, is_given=record.inputs.base_steps is not None)
    overrides = drop_settings_of_other_heads(plan_settings, options.overrides)
    overrides_of_first_part = [*overrides, *first_part_overrides(steps)]
    first_part = make_config(plan_settings, overrides_of_first_part, ExperimentConfig)
    write_atomic(files.first_part, first_part_text(first_part, files.plan, steps))


@contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    """Wait until no other process plans in this folder, and lock it as long as the block runs.

    The folder is made if it is missing. If planning then fails with an error of the user, and no
    file but the lock is in the folder, it is removed again.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    lock_file = folder / ".plan.lock"
    try:
        with lock_file.open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except WenetHsError:
        if is_new and [*folder.iterdir()] == [lock_file]:
            lock_file.unlink()
            folder.rmdir()
        raise
