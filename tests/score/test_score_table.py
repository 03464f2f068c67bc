# SPDX-License-Identifier: Apache-2.0
"""What a person reads: the table, aligned transcripts in every script's width, WeNet's layout."""

import pytest
from rich.cells import cell_len

from wenet_hs.score import Rules, score
from wenet_hs.score.table import aligned_lines, format_alignments, percent
from wenet_hs.score.wenet_layout import WenetLayout, format_wenet, script_cluster

REF = {"a1": "été", "a2": "abcd", "b1": "Straße", "b2": "ab"}
HYP = {"a1": "ete", "a2": "abcd", "b1": "Strasse"}
LANGS = {"a1": "fr", "a2": "fr", "b1": "de", "b2": "de"}


def test_table_by_hand() -> None:
    report = score(REF, HYP, rules=Rules(metric="cer"), langs=LANGS, name="exp/hsoftmax", num_resamples=0)
    lines = report.format().splitlines()
    assert lines == [
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


def test_intervals_stand_in_brackets_and_large_tables_fit_a_hundred_columns() -> None:
    reference = {f"k{i}": "abcdefghij" * 20 for i in range(3000)}
    hypothesis = {key: text.replace("a", "x") if key.endswith("1") else text for key, text in reference.items()}
    table = score(reference, hypothesis, rules=Rules(metric="cer"), langs=dict.fromkeys(reference, "zh-HK")).format()
    row = next(line for line in table.splitlines() if line.startswith("zh-HK"))
    assert row.split()[:7] == ["zh-HK", "3,000", "600,000", "6,000", "0", "0", "1.00"]
    assert row.split("[")[1].count(",") == 1 and row.endswith("]")
    assert max(map(len, table.splitlines())) <= 100


def test_what_is_undefined_or_left_out_is_said() -> None:
    report = score(
        {"k": "", "l": "ab"},
        {"k": "xy", "l": "ab", "m": "?"},
        rules=Rules(metric="per"),
        langs={"k": "aa", "l": "bb"},
        allow_extra=True,
    )
    text = report.format()
    assert "no reference units, so no rate, and not in the macro average: aa\n" in text
    assert "1 hypothesis without reference left out: m\n" in text
    assert [line.split() for line in text.splitlines() if line.startswith("aa")] == [
        ["aa", "1", "0", "0", "0", "1", "n/a", "n/a"]
    ]


@pytest.mark.parametrize(("rate", "text"), [(None, "n/a"), (0.0, "0.00"), (0.12345, "12.35"), (1.5, "150.00")])
def test_percent(rate: float | None, text: str) -> None:
    assert percent(rate) == text


def test_aligned_lines_pad_by_width_on_the_screen() -> None:
    ref, hyp = aligned_lines(["日", "ə̃", "tʃ", "x"], ["a", "ə", "t", "x", "y"])
    assert ref == "日 ə̃ tʃ x *"
    assert hyp == "a  ə t  x y"
    assert [cell_len(ref), cell_len(hyp)] == [11, 11]


def test_alignments_are_worst_first_and_name_the_missing() -> None:
    blocks = format_alignments(score(REF, HYP, rules=Rules(metric="cer"), langs=LANGS)).split("\n\n")[1:]
    assert [block.split()[0] for block in blocks] == ["b2", "a1", "b1", "a2"]
    assert blocks[0].splitlines() == [
        "b2  de  CER 100.00 %  N=2 S=0 D=2 I=0  (no hypothesis)",
        "ref: a b",
        "hyp: * *",
    ]
    assert blocks[2].splitlines() == [
        "b1  de  CER 33.33 %  N=6 S=1 D=0 I=1",
        "ref: S t r a * ß e",
        "hyp: S t r a s s e",
    ]


def test_a_counted_space_can_be_seen() -> None:
    rules = Rules(metric="cer", spaces="count")
    text = format_alignments(score({"k": "a b"}, {"k": "ab"}, rules=rules))
    assert "ref: a ▁ b\nhyp: a * b\n" in text


def test_wenets_layout() -> None:
    report = score(REF, HYP, rules=Rules(metric="cer"))
    lines = format_wenet(report).split("\n")
    assert lines[:6] == ["", "utt: a1", "WER: 66.67 % N=3 C=1 S=2 D=0 I=0", "lab: é t é", "rec: e t e", ""]
    assert lines[-7:-3] == [
        "=" * 75,
        "",
        "Overall -> 40.00 % N=15 C=10 S=3 D=2 I=1",
        "English -> 40.00 % N=15 C=10 S=3 D=2 I=1",
    ]
    assert lines[-3:] == ["", "=" * 75, ""]
    assert format_wenet(report, WenetLayout(verbose=0)) == "Overall -> 40.00 % N=15 C=10 S=3 D=2 I=1\n\n"
    assert "WER: 100.00 % N=2 C=0 S=0 D=2 I=0\nlab: a b\nrec: \n" in format_wenet(report).replace("rec:\n", "rec: \n")


def test_wenets_layout_folds_pads_and_has_a_line_for_each_cluster() -> None:
    report = score({"k": "日ab本1", "e": ""}, {"k": "日ac本x1", "e": "я"}, rules=Rules(metric="cer"))
    layout = WenetLayout(verbose=2, most=3, padding="_", clusters={"VOWEL": frozenset("ay"), "NONE": frozenset()})
    text = format_wenet(report, layout)
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
    names = {"é": "English", "e\u0301": "English", "aж": "Other", "l'eau": "English", "の": "Japanese", "?": "Other"}
    assert {unit: script_cluster(unit) for unit in names} == names
