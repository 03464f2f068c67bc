# SPDX-License-Identifier: Apache-2.0
"""The Triton search: what it computes, through the interpreter, and that it compiles for a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from wenet_hs.heads.kernels import search

pytest.importorskip("triton", reason="Triton comes with torch on Linux only")

HERE = Path(__file__).parent


@pytest.mark.slow
def test_interpreted() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "interpret_search.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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


def test_a_k_beyond_the_registers_is_refused() -> None:
    hidden, weight, children = (torch.zeros(size, device="meta") for size in ((1, 4), (99, 4), (99, 2)))
    with pytest.raises(ValueError, match='"best_first" on a GPU takes k up to 32, got 33; use "dense"'):
        search.best_first(hidden, weight, None, children, 33)
