# SPDX-License-Identifier: Apache-2.0
"""The commands that the page runs, made from the fields of its forms. None goes through a shell.

The choices of a user become options of the recipe `wenet-hs own`, from which one function makes
the arguments of the command. A project may be of somebody else, so the options that are read in it
are checked.
"""

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starlette.datastructures import ImmutableMultiDict

from wenet_hs.annotation.corrections import Correction
from wenet_hs.app.expected_times import expected_time_path
from wenet_hs.app.job_details import (
    JsonRecord,
    PackDetails,
    RecipeDetails,
    TranscribeDetails,
    read_option_names,
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
    "--tier",
    "--tier_type",
    "--participant",
    "--speaker_from",
    "--columns",
    "--letter_apostrophe",
    "--no_normalize",
    "--drop_overlaps",
    "--join_intervals",
    "--pauses",
    "--keep_names",
    "--split_by",
    "--ignore_sets",
    "--max_rejected",
)
"""The options of `wenet-hs prepare` that are taken from the lists of a project.

None of them names a file, so a project of somebody else may state them.
"""
OPTIONS_OF_TRAINING = (
    *DATA_OPTIONS,
    "data",
    "exp",
    "min_minutes",
    "base",
    "encoder",
    "size",
    "override",
    "stage",
)
"""The options of `wenet-hs own` that are taken from a training job of a project."""
COMPARED_CHOICES = (*FORMS, "lang", "prepare", "unit")
"""The options of lists that a user chooses in the form."""
WARMUP_OF_LIMITED = "scheduler_conf.warmup_steps=100"
"""A training with a limit of its time has a short warm-up."""
SIZES = ("auto", "tiny", "small", "medium", "large")
BOXES = ("letter_apostrophe", "no_normalize", "drop_overlaps")
"""Fields of the form of recordings that are options of `prepare` without a value."""
_MAX_SHOWN = 80
"""Characters of a text of a user in a message."""
_MAX_SHOWN_OF_NUMBER = 40
"""Characters in a message of a text that should be a number."""
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
    """The program and arguments of `wenet-hs own` with these options, without the defaults."""
    texts = option_texts(options)
    command_line = [WENET_HS, "own"]
    for name in changed_options(options):
        command_line += [f"--{name}", texts[name]]
    return tuple(command_line)


def _make_recipe_command(options: OwnOptions, minutes: float | None = None) -> PageCommand:
    """The command `wenet-hs own` with these options.

    `minutes`: the limit of each part of the training, which is kept with the job; None: no limit.
    """
    details = RecipeDetails(options=options, minutes=minutes)
    return PageCommand(command_line=own_command_line(options), details=details.record())


# ---- lists of recordings


def read_prepare_options(project: Project, form: FormValues, places: Places) -> OwnOptions:
    """The options of `wenet-hs own` for the recordings that a user describes in a form.

    With them only stage 0 of the recipe runs, which makes data lists and checks them.
    Raises ConfigError or DataError for a field that is wrong.
    """
    # How the transcripts are stored; `corpus` is a table.
    kind = _read_choice(form, "form", ("elan", "praat", "kaldi", "folder", "corpus"))
    path = places.resolve(form.get("path", ""))
    arguments = _read_prepare_arguments(form, kind)
    # Names of tiers and columns are of the user's files, so they may have any character.
    for text in (*arguments, str(path)):
        if text != one_field(text):
            fault = "has a line end, a tab or a control character"
            raise DataError(one_field(text)[:_MAX_SHOWN], fault, "rename it")
    options = OwnOptions(
        lang=_read_language(form),
        prepare=arguments,
        unit=_read_choice(form, "unit", ("char", "phone")),
        data=project / "data",
        exp=project.free_experiment(),
        stop_stage=0,
    )
    min_minutes = _read_number(form, "min_minutes", low=0, high=10_000)
    if min_minutes is not None:
        options = replace(options, min_minutes=min_minutes)
    recordings: dict[str, Any] = {kind: path}  # each kind is an option, such as --elan
    return replace(options, **recordings)


def make_prepare_command(options: OwnOptions) -> PageCommand:
    """The command that makes data lists with the options that `read_prepare_options` returned."""
    return _make_recipe_command(options)


