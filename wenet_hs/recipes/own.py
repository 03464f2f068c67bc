# SPDX-License-Identifier: Apache-2.0
"""The stages of `wenet-hs own` in their order, with the arguments of their commands.

They are those of examples/own/s0/run.sh. This module is data: it runs no command. A step that
depends on files of earlier stages is made after these have ended.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
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

FlagValue = str | int | Path | tuple[str | int, ...] | None
"""The value of a flag. A tuple: several values, or none.

None: an empty text, which the commands of recipes read as "not given".
"""
Flags = Mapping[str, FlagValue]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A call of `wenet-hs`."""

    words: tuple[str, ...]
    """The name of the command, and the arguments before the flags."""
    flags: Flags = field(default_factory=dict)
    """The flags in their order."""
    is_shared: bool = False
    """Whether the processes of --nproc share its work."""
    accepted_codes: tuple[int, ...] = (0,)
    """Exit codes after which the next command runs."""
    is_quiet: bool = False
    """Whether its standard output is dropped."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """All arguments of `wenet-hs`: the words, then each flag with its values."""
        return (*self.words, *flag_arguments(self.flags))


def flag_arguments(flags: Flags) -> tuple[str, ...]:
    """Each flag, followed by its values.

    Example: {"--unit": "char", "--seeds": (7, 8), "--base": None} gives the arguments
    `--unit char --seeds 7 8 --base ''`.
    """
    arguments = list[str]()
    for flag, value in flags.items():
        arguments.append(flag)
        if isinstance(value, tuple):
            arguments.extend(map(str, value))
        else:
            arguments.append("" if value is None else str(value))
    return tuple(arguments)


@dataclass(frozen=True, kw_only=True)
class LoggedTraining:
    """A training that runs beside others and writes to a log."""

    command: Command
    model_dir: Path
    log: Path


@dataclass(frozen=True, kw_only=True)
class Trainings:
    """Trainings that run side by side; all of them end before the next step."""

    trainings: tuple[LoggedTraining, ...]
    model_dirs: tuple[Path, ...]
    """The model folders of all trainings of the stage: their time left is shown as a sum."""


@dataclass(frozen=True, kw_only=True)
class KeptOptions:
    """The step that writes into a folder the options with which it was made."""

    folder: Path
    names: tuple[str, ...]
    """The names of the options on which the content of the folder depends."""


Step = Command | Trainings | KeptOptions


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage of the recipe."""

    number: int
    title: str
    make_steps: Callable[[], Iterator[Step]]
    """The steps; each is asked for when those before it have ended."""


def own_stages(options: OwnOptions) -> Iterator[Stage]:
    """The stages from --stage to --stop_stage, in their order.

    With --only_time the training is the last stage, and only measures the time that it would take.
    """
    for stage in _all_stages(options):
        if options.stage <= stage.number <= options.stop_stage:
            yield stage
            if stage.number == TRAINING_STAGE and options.only_time:
                return


def _all_stages(options: OwnOptions) -> Iterator[Stage]:
    """All stages of the recipe; 5, 6 and 7 once per experiment."""
    yield Stage(number=0, title="data lists", make_steps=lambda: _list_steps(options))
    yield Stage(number=1, title="units", make_steps=lambda: _unit_steps(options))
    yield Stage(number=2, title="trees", make_steps=lambda: _tree_steps(options))
    yield Stage(number=3, title="feature statistics", make_steps=lambda: _cmvn_steps(options))
    yield Stage(
        number=TRAINING_STAGE,
        title=f"training (logs: {options.exp}/*.log)",
        make_steps=lambda: _training_steps(options),
    )
    for model_dir in experiment_folders(options):
        yield from _stages_of_experiment(options, model_dir)
    yield Stage(number=LAST_STAGE, title="report", make_steps=lambda: _report_steps(options))


def _stages_of_experiment(options: OwnOptions, model_dir: Path) -> Iterator[Stage]:
    """The stages between training and report of one model folder: average, decode, score."""
    yield Stage(
        number=5,
        title=f"average of {model_dir}",
        make_steps=lambda: _average_steps(options, model_dir),
    )
    yield Stage(
        number=6,
        title=f"decoding with {model_dir}",
        make_steps=lambda: _recognize_steps(options, model_dir),
    )
    yield Stage(
        number=7,
        title=f"scores of {model_dir} ({decoding_folder(options)}/MODE/score.txt)",
        make_steps=lambda: _score_steps(options, model_dir),
    )


