# SPDX-License-Identifier: Apache-2.0
"""Alignments and error counts: examples worked by hand, minimal by the textbook, and equal to jiwer's counts."""

import pytest
from agreement import check_pairs, edit_distance
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.score import ErrorCounts, align, count_errors

UNITS = st.lists(st.sampled_from(["a", "b", "ə̃", "tʃ", "ж", "本"]), max_size=12)


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
    assert "".join(operation.kind for operation in align(list(ref), list(hyp))) == kinds
    assert count_errors(list(ref), list(hyp)) == count_errors(ref, hyp) == count_errors(ref, list(hyp)) == counts


@settings(max_examples=30, deadline=None)
@given(UNITS, UNITS)
def test_alignment_is_minimal_and_complete(ref: list[str], hyp: list[str]) -> None:
    operations, counts, reverse = align(ref, hyp), count_errors(ref, hyp), count_errors(hyp, ref)
    kinds = [operation.kind for operation in operations]
    assert counts == ErrorCounts(len(ref), kinds.count("S"), kinds.count("D"), kinds.count("I"))
    assert counts.errors == reverse.errors == edit_distance(ref, hyp)
    assert [operation.ref for operation in operations if operation.ref is not None] == ref
    assert [operation.hyp for operation in operations if operation.hyp is not None] == hyp
    assert operations == align(list(ref), list(hyp)), "always the same alignment"


def test_counts_equal_those_of_jiwer_and_the_textbook() -> None:
    check_pairs(60)  # tests/faults checks 10,000
