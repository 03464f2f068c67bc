# SPDX-License-Identifier: Apache-2.0
"""tools/compute-cer.py: WeNet's command line and layout, right numbers."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/compute-cer.py"


def call(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "ref").write_text("клю_é été\nb groß\nc tʃ a\n", "utf-8")
    (folder / "hyp").write_text("клю_é ete\nb gross\n", "utf-8")
    command = [sys.executable, str(TOOL), *options, "ref", "hyp"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_letters_of_every_script_with_keys_whole_and_missing_counted(tmp_path: Path) -> None:
    done = call(tmp_path, "--char=1", "--v=1")
    assert done.returncode == 0
    assert "\nutt: клю_é\nWER: 66.67 % N=3 C=1 S=2 D=0 I=0\nlab: é t é\nrec: e t e\n" in done.stdout
    assert "\nOverall -> 70.00 % N=10 C=4 S=3 D=3 I=1\n" in done.stdout
    assert done.stderr == "hyp: 1 of 3 missing\n"


def test_units_between_spaces_stay_whole(tmp_path: Path) -> None:
    assert call(tmp_path, "--char=0", "--v=0").stdout == "Overall -> 100.00 % N=4 C=0 S=2 D=2 I=0\n\n"


@pytest.mark.parametrize("option", ["--cs=1", "--char=2"])
def test_an_unknown_switch_is_refused_and_not_ignored(option: str, tmp_path: Path) -> None:
    done = call(tmp_path, option)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: compute-cer.py")
