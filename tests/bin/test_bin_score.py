# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs score`: what it prints and writes, and one line per fault."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Capsys, error_line

from wenet_hs.bin import score as command
from wenet_hs.bin.main import run_command
from wenet_hs.manifest import Utterance, write_data_list, write_text

REF = {"ca1": "bon dia", "ca2": "adéu", "ky1": "салам", "ky2": "кыргыз"}
HYP = {"ca1": "bon die", "ca2": "adéu", "ky1": "салам", "ky2": "кыргс"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_text("ref", REF)
    write_text("hyp", HYP)
    utterances = [Utterance(key=key, wav="x", txt=txt, lang=key[:2]) for key, txt in REF.items()]
    write_data_list("data.list", utterances)
    write_data_list("people.list", [replace(utterance, speaker=utterance.key[-1]) for utterance in utterances])
    write_data_list("mono.list", [replace(utterance, lang=None, speaker=utterance.key[-1]) for utterance in utterances])
    return tmp_path


def call(line: str) -> int:
    return run_command(command, f"--num_resamples 100 {line}".split())


def score_rows(line: str, capsys: Capsys) -> tuple[str, dict[str, list[str]]]:
    """What a call without an error prints: the text, and its lines by their first word."""
    assert call(line) == 0
    out = capsys.readouterr().out
    return out, {words[0]: words for words in map(str.split, out.splitlines()) if words}


def test_one_row_per_language_and_the_files(folder: Path, capsys: Capsys) -> None:
    options = "--data_list data.list --by lang --json out/score.json --align align.txt --name demo"
    out, rows = score_rows(f"--metric cer --ref ref --hyp hyp {options}", capsys)
    assert out.startswith("demo\nCER|unit:grapheme|spaces:ignored|case:kept|punct:kept|norm:nfc|lang:ca,ky|v:")
    assert rows["ca"][:7] == ["ca", "2", "10", "1", "0", "0", "10.00"]
    assert rows["ky"][:7] == ["ky", "2", "11", "1", "1", "0", "18.18"]
    assert rows["macro"][2] == "14.09"
    assert rows["micro"][:8] == ["micro", "average", "4", "21", "2", "1", "0", "14.29"]
    assert json.loads((folder / "out/score.json").read_text("utf-8"))["name"] == "demo"
    assert "ref: с а л а м\nhyp: с а л а м\n" in (folder / "align.txt").read_text("utf-8")


def test_a_data_list_as_reference_has_the_languages(capsys: Capsys) -> None:
    out, rows = score_rows("--metric wer --ref data.list --hyp hyp --by lang", capsys)
    assert "WER|unit:word|case:kept|punct:kept|norm:nfc|lang:ca,ky|" in out
    assert (rows["ca"][2], rows["ky"][2]) == ("3", "2")


@pytest.mark.parametrize("source", ["--ref mono.list", "--ref ref --data_list mono.list"])
def test_a_list_without_languages(source: str, capsys: Capsys) -> None:
    out, rows = score_rows(f"--metric cer {source} --hyp hyp --by speaker", capsys)
    assert "lang:unspecified" in out and rows["1"][:7] == ["1", "2", "11", "1", "0", "0", "9.09"]
    found = error_line(call(f"--metric cer {source} --hyp hyp --by lang"), capsys)
    assert "mono.list: no language for 4 utterances of the reference (ca1, ca2, ky1, ky2)" in found


def test_spaces_count_when_asked_and_missing_hypotheses_are_deletions(capsys: Capsys) -> None:
    out, _ = score_rows("--metric cer --ref ref --hyp hyp --spaces count --num_resamples 0", capsys)
    assert "spaces:counted" in out and out.splitlines()[-1].split()[3] == "22"
    write_text("hyp", {"ca1": "bon dia"})
    out, _ = score_rows("--metric per --ref ref --hyp hyp", capsys)
    assert "scored 1 of 4 utterances; 3 missing, counted as deletions: ca2, ky1, ky2\n" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--hyp others", "others: no utterance of ref among its 1 hypothesis (zz); score it against its own reference"),
        ("--hyp twice", "twice:2: utterance 'ca1' occurs twice; keep one of the two lines"),
        ("--hyp nowhere", "nowhere: cannot be read (No such file or directory); check the path"),
        ("--hyp empty", "empty: contains no hypotheses; decode again, or check that it is the right file"),
        ("--hyp hyps.jsonl", "hyps.jsonl:1: JSON lines, not `key transcript` lines; give the file `text` of the same"),
        ("--ref empty", "empty: contains no utterances; check that it is the reference"),
        ("--by lang", "--by lang: needs the languages; give --data_list the data.list of the reference"),
        ("--data_list short.list", "short.list: no language for 3 utterances of the reference (ca2, ky1, ky2); comp"),
        ("--num_resamples -1", "--num_resamples -1: must be at least 0"),
        ("--by speaker", "--by speaker: needs the speakers; give --data_list the data.list of the reference"),
        ("--data_list data.list --by speaker", "data.list: no speaker for 4 utterances of the reference (ca1, ca2, ky"),
        ("--confusions 0", "--confusions 0: must be at least 1"),
        ("--features", "--features: only phones have features, --metric is cer; use --metric per"),
        ("--metric per --punctuation remove", "--metric per --punctuation remove: phones may contain"),
        ("--metric per --normalize nfc+lower", "--metric per --normalize nfc+lower: two phones may differ only"),
    ],
)
def test_a_fault_is_one_line(options: str, message: str, capsys: Capsys) -> None:
    write_text("others", {"zz": "x"})
    Path("twice").write_text("ca1 a\nca1 b\n")
    Path("empty").write_text("\n")
    Path("hyps.jsonl").write_text('{"key": "ca1", "hyps": []}\n{"key": "ca2", "hyps": []}\n')
    write_data_list("short.list", [Utterance(key="ca1", wav="x", txt="", lang="ca")])
    assert error_line(call(f"--metric cer --ref ref --hyp hyp {options}"), capsys).startswith(message)


