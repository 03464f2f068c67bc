# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs score` as a user calls it: what it prints and writes, and one line for each fault."""

import importlib.util
import json
from dataclasses import replace
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
    utterances = [Utterance(key=key, wav="x", txt=txt, lang=key[:2]) for key, txt in REF.items()]
    write_data_list("data.list", utterances)
    write_data_list("people.list", [replace(utterance, speaker=utterance.key[-1]) for utterance in utterances])
    return tmp_path


def call(line: str) -> int:
    return run_command(command, line.split())


def test_prints_a_line_a_language_and_writes_what_is_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--data_list data.list --by lang --json out/score.json --align align.txt --name demo"
    assert call(f"--metric cer --ref ref --hyp hyp {options}") == 0
    out = capsys.readouterr().out
    assert out.startswith("demo\nCER|unit:grapheme|spaces:ignored|case:kept|punct:kept|norm:nfc|lang:ca,ky|v:")
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
    assert "WER|unit:word|case:kept|punct:kept|norm:nfc|lang:ca,ky|" in out
    assert [line.split()[2] for line in out.splitlines() if line.startswith(("ca", "ky"))] == ["3", "2"]


def test_a_wenet_list_without_languages_gives_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_data_list("wenet.list", [Utterance(key=key, wav="x", txt=txt) for key, txt in REF.items()])
    assert call("--metric cer --ref wenet.list --hyp hyp") == 0
    assert "lang:unspecified" in capsys.readouterr().out
    assert call("--metric cer --ref wenet.list --hyp hyp --by lang") == 2
    assert "wenet.list: no language for 4 utterances of the reference (ca1, ca2, ky1, ky2)" in capsys.readouterr().err


