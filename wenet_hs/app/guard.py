# SPDX-License-Identifier: Apache-2.0
"""The safety rules of every request: token, Host, Origin, size of forms, and the headers of every
answer.
"""

import secrets
from contextlib import suppress
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import ImmutableMultiDict, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_FORM_BYTES, MAX_FIELDS = 1 << 20, 5000
UPLOAD_TYPE = "application/octet-stream"
_GO_ON = (
    '<!DOCTYPE html><title>wenet_hs</title><link rel="icon" href="/static/icon.svg">'
    '<meta http-equiv="refresh" content="0;url=/">'
)
_FORM_TYPE = "application/x-www-form-urlencoded"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer the forms of the page would have the Origin `null`
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(self)",
    "Cache-Control": "no-store",
}


class Guard:
    """Answers only requests of the page that the user opened with the token; reads the fields of
    forms.

    They are in `scope["form"]`. A file is uploaded as the body of a request, which the handler
    reads itself.
    """

    def __init__(self, app: ASGIApp, *, port: int, token: str) -> None:
        self._app, self._token, self._session = app, token, secrets.token_urlsafe(32)
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self.cookie = f"wenet_hs_{port}"  # cookies do not distinguish ports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        request = Request(scope, receive)
        answer: ASGIApp | None = self._check(request)
        with suppress(ClientDisconnect):  # nobody waits for the answer
            if answer is None and request.method == "POST":
                answer = await self._read_form(request)
            await (answer or self._app)(scope, receive, send_with_headers)

    def _check(self, request: Request) -> Response | None:
        """The answer to a request that is refused, or that brings the token; None: it is allowed."""
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return _refuse(
                "Host: not this computer; open the address that wenet-hs app printed", 421
            )
        if request.method not in ("GET", "HEAD", "POST"):
            return _refuse("method: only GET and POST", 405)
        origin = urlsplit(
            request.headers.get("origin", f"http://{hosts[0]}" if request.method != "POST" else "")
        )
        if (origin.scheme, origin.netloc) != ("http", hosts[0]):
            return _refuse("Origin: the request is from another page", 403)
        given = request.query_params.get("token", "")
        is_outside = request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if (
            request.method == "GET"
            and given
            and secrets.compare_digest(given.encode(), self._token.encode())
        ):
            # after the file of --open a redirection would not bring the strict cookie, but a page
            # that goes on does
            answer: Response = HTMLResponse(_GO_ON) if is_outside else RedirectResponse("/", 303)
            answer.set_cookie(
                self.cookie, self._session, httponly=True, samesite="strict", path="/"
            )
            return answer
        if is_outside:
            return _refuse("Sec-Fetch-Site: the request is from another page", 403)
        known = request.cookies.get(self.cookie, "")
        if not secrets.compare_digest(known.encode(), self._session.encode()):
            return _refuse(
                "token: missing or of an earlier start; open the address that wenet-hs app printed",
                403,
            )
        return None

    async def _read_form(self, request: Request) -> Response | None:
        """Put the fields of the form into the scope. Returns the answer to one that is refused."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind == UPLOAD_TYPE:
            return None
        if kind != _FORM_TYPE:
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


def _refuse(message: str, status: int) -> Response:
    return PlainTextResponse(f"wenet-hs app: {message}\n", status)
