# SPDX-License-Identifier: Apache-2.0
"""The plan of an experiment: what is decided for its trainings, by the options and the speech."""

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
FILES_BESIDE = ("encoder_conf.path", "ctc_conf.head_conf.tree")
"""The settings that name files which no flag of `train` gives in a recipe. In the train.yaml of a
trained model they are names in its folder."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of `wenet-hs plan`; None: not given."""

    data: Path
    """The folder with the lists."""
    config: Path
    out: Path
    """The folder of the experiment."""
    size: str
    base: Path | None = None
    encoder: Path | None = None
    base_steps: int | None = None
    unit: str | None = None
    overrides: Sequence[str] = ()
    num_threads: int = 1


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """What was decided by the hours of speech."""

    size: str
    """The name of a size; with `--encoder` that of its config."""
    below_hours: float
    """The limit of the size; NO_LIMIT: there is none, or the steps of an encoder were decided."""
    first_steps: int
    """Steps of the first part of training; 0: there is none."""
    steps: int


@dataclass(frozen=True, kw_only=True)
class Draft:
    """Everything that is decided for a training, before anything is measured or written."""

    hours: float
    choice: ConfigChoice
    decisions: Decisions
    sources: tuple[SettingSource, ...]
    """The settings that differ from the YAML of the choice, and who decided them."""
    config: ExperimentConfig


def draft_plan(options: PlanOptions, chosen_before: str | None) -> Draft:
    """Decide everything by the options, the lists and this machine.

    Args:
        chosen_before: the config that was chosen for the encoder before, if any.
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
    decisions = _decide(options, choice, table, hours)
    sources = _sources(options, choice, decisions, table)
    config = make_config(choice.file_settings, _overrides(sources), ExperimentConfig)
    beside = _files_beside(config, choice.path)
    if beside.overrides:
        sources = (*sources, beside)
        config = make_config(choice.file_settings, _overrides(sources), ExperimentConfig)
    if decisions.first_steps:
        check_warmup(config, decisions.first_steps, is_given=options.base_steps is not None)
        of_first_part = [*_overrides(sources), *first_part_overrides(decisions.first_steps)]
        make_config(choice.file_settings, of_first_part, ExperimentConfig)  # raises what it lacks
    return Draft(
        hours=hours,
        choice=choice,
        decisions=decisions,
        sources=sources,
        config=config,
    )


def describe_size(draft: Draft, base: Path | None) -> str:
    """The sentence about hours, size and steps."""
    decisions = draft.decisions
    steps = f"{decisions.first_steps} + {decisions.steps} steps"
    start = "" if base is None else f" from {base}, whose layers stay"
    return f"{draft.hours} hours of training speech: size {decisions.size}, {steps}{start}"


def read_hours(data: Path) -> float:
    """The hours of training speech in a folder of lists.

    Raises ConfigError if it has no lists, DataError if its stats.json is damaged.
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
    """What the first part of a training changes in the plan: CTC only, its steps, a softmax."""
    return [
        f"model_conf.ctc_only_steps={steps}",
        f"scheduler_conf.total_steps={steps}",
        "head=softmax",
        "head_conf={}",
    ]


def check_warmup(config: ExperimentConfig, first_steps: int, *, is_given: bool) -> None:
    """Raise ConfigError if the first part of a training has no step after its warm-up.

    `train` would refuse it too, but only after the plan. It checks the second part when it reads
    the config.

    Args:
        first_steps: of the first part.
        is_given: whether they are those of `--base_steps`.
    """
    warmup = config.scheduler_conf.warmup_steps
    if first_steps > warmup:
        return
    where = f"--base_steps {first_steps}" if is_given else f"first part of {first_steps} steps"
    found = f"all in the warm-up of {warmup} steps (scheduler_conf.warmup_steps)"
    raise ConfigError(where, found, "give more steps, or lower the warm-up")


# ---- decisions


