# SPDX-License-Identifier: Apache-2.0
"""The Triton search: what it computes, through the interpreter, and that it compiles for a GPU."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from wenet_hs.heads import HSoftmaxHead
from wenet_hs.heads.kernels import search
from wenet_hs.tree import Tree

pytest.importorskip("triton", reason="Triton comes with torch on Linux only")

CASES = ((2, 3, 1, 1), (7, 5, 7, 1), (50, 24, 5, 2), (700, 300, 6, 1), (400, 8, 32, 1))
"""Units, width (with and without whole blocks), k, rows."""


@pytest.mark.slow
def test_interpreted() -> None:
    """Runs this file: Triton decides when it is imported whether kernels are interpreted."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def children_of(frequencies: np.ndarray) -> Tensor:
    return torch.from_numpy(Tree.huffman(frequencies).children.astype(np.int32))


def check_interpreted_results() -> None:
    from wenet_hs.heads.kernels import search_triton

    torch.set_num_threads(1)
    for num_units, dim, k, num_rows in CASES:
        torch.manual_seed(num_units)
        frequencies = 1.0 / np.arange(1, num_units + 1)
        weight, children = torch.randn(num_units - 1, dim) * 3 / dim**0.5, children_of(frequencies)
        hidden, bias = torch.randn(num_rows, dim), torch.randn(num_units - 1)
        for chosen in (bias, None) if num_units < 100 else (bias,):
            values, ids, opened = search_triton.search(hidden, weight, chosen, children, k)
            assert bool((opened > 0).all()), opened
            head = HSoftmaxHead(dim, Tree.huffman(frequencies), chosen is not None).requires_grad_(False)
            for parameter, value in zip(head.parameters(), (weight, chosen), strict=False):
                parameter.copy_(value)
            expected = search.topk_lowest_id_first(head.plain_log_probs(hidden), k)
            assert torch.equal(ids, expected[1]), (num_units, ids, expected[1])
            torch.testing.assert_close(values, expected[0], rtol=1e-5, atol=1e-6)
    _, ids, _ = search_triton.search(torch.ones(1, 4), torch.zeros(15, 4), None, children_of(np.ones(16)), 5)
    assert ids.tolist() == [[0, 1, 2, 3, 4]], ids  # ties

    hidden, weight, children = torch.randn(3, 24), torch.randn(49, 24), children_of(1.0 / np.arange(1, 51))
    hidden[1, 2] = torch.nan
    _, _, opened = search_triton.search(hidden, weight, None, children, 4)
    assert (opened < 0).tolist() == [False, True, False], opened
    crowded = children_of(np.ones(1024))
    _, _, opened = search_triton.search(torch.ones(1, 2), torch.zeros(1023, 2), None, crowded, 2)
    assert opened.item() < 0, "512 equal nodes and the ones above them are more than the list can contain"
    values, _, opened = search_triton.search(hidden[:0], weight, None, children, 4)
    assert values.shape == (0, 4) and opened.shape == (0,)


@pytest.mark.slow
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="kernels are interpreted in this process")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("dim", "k", "has_bias"), [(256, 10, False), (300, search.GPU_MAX_K, True)])
def test_compiles_without_a_gpu(capability: int, dim: int, k: int, has_bias: bool) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from wenet_hs.heads.kernels import search_triton

    constants = search_triton.constants(dim, k, has_bias)
    types = {"hidden": "*fp32", "weight": "*fp32", "bias": "*fp32", "children": "*i32", "values": "*fp32"}
    types |= {"ids": "*i64", "opened": "*i32", "num_inner": "i32", "k": "i32"} | dict.fromkeys(constants, "constexpr")
    source = ASTSource(search_triton.search_kernel, types, constexprs=constants)
    options = {"num_warps": search_triton.NUM_WARPS}
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert kernel.asm["cubin"]


if __name__ == "__main__":
    check_interpreted_results()
