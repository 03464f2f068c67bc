# SPDX-License-Identifier: Apache-2.0
"""Held-out sets: no speaker and no sentence in two sets where the data allow it, and nothing lost."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.corpus.output import count_shared
from wenet_hs.corpus.splits import hold_out
from wenet_hs.manifest.data_list import Utterance

Pairs = list[tuple[str | None, str]]  # of speaker and sentence
HeldOut = tuple[list[Utterance], list[Utterance], list[tuple[Utterance, str]]]


def corpus(pairs: Pairs) -> list[Utterance]:
    return [
        Utterance(key=f"k{n}", wav="", txt=txt, speaker=speaker)
        for n, (speaker, txt) in enumerate(pairs)
    ]


def split(utterances: list[Utterance], size: int = 10, seed: int = 0) -> HeldOut:
    held, rest, left_out = hold_out(utterances, size, seed=seed, purpose="test")
    keys = [u.key for u in (*held, *rest, *(utterance for utterance, _ in left_out))]
    assert sorted(keys) == sorted(u.key for u in utterances), "nothing is lost"
    return held, rest, left_out


def test_speakers_with_few_utterances_come_first_and_only_the_last_is_cut() -> None:
    utterances = corpus(
        [("much", f"m{n}") for n in range(80)] + [(f"little{n // 4}", f"l{n}") for n in range(40)]
    )
    held, rest, left_out = split(utterances)
    assert (len(held), len(rest), len(left_out)) == (10, 108, 2)
    assert len({u.speaker for u in held} - {"much"}) == 3
    assert {reason for _, reason in left_out} == {"its speaker is in the test set"}
    assert {u.speaker for u, _ in left_out} <= {u.speaker for u in held}


@pytest.mark.parametrize(
    ("pairs", "sizes", "in_both"),
    [
        ([("only", f"t{n // 2}") for n in range(100)], (10, 90), {"speakers": 1, "sentences": 0}),
        ([(f"s{n}", "yes") for n in range(100)], (10, 90), {"speakers": 0, "sentences": 1}),
        ([(None, f"t{n}") for n in range(100)], (10, 90), {"speakers": 0, "sentences": 0}),
        ([(f"s{n}", f"t{n % 50}") for n in range(100)], (10, 80), {"speakers": 0, "sentences": 0}),
        # Four speakers read the same 12 sentences: a whole test speaker would take every sentence
        # from the others.
        (
            [(f"s{n % 4}", f"t{n // 4}") for n in range(48)],
            (6, 18),
            {"speakers": 0, "sentences": 0},
        ),
    ],
)
def test_sets_overlap_only_where_they_must(
    pairs: Pairs, sizes: tuple[int, int], in_both: dict[str, int]
) -> None:
    held, rest, _ = split(corpus(pairs))
    assert (len(held), len(rest)) == sizes
    assert count_shared({"train": rest, "test": held})["train-test"] == in_both


@settings(max_examples=25, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(st.sampled_from([None, "a", "b", "c", "d", "e"]), st.sampled_from("uvwxyz")),
        max_size=40,
    ),
    size=st.integers(0, 12),
    seed=st.integers(0, 3),
)
def test_nothing_is_lost_in_any_order(pairs: Pairs, size: int, seed: int) -> None:
    utterances = corpus(pairs)
    held, rest, left_out = split(utterances, size, seed)
    assert len(held) <= size
    reasons = {"its speaker is in", "its sentence is in", "too many others read its sentence for"}
    assert {reason.removesuffix(" the test set") for _, reason in left_out} <= reasons
    again = split(random.Random(0).sample(utterances, len(utterances)), size, seed)
    for one, other in zip((held, rest), again[:2], strict=True):
        assert {u.key for u in one} == {u.key for u in other}


def test_overlaps_are_counted_for_each_two_sets() -> None:
    train, test = (
        corpus([("a", "x"), ("b", "y"), (None, "z")]),
        corpus([("a", "y"), ("b", "x"), (None, "q")]),
    )
    assert count_shared({"train": train, "dev": [], "test": test}) == {
        "train-dev": {"speakers": 0, "sentences": 0},
        "train-test": {"speakers": 2, "sentences": 2},
        "dev-test": {"speakers": 0, "sentences": 0},
    }
    both = {"train": corpus([("a", "Tʃa ba.")]), "test": corpus([("b", "tʃa ba")])}
    assert [count_shared(both, unit)["train-test"]["sentences"] for unit in ("char", "phone")] == [
        1,
        0,
    ]
