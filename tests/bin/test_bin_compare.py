# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs compare` as a user calls it."""

import json
from pathlib import Path

import pytest

from wenet_hs.bin import compare as command
from wenet_hs.bin.command import run_command
from wenet_hs.manifest import Utterance, write_data_list, write_text

REF = {"ca1": "bon dia", "ca2": "adéu", "ky1": "салам", "ky2": "кыргыз"}
A = {"ca1": "bon die", "ca2": "adé", "ky1": "сала", "ky2": "кыргс"}
B = REF | {"ca1": "bon die"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, texts in (("ref", REF), ("a", A), ("b", B)):
        write_text(name, texts)
    utterances = [Utterance(key=key, wav="x", txt=txt, lang=key[:2], speaker=key) for key, txt in REF.items()]
    write_data_list("data.list", utterances)
    return tmp_path


def call(line: str) -> int:
    return run_command(command, line.split())


def test_prints_a_line_a_language_with_both_kinds_of_interval(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--metric cer --ref ref --hyp_a a --hyp_b b --data_list data.list --json c.json --name_a soft") == 0
    out = capsys.readouterr().out
    assert out.startswith("A: soft\nB: b\nCER|unit:grapheme|")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert rows["ca"][:4] == ["ca", "20.00", "10.00", "-10.00"]
    assert rows["macro"][2:5] == ["23.64", "5.00", "-18.64"]
    assert "of 4 utterances, and of 4 speakers" in out
    assert json.loads((folder / "c.json").read_text("utf-8"))["num_speakers"] == 4


def test_without_a_list_there_are_no_languages_and_no_speakers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--metric wer --ref ref --hyp_a a --hyp_b b --num_resamples 50") == 0
    out = capsys.readouterr().out
    assert "by speaker" not in out
    assert "all" in out and "paired bootstrap of 4 utterances; below 0" in out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--metric cer --ref ref --hyp_a a --hyp_b half", "B: no hypothesis for 2 utterances that the other decoded"),
        ("--metric cer --ref ref --hyp_a a --hyp_b more", "more: 1 hypothesis for utterances that ref lacks (xx)"),
        ("--metric cer --ref ref --hyp_a a --hyp_b none", "none: cannot be read (No such file"),
        ("--metric cer --ref ref --hyp_a a --hyp_b b --num_resamples 0", "--num_resamples 0: must be at least 1"),
    ],
)
def test_a_fault_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    write_text("half", {"ca1": "bon", "ca2": "adéu"})
    write_text("more", REF | {"xx": "?"})
    assert call(line) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
