# SPDX-License-Identifier: Apache-2.0
"""Projects, recordings and their check: the pages before a training."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from wenet_hs.app import commands, lists
from wenet_hs.app.commands import FormValues
from wenet_hs.app.job_details import read_recipe_details
from wenet_hs.app.pages import (
    browse_folder,
    form_of,
    go_to,
    is_preview,
    project_of,
    render,
    routes_of,
    run_as_job,
    site_of,
)
from wenet_hs.app.places import UPLOAD_SUFFIXES
from wenet_hs.app.projects import Project, read_recipe_options
from wenet_hs.base.jobs import Job
from wenet_hs.corpus.check import FAULTS, KINDS
from wenet_hs.corpus.expectations import describe_results
from wenet_hs.corpus.forms import Source, recognise
from wenet_hs.corpus.languages import (
    UNDETERMINED,
    describe_language,
    find_language,
    suggest_languages,
)
from wenet_hs.recipes.own_options import FORMS
from wenet_hs.tree.errors import DataError

_REJECTED_ORDERS = ("reason", "key", "text", "path")
"""By which the rejected annotations can be sorted; the first is used if none is asked for."""
_MAX_TYPED_NAME = 100
"""Characters of the name of a language that are compared with known names."""


# ---- projects


def show_projects(request: Request) -> Response:
    """The list of all projects. A project whose files are damaged is shown with the error."""
    projects = site_of(request).projects
    listed = projects.list()
    faults = dict[str, str]()
    for project in listed:
        try:
            # The template reads them too. Here they are read to find errors.
            project.jobs()
            project.trainings()
        except (DataError, OSError) as error:
            faults[project.name] = str(error)
    return render(request, "projects.html", projects=listed, faults=faults, folder=projects.folder)


def create_project(request: Request) -> Response:
    """Make a project with the name of the form and go to its first page."""
    name = form_of(request).get("name", "")
    project = site_of(request).projects.create(name)
    return go_to(project, "recordings")


def open_project(request: Request) -> Response:
    """Go to the first page of a project."""
    return go_to(project_of(request), "recordings")


# ---- recordings


def show_recordings(request: Request) -> Response:
    """The page on which a user chooses recordings and describes them in a form.

    If the address has the `path` of recordings, the page shows what they contain, and the form. A
    path that has no recordings is shown as a fault, as is an unknown language.
    Without `path` it shows what was chosen last, and folders to choose from.
    """
    project = project_of(request)
    query = request.query_params
    made_with = read_recipe_options(project / "data")
    last_form = _read_last_form_of_lists(project, made_with)
    language = _recognise_language(_find_language_text(query, last_form, made_with))
    source = None
    fault = ""
    try:
        if query.get("path"):
            source = recognise(site_of(request).places.resolve(query["path"]), language.code)
    except DataError as error:
        fault = str(error)
    browsed = browse_folder(request, project, "recordings")
    return render(
        request,
        "recordings.html",
        project=project,
        **browsed.template_values(),
        source=source,
        fault=fault,
        lang=language.text,
        lang_fault=language.fault,
        language_name=describe_language(language.code),
        filled_fields=_find_filled_fields(query, last_form, source),
        made_with=made_with,
        last_form=last_form,
        suffixes=UPLOAD_SUFFIXES,
        job=project.last_job("prepare"),
    )


def _read_last_form_of_lists(
    project: Project, made_with: Mapping[str, str]
) -> dict[str, list[str]]:
    """The fields of the form from which the data lists of a project were made: name → values.

    Without lists they are the fields that were sent last. They are these fields too if the lists
    are of the recordings in them. If not, a shell has made the lists, or the form that was sent
    last did not lead to lists. Then only two fields are known: `form` (how the transcripts are
    stored) and `path`.

    `made_with`: the options of `wenet-hs own` that made the lists; empty without lists.
    """
    sent_fields = lists.read_last_form(project)
    kind = next((name for name in FORMS if name in made_with), None)
    if kind is None:
        return sent_fields
    known_fields: dict[str, list[str]] = {"form": [kind], "path": [made_with[kind]]}
    are_of_lists = all(sent_fields.get(name) == values for name, values in known_fields.items())
    return sent_fields if are_of_lists else known_fields


def _find_language_text(
    query: QueryParams,
    last_form: Mapping[str, Sequence[str]],
    made_with: Mapping[str, str],
) -> str:
    """What the field of the language shows: that of the address, the last form, or the lists."""
    if "lang" in query:
        return query["lang"]
    if last_form.get("lang"):
        return last_form["lang"][0]
    return made_with.get("lang", "")


class _ShownLanguage(NamedTuple):
    """The language in the form of recordings."""

    text: str
    """What its field shows: a name, a code, or what a user typed instead."""
    code: str
    """UNDETERMINED if the field is empty, or has no known language."""
    fault: str
    """Why the text is no language; empty if it is one, or if the field is empty."""


def _recognise_language(text: str) -> _ShownLanguage:
    """The language of a text in the field of the form, or what is wrong with the text."""
    if not text.strip():
        return _ShownLanguage(text, code=UNDETERMINED, fault="")
    try:
        code = find_language(text)
    except ValueError as error:
        return _ShownLanguage(text, code=UNDETERMINED, fault=str(error))
    return _ShownLanguage(text, code=code, fault="")


def _find_filled_fields(
    query: QueryParams, last_form: Mapping[str, Sequence[str]], source: Source | None
) -> Mapping[str, Sequence[str]]:
    """The fields of the form of recordings as the user filled them before: name → values.

    They are in the address after the button that shows the name of the language. Otherwise they are
    those of `last_form`. Empty if there are no recordings (`source`), if the fields are of other
    recordings, or if `last_form` has not all fields.
    """
    fields: Mapping[str, Sequence[str]] = last_form
    if "form" in query:
        fields = {name: query.getlist(name) for name in query}
    is_whole_form = "unit" in fields  # a field that is always sent
    if source is None or not is_whole_form or fields.get("path") != [str(source.path)]:
        return {}
    return fields


def send_languages(request: Request) -> Response:
    """The languages with names similar to what a user typed: name → code, as JSON."""
    typed = request.query_params.get("name", "")[:_MAX_TYPED_NAME]
    return JSONResponse(suggest_languages(typed))


# ---- making of lists


def start_preparing(request: Request) -> Response:
    """Start the job that makes data lists of the recordings that a form describes.

    With the field `replace`, lists that exist are moved away first. Without it, raises DataError if
    there are lists that were made with other choices. The fields are kept, to be shown again.
    A preview of the command changes no file, and is given for other choices too.

    Also raises ConfigError or DataError for a field that is wrong, or if the job cannot start.
    """
    project = project_of(request)
    form = form_of(request)
    should_replace = bool(form.get("replace"))
    options = commands.read_prepare_options(project, form, site_of(request).places)
    if not should_replace and not is_preview(request):
        commands.refuse_other_lists(project, options)

    def change_files() -> None:
        if should_replace:
            _move_lists_away(project)
        _keep_form(project, form)

    command = commands.make_prepare_command(options)
    return run_as_job(request, project, "prepare", command, "check", before=change_files)


def _move_lists_away(project: Project) -> None:
    """Rename the folder `data` of a project to `data-old-1`, or to the first number that is free.

    Nothing happens if there is no such folder. Raises DataError if it is a link that leads out of
    the project.
    """
    data = project.writable_path("data")
    if not data.is_dir():
        return
    number = 1
    while (project / f"data-old-{number}").exists():
        number += 1
    data.rename(project / f"data-old-{number}")


def _keep_form(project: Project, form: FormValues) -> None:
    """Keep the fields of the form of recordings, without the one that replaces lists."""
    fields = {name: form.getlist(name) for name in form if name != "replace"}
    lists.write_last_form(project, fields)


def start_preparing_again(request: Request) -> Response:
    """Start the job that makes the data lists of a project again, with the same options."""
    project = project_of(request)
    command = commands.make_prepare_again_command(project)
    return run_as_job(request, project, "prepare", command, "check")


# ---- check


class _FindingKind(NamedTuple):
    """A row of the table of findings."""

    name: str
    num_findings: int
    is_fault: bool
    to_do: str


def show_check(request: Request) -> Response:
    """The page of the check: the hours in the data lists, and what was found in them.

    Of the findings it shows one kind: the `kind` in the address, or the first one. It also lists
    the utterances that a user leaves out. Without lists `stats` is empty, and the page says so.
    """
    project = project_of(request)
    query = request.query_params
    stats = lists.read_project_stats(project)
    findings = lists.read_findings(project)
    kinds = [
        _FindingKind(kind, len(findings[kind]), is_fault=kind in FAULTS, to_do=to_do)
        for kind, to_do in KINDS.items()
        if kind in findings
    ]
    first_kind = kinds[0].name if kinds else ""
    kind = query.get("kind") or first_kind
    excluded_keys = lists.read_excluded(project)
    job = project.last_job("prepare")
    return render(
        request,
        "check.html",
        project=project,
        job=job,
        stats=stats,
        expected=describe_results(_train_hours(stats)) if stats else "",
        missed_minutes=find_missed_minimum(job, stats),
        kinds=kinds,
        kind=kind,
        shown=lists.select_page(findings.get(kind, ()), query.get("page", "")),
        clips=lists.read_clips(project),
        excluded_keys=excluded_keys,
        excluded_page=lists.select_page(excluded_keys, query.get("excluded", ""), size=100),
        num_rejected=len(lists.read_rejected_annotations(project)),
        made_with=read_recipe_options(project / "data"),
        last_form=lists.read_last_form(project),
    )


def find_missed_minimum(job: Job | None, stats: Mapping[str, Any]) -> float | None:
    """The minutes of training speech that a job required, if it failed and found fewer.

    None in all other cases: without a job, its options or data lists, if it did not fail, or if it
    found enough. `stats`: the content of data/stats.json; empty without lists.
    """
    details = read_recipe_details(job)
    if job is None or details is None:
        return None
    if not stats or job.state != "failed":
        return None
    min_minutes = details.options.min_minutes
    has_enough = 60 * _train_hours(stats) >= min_minutes
    return None if has_enough else min_minutes


def _train_hours(stats: Mapping[str, Any]) -> float:
    """The hours of training speech in the content of data/stats.json."""
    hours: float = stats["total"]["hours"].get("train", 0.0)
    return hours


def show_rejected(request: Request) -> Response:
    """The page of all annotations that are not used, with their reasons.

    They are sorted by the `order` in the address, or by reason.
    """
    project = project_of(request)
    query = request.query_params
    order = query.get("order", "")
    if order not in _REJECTED_ORDERS:
        order = _REJECTED_ORDERS[0]
    annotations = sorted(lists.read_rejected_annotations(project), key=attrgetter(order))
    return render(
        request,
        "rejected.html",
        project=project,
        shown=lists.select_page(annotations, query.get("page", ""), size=50),
        has_audio=lists.has_audio,
        order=order,
    )


def update_excluded(request: Request) -> Response:
    """Leave the utterance of a form out when lists are made again, or no longer leave it out.

    The field `excluded` is `yes` or another text. The answer leads back to the findings that the
    page of the check has shown.
    """
    project = project_of(request)
    form = form_of(request)
    is_excluded = form.get("excluded") == "yes"
    lists.set_excluded(project, form.get("key", ""), is_excluded=is_excluded)
    return go_to(project, "check", kind=form.get("kind", ""), page=form.get("page", ""))


ROUTES = (
    Route("/", show_projects),
    Route("/languages", send_languages),
    Route("/projects", create_project, methods=["POST"]),
    Route("/p/{project}", open_project),
    *routes_of("GET", recordings=show_recordings, check=show_check, rejected=show_rejected),
    *routes_of(
        "POST",
        prepare=start_preparing,
        prepare_again=start_preparing_again,
        exclude=update_excluded,
    ),
)
