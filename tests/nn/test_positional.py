# SPDX-License-Identifier: Apache-2.0
"""Positions: their values, and a table that grows without a limit."""

import math

import pytest
import torch

from wenet_hs.nn.layers import causal_mask, length_mask
from wenet_hs.nn.positional import (
    AbsolutePositionalEncoding,
    NoPositionalEncoding,
    PositionalEncoding,
    RelativePositionalEncoding,
    sinusoids,
)


def test_sinusoids_by_hand() -> None:
    table = sinusoids(4, 4)
    expected = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in range(4)]
    torch.testing.assert_close(table, torch.tensor(expected))


def test_odd_width() -> None:
    assert sinusoids(3, 5).shape == (3, 5)
    torch.testing.assert_close(sinusoids(3, 5)[:, 4], (torch.arange(3) * 10000 ** (-4 / 5)).sin())


def test_ten_minutes_of_audio() -> None:
    encoding = AbsolutePositionalEncoding(8, 0.0)
    assert encoding.positions(3, torch.device("cpu")).shape == (1, 3, 8)
    long = encoding.positions(15_000, torch.device("cpu"))
    torch.testing.assert_close(long[0], sinusoids(15_000, 8), rtol=0, atol=0)


def test_training_after_recognition() -> None:
    encoding, linear = AbsolutePositionalEncoding(4, 0.0), torch.nn.Linear(4, 4)
    with torch.inference_mode():
        encoding(torch.zeros(1, 5, 4))
    linear(encoding.positions(5, torch.device("cpu"))).sum().backward()
    assert linear.weight.grad is not None


@pytest.mark.parametrize("kind", (AbsolutePositionalEncoding, RelativePositionalEncoding, NoPositionalEncoding))
def test_tables_are_no_state(kind: type[PositionalEncoding]) -> None:
    encoding = kind(8, 0.1)
    encoding(torch.zeros(1, 600, 8))
    assert not encoding.state_dict()
    assert not list(encoding.buffers())


def test_what_each_kind_gives() -> None:
    x, table = torch.randn(2, 5, 4), sinusoids(9, 4)
    out, _ = AbsolutePositionalEncoding(4, 0.0)(x)
    torch.testing.assert_close(out, 2 * x + table[:5])
    out, positions = RelativePositionalEncoding(4, 0.0)(x)
    torch.testing.assert_close(out, 2 * x)
    torch.testing.assert_close(positions, table[None, :5])
    out, positions = NoPositionalEncoding(4, 0.0)(x)
    assert torch.equal(out, x)
    assert not positions.any()
    assert positions.shape == (1, 5, 4)


def test_masks() -> None:
    assert length_mask(torch.tensor([2, 0, 3]), 3).int().tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    assert causal_mask(2).int().tolist() == [[1, 0], [1, 1]]
