# SPDX-License-Identifier: Apache-2.0
"""The command `wenet-hs app` and a Chromium with its page; every view is checked where a test looks
at it.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from browser import find_browser
from waiting import within

from wenet_hs.app.pages import text

AXE = Path(__file__).with_name("node_modules") / "axe-core/axe.min.js"
"""`npm ci` puts it there (`make browser`)."""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


class Server:
    """The command in a process of its own; the home folder of its user is `home`.

    `python`: of the environment whose package runs; `environment`: variables instead of those of
    this process.
    """

    def __init__(
        self,
        home: Path,
        python: str = sys.executable,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.home, self.projects = home, home / "projects"
        self._python = python
        self._environment = environment
        self.start()

    def start(self) -> None:
        """Start it, and wait for the address with the token."""
        command = [
            self._python,
            "-P",
            "-m",
            "wenet_hs.bin.main",
            "app",
            "--dir",
            str(self.projects),
            "--port",
            "0",
        ]
        environment = {**self._environment, "HOME": str(self.home)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        self.address = ""
        while not self.address.startswith("http"):
            line = self.process.stdout.readline()
            assert line, "the server ended"
            self.address = line.strip()

    def kill(self) -> None:
        """End it as a power failure does."""
        self.process.kill()
        self.process.communicate()

    def end(self) -> None:
        """End it as its user does."""
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=20)
        assert self.process.returncode in (0, 130)


@contextmanager
def chromium(*flags: str, **options: Any) -> Iterator[Any]:
    """A page of Playwright, which must end without an error or a warning in its console."""
    from playwright import sync_api as playwright

    quiet = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
    ]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_browser(), args=[*quiet, *flags])
        page, faults = browser.new_page(accept_downloads=True, **options), list[str]()
        page.on(
            "console",
            lambda one: faults.append(one.text) if one.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: faults.append(str(error)))
        yield page
        assert [one for one in faults if "ERR_CONNECTION_REFUSED" not in one] == [], (
            faults
        )  # tests kill the server
        browser.close()


WITHOUT_TEST = """() => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), folder = /\\/\\S*\\/test_from_\\w+/g;
    while (walker.nextNode()) walker.currentNode.data = walker.currentNode.data.replace(folder, "/home/ana");
}"""


def look(page: Any, name: str, heading: str = "") -> None:
    """Check a view: nothing is wider than the window, and axe-core finds no violation of WCAG 2.2
    AA.

    With WENET_HS_SCREENSHOTS=FOLDER its pictures are FOLDER/NAME-WIDTH.png, from the top or from a
    heading on. They show /home/ana instead of the folder of the test.
    """
    assert AXE.is_file(), "axe-core is missing: npm ci --prefix tests/app"
    for width, scheme in ((1280, "light"), (1280, "dark"), (480, "light")):
        page.set_viewport_size({"width": width, "height": 1000})
        page.emulate_media(color_scheme=scheme)
        fits = partial(page.evaluate, "document.documentElement.scrollWidth <= innerWidth")
        assert within(5, fits), (
            name,
            width,
        )  # Playwright's own waiting is refused by the policy of the page
        page.evaluate(AXE.read_text("utf-8"))
        found = page.evaluate("rules => axe.run({ runOnly: rules })", RULES)
        wrong = [
            (one["id"], one["help"], one["nodes"][0]["html"][:200]) for one in found["violations"]
        ]
        assert wrong == [], (name, width, scheme, wrong)
        if (folder := os.environ.get("WENET_HS_SCREENSHOTS")) and scheme == "light":
            Path(folder).mkdir(parents=True, exist_ok=True)
            top = (
                page.get_by_role("heading", name=heading, exact=True)
                if heading
                else page.locator("body")
            )
            page.evaluate(WITHOUT_TEST)
            top.first.evaluate("one => one.scrollIntoView()")
            page.screenshot(path=f"{folder}/{name}-{width}.png")
    page.set_viewport_size({"width": 1280, "height": 800})


def wait_for_job(page: Any, kind: str, seconds: float = 240) -> None:
    """Wait until the newest job of this kind is done."""
    state = re.compile(rf"{text(f'job_{kind}')} \d{{4}}: (done|failed|stopped|interrupted)")
    heading = page.get_by_text(state)
    heading.wait_for(timeout=1000 * seconds)
    assert "done" in heading.inner_text(), page.locator(".job").inner_text()
