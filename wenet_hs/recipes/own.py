# SPDX-License-Identifier: Apache-2.0
"""The stages of `wenet-hs own` in their order, with the arguments of their commands.

They are those of examples/own/s0/run.sh. This module is data: it runs no command. What depends on
files that earlier stages make is asked when the steps of a stage are read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from wenet_hs.config.heads import is_without_tree
from wenet_hs.recipes.own_options import DEFAULT_SEED, FORMS, LAST_STAGE, OwnOptions, option_texts
from wenet_hs.recipes.plan_names import BASE_NAME, FIRST_PART, PLAN
from wenet_hs.tree.errors import ConfigError

PROGRAM = "wenet-hs own"
TRAINING_STAGE = 4
FAULTS_FOUND = 3
"""The exit code of `wenet-hs check` if it finds faults in recordings, which are left out."""
DATA_OPTIONS = (*FORMS, "lang", "prepare", "data_seed", "unit")
"""The options on which the content of the folder of the lists depends."""
EXP_OPTIONS = ("size", "base", "base_steps", "encoder", "data", "config")
"""The options on which the content of the folder of the experiments depends."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A call of `wenet-hs`."""

    arguments: tuple[str, ...]
    is_shared: bool = False
    """Whether the processes of --nproc share its work."""
    accepted_codes: tuple[int, ...] = (0,)
    """Exit codes after which the next command runs."""
    is_quiet: bool = False
    """Whether its standard output is dropped."""


@dataclass(frozen=True, kw_only=True)
class LoggedTraining:
    """A command that runs beside others and writes to a log."""

    command: Command
    log: Path


@dataclass(frozen=True, kw_only=True)
class Trainings:
    """Trainings that run side by side; all of them end before the next step."""

    trainings: tuple[LoggedTraining, ...]
    model_dirs: tuple[Path, ...]
    """The model folders of all trainings of the stage, for the time that is left of all."""


@dataclass(frozen=True, kw_only=True)
class KeptOptions:
    """The options with which a folder was made are written into it."""

    folder: Path
    names: tuple[str, ...]


