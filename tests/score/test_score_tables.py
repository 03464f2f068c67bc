# SPDX-License-Identifier: Apache-2.0
"""Text for people and JSON for programs: tables, confusions, aligned transcripts, WeNet's layout,
score.json.
"""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from wenet_hs.bin.compute_cer import format_wenet, script_cluster
from wenet_hs.score import Rules, read_report, report_to_json, score
from wenet_hs.score.alignments import (
    Confusion,
    ConfusionReport,
    count_confusions,
    find_examples,
    format_alignments,
    list_recalls,
    wants_colour,
)
from wenet_hs.score.error_rate import by_length, by_speaker
from wenet_hs.score.tables import format_confusions, format_report
from wenet_hs.text.units import show_two, show_unit
from wenet_hs.tree.errors import DataError

CER = Rules(metric="cer")
REF = {"a1": "été", "a2": "abcd", "b1": "Straße", "b2": "ab"}
HYP = {"a1": "ete", "a2": "abcd", "b1": "Strasse"}
LANGS = {"a1": "fr", "a2": "fr", "b1": "de", "b2": "de"}


def test_recalls_are_those_of_the_alignments_and_examples_have_few_errors() -> None:
    rules = Rules(metric="cer")
    references, texts = (
        {"a": "aab bc", "b": "aab", "c": "zz"},
        {"a": "xxb b", "b": "axb", "c": "zz"},
    )
    report = score(references, texts, rules=rules, num_resamples=2)
    found = count_confusions(report.utterances.values(), rules, 100).overall
    recalls = list_recalls(found)
    assert [(one.unit, one.count, one.num_right, one.recall) for one in recalls] == [
        ("c", 1, 0, 0),
        ("a", 4, 1, 0.25),
    ]
    examples = find_examples(report.utterances, rules, [*found.substitutions, *found.deletions])
    assert examples == {("a", "x"): "b", ("c", None): "a"}


def test_table_by_hand() -> None:
    report = score(REF, HYP, rules=CER, langs=LANGS, name="exp/hsoftmax", num_resamples=0)
    assert format_report(report).splitlines() == [
        "exp/hsoftmax",
        report.signature,
        "",
        "language       utts   N  S  D  I  CER %  95% interval",
        "de                2   8  1  2  1  50.00           n/a",
        "fr                2   7  2  0  0  28.57           n/a",
        "macro average                     39.29           n/a",
        "micro average     4  15  3  2  1  40.00           n/a",
        "scored 3 of 4 utterances; 1 missing, counted as deletions: b2",
    ]


def test_large_tables_fit_a_hundred_columns() -> None:
    reference = {f"k{i}": "abcdefghij" * 20 for i in range(3000)}
    hypothesis = {
        key: text.replace("a", "x") if key.endswith("1") else text
        for key, text in reference.items()
    }
    report = score(
        reference, hypothesis, rules=CER, langs=dict.fromkeys(reference, "zh-HK"), num_resamples=10
    )
    lines = format_report(report).splitlines()
    row = next(line for line in lines if line.startswith("zh-HK"))
    assert row.split()[:7] == ["zh-HK", "3,000", "600,000", "6,000", "0", "0", "1.00"]
    assert row.split("[")[1].count(",") == 1 and row.endswith("]")
    assert max(map(len, lines)) <= 100


# ---- aligned transcripts


def test_a_file_of_alignments_is_worst_first_and_in_columns() -> None:
    blocks = format_alignments(score(REF, HYP, rules=CER, langs=LANGS)).split("\n\n")
    assert [block.split()[0] for block in blocks] == ["b2", "a1", "b1", "a2"]
    assert (
        blocks[0]
        == "b2  de  CER 100.00 %  N=2 S=0 D=2 I=0  (no hypothesis)\nref: a b\nhyp: * *\n     D D"
    )
    assert blocks[2].endswith("ref: S t r a * ß e\nhyp: S t r a s s e\n             I S")
    wide = format_alignments(
        score({"k": "日 ə̃ tʃ x"}, {"k": "a ə t x y"}, rules=Rules(metric="per"))
    )
    assert wide.endswith("\nref: 日 ə̃ tʃ x *\nhyp: a  ə t  x y\n     S  S S    I\n")


