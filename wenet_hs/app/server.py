# SPDX-License-Identifier: Apache-2.0
"""The server of `wenet-hs app`: only for this computer, and only with the token of its start."""

import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from wenet_hs.app import (
    data_views,
    job_views,
    media_views,
    share_views,
    train_views,
    transcript_views,
)
from wenet_hs.app.guard import Guard
from wenet_hs.app.pages import Site, show_error
from wenet_hs.app.places import Places
from wenet_hs.app.projects import Projects
from wenet_hs.report import render as report_render
from wenet_hs.tree.errors import ConfigError, WenetHsError

_ADDRESS = "127.0.0.1"
_REPORT_TEMPLATES = Path(report_render.__file__).with_name("templates")
_REPORT_FILES = {
    "report.css": ("page.css", "text/css"),
    "report.js": ("page.js", "text/javascript"),
}
"""Name in an address → the file of the templates of reports, and its media type."""
_MAX_WAITING = 128
"""The number of connections that the system lets wait until the server takes them."""


def serve(folder: Path, port: int, show: Callable[[str], None]) -> None:
    """Serve the projects below a folder until SIGINT or SIGTERM. Then release their locks.

    Args:
        folder: is made if it is missing.
        port: of the address; 0: a free port that the system chooses.
        show: is called with the address, which contains the token, when browsers can open it.

    Raises ConfigError if the port cannot be used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    token = secrets.token_urlsafe(24)
    with _listen(port) as listener:
        actual_port = listener.getsockname()[1]  # another one than `port` if that is 0
        app, site = make_app(folder, actual_port, token)
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
        )
        server = uvicorn.Server(config)
        show(f"http://{_ADDRESS}:{actual_port}/?token={token}")
        try:
            server.run(sockets=[listener])
        finally:
            site.projects.close()


def _listen(port: int) -> socket.socket:
    """A socket that listens for connections from this computer.

    `port`: the port; 0: a free port that the system chooses.
    Raises ConfigError if the port cannot be used.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_ADDRESS, port))
        listener.listen(_MAX_WAITING)  # now, so that the address works as soon as it is shown
    except OSError as error:
        listener.close()
        fault = f"cannot be used ({error.strerror})"
        raise ConfigError(f"--port {port}", fault, "give another one") from error
    return listener


def make_app(
    folder: Path, port: int, token: str, *, home: Path | None = None
) -> tuple[Guard, Site]:
    """The application of a server with its guard around it, and the site with the projects.

    The page shows every error of a handler, also an unexpected one; see `show_error`.

    Args:
        folder: has the projects. Files below it and below `home` may be read.
        port: at which the server listens; the guard checks it in the header Host.
        token: must be in the first address that a browser opens.
        home: the folder in which a user chooses recordings; None: the home folder of the user.
    """
    places = Places([folder, home or Path.home()])  # `browse_folder` begins in the last one
    site = Site(Projects(folder, places), places)
    routes = [
        *data_views.ROUTES,
        *media_views.ROUTES,
        *job_views.ROUTES,
        *train_views.ROUTES,
        *transcript_views.ROUTES,
        *share_views.ROUTES,
        Route("/report/{name}", send_report_file),
        Mount("/static", StaticFiles(packages=[("wenet_hs.app", "static")])),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            WenetHsError: show_error,
            OSError: show_error,
            Exception: show_error,
        },
    )
    app.state.site = site
    return Guard(app, port=port, token=token), site


def send_report_file(request: Request) -> Response:
    """The style or the script of the reports, which the pages use too; 404 for another name."""
    name = request.path_params["name"]
    if name not in _REPORT_FILES:
        return Response(b"", 404, media_type="text/plain")
    file_name, media_type = _REPORT_FILES[name]
    content = (_REPORT_TEMPLATES / file_name).read_bytes()
    return Response(content, media_type=media_type)
