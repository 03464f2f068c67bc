# SPDX-License-Identifier: Apache-2.0
"""The commands that the page runs, from the fields of its forms. Nothing goes through a shell.

What a user chose becomes typed options, from which one function makes the words of the command.
"""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starlette.datastructures import ImmutableMultiDict

from wenet_hs.annotation.corrections import Correction
from wenet_hs.app.expected_times import expected_time_file
from wenet_hs.app.job_details import (
    JsonRecord,
    PackDetails,
    RecipeDetails,
    TranscribeDetails,
    names_of_options,
    read_recipe_details,
)
from wenet_hs.app.places import Places, check_name
from wenet_hs.app.projects import Project, read_recipe_options
from wenet_hs.base.files import one_field
from wenet_hs.base.jobs import Job
from wenet_hs.corpus.columns import COLUMNS
from wenet_hs.corpus.languages import find_language
from wenet_hs.model.packed import resolve_model
from wenet_hs.recipes.folder_options import FILE_NAME
from wenet_hs.recipes.own import DATA_OPTIONS, plan_command
from wenet_hs.recipes.own_options import (
    FORMS,
    OPTION_NAMES,
    OwnOptions,
    changed_options,
    option_texts,
    parse_own_options,
)
from wenet_hs.recipes.prepare_words import has_open_quote, split_words
from wenet_hs.tree.errors import ConfigError, DataError

WENET_HS = "wenet-hs"
"""The program beside the Python of the server, which jobs have on their PATH."""
OPTIONS_OF_PREPARE = (
    *("--tier", "--tier_type", "--participant", "--speaker_from", "--columns"),
    *("--letter_apostrophe", "--no_normalize", "--drop_overlaps", "--join_intervals", "--pauses"),
    *("--keep_names", "--split_by", "--ignore_sets", "--max_rejected"),
)
"""Those that a folder of somebody else may state: none of them names a file."""
OPTIONS_OF_TRAINING = (
    *DATA_OPTIONS,
    *("data", "exp", "min_minutes", "base", "encoder", "size", "override", "stage"),
)
"""Those that a job of somebody else may state."""
COMPARED_CHOICES = (*FORMS, "lang", "prepare", "unit")
"""The options of lists that a user chooses in the form."""
WARMUP_OF_LIMITED = "scheduler_conf.warmup_steps=100"
SIZES = ("auto", "tiny", "small", "medium", "large")
BOXES = ("letter_apostrophe", "no_normalize", "drop_overlaps")
"""Fields of the form of recordings that are options of `prepare` without a value."""
FormValues = ImmutableMultiDict[str, str]


@dataclass(frozen=True, kw_only=True)
class PageCommand:
    """A command of the page, and what is kept with its job."""

    command_line: tuple[str, ...]
    """The program and its arguments."""
    details: JsonRecord


@dataclass(frozen=True, kw_only=True)
class TrainingCommand:
    """A command of a training, or of the measurement of its time, with the options that it has."""

    command: PageCommand
    options: OwnOptions


def own_command_line(options: OwnOptions) -> tuple[str, ...]:
    """The command `wenet-hs own` with the options that do not have their default."""
    texts = option_texts(options)
    command_line = [WENET_HS, "own"]
    for name in changed_options(options):
        command_line += [f"--{name}", texts[name]]
    return tuple(command_line)


def _recipe_command(options: OwnOptions, minutes: float | None = None) -> PageCommand:
    details = RecipeDetails(options=options, minutes=minutes)
    return PageCommand(command_line=own_command_line(options), details=details.record())


# ---- lists of recordings


def prepare_options(project: Project, form: FormValues, places: Places) -> OwnOptions:
    """Stage 0 of the recipe with the choices of a form: lists of the recordings, and their check.

    Raises ConfigError or DataError for a field that is wrong.
    """
    kind = _choice(form, "form", ("elan", "praat", "kaldi", "folder", "corpus"))
    path = places.resolve(form.get("path", ""))
    arguments = _prepare_arguments(form, kind)
    for text in (*arguments, str(path)):
        if text != one_field(text):
            found = "has a line end, a tab or a control character"
            raise DataError(one_field(text)[:80], found, "rename it")
    options = OwnOptions(
        lang=_language(form),
        prepare=arguments,
        unit=_choice(form, "unit", ("char", "phone")),
        min_minutes=_number(form, "min_minutes", 10, 0, 10_000),
        data=project / "data",
        exp=project.free_experiment(),
        stop_stage=0,
    )
    recordings: dict[str, Any] = {kind: path}
    return replace(options, **recordings)


def prepare_command(options: OwnOptions) -> PageCommand:
    """The command that makes the lists."""
    return _recipe_command(options)


def _prepare_arguments(form: FormValues, kind: str) -> tuple[str, ...]:
    """The options of `wenet-hs prepare` that a form states."""
    arguments = [f"--tier={tier}" for tier in form.getlist("tier")]
    if kind == "corpus":
        arguments.append(f"--columns={_columns(form)}")
    arguments += [f"--{name}" for name in BOXES if form.get(name)]
    speaker_from = form.get("speaker_from")
    if speaker_from:
        arguments.append(f"--speaker_from={speaker_from}")
    return tuple(arguments)


