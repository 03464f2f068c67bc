# SPDX-License-Identifier: Apache-2.0
"""The prefix search's kernel against the same search in plain Python: hypotheses, order, scores; threads; damage."""

import pytest
import torch
from torch import Tensor

from wenet_hs.decode import DecodeOptions, ctc, ctc_kernels
from wenet_hs.heads.kernels.topk import topk_lowest_id_first

Case = tuple[Tensor, Tensor, Tensor, int, int]


def random_case(seed: int) -> Case:
    """Values, ids, lengths, blank and beam of a small batch, each seed of another kind."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    num_units, beam_size, frames = draw(2, 9), draw(1, 12), draw(1, 14)
    lengths = torch.randint(0, frames + 1, (draw(1, 3),), generator=generator)
    log_probs = torch.randn(len(lengths), frames, num_units, generator=generator)
    if seed % 4 == 0:  # sharp: units last for several frames, and come back
        log_probs = 6 * log_probs.repeat_interleave(3, dim=1)[:, :frames]
    log_probs = log_probs.log_softmax(-1)
    if seed % 4 == 1:  # nothing but ties
        log_probs = (2 * log_probs).round() / 2
    if seed % 16 == 2:  # impossible units
        log_probs = log_probs.masked_fill(log_probs < -1.5, -torch.inf)
    values, ids = topk_lowest_id_first(log_probs, draw(1, num_units) if seed % 3 else min(beam_size, num_units))
    return values, ids, lengths, draw(0, num_units - 1), beam_size


def check(case: Case) -> None:
    *tensors, blank, beam_size = case
    found = ctc.prefix_beam_search(*tensors, blank=blank, beam_size=beam_size)
    options = DecodeOptions(beam_size=beam_size)
    expected = ctc.prefix_beam_search_with_lm(*tensors, blank=blank, eos=-1, options=options, lm=None)
    assert [[h.ids for h in nbest] for nbest in found] == [[h.ids for h in nbest] for nbest in expected]
    for nbest, expected_nbest in zip(found, expected, strict=True):
        assert [h.score for h in nbest] == pytest.approx([h.ctc for h in expected_nbest], abs=1e-9)


def test_the_plain_searchs_hypotheses_order_and_scores() -> None:
    for seed in range(160):
        check(random_case(seed))


@pytest.mark.slow
def test_the_same_on_a_thousand_cases_and_long_ones() -> None:
    for seed in range(160, 1160):
        check(random_case(seed))
    for seed, scale in enumerate((1.0, 4.0, 10.0)):
        log_probs = (scale * torch.randn(4, 300, 50, generator=torch.Generator().manual_seed(seed))).log_softmax(-1)
        for beam_size in (1, 10, 70):
            values, ids = topk_lowest_id_first(log_probs, min(beam_size, 50))
            check((values, ids, torch.tensor([300, 120, 7, 0]), 0, beam_size))


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctc_kernels, "SERIAL_MAX_PREFIXES", 0)
    log_probs = (3 * torch.randn(9, 40, 20, generator=torch.Generator().manual_seed(1))).log_softmax(-1)
    values, ids = topk_lowest_id_first(log_probs, 6)
    lengths = torch.arange(40, 31, -1)
    one = ctc.prefix_beam_search(values, ids, lengths, blank=0, beam_size=6)
    torch.set_num_threads(2)
    try:
        assert ctc.prefix_beam_search(values, ids, lengths, blank=0, beam_size=6) == one
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_a_prefix_that_fell_out_meets_the_child_that_stayed() -> None:
    # A beam of 2 over three units: prefixes leave and come back all the time, and the trie must know them again.
    values, ids = topk_lowest_id_first(
        torch.randn(1, 400, 3, generator=torch.Generator().manual_seed(7)).log_softmax(-1), 2
    )
    check((values, ids, torch.tensor([400]), 0, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_memory_layout_and_what_stands_behind_the_length(dtype: torch.dtype) -> None:
    values, ids, lengths, blank, beam_size = random_case(5)
    expected = ctc.prefix_beam_search(values, ids, lengths, blank=blank, beam_size=beam_size)
    padded_values = torch.cat([values, torch.full_like(values[:, :2], torch.nan)], dim=1).to(dtype)
    padded_ids = torch.cat([ids, torch.full_like(ids[:, :2], -1)], dim=1)
    turned = padded_values.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    assert ctc.prefix_beam_search(turned, padded_ids, lengths.int(), blank=blank, beam_size=beam_size) == expected


def test_nan_is_no_hypothesis_and_no_crash() -> None:
    values, ids, lengths, blank, beam_size = random_case(8)
    assert ctc.prefix_beam_search(
        torch.full_like(values, torch.nan), ids, torch.ones_like(lengths), blank=blank, beam_size=beam_size
    ) == [[] for _ in lengths]
