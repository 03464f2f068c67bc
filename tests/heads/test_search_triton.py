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


def tables_of(frequencies: np.ndarray) -> tuple[Tensor, Tensor]:
    """Children and levels."""
    tree = Tree.huffman(frequencies)
    return torch.from_numpy(tree.children.astype(np.int32)), torch.from_numpy(tree.level_starts.astype(np.int32))


def check_interpreted_results() -> None:
    from wenet_hs.heads.kernels import search_triton

    torch.set_num_threads(1)
    for num_units, dim, k, num_rows in CASES:
        torch.manual_seed(num_units)
        frequencies = 1.0 / np.arange(1, num_units + 1)
        weight, tables = torch.randn(num_units - 1, dim) * 3 / dim**0.5, tables_of(frequencies)
        hidden, bias = torch.randn(num_rows, dim), torch.randn(num_units - 1)
        for chosen in (bias, None) if num_units < 100 else (bias,):
            values, ids, opened = search_triton.search(hidden, weight, chosen, *tables, k)
            assert bool((opened > 0).all()), opened
            head = HSoftmaxHead(dim, Tree.huffman(frequencies), chosen is not None).requires_grad_(False)
            for parameter, value in zip(head.parameters(), (weight, chosen), strict=False):
                parameter.copy_(value)
            expected = search.topk_lowest_id_first(head.plain_log_probs(hidden), k)
            assert torch.equal(ids, expected[1]), (num_units, ids, expected[1])
            torch.testing.assert_close(values, expected[0], rtol=1e-5, atol=1e-6)
    _, ids, _ = search_triton.search(torch.ones(1, 4), torch.zeros(15, 4), None, *tables_of(np.ones(16)), 5)
    assert ids.tolist() == [[0, 1, 2, 3, 4]], ids  # ties

    hidden, weight, tables = torch.randn(3, 24), torch.randn(49, 24), tables_of(1.0 / np.arange(1, 51))
    hidden[1, 2] = torch.nan
    values, ids, _ = search_triton.search(hidden, weight, None, *tables, 4)
    assert values.isnan().all(1).tolist() == [False, True, False] and len(set(ids[1].tolist())) == 4
    weight = torch.zeros(1023, 2)  # 512 equal nodes and the ones above them are more than the list can contain
    weight[:, 0] = torch.arange(1023) % 7 * 1e-6
    head = HSoftmaxHead(2, Tree.huffman(np.ones(1024))).requires_grad_(False)
    head.inner_vector.weight.copy_(weight)
    values, ids, opened = search_triton.search(torch.ones(1, 2), weight, None, *tables_of(np.ones(1024)), 9)
    expected = search.topk_lowest_id_first(head.double().plain_log_probs(torch.ones(1, 2).double()), 9)
    assert opened.item() == -1023, "all nodes"
    torch.testing.assert_close(values, expected[0].float(), rtol=1e-5, atol=1e-6)
    exact = head.plain_log_probs(torch.ones(1, 2).double())[0, ids[0]]
    torch.testing.assert_close(exact.float(), expected[0][0].float(), rtol=1e-5, atol=1e-6)
    values, _, opened = search_triton.search(hidden[:0], torch.randn(49, 24), None, *tables, 4)
    assert values.shape == (0, 4) and opened.shape == (0,)


@pytest.mark.slow
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="kernels are interpreted in this process")
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize(("dim", "k", "has_bias"), [(256, 10, False), (256, 1, False), (300, search.GPU_MAX_K, True)])
def test_compiles_without_a_gpu(capability: int, dim: int, k: int, has_bias: bool) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from wenet_hs.heads.kernels import search_triton

    constants = search_triton.constants(dim, k, has_bias)
    types = dict.fromkeys(("hidden", "weight", "bias", "costs", "values"), "*fp32") | {
        "children": "*i32",
        "ids": "*i64",
    }
    types |= {"levels": "*i32", "opened": "*i32", "num_inner": "i32", "num_levels": "i32", "k": "i32"}
    if k == 1:  # Triton compiles it as a constant
        constants["k"] = 1
    types |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(search_triton.search_kernel, types, constexprs=constants)
    options = {"num_warps": search_triton.NUM_WARPS}
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert kernel.asm["cubin"]


if __name__ == "__main__":
    check_interpreted_results()
