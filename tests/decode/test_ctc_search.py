# SPDX-License-Identifier: Apache-2.0
"""CTC searches against what the definition says, summed over all alignments."""

import itertools
import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wenet_hs.decode import ctc as search
from wenet_hs.decode.hypothesis import Hypothesis
from wenet_hs.heads.kernels.topk import topk_lowest_id_first

BLANK = 0


def greedy_search(log_probs: Tensor, lengths: Tensor, *, blank: int) -> list[list[Hypothesis]]:
    return search.greedy_search(*topk_lowest_id_first(log_probs, 1), lengths, blank=blank)


def prefix_beam_search(log_probs: Tensor, lengths: Tensor, *, blank: int, beam_size: int) -> list[list[Hypothesis]]:
    values, ids = topk_lowest_id_first(log_probs, min(beam_size, log_probs.size(-1)))
    return search.prefix_beam_search(values, ids, lengths, blank=blank, beam_size=beam_size)


def random_log_probs(seed: int, *shape: int) -> Tensor:
    return (2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).log_softmax(-1)


def collapse(alignment: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(unit for unit, _ in itertools.groupby(alignment) if unit != BLANK)


def all_hypotheses(log_probs_TV: Tensor) -> dict[tuple[int, ...], float]:
    """Every unit sequence with the log of the sum over its alignments."""
    sums: dict[tuple[int, ...], float] = defaultdict(float)
    frames, units = log_probs_TV.shape
    for alignment in itertools.product(range(units), repeat=frames):
        sums[collapse(alignment)] += math.exp(sum(float(log_probs_TV[t, u]) for t, u in enumerate(alignment)))
    return {ids: math.log(total) for ids, total in sums.items()}


def one_hot_frames(*units: int, num_units: int = 4) -> Tensor:
    scores = torch.full((1, len(units), num_units), -20.0)
    scores[0, range(len(units)), list(units)] = 0.0
    return scores.log_softmax(-1)


@pytest.mark.parametrize(
    ("frames", "ids"),
    [
        ((0, 0, 0), ()),
        ((1, 1, 2), (1, 2)),
        ((1, 0, 1), (1, 1)),
        ((0, 3, 3, 0, 0, 3, 2, 2, 1), (3, 3, 2, 1)),
    ],
)
def test_hand_worked_alignments(frames: tuple[int, ...], ids: tuple[int, ...]) -> None:
    log_probs, lengths = one_hot_frames(*frames), torch.tensor([len(frames)])
    (greedy,) = greedy_search(log_probs, lengths, blank=BLANK)
    (prefix,) = prefix_beam_search(log_probs, lengths, blank=BLANK, beam_size=3)
    assert [hypothesis.ids for hypothesis in greedy] == [ids]
    assert prefix[0].ids == ids
    assert greedy[0].score == pytest.approx(0.0, abs=1e-5)


def test_the_sum_over_alignments_can_beat_the_best_alignment() -> None:
    # Two frames of blank 0.6 and `a` 0.4: all blank is the best alignment (0.36), but three of them spell `a` (0.64).
    log_probs = torch.tensor([[[0.6, 0.4], [0.6, 0.4]]]).log()
    lengths = torch.tensor([2])
    assert greedy_search(log_probs, lengths, blank=BLANK)[0][0].ids == ()
    best, second = prefix_beam_search(log_probs, lengths, blank=BLANK, beam_size=2)[0]
    assert (best.ids, second.ids) == ((1,), ())
    assert math.exp(best.score) == pytest.approx(0.64, abs=1e-6)
    assert math.exp(second.score) == pytest.approx(0.36, abs=1e-6)


def test_blank_may_be_any_unit() -> None:
    log_probs = one_hot_frames(3, 1, 3, 1, 0)
    lengths = torch.tensor([5])
    assert greedy_search(log_probs, lengths, blank=3)[0][0].ids == (1, 1, 0)
    assert prefix_beam_search(log_probs, lengths, blank=3, beam_size=2)[0][0].ids == (1, 1, 0)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), frames=st.integers(1, 5), units=st.integers(2, 4))
