# SPDX-License-Identifier: Apache-2.0
"""Alignments: worked by hand, minimal by an edit distance written out, and equal to jiwer's counts."""

import jiwer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textbook import edit_distance

from wenet_hs.score.edit_distance import ErrorCounts, align, count_errors
from wenet_hs.score.error_rate import error_rate

UNITS = st.lists(st.sampled_from(["a", "b", "ə̃", "tʃ", "ж", "本"]), max_size=12)
WORDS = st.lists(st.sampled_from(["groß", "gross", "été", "үҙ", "ভাল", "日本", "ə̃"]), max_size=10)


@pytest.mark.parametrize(
    ("ref", "hyp", "kinds", "counts"),
    [
        ("abc", "abc", "CCC", ErrorCounts(3)),
        ("abc", "axc", "CSC", ErrorCounts(3, 1)),
        ("abc", "ac", "CDC", ErrorCounts(3, 0, 1)),
        ("ac", "abc", "CIC", ErrorCounts(2, 0, 0, 1)),
        ("", "ab", "II", ErrorCounts(0, 0, 0, 2)),
        ("ab", "", "DD", ErrorCounts(2, 0, 2)),
        ("", "", "", ErrorCounts()),
        ("kitten", "sitting", "SCCCSCI", ErrorCounts(6, 2, 0, 1)),
    ],
)
def test_by_hand(ref: str, hyp: str, kinds: str, counts: ErrorCounts) -> None:
    alignment = align(list(ref), list(hyp))
    assert "".join(operation.kind for operation in alignment.operations) == kinds
    assert alignment.counts == count_errors(list(ref), list(hyp)) == counts


def test_phones_are_compared_whole() -> None:
    assert count_errors(["tʃ", "ə̃"], ["t", "ʃ", "ə̃"]).errors == 2
    assert count_errors(["groß"], ["gross"]) == ErrorCounts(1, 1)


@given(UNITS, UNITS)
def test_alignment_is_minimal_complete_and_repeatable(ref: list[str], hyp: list[str]) -> None:
    alignment = align(ref, hyp)
    assert alignment.counts.errors == edit_distance(ref, hyp)
    assert [operation.ref for operation in alignment.operations if operation.ref is not None] == ref
    assert [operation.hyp for operation in alignment.operations if operation.hyp is not None] == hyp
    assert alignment == align(list(ref), list(hyp))
    assert alignment.counts == count_errors(ref, hyp)


@given(st.text("abж本", max_size=12), st.text("abж本", max_size=12))
def test_text_is_a_list_of_its_characters(ref: str, hyp: str) -> None:
    assert align(ref, hyp) == align(list(ref), list(hyp))
    assert count_errors(ref, hyp) == count_errors(list(ref), list(hyp)) == count_errors(ref, list(hyp))


@given(UNITS, UNITS)
def test_no_errors_if_and_only_if_equal_and_turning_round_swaps_deletions_and_insertions(
    ref: list[str], hyp: list[str]
) -> None:
    counts, turned = count_errors(ref, hyp), count_errors(hyp, ref)
    assert (counts.errors == 0) == (ref == hyp)
    assert counts.errors == turned.errors
    assert counts.deletions - counts.insertions == len(ref) - len(hyp) == turned.insertions - turned.deletions
    assert (counts.num_units, turned.num_units) == (len(ref), len(hyp))


@settings(max_examples=50)
@given(st.lists(st.tuples(WORDS.filter(bool), WORDS), min_size=1, max_size=5))
def test_rate_is_that_of_jiwer(pairs: list[tuple[list[str], list[str]]]) -> None:
    theirs = jiwer.process_words([" ".join(ref) for ref, _ in pairs], [" ".join(hyp) for _, hyp in pairs])
    ours = error_rate(pairs)
    assert ours.rate == pytest.approx(theirs.wer)
    assert ours.num_units == theirs.hits + theirs.substitutions + theirs.deletions
    assert ours.deletions - ours.insertions == theirs.deletions - theirs.insertions


def test_counts_add_up_and_an_empty_reference_has_no_rate() -> None:
    assert ErrorCounts(4, 1, 0, 1) + ErrorCounts(6, 0, 3, 0) == ErrorCounts(10, 1, 3, 1)
    assert (ErrorCounts(4, 1, 0, 1) + ErrorCounts(6, 0, 3, 0)).rate == 0.5
    assert ErrorCounts(0, 0, 0, 7).rate is None
    assert ErrorCounts(1, 0, 0, 2).rate == 2.0
