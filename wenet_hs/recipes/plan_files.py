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
"""Settings of a plan that name files of the project or beside it."""


@dataclass(frozen=True, kw_only=True)
class PlanFiles:
    """The files of a plan in the folder of an experiment."""

    folder: Path

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
        return self.folder / "plan.json"

    def has_trainings(self) -> bool:
        """Whether a training has begun in the folder."""
        return any(self.folder.glob("*/train.yaml"))

    def read(self) -> PlanRecord | None:
        """The record of the plan; None: there is no plan.

        Raises: DataError if the record is damaged, ConfigError if there is none for the plan.
        """
        if not self.plan.is_file():
            return None
        if not self.record.is_file():
            found = f"its inputs are unknown, as {self.record.name} is missing"
            to_do = f"give another --exp, or remove {self.plan} to plan again"
            raise ConfigError(self.plan, found, to_do)
        return read_plan_record(self.record)


@dataclass(frozen=True, kw_only=True)
class MeasuredPlan:
    """What would be decided now, and the time that it takes here."""

    size_line: str
    """The sentence about hours, size and steps."""
    record: ExpectedRecord


def measure_plan(options: PlanOptions) -> MeasuredPlan:
    """The size, the steps and the expected time of a training. Nothing is written.

    Raises ConfigError or DataError as `draft_plan` does.
    """
    draft = draft_plan(options, _chosen_before(options, PlanFiles(folder=options.out)))
    expected = _measure(draft, options)
    outputs = None
    if expected.outputs is not None:
        outputs = OutputsRecord(
            seconds=expected.outputs.seconds,
            bytes=round(GIGABYTE * expected.outputs.gigabytes),
            folder=expected.outputs.folder,
        )
    parts = [PartRecord(steps=part.steps, seconds=part.seconds) for part in expected.parts]
    record = ExpectedRecord(
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
    return MeasuredPlan(size_line=describe_size(draft, options.base), record=record)


def describe_plan(options: PlanOptions, json_file: Path | None = None) -> list[str]:
    """The size, the steps and the expected time of a training, as lines for the user.

    `json_file`: the same is written there as data; None: nothing is written.
    Raises ConfigError or DataError as `draft_plan` does.
    """
    measured = measure_plan(options)
    if json_file is not None:
        write_expected(json_file, measured.record)
    return [measured.size_line, measured.record.sentence]


def update_plan(options: PlanOptions) -> list[str]:
    """Write the plan of an experiment, or keep the one that is there. Returns lines for the user.

    A plan is kept if its inputs are the same, also if it was edited. An unedited plan of a project
    that was moved gets the new paths. With other inputs it is made again, unless it was edited or a
    training has begun. `first_part.yaml` is written in any case. Processes that plan in one folder
    at the same time wait for each other.

    Raises: ConfigError or DataError as `draft_plan` does; ConfigError if the inputs are not those
        of a plan that must not be replaced, or an edited plan has a fault.
    """
    files = PlanFiles(folder=options.out)
    with _only_process(options.out):
        record = files.read()
        draft = draft_plan(options, _chosen_before(options, files))
        if record is None:
            return _make(files, draft, options)
        change = first_change(record.inputs, make_inputs(options, draft), files.plan)
        if change is None:
            plan_settings = read_yaml(files.plan)
            if _is_moved(files, plan_settings, record, draft):
                _write(files, draft, options, record.expected_time)
                return [f"{files.plan}: kept as it was made, with the new paths of its files"]
            return _keep(files, plan_settings, record, draft, options)
        if change.keeps_begun_plan and files.has_trainings():
            since = f"{files.plan}: since it was made: {change.now}"
            plan_settings = read_yaml(files.plan)
            return [*_keep(files, plan_settings, record, draft, options), since]
        if files.has_trainings() or _is_edited(files, record):
            raise _refusal(files, change)
        again = f"{files.plan}: made again, for {change.now} instead of {change.before}"
        return [again, *_make(files, draft, options)]


def _refusal(files: PlanFiles, change: InputChange) -> ConfigError:
    to_do = f"give another --exp, remove {files.plan} to plan again, or {change.repeat}"
    return ConfigError(change.now, f"{files.plan} was made with {change.before}", to_do)


def _chosen_before(options: PlanOptions, files: PlanFiles) -> str | None:
    """The name of the config that was chosen for the same encoder before, maybe elsewhere."""
    record = files.read()
    if options.encoder is None or record is None:
        return None
    is_same_encoder = record.inputs.encoder == relative_path(options.encoder, options.out)
    was_chosen = is_own(Path(record.inputs.config))  # otherwise the user has named it
    return Path(record.decisions.config).name if is_same_encoder and was_chosen else None


def _measure(draft: Draft, options: PlanOptions) -> ExpectedTime:
    return measure_expected_time(
        draft.config,
        draft.choice.path,
        hours=draft.hours,
        first_steps=draft.decisions.first_steps,
        num_threads=options.num_threads,
    )


def _make(files: PlanFiles, draft: Draft, options: PlanOptions) -> list[str]:
    """Measure, write all files, and return what to tell the user."""
    size_line = describe_size(draft, options.base)
    time_line = describe_expected_time(_measure(draft, options))
    _write(files, draft, options, time_line)
    return [size_line, time_line, f"{files.plan}: the config of the trainings, to read and to edit"]


def _write(files: PlanFiles, draft: Draft, options: PlanOptions, expected_time: str) -> None:
    """Write all files: plan.yaml after its record, so that no plan is without one."""
    text = plan_text(draft, options, files.plan, expected_time)
    record = make_record(
        options,
        draft,
        expected_time=expected_time,
        plan_sha256=hashlib.sha256(text.encode("utf-8")).hexdigest(),
    )
    files.plan.unlink(missing_ok=True)
    write_atomic(files.record, record_text(record))
    write_atomic(files.plan, text)
    _write_first_part(files, read_yaml(files.plan), record, options)


def _keep(
    files: PlanFiles,
    plan_settings: Settings,
    record: PlanRecord,
    draft: Draft,
    options: PlanOptions,
) -> list[str]:
    """Write what follows from the plan.

    Returns lines: that it is kept, and what it does not decide.
    """
    _write_first_part(files, plan_settings, record, options)
    replaced = _replaced_settings(files, plan_settings, options)
    if not _is_edited(files, record):
        return [f"{files.plan}: kept as it was made", *replaced]
    lines = [f"{files.plan}: kept as it was edited", *replaced]
    plan = make_config(plan_settings, (), ExperimentConfig)
    for key, in_plan, now in config_changes(plan, draft.config):
        if key in PATH_SETTINGS:
            lines.append(
                f"{files.plan}: {key} is {in_plan!r}, but of this project {now!r}; correct it there"
            )
    return lines


def _replaced_settings(
    files: PlanFiles,
    plan_settings: Settings,
    options: PlanOptions,
) -> Iterator[str]:
    """A line per setting of the plan that `--override_config` replaces in the trainings."""
    of_user = drop_settings_of_other_heads(plan_settings, options.overrides)
    plan = make_config(plan_settings, (), ExperimentConfig)
    of_trainings = make_config(plan_settings, of_user, ExperimentConfig)
    for key, in_plan, now in config_changes(plan, of_trainings):
        yield f"{files.plan}: {key} is {in_plan!r}, but --override gives {now!r}, which counts"


def _is_moved(
    files: PlanFiles,
    plan_settings: Settings,
    record: PlanRecord,
    draft: Draft,
) -> bool:
    """Whether an unedited plan differs from the draft only in paths, as the project was moved."""
    if _is_edited(files, record):
        return False
    plan = make_config(plan_settings, (), ExperimentConfig)
    changes = config_changes(plan, draft.config)
    changed = {key for key, _, _ in changes}
    return bool(changed) and changed <= PATH_SETTINGS


def _is_edited(files: PlanFiles, record: PlanRecord) -> bool:
    return file_sha256(files.plan) != record.plan_sha256


def _write_first_part(
    files: PlanFiles,
    plan_settings: Settings,
    record: PlanRecord,
    options: PlanOptions,
) -> None:
    """Write the config of the first part as it follows from plan.yaml, or remove an old one.

    It has the settings of `--override_config`, also if the plan was made with others: recipes give
    them to the second part as flags of `train`, but the first part has steps of its own.

    Raises ConfigError if the plan was edited and has a fault.
    """
    steps = record.decisions.first_steps
    plan = make_config(plan_settings, (), ExperimentConfig)
    if steps == 0:
        files.first_part.unlink(missing_ok=True)
        return
    check_warmup(plan, steps, is_given=record.inputs.base_steps is not None)
    of_user = drop_settings_of_other_heads(plan_settings, options.overrides)
    overrides = [*of_user, *first_part_overrides(steps)]
    first_part = make_config(plan_settings, overrides, ExperimentConfig)
    write_atomic(files.first_part, first_part_text(first_part, files.plan, steps))


@contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    """Waits until no other process plans in this folder, which is made if it is missing.

    A folder that was made for a plan that fails is removed.
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