Step = Command | Trainings | KeptOptions


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage of the recipe."""

    number: int
    title: str
    make_steps: Callable[[], Iterator[Step]]
    """The steps; each is asked for when those before it have ended."""


def own_stages(options: OwnOptions) -> Iterator[Stage]:
    """The stages that run, in their order."""
    for stage in _all_stages(options):
        if options.stage <= stage.number <= options.stop_stage:
            yield stage
            if stage.number == TRAINING_STAGE and options.only_time:
                return


def _all_stages(options: OwnOptions) -> Iterator[Stage]:
    yield Stage(number=0, title="data lists", make_steps=lambda: _list_steps(options))
    yield Stage(number=1, title="units", make_steps=lambda: _unit_steps(options))
    yield Stage(number=2, title="trees", make_steps=lambda: _tree_steps(options))
    yield Stage(number=3, title="feature statistics", make_steps=lambda: _cmvn_steps(options))
    yield Stage(
        number=TRAINING_STAGE,
        title=f"training (logs: {options.exp}/*.log)",
        make_steps=lambda: _training_steps(options),
    )
    for experiment in experiments(options):
        yield from _stages_of_experiment(options, experiment)
    yield Stage(number=LAST_STAGE, title="report", make_steps=lambda: _report_steps(options))


def _stages_of_experiment(options: OwnOptions, experiment: Path) -> Iterator[Stage]:
    yield Stage(
        number=5,
        title=f"average of {experiment}",
        make_steps=lambda: iter([_average_command(options, experiment)]),
    )
    yield Stage(
        number=6,
        title=f"decoding with {experiment}",
        make_steps=lambda: iter([_recognize_command(options, experiment)]),
    )
    yield Stage(
        number=7,
        title=f"scores of {experiment} ({decoding_folder(options)}/MODE/score.txt)",
        make_steps=lambda: iter([_score_command(options, experiment)]),
    )


# ---- names of files and folders


def data_list(options: OwnOptions, name: str) -> str:
    """The list of a set: train, dev or test."""
    return str(options.data / name / "data.list")


def seed_suffix(seed: int) -> str:
    """What a name has for a seed; nothing for the default."""
    return "" if seed == DEFAULT_SEED else f"-seed{seed}"


def tree_file(options: OwnOptions, seed: int) -> str:
    """The tree of a seed, or the file that --tree names."""
    if has_own_tree(options):
        return options.tree
    return str(options.data / f"tree-{options.tree}{seed_suffix(seed)}.json")


def has_own_tree(options: OwnOptions) -> bool:
    """Whether --tree names a tree.json, which is used as it is."""
    return options.tree.endswith(".json")


def experiment_name(options: OwnOptions, head: str, seed: int) -> str:
    """Such as softmax, or hsoftmax-brown-seed778 with another tree than the default.

    `head`: also `base`, the first part of the trainings of a seed.

    Raises ConfigError as `is_without_tree`.
    """
    name = head
    has_tree = head != BASE_NAME and not is_without_tree(head)
    if has_tree and options.tree != "huffman":
        tree_name = Path(options.tree).name.removeprefix("tree-").removesuffix(".json")
        name = f"{head}-{tree_name}"
    return f"{name}{seed_suffix(seed)}"


def experiments(options: OwnOptions) -> list[Path]:
    """The model folders of all heads and seeds."""
    folders = []
    for seed in options.seeds:
        for head in options.head:
            folders.append(options.exp / experiment_name(options, head, seed))
    return folders


def decoding_folder(options: OwnOptions) -> str:
    """The folder of decoded texts in a model folder: test, or test-chunk16-4 in chunks."""
    if options.chunk is None:
        return options.eval_set
    return f"{options.eval_set}-chunk{options.chunk.size}-{options.chunk.left_chunks}"


def metric(options: OwnOptions) -> str:
    """Phone error rate or character error rate."""
    return "per" if options.unit_kind == "phone" else "cer"


# ---- commands before the first stage


def check_command(options: OwnOptions) -> Command:
    """The command that refuses wrong options, and folders that were made with other ones."""
    return Command(
        arguments=(
            "check-options",
            *("--config", str(options.config_path)),
            *_start_arguments(options),
            *("--size", options.size),
            *("--override_config", *options.override),
            *("--head", *options.head, "--tree", options.tree),
            *("--seeds", *map(str, options.seeds)),
            *("--modes", *options.modes, "--unit", options.unit),
            *("--program", PROGRAM, "--last_stage", str(LAST_STAGE)),
            *("--data_options", *DATA_OPTIONS),
            *("--exp_options", *EXP_OPTIONS),
            *("--values", *_option_values(options)),
        )
    )


def _option_values(options: OwnOptions) -> list[str]:
    """NAME=VALUE of each option."""
    return [f"{name}={text}" for name, text in option_texts(options).items()]


# ---- stages 0 to 3


def _list_steps(options: OwnOptions) -> Iterator[Step]:
    yield _prepare_command(options)
    lists = [data_list(options, name) for name in ("train", "dev", "test")]
    yield Command(
        arguments=(
            "check",
            *lists,
            *("--config", str(options.config_path)),
            *_start_arguments(options),
            *("--unit", _text_unit(options)),
            *("--min_minutes", f"{options.min_minutes:g}"),
            *("--out", str(options.data / "check.tsv")),
            *("--html", str(options.data / "check.html")),
        ),
        accepted_codes=(0, FAULTS_FOUND),
    )
    yield KeptOptions(folder=options.data, names=DATA_OPTIONS)


def _prepare_command(options: OwnOptions) -> Command:
    """Raises ConfigError unless exactly one form of recordings is given."""
    given_forms = [form for form in FORMS if getattr(options, form) is not None]
    if len(given_forms) != 1:
        names = "--corpus TABLE, --elan, --praat, --kaldi, --folder"
        raise ConfigError(PROGRAM, f"give one of {names} (try --help)")
    form = given_forms[0]
    return Command(
        arguments=(
            *("prepare", "table" if form == "corpus" else form),
            *("--corpus", str(getattr(options, form))),
            *("--lang", options.lang, "--unit", _text_unit(options)),
            *options.prepare,
            *("--seed", str(options.data_seed), "--out", str(options.data)),
        )
    )


def _text_unit(options: OwnOptions) -> str:
    """How text is normalised: word pieces are made of characters."""
    return "char" if options.unit_kind == "bpe" else options.unit_kind


def _unit_steps(options: OwnOptions) -> Iterator[Step]:
    kind = ["--kind", options.unit_kind]
    if options.unit_kind == "bpe":
        kind += ["--vocab_size", options.num_pieces, "--bpe_model", _bpe_model(options)]
    yield Command(
        arguments=(
            "units",
            *("--data_list", data_list(options, "train")),
            *kind,
            *("--out", _units_file(options)),
        )
    )


def _tree_steps(options: OwnOptions) -> Iterator[Step]:
    if has_own_tree(options):
        return
    for seed in options.seeds:
        yield Command(
            arguments=(
                *("tree", "build", "--kind", options.tree, "--seed", str(seed)),
                *("--data_list", data_list(options, "train")),
                *_tokenizer_arguments(options),
                *("--units", _units_file(options)),
                *("--out", tree_file(options, seed)),
            )
        )


def _cmvn_steps(options: OwnOptions) -> Iterator[Step]:
    yield plan_command(options)
    yield Command(
        arguments=(
            *("cmvn", "--data_list", data_list(options, "train")),
            *("--config", str(options.exp / PLAN)),
            *("--override_config", *options.override),
            *("--out", str(options.data / "global_cmvn")),
        ),
        is_shared=True,
    )


def plan_command(options: OwnOptions, *, is_only_time: bool = False) -> Command:
    """The command that writes the config of the training, or only measures its time."""
    base_steps = "" if options.base_steps is None else str(options.base_steps)
    return Command(
        arguments=(
            *("plan", *(("--only_time",) if is_only_time else ())),
            *("--data", str(options.data), "--unit", options.unit, "--out", str(options.exp)),
            *("--config", str(options.config_path), "--size", options.size),
            *_start_arguments(options),
            *("--base_steps", base_steps, "--threads", str(options.threads)),
            *("--override_config", *options.override),
        )
    )


def _start_arguments(options: OwnOptions) -> tuple[str, ...]:
    """What the trainings start from; an empty text for what was not given."""
    base = "" if options.base is None else str(options.base)
    encoder = "" if options.encoder is None else str(options.encoder)
    return ("--base", base, "--encoder", encoder)


def _units_file(options: OwnOptions) -> str:
    return str(options.data / "units.txt")


def _bpe_model(options: OwnOptions) -> str:
    return str(options.data / "bpe.model")


def _tokenizer_arguments(options: OwnOptions) -> tuple[str, ...]:
    if options.unit_kind == "bpe":
        return ("--tokenizer", "bpe", "--bpe_model", _bpe_model(options))
    return ("--tokenizer", options.unit_kind)


# ---- stage 4: training


def _training_steps(options: OwnOptions) -> Iterator[Step]:
    yield plan_command(options, is_only_time=options.only_time)
    if options.only_time:
        return
    yield KeptOptions(folder=options.exp, names=EXP_OPTIONS)
    has_first_part = (options.exp / FIRST_PART).is_file() and options.base is None
    model_dirs = tuple(experiments(options))
    if has_first_part:
        first_names = [experiment_name(options, BASE_NAME, seed) for seed in options.seeds]
        model_dirs += tuple(options.exp / name for name in first_names)
        first_part = tuple(_first_part(options, seed) for seed in options.seeds)
        yield Trainings(trainings=first_part, model_dirs=model_dirs)
    second_part = []
    for seed in options.seeds:
        checkpoint = options.base
        if has_first_part:
            checkpoint = options.exp / experiment_name(options, BASE_NAME, seed)
        for head in options.head:
            second_part.append(_second_part(options, head, seed, checkpoint))
    yield Trainings(trainings=tuple(second_part), model_dirs=model_dirs)


def _first_part(options: OwnOptions, seed: int) -> LoggedTraining:
    """The training by CTC only, from which all heads of a seed start."""
    name = experiment_name(options, BASE_NAME, seed)
    return _training(options, name, FIRST_PART, seed, ("--head", "softmax"))


def _second_part(
    options: OwnOptions,
    head: str,
    seed: int,
    checkpoint: Path | None,
) -> LoggedTraining:
    """The training of a head. `checkpoint`: folder of the first weights; None: random ones.

    The plan has the settings of --override; a training that goes on may have others.
    """
    start = () if checkpoint is None else ("--checkpoint", str(checkpoint))
    name = experiment_name(options, head, seed)
    arguments = (
        *("--head", head, "--tree", tree_file(options, seed)),
        *start,
        *("--override_config", *options.override),
    )
    return _training(options, name, PLAN, seed, arguments)


def _training(
    options: OwnOptions,
    name: str,
    config: str,
    seed: int,
    arguments: tuple[str, ...],
) -> LoggedTraining:
    """A training into a folder of this name, with a config in the folder of the experiment."""
    command = Command(
        arguments=(
            *("train", "--model_dir", str(options.exp / name)),
            *("--config", str(options.exp / config), "--seed", str(seed)),
            *("--train_data", data_list(options, "train")),
            *("--cv_data", data_list(options, "dev")),
            *("--cmvn", str(options.data / "global_cmvn")),
            *("--units", _units_file(options)),
            *_tokenizer_arguments(options),
            *arguments,
        ),
        is_shared=True,
    )
    return LoggedTraining(command=command, log=options.exp / f"{name}.log")


# ---- stages 5 to 8


def _average_command(options: OwnOptions, experiment: Path) -> Command:
    num = str(options.average_num)
    return Command(arguments=("average", "--model_dir", str(experiment), "--num", num))


def _recognize_command(options: OwnOptions, experiment: Path) -> Command:
    chunk = list[str]()
    if options.chunk is not None:
        chunk += ["--decoding_chunk_size", str(options.chunk.size)]
        chunk += ["--num_decoding_left_chunks", str(options.chunk.left_chunks)]
    return Command(
        arguments=(
            *("recognize", "--model_dir", str(experiment)),
            *("--test_data", data_list(options, options.eval_set)),
            *("--result_dir", str(experiment / decoding_folder(options))),
            *chunk,
            *("--modes", *options.modes),
        ),
        is_shared=True,
    )


def _score_command(options: OwnOptions, experiment: Path) -> Command:
    return Command(
        arguments=(
            *("score", "--metric", metric(options), "--by", "lang"),
            *("--ref", str(options.data / options.eval_set / "text")),
            *("--data_list", data_list(options, options.eval_set)),
            *("--hyp", str(experiment / decoding_folder(options)), "--name", experiment.name),
        ),
        is_quiet=True,
    )


def _report_steps(options: OwnOptions) -> Iterator[Step]:
    results = () if options.results is None else ("--results", str(options.results))
    yield Command(
        arguments=(
            "report",
            *(f"--exp={folder}" for folder in experiments(options)),
            *("--stats", str(options.data / "stats.json")),
            *("--data_list", data_list(options, options.eval_set)),
            *("--test", decoding_folder(options)),
            *("--out", str(options.exp / "report.html")),
            *results,
        )
    )
