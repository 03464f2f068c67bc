# SPDX-License-Identifier: Apache-2.0
"""What all handlers share: project and form of a request, templates, jobs, and browsing of folders.

A handler is the function that answers the requests for one address.
"""

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from wenet_hs.app.commands import FormValues, PageCommand
from wenet_hs.app.lists import ListPage, select_page
from wenet_hs.app.places import UPLOAD_SUFFIXES, Places
from wenet_hs.app.projects import Project, Projects
from wenet_hs.base.jobs import start_job
from wenet_hs.report.aligned import align_columns
from wenet_hs.score.error_rate import percent
from wenet_hs.score.tables import format_p, format_points, format_signed
from wenet_hs.text.units import show_unit
from wenet_hs.tree.errors import DataError, WenetHsError, one_line

STEPS = ("recordings", "check", "train", "results", "transcribe", "share")
"""The pages of a project, in the order in which a user needs them."""
_KINDS_THAT_WRITE_DATA = ("prepare", "train")
"""Jobs that write to data/ of a project, so only one of them runs at a time."""
_FILES_PER_PAGE = 500


# ---- the request


@dataclass(frozen=True)
class Site:
    """What the handlers of a server need."""

    projects: Projects
    places: Places


def site_of(request: Request) -> Site:
    """The site of the server that got the request."""
    site: Site = request.app.state.site
    return site


def project_of(request: Request) -> Project:
    """The project in the address. Raises DataError if there is none, or another server has it."""
    return site_of(request).projects.open(request.path_params["project"])


def form_of(request: Request) -> FormValues:
    """The fields of the form, which the guard has read; empty if the request has no form."""
    form: FormValues = request.scope.get("form", FormValues())
    return form


def is_preview(request: Request) -> bool:
    """Whether a form asks only for its command, which the page shows while a user fills it in."""
    return "preview" in form_of(request)


def wants_html(request: Request) -> bool:
    """Whether the browser shows the answer as a page; otherwise a script of the page reads it."""
    return "text/html" in request.headers.get("accept", "")


def routes_of(method: str, **handlers: Callable[[Request], Any]) -> list[Route]:
    """A route per handler: requests for /p/PROJECT/NAME with this method are answered by it.

    Args:
        method: GET or POST.
        handlers: NAME=the function that answers.
    """
    return [
        Route(f"/p/{{project}}/{name}", handler, methods=[method])
        for name, handler in handlers.items()
    ]


# ---- templates


@cache
def read_texts() -> dict[str, str]:
    """The catalogue of all texts: key → text in English, with places for values."""
    path = Path(__file__).with_name("texts.yaml")
    texts: dict[str, str] = yaml.safe_load(path.read_text("utf-8"))
    return texts


def text(key: str, /, **values: object) -> str:
    """A text of the catalogue with its values."""
    return read_texts()[key].format(**values)