def at_terminal(
    ref: str, hyp: str, *, width: int = 80, colour: bool = False, rules: Rules = CER
) -> list[str]:
    report = score(
        {"k": ref, "right": "ab"}, {"k": hyp, "right": "ab"}, rules=rules, num_resamples=0
    )
    return format_alignments(report, width=width, colour=colour, all_shown=False).splitlines()


def test_marks_are_below_their_errors() -> None:
    plain = [
        "k  all  CER 50.00 %  N=6 S=1 D=1 I=1",
        "ref: a b c d e f *",
        "hyp: a x c * e f y",
        "       S   D     I",
        "",
        "1 utterance without an error not shown",
    ]
    assert at_terminal("abcdef", "axcefy") == plain
    coloured = "\n".join(at_terminal("abcdef", "axcefy", colour=True))
    assert all(f"\033[{mark}\033[0m" in coloured for mark in ("33mx", "31md", "36my"))
    assert re.sub(r"\033\[\d*m", "", coloured) == "\n".join(plain)
    empty = score({"k": ""}, {"k": "ab"}, rules=CER, num_resamples=0)
    lines = format_alignments(empty, width=80, all_shown=False).splitlines()
    assert lines == ["k  all  CER n/a  N=0 S=0 D=0 I=2", "ref: * *", "hyp: a b", "     I I"]
    silent = score({"k": ""}, {"k": ""}, rules=CER, num_resamples=0)
    lines = format_alignments(silent, width=80).splitlines()
    assert lines == ["k  all  CER n/a  N=0 S=0 D=0 I=0", "ref:", "hyp:"]


def test_words_are_separate_and_wide_letters_keep_the_columns() -> None:
    assert at_terminal("ab, cd", "abx c d")[1:4] == [
        "ref: a b ,  c d",
        "hyp: a b x  c d",
        "         S",
    ]
    assert (
        at_terminal("ab cd", "abcd", rules=Rules(metric="cer", spaces="count"))[1]
        == "ref: a b ▁ c d"
    )
    wide = at_terminal("日本xy", "日xy \u0301")
    assert wide[1:4] == ["ref: 日 本 x y *", "hyp: 日 *  x y ◌\u0301", "        D      I"]


def test_long_lines_are_folded() -> None:
    lines = at_terminal("a" * 30 + "b", "a" * 30 + "c", width=40)
    assert max(map(cell_len, lines[1:])) <= 40
    assert [line[:4] for line in lines[1:6]] == [
        "ref:",
        "hyp:",
        "ref:",
        "hyp:",
        "    ",
    ]  # no marks, no line for them
    assert (
        "".join(line[5:] for line in lines if line.startswith("ref:")).replace(" ", "")
        == "a" * 30 + "b"
    )
    key = "a_long_key_that_is_wider_than_the_terminal"
    report = score({key: "ab"}, {}, rules=CER, num_resamples=0)
    heading = f"{key}  all  CER 100.00 %  N=2 S=0 D=2 I=0  (no hypothesis)"
    found = format_alignments(report, width=36, colour=True, all_shown=False).splitlines()
    assert found[0] == f"\033[1m{heading}\033[0m", "a key is never broken"


def test_colour_only_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    for is_terminal, term, no_color in (
        (True, "xterm", ""),
        (False, "xterm", ""),
        (True, "dumb", ""),
        (True, "", "1"),
    ):
        monkeypatch.setattr(stream, "isatty", lambda value=is_terminal: value)
        monkeypatch.setenv("TERM", term)
        monkeypatch.setenv("NO_COLOR", no_color)
        assert wants_colour(stream) is ((is_terminal, term, no_color) == (True, "xterm", ""))


# ---- WeNet's layout


