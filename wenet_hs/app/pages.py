# SPDX-License-Identifier: Apache-2.0
"""What all pages share: templates with the texts of one language, the site of a request, jobs that
forms start.
"""

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from wenet_hs.app.commands import FormValues, PageCommand
from wenet_hs.app.lists import page_of
from wenet_hs.app.places import UPLOADED, Places
from wenet_hs.app.projects import Project, Projects
from wenet_hs.base.jobs import start_job
from wenet_hs.report.aligned import align_columns
from wenet_hs.score.error_rate import percent
from wenet_hs.score.tables import format_p, format_points, format_signed
from wenet_hs.text.units import show_unit
from wenet_hs.tree.errors import DataError, WenetHsError, one_line

STEPS = ("recordings", "check", "train", "results", "transcribe", "share")


@dataclass(frozen=True)
class Site:
    """What the handlers of a server need."""

    projects: Projects
    places: Places


def site_of(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


def project_of(request: Request) -> Project:
    """The project in the address."""
    return site_of(request).projects.open(request.path_params["project"])


def form_of(request: Request) -> FormValues:
    """The fields of the form, which the guard has read; none of a request without a form."""
    form: FormValues = request.scope.get("form", FormValues())
    return form


@cache
def read_texts() -> dict[str, str]:
    """The catalogue of all texts."""
    texts: dict[str, str] = yaml.safe_load(
        Path(__file__).with_name("texts.yaml").read_text("utf-8")
    )
    return texts


def text(key: str, /, **values: object) -> str:
    """A text of the catalogue with its values."""
    return read_texts()[key].format(**values)


@cache
def environment() -> Environment:
    """The templates. Everything that they show is escaped."""
    loader = PackageLoader("wenet_hs.app")
    found = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"t": text, "texts": read_texts(), "steps": STEPS, "shell": shlex.join}
    found.globals["uploaded"] = UPLOADED
    found.filters |= {
        "columns": align_columns,
        "percent": percent,
        "query": urlencode,
        "count": "{:,}".format,
    }
    found.filters |= {
        "points": format_points,
        "signed": format_signed,
        "p_value": format_p,
        "unit": show_unit,
    }
    return found


def render(request: Request, template: str, **values: Any) -> HTMLResponse:
    """The page of a template."""
    html = environment().get_template(template).render(query=request.query_params, **values)
    return HTMLResponse(html)


def show_error(request: Request, error: Exception) -> Response:
    """The line of an error as a page; for a script as text.

    Starlette logs the traceback of an unexpected one.
    """
    line, status = str(error), 400
    if isinstance(error, OSError):
        where = error.filename or "wenet-hs app"
        line = f"{where}: {error.strerror or error}; check the path, its permissions and the disk"
    elif not isinstance(error, WenetHsError):
        line, status = (
            text("error_unexpected", error=one_line(error), kind=type(error).__name__),
            500,
        )
    if "text/html" not in request.headers.get("accept", ""):
        is_preview = "preview" in request.scope.get("form", ())
        return PlainTextResponse(line, 200 if is_preview and status == 400 else status)
    values: dict[str, Any] = {"line": line, "back": request.headers.get("referer", "/")}
    with suppress(WenetHsError, KeyError, OSError):
        values["project"] = project_of(request)
    answer = render(request, "error.html", **values)
    answer.status_code = status
    return answer


def start(
    request: Request,
    project: Project,
    kind: str,
    command: PageCommand,
    step: str,
    *,
    before: Callable[[], object] = lambda: None,
) -> Response:
    """Start a job and show the page of a step; with the field `preview` only the text of the
    command.

    `before`: what changes files first. It is called only where the job can start.
    """
    if "preview" in form_of(request):
        return PlainTextResponse(shlex.join(command.command_line))
    alone = ("prepare", "train") if kind in ("prepare", "train") else ()  # both write to data/

    def check_and_change() -> None:
        of_shell = next((one for one in project.trainings() if alone and one.process), None)
        if of_shell:
            raise DataError(of_shell.name, "is trained in a shell", "wait for its end, or stop it")
        before()

    start_job(
        project.jobs_folder,
        kind,
        command.command_line,
        folder=project.folder,
        details=command.details,
        alone=alone,
        before=check_and_change,
    )
    return show_next(request, project, step)


def show_next(request: Request, project: Project, step: str) -> Response:
    """After a form: show a step; for a script its address, because a redirection has no fragment
    there.
    """
    answer = go_to(project, step)
    if "text/html" in request.headers.get("accept", ""):
        return answer
    return PlainTextResponse("", headers={"X-Next": answer.headers["location"]})


def go_to(project: Project, step: str, **values: str) -> Response:
    """Show a step of a project."""
    query = f"?{urlencode(values)}" if values else ""
    return RedirectResponse(
        f"/p/{urlencode({'': project.name})[1:].replace('+', '%20')}/{step}{query}", 303
    )


def browse(
    request: Request, project: Project, uploads: str, suffixes: Sequence[str] = UPLOADED
) -> dict[str, Any]:
    """The folder that is looked at, its folders and files; first that of the uploads, if there are
    some.
    """
    places, start_folder, query = site_of(request).places, project / uploads, request.query_params
    asked = query.get("folder") or (start_folder if start_folder.is_dir() else places.roots[-1])
    folder = places.resolve(asked)
    folders, files = places.list_folder(folder)
    above = None
    with suppress(DataError):
        above = places.resolve(folder.parent)
    named = [path for path in files if path.name.lower().endswith(tuple(suffixes))]
    shown = page_of(named, query.get("page", ""), 500)
    values = {"project": project, "folder": folder, "above": above, "folders": folders}
    return values | {"files": shown.items, "shown": shown}


def routes_of(method: str, **handlers: Callable[[Request], Any]) -> list[Route]:
    """The addresses /p/PROJECT/NAME of the handlers by name."""
    return [
        Route(f"/p/{{project}}/{name}", handler, methods=[method])
        for name, handler in handlers.items()
    ]
