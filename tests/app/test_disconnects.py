# SPDX-License-Identifier: Apache-2.0
"""Uploads at the same time, and requests whose browser goes away before their end."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from app_client import ORIGIN, App

UPLOAD, FORM = "application/octet-stream", "application/x-www-form-urlencoded"


async def send(
    app: App, path: str, kind: str, parts: Sequence[bytes], *, seconds: float, is_cut: bool = False
) -> Any:
    """The status and the text of the answer to a request whose parts come slowly; None for no
    answer.
    """
    rest, sent = [*parts], list[Any]()

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(seconds)
        if not rest:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": rest.pop(0), "more_body": bool(rest) or is_cut}

    async def keep(message: Any) -> None:
        sent.append(message)

    path, _, query = path.partition("?")
    cookie = "; ".join(f"{name}={value}" for name, value in app.client.cookies.items())
    headers = {
        "host": ORIGIN.removeprefix("http://"),
        "origin": ORIGIN,
        "cookie": cookie,
        "content-type": kind,
    }
    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "query_string": query.encode(),
    }
    scope |= {
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "root_path": "",
    }
    await app.client.app(scope, receive, keep)  # type: ignore[arg-type]
    return (
        (sent[0]["status"], sent[1]["body"].decode()) if sent and sent[0]["status"] < 500 else None
    )


@pytest.mark.parametrize("is_cut", [False, True])
def test_of_two_uploads_of_one_name_the_second_is_refused_and_the_first_is_whole(
    app: App, is_cut: bool
) -> None:
    path = "/p/first/upload?to=recordings&name=a.txt"

    async def both() -> Any:
        first = asyncio.create_task(send(app, path, UPLOAD, [b"A" * 1000] * 5, seconds=0.05))
        await asyncio.sleep(0.08)
        return await asyncio.gather(
            first, send(app, path, UPLOAD, [b"B" * 1000] * 8, seconds=0.02, is_cut=is_cut)
        )

    first, second = asyncio.run(both())
    assert first == (200, "") and second[0] == 400 and "has a file 'a.txt' already" in second[1]
    assert [path.name for path in (app.project / "recordings").iterdir()] == ["a.txt"]
    assert (app.project / "recordings/a.txt").read_bytes() == b"A" * 5000


def test_an_upload_that_ends_early_leaves_nothing_and_can_be_repeated(app: App) -> None:
    path = "/p/first/upload?to=recordings&name=a.txt"
    assert asyncio.run(send(app, path, UPLOAD, [b"A"] * 2, seconds=0.01, is_cut=True)) is None
    assert [*(app.project / "recordings").iterdir()] == []
    assert asyncio.run(send(app, path, UPLOAD, [b"A"] * 2, seconds=0.01)) == (200, "")


def test_a_form_that_ends_early_is_no_fault(app: App) -> None:
    assert asyncio.run(send(app, "/projects", FORM, [b"name=x"], seconds=0.01, is_cut=True)) is None
    assert [one.name for one in app.site.projects.list()] == ["first"]
