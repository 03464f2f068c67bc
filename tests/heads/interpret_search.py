# SPDX-License-Identifier: Apache-2.0
"""The Triton search on a CPU: run by test_search_triton.py in a process of its own, with TRITON_INTERPRET=1.

Triton decides when it is imported whether kernels are interpreted, so a process cannot have both.
"""

import numpy as np
import torch
from torch import Tensor

from wenet_hs.heads.kernels import search, search_triton
from wenet_hs.tree import Tree

CASES = ((2, 3, 1, 1), (7, 5, 7, 1), (50, 24, 5, 2), (700, 300, 6, 1), (400, 8, 32, 1))
"""Units, width (with and without whole blocks), k, rows."""


def arguments(num_units: int, dim: int, num_rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden, weight, bias and children."""
    torch.manual_seed(num_units)
    weight = torch.randn(num_units - 1, dim) * 3 / dim**0.5
    children = children_of(1.0 / np.arange(1, num_units + 1))
    return torch.randn(num_rows, dim), weight, torch.randn(num_units - 1), children


def children_of(frequencies: np.ndarray) -> Tensor:
    return torch.from_numpy(Tree.huffman(frequencies).children.astype(np.int32))


def check_against_the_reference() -> None:
    for num_units, dim, k, num_rows in CASES:
        hidden, weight, bias, children = arguments(num_units, dim, num_rows)
        for chosen in (bias, None) if num_units < 100 else (bias,):
            values, ids, opened = search_triton.search(hidden, weight, chosen, children, k)
            assert bool((opened > 0).all()), opened
            expected = search.search_in_python(hidden, weight, chosen, children, k)
            assert torch.equal(ids, expected[1]), (num_units, ids, expected[1])
            torch.testing.assert_close(values, expected[0], rtol=1e-5, atol=1e-6)


def check_ties() -> None:
    _, ids, _ = search_triton.search(torch.ones(1, 4), torch.zeros(15, 4), None, children_of(np.ones(16)), 5)
    assert ids.tolist() == [[0, 1, 2, 3, 4]], ids


def check_rows_given_up() -> None:
    hidden, weight, _, children = arguments(50, 24, 3)
    hidden[1, 2] = torch.nan
    _, _, opened = search_triton.search(hidden, weight, None, children, 4)
    assert (opened < 0).tolist() == [False, True, False], opened
    crowded = children_of(np.ones(1024))
    _, _, opened = search_triton.search(torch.ones(1, 2), torch.zeros(1023, 2), None, crowded, 2)
    assert opened.item() < 0, "512 equal nodes and the ones above them are more than the list can contain"
    values, _, opened = search_triton.search(hidden[:0], weight, None, children, 4)
    assert values.shape == (0, 4) and opened.shape == (0,)


if __name__ == "__main__":
    torch.set_num_threads(1)
    check_against_the_reference()
    check_ties()
    check_rows_given_up()