def test_a_beam_that_holds_all_prefixes_gives_the_exact_sums(seed: int, frames: int, units: int) -> None:
    log_probs = random_log_probs(seed, 1, frames, units)
    expected = all_hypotheses(log_probs[0])
    (found,) = prefix_beam_search(log_probs, torch.tensor([frames]), blank=BLANK, beam_size=1000)
    assert {hypothesis.ids for hypothesis in found} == set(expected)
    for hypothesis in found:
        assert hypothesis.score == pytest.approx(expected[hypothesis.ids], abs=1e-5)
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), frames=st.integers(1, 12), beam_size=st.integers(1, 9))
def test_a_narrow_beam_gives_different_hypotheses_and_never_too_high_a_score(
    seed: int, frames: int, beam_size: int
) -> None:
    log_probs = random_log_probs(seed, 1, frames, 5)
    (found,) = prefix_beam_search(log_probs, torch.tensor([frames]), blank=BLANK, beam_size=beam_size)
    (wide,) = prefix_beam_search(log_probs, torch.tensor([frames]), blank=BLANK, beam_size=300)
    scores = {hypothesis.ids: hypothesis.score for hypothesis in wide}
    assert 1 <= len(found) <= beam_size
    assert len({hypothesis.ids for hypothesis in found}) == len(found)
    for hypothesis in found:
        assert hypothesis.score <= scores.get(hypothesis.ids, math.inf) + 1e-5


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), lengths=st.lists(st.integers(1, 8), min_size=1, max_size=4))
def test_neighbours_and_padding_change_nothing(seed: int, lengths: list[int]) -> None:
    log_probs = random_log_probs(seed, len(lengths), max(lengths), 4)
    together = torch.tensor(lengths)
    for row, length in enumerate(lengths):
        alone, own = log_probs[row : row + 1, :length], torch.tensor([length])
        assert greedy_search(log_probs, together, blank=BLANK)[row] == greedy_search(alone, own, blank=BLANK)[0]
        found = prefix_beam_search(log_probs, together, blank=BLANK, beam_size=3)[row]
        assert found == prefix_beam_search(alone, own, blank=BLANK, beam_size=3)[0]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), frames=st.integers(1, 10))
def test_greedy_is_the_collapsed_argmax_with_its_score(seed: int, frames: int) -> None:
    log_probs = random_log_probs(seed, 1, frames, 4)
    ((found,),) = greedy_search(log_probs, torch.tensor([frames]), blank=BLANK)
    assert found.ids == collapse(tuple(log_probs[0].argmax(-1).tolist()))
    assert found.score == pytest.approx(float(log_probs[0].max(-1).values.sum()), abs=1e-5)


def test_a_prefix_that_comes_back_is_the_same_prefix() -> None:
    # Beam 2 drops and finds prefixes again and again; none may ever stand there twice.
    log_probs = random_log_probs(7, 1, 60, 3)
    for beam_size in (2, 3, 5):
        (found,) = prefix_beam_search(log_probs, torch.tensor([60]), blank=BLANK, beam_size=beam_size)
        assert len({hypothesis.ids for hypothesis in found}) == len(found) == beam_size


def test_equal_scores_are_ordered_the_same_way_every_time() -> None:
    log_probs = torch.full((2, 3, 4), 0.25).log()
    first, second = prefix_beam_search(log_probs, torch.tensor([3, 3]), blank=BLANK, beam_size=4)
    assert first == second
    assert prefix_beam_search(log_probs.flip(0), torch.tensor([3, 3]), blank=BLANK, beam_size=4)[0] == first


def test_no_frames_give_the_empty_hypothesis() -> None:
    log_probs = random_log_probs(0, 1, 1, 4)
    assert greedy_search(log_probs, torch.tensor([0]), blank=BLANK)[0][0].ids == ()
    (found,) = prefix_beam_search(log_probs, torch.tensor([0]), blank=BLANK, beam_size=3)
    assert [(hypothesis.ids, hypothesis.score) for hypothesis in found] == [((), 0.0)]