def test_wenets_layout() -> None:
    report = score(REF, HYP, rules=CER)
    lines = format_wenet(report).split("\n")
    assert lines[:6] == [
        "",
        "utt: a1",
        "WER: 66.67 % N=3 C=1 S=2 D=0 I=0",
        "lab: é t é",
        "rec: e t e",
        "",
    ]
    counts, rule = "40.00 % N=15 C=10 S=3 D=2 I=1", "=" * 75
    assert lines[-7:] == [rule, "", f"Overall -> {counts}", f"English -> {counts}", "", rule, ""]
    assert format_wenet(report, verbose=0) == f"Overall -> {counts}\n\n"
    assert "WER: 100.00 % N=2 C=0 S=0 D=2 I=0\nlab: a b\nrec:\n" in format_wenet(report)


def test_wenets_layout_folds_pads_and_counts_clusters() -> None:
    report = score({"k": "日ab本1", "e": ""}, {"k": "日ac本x1", "e": "я"}, rules=CER)
    clusters = {"VOWEL": frozenset("ay"), "NONE": frozenset[str]()}
    text = format_wenet(report, verbose=2, max_units=3, padding="_", clusters=clusters)
    assert "lab(k): 日 a b\nrec(k): 日 a c\n\nlab(k): 本 _ 1\nrec(k): 本 x 1\n\n" in text
    assert "utt: e\nWER: 0.00 % N=0 C=0 S=0 D=0 I=1\nlab(e): _\nrec(e): я\n" in text
    assert text.split("Overall -> ")[1].splitlines()[:7] == [
        "60.00 % N=5 C=4 S=1 D=0 I=2",
        "Mandarin -> 0.00 % N=2 C=2 S=0 D=0 I=0",
        "English -> 100.00 % N=2 C=1 S=1 D=0 I=1",
        "Number -> 0.00 % N=1 C=1 S=0 D=0 I=0",
        "Other -> 0.00 % N=0 C=0 S=0 D=0 I=1",
        "VOWEL -> 0.00 % N=1 C=1 S=0 D=0 I=0",
        "NONE -> 0.00 % N=0 C=0 S=0 D=0 I=0",
    ]
    names = {
        "é": "English",
        "e\u0301": "English",
        "aж": "Other",
        "l'eau": "English",
        "の": "Japanese",
        "?": "Other",
    }
    assert {unit: script_cluster(unit) for unit in names} == names


# ---- confusions


def confusions(
    ref: dict[str, str], hyp: dict[str, str], most: int, spaces: str = "ignore"
) -> ConfusionReport:
    rules = Rules(metric="cer", spaces=spaces)
    report = score(ref, hyp, rules=rules, langs={key: key[0] for key in ref}, num_resamples=0)
    return count_confusions(report.utterances.values(), rules, most)


def test_confusions_by_hand() -> None:
    ref = {"a1": "été", "a2": "tete", "b1": "ab", "b2": "ab", "b3": "xa"}
    hyp = {"a1": "ete", "a2": "tetee", "b1": "b", "b2": "cb", "b3": "xa"}
    found = confusions(ref, hyp, 10)
    assert found.overall.num_errors == 5
    assert found.overall.substitutions == (
        Confusion("é", "e", 2, 0.4, 1.0),
        Confusion("a", "c", 1, 0.2, 1 / 3),
    )
    assert found.overall.deletions == (Confusion("a", None, 1, 0.2, 1 / 3),)
    assert found.overall.insertions == (Confusion(None, "e", 1, 0.2, None),)
    assert found.languages["a"].substitutions == (Confusion("é", "e", 2, 2 / 3, 1.0),)
    assert found.languages["b"].num_errors == 2
    first = confusions(ref, hyp, 1).overall
    assert len(first.substitutions) == 1 and first.num_errors == 5
    assert list(format_confusions(confusions(REF, REF, 3).overall)) == ["most frequent of 0 errors"]


