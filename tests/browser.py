# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium for tests of pages."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


class Page:
    """One page of a browser, driven over its debugging pipe: messages are JSON between zero bytes."""

    def __init__(self, browser: str, profile: Path) -> None:
        self.console: list[str] = []
        """Errors, warnings and exceptions that the page caused, requests that it was refused
        included.
        """
        self._number, self._buffer, self._session, self._loaded = 0, b"", "", False
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        flags += [
            "--remote-debugging-pipe",
            "--no-first-run",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        # The shell gives the browser the two ends of the pipes as its file descriptors 3 and 4.
        start = [
            "bash",
            "-c",
            'exec 3<&"$0" 4>&"$1"; shift; exec "$@"',
            str(to_browser),
            str(from_browser),
        ]
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
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def resize(self, width: int, height: int = 900, *, scheme: str = "light") -> None:
        """A window of so many CSS pixels, in a light or dark theme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._in, 1 << 16)
            assert read, "the browser is gone"
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        method, params = message.get("method"), message.get("params", {})
        self._loaded |= method == "Page.loadEventFired"
        level = (
            params.get("type")
            if method == "Runtime.consoleAPICalled"
            else params.get("entry", {}).get("level")
        )
        if method == "Runtime.exceptionThrown" or level in ("error", "warning", "assert"):
            self.console.append(str(params))
        return message


def find_browser() -> str:
    """The path of a Chromium; the test is skipped without one."""
    browser = os.environ.get("WENET_HS_BROWSER") or next(
        filter(None, map(shutil.which, NAMES)), None
    )
    if browser is None:
        pytest.skip("no Chromium on the PATH; WENET_HS_BROWSER can name one")
    return browser