def _read_prepare_arguments(form: FormValues, kind: str) -> tuple[str, ...]:
    """The arguments for `wenet-hs prepare`, which makes the lists, from the fields of a form.

    Fields that are empty or missing give no argument. `kind`: how the transcripts are stored; for
    `corpus`, a table, the form also states what its columns contain.
    """
    arguments = [f"--tier={tier}" for tier in form.getlist("tier")]
    if kind == "corpus":
        arguments.append(f"--columns={_read_columns(form)}")
    arguments += [f"--{name}" for name in BOXES if form.get(name)]
    speaker_from = form.get("speaker_from")
    if speaker_from:
        arguments.append(f"--speaker_from={speaker_from}")
    return tuple(arguments)


def _read_language(form: FormValues) -> str:
    """The code of the language in a form; und (undetermined) if the field is empty.

    The field has a code or a name. Raises DataError for an unknown one.
    """
    try:
        return find_language(form.get("lang", "").strip() or "und")
    except ValueError as error:
        raise DataError("language", str(error)) from error


def _read_columns(form: FormValues) -> str:
    """The value of --columns of `wenet-hs prepare`, such as `audio=path text=sentence lang=`.

    A field `column:NAME` of the form states what the column NAME of a table contains. If it is
    empty, the column is not used. A content that no column has is written without a name, so that
    `prepare` does not guess its column.

    Raises ConfigError for an unknown content, or one that two columns have.
    """
    names = dict[str, str]()  # content → name of the column
    for field, content in form.multi_items():
        if not field.startswith("column:") or not content:
            continue
        name = field.removeprefix("column:")
        shown_name = repr(one_field(name)[:_MAX_SHOWN])
        if content not in COLUMNS:
            raise ConfigError(f"column {shown_name}", f"must be one of {', '.join(COLUMNS)}")
        if content in names:
            first_name = repr(one_field(names[content])[:_MAX_SHOWN])
            fault = f"{first_name} and {shown_name} are both chosen for it"
            raise ConfigError(f"columns: {content}", fault, "choose one of them")
        names[content] = name
    return " ".join(f"{content}={names.get(content, '')}" for content in COLUMNS)


def refuse_other_lists(project: Project, options: OwnOptions) -> None:
    """Raise DataError if the data lists of the project were made with other choices than `options`.

    The recipe would refuse them too, but its message names options of a command line.
    """
    texts = read_recipe_options(project / "data")
    if not texts:
        return
    made_with = _parse_known(texts)
    for name in COMPARED_CHOICES:
        if getattr(options, name) != getattr(made_with, name):
            fault = "were made with other choices"
            raise DataError("the lists that exist", fault, "tick the box that replaces them")


def make_prepare_again_command(project: Project) -> PageCommand:
    """The command that makes the data lists of a project again, with the same options.

    Raises DataError if there are none, or they have an option that this page does not write.
    """
    options = _read_options_of_lists(project)
    return _make_recipe_command(replace(options, stop_stage=0))


def _read_options_of_lists(project: Project) -> OwnOptions:
    """The options of `wenet-hs own` that made the data lists of a project, for another run of it.

    That run has a new folder for its experiment. The lists do not state `min_minutes`, so it is
    that of the last job that made lists.
    Raises DataError if there are no lists, or their options are damaged or have one that this page
    does not write.
    """
    texts = read_recipe_options(project / "data")
    if not texts:
        raise DataError(project / "data", "no lists", "prepare the recordings first")
    where = project / "data" / FILE_NAME
    prepare = texts.get("prepare", "")
    if has_open_quote(prepare):
        fault = "a quote has no end in --prepare"
        raise DataError(where, fault, "prepare the recordings again")
    _refuse_unexpected_options(where, texts, DATA_OPTIONS)
    _refuse_unexpected_arguments(where, split_words(prepare))
    options = replace(
        _parse_known(texts),
        data=project / "data",
        exp=project.free_experiment(),
    )
    last_details = read_recipe_details(project.last_job("prepare"))
    if last_details is not None:
        options = replace(options, min_minutes=last_details.options.min_minutes)
    return options


def _parse_known(texts: dict[str, str]) -> OwnOptions:
    """The options of `wenet-hs own` with these texts: name of an option → its text.

    Names that `wenet-hs own` does not have, as in a folder of another recipe, are left out.
    Raises ConfigError for a text that is wrong.
    """
    return parse_own_options({name: texts[name] for name in texts if name in OPTION_NAMES})


# ---- options of projects of somebody else