# ---- names of files and folders


def data_list(options: OwnOptions, set_name: str) -> Path:
    """The data list of a set: train, dev or test."""
    return options.data / set_name / "data.list"


def seed_suffix(seed: int) -> str:
    """The end of a name for a seed, such as `-seed778`; empty for the default seed."""
    return "" if seed == DEFAULT_SEED else f"-seed{seed}"


def tree_file(options: OwnOptions, seed: int) -> str:
    """The file of the tree that is built with a seed, or the file that --tree names."""
    if has_own_tree(options):
        return options.tree
    return str(options.data / f"tree-{options.tree}{seed_suffix(seed)}.json")


def has_own_tree(options: OwnOptions) -> bool:
    """Whether --tree names a tree.json, which is used as it is."""
    return options.tree.endswith(".json")


def experiment_name(options: OwnOptions, head: str, seed: int) -> str:
    """The name of the model folder of a head and a seed.

    It has the name of the tree, if the head has one, and the seed. The default tree (huffman) and
    the default seed are left out. Examples: `softmax`, `hsoftmax-brown-seed778`, and
    `hsoftmax-mine` for the tree `my/tree-mine.json`.

    Args:
        options: of `wenet-hs own`.
        head: the name of an output layer, or `base` for the first part of the trainings of a seed.
        seed: of the training.
    Raises: ConfigError if the head is one of another package that cannot be used.
    """
    name = head
    has_tree = head != BASE_NAME and not is_without_tree(head)
    if has_tree and options.tree != "huffman":
        tree_name = Path(options.tree).name.removeprefix("tree-").removesuffix(".json")
        name = f"{head}-{tree_name}"
    return f"{name}{seed_suffix(seed)}"


def experiment_folders(options: OwnOptions) -> list[Path]:
    """The model folders of all heads and seeds."""
    folders = []
    for seed in options.seeds:
        for head in options.head:
            folders.append(options.exp / experiment_name(options, head, seed))
    return folders


def decoding_folder(options: OwnOptions) -> str:
    """The name of the folder of decoded texts in a model folder, such as `test` or `dev`.

    If the model decodes in chunks, it also has the size of a chunk and the number of chunks before
    it that the encoder sees, such as `test-chunk16-4`.
    """
    if options.chunk is None:
        return options.eval_set
    return f"{options.eval_set}-chunk{options.chunk.size}-{options.chunk.left_chunks}"


# ---- before the first stage


def check_command(options: OwnOptions) -> Command:
    """The command that refuses wrong options, and folders that were made with other ones."""
    assignments = [f"{name}={text}" for name, text in option_texts(options).items()]
    return Command(
        words=("check-options",),
        flags={
            "--config": options.config_path,
            "--base": options.base,
            "--encoder": options.encoder,
            "--size": options.size,
            "--override_config": options.override,
            "--head": options.head,
            "--tree": options.tree,
            "--seeds": options.seeds,
            "--modes": options.modes,
            "--unit": options.unit,
            "--program": PROGRAM,
            "--last_stage": LAST_STAGE,
            "--data_options": DATA_OPTIONS,
            "--exp_options": EXP_OPTIONS,
            "--values": tuple(assignments),
        },
    )


# ---- stages 0 to 3: lists, units, trees, feature statistics


def _list_steps(options: OwnOptions) -> Iterator[Step]:
    """Stage 0: make the data lists, check them, and keep the options that they depend on.

    Raises ConfigError unless exactly one form of recordings is given.
    """
    yield _prepare_command(options)
    lists = [str(data_list(options, set_name)) for set_name in ("train", "dev", "test")]
    yield Command(
        words=("check", *lists),
        flags={
            "--config": options.config_path,
            "--base": options.base,
            "--encoder": options.encoder,
            "--unit": _normalization_unit(options),
            "--min_minutes": f"{options.min_minutes:g}",
            "--out": options.data / "check.tsv",
            "--html": options.data / "check.html",
        },
        accepted_codes=(0, FAULTS_FOUND),
    )
    yield KeptOptions(folder=options.data, names=DATA_OPTIONS)


