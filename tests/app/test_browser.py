# SPDX-License-Identifier: Apache-2.0
"""The way from dropped ELAN files to checked lists in a Chromium, by keyboard where a user has one."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from app_client import write_audio, write_elan
from browser import find_browser

pytestmark = pytest.mark.browser
WORDS = [
    "ana",
    "bela",
    "cobo",
    "dina",
    "elu",
    "fabi",
    "gora",
    "hilo",
    "inka",
    "juma",
    "kelo",
    "lami",
    "mora",
    "nelu",
]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address that the command prints; the home folder is `tmp_path`."""
    command = [
        sys.executable,
        "-m",
        "wenet_hs.bin.main",
        "app",
        "--dir",
        str(tmp_path / "projects"),
        "--port",
        "0",
    ]
    environment = {**os.environ, "HOME": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        server.stdout.readline()
        yield server.stdout.readline().strip()
        server.send_signal(signal.SIGINT)
        assert server.wait(20) in (0, 130)


def write_field_corpus(folder: Path) -> list[Path]:
    """Three recordings of six seconds with noise, each with 50 annotations in ELAN."""
    paths = []
    for number in range(3):
        name = folder / f"REC_{number}"
        texts = [
            f"{WORDS[n % 14].title()} {WORDS[(n * 5 + number) % 14]} {WORDS[n // 14 + number]}."
            for n in range(50)
        ]
        texts[7] += " 7"  # a finding
        write_audio(name.with_suffix(".wav"), 6.0)
        write_elan(
            name.with_suffix(".eaf"),
            {"utterance@Ana": texts, "comments": ["[dog barks]"]},
            step_ms=110,
        )
        paths += [name.with_suffix(".wav"), name.with_suffix(".eaf")]
    return paths


def test_dropped_files_become_checked_lists(address: str, tmp_path: Path) -> None:
    from playwright import sync_api as playwright

    files = write_field_corpus(tmp_path / "fieldwork")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        page, faults = browser.new_page(), list[str]()
        page.on(
            "console",
            lambda message: (
                faults.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(address)
        assert "token" not in page.url
        page.get_by_label("Name").fill("Field")
        page.get_by_label("Name").press("Enter")
        page.wait_for_url("**/recordings")
        (tmp_path / "fieldwork/REC_0.pfsx").write_text("settings of ELAN")
        page.set_input_files(
            "input[type=file] >> nth=0", [tmp_path / "fieldwork/REC_0.pfsx", files[0]]
        )
        status = page.locator(".drop [role=status]")
        playwright.expect(status).to_contain_text("1 of 2 files were not sent: file 'REC_0.pfsx'")
        faults.clear()  # the answer 400
        page.set_input_files(
            "input[type=file] >> nth=1", tmp_path / "fieldwork"
        )  # the folder, with one that is there
        page.wait_for_url("**path=**")
        assert sorted(one.suffix for one in files) == sorted(
            one.suffix for one in (tmp_path / "projects/Field/recordings").iterdir()
        )
        page.get_by_label("Language").press_sequentially("Mbos")
        page.locator("#languages option[value=Mbosi]").wait_for(
            state="attached"
        )  # suggested while typing
        page.get_by_label("Language").fill("Mbosi")
        page.get_by_label("Language").press("Enter")
        page.wait_for_url("**lang=Mbosi*")
        assert page.get_by_text("Language: Mbosi, mdw.").is_visible()
        assert (
            page.get_by_label("utterance@Ana").is_checked()
            and not page.get_by_label("comments").is_checked()
        )
        assert "Bela fabi ana." in page.get_by_role("row", name="utterance@Ana").inner_text()
        page.get_by_label("Stop with less training speech").fill("0")
        playwright.expect(page.locator("form .command code")).to_contain_text("--min_minutes 0")
        assert re.search(
            r"--elan \S+ --lang mdw --prepare --tier=utterance@Ana ",
            page.text_content("form .command code"),
        )
        page.get_by_label("Language").fill("Mbosi-xq")
        page.get_by_role("button", name="Make the lists").click()
        playwright.expect(page.locator("form [role=alert]")).to_contain_text(
            "Mbosi-xq"
        )  # refused: all choices stay
        assert page.get_by_label("Stop with less training speech").input_value() == "0"
        faults.clear()
        page.get_by_label("Language").fill("Mbosi")
        page.get_by_role("button", name="Make the lists").focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/check")
        page.get_by_text("Lists 0001: done").wait_for(timeout=120_000)
        assert page.get_by_role("heading", name="Findings").is_visible()
        page.get_by_role("link", name="digits").click()
        page.locator("article .play").first.click()
        playwright.expect(page.locator("article .play").first).to_have_attribute(
            "aria-pressed", "true"
        )
        for width in (1280, 480):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.get_by_role("button", name="Exclude").first.click()
        page.get_by_text("Excluded utterances: 1").wait_for()
        assert faults == []
        browser.close()
    assert len((tmp_path / "projects/Field/data/exclude.txt").read_text().split()) == 1