def _language(form: FormValues) -> str:
    """The code of the language; und if the field is empty. Raises DataError for an unknown one."""
    try:
        return find_language(form.get("lang", "").strip() or "und")
    except ValueError as error:
        raise DataError("language", str(error)) from error


def _columns(form: FormValues) -> str:
    """What each column contains, by the fields `column:NAME`.

    `CONTENT=` where no column has it: nothing is guessed.
    """
    chosen = dict[str, str]()
    for field, content in form.multi_items():
        if field.startswith("column:") and content:
            name = field.removeprefix("column:")
            if content not in COLUMNS:
                where = f"column {one_field(name)[:80]!r}"
                raise ConfigError(where, f"must be one of {', '.join(COLUMNS)}")
            if content in chosen:
                names = f"{one_field(chosen[content])[:80]!r} and {one_field(name)[:80]!r}"
                found = f"{names} are both chosen for it"
                raise ConfigError(f"columns: {content}", found, "choose one of them")
            chosen[content] = name
    return " ".join(f"{content}={chosen.get(content, '')}" for content in COLUMNS)


def refuse_other_lists(project: Project, options: OwnOptions) -> None:
    """Raise DataError if the lists of the project were made with other choices.

    The recipe would refuse them too, in the words of a shell.
    """
    texts = read_recipe_options(project / "data")
    if not texts:
        return
    made_with = _parse_known(texts)
    for name in COMPARED_CHOICES:
        if getattr(options, name) != getattr(made_with, name):
            found = "were made with other choices"
            raise DataError("the lists that exist", found, "tick the box that replaces them")


def prepare_again_command(project: Project) -> PageCommand:
    """Stage 0 with the options of the lists that exist. Raises DataError if there are none."""
    return _recipe_command(replace(_made_options(project), stop_stage=0))


def _made_options(project: Project) -> OwnOptions:
    """The options of the lists that exist, for another run of the recipe in a free experiment.

    Raises DataError if there are none, or they have an option that this page does not write.
    """
    texts = read_recipe_options(project / "data")
    if not texts:
        raise DataError(project / "data", "no lists", "prepare the recordings first")
    where = project / "data" / FILE_NAME
    prepare = texts.get("prepare", "")
    if has_open_quote(prepare):
        found = "a quote has no end in --prepare"
        raise DataError(where, found, "prepare the recordings again")
    _refuse_other_options(where, texts, DATA_OPTIONS)
    _refuse_other_arguments(where, split_words(prepare))
    options = replace(
        _parse_known(texts),
        data=project / "data",
        exp=project.free_experiment(),
    )
    earlier = read_recipe_details(project.last_job("prepare"))
    if earlier is None:
        return options
    return replace(options, min_minutes=earlier.options.min_minutes)


def _parse_known(texts: dict[str, str]) -> OwnOptions:
    """The options of texts by name, without those that are no options of the recipe."""
    return parse_own_options({name: texts[name] for name in texts if name in OPTION_NAMES})


def _refuse_other_options(where: object, names: Iterable[str], allowed: Sequence[str]) -> None:
    """Raise DataError for an option that this page does not write.

    A project may be of somebody else.
    """
    for name in names:
        if name not in allowed:
            raise _other_option(where, f"--{name}")


def _refuse_other_arguments(where: object, arguments: Iterable[str]) -> None:
    """Raise DataError for an option of `prepare` that may name a file."""
    for argument in arguments:
        flag, _, _ = argument.partition("=")
        if flag.startswith("-") and flag not in OPTIONS_OF_PREPARE:
            raise _other_option(where, flag)


def _other_option(where: object, flag: str) -> DataError:
    found = f"has the option {one_field(flag)[:80]}, which this page does not use"
    to_do = "run the recipe in a shell if you trust this project, or prepare the recordings again"
    return DataError(where, found, to_do)


# ---- trainings


def train_command(project: Project, form: FormValues, places: Places) -> TrainingCommand:
    """Stages 1 to 8 of the recipe in a new folder, or only the expected time of the training.

    These are units, training, decoding, scores and the report. With corrected segments the lists
    are made again first.

    Raises ConfigError or DataError for a field that is wrong.
    """
    minutes = _minutes(form)
    options = replace(
        _with_start(_made_options(project), form, places),
        override=override_of(minutes),
        stage=0 if form.get("corrected") else 1,
    )
    if form.get("only_time"):
        command_line = time_command_line(project, options)
        details = RecipeDetails(options=options, minutes=minutes)
        command = PageCommand(command_line=command_line, details=details.record())
        return TrainingCommand(command=command, options=options)
    return TrainingCommand(command=_recipe_command(options, minutes), options=options)


def time_command_line(project: Project, options: OwnOptions) -> tuple[str, ...]:
    """The command that measures the expected time of a training, and writes it as data."""
    measure = plan_command(options, is_only_time=True)
    file = expected_time_file(project, options)
    return (WENET_HS, *measure.arguments, "--json", str(file))


