# SPDX-License-Identifier: Apache-2.0
"""CTC searches: hand-worked examples, sums over all alignments, and the kernel against the search
in plain Python.
"""

import math
import random

import pytest
import torch
from plain_search import ctc_texts, random_log_probs
from torch import Tensor

from wenet_hs.decode import DecodeOptions, Hypothesis, ctc_search
from wenet_hs.heads.kernels.search import topk_lowest_id_first

BLANK = 0
Case = tuple[Tensor, Tensor, Tensor, int, int]


def greedy_search(
    log_probs: Tensor, lengths: Tensor, *, blank: int = BLANK
) -> list[list[Hypothesis]]:
    return ctc_search.greedy_search(*topk_lowest_id_first(log_probs, 1), lengths, blank=blank)


def prefix_search(
    log_probs: Tensor, lengths: Tensor, beam_size: int, *, blank: int = BLANK
) -> list[list[Hypothesis]]:
    values, ids = topk_lowest_id_first(log_probs, min(beam_size, log_probs.size(-1)))
    return ctc_search.prefix_beam_search(values, ids, lengths, blank=blank, beam_size=beam_size)


def test_hand_worked_alignments() -> None:
    for frames, blank, ids in (
        ([0, 0, 0], 0, ()),
        ([0, 3, 3, 0, 0, 3, 2, 2, 1], 0, (3, 3, 2, 1)),
        ([3, 1, 3, 1, 0], 3, (1, 1, 0)),
    ):
        log_probs = torch.full((1, len(frames), 4), -20.0)
        log_probs[0, range(len(frames)), frames] = 0.0
        lengths = torch.tensor([len(frames)])
        assert greedy_search(log_probs, lengths, blank=blank) == [[Hypothesis(ids, 0.0)]]
        assert prefix_search(log_probs, lengths, 3, blank=blank)[0][0].ids == ids


def test_the_sum_over_alignments_can_exceed_the_best_alignment() -> None:
    # Two frames of blank 0.6 and `a` 0.4: all blank is the best alignment (0.36), but three of them
    # spell `a` (0.64).
    log_probs, lengths = torch.tensor([[[0.6, 0.4], [0.6, 0.4]]]).log(), torch.tensor([2])
    assert greedy_search(log_probs, lengths)[0][0].ids == ()
    best, second = prefix_search(log_probs, lengths, 2)[0]
    assert (best.ids, second.ids) == ((1,), ())
    assert (math.exp(best.score), math.exp(second.score)) == pytest.approx((0.64, 0.36), abs=1e-6)


def test_exhaustive_search_is_the_sum_over_all_alignments() -> None:
    for seed, (frames, units) in enumerate([(1, 4), (2, 3), (4, 4), (4, 4)]):
        log_probs, lengths = random_log_probs(seed, 1, frames, units), torch.tensor([frames])
        (found,) = prefix_search(log_probs, lengths, 400)
        expected = ctc_texts(log_probs[0])
        assert {h.ids: pytest.approx(h.score, abs=1e-5) for h in found} == expected
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        assert all(
            h.score <= expected[h.ids] + 1e-5 for h in prefix_search(log_probs, lengths, 3)[0]
        )
        ((greedy,),) = greedy_search(log_probs, lengths)
        assert greedy.score == pytest.approx(float(log_probs[0].max(-1).values.sum()), abs=1e-5)


def test_neighbours_and_padding_change_nothing() -> None:
    lengths = torch.tensor([8, 3, 1, 0, 5])
    log_probs = random_log_probs(3, len(lengths), 8, 4)
    greedy, prefixes = greedy_search(log_probs, lengths), prefix_search(log_probs, lengths, 3)
    for row, length in enumerate(lengths.tolist()):
        own = log_probs[row : row + 1, :length], lengths[row : row + 1]
        assert greedy[row : row + 1] == greedy_search(*own)
        assert prefixes[row : row + 1] == prefix_search(*own, 3)
    assert greedy[3][0].ids == ()
    assert prefixes[3] == [Hypothesis((), 0.0)]


# ---- the kernel and the search in plain Python


def random_case(seed: int) -> Case:
    """Values, ids, lengths, blank and beam size of a small batch; `seed % 4` selects the kind."""
    rng = random.Random(seed)
    num_units, beam_size, frames = rng.randint(2, 9), rng.randint(1, 12), rng.randint(1, 14)
    lengths = torch.tensor([rng.randint(0, frames) for _ in range(rng.randint(1, 3))])
    log_probs = random_log_probs(seed, len(lengths), frames, num_units) / 2
    if seed % 4 == 0:  # sharp: units last for several frames, and come back
        log_probs = 6 * log_probs.repeat_interleave(3, dim=1)[:, :frames]
    log_probs = log_probs.log_softmax(-1)
    if seed % 4 == 1:  # nothing but ties
        log_probs = (2 * log_probs).round() / 2
    if seed % 16 == 2:  # impossible units
        log_probs = log_probs.masked_fill(log_probs < -1.5, -torch.inf)
    values, ids = topk_lowest_id_first(
        log_probs, rng.randint(1, num_units) if seed % 3 else min(beam_size, num_units)
    )
    return values, ids, lengths, rng.randrange(num_units), beam_size


def check(case: Case) -> None:
    *tensors, blank, beam_size = case
    found = ctc_search.prefix_beam_search(*tensors, blank=blank, beam_size=beam_size)
    options = DecodeOptions(beam_size=beam_size)
    _, expected = ctc_search.prefix_beam_search_with_lm(
        *tensors, blank=blank, eos=-1, options=options, lm=None
    )
    for nbest, expected_nbest in zip(found, expected, strict=True):
        assert [h.ids for h in nbest] == [h.ids for h in expected_nbest]
        assert [h.score for h in nbest] == pytest.approx(
            [h.score for h in expected_nbest], abs=1e-9
        )


def test_the_kernel_equals_the_search_in_plain_python() -> None:
    for seed in range(48):
        check(random_case(seed))
    # A beam of 2 over three units: prefixes leave the beam and return often, and the trie must find
    # them again.
    values, ids = topk_lowest_id_first(random_log_probs(7, 1, 400, 3), 2)
    check((values, ids, torch.tensor([400]), 0, 2))


@pytest.mark.slow
def test_the_kernel_equals_it_on_more_and_longer_cases() -> None:
    for seed in range(48, 250):
        check(random_case(seed))
    for seed, scale in enumerate((1.0, 4.0, 10.0)):
        log_probs = (
            scale * torch.randn(4, 100, 50, generator=torch.Generator().manual_seed(seed))
        ).log_softmax(-1)
        for beam_size in (1, 10, 70):
            values, ids = topk_lowest_id_first(log_probs, min(beam_size, 50))
            check((values, ids, torch.tensor([100, 40, 7, 0]), 0, beam_size))


def test_any_memory_layout_and_any_values_after_the_length() -> None:
    values, ids, lengths, blank, beam_size = random_case(5)
    expected = ctc_search.prefix_beam_search(values, ids, lengths, blank=blank, beam_size=beam_size)
    padded_values = torch.cat([values, torch.full_like(values[:, :2], torch.nan)], dim=1).double()
    padded_ids = torch.cat([ids, torch.full_like(ids[:, :2], -1)], dim=1)
    turned = padded_values.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    found = ctc_search.prefix_beam_search(
        turned, padded_ids, lengths.int(), blank=blank, beam_size=beam_size
    )
    assert found == expected
