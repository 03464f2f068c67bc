# SPDX-License-Identifier: Apache-2.0
"""The server of `wenet-hs app`: on this computer only, with a random token in its first address."""

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

from wenet_hs.app import data_views, model_views
from wenet_hs.app.guard import Guard
from wenet_hs.app.pages import Site, show_error
from wenet_hs.app.places import Places
from wenet_hs.app.projects import Projects
from wenet_hs.report import render as report_render
from wenet_hs.tree.errors import ConfigError, WenetHsError

_SHARED = {"report.css": "text/css", "report.js": "text/javascript"}
_TEMPLATES = Path(report_render.__file__).with_name("templates")


def send_shared(request: Request) -> Response:
    """Style and script of the reports, which this page has too."""
    name = request.path_params["name"]
    content = (_TEMPLATES / name.replace("report", "page")).read_bytes() if name in _SHARED else b""
    return Response(content, 200 if content else 404, media_type=_SHARED.get(name, "text/plain"))


def make_app(
    folder: Path, port: int, token: str, *, home: Path | None = None
) -> tuple[Guard, Site]:
    """The application behind its guard, so that every answer has the headers.

    `home`: the other folder below which recordings may be chosen (default: the user's).
    """
    places = Places([folder, home or Path.home()])
    shared, static = (
        Route("/report/{name}", send_shared),
        StaticFiles(packages=[("wenet_hs.app", "static")]),
    )
    routes = [*data_views.ROUTES, *model_views.ROUTES, shared, Mount("/static", static)]
    app = Starlette(
        routes=routes,
        exception_handlers=dict.fromkeys((WenetHsError, OSError, Exception), show_error),
    )
    app.state.site = Site(Projects(folder, places), places)
    return Guard(app, port=port, token=token), app.state.site


def serve(folder: Path, port: int, show: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `show` gets the address with the token.

    Raises ConfigError if the port is in use.
    """
    folder.mkdir(parents=True, exist_ok=True)
    token = secrets.token_urlsafe(24)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(128)  # the address works as soon as it is shown
        except OSError as error:
            raise ConfigError(
                f"--port {port}", f"cannot be used ({error.strerror})", "give another one"
            ) from error
        port = listener.getsockname()[1]
        app, site = make_app(folder, port, token)
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
        )
        server = uvicorn.Server(config)
        show(f"http://127.0.0.1:{port}/?token={token}")
        try:
            server.run(sockets=[listener])
        finally:
            site.projects.close()