def _with_start(options: OwnOptions, form: FormValues, places: Places) -> OwnOptions:
    """The options with what the training starts from."""
    start = _choice(form, "start", ("nothing", "model", "encoder"))
    if start == "model":
        return replace(options, base=resolve_model(places.resolve(form.get("base", ""))))
    if start == "encoder":
        return replace(options, encoder=places.resolve(form.get("encoder", "")))
    return replace(options, size=_choice(form, "size", SIZES))


def _minutes(form: FormValues) -> float | None:
    """The limit of each part of the training, with the digits that the command has."""
    if not form.get("minutes", "").strip():
        return None
    return float(f"{_number(form, 'minutes', 5, 0.1, 100_000):g}")


def override_of(minutes: float | None) -> tuple[str, ...]:
    """The settings of a training whose parts have a limit of their time."""
    if minutes is None:
        return ()
    return (f"max_minutes={minutes:g}", WARMUP_OF_LIMITED)


def resume_command(project: Project, experiment: Path) -> PageCommand:
    """The command of the page that began an experiment, once more.

    Raises DataError for an experiment of a shell, and for a job with options that this page does
    not write.
    """
    for job in project.jobs("train"):
        if _is_of(job, project / "data", experiment):
            details = _checked_details(job)
            return _recipe_command(details.options, details.minutes)
    to_do = f"repeat its command of run.sh there, with --exp {shlex.quote(str(experiment))}"
    raise DataError(experiment, "was begun in a shell, or its folder was moved", to_do)


def _is_of(job: Job, data: Path, experiment: Path) -> bool:
    """Whether a job trains in this experiment with these lists. Its other options may be wrong."""
    record = job.details.get("own")
    if not isinstance(record, dict):
        return False
    return (record.get("data"), record.get("exp")) == (str(data), str(experiment))


def _checked_details(job: Job) -> RecipeDetails:
    """Raises DataError for options that this page does not write: the job may be of somebody else."""
    _refuse_other_options(job.folder, names_of_options(job), OPTIONS_OF_TRAINING)
    details = read_recipe_details(job)
    is_ours = details is not None and details.options.override == override_of(details.minutes)
    if details is None or not is_ours:
        found = "has settings that this page does not write"
        raise DataError(job.folder, found, "start a new training")
    _refuse_other_arguments(job.folder, details.options.prepare)
    return details


# ---- transcription and sharing


def transcribe_command(project: Project, model: Path, files: Sequence[Path]) -> PageCommand:
    """Transcription of recordings into PROJECT/transcribed.

    Those that are there already are left out. Raises DataError if there are no files.
    """
    if not files:
        raise DataError("recordings", "none chosen", "choose at least one")
    record_folder = str(project.target("transcribed"))
    options = ["--model_dir", str(model), "--record", record_folder, "--skip_existing"]
    command_line = (WENET_HS, "transcribe", *options, "--", *map(str, files))
    details = TranscribeDetails(model=model, files=tuple(files))
    return PageCommand(command_line=command_line, details=details.record())


def pack_command(project: Project, model: Path, form: FormValues) -> PageCommand:
    """A ZIP to share in PROJECT/shared, with the edited card in PROJECT/cards.

    With the field `card_only` only that card is made, to be edited.
    """
    name = check_name(form.get("name", ""), "model")
    card = project.target("cards") / f"{name}.md"
    out = card if form.get("card_only") else project.target("shared") / f"{name}.zip"
    details = PackDetails(
        model=model,
        license=one_field(form.get("license", "").strip()),
        data=one_field(form.get("data", "").strip()),
    )
    command_line = [WENET_HS, "pack", "--model_dir", str(model), "--out", str(out)]
    if out != card and card.is_file():
        command_line += ["--card", str(card)]
    if details.license:
        command_line.append(f"--license={details.license}")
    if details.data:
        command_line.append(f"--data={details.data}")
    if form.get("overwrite"):
        command_line.append("--overwrite")
    return PageCommand(command_line=tuple(command_line), details=details.record())


def read_correction(form: FormValues) -> Correction:
    """The text and the borders of a segment; without a number a border is as it was transcribed."""
    if "text" not in form:
        raise DataError("segment", "no text", "load the page again")
    start, end = (
        _number(form, name, 0, 0, 100_000) if form.get(name, "").strip() else None
        for name in ("start", "end")
    )
    return Correction(form["text"], start, end, "confirmed" in form)


def _choice(form: FormValues, name: str, allowed: Sequence[str]) -> str:
    value = form.get(name, allowed[0])
    if value not in allowed:
        raise ConfigError(
            f"{name} {one_field(value)[:80]!r}", f"must be one of {', '.join(allowed)}"
        )
    return value


def _number(form: FormValues, name: str, default: float, low: float, high: float) -> float:
    text = form.get(name, "").strip()
    try:
        value = float(text.replace(",", ".")) if text else default
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise ConfigError(
            f"{name} {one_field(text)[:40]!r}", f"must be a number from {low:g} to {high:g}"
        )
    return value