def _refuse_unexpected_options(where: object, names: Iterable[str], allowed: Sequence[str]) -> None:
    """Raise DataError if an option is not allowed. `where`: the file or folder, for the message."""
    for name in names:
        if name not in allowed:
            raise _unexpected_option_error(where, f"--{name}")


def _refuse_unexpected_arguments(where: object, arguments: Iterable[str]) -> None:
    """Raise DataError for an option of `wenet-hs prepare` that this page does not write.

    Such an option could name any file. Arguments that are no options are the values of options.
    `where`: the file or folder that has the arguments, for the message.
    """
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag.startswith("-") and flag not in OPTIONS_OF_PREPARE:
            raise _unexpected_option_error(where, flag)


def _unexpected_option_error(where: object, flag: str) -> DataError:
    """The error for an option that this page does not write."""
    fault = f"has the option {one_field(flag)[:_MAX_SHOWN]}, which this page does not use"
    to_do = "run the recipe in a shell if you trust this project, or prepare the recordings again"
    return DataError(where, fault, to_do)


# ---- trainings


def make_train_command(project: Project, form: FormValues, places: Places) -> TrainingCommand:
    """The command of a training with the fields of a form, into a new folder of the project.

    It runs stages 1 to 8 of `wenet-hs own`: units, training, decoding, scores and report. With the
    field `corrected` stage 0 runs too, which adds corrected segments to the data lists. With the
    field `only_time` the command only measures the time of the training.

    Raises ConfigError or DataError for a field that is wrong, DataError also without data lists.
    """
    minutes = _read_minutes(form)
    options = replace(
        _add_start(_read_options_of_lists(project), form, places),
        override=time_limit_settings(minutes),
        stage=0 if form.get("corrected") else 1,
    )
    command = _make_recipe_command(options, minutes)
    if form.get("only_time"):
        command = replace(command, command_line=time_command_line(project, options))
    return TrainingCommand(command=command, options=options)


def time_command_line(project: Project, options: OwnOptions) -> tuple[str, ...]:
    """The command that measures the expected time of a training and writes it as JSON."""
    command = plan_command(options, is_only_time=True)
    path = expected_time_path(project, options)
    return (WENET_HS, *command.arguments, "--json", str(path))


def _add_start(options: OwnOptions, form: FormValues, places: Places) -> OwnOptions:
    """The options with what the training starts from: a model, a pretrained encoder, or nothing.

    For a training from nothing the form has the size of the model. A packed model is unpacked.
    Raises ConfigError or DataError for a field that is wrong.
    """
    start = _read_choice(form, "start", ("nothing", "model", "encoder"))
    if start == "model":
        return replace(options, base=resolve_model(places.resolve(form.get("base", ""))))
    if start == "encoder":
        return replace(options, encoder=places.resolve(form.get("encoder", "")))
    return replace(options, size=_read_choice(form, "size", SIZES))


def _read_minutes(form: FormValues) -> float | None:
    """The minutes that each part of a training may take; None: the form states no limit.

    Raises ConfigError for a text that is no number from 0.1 to 100,000.
    """
    minutes = _read_number(form, "minutes", low=0.1, high=100_000)
    if minutes is None:
        return None
    return float(f"{minutes:g}")  # rounded as `time_limit_settings` writes it: to six digits


def time_limit_settings(minutes: float | None) -> tuple[str, ...]:
    """The settings KEY=VALUE that limit each part of a training to minutes; None: no limit."""
    if minutes is None:
        return ()
    return (f"max_minutes={minutes:g}", WARMUP_OF_LIMITED)


def make_resume_command(project: Project, experiment: Path) -> PageCommand:
    """The command with which this page began the trainings of an experiment, to go on with them.

    `experiment`: the folder of the experiment. The command is found in the jobs of the project.
    Raises DataError if a shell began the experiment, or if its job has options that this page does
    not write.
    """
    for job in project.jobs("train"):
        if _is_job_of(job, project / "data", experiment):
            details = _read_checked_details(job)
            return _make_recipe_command(details.options, details.minutes)
    to_do = f"repeat its command of run.sh there, with --exp {shlex.quote(str(experiment))}"
    raise DataError(experiment, "was begun in a shell, or its folder was moved", to_do)


