# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs score` and `compare`: what they print and write, and one line per fault."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import Capsys, error_line, run_line

from wenet_hs.bin import compare as compare_command
from wenet_hs.bin import score as command
from wenet_hs.manifest.data_list import Utterance, write_data_list, write_text
from wenet_hs.runs.record import RunRecord, Start, write_run

REF = {"ca1": "bon dia", "ca2": "adéu", "ky1": "салам", "ky2": "кыргыз"}
HYP = {"ca1": "bon die", "ca2": "adéu", "ky1": "салам", "ky2": "кыргс"}
A = {"ca1": "bon die", "ca2": "adé", "ky1": "сала", "ky2": "кыргс"}
B = REF | {"ca1": "bon die"}
UTTERANCES = [Utterance(key=key, wav="x", txt=txt, lang=key[:2]) for key, txt in REF.items()]
PEOPLE = [replace(utterance, speaker=utterance.key) for utterance in UTTERANCES]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, texts in {
        "ref": REF,
        "hyp": HYP,
        "a": A,
        "b": B,
        "others": {"zz": "x"},
        "empty": {},
    }.items():
        write_text(name, texts)
    write_data_list("data.list", UTTERANCES)
    write_data_list("people.list", PEOPLE)
    write_data_list(
        "mono.list",
        [replace(utterance, lang=None, speaker=utterance.key[-1]) for utterance in UTTERANCES],
    )


def call(options: str) -> int:
    return run_line(command, f"--metric cer --ref ref --hyp hyp --num_resamples 100 {options}")


def score_rows(options: str, capsys: Capsys) -> tuple[str, dict[str, list[str]]]:
    """What a call without an error prints: the text, and its lines by their first word."""
    assert call(options) == 0
    out = capsys.readouterr().out
    return out, {words[0]: words for words in map(str.split, out.splitlines()) if words}


def test_one_row_per_language_and_the_files(capsys: Capsys) -> None:
    options = "--data_list data.list --by lang --json out/score.json --align align.txt --name demo"
    out, rows = score_rows(options, capsys)
    assert out.startswith(
        "demo\nCER|unit:grapheme|spaces:ignored|case:kept|punct:kept|norm:nfc|lang:ca,ky|v:"
    )
    assert rows["ca"][:7] == ["ca", "2", "10", "1", "0", "0", "10.00"]
    assert rows["ky"][:7] == ["ky", "2", "11", "1", "1", "0", "18.18"]
    assert rows["macro"][2] == "14.09"
    assert rows["micro"][:8] == ["micro", "average", "4", "21", "2", "1", "0", "14.29"]
    assert json.loads(Path("out/score.json").read_text("utf-8"))["name"] == "demo"
    assert "ref: с а л а м\nhyp: с а л а м\n" in Path("align.txt").read_text("utf-8")
    out, rows = score_rows(
        "--metric wer --ref data.list --by lang", capsys
    )  # the reference has the languages
    assert "WER|unit:word|case:kept|punct:kept|norm:nfc|lang:ca,ky|" in out
    assert (rows["ca"][2], rows["ky"][2]) == ("3", "2")


def test_excluded_utterances_are_in_no_number(capsys: Capsys) -> None:
    Path("odd.tsv").write_text("key\tduration\nky2\t9.0\nzz\t1.0\n", "utf-8")
    out, rows = score_rows("--data_list data.list --exclude odd.tsv", capsys)
    assert "|excluded:1\n" in out and "excluded, because odd.tsv has their keys: ky2\n" in out
    assert (rows["ky"][1:3], rows["micro"][2:4]) == (["1", "5"], ["3", "15"])
    Path("odd.tsv").write_text("key\n")
    out, rows = score_rows("--data_list data.list --exclude odd.tsv", capsys)
    assert "|excluded:0\n" in out and "has their keys: none" in out and rows["micro"][3] == "21"
    Path("odd.tsv").write_text("".join(f"{key}\n" for key in REF))
    message = "odd.tsv: has the keys of all utterances of ref; give a list of a part of them"
    assert error_line(call("--exclude odd.tsv"), capsys) == message


