# SPDX-License-Identifier: Apache-2.0
"""The adaptive head: PyTorch's values with our unit ids, and its clusters.

Dimension key: N rows, D width, V units.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.heads.adaptive import AdaptiveHead, default_cutoffs

DIM = 8


def make(
    num_units: int, cutoffs: list[int] | None = None, div_value: float = 4.0, dim: int = DIM
) -> AdaptiveHead:
    """Zipf's frequencies in a random order of ids, normal weights."""
    torch.manual_seed(num_units)
    frequencies = np.random.default_rng(num_units).permutation(1.0 / np.arange(1, num_units + 1))
    head = AdaptiveHead(dim, frequencies, cutoffs, div_value)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head


def test_clusters_begin_after_half_three_quarters_and_seven_eighths_of_the_mass() -> None:
    for frequencies, cutoffs in (
        ([0, 0], [1]),
        ([8, 4, 2, 1, 1], [1, 2, 3]),
        ([0] * 100, [50, 75, 88]),
    ):
        assert AdaptiveHead(4, frequencies).cutoffs == cutoffs


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0, 1e300), min_size=2, max_size=60))
def test_default_cutoffs_are_valid_for_any_frequencies(frequencies: list[float]) -> None:
    cutoffs = default_cutoffs(np.array(frequencies))
    assert cutoffs == sorted(set(cutoffs))
    assert cutoffs and all(1 <= cutoff < len(frequencies) for cutoff in cutoffs)


def test_log_probs_are_those_of_pytorch_with_our_ids() -> None:
    head = make(50)
    hidden, targets = torch.randn(9, DIM), torch.randint(50, (9,))
    expected_NV = head.adaptive.log_prob(hidden)[:, head.rank_of_unit]
    torch.testing.assert_close(head.log_probs(hidden), expected_NV)
    torch.testing.assert_close(
        head.nll(hidden, targets), -expected_NV.gather(1, targets[:, None])[:, 0]
    )


def test_units_are_ranked_by_descending_frequency_then_id() -> None:
    head = AdaptiveHead(4, [1, 2, 9, 9, 2], cutoffs=[2], div_value=1.0)
    assert head.ranked_units.tolist() == [2, 3, 1, 4, 0]
    assert head.rank_of_unit.tolist() == [4, 2, 0, 1, 3]
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    assert head.eval_metrics(torch.zeros(5, 4), torch.arange(5))[1].tolist() == [
        False,
        False,
        True,
        False,
        False,
    ]


def test_every_cluster_has_a_width_of_at_least_one() -> None:
    for dim, div_value, widths in (
        (64, 4.0, [16, 4, 1]),
        (8, 4.0, [4, 2, 1]),
        (1, 4.0, [1] * 3),
        (8, 1.0, [8] * 3),
    ):
        head = make(10, cutoffs=[2, 4, 6], div_value=div_value, dim=dim)
        assert [next(tail.parameters()).size(0) for tail in head.adaptive.tail] == widths
        assert f"div_value={head.div_value:g}" in repr(head)


def test_wrong_calls() -> None:
    calls: list[tuple[list[float], list[int] | None, float, str]] = [
        ([1, -1], None, 4.0, "frequencies: unit 1 has -1.0; each must be finite"),
        ([1, math.nan], None, 4.0, "frequencies: unit 1 has nan"),
        ([], None, 4.0, "frequencies: the list is empty"),
        ([1, 2], [2], 4.0, "cutoffs should be"),
        ([1], None, 4.0, "head: dim 8 must be at least 1, and num_units 1 at least 2"),
        ([1, 2], None, 0.5, "div_value: must be at least 1, got 0.5"),
    ]
    for frequencies, cutoffs, div_value, message in calls:
        with pytest.raises(ValueError, match=message):
            AdaptiveHead(DIM, frequencies, cutoffs, div_value)
