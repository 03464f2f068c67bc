# SPDX-License-Identifier: Apache-2.0
"""Safety rules of requests (token, Host, Origin, size of forms), and headers of all answers."""

import secrets
from contextlib import suppress
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import ImmutableMultiDict, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_FORM_BYTES = 1 << 20  # 1 MiB
MAX_FIELDS = 5000
"""Fields of one form."""
UPLOAD_TYPE = "application/octet-stream"
_FORM_TYPE = "application/x-www-form-urlencoded"
_OPEN_PROJECTS = (
    '<!DOCTYPE html><title>wenet_hs</title><link rel="icon" href="/static/icon.svg">'
    '<meta http-equiv="refresh" content="0;url=/">'
)
"""A page that opens the page of the projects at once."""
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "media-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With no-referrer the forms of the page would have the Origin `null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(self)",
    "Cache-Control": "no-store",
}
"""Added to every answer."""


class Guard:
    """Passes requests to the application if they are from the page that the user opened.

    The user opens an address with the token. The answer sets a cookie with a random text, the
    session. Every other request must have this cookie.
    The guard also reads the fields of forms, into `scope["form"]`. A file is uploaded as the body
    of a request; the handler of uploads reads it.
    """

    def __init__(self, app: ASGIApp, *, port: int, token: str) -> None:
        self._app = app
        self._token = token
        self._session = secrets.token_urlsafe(32)
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self.cookie = f"wenet_hs_{port}"  # cookies do not distinguish ports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it to the application. Every answer gets the HEADERS.

        This is the interface of ASGI. The messages "lifespan" at start and end of the server are
        passed too. Other kinds of connections, such as WebSockets, get no answer.
        """
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        request = Request(scope, receive)
        answer = self._check(request)
        with suppress(ClientDisconnect):  # nobody waits for the answer
            if answer is None and request.method == "POST":
                answer = await self._read_form(request)
            if answer is None:
                await self._app(scope, receive, send_with_headers)
            else:
                await answer(scope, receive, send_with_headers)

    def _check(self, request: Request) -> Response | None:
        """The answer to a request that is not passed to the application; None if it is passed.

        Refused are requests for another host, with another method, from another page, or without
        the cookie of the session. The request that opens the address with the token needs no
        cookie: the answer to it sets the cookie, also if another page sent the browser there.
        """
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            message = "Host: not this computer; open the address that wenet-hs app printed"
            return _refuse(message, 421)
        if request.method not in ("GET", "HEAD", "POST"):
            return _refuse("method: only GET and POST", 405)
        if not _has_own_origin(request, hosts[0]):
            return _refuse("Origin: the request is from another page", 403)
        is_from_another_page = _is_from_another_page(request)
        if self._has_token(request):
            return self._begin_session(is_from_another_page=is_from_another_page)
        if is_from_another_page:
            return _refuse("Sec-Fetch-Site: the request is from another page", 403)
        session = request.cookies.get(self.cookie, "")
        if not secrets.compare_digest(session.encode(), self._session.encode()):
            message = (
                "token: missing or of an earlier start; open the address that wenet-hs app printed"
            )
            return _refuse(message, 403)
        return None

    def _has_token(self, request: Request) -> bool:
        """Whether a request opens the address with the token of this server."""
        token = request.query_params.get("token", "")
        if request.method != "GET" or not token:
            return False
        return secrets.compare_digest(token.encode(), self._token.encode())

    def _begin_session(self, *, is_from_another_page: bool) -> Response:
        """The answer that sets the cookie of the session and leads to the page of the projects.

        Usually it is a redirection. But `wenet-hs app --open` opens a file that leads the browser
        here, which is a request from another page. After it a browser does not send a cookie with
        `samesite=strict` to the target of a redirection. So the answer is then a page of this
        server, which opens the page of the projects.
        """
        answer: Response = RedirectResponse("/", 303)
        if is_from_another_page:
            answer = HTMLResponse(_OPEN_PROJECTS)
        answer.set_cookie(self.cookie, self._session, httponly=True, samesite="strict", path="/")
        return answer

    async def _read_form(self, request: Request) -> Response | None:
        """Read the body of a POST and put the fields of its form into `request.scope["form"]`.

        Returns None if the request can be passed to the application. Otherwise returns the refusal:
        the body is not a form, has too many bytes or fields, or is not UTF-8.
        The body of an upload is left for its handler, and the scope then has no "form".
        """
        content_type = request.headers.get("content-type", "").partition(";")[0].strip()
        if content_type == UPLOAD_TYPE:
            return None
        if content_type != _FORM_TYPE:
            return _refuse(f"Content-Type: expected {_FORM_TYPE}", 415)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_FORM_BYTES:
                return _refuse(f"form: more than {MAX_FORM_BYTES:,} bytes", 413)
        try:
            fields = parse_qsl(
                body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
            )
        except ValueError:
            return _refuse("form: not UTF-8, or too many fields", 400)
        request.scope["form"] = ImmutableMultiDict(fields)
        return None


def _has_own_origin(request: Request, host: str) -> bool:
    """Whether a request comes from a page of this server, by its header Origin.

    Browsers send this header with every POST. So it is False for a POST without it, and True for
    another request without it. `host`: this server, as in the header Host.
    """
    header = request.headers.get("origin")
    if header is None:
        return request.method != "POST"
    origin = urlsplit(header)
    return origin.scheme == "http" and origin.netloc == host


def _is_from_another_page(request: Request) -> bool:
    """Whether a page of another server sent the browser here, by the header Sec-Fetch-Site.

    The header is `none` if the user typed the address or opened a bookmark. Browsers that do not
    send it are treated in the same way.
    """
    fetch_site = request.headers.get("sec-fetch-site", "none")
    return fetch_site not in ("none", "same-origin")


def _refuse(message: str, status: int) -> Response:
    """A refusal in one line of text. `status`: its HTTP status."""
    return PlainTextResponse(f"wenet-hs app: {message}\n", status)
