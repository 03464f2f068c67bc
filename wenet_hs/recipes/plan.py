# SPDX-License-Identifier: Apache-2.0
"""The draft of a plan: what is decided for the trainings of an experiment.

It follows from the options and from the hours of training speech. `plan_files` writes the plan.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wenet_hs.base.extensions import is_known_name, known_names
from wenet_hs.base.files import read_json
from wenet_hs.config.commented_yaml import SettingSource
from wenet_hs.config.heads import HEADS, head_settings
from wenet_hs.config.load import flatten, make_config, override_key, written_setting
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.config.yaml_file import Settings
from wenet_hs.recipes.config_choice import ConfigChoice, choose_config
from wenet_hs.recipes.sizes import NO_LIMIT, SizeTable, read_size_table
from wenet_hs.tree.errors import ConfigError, DataError

CHECKPOINTS_PER_TRAINING = 12
"""`save_interval` is the steps of a training divided by this number."""
FILE_SETTINGS = ("encoder_conf.path", "ctc_conf.head_conf.tree")
"""The settings of files for which recipes give no flag of `train`.

In the train.yaml of a trained model they are names in its folder.
"""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of `wenet-hs plan`; None: not given."""

    data: Path
    """The folder with the data lists."""
    config: Path
    """The YAML of `--config`."""
    out: Path
    """The folder of the experiment."""
    size: str
    """The name of a size, or `auto`."""
    base: Path | None = None
    """Folder of a trained model from which the trainings start."""
    encoder: Path | None = None
    """Folder of a pretrained encoder from which the trainings start."""
    base_steps: int | None = None
    """Steps of the first part of training, by CTC only; 0: there is none."""
    unit: str | None = None
    """char, phone, or bpe:N with N pieces."""
    overrides: Sequence[str] = ()
    """The settings of `--override_config`, as `key=value`."""
    num_threads: int = 1
    """CPU threads of a training, for the expected time."""


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """What is decided by the hours of training speech."""

    size: str
    """The name of a size; with a pretrained encoder the name of the config instead."""
    below_hours: float
    """The limit of the size; NO_LIMIT: it has none, or the encoder is pretrained."""
    first_steps: int
    """Steps of the first part of training, by CTC only; 0: there is no first part."""
    steps: int
    """Steps of the second part, or of the whole training."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """Everything that is decided for a training, before anything is measured or written."""

    hours: float
    """Of training speech."""
    choice: ConfigChoice
    """The YAML that the config begins with."""
    decisions: Decisions
    sources: tuple[SettingSource, ...]
    """The settings that replace those of the YAML, and who decided them."""
    config: ExperimentConfig
    """The YAML with the settings of all sources."""


def draft_plan(options: PlanOptions, chosen_before: str | None) -> Draft:
    """Everything that is decided by the options, the data lists and this machine.

    Args:
        options: of `wenet-hs plan`.
        chosen_before: the name of the config that was chosen for the encoder before; None: there is
            none.
    Raises: ConfigError or DataError: there are no lists, an option is wrong, options exclude each
        other, the settings do not fit each other, or the first part would end in its warm-up.
    """
    hours = read_hours(options.data)
    table = read_size_table()
    if options.unit is not None:
        check_unit(options.unit)
    table.check_name(options.size)
    choice = choose_config(
        options.config,
        base=options.base,
        encoder=options.encoder,
        size=options.size,
        outputs=options.data / "encoder_outputs",
        chosen_before=chosen_before,
    )
    decisions = _decide_size_and_steps(options, choice, table, hours)
    sources = _setting_sources(options, choice, decisions, table)
    config = make_config(choice.file_settings, _overrides_of(sources), ExperimentConfig)
    files_source = _source_of_files(config, choice.path)
    if files_source.overrides:  # the plan needs the paths of files that the YAML only names
        sources = (*sources, files_source)
        config = make_config(choice.file_settings, _overrides_of(sources), ExperimentConfig)
    if decisions.first_steps > 0:
        check_warmup(config, decisions.first_steps, is_given=options.base_steps is not None)
        overrides = [*_overrides_of(sources), *first_part_overrides(decisions.first_steps)]
        make_config(choice.file_settings, overrides, ExperimentConfig)  # only for its errors
    return Draft(
        hours=hours,
        choice=choice,
        decisions=decisions,
        sources=sources,
        config=config,
    )


def describe_size(draft: Draft, base: Path | None) -> str:
    """The line for the user about hours, size and steps.

    Example: `2.5 hours of training speech: size small, 6000 + 4800 steps`. The two numbers are
    those of the first and the second part of training; 0: there is no first part.

    `base`: folder of the trained model from which the trainings start; None: there is none.
    """
    decisions = draft.decisions
    steps = f"{decisions.first_steps} + {decisions.steps} steps"
    start = "" if base is None else f" from {base}, whose layers stay"
    return f"{draft.hours} hours of training speech: size {decisions.size}, {steps}{start}"


def read_hours(data: Path) -> float:
    """The hours of training speech in a folder of data lists, as its stats.json has them.

    Raises ConfigError if it has no stats.json, and DataError if that is damaged.
    """
    path = data / "stats.json"
    if not path.is_file():
        raise ConfigError(f"no lists in {data}", to_do="run stage 0")
    to_do = "make the lists again"
    content = read_json(path, to_do)
    try:
        hours = content["total"]["hours"]["train"]
    except (KeyError, TypeError) as error:
        raise DataError(path, "has no total.hours.train", to_do) from error
    if not isinstance(hours, int | float):
        raise DataError(path, f"total.hours.train is {hours!r}, not a number", to_do)
    return hours


def check_unit(unit: str) -> None:
    """Raise ConfigError unless `--unit` accepts this value."""
    if not re.fullmatch("char|phone|bpe:[1-9][0-9]*", unit):
        raise ConfigError(f"--unit {unit}", "must be char, phone or bpe:N")


def first_part_overrides(steps: int) -> list[str]:
    """The settings that the first part of a training has instead of those of the plan.

    All its `steps` train CTC only. The output layer of the decoder is a softmax, whatever it is in
    the second part.
    """
    return [
        f"model_conf.ctc_only_steps={steps}",
        f"scheduler_conf.total_steps={steps}",
        "head=softmax",
        "head_conf={}",
    ]


def check_warmup(config: ExperimentConfig, first_steps: int, *, is_given: bool) -> None:
    """Raise ConfigError if the first part of a training has no step after its warm-up.

    `train` would refuse it too, but only after the plan is made. The second part needs no such
    check: reading the config refuses it.

    Args:
        config: of the training.
        first_steps: the number of steps of the first part.
        is_given: whether this is the number of `--base_steps`.
    """
    warmup_steps = config.scheduler_conf.warmup_steps
    if first_steps > warmup_steps:
        return
    where = f"--base_steps {first_steps}" if is_given else f"first part of {first_steps} steps"
    fault = f"all in the warm-up of {warmup_steps} steps (scheduler_conf.warmup_steps)"
    raise ConfigError(where, fault, "give more steps, or lower the warm-up")


# ---- decisions


def _decide_size_and_steps(
    options: PlanOptions,
    choice: ConfigChoice,
    table: SizeTable,
    hours: float,
) -> Decisions:
    """The size and the steps of both parts of training.

    With a pretrained encoder the steps are those of its config in the table, and there is a first
    part only if `--base_steps` asks for it. Otherwise both follow from the size, and `--base_steps`
    replaces the steps of the first part. A trained model has had its first part.

    `hours`: of training speech.
    Raises ConfigError if the table has no steps for the config of the encoder.
    """
    if choice.start == "pretrained encoder":
        return Decisions(
            size=choice.path.name,
            below_hours=NO_LIMIT,
            first_steps=options.base_steps or 0,
            steps=table.choose_encoder_steps(choice.path, hours, named_config=options.config),
        )
    size = table.choose(options.size, hours)
    if choice.start == "trained model":
        first_steps = 0
    elif options.base_steps is not None:
        first_steps = options.base_steps
    else:
        first_steps = size.first_steps
    return Decisions(
        size=size.name,
        below_hours=size.below_hours,
        first_steps=first_steps,
        steps=size.steps,
    )


def _setting_sources(
    options: PlanOptions,
    choice: ConfigChoice,
    decisions: Decisions,
    table: SizeTable,
) -> tuple[SettingSource, ...]:
    """The settings that replace those of the YAML, grouped by who decided them.

    A later source replaces what an earlier one has set: the user decides last.
    """
    interval = decisions.steps // CHECKPOINTS_PER_TRAINING
    step_settings = (f"scheduler_conf.total_steps={decisions.steps}", f"save_interval={interval}")
    steps_name = f"size {decisions.size}"
    if choice.start == "pretrained encoder":
        steps_name = "the hours of speech"
    overrides = drop_settings_of_other_heads(choice.file_settings, options.overrides)
    return (
        _source_of_start(choice, decisions, table),
        SettingSource(name=steps_name, overrides=step_settings),
        SettingSource(name="--unit", overrides=_tokenizer_settings(options)),
        SettingSource(name="--encoder", overrides=choice.settings),
        SettingSource(name="--override_config", overrides=overrides),
    )


def _source_of_start(
    choice: ConfigChoice,
    decisions: Decisions,
    table: SizeTable,
) -> SettingSource:
    """The settings that follow from what the training starts from, and who decided them.

    - From random weights: those of the size of the model.
    - From a trained model: those of the table for all such trainings.
    - From a pretrained encoder: none.
    """
    if choice.start == "trained model":
        return SettingSource(name="--base", overrides=table.adapted)
    settings: tuple[str, ...] = ()
    if choice.start == "random weights":
        # The size is decided already, and has a name, so the hours do not count here.
        settings = table.choose(decisions.size, hours=0.0).settings
    return SettingSource(name=f"size {decisions.size}", overrides=settings)


def _overrides_of(sources: Sequence[SettingSource]) -> list[str]:
    """The settings of all sources, in their order."""
    overrides = list[str]()
    for source in sources:
        overrides.extend(source.overrides)
    return overrides


def _tokenizer_settings(options: PlanOptions) -> tuple[str, ...]:
    """The settings of `--unit`; none if it is not given.

    The model of word pieces is in the folder of the data lists.
    """
    if options.unit is None:
        return ()
    kind = options.unit.partition(":")[0]
    if kind != "bpe":
        return (f"tokenizer={kind}",)
    return ("tokenizer=bpe", f"tokenizer_conf.bpe_path={options.data / 'bpe.model'}")


def drop_settings_of_other_heads(
    file_settings: Settings,
    overrides: Sequence[str],
) -> tuple[str, ...]:
    """The overrides without the settings that only other output layers (heads) have.

    A recipe trains several heads, and gives all overrides of the user to each training. So some may
    be for a head that the config does not have.

    What settings a head of another package has is not known before the package is imported. If such
    a head is installed, every setting of `head_conf` that the head of the config does not have is
    dropped.

    Args:
        file_settings: the content of the YAML.
        overrides: the settings of the user, as `key=value`.
    """
    kept_keys = _keys_of_head(_head_of(file_settings, overrides))
    has_only_builtin_heads = known_names("head", HEADS) == [*HEADS]
    if has_only_builtin_heads:
        keys_of_heads = set[str]()
        for head in HEADS:
            keys_of_heads |= _keys_of_head(head)
    else:
        override_keys = map(override_key, overrides)
        keys_of_heads = {key for key in override_keys if key and key.startswith("head_conf.")}
    dropped_keys = keys_of_heads - kept_keys
    return tuple(override for override in overrides if override_key(override) not in dropped_keys)


def _head_of(file_settings: Settings, overrides: Sequence[str]) -> str:
    """The head of the config; softmax for a wrong name, which `make_config` refuses later."""
    head = str(written_setting(file_settings, overrides, "head"))
    return head if is_known_name("head", HEADS, head) else "softmax"


def _keys_of_head(head: str) -> set[str]:
    """The dotted keys of the settings of a head, such as `head_conf.tree`."""
    return {f"head_conf.{name}" for name in head_settings(head).model_fields}


def _source_of_files(config: ExperimentConfig, path: Path) -> SettingSource:
    """The settings of FILE_SETTINGS that name files beside the YAML, with the paths of these files.

    The plan is in another folder, where the names alone would not be found.

    Args:
        config: the settings.
        path: the YAML.
    """
    settings = flatten(config.model_dump(mode="json"))
    overrides = list[str]()
    for key in FILE_SETTINGS:
        name = settings.get(key)
        if name is not None and _is_only_beside(Path(name), path.parent):
            overrides.append(f"{key}={path.parent / name}")
    return SettingSource(name=f"the folder of {path.name}", overrides=overrides)


def _is_only_beside(file: Path, folder: Path) -> bool:
    """Whether a name without a folder is a file of this folder, and not of the working folder."""
    has_no_folder = file.name == str(file)
    return has_no_folder and not file.exists() and (folder / file).exists()