def _prepare_command(options: OwnOptions) -> Command:
    """The command that makes the data lists of the recordings.

    Raises ConfigError unless exactly one form of recordings is given.
    """
    given_forms = [form for form in FORMS if getattr(options, form) is not None]
    if len(given_forms) != 1:
        names = "--corpus TABLE, --elan, --praat, --kaldi, --folder"
        raise ConfigError(PROGRAM, f"give one of {names} (try --help)")
    form = given_forms[0]
    kind = "table" if form == "corpus" else form
    flags_of_recordings: Flags = {
        "--corpus": getattr(options, form),  # the flag of `prepare` for recordings in any form
        "--lang": options.lang,
        "--unit": _normalization_unit(options),
    }
    return Command(
        words=("prepare", kind, *flag_arguments(flags_of_recordings), *options.prepare),
        # These come last, so that the user's arguments in --prepare cannot change them.
        flags={"--seed": options.data_seed, "--out": options.data},
    )


def _normalization_unit(options: OwnOptions) -> str:
    """The unit for which text is normalized: char or phone. Word pieces consist of characters."""
    return "char" if options.unit_kind == "bpe" else options.unit_kind


def _unit_steps(options: OwnOptions) -> Iterator[Step]:
    """Stage 1: make the unit table, and with word pieces also their model."""
    bpe_flags: Flags = {}
    if options.unit_kind == "bpe":
        bpe_flags = {"--vocab_size": options.num_pieces, "--bpe_model": _bpe_model(options)}
    yield Command(
        words=("units",),
        flags={
            "--data_list": data_list(options, "train"),
            "--kind": options.unit_kind,
            **bpe_flags,
            "--out": _units_file(options),
        },
    )


def _tree_steps(options: OwnOptions) -> Iterator[Step]:
    """Stage 2: build a tree per seed; none if --tree names a tree.json."""
    if has_own_tree(options):
        return
    for seed in options.seeds:
        yield Command(
            words=("tree", "build"),
            flags={
                "--kind": options.tree,
                "--seed": seed,
                "--data_list": data_list(options, "train"),
                **_tokenizer_flags(options),
                "--units": _units_file(options),
                "--out": tree_file(options, seed),
            },
        )


def _cmvn_steps(options: OwnOptions) -> Iterator[Step]:
    """Stage 3: write the plan of the trainings, and compute mean and variance of the features."""
    yield plan_command(options)
    yield Command(
        words=("cmvn",),
        flags={
            "--data_list": data_list(options, "train"),
            "--config": options.exp / PLAN,
            "--override_config": options.override,
            "--out": _cmvn_file(options),
        },
        is_shared=True,
    )


def plan_command(options: OwnOptions, *, is_only_time: bool = False) -> Command:
    """The command that writes the config of the trainings.

    `is_only_time`: it writes nothing, and only measures how long a training takes.
    """
    return Command(
        words=("plan", "--only_time") if is_only_time else ("plan",),
        flags={
            "--data": options.data,
            "--unit": options.unit,
            "--out": options.exp,
            "--config": options.config_path,
            "--size": options.size,
            "--base": options.base,
            "--encoder": options.encoder,
            "--base_steps": options.base_steps,
            "--threads": options.threads,
            "--override_config": options.override,
        },
    )


def _units_file(options: OwnOptions) -> Path:
    return options.data / "units.txt"


def _bpe_model(options: OwnOptions) -> Path:
    return options.data / "bpe.model"


def _cmvn_file(options: OwnOptions) -> Path:
    return options.data / "global_cmvn"


def _tokenizer_flags(options: OwnOptions) -> Flags:
    """The flags of commands that split transcripts into units."""
    if options.unit_kind == "bpe":
        return {"--tokenizer": "bpe", "--bpe_model": _bpe_model(options)}
    return {"--tokenizer": options.unit_kind}


# ---- stage 4: training


def _training_steps(options: OwnOptions) -> Iterator[Step]:
    """Stage 4: write the plan, and train each head with each seed as the plan says.

    If the plan has a first part of training, it runs once per seed, and all heads start from it.
    With --base they start from that model instead, and otherwise from random weights or from a
    pretrained encoder. With --only_time the time is measured, and nothing is trained.
    """
    yield plan_command(options, is_only_time=options.only_time)
    if options.only_time:
        return
    yield KeptOptions(folder=options.exp, names=EXP_OPTIONS)
    has_first_part = (options.exp / FIRST_PART).is_file() and options.base is None
    first_part = list[LoggedTraining]()
    second_part = list[LoggedTraining]()
    for seed in options.seeds:
        start = options.base
        if has_first_part:
            first_training = _first_training(options, seed)
            first_part.append(first_training)
            start = first_training.model_dir
        for head in options.head:
            second_part.append(_second_training(options, head, seed, start))
    model_dirs = tuple(training.model_dir for training in (*second_part, *first_part))
    if has_first_part:
        yield Trainings(trainings=tuple(first_part), model_dirs=model_dirs)
    yield Trainings(trainings=tuple(second_part), model_dirs=model_dirs)


