# SPDX-License-Identifier: Apache-2.0
"""The comparison of exported files with PyTorch, without an export: examples by hand."""

import math

import pytest
import torch

from wenet_hs.export.compare import OutputPair, greedy_ids, largest_difference
from wenet_hs.export.int8 import Int8Errors
from wenet_hs.score.edit_distance import ErrorCounts


@pytest.mark.parametrize(
    ("expected", "actual", "difference"),
    [
        ([0.5, 1.0], [0.75, 1.0], 0.25),
        ([-8.0, 0.0], [-10.0, 0.125], 0.25),  # 2 of 8, not 2
        ([0.0, math.nan], [0.0, 0.0], math.nan),
        ([0.0, 0.0], [math.nan, 0.0], math.nan),
    ],
)
def test_the_largest_difference(
    expected: list[float], actual: list[float], difference: float
) -> None:
    equal = OutputPair(torch.ones(3), torch.ones(3))
    pair = OutputPair(torch.tensor(expected), torch.tensor(actual))
    for pairs in ([equal, pair], [pair, equal]):
        assert largest_difference(pairs) == pytest.approx(difference, nan_ok=True)


def test_greedy_units_are_without_repetitions_and_blanks() -> None:
    best_of_frames = torch.tensor([0, 2, 2, 0, 2, 1, 0])
    log_probs_TV = torch.nn.functional.one_hot(best_of_frames, 3).float().log()
    assert greedy_ids(log_probs_TV, 0) == [2, 2, 1]
    assert greedy_ids(log_probs_TV, 2) == [0, 0, 1, 0]


def test_lines_about_8_bit_weights() -> None:
    errors = Int8Errors(
        fp32=ErrorCounts(num_units=10, deletions=2),
        int8=ErrorCounts(num_units=10, insertions=3),
        changed=ErrorCounts(num_units=8, substitutions=1),
    )
    changed, rates = errors.describe()
    assert changed == "int8 changes 1 of 8 units of fp32 (12.5%)"
    assert rates == "unit error rate, greedy: fp32 20.0%, int8 30.0%"