@pytest.mark.parametrize("source", ["--ref mono.list", "--data_list mono.list"])
def test_a_list_without_languages(source: str, capsys: Capsys) -> None:
    line = f"{source} --by speaker --by length --json score.json"
    out, rows = score_rows(line, capsys)
    assert "lang:unspecified" in out and "language" not in rows
    assert rows["1"][:7] == ["1", "2", "11", "1", "0", "0", "9.09"]
    assert rows["1-5"][:7] == ["1-5", "2", "9", "0", "0", "0", "0.00"]
    assert list(json.loads(Path("score.json").read_text("utf-8"))["by"]) == ["speaker", "length"]
    found = error_line(call(f"{source} --by lang"), capsys)
    assert "mono.list: no language for 4 utterances of the reference (ca1, ca2, ky1, ky2)" in found


def test_rules_for_spaces_and_punctuation(capsys: Capsys) -> None:
    out, _ = score_rows("--spaces count --num_resamples 0", capsys)
    assert "spaces:counted" in out and out.splitlines()[-1].split()[3] == "22"
    write_text("ref", {"ca1": "«L’aigua», col·legi."})
    write_text("hyp", {"ca1": "L'aigua col·legi"})
    out, rows = score_rows("--metric wer --data_list data.list --punctuation remove", capsys)
    assert "WER|unit:word|case:kept|punct:removed|norm:nfc|lang:ca|" in out
    assert rows["micro"][3:8] == ["2", "0", "0", "0", "0.00"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--hyp others",
            "others: no utterance of ref (ca1, and 3 more) among its 1 hypothesis (zz); score",
        ),
        ("--hyp twice", "twice:2: 'ca1' occurs twice; keep one of the two lines"),
        ("--hyp nowhere", "nowhere: cannot be read (No such file or directory); check the path"),
        (
            "--hyp empty",
            "empty: contains no hypotheses; decode again, or check that it is the right file",
        ),
        (
            "--hyp hyps.jsonl",
            "hyps.jsonl:1: JSON lines, not `key transcript` lines; give the file `text` of the same",
        ),
        ("--ref empty", "empty: contains no utterances; check that it is the reference"),
        (
            "--by lang",
            "--by lang: needs the languages; give --data_list the data.list of the reference",
        ),
        (
            "--data_list short.list",
            "short.list: no language for 3 utterances of the reference (ca2, ky1, ky2); comp",
        ),
        ("--num_resamples -1", "--num_resamples -1: must be at least 0"),
        (
            "--by speaker",
            "--by speaker: needs the speakers; give --data_list the data.list of the reference",
        ),
        (
            "--data_list data.list --by speaker",
            "data.list: no speaker for 4 utterances of the reference (ca1, ca2, ky",
        ),
        ("--confusions 0", "--confusions 0: must be at least 1"),
        ("--features", "--features: only phones have features, --metric is cer; use --metric per"),
        (
            "--metric per --punctuation remove",
            "--metric per --punctuation remove: phones may contain",
        ),
        (
            "--metric per --normalize nfc+lower",
            "--metric per --normalize nfc+lower: two phones may differ only",
        ),
    ],
)
def test_a_fault_is_one_line(options: str, message: str, capsys: Capsys) -> None:
    Path("twice").write_text("ca1 a\nca1 b\n")
    Path("hyps.jsonl").write_text('{"key": "ca1", "hyps": []}\n{"key": "ca2", "hyps": []}\n')
    write_data_list("short.list", UTTERANCES[:1])
    assert error_line(call(options), capsys).startswith(message)


def test_languages_without_utterances_or_reference_units(capsys: Capsys) -> None:
    write_text("ref", {"ca1": "bon dia", "ky1": ""})
    write_text("hyp", {"ca1": "bon die", "ky1": "б"})
    write_data_list(
        "more.list",
        [replace(UTTERANCES[0], key=key, lang=key[:2]) for key in ("ca1", "ky1", "tr1")],
    )
    out, rows = score_rows("--data_list more.list", capsys)
    assert rows["ky"][1:7] == ["1", "0", "0", "0", "1", "n/a"]
    assert out.splitlines()[-2:] == [
        "no reference units, so no rate, and not in the macro average: ky",
        "languages of more.list without an utterance in ref: tr",
    ]


def test_hypotheses_without_a_reference_are_not_counted_and_an_error_unless_allowed(
    capsys: Capsys,
) -> None:
    write_text("extra", HYP | {"zz": "x"})
    allowed, _ = score_rows("--hyp extra --allow_extra", capsys)
    assert call("--hyp extra --json score.json") == 2
    refused = capsys.readouterr()
    assert refused.out == allowed
    assert refused.err.startswith(
        "extra: 1 hypothesis without a reference in ref (zz); remove them, or give"
    )
    assert json.loads(Path("score.json").read_text("utf-8"))["extra"] == ["zz"]
    plain, _ = score_rows("", capsys)
    assert allowed == plain.rstrip("\n") + "\n1 hypothesis without reference left out: zz\n"