def _first_training(options: OwnOptions, seed: int) -> LoggedTraining:
    """The first part of training, by CTC only, from which all heads of a seed start."""
    return _make_training(
        options,
        experiment_name(options, BASE_NAME, seed),
        config=FIRST_PART,
        seed=seed,
        flags={"--head": "softmax"},
    )


def _second_training(
    options: OwnOptions,
    head: str,
    seed: int,
    start: Path | None,
) -> LoggedTraining:
    """The training of a head, after the first part if there is one.

    The settings of --override are given as flags although the plan has them: if the user goes on
    with a stopped training and gives other settings, these count.

    `start`: folder of the model with the first weights; None: as the config says.
    """
    start_flags: Flags = {} if start is None else {"--checkpoint": start}
    return _make_training(
        options,
        experiment_name(options, head, seed),
        config=PLAN,
        seed=seed,
        flags={
            "--head": head,
            "--tree": tree_file(options, seed),
            **start_flags,
            "--override_config": options.override,
        },
    )


def _make_training(
    options: OwnOptions,
    name: str,
    *,
    config: str,
    seed: int,
    flags: Flags,
) -> LoggedTraining:
    """A training with a config in the folder of the experiments, where its model folder is too.

    Args:
        options: of `wenet-hs own`.
        name: of its model folder and of its log.
        config: name of the YAML.
        seed: of the training.
        flags: of `train`, after those that all trainings have.
    """
    model_dir = options.exp / name
    command = Command(
        words=("train",),
        flags={
            "--model_dir": model_dir,
            "--config": options.exp / config,
            "--seed": seed,
            "--train_data": data_list(options, "train"),
            "--cv_data": data_list(options, "dev"),
            "--cmvn": _cmvn_file(options),
            "--units": _units_file(options),
            **_tokenizer_flags(options),
            **flags,
        },
        is_shared=True,
    )
    return LoggedTraining(command=command, model_dir=model_dir, log=options.exp / f"{name}.log")


# ---- stages 5 to 8: average, decoding, scores, report


def _average_steps(options: OwnOptions, model_dir: Path) -> Iterator[Step]:
    """Stage 5: average the best checkpoints of a training."""
    flags: Flags = {"--model_dir": model_dir, "--num": options.average_num}
    yield Command(words=("average",), flags=flags)


def _recognize_steps(options: OwnOptions, model_dir: Path) -> Iterator[Step]:
    """Stage 6: decode the evaluated set, in chunks if --chunk is given."""
    chunk_flags: Flags = {}
    if options.chunk is not None:
        chunk_flags = {
            "--decoding_chunk_size": options.chunk.size,
            "--num_decoding_left_chunks": options.chunk.left_chunks,
        }
    yield Command(
        words=("recognize",),
        flags={
            "--model_dir": model_dir,
            "--test_data": data_list(options, options.eval_set),
            "--result_dir": model_dir / decoding_folder(options),
            **chunk_flags,
            "--modes": options.modes,
        },
        is_shared=True,
    )


def _score_steps(options: OwnOptions, model_dir: Path) -> Iterator[Step]:
    """Stage 7: write the error rates of the decoded texts, per language."""
    yield Command(
        words=("score",),
        flags={
            "--metric": "per" if options.unit_kind == "phone" else "cer",
            "--by": "lang",
            "--ref": options.data / options.eval_set / "text",
            "--data_list": data_list(options, options.eval_set),
            "--hyp": model_dir / decoding_folder(options),
            "--name": model_dir.name,
        },
        is_quiet=True,
    )


def _report_steps(options: OwnOptions) -> Iterator[Step]:
    """Stage 8: write the report about all experiments, and with --results their results files."""
    results_flags: Flags = {} if options.results is None else {"--results": options.results}
    yield Command(
        words=("report", *(f"--exp={folder}" for folder in experiment_folders(options))),
        flags={
            "--stats": options.data / "stats.json",
            "--data_list": data_list(options, options.eval_set),
            "--test": decoding_folder(options),
            "--out": options.exp / "report.html",
            **results_flags,
        },
    )