def test_every_unit_is_visible() -> None:
    shown = {
        " ": "▁",
        "\u0301": "◌\u0301",
        "é": "é",
        "\u200d": "U+200D",
        "<unk>": "<unk>",
        "\u093e": "◌\u093e",
    }
    shown |= {
        "\u3000": "U+3000",
        "\u200c\u200d": "U+200C U+200D",
        "می\u200cروم": "می\u200cروم",
        "": "",
    }
    assert {unit: show_unit(unit) for unit in shown} == shown
    assert show_two("می\u200cروم", "میروم") == ("میU+200Cروم", "میروم")
    assert show_two("می\u200cروم", "رفت") == ("می\u200cروم", "رفت")


def test_words_that_differ_in_what_is_invisible_are_told_apart() -> None:
    report = score({"k": "می\u200cروم a"}, {"k": "میروم a"}, rules=Rules(metric="wer"))
    assert "میU+200Cروم" in format_alignments(report)
    found = count_confusions(report.utterances.values(), report.rules, 3)
    assert "میU+200Cروم" in "\n".join(format_confusions(found.overall))


def test_lines_of_text() -> None:
    lines = format_confusions(
        confusions({"k": "a b \u0301c"}, {"k": "ab \u0300c"}, 5, spaces="count").overall
    )
    assert [" ".join(line.split()) for line in lines] == [
        "most frequent of 2 errors",
        "error ref hyp count of errors of the unit",
        "S ◌\u0301 ◌\u0300 1 50.00 % 100.00 %",
        "D ▁ * 1 50.00 % 50.00 %",
    ]
    similar = confusions({"k": "\u0430"}, {"k": "a"}, 1).overall
    assert "S      \u0430 (Cyrillic)  a (Latin)" in list(format_confusions(similar))[2]
    assert "Latin" not in "".join(format_confusions(similar, name_scripts=False))


# ---- JSON


def test_the_json_reads_back_and_has_a_line_per_utterance(tmp_path: Path) -> None:
    reference = {"k1": "été", "k2": "日本", "k3": "", "k4": 'a"b'}
    hypothesis = {"k1": "ete", "k2": "日", "k3": "x", "zz": "?"}
    langs = {"k1": "fr", "k2": "ja", "k3": "xx", "k4": "fr"}
    report = score(reference, hypothesis, rules=CER, langs=langs, name="ж", allow_extra=True)
    full = by_length(by_speaker(report, {key: key[0] for key in reference}))
    text = report_to_json(full, count_confusions(report.utterances.values(), report.rules, 2))
    (tmp_path / "score.json").write_text(text, "utf-8")
    assert read_report(tmp_path / "score.json") == replace(full, by={}) == report
    record = json.loads(text)
    del record["micro"]["interval"]
    assert record["micro"] == {"utterances": 4, "N": 8, "S": 2, "D": 4, "I": 1, "rate": 0.875}
    assert (record["languages"]["xx"]["rate"], record["macro"]["languages"]) == (None, 2)
    assert record["macro"]["rate"] == pytest.approx((5 / 6 + 1 / 2) / 2), (
        "xx has no reference units"
    )
    assert (record["missing"], record["extra"]) == (["k4"], ["zz"])
    assert record["utterances"]["k4"] == {
        "lang": "fr",
        "N": 3,
        "S": 0,
        "D": 3,
        "I": 0,
        "ref": 'a"b',
        "hyp": None,
    }
    assert sum(line.startswith('  "k4": ') for line in text.splitlines()) == 1
    assert record["by"]["length"]["groups"]["1-5"]["utterances"] == 3
    assert record["confusions"]["languages"]["fr"]["substitutions"][0]["ref"] == "é"
    assert record["confusions"]["overall"]["num_errors"] == full.micro.counts.errors


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    for content, fault in (
        ("{", "Expecting property name"),
        ("{}", "format is None, expected 'wenet_hs.score/1'"),
        ('{"format": "wenet_hs.score/1"}', "no 'macro'"),
    ):
        path.write_text(content)
        message = f"other.json: not written by `score --json` .*{fault}.*; run `wenet-hs score`"
        with pytest.raises(DataError, match=message):
            read_report(path)
