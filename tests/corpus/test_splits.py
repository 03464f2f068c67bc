# SPDX-License-Identifier: Apache-2.0
"""Held-out sets: no speaker and no sentence in two sets where the data allow it, and nothing lost."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.corpus.splits import count_shared, hold_out, shuffled
from wenet_hs.manifest import Utterance

Pairs = list[tuple[str | None, str]]  # of speaker and sentence


def corpus(pairs: Pairs) -> list[Utterance]:
    return [
        Utterance(key=f"k{number}", wav="", txt=sentence, speaker=speaker)
        for number, (speaker, sentence) in enumerate(pairs)
    ]


HeldOut = tuple[list[Utterance], list[Utterance], list[tuple[Utterance, str]]]


def shared(result: HeldOut) -> dict[str, int]:
    return count_shared({"train": result[1], "test": result[0]})["train-test"]


def assert_all_there(result: HeldOut, utterances: list[Utterance]) -> None:
    keys = [u.key for u in (*result[0], *result[1], *(utterance for utterance, _ in result[2]))]
    assert sorted(keys) == sorted(u.key for u in utterances)


def test_speakers_with_few_utterances_come_first_and_only_the_last_is_cut() -> None:
    utterances = corpus([("much", f"m{n}") for n in range(80)] + [(f"little{n // 4}", f"l{n}") for n in range(40)])
    held, rest, left_out = result = hold_out(utterances, 10, seed=0, purpose="test")
    assert (len(held), len(rest), len(left_out)) == (10, 108, 2)
    assert len({u.speaker for u in held} - {"much"}) == 3
    assert {reason for _, reason in left_out} == {"its speaker is in the test set"}
    assert {u.speaker for u, _ in left_out} <= {u.speaker for u in held}
    assert shared(result) == {"speakers": 0, "sentences": 0}


@pytest.mark.parametrize(
    ("pairs", "sizes", "in_both"),
    [
        ([("only", f"t{n // 2}") for n in range(100)], (10, 90), {"speakers": 1, "sentences": 0}),
        ([(f"s{n}", "yes") for n in range(100)], (10, 90), {"speakers": 0, "sentences": 1}),
        ([(None, f"t{n}") for n in range(100)], (10, 90), {"speakers": 0, "sentences": 0}),
        ([(f"s{n}", f"t{n % 50}") for n in range(100)], (10, 80), {"speakers": 0, "sentences": 0}),
        # Four speakers read the same 12 sentences: a whole test speaker would take every sentence from the others.
        ([(f"s{n % 4}", f"t{n // 4}") for n in range(48)], (6, 18), {"speakers": 0, "sentences": 0}),
    ],
)
def test_sets_overlap_only_where_they_must(pairs: Pairs, sizes: tuple[int, int], in_both: dict[str, int]) -> None:
    utterances = corpus(pairs)
    result = hold_out(utterances, 10, seed=0, purpose="test")
    assert (len(result[0]), len(result[1])) == sizes
    assert shared(result) == in_both
    assert_all_there(result, utterances)


@settings(max_examples=25, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.sampled_from([None, "a", "b", "c", "d", "e"]), st.sampled_from("uvwxyz")), max_size=40),
    size=st.integers(0, 12),
    seed=st.integers(0, 3),
)
def test_nothing_is_lost_in_any_order(pairs: Pairs, size: int, seed: int) -> None:
    utterances = corpus(pairs)
    held, rest, left_out = hold_out(utterances, size, seed=seed, purpose="test")
    assert_all_there((held, rest, left_out), utterances)
    assert len(held) <= size
    reasons = {"its speaker is in", "its sentence is in", "too many others read its sentence for"}
    assert {reason.removesuffix(" the test set") for _, reason in left_out} <= reasons
    again = hold_out(random.Random(0).sample(utterances, len(utterances)), size, seed=seed, purpose="test")
    for one, other in ((held, again[0]), (rest, again[1])):
        assert {u.key for u in one} == {u.key for u in other}


def test_another_seed_gives_another_order() -> None:
    utterances = corpus([(None, f"t{n}") for n in range(30)])
    first, again, other, of_dev = (shuffled(utterances, *of) for of in ((0, "t"), (0, "t"), (1, "t"), (0, "dev")))
    assert first == again != other and of_dev != first


def test_overlaps_are_counted_for_each_two_sets() -> None:
    train, test = corpus([("a", "x"), ("b", "y"), (None, "z")]), corpus([("a", "y"), ("b", "x"), (None, "q")])
    assert count_shared({"train": train, "dev": [], "test": test}) == {
        "train-dev": {"speakers": 0, "sentences": 0},
        "train-test": {"speakers": 2, "sentences": 2},
        "dev-test": {"speakers": 0, "sentences": 0},
    }
