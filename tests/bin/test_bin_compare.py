# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs compare` as a user calls it."""

import json
from dataclasses import replace
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
    assert (
        call("--metric cer --ref ref --hyp_a a --hyp_b b --data_list data.list --by lang --json c.json --name_a soft")
        == 0
    )
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
    assert out.splitlines()[4].split()[-1] == "p" and "by speaker" not in out.splitlines()[4]
    assert "all" in out and "paired bootstrap of 4 utterances; below 0" in out
    assert "\nnot by speaker: no --data_list; utterances of one speaker are similar" in out
    assert call("--metric wer --ref ref --hyp_a a --hyp_b b --by lang") == 2
    assert capsys.readouterr().err.startswith("--by lang: needs the languages; give --data_list the data.list of the")


def test_an_unknown_speaker_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    utterances = [Utterance(key=key, wav="x", txt=txt, lang="ca", speaker="s") for key, txt in REF.items()]
    write_data_list("half.list", [replace(utterances[0], speaker=None), *utterances[1:]])
    assert call("--metric cer --ref ref --hyp_a a --hyp_b b --data_list half.list --num_resamples 50") == 0
    assert "\nnot by speaker: no speaker for 1 utterance (ca1); utterances of one" in capsys.readouterr().out


def test_a_list_of_one_language_need_not_name_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_data_list("mono.list", [Utterance(key=key, wav="x", txt=txt, speaker=key) for key, txt in REF.items()])
    assert call("--metric cer --ref ref --hyp_a a --hyp_b b --data_list mono.list --num_resamples 50") == 0
    out = capsys.readouterr().out
    assert "lang:unspecified" in out and "of 4 utterances, and of 4 speakers" in out


def test_what_weakens_the_comparison_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    utterances = [Utterance(key=key, wav="x", txt=txt, lang=key[:2], speaker=key[:2]) for key, txt in REF.items()]
    write_data_list("one.list", [*utterances[:3], replace(utterances[3], speaker="ky0")])
    for name, texts in (("a", A), ("b", B)):
        write_text(name, {key: text for key, text in texts.items() if key != "ca2"})
    assert call("--metric cer --ref ref --hyp_a a --hyp_b b --data_list one.list --num_resamples 50") == 0
    out = capsys.readouterr().out
    assert "\ndecoded by neither, deletions for both: 1 utterance\n" in out
    assert out.endswith("\nfewer than 5 speakers, so no interval by speaker: ca, ky\n")
    assert next(line for line in out.splitlines() if line.startswith("ca")).split()[-2:] == ["n/a", "n/a"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--metric cer --ref ref --hyp_a a --hyp_b half", "B: no hypothesis for 2 utterances that the other decoded"),
        (
            "--metric cer --ref ref --hyp_a a --hyp_b more",
            "more: 1 hypothesis without a reference in ref (xx); give the --ref of both systems, or remove them\n",
        ),
        ("--metric cer --ref ref --hyp_a a --hyp_b empty", "empty: no hypotheses in it; decode again, or check"),
        ("--metric cer --ref ref --hyp_a a --hyp_b none", "none: cannot be read (No such file"),
        ("--metric cer --ref ref --hyp_a a --hyp_b b --num_resamples 0", "--num_resamples 0: must be at least 1"),
        ("--metric per --punctuation remove --ref ref --hyp_a a --hyp_b b", "per --punctuation remove: phones may"),
    ],
)
def test_a_fault_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    write_text("half", {"ca1": "bon", "ca2": "adéu"})
    write_text("more", REF | {"xx": "?"})
    write_text("empty", {})
    assert call(line) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