def _decide(
    options: PlanOptions,
    choice: ConfigChoice,
    table: SizeTable,
    hours: float,
) -> Decisions:
    given_steps = options.base_steps or 0
    if choice.start == "pretrained encoder":
        return Decisions(
            size=choice.path.name,
            below_hours=NO_LIMIT,
            first_steps=given_steps,
            steps=table.choose_encoder_steps(choice.path, hours, named_config=options.config),
        )
    size = table.choose(options.size, hours)
    first_steps = size.first_steps if options.base_steps is None else given_steps
    if choice.start == "trained model":  # which has had its first part
        first_steps = 0
    return Decisions(
        size=size.name,
        below_hours=size.below_hours,
        first_steps=first_steps,
        steps=size.steps,
    )


def _sources(
    options: PlanOptions,
    choice: ConfigChoice,
    decisions: Decisions,
    table: SizeTable,
) -> tuple[SettingSource, ...]:
    """All settings that differ from the YAML, in the order in which they replace each other."""
    decided_size = f"size {decisions.size}"
    decided_steps = decided_size
    of_size: tuple[str, ...] = ()
    if choice.start == "random weights":
        of_size = table.choose(decisions.size, 0.0).settings
    elif choice.start == "trained model":
        of_size = table.adapted
        decided_size = "--base"
    else:
        decided_steps = "the hours of speech"
    steps = (
        f"scheduler_conf.total_steps={decisions.steps}",
        f"save_interval={decisions.steps // CHECKPOINTS_PER_TRAINING}",
    )
    of_user = without_other_heads(choice.file_settings, options.overrides)
    return (
        SettingSource(name=decided_size, overrides=of_size),
        SettingSource(name=decided_steps, overrides=steps),
        SettingSource(name="--unit", overrides=_tokenizer_settings(options)),
        SettingSource(name="--encoder", overrides=choice.settings),
        SettingSource(name="--override_config", overrides=of_user),
    )


def _overrides(sources: Sequence[SettingSource]) -> list[str]:
    """The settings of all sources, in their order."""
    overrides = list[str]()
    for source in sources:
        overrides.extend(source.overrides)
    return overrides


def _tokenizer_settings(options: PlanOptions) -> tuple[str, ...]:
    if options.unit is None:
        return ()
    kind = options.unit.partition(":")[0]
    if kind != "bpe":
        return (f"tokenizer={kind}",)
    return ("tokenizer=bpe", f"tokenizer_conf.bpe_path={options.data / 'bpe.model'}")


def without_other_heads(file_settings: Settings, overrides: Sequence[str]) -> tuple[str, ...]:
    """The settings of the user without those of a head that the plan does not have.

    A recipe gives each training its head with `--head`, and all settings of the user again.
    """
    own = _keys_of_head(_head_of(file_settings, overrides))
    if known_names("head", HEADS) == [*HEADS]:
        others = set[str]().union(*map(_keys_of_head, HEADS)) - own
    else:  # the settings of a head of a package are not known before it is imported
        keys = filter(None, map(override_key, overrides))
        others = {key for key in keys if key.startswith("head_conf.")} - own
    return tuple(override for override in overrides if override_key(override) not in others)


def _head_of(file_settings: Settings, overrides: Sequence[str]) -> str:
    """The head of the plan; softmax for a wrong name, which `make_config` refuses later."""
    head = str(written_setting(file_settings, overrides, "head"))
    return head if is_known_name("head", HEADS, head) else "softmax"


def _keys_of_head(head: str) -> set[str]:
    return {f"head_conf.{name}" for name in head_settings(head).model_fields}


def _files_beside(config: ExperimentConfig, path: Path) -> SettingSource:
    """The paths of files that are named in the config without a folder and are beside it.

    The plan is in another folder, so that it needs their paths.
    """
    settings = flatten(config.model_dump(mode="json"))
    overrides = list[str]()
    for key in FILES_BESIDE:
        name = settings.get(key)
        if name is not None and _is_only_beside(Path(name), path.parent):
            overrides.append(f"{key}={path.parent / name}")
    return SettingSource(name=f"the folder of {path.name}", overrides=overrides)


def _is_only_beside(file: Path, folder: Path) -> bool:
    """Whether a name without a folder is a file of this folder, and not of the working folder."""
    has_no_folder = file.name == str(file)
    return has_no_folder and not file.exists() and (folder / file).exists()
