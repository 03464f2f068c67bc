# SPDX-License-Identifier: Apache-2.0
"""Parts of a page that change by themselves leave the user what is focused, closed, typed and
chosen.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app_client import write_audio, write_lists, write_transcript
from chromium import Server, chromium
from waiting import within

from wenet_hs.base.jobs import Job, start_job
from wenet_hs.bin.app import _OPENED_HTML
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.atomic import write_atomic

pytestmark = pytest.mark.browser
LINES = "i=0; while [ ! -e go ]; do i=$((i + 1)); echo line $i; sleep 0.2; done"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with lists and the card of a model."""
    folder = tmp_path / "projects/Field"
    (folder / ".app").mkdir(parents=True)
    clips = [
        Utterance(
            key="u0", wav=str(write_audio(tmp_path / "talk.wav")), txt="a", start=0.0, end=0.4
        )
    ]
    write_lists(folder, clips)
    write_atomic(folder / "cards/mine.md", "# Card\n")
    return folder


@pytest.fixture
def server(project: Path) -> Iterator[Server]:
    server = Server(project.parents[1])
    yield server
    server.end()


def begin(project: Path, kind: str) -> Job:
    """A job that writes lines until the file `go` is there."""
    return start_job(project / ".app/jobs", kind, ["bash", "-c", LINES, "--"], folder=project)


def open_step(page: Any, server: Server, step: str) -> None:
    page.goto(server.address)
    page.goto(server.address.split("?")[0] + f"p/Field/{step}")


def last_line(page: Any) -> int:
    return int(page.locator(".job .log").text_content().split()[-1])


def test_a_log_that_changes_keeps_the_focus_and_stays_closed(server: Server, project: Path) -> None:
    begin(project, "prepare")
    with chromium() as page:
        open_step(page, server, "check")
        page.get_by_text("Lists 0001: running").wait_for()
        page.evaluate(
            "new MutationObserver(() => document.body.dataset.announced = 'yes').observe("
            "document.querySelector('.job [role=status]'), { childList: true, subtree: true, characterData: true })"
        )
        page.locator(".job .live summary").click()  # it is closed at first
        page.locator(".job .log").focus()
        before = last_line(page)
        assert within(15, lambda: last_line(page) > before + 10)
        assert page.evaluate("document.activeElement.className") == "log"
        page.locator(".job .live summary").click()
        before = last_line(page)
        assert within(15, lambda: last_line(page) > before + 10)
        assert not page.evaluate("document.querySelector('.job .live details').open")
        assert page.evaluate("document.body.dataset.announced") is None  # the state is the same
        (project / "go").touch()
        page.get_by_text(
            "Lists 0001: done"
        ).wait_for()  # nothing was typed: the page is loaded again
        page.get_by_text("Speech", exact=True).wait_for()


@pytest.mark.parametrize(
    ("kind", "step", "field"),
    [("pack", "share", ".draft textarea"), ("transcribe", "transcribe", ".mic input")],
)
def test_a_page_with_changes_is_not_loaded_again_at_the_end_of_a_job(
    server: Server, project: Path, kind: str, step: str, field: str
) -> None:
    begin(project, kind)
    with chromium() as page:
        open_step(page, server, step)
        page.get_by_text(" 0001: running").wait_for()
        page.locator(field).fill("my long text")
        (project / "go").touch()
        page.get_by_text(" 0001: done").wait_for()
        page.get_by_text("This page has changed.").wait_for()
        assert page.locator(field).input_value() == "my long text"
        for width in (480, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.get_by_role("link", name="Load the page again").click()
        page.get_by_text("This page has changed.").wait_for(state="hidden")


def test_a_page_without_changes_is_loaded_again_at_the_end_of_a_job(
    server: Server, project: Path
) -> None:
    begin(project, "transcribe")
    with chromium() as page:
        open_step(page, server, "transcribe")
        page.get_by_text("Transcription 0001: running").wait_for()
        write_transcript(project, project.parents[1] / "talk.wav")
        (project / "go").touch()
        page.get_by_role("link", name="talk", exact=True).wait_for()


def test_the_file_that_is_opened_at_the_start_leads_to_the_page(
    server: Server, project: Path
) -> None:
    opened = project.parents[1] / "open.html"
    opened.write_text(_OPENED_HTML.format(address=server.address), "utf-8")
    with chromium() as page:
        page.goto(opened.as_uri())
        page.get_by_role("link", name="Field").wait_for()
        assert "token" not in page.url


def test_a_card_is_saved(server: Server, project: Path) -> None:
    with chromium() as page:
        open_step(page, server, "share")
        page.locator(".draft textarea").fill("# Edited\n")
        page.locator(".draft").get_by_role("button", name="Save").click()
        assert within(10, lambda: (project / "cards/mine.md").read_text("utf-8") == "# Edited\n")
