# SPDX-License-Identifier: Apache-2.0
"""The k best, with the lower index first of equal values, against a plain sort: by the kernel and by torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.heads.kernels.numba_common import SERIAL_MAX_VALUES
from wenet_hs.heads.kernels.search import KERNEL_MAX_K, topk_lowest_id_first

KERNEL_AND_TORCH = (torch.float32, torch.float64)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.data())
def test_equals_a_stable_sort(values: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    order = sorted(range(len(values)), key=lambda index: (-values[index], index))[:k]
    for dtype in KERNEL_AND_TORCH:
        best, ids = topk_lowest_id_first(torch.tensor(values, dtype=dtype), k)
        assert ids.tolist() == order
        assert best.tolist() == [values[index] for index in order]


@pytest.mark.parametrize("dtype", KERNEL_AND_TORCH)
def test_rows_with_and_without_ties_together(dtype: torch.dtype) -> None:
    rows = [[1.0, 3.0, 2.0, 0.0], [5.0, 5.0, 5.0, 5.0], [-torch.inf, 1.0, -torch.inf, -torch.inf]]
    scores = torch.tensor(rows, dtype=dtype)
    best, ids = topk_lowest_id_first(scores[None], 2)
    assert ids.tolist() == [[[1, 2], [0, 1], [1, 0]]]
    assert best[0, 2].tolist() == [1.0, -torch.inf]


def test_tied_values_carry_gradients_to_the_chosen_ones() -> None:
    scores = torch.tensor([2.0, 7.0, 7.0, 7.0], requires_grad=True)
    best, _ = topk_lowest_id_first(scores, 2)
    best.sum().backward()
    assert scores.grad is not None and scores.grad.tolist() == [0, 1, 1, 0]


def test_a_nan_is_the_greatest_value() -> None:
    nan = torch.nan
    best, ids = topk_lowest_id_first(torch.tensor([[1.0, nan, 3.0, 3.0], [2.0, 1.0, nan, 0.0]]), 2)
    assert ids.tolist() == [[1, 2], [2, 0]]
    assert best.isnan().tolist() == [[True, False], [True, False]]
    _, ids = topk_lowest_id_first(torch.full((5,), nan), 3)
    assert len(set(ids.tolist())) == 3


@pytest.mark.parametrize("num_rows", [1, 9, SERIAL_MAX_VALUES // 40 + 9])
@pytest.mark.parametrize("k", [1, KERNEL_MAX_K, KERNEL_MAX_K + 1])
def test_many_rows_are_as_single_rows(num_rows: int, k: int) -> None:
    scores = torch.randint(0, 30, (40, num_rows), generator=torch.Generator().manual_seed(k)).float().T
    order = scores.argsort(dim=-1, descending=True, stable=True)[:, :k]
    best, ids = topk_lowest_id_first(scores, k)
    assert torch.equal(ids, order) and torch.equal(best, scores.gather(1, order))