@cache
def load_templates() -> Environment:
    """The templates of all pages, with the functions, values and filters that they may use.

    Every value that they show is escaped. A name that a template does not know is an error.
    """
    templates = Environment(
        loader=PackageLoader("wenet_hs.app"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals |= {
        "t": text,
        "texts": read_texts(),
        "steps": STEPS,
        "shell": shlex.join,
        "upload_suffixes": UPLOAD_SUFFIXES,
    }
    templates.filters |= {
        "columns": align_columns,
        "percent": percent,
        "query": urlencode,
        "count": "{:,}".format,
        "points": format_points,
        "signed": format_signed,
        "p_value": format_p,
        "unit": show_unit,
    }
    return templates


def render(request: Request, template: str, **values: Any) -> HTMLResponse:
    """The page that a template makes of these values, and of the `query` of the address."""
    page_template = load_templates().get_template(template)
    html = page_template.render(query=request.query_params, **values)
    return HTMLResponse(html)


def show_error(request: Request, error: Exception) -> Response:
    """The answer to a request whose handler raised an error: a page or a text with one line.

    The line says what is wrong. The status is 400 for an error of the user or of the disk, and 500
    for an unexpected one, whose traceback Starlette logs. A script gets text. If it asked for a
    preview of a command, an error of the user or of the disk has status 200: the page shows its
    line instead of the command.
    """
    line = _describe_error(error)
    is_expected = isinstance(error, WenetHsError | OSError)
    status = 400 if is_expected else 500
    if not wants_html(request):
        if is_expected and is_preview(request):
            status = 200
        return PlainTextResponse(line, status)
    values: dict[str, Any] = {"line": line, "back": request.headers.get("referer", "/")}
    with suppress(WenetHsError, KeyError, OSError):  # the error may be about the project itself
        values["project"] = project_of(request)
    answer = render(request, "error.html", **values)
    answer.status_code = status
    return answer


def _describe_error(error: Exception) -> str:
    """The line that a page shows for an error: where it was, what is wrong, and what to do."""
    if isinstance(error, WenetHsError):
        return str(error)
    if isinstance(error, OSError):
        where = error.filename or "wenet-hs app"
        return f"{where}: {error.strerror or error}; check the path, its permissions and the disk"
    return text("error_unexpected", error=one_line(error), kind=type(error).__name__)


# ---- jobs and the next page


def run_as_job(
    request: Request,
    project: Project,
    kind: str,
    command: PageCommand,
    step: str,
    *,
    before: Callable[[], object] = lambda: None,
) -> Response:
    """Start a job that runs a command; the answer leads to a page of the project.

    A request for a preview starts nothing and is answered with the text of the command.

    Args:
        kind: of the job, such as `train`.
        step: the name of the page to show next, such as `train` or, with a fragment, `train#new`.
        before: changes files before the job starts. It is called only if the job can start.

    Raises DataError if another job or a training of a shell is in the way.
    """
    if is_preview(request):
        return PlainTextResponse(shlex.join(command.command_line))
    writes_data = kind in _KINDS_THAT_WRITE_DATA

    def check_and_change() -> None:  # is called when no job is in the way
        if writes_data:
            _refuse_running_training(project)
        before()

    start_job(
        project.jobs_folder,
        kind,
        command.command_line,
        folder=project.folder,
        details=command.details,
        alone=_KINDS_THAT_WRITE_DATA if writes_data else (),
        before=check_and_change,
    )
    return show_next(request, project, step)


def _refuse_running_training(project: Project) -> None:
    """Raise DataError if a training runs. No job trains at this point, so a shell started it."""
    for training in project.trainings():
        if training.process:
            raise DataError(training.name, "is trained in a shell", "wait for its end, or stop it")


def show_next(request: Request, project: Project, step: str) -> Response:
    """The answer to a form: a redirection to a page of the project.

    A script gets the address in the header X-Next, because it sees no fragment of a redirection.
    """
    answer = go_to(project, step)
    if wants_html(request):
        return answer
    return PlainTextResponse("", headers={"X-Next": answer.headers["location"]})


def go_to(project: Project, step: str, **query: str) -> Response:
    """A redirection to the page `step` of a project. `query`: names and values in its address."""
    address = f"/p/{quote(project.name, safe='')}/{step}"
    if query:
        address += f"?{urlencode(query)}"
    return RedirectResponse(address, 303)  # the browser opens it with GET, also after a POST


# ---- folders to choose from


@dataclass(frozen=True, kw_only=True)
class BrowsedFolder:
    """A folder in which a user chooses files or folders."""

    folder: Path
    above: Path | None
    """The folder that contains it; None if that may not be read."""
    folders: Sequence[Path]
    files: Sequence[Path]
    """The files on this page of the list."""
    shown: ListPage[Path]
    """The page of the list of files, with its number."""

    def template_values(self) -> dict[str, Any]:
        """The fields by name, as the templates of pages with a folder need them."""
        return vars(self)


def browse_folder(
    request: Request, project: Project, uploads: str, suffixes: Sequence[str] = UPLOAD_SUFFIXES
) -> BrowsedFolder:
    """The folder that the address names as `folder`, with the page of its files named as `page`.

    Without a folder in the address it is the folder `uploads` of the project if that exists,
    otherwise the home folder of the user. Only files with these suffixes are in the list.
    Raises DataError if the folder may not or cannot be read.
    """
    places = site_of(request).places
    query = request.query_params
    upload_folder = project / uploads
    # The last root is the home folder; see `make_app`.
    default_folder = upload_folder if upload_folder.is_dir() else places.roots[-1]
    folder = places.resolve(query.get("folder") or default_folder)
    content = places.list_folder(folder)
    above = None
    with suppress(DataError):  # the folder above may not be read
        above = places.resolve(folder.parent)
    endings = tuple(suffixes)
    files = [path for path in content.files if path.name.lower().endswith(endings)]
    shown = select_page(files, query.get("page", ""), size=_FILES_PER_PAGE)
    return BrowsedFolder(
        folder=folder,
        above=above,
        folders=content.folders,
        files=shown.items,
        shown=shown,
    )
