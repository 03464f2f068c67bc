# SPDX-License-Identifier: Apache-2.0
"""Requests that are refused: without the token, of another page, of another computer, of another
form.
"""

import pytest
from app_client import ORIGIN, PORT, TOKEN, App, new_client

from wenet_hs.app.guard import MAX_FORM_BYTES


def test_the_token_is_exchanged_for_a_cookie_that_scripts_and_other_pages_do_not_get(
    app: App,
) -> None:
    client, site = new_client(app.home / "projects", app.home)
    assert client.get("/").status_code == 403
    assert client.get("/static/app.js").status_code == 403
    assert client.get("/", params={"token": "another"}).status_code == 403
    answer = client.get("/", params={"token": TOKEN}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
    assert client.get("/").status_code == 200
    client.cookies.clear()
    client.cookies.set(f"wenet_hs_{PORT}", TOKEN)
    assert client.get("/").status_code == 403
    site.projects.close()


def test_the_file_of_open_gets_the_cookie_by_a_page_that_goes_on(app: App) -> None:
    client, site = new_client(app.home / "projects", app.home)
    headers = {"Sec-Fetch-Site": "cross-site"}
    assert client.get("/", params={"token": "another"}, headers=headers).status_code == 403
    answer = client.get("/", params={"token": TOKEN}, headers=headers)
    assert answer.status_code == 200 and 'http-equiv="refresh" content="0;url=/"' in answer.text
    assert "SameSite=strict" in answer.headers["set-cookie"] and "first" not in answer.text
    assert client.get("/", headers=headers).status_code == 403
    assert client.get("/").status_code == 200
    site.projects.close()


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", ""]
)
def test_another_host_is_refused(app: App, host: str) -> None:
    assert app.get("/", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": f"https://127.0.0.1:{PORT}"},
        {"Origin": f"http://localhost:{PORT}"},  # not the host of this request
        {"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"},
        {"Origin": ORIGIN, "Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_form_of_another_page_is_refused(app: App, headers: dict[str, str]) -> None:
    assert app.post("/projects", headers, name="second").status_code == 403
    assert [one.name for one in app.site.projects.list()] == ["first"]


def test_a_form_without_origin_is_refused(app: App) -> None:
    assert app.client.post("/projects", data={"name": "second"}).status_code == 403


def test_forms_are_limited_in_kind_and_size(app: App) -> None:
    headers = {"Origin": ORIGIN}
    assert app.client.post("/projects", json={"name": "x"}, headers=headers).status_code == 415
    assert app.client.post("/projects", files={"name": b"x"}, headers=headers).status_code == 415
    assert app.post("/projects", name="x" * MAX_FORM_BYTES).status_code == 413
    many = "&".join(f"a{n}=1" for n in range(6000))
    kind = {"Content-Type": "application/x-www-form-urlencoded", **headers}
    assert app.client.post("/projects", content=many, headers=kind).status_code == 400
    assert app.client.post("/projects", content=b"name=%ff", headers=kind).status_code == 400
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert app.client.request(method, "/projects", headers=headers).status_code == 405


@pytest.mark.parametrize(
    "path",
    ["/", "/nothing", "/static/app.js", "/report/report.css", "/p/first/check", "/p/none/check"],
)
def test_every_answer_has_the_headers(app: App, path: str) -> None:
    for answer in (app.get(path), app.get(path, headers={"Host": "evil.example"})):
        policy = answer.headers["content-security-policy"]
        assert (
            "default-src 'none'" in policy
            and "unsafe" not in policy
            and "frame-ancestors 'none'" in policy
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers


def test_an_unexpected_fault_has_the_headers_too(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(app.site.projects), "list", lambda self: 1 / 0)
    client = app.client
    client._transport.raise_server_exceptions = False  # type: ignore[attr-defined]
    answer = client.get("/")
    assert answer.status_code == 500
    assert "a fault of the program (ZeroDivisionError: division by zero)" in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_pages_have_no_inline_script_or_style(app: App) -> None:
    for step in ("recordings", "check", "rejected", "train", "results", "transcribe", "share"):
        html = app.get(f"/p/first/{step}").text
        assert "<style" not in html and " style=" not in html and " onclick" not in html
        assert html.count("<script") == html.count("<script defer src=")
        assert (
            "http://" not in html.replace("http://www.w3.org/2000/svg", "")
            and "https://" not in html
        )
