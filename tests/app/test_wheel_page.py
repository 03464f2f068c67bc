# SPDX-License-Identifier: Apache-2.0
"""A short way through the page of an installed wheel, in a Chromium: from ELAN files to a
transcript.

`.ci/wheel_page` makes its environment. The package there has no checkout beside it. Its PATH has
the programs of the environment only, so no bash.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Server, chromium, look, wait_for_job
from test_whole_way import (
    begin_training,
    fieldwork,
    go,
    make_lists,
    open_project,
    transcribe,
)

__all__ = ["fieldwork"]
pytestmark = pytest.mark.wheel
ROOT = Path(__file__).parents[2]


@pytest.fixture
def python() -> str:
    """The Python of the environment with the wheel."""
    path = os.environ.get("WENET_HS_WHEEL_PYTHON")
    assert path, "run it by `make wheel`"
    return path


@pytest.fixture
def environment(python: str) -> dict[str, str]:
    """The variables of the server: a PATH without bash, and nothing that names the checkout."""
    programs = str(Path(python).parent)
    assert shutil.which("bash", path=programs) is None
    kept = {name: value for name, value in os.environ.items() if name in ("LANG", "TMPDIR")}
    return {**kept, "PATH": programs, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def server(tmp_path: Path, python: str, environment: dict[str, str]) -> Iterator[Server]:
    server = Server(tmp_path, python, environment)
    yield server
    server.end()


def test_the_package_is_not_that_of_the_checkout(
    python: str,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    code = "import wenet_hs; print(wenet_hs.__file__)"
    done = subprocess.run(
        [python, "-P", "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not Path(done.stdout.strip()).is_relative_to(ROOT)


def test_from_elan_files_to_a_transcript(server: Server, fieldwork: Path) -> None:
    project = server.projects / "Field"
    with chromium() as page:
        open_project(page, server, "Field")
        make_lists(page, sorted(fieldwork.glob("REC_0[123].*")), "utterance@")
        go(page, "Train")
        page.get_by_label("Size of the model").select_option("tiny")
        page.get_by_role("button", name="Measure the expected time").click()
        wait_for_job(page, "time")
        page.get_by_text("expected time of a training: ").first.wait_for()
        look(page, "measured")
        begin_training(page, "0.3", Size_of_the_model="tiny")
        wait_for_job(page, "train")
        look(page, "training")
        go(page, "Results")
        page.get_by_text("of the test set are wrong").wait_for()
        transcribe(page, [fieldwork / "REC_04.wav", fieldwork / "REC_04.eaf"], "exp/softmax")
        page.get_by_role("link", name="REC_04", exact=True).click()
        page.get_by_label("Text of segment 1", exact=True).wait_for()
    options = json.loads((project / "exp/options.json").read_text("utf-8"))["options"]
    assert (options["config"], options["data"]) == ("conf/own.yaml", "../data")
    log = (project / ".app/jobs/0003-train/log").read_text("utf-8")
    assert re.findall(r" stage (\d):", log) == ["1", "2", "3", "4", "5", "6", "7", "8"]