def test_every_mode_of_a_folder_is_scored_beside_its_text(capsys: Capsys) -> None:
    printed, _ = score_rows(
        "--hyp hyp --name 'exp, attention' --json one.json --align one.txt", capsys
    )
    for mode, texts in (("attention", HYP), ("joint", HYP | {"zz": "x"}), ("rescoring", HYP)):
        Path("test", mode).mkdir(parents=True)
        write_text(Path("test", mode, "text"), texts)
    assert call("--hyp test --name exp") == 2, "one mode has a hypothesis without a reference"
    found = capsys.readouterr()
    assert found.out.split() == [
        f"test/{mode}/score.txt" for mode in ("attention", "joint", "rescoring")
    ]
    assert found.err.startswith("test/joint/text: 1 hypothesis without")
    folder = Path("test/attention")
    assert (folder / "score.txt").read_text("utf-8") == printed
    assert (folder / "score.json").read_bytes() == Path("one.json").read_bytes()
    assert (folder / "alignment.txt").read_bytes() == Path("one.txt").read_bytes()
    assert "exp, joint\n" in Path("test/joint/score.txt").read_text("utf-8"), (
        "its table is not lost"
    )
    assert "--hyp test: of a folder, score.json" in error_line(
        call("--hyp test --json x.json"), capsys
    )
    Path("none").mkdir()
    assert error_line(call("--hyp none"), capsys).startswith(
        "none: contains no MODE/text; give the --result_dir"
    )
    write_text("test/joint/text", HYP)
    found = error_line(call("--hyp test/joint"), capsys)
    result_dir = "the --result_dir of `wenet-hs recognize`"
    assert found == f"test/joint: contains no MODE/text; give test/joint/text, or {result_dir}"
    assert [call(f"--hyp {hyp}") for hyp in ("test/joint/text", "test")] == [0, 0]


def test_confusions_and_alignments_on_the_terminal(capsys: Capsys) -> None:
    out, _ = score_rows("--confusions 2 --align -", capsys)
    assert out.startswith("ky2  all  CER 33.33 %  N=6 S=1 D=1 I=0\nref: к ы р г ы з\nhyp: к ы р г")
    assert "\nmost frequent of 3 errors\nerror  ref  hyp  count  of errors  of the unit\n" in out
    assert "\033" not in out and not Path("-").exists()


def test_features_of_phones(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text("ref", {"a": "p a"})
    write_text("hyp", {"a": "b a"})
    if importlib.util.find_spec("panphon"):
        out, _ = score_rows("--metric per --features", capsys)
        last = out.splitlines()[-1].split()
        assert (last[7], last[9]) == ("50.00", "0.81")
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    found = error_line(call("--metric per --features"), capsys)
    assert found == '--features: panphon is not installed; run pip install "wenet_hs[trees]"'


# ---- compare


def compare(options: str) -> int:
    return run_line(
        compare_command, f"--metric cer --ref ref --hyp_a a --hyp_b b --num_resamples 50 {options}"
    )


def test_compare_has_one_row_per_language_with_both_kinds_of_interval(capsys: Capsys) -> None:
    assert compare("--data_list people.list --by lang --json c.json --name_a soft") == 0
    out = capsys.readouterr().out
    assert out.startswith("A: soft\nB: b\nCER|unit:grapheme|")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert rows["ca"][:4] == ["ca", "20.00", "10.00", "-10.00"]
    assert rows["macro"][2:5] == ["23.64", "5.00", "-18.64"]
    assert "of 4 utterances, and of 4 speakers" in out
    assert json.loads(Path("c.json").read_text("utf-8"))["num_speakers"] == 4


def test_compare_without_a_list_has_no_languages_and_no_speakers(capsys: Capsys) -> None:
    for name in ("a", "b"):
        write_text(name, {key: text for key, text in A.items() if key != "ca2"})
    assert compare("--metric wer") == 0
    out = capsys.readouterr().out
    assert "all" in out and "paired bootstrap of 4 utterances; below 0" in out
    assert "\ndecoded by neither, deletions for both: 1 utterance\n" in out
    assert "\nnot by speaker: no --data_list; utterances of one speaker are similar" in out


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (
            {0: {"speaker": None}},
            "\nnot by speaker: no speaker for 1 utterance (ca1); utterances of one",
        ),
        (dict.fromkeys(range(4), {"lang": None}), "lang:unspecified"),
    ],
)
def test_notes_about_languages_and_speakers(
    change: dict[int, Any], note: str, capsys: Capsys
) -> None:
    write_data_list(
        "other.list", [replace(one, **change.get(i, {})) for i, one in enumerate(PEOPLE)]
    )
    assert compare("--data_list other.list") == 0
    assert note in capsys.readouterr().out


