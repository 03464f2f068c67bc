# SPDX-License-Identifier: Apache-2.0
"""The commands that the page runs, from the fields of its forms. Nothing goes through a shell."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from starlette.datastructures import ImmutableMultiDict

from wenet_hs.annotation.corrections import Correction
from wenet_hs.app.places import Places, check_name
from wenet_hs.app.projects import FORMS, Project, find_recipe, read_recipe_options
from wenet_hs.corpus.columns import COLUMNS
from wenet_hs.corpus.languages import find_language
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.files import one_field
from wenet_hs.recipes.folder_options import options_file
from wenet_hs.shared_model import resolve_model

_WORDS = (
    *("--tier", "--tier_type", "--participant", "--speaker_from", "--columns", "--letter_apostrophe", "--no_normalize"),
    *(
        "--drop_overlaps",
        "--join_intervals",
        "--pauses",
        "--keep_names",
        "--split_by",
        "--ignore_sets",
        "--max_rejected",
    ),
)
"""Options of `wenet-hs prepare` that a folder of somebody else may state: none of them names a file."""
_OF_DATA = (*FORMS, "lang", "prepare", "data_seed", "unit")
_OF_TRAINING = (*_OF_DATA, "data", "exp", "min_minutes", "base", "encoder", "size", "override", "stage")
_LIMITED = "scheduler_conf.warmup_steps=100"
ONLY_TIME = ("--stage", "4", "--stop_stage", "4", "--only_time", "yes")
SIZES = ("auto", "tiny", "small", "medium", "large")
Form = ImmutableMultiDict[str, str]


def prepare_command(project: Project, form: Form, places: Places) -> list[str]:
    """Stage 0 of the recipe: lists of the recordings, and their check."""
    kind, path = _choice(form, "form", FORMS), str(places.resolve(form.get("path", "")))
    words = [f"--tier={one}" for one in form.getlist("tier")]
    words += [f"--columns={_columns(form)}"] if kind == "corpus" else []
    words += [f"--{name}" for name in ("letter_apostrophe", "no_normalize", "drop_overlaps") if form.get(name)]
    words += [f"--speaker_from={one}"] if (one := form.get("speaker_from")) else []
    if wrong := [word for word in (*words, path) if word != one_field(word)]:
        raise DataError(one_field(wrong[0])[:80], "has a line end, a tab or a control character", "rename it")
    try:
        lang = find_language(form.get("lang", "").strip() or "und")
    except ValueError as error:
        raise DataError("language", str(error)) from error
    command = [str(find_recipe()), f"--{kind}", path, "--lang", lang, "--prepare", shlex.join(words)]
    command += ["--unit", _choice(form, "unit", ("char", "phone"))]
    command += ["--min_minutes", f"{_number(form, 'min_minutes', 10, 0, 10_000):g}"]
    return [*command, *_folders(project, project.free_experiment()), "--stop_stage", "0"]


def refuse_other_lists(project: Project, command: Sequence[str]) -> None:
    """Raise DataError if the lists of the project were made with other choices than those of `prepare_command`.

    The recipe would refuse them too, in the words of a shell.
    """
    made = read_recipe_options(project / "data")
    options = {name.removeprefix("--"): value for name, value in zip(command[1::2], command[2::2], strict=False)}
    changed = [name for name in (*FORMS, "lang", "prepare", "unit") if (options.get(name) or "") != made.get(name, "")]
    if made and changed:
        raise DataError("the lists that exist", "were made with other choices", "tick the box that replaces them")


def _columns(form: Form) -> str:
    """What each column contains, by the fields `column:NAME`; `CONTENT=` where none has it: nothing is guessed."""
    chosen = dict[str, str]()
    for field, content in form.multi_items():
        if field.startswith("column:") and content:
            name = field.removeprefix("column:")
            if content not in COLUMNS:
                raise ConfigError(f"column {one_field(name)[:80]!r}", f"must be one of {', '.join(COLUMNS)}")
            if content in chosen:
                found = f"{one_field(chosen[content])[:80]!r} and {one_field(name)[:80]!r} are both chosen for it"
                raise ConfigError(f"columns: {content}", found, "choose one of them")
            chosen[content] = name
    return " ".join(f"{content}={chosen.get(content, '')}" for content in COLUMNS)


def prepare_again_command(project: Project) -> list[str]:
    """Stage 0 with the options of the lists that exist."""
    folders = _folders(project, project.free_experiment())
    return [str(find_recipe()), *_data_options(project), *folders, "--stop_stage", "0"]


def _data_options(project: Project) -> list[str]:
    made = read_recipe_options(project / "data")
    if not made:
        raise DataError(project / "data", "no lists", "prepare the recordings first")
    _check(options_file(project / "data"), made, _OF_DATA)
    earlier = project.last_job("prepare")
    minutes = earlier.option("--min_minutes") if earlier else []
    return [*(word for name, value in made.items() for word in (f"--{name}", value)), *minutes]


def _check(where: object, options: Mapping[str, str], allowed: Sequence[str]) -> None:
    """Raise DataError for an option that this page does not write, because a project may be of somebody else."""
    lexer = shlex.shlex(options.get("prepare", ""), posix=True, punctuation_chars=False)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    lexer.escapedquotes = ""  # as xargs reads it
    try:
        words = [word.partition("=")[0] for word in lexer if word.startswith("-")]
    except ValueError as error:
        raise DataError(where, "a quote has no end in --prepare", "prepare the recordings again") from error
    wrong = [f"--{name}" for name in options if name not in allowed] + [one for one in words if one not in _WORDS]
    if wrong:
        to_do = "run the recipe in a shell if you trust this project, or prepare the recordings again"
        raise DataError(where, f"has the option {one_field(wrong[0])[:80]}, which this page does not use", to_do)


def _folders(project: Project, experiment: Path) -> list[str]:
    return ["--data", str(project / "data"), "--exp", str(experiment)]


def train_command(project: Project, form: Form, places: Places) -> list[str]:
    """Stages 1 to 8 of the recipe in a new folder: units, training, decoding, scores, report; or only its time.

    With corrected segments the lists are made again first.
    """
    command = [str(find_recipe()), *_data_options(project), *_folders(project, project.free_experiment())]
    start = _choice(form, "start", ("nothing", "model", "encoder"))
    if start == "model":
        command += ["--base", str(resolve_model(places.resolve(form.get("base", ""))))]
    elif start == "encoder":
        command += ["--encoder", str(places.resolve(form.get("encoder", "")))]
    else:
        command += ["--size", _choice(form, "size", SIZES)]
    if form.get("minutes", "").strip():
        minutes = f"{_number(form, 'minutes', 5, 0.1, 100_000):g}"
        command += ["--override", f"max_minutes={minutes} {_LIMITED}"]
    if form.get("only_time"):
        return [*command, *ONLY_TIME]
    return [*command, "--stage", "0" if form.get("corrected") else "1"]


def resume_command(project: Project, experiment: Path) -> list[str]:
    """The command of the page that began an experiment, once more. Raises DataError for an experiment of a shell."""
    ours = [project / "data", experiment]
    for job in project.jobs("train"):
        options = {name.removeprefix("--"): value for name, value in zip(*2 * [iter(job.command[1:])], strict=False)}
        if [*map(options.get, ("data", "exp"))] == [*map(str, ours)] and job.command[0] == str(find_recipe()):
            _check(job.folder, options, _OF_TRAINING)
            if not re.fullmatch(rf"(max_minutes=[\d.e+]+ {_LIMITED})?", options.get("override", "")):
                raise DataError(job.folder, "has settings that this page does not write", "start a new training")
            return [*job.command]
    to_do = f"repeat its command of run.sh there, with --exp {shlex.quote(str(experiment))}"
    raise DataError(experiment, "was begun in a shell, or its folder was moved", to_do)


def transcribe_command(project: Project, model: Path, files: Sequence[Path]) -> list[str]:
    """Transcription of recordings into PROJECT/transcribed; those that are there already are left out."""
    if not files:
        raise DataError("recordings", "none chosen", "choose at least one")
    command = ["wenet-hs", "transcribe", "--model_dir", str(model), "--record"]
    return [*command, str(project.target("transcribed")), "--skip_existing", "--", *map(str, files)]


def pack_command(project: Project, model: Path, form: Form) -> list[str]:
    """A ZIP to share in PROJECT/shared, with the edited card in PROJECT/cards; or first that card, to be edited."""
    name = check_name(form.get("name", ""), "model")
    card = project.target("cards") / f"{name}.md"
    out = card if form.get("card_only") else project.target("shared") / f"{name}.zip"
    command = ["wenet-hs", "pack", "--model_dir", str(model), "--out", str(out)]
    command += ["--card", str(card)] if out != card and card.is_file() else []
    for name in ("license", "data"):
        if value := form.get(name, "").strip():
            command.append(f"--{name}={one_field(value)}")
    return [*command, *(["--overwrite"] if form.get("overwrite") else [])]


def read_correction(form: Form) -> Correction:
    """The text and the borders of a segment; without a number a border is as it was transcribed."""
    if "text" not in form:
        raise DataError("segment", "no text", "load the page again")
    start, end = (
        _number(form, name, 0, 0, 100_000) if form.get(name, "").strip() else None for name in ("start", "end")
    )
    return Correction(form["text"], start, end, "confirmed" in form)


def _choice(form: Form, name: str, allowed: Sequence[str]) -> str:
    value = form.get(name, allowed[0])
    if value not in allowed:
        raise ConfigError(f"{name} {one_field(value)[:80]!r}", f"must be one of {', '.join(allowed)}")
    return value


def _number(form: Form, name: str, default: float, low: float, high: float) -> float:
    text = form.get(name, "").strip()
    try:
        value = float(text.replace(",", ".")) if text else default
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise ConfigError(f"{name} {one_field(text)[:40]!r}", f"must be a number from {low:g} to {high:g}")
    return value
