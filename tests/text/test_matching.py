# SPDX-License-Identifier: Apache-2.0
"""The longest units of a table in a word, for tables in any Unicode form."""

import sys
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wenet_hs.text.matching import UnitMatcher


def decomposable_letters() -> list[str]:
    """All letters of Unicode that are canonically equivalent to other code points; without those
    of Hangul.
    """
    letters = list[str]()
    for code_point in range(sys.maxunicode + 1):
        decomposition = unicodedata.decomposition(chr(code_point))
        is_compatible_only = decomposition.startswith("<")
        if decomposition and not is_compatible_only:
            letters.append(chr(code_point))
    return letters


@pytest.mark.parametrize(
    ("units", "word", "parts"),
    [
        (["t", "s", "ts"], "tsts", ["ts", "ts"]),
        (["ab", "bc", "c"], "abc", ["ab", "c"]),  # from the left
        (["ab", "bc", "a"], "abc", ["ab", "c"]),  # c is no unit: nothing is tried again
        (["a", "ab", "abc"], "abcab", ["abc", "ab"]),
        (["é", "e", "\u0301"], "é", ["é"]),  # the letter before its parts
        (["e\u0301"], "é", ["e\u0301"]),  # as the table has it
        (["e"], "é", ["é"]),  # never a letter without its accent
        (["e", "\u0301"], "éẹ", ["e", "\u0301", "ẹ"]),  # divided as far as the table goes
        (["t", "ts", "s\u0303"], "ts\u0303", ["t", "s\u0303"]),
        (["t", "ts", "\u0303"], "ts\u0303", ["ts", "\u0303"]),
        (["a", "é", "ae", "\u0301"], "aé", ["a", "é"]),  # the letter that a reader sees
        (["a", "e", "ae", "\u0301"], "aé", ["ae", "\u0301"]),
        (["ê", "\u0323"], "ệ", ["ê", "\u0323"]),  # NFD has the dot before the circumflex
        (["ẹ", "\u0302"], "ệ", ["ẹ", "\u0302"]),
        (["é", "\u0323"], "ẹ\u0301", ["é", "\u0323"]),  # NFC has ẹ
        (["가", "\u11a8"], "각가", ["가", "\u11a8", "가"]),
        ([], "é1", ["é", "1"]),
        (["a"], "", []),
        (["a" + "\u0301" * 9, "b"], "b" + "á" + "\u0301" * 8, ["b", "a" + "\u0301" * 9]),
    ],
)
def test_a_word_is_divided_into_the_longest_units(
    units: list[str], word: str, parts: list[str]
) -> None:
    composed = unicodedata.normalize("NFC", word)
    assert UnitMatcher(units).split(composed) == parts


def test_each_letter_of_unicode_is_found_by_its_parts_and_as_a_whole() -> None:
    letters = decomposable_letters()
    assert len(letters) > 2000

    for letter in letters:
        parts = unicodedata.normalize("NFD", letter)
        composed = unicodedata.normalize("NFC", letter)
        assert UnitMatcher([letter]).split(composed) == [letter]
        assert UnitMatcher(dict.fromkeys(parts)).split(composed) == list(parts)


CHARACTERS = st.sampled_from("aeêéẹtsn\u0301\u0302\u0323\u09c7\u09be각\u1100\u1161")


@settings(max_examples=150, deadline=None)
@example(units=["ae", "e", "\u0301"], word="aé")
@given(
    units=st.lists(st.text(CHARACTERS, min_size=1, max_size=3), max_size=8),
    word=st.text(CHARACTERS, max_size=8),
)
def test_parts_are_the_word(units: list[str], word: str) -> None:
    distinct = {unicodedata.normalize("NFC", unit): unit for unit in units}
    composed = unicodedata.normalize("NFC", word)
    matcher = UnitMatcher(distinct.values())

    parts = matcher.split(composed)

    assert unicodedata.normalize("NFC", "".join(parts)) == composed
    for part in parts:
        assert part in distinct.values() or len(part) == 1, part
    if matcher.are_code_points(composed):
        assert parts == list(composed)
