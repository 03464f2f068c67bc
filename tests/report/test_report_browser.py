# SPDX-License-Identifier: Apache-2.0
"""The page in a real headless Chromium: no error in its console; sorting, filtering, themes, phone, paper, sound."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up_experiment import REF, write_data, write_experiment

from wenet_hs.report.collect import gather_data, read_experiments
from wenet_hs.report.page import build_page

pytestmark = pytest.mark.slow
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SHOWN = "[...document.querySelectorAll('.utterance')].filter(item => !item.hidden).map(item => item.dataset.key)"


class Page:
    """One page of a browser, driven over its debugging pipe: messages are JSON between zero bytes."""

    def __init__(self, browser: str, profile: Path) -> None:
        self.console: list[str] = []
        """Errors, warnings and exceptions that the page caused, requests that it was refused included."""
        self._number, self._buffer, self._session, self._loaded = 0, b"", "", False
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        flags += ["--remote-debugging-pipe", "--no-first-run", f"--user-data-dir={profile}", "about:blank"]
        # The shell gives the browser the two ends of the pipes as its file descriptors 3 and 4.
        start = ["bash", "-c", 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"', str(to_browser), str(from_browser)]
        self._process = subprocess.Popen(
            [*start, browser, *flags],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)

    def __enter__(self) -> "Page":
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *fault: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command of the DevTools protocol and wait for its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    def open(self, path: Path) -> None:
        """Load a file and wait until it is there."""
        self.call("Page.navigate", url=path.as_uri())
        while not self._loaded:
            self._receive()

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def resize(self, width: int, height: int = 900, *, scheme: str = "light") -> None:
        """A window of so many CSS pixels, in a light or dark theme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._in, 1 << 16)
            assert read, "the browser is gone"
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        method, params = message.get("method"), message.get("params", {})
        self._loaded |= method == "Page.loadEventFired"
        level = params.get("type") if method == "Runtime.consoleAPICalled" else params.get("entry", {}).get("level")
        if method == "Runtime.exceptionThrown" or level in ("error", "warning", "assert"):
            self.console.append(str(params))
        return message


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Page]:
    """A page of two experiments with audio, open in a window of a desk."""
    browser = os.environ.get("WENET_HS_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip("no Chromium on the PATH; WENET_HS_BROWSER can name one")
    attention = REF | {"ca1": "bon", "ky2": "кыргызча"}
    folders = [write_experiment(tmp_path / "a"), write_experiment(tmp_path / "b", head="softmax", attention=attention)]
    stats = write_data(tmp_path / "data", simulated=True)
    data = gather_data(read_experiments(folders), mode="attention", stats=stats)
    path = tmp_path / "report.html"
    path.write_text(build_page(data, title="a against b", command="wenet-hs"), "utf-8")
    with Page(browser, tmp_path / "profile") as page:
        page.resize(1280)
        page.open(path)
        yield page
        assert page.console == []


def choose(page: Page, control: str, value: str) -> None:
    page.run(f"{control}.value = {value!r}; {control}.dispatchEvent(new Event('input', {{bubbles: true}})); "
             f"{control}.dispatchEvent(new Event('change'))")  # fmt: skip


def test_tables_are_sorted_and_filtered(opened: Page) -> None:
    column = "[...document.querySelector('#errors table').tBodies[0].rows].map(row => row.cells[0].textContent)"
    button = "document.querySelectorAll('#errors table')[0].tHead.rows[1].cells[2].querySelector('button')"
    sort = f"{button}.parentElement.getAttribute('aria-sort')"
    assert opened.run(column) == ["ca", "ky"]
    opened.run(f"{button}.click()")
    assert (opened.run(column), opened.run(sort)) == (["ky", "ca"], "ascending"), "b: 15 % of ky, 30 % of ca"
    opened.run(f"{button}.click()")
    assert (opened.run(column), opened.run(sort)) == (["ca", "ky"], "descending")
    rows = "[...document.querySelectorAll('#confusions-1 tbody tr:not([hidden])')].map(row => row.cells[0].textContent)"
    assert set(opened.run(rows)) == {"all"}
    choose(opened, "document.querySelector('[data-filter=confusions-1]')", "ky")
    assert set(opened.run(rows)) == {"ky"}


def test_utterances_are_found_ordered_and_heard(opened: Page) -> None:
    by_id = "document.getElementById('{}')".format
    assert opened.run(SHOWN) == ["ca1", "ky2", "ca2", "ky1"]
    assert opened.run(f"{by_id('count')}.textContent") == "4 of 4 shown"
    choose(opened, by_id("order"), "length")
    assert opened.run(SHOWN) == ["ca2", "ca1", "ky2", "ky1"]
    choose(opened, by_id("order"), "d1-0")
    assert opened.run(SHOWN)[0] == "ca1", "where a is most better than b"
    choose(opened, by_id("lang"), "ky")
    choose(opened, by_id("find"), "КЫРГЫЗ")
    assert opened.run(SHOWN) == ["ky2"]
    choose(opened, by_id("find"), "")
    opened.run(f"{by_id('wrong')}.click()")
    assert opened.run(SHOWN) == ["ky2"]
    heard = "new Promise((done, fail) => { const sound = document.querySelector('audio'); sound.onerror = fail; \
        sound.onloadedmetadata = () => done(sound.duration); sound.load(); })"
    assert 0.4 < opened.run(heard) < 0.8


def test_it_fits_a_phone_paper_and_both_themes(opened: Page) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    opened.resize(390, 844)
    assert opened.run("document.documentElement.scrollWidth") == 390, "wide tables scroll in their own boxes"
    box = "document.querySelector('#errors .scroll')"
    assert opened.run(f"{box}.scrollWidth > {box}.clientWidth")
    second = f"{box}.querySelector('tbody tr').cells[2].getBoundingClientRect().right"
    assert opened.run(second) < 390, "both systems can be seen without scrolling"
    opened.run(f"{box}.scrollLeft = 150")
    edges = f"{box}.querySelector('tbody th').getBoundingClientRect().left - {box}.getBoundingClientRect().left"
    assert abs(opened.run(edges)) < 1.5, "the first column stands still"
    opened.resize(1280, scheme="dark")
    dark = opened.run(colour)
    opened.run("document.getElementById('theme').click()")
    assert opened.run("document.getElementById('theme').textContent") == "Theme: light"
    assert dark != opened.run(colour) == "rgb(255, 255, 255)"
    pdf = opened.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)["data"]
    assert len(pdf) > 10_000
