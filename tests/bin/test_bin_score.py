# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs score` as a user calls it: what it prints and writes, and one line for each fault."""

import json
from pathlib import Path

import pytest

from wenet_hs.bin import score as command
from wenet_hs.bin.command import run_command
from wenet_hs.manifest import Utterance, write_data_list, write_text

REF = {"ca1": "bon dia", "ca2": "adéu", "ky1": "салам", "ky2": "кыргыз"}
HYP = {"ca1": "bon die", "ca2": "adéu", "ky1": "салам", "ky2": "кыргс"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_text("ref", REF)
    write_text("hyp", HYP)
    write_data_list("data.list", [Utterance(key=key, wav="x", txt=txt, lang=key[:2]) for key, txt in REF.items()])
    return tmp_path


def call(line: str) -> int:
    return run_command(command, line.split())


def test_prints_a_line_a_language_and_writes_what_is_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--data_list data.list --by lang --json out/score.json --align align.txt --name demo"
    assert call(f"--metric cer --ref ref --hyp hyp {options}") == 0
    out = capsys.readouterr().out
    assert out.startswith("demo\nCER|unit:grapheme|spaces:ignored|norm:nfc|lang:ca,ky|v:")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert rows["ca"][:7] == ["ca", "2", "10", "1", "0", "0", "10.00"]
    assert rows["ky"][:7] == ["ky", "2", "11", "1", "1", "0", "18.18"]
    assert rows["macro"][2] == "14.09"
    assert rows["micro"][:8] == ["micro", "average", "4", "21", "2", "1", "0", "14.29"]
    assert json.loads((folder / "out/score.json").read_text("utf-8"))["name"] == "demo"
    assert "ref: с а л а м\nhyp: с а л а м\n" in (folder / "align.txt").read_text("utf-8")


def test_a_data_list_as_reference_brings_its_languages(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--metric wer --ref data.list --hyp hyp --by lang") == 0
    out = capsys.readouterr().out
    assert "WER|unit:word|norm:nfc|lang:ca,ky|" in out
    assert [line.split()[2] for line in out.splitlines() if line.startswith(("ca", "ky"))] == ["3", "2"]


def test_a_wenet_list_without_languages_gives_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_data_list("wenet.list", [Utterance(key=key, wav="x", txt=txt) for key, txt in REF.items()])
    assert call("--metric cer --ref wenet.list --hyp hyp") == 0
    assert "lang:unspecified" in capsys.readouterr().out
    assert call("--metric cer --ref wenet.list --hyp hyp --by lang") == 2
    assert "wenet.list: no language for 4 utterances of wenet.list (ca1, ca2, ky1, ky2)" in capsys.readouterr().err


def test_spaces_count_when_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--metric cer --ref ref --hyp hyp --spaces count --num_resamples 0") == 0
    out = capsys.readouterr().out
    assert "spaces:counted" in out
    assert out.splitlines()[-1].split()[3] == "22"


def test_missing_hypotheses_are_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text("hyp", {"ca1": "bon dia"})
    assert call("--metric per --ref ref --hyp hyp") == 0
    assert "scored 1 of 4 utterances; 3 missing, counted as deletions: ca2, ky1, ky2\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--hyp extra", r"extra: 1 hypothesis for utterances that ref lacks (zz); score it against its own reference"),
        ("--hyp twice", "twice:2: utterance 'ca1' occurs twice; keep one of the two lines"),
        ("--hyp nowhere", "nowhere: cannot be read (No such file or directory); check the path"),
        ("--ref empty", "empty: no utterances in it; check that it is the reference"),
        ("--by lang", "--by lang: needs the languages; give --data_list the data.list of the reference"),
        ("--data_list short.list", "short.list: no language for 3 utterances of ref (ca2, ky1, ky2); give --data_list"),
        ("--num_resamples -1", "--num_resamples -1: must be at least 0"),
        ("--metric per --normalize nfc+lower", "--metric per --normalize nfc+lower: phones may differ in case alone"),
    ],
)
def test_faults_are_one_line(options: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text("extra", HYP | {"zz": "x"})
    Path("twice").write_text("ca1 a\nca1 b\n")
    Path("empty").write_text("\n")
    write_data_list("short.list", [Utterance(key="ca1", wav="x", txt="", lang="ca")])
    assert call(f"--metric cer --ref ref --hyp hyp {options}") == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_extra_hypotheses_may_be_allowed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text("extra", HYP | {"zz": "x"})
    assert call("--metric cer --ref ref --hyp extra --allow_extra") == 0
    assert "1 hypothesis without reference left out: zz\n" in capsys.readouterr().out