def test_compare_over_seeds(capsys: Capsys) -> None:
    for system, seed in ((system, seed) for system in "ab" for seed in range(5)):
        texts = (
            A
            | ({"ca1": REF["ca1"]} if seed % 2 else {})
            | ({"ky2": REF["ky2"][seed:]} if system == "b" else {})
        )
        folder = Path(f"{system}{seed}/test/attention")
        folder.mkdir(parents=True)
        write_text(folder / "text", texts)
        (folder.parents[1] / "train.yaml").write_text(f"seed: {seed}\ndtype: fp32\n")
        write_run(folder.parents[1], RunRecord(starts=(Start(processors=("X",)),)))
    a, b = ([f"{system}{seed}/test/attention/text" for seed in range(5)] for system in "ab")
    line = f"--hyp_a {' '.join(a)} --hyp_b {' '.join(b)} --data_list data.list"
    assert compare(f"{line} --json c.json --name_b tree") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"A: {a[0]} and 4 more\nB: tree\nCER|unit:grapheme|")
    rows = [cells for cells in map(str.split, out.splitlines()) if cells]
    assert ["ca", "16.00", "16.00", "+0.00", "0.00", "[+0.00,", "+0.00]", "1.0000", "n/a"] in rows
    assert ["ky", "A", *["27.27"] * 5] in rows and [
        "B",
        "9.09",
        "18.18",
        "27.27",
        "36.36",
        "45.45",
    ] in rows
    assert (
        "\nLanguages are fixed: the result holds for these languages, not for languages in general.\n"
        in out
    )
    assert out.endswith(
        "so not checked: number of ranks, units, torch, weights of --checkpoint, paths of the training list\n"
    )
    record = json.loads(Path("c.json").read_text("utf-8"))
    assert record["seeds"] == list("01234") and record["differences"]["ky"]["p"] > 0.05
    assert compare(line.replace(f"{a[4]} ", " ").replace(f"{b[4]} ", " ")) == 0
    out = capsys.readouterr().out
    assert "\nfewer than 5 seeds: no interval and no p\n" in out and "[" not in out
    swapped = line.replace("--hyp_b b0/test/attention/text b1", "--hyp_b b1/test/attention/text b0")
    assert error_line(compare(swapped), capsys).startswith(
        f"{a[0]} and {b[1]}: seed '0' and '1'; pair trainings with"
    )
    Path("a1/train.yaml").write_text("seed: 0\n")
    Path("b1/train.yaml").write_text("seed: 0\n")
    assert error_line(compare(line), capsys).startswith(
        f"{a[0]} and {a[1]}: the same seed, 0, twice in one system"
    )
    Path("a1/train.yaml").unlink()
    Path("b0/train.yaml").unlink()
    assert error_line(compare(line), capsys).startswith(
        f"{a[0]} and {b[1]}: the same seed, 0, twice"
    ), "over pairs"
    assert compare("--hyp_a a b --hyp_b b b") == 0, "files that are in no experiment folder"
    assert "\nthe trainings are not checked: no train.yaml" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--hyp_a a b",
            "--hyp_a and --hyp_b: 2 and 1 files; give both systems one file per seed, in the same order",
        ),
        ("--hyp_b half", "B (half): no hypothesis for 2 utterances that the other decoded"),
        (
            "--hyp_b more",
            "more: 1 hypothesis without a reference in ref (xx); remove them, or give",
        ),
        ("--hyp_b empty", "empty: contains no hypotheses; decode again, or check"),
        ("--num_resamples 0", "--num_resamples 0: must be at least 1"),
        ("--metric per --punctuation remove", "per --punctuation remove: phones may"),
        ("--by lang", "--by lang: needs the languages; give --data_list the data.list of the"),
    ],
)
def test_a_fault_of_compare_is_one_line(options: str, message: str, capsys: Capsys) -> None:
    write_text("half", {"ca1": "bon", "ca2": "adéu"})
    write_text("more", REF | {"xx": "?"})
    assert message in error_line(compare(options), capsys)
