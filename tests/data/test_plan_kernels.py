# SPDX-License-Identifier: Apache-2.0
"""The loops of the plan give the same values in Numba as in Python."""

import numpy as np
import pytest

from wenet_hs.data import plan_kernels
from wenet_hs.data.plan_kernels import fill_batches, numbered_hashes, text_hash


def test_hashes_of_numbers() -> None:
    indices = np.array([0, 7, 123456789012])
    assert numbered_hashes("(777, 'speed', 12, ", indices).tolist() == [
        text_hash(repr((777, "speed", 12, int(index)))) for index in indices
    ]


@pytest.mark.slow
@pytest.mark.parametrize("opening", ["(777, 'speed', 12, ", "", "é" * 53, "x" * 107, "x" * 108])
def test_compiled_hashes_are_blake2b(opening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    indices = np.concatenate([[0, 9, 10, 2**63 - 1], rng.integers(0, 2 ** rng.integers(1, 63, 2000))])
    expected = [text_hash(f"{opening}{index})") for index in indices.tolist()]
    monkeypatch.setattr(plan_kernels, "MANY_HASHES", 1)
    assert numbered_hashes(opening, indices).tolist() == expected


@pytest.mark.slow
def test_compiled_batches_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    cases = [(-np.sort(-rng.integers(0, 3000, 200)) - rng.integers(0, 9, 200)).clip(0) for _ in range(50)]
    caps = rng.integers(1, 20000, 50).tolist()
    plain = [fill_batches(lengths, cap) for lengths, cap in zip(cases, caps, strict=True)]
    monkeypatch.setattr(plan_kernels, "MANY_LENGTHS", 1)
    for lengths, cap, ends in zip(cases, caps, plain, strict=True):
        assert np.array_equal(fill_batches(lengths, cap), ends)
        assert ends[-1] == 200
