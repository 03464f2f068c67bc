# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs compare`: the printed table, the notes below it, and one line per fault."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Capsys, error_line

from wenet_hs.bin import compare as command
from wenet_hs.bin.main import run_command
from wenet_hs.manifest import Utterance, write_data_list, write_text

REF = {"ca1": "bon dia", "ca2": "adéu", "ky1": "салам", "ky2": "кыргыз"}
A = {"ca1": "bon die", "ca2": "adé", "ky1": "сала", "ky2": "кыргс"}
B = REF | {"ca1": "bon die"}
UTTERANCES = [Utterance(key=key, wav="x", txt=txt, lang=key[:2], speaker=key) for key, txt in REF.items()]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, texts in (("ref", REF), ("a", A), ("b", B)):
        write_text(name, texts)
    write_data_list("data.list", UTTERANCES)
    return tmp_path


def call(line: str) -> int:
    return run_command(command, f"--ref ref --hyp_a a --num_resamples 50 {line}".split())


def test_one_row_per_language_with_both_kinds_of_interval(folder: Path, capsys: Capsys) -> None:
    assert call("--metric cer --hyp_b b --data_list data.list --by lang --json c.json --name_a soft") == 0
    out = capsys.readouterr().out
    assert out.startswith("A: soft\nB: b\nCER|unit:grapheme|")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert rows["ca"][:4] == ["ca", "20.00", "10.00", "-10.00"]
    assert rows["macro"][2:5] == ["23.64", "5.00", "-18.64"]
    assert "of 4 utterances, and of 4 speakers" in out
    assert json.loads((folder / "c.json").read_text("utf-8"))["num_speakers"] == 4


def test_without_a_list_there_are_no_languages_and_no_speakers(capsys: Capsys) -> None:
    assert call("--metric wer --hyp_b b") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[4].split()[-1] == "p" and "by speaker" not in out.splitlines()[4]
    assert "all" in out and "paired bootstrap of 4 utterances; below 0" in out
    assert "\nnot by speaker: no --data_list; utterances of one speaker are similar" in out


@pytest.mark.parametrize(
    ("utterances", "notes"),
    [
        (
            [replace(u, lang="ca", speaker=u.speaker if u.key != "ca1" else None) for u in UTTERANCES],
            ["\nnot by speaker: no speaker for 1 utterance (ca1); utterances of one"],
        ),
        ([replace(u, lang=None) for u in UTTERANCES], ["lang:unspecified", "of 4 utterances, and of 4 speakers"]),
        (
            [replace(u, speaker=u.key[:2] if u.key != "ky2" else "ky0") for u in UTTERANCES],
            ["  n/a", "\nfewer than 5 speakers, so no interval by speaker: ca, ky\n"],
        ),
    ],
)
def test_notes_about_languages_and_speakers(utterances: list[Utterance], notes: list[str], capsys: Capsys) -> None:
    write_data_list("other.list", utterances)
    assert call("--metric cer --hyp_b b --data_list other.list") == 0
    out = capsys.readouterr().out
    assert all(note in out for note in notes), out


def test_an_utterance_that_neither_decoded(capsys: Capsys) -> None:
    for name, texts in (("a", A), ("b", B)):
        write_text(name, {key: text for key, text in texts.items() if key != "ca2"})
    assert call("--metric cer --hyp_b b") == 0
    assert "\ndecoded by neither, deletions for both: 1 utterance\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--metric cer --hyp_b half", "B: no hypothesis for 2 utterances that the other decoded"),
        ("--metric cer --hyp_b more", "more: 1 hypothesis without a reference in ref (xx); remove them, or give"),
        ("--metric cer --hyp_b empty", "empty: contains no hypotheses; decode again, or check"),
        ("--metric cer --hyp_b none", "none: cannot be read (No such file"),
        ("--metric cer --hyp_b b --num_resamples 0", "--num_resamples 0: must be at least 1"),
        ("--metric per --punctuation remove --hyp_b b", "per --punctuation remove: phones may"),
        ("--metric wer --hyp_b b --by lang", "--by lang: needs the languages; give --data_list the data.list of the"),
    ],
)
def test_a_fault_is_one_line(capsys: Capsys, line: str, message: str) -> None:
    write_text("half", {"ca1": "bon", "ca2": "adéu"})
    write_text("more", REF | {"xx": "?"})
    write_text("empty", {})
    assert message in error_line(call(line), capsys)
