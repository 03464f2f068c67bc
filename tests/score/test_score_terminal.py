# SPDX-License-Identifier: Apache-2.0
"""Alignments at a terminal: marks below errors, folded to the width, colours where they are welcome."""

import io
import re

import pytest
from rich.cells import cell_len

from wenet_hs.score import Rules, score
from wenet_hs.score.terminal import terminal_alignments, wants_colour

CER = Rules(metric="cer")


def shown(ref: str, hyp: str, *, width: int = 80, colour: bool = False) -> list[str]:
    report = score({"k": ref, "right": "ab"}, {"k": hyp, "right": "ab"}, rules=CER, num_resamples=0)
    return terminal_alignments(report, width=width, colour=colour).splitlines()


def test_marks_stand_below_their_errors() -> None:
    assert shown("abcdef", "axcefy") == [
        "k  all  CER 50.00 %  N=6 S=1 D=1 I=1",
        "ref: a b c d e f *",
        "hyp: a x c * e f y",
        "       S   D     I",
        "",
        "1 utterance without an error not shown",
    ]


def test_words_stand_apart() -> None:
    assert shown("ab, cd", "abx c d")[1:4] == ["ref: a b ,  c d", "hyp: a b x  c d", "         S"]
    rules = Rules(metric="cer", spaces="count")
    report = score({"k": "ab cd"}, {"k": "abcd"}, rules=rules, num_resamples=0)
    assert terminal_alignments(report, width=80, colour=False).splitlines()[1] == "ref: a b ▁ c d"


def test_wide_letters_and_bare_marks_keep_the_columns() -> None:
    lines = shown("日本xy", "日xy \u0301")
    assert lines[1:4] == ["ref: 日 本 x y *", "hyp: 日 *  x y ◌\u0301", "        D      I"]


def test_long_lines_fold_three_at_a_time() -> None:
    lines = shown("a" * 30 + "b", "a" * 30 + "c", width=40)
    assert max(map(cell_len, lines)) <= 40
    assert [line[:4] for line in lines[1:6]] == ["ref:", "hyp:", "ref:", "hyp:", "    "]  # no marks: no line for them
    assert "".join(line[5:] for line in lines if line.startswith("ref:")).replace(" ", "") == "a" * 30 + "b"


def test_a_heading_folds_between_its_parts() -> None:
    assert shown("abcdef", "axcefy", width=30)[:3] == ["k  all  CER 50.00 %", "N=6 S=1 D=1 I=1", "ref: a b c d e f *"]
    key = "a_long_key_that_is_wider_than_the_terminal"
    report = score({key: "ab"}, {}, rules=CER, num_resamples=0)
    lines = terminal_alignments(report, width=36, colour=True).splitlines()
    bold = [key, "all  CER 100.00 %  N=2 S=0 D=2 I=0", "(no hypothesis)"]
    assert lines[:3] == [f"\033[1m{line}\033[0m" for line in bold]


def test_what_there_is_none_of_is_not_said() -> None:
    report = score({"k": ""}, {"k": "ab"}, rules=CER, num_resamples=0)
    assert terminal_alignments(report, width=80, colour=False).splitlines() == [
        "k  all  CER n/a  N=0 S=0 D=0 I=2",
        "ref: * *",
        "hyp: a b",
        "     I I",
    ]


def test_colours_change_nothing_but_colour() -> None:
    coloured = "\n".join(shown("abcdef", "axcefy", colour=True))
    assert "\033[33mx\033[0m" in coloured and "\033[31md\033[0m" in coloured and "\033[36my\033[0m" in coloured
    assert re.sub(r"\033\[\d*m", "", coloured) == "\n".join(shown("abcdef", "axcefy"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_who_wants_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_colour(Terminal()) and not wants_colour(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_colour(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