def _is_job_of(job: Job, data: Path, experiment: Path) -> bool:
    """Whether the details of a job name these folders of the data lists and of the experiment.

    The other details are not checked here.
    """
    record = job.details.get("own")
    if not isinstance(record, dict):
        return False
    return record.get("data") == str(data) and record.get("exp") == str(experiment)


def _read_checked_details(job: Job) -> RecipeDetails:
    """The details of a training job, checked because its project may be of somebody else.

    Raises DataError for options of `wenet-hs own`, settings of the training, or arguments of
    `wenet-hs prepare` that this page does not write, and for details that cannot be read.
    """
    _refuse_unexpected_options(job.folder, read_option_names(job), OPTIONS_OF_TRAINING)
    details = read_recipe_details(job)
    if details is None or details.options.override != time_limit_settings(details.minutes):
        fault = "has settings that this page does not write"
        raise DataError(job.folder, fault, "start a new training")
    _refuse_unexpected_arguments(job.folder, details.options.prepare)
    return details


# ---- transcription and sharing


def make_transcribe_command(project: Project, model: Path, files: Sequence[Path]) -> PageCommand:
    """The command that transcribes recordings into the folder `transcribed` of the project.

    It skips recordings that this model has transcribed before. `files`: recordings, or annotation
    files beside them. Raises DataError if there are none.
    """
    if not files:
        raise DataError("recordings", "none chosen", "choose at least one")
    record_folder = str(project.writable_path("transcribed"))
    options = ["--model_dir", str(model), "--record", record_folder, "--skip_existing"]
    command_line = (WENET_HS, "transcribe", *options, "--", *map(str, files))
    details = TranscribeDetails(model=model, files=tuple(files))
    return PageCommand(command_line=command_line, details=details.record())


def make_pack_command(project: Project, model: Path, form: FormValues) -> PageCommand:
    """The command that packs a model into the ZIP shared/NAME.zip of the project.

    A card describes the model. If the project has the file cards/NAME.md, which a user may have
    edited, the ZIP gets this card. With the field `card_only` the command makes that file instead
    of the ZIP, so that it can be edited.

    Raises DataError for a name that cannot be the name of a model.
    """
    name = check_name(form.get("name", ""), "model")
    card = project.writable_path("cards") / f"{name}.md"
    is_card_only = bool(form.get("card_only"))
    out = card if is_card_only else project.writable_path("shared") / f"{name}.zip"
    details = PackDetails(
        model=model,
        license=one_field(form.get("license", "").strip()),
        data=one_field(form.get("data", "").strip()),
    )
    command_line = [WENET_HS, "pack", "--model_dir", str(model), "--out", str(out)]
    if not is_card_only and card.is_file():
        command_line += ["--card", str(card)]
    if details.license:
        command_line.append(f"--license={details.license}")
    if details.data:
        command_line.append(f"--data={details.data}")
    if form.get("overwrite"):
        command_line.append("--overwrite")
    return PageCommand(command_line=tuple(command_line), details=details.record())


def read_correction(form: FormValues) -> Correction:
    """The correction of a segment of a transcript, from the fields of a form.

    A border whose field is empty is None: it stays as it was transcribed. Raises DataError without
    a field for the text, ConfigError for a border that is no number from 0 to 100,000 seconds.
    """
    if "text" not in form:
        raise DataError("segment", "no text", "load the page again")
    return Correction(
        text=form["text"],
        start=_read_number(form, "start", low=0, high=100_000),
        end=_read_number(form, "end", low=0, high=100_000),
        is_confirmed="confirmed" in form,
    )


# ---- fields of a form


def _read_choice(form: FormValues, name: str, allowed: Sequence[str]) -> str:
    """The value of a field; the first allowed value if the form does not have the field.

    Raises ConfigError for a value that is not allowed.
    """
    value = form.get(name, allowed[0])
    if value not in allowed:
        where = f"{name} {one_field(value)[:_MAX_SHOWN]!r}"
        raise ConfigError(where, f"must be one of {', '.join(allowed)}")
    return value


def _read_number(form: FormValues, name: str, *, low: float, high: float) -> float | None:
    """The number in a field, with a decimal point or comma; None if the field is empty or missing.

    Raises ConfigError if it is not a number from `low` to `high`.
    """
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        value = math.nan  # is in no range
    if not low <= value <= high:
        where = f"{name} {one_field(text)[:_MAX_SHOWN_OF_NUMBER]!r}"
        raise ConfigError(where, f"must be a number from {low:g} to {high:g}")
    return value