def test_a_list_of_one_language_need_not_name_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_data_list("mono.list", [Utterance(key=key, wav="x", txt=txt, speaker=key[-1]) for key, txt in REF.items()])
    assert call("--metric cer --ref ref --hyp hyp --data_list mono.list --by speaker") == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert "lang:unspecified" in out and rows["1"][:7] == ["1", "2", "11", "1", "0", "0", "9.09"]
    assert call("--metric cer --ref ref --hyp hyp --data_list mono.list --by lang") == 2
    assert "mono.list: no language for 4 utterances of the reference (ca1, ca2, ky1, ky2)" in capsys.readouterr().err


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
        ("--hyp others", "others: no utterance of ref among its 1 hypothesis (zz); score it against its own reference"),
        ("--hyp twice", "twice:2: utterance 'ca1' occurs twice; keep one of the two lines"),
        ("--hyp nowhere", "nowhere: cannot be read (No such file or directory); check the path"),
        ("--hyp empty", "empty: no hypotheses in it; decode again, or check that it is the right file"),
        (
            "--hyp hyps.jsonl",
            "hyps.jsonl:1: JSON lines, not `key transcript` lines; give the file `text` of the same folder",
        ),
        ("--ref empty", "empty: no utterances in it; check that it is the reference"),
        ("--by lang", "--by lang: needs the languages; give --data_list the data.list of the reference"),
        (
            "--data_list short.list",
            "short.list: no language for 3 utterances of the reference (ca2, ky1, ky2); give --data_list",
        ),
        ("--num_resamples -1", "--num_resamples -1: must be at least 0"),
        ("--by speaker", "--by speaker: needs the speakers; give --data_list the data.list of the reference"),
        (
            "--data_list data.list --by lang speaker",
            "data.list: no speaker for 4 utterances of the reference (ca1, ca2, ky1, ky2); complete the list",
        ),
        ("--confusions 0", "--confusions 0: must be at least 1"),
        ("--features", "--features: only phones have features, --metric is cer; use --metric per"),
        ("--metric per --punctuation remove", "--metric per --punctuation remove: phones may contain"),
        ("--metric per --normalize nfc+lower", "--metric per --normalize nfc+lower: two phones may differ only"),
    ],
)
def test_faults_are_one_line(options: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text("others", {"zz": "x"})
    Path("twice").write_text("ca1 a\nca1 b\n")
    Path("empty").write_text("\n")
    Path("hyps.jsonl").write_text('{"key": "ca1", "hyps": []}\n{"key": "ca2", "hyps": []}\n')
    write_data_list("short.list", [Utterance(key="ca1", wav="x", txt="", lang="ca")])
    assert call(f"--metric cer --ref ref --hyp hyp {options}") == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_language_without_utterances_or_reference_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text("ref", {"ca1": "bon dia", "ca2": "", "ky1": ""})
    write_text("hyp", {"ca1": "bon die", "ca2": "a", "ky1": "б"})
    utterances = [Utterance(key=key, wav="x", txt="", lang=key[:2]) for key in ("ca1", "ca2", "ky1", "tr1")]
    write_data_list("more.list", utterances)
    assert call("--metric cer --ref ref --hyp hyp --data_list more.list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:7] for line in lines if line.startswith(("ca", "ky"))] == [
        ["2", "6", "1", "0", "1", "33.33"],
        ["1", "0", "0", "0", "1", "n/a"],
    ]
    assert lines[-2:] == [
        "no reference units, so no rate, and not in the macro average: ky",
        "languages of more.list without an utterance in ref: tr",
    ]


def test_extra_hypotheses_are_left_out_and_a_fault_unless_allowed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text("extra", HYP | {"zz": "x"})
    assert call("--metric cer --ref ref --hyp extra --allow_extra") == 0
    allowed = capsys.readouterr()
    assert "1 hypothesis without reference left out: zz\n" in allowed.out and not allowed.err
    assert call("--metric cer --ref ref --hyp extra --json score.json") == 2
    refused = capsys.readouterr()
    assert refused.out == allowed.out
    assert refused.err.startswith("extra: 1 hypothesis without a reference in ref (zz); score it against its own")
    assert json.loads(Path("score.json").read_text("utf-8"))["extra"] == ["zz"]
    assert call("--metric cer --ref ref --hyp hyp") == 0
    assert refused.out == capsys.readouterr().out.rstrip("\n") + "\n1 hypothesis without reference left out: zz\n"


def test_a_table_for_each_grouping(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--metric cer --ref people.list --hyp hyp --by speaker --by length --json score.json") == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert "language" not in rows
    assert rows["1"][:7] == ["1", "2", "11", "1", "0", "0", "9.09"]
    assert rows["1-5"][:7] == ["1-5", "2", "9", "0", "0", "0", "0.00"]
    assert list(json.loads((folder / "score.json").read_text("utf-8"))["by"]) == ["speaker", "length"]


def test_confusions_and_alignments_at_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--metric cer --ref ref --hyp hyp --confusions 2 --align -") == 0
    out = capsys.readouterr().out
    assert out.startswith("ky2  all  CER 33.33 %  N=6 S=1 D=1 I=0\nref: к ы р г ы з\nhyp: к ы р г")
    assert "\n2 utterances without an error not shown\n" in out
    assert "\nmost frequent of 3 errors\nerror  ref  hyp  count  of errors  of the unit\n" in out
    assert "\033" not in out and not Path("-").exists()


def test_punctuation_by_language(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text("ref", {"ca1": "«L’aigua», col·legi."})
    write_text("hyp", {"ca1": "L'aigua col·legi"})
    assert call("--metric wer --ref ref --hyp hyp --data_list data.list --punctuation remove") == 0
    out = capsys.readouterr().out
    assert "WER|unit:word|case:kept|punct:removed|norm:nfc|lang:ca|" in out
    micro = next(line for line in out.splitlines() if line.startswith("micro"))
    assert micro.split()[3:8] == ["2", "0", "0", "0", "0.00"]


@pytest.mark.skipif(importlib.util.find_spec("panphon") is None, reason="needs the extra trees")
def test_features_beside_phones(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text("ref", {"a": "p a"})
    write_text("hyp", {"a": "b a"})
    assert call("--metric per --ref ref --hyp hyp --features") == 0
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert (last[7], last[9]) == ("50.00", "0.81")


def test_without_panphon_features_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert call("--metric per --ref ref --hyp hyp --features") == 2
    assert capsys.readouterr().err == '--features: panphon is not installed; run pip install "wenet_hs[trees]"\n'