def test_languages_without_utterances_or_reference_units(capsys: Capsys) -> None:
    write_text("ref", {"ca1": "bon dia", "ca2": "", "ky1": ""})
    write_text("hyp", {"ca1": "bon die", "ca2": "a", "ky1": "б"})
    utterances = [Utterance(key=key, wav="x", txt="", lang=key[:2]) for key in ("ca1", "ca2", "ky1", "tr1")]
    write_data_list("more.list", utterances)
    out, rows = score_rows("--metric cer --ref ref --hyp hyp --data_list more.list", capsys)
    assert rows["ca"][1:7] == ["2", "6", "1", "0", "1", "33.33"]
    assert rows["ky"][1:7] == ["1", "0", "0", "0", "1", "n/a"]
    assert out.splitlines()[-2:] == [
        "no reference units, so no rate, and not in the macro average: ky",
        "languages of more.list without an utterance in ref: tr",
    ]


def test_hypotheses_without_a_reference_are_not_counted_and_an_error_unless_allowed(capsys: Capsys) -> None:
    write_text("extra", HYP | {"zz": "x"})
    allowed, _ = score_rows("--metric cer --ref ref --hyp extra --allow_extra", capsys)
    assert "1 hypothesis without reference left out: zz\n" in allowed
    assert call("--metric cer --ref ref --hyp extra --json score.json") == 2
    refused = capsys.readouterr()
    assert refused.out == allowed
    assert refused.err.startswith("extra: 1 hypothesis without a reference in ref (zz); remove them, or give")
    assert json.loads(Path("score.json").read_text("utf-8"))["extra"] == ["zz"]
    plain, _ = score_rows("--metric cer --ref ref --hyp hyp", capsys)
    assert allowed == plain.rstrip("\n") + "\n1 hypothesis without reference left out: zz\n"


def test_a_table_per_grouping(folder: Path, capsys: Capsys) -> None:
    _, rows = score_rows("--metric cer --ref people.list --hyp hyp --by speaker --by length --json score.json", capsys)
    assert "language" not in rows
    assert rows["1"][:7] == ["1", "2", "11", "1", "0", "0", "9.09"]
    assert rows["1-5"][:7] == ["1-5", "2", "9", "0", "0", "0", "0.00"]
    assert list(json.loads((folder / "score.json").read_text("utf-8"))["by"]) == ["speaker", "length"]


def test_confusions_and_alignments_on_the_terminal(capsys: Capsys) -> None:
    out, _ = score_rows("--metric cer --ref ref --hyp hyp --confusions 2 --align -", capsys)
    assert out.startswith("ky2  all  CER 33.33 %  N=6 S=1 D=1 I=0\nref: к ы р г ы з\nhyp: к ы р г")
    assert "\n2 utterances without an error not shown\n" in out
    assert "\nmost frequent of 3 errors\nerror  ref  hyp  count  of errors  of the unit\n" in out
    assert "\033" not in out and not Path("-").exists()


def test_punctuation_by_language(capsys: Capsys) -> None:
    write_text("ref", {"ca1": "«L’aigua», col·legi."})
    write_text("hyp", {"ca1": "L'aigua col·legi"})
    out, rows = score_rows("--metric wer --ref ref --hyp hyp --data_list data.list --punctuation remove", capsys)
    assert "WER|unit:word|case:kept|punct:removed|norm:nfc|lang:ca|" in out
    assert rows["micro"][3:8] == ["2", "0", "0", "0", "0.00"]


def test_features_of_phones(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text("ref", {"a": "p a"})
    write_text("hyp", {"a": "b a"})
    if importlib.util.find_spec("panphon"):
        out, _ = score_rows("--metric per --ref ref --hyp hyp --features", capsys)
        last = out.splitlines()[-1].split()
        assert (last[7], last[9]) == ("50.00", "0.81")
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    found = error_line(call("--metric per --ref ref --hyp hyp --features"), capsys)
    assert found == '--features: panphon is not installed; run pip install "wenet_hs[trees]"'
