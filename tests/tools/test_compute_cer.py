# SPDX-License-Identifier: Apache-2.0
"""tools/compute-cer.py: WeNet's command line and layout, right numbers."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/compute-cer.py"


def call(folder: Path, *options: str, extra: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "ref").write_text("клю_é été\nb groß\nc tʃ a\n", "utf-8")
    (folder / "hyp").write_text("клю_é ete\nb gross\n" + extra, "utf-8")
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


def test_every_switch_of_wenets(tmp_path: Path) -> None:
    (tmp_path / "ig").write_text("-\nS\n", "utf-8")
    (tmp_path / "split").write_text("Tʃ t ʃ\nlonely\n", "utf-8")
    (tmp_path / "cluster").write_text("<VOWEL> É e a\n</VOWEL> <NONE> </NONE>", "utf-8")
    switches = "--cs=0 --v=2 --ig=ig --splitfile=split --cluster=cluster --rt=1 --maxw=2 --padding-symbol=underline"
    done = call(tmp_path, *switches.split(), extra="zz x\n")
    assert done.returncode == 0
    assert "\nlab(клю_é): é t\nrec(клю_é): e t\n\nlab(клю_é): é\nrec(клю_é): e\n\n" in done.stdout
    assert "utt: b\nWER: 25.00 % N=4 C=3 S=0 D=1 I=0\n" in done.stdout  # ß is no s, and stays
    assert "\nutt: c\nWER: 100.00 % N=3 C=0 S=0 D=3 I=0\n" in done.stdout
    assert "\nVOWEL -> 100.00 % N=3 C=0 S=2 D=1 I=0\nNONE -> 0.00 % N=0 C=0 S=0 D=0 I=0\n" in done.stdout
    assert done.stderr == "hyp: 1 of 3 missing\nhyp: 1 hypothesis without reference left out: zz\n"


def test_faults_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "open").write_text("<A> a b", "utf-8")
    (tmp_path / "bare").write_text("\na", "utf-8")
    for switch, message in {
        "--cluster=open": "open: cluster <A> has no end; write </A>\n",
        "--cluster=bare": "bare:2: a is in no cluster; write <NAME> units </NAME>\n",
        "--maxw=0": "--maxw 0: must be at least 1\n",
    }.items():
        done = call(tmp_path, switch)
        assert (done.returncode, done.stderr, done.stdout) == (2, message, "")


def test_switches_mean_what_they_mean_to_wenet(tmp_path: Path) -> None:
    """All but 0 is on, `--v` takes any whole number, and a padding may be written in capitals."""
    spelled = "--char=true --cs=TRUE --rt=2 --v=3 --padding-symbol=Underline"
    plain = "--char=1 --cs=1 --rt=1 --v=2 --padding-symbol=underline"
    done = call(tmp_path, *spelled.split())
    assert (done.returncode, done.stdout) == (0, call(tmp_path, *plain.split()).stdout)
    assert call(tmp_path, "--v=true").stdout == call(tmp_path, "--v=1").stdout
    assert call(tmp_path, "--v=0").stdout == "Overall -> 70.00 % N=10 C=4 S=3 D=3 I=1\n\n"


def test_hypotheses_of_another_test_are_named_by_their_file(tmp_path: Path) -> None:
    call(tmp_path)
    (tmp_path / "hyp").write_text("zz x\n", "utf-8")
    done = subprocess.run(
        [sys.executable, str(TOOL), "ref", "hyp"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    message = "hyp: no utterance of ref among its 1 hypothesis (zz); score it against its own reference\n"
    assert (done.returncode, done.stderr, done.stdout) == (2, message, "")


@pytest.mark.parametrize("option", ["--case=1", "--padding-symbol=tab"])
def test_an_unknown_switch_is_refused_and_not_ignored(option: str, tmp_path: Path) -> None:
    done = call(tmp_path, option)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: compute-cer.py")
