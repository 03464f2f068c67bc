# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels of the costs: values and gradients through the interpreter, and that they
compile for GPUs.
"""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from trees import comb

from wenet_hs.heads import HSoftmaxHead, SoftmaxHead
from wenet_hs.heads.node_head import CostWeights
from wenet_hs.tree import Tree

pytest.importorskip("triton", reason="Triton comes with torch on Linux only")

TREES = {
    "huffman": lambda v: Tree.huffman(1.0 / np.arange(1, v + 1)),
    "balanced": lambda v: Tree.balanced(1.0 / np.arange(1, v + 1)),
    "random": lambda v: Tree.random(1.0 / np.arange(1, v + 1), seed=1),
    "comb": comb,
}
SIZES = ((2, 1, 3), (3, 4, 5), (17, 5, 40), (150, 24, 5), (1100, 8, 3), (5000, 12, 2))
"""Units, width, rows: more rows than a program sums at once, more units than a block has."""
WEIGHTS = (CostWeights(1.0, 0.0, 0.0), CostWeights(0.8, 0.002, 0.0), CostWeights(1.0, 0.0, 0.1))


@pytest.mark.slow
def test_interpreted() -> None:
    """Runs this file: Triton decides when it is imported whether kernels are interpreted."""
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": ":".join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def values_and_gradients(costs: Tensor, grad: Tensor, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    found = torch.autograd.grad(costs, inputs, grad.to(costs.dtype))
    return [
        costs.detach().float(),
        *(one.to_dense().float() if one.is_sparse else one.float() for one in found),
    ]


def check_tree(kind: str, num_units: int, dim: int, num_rows: int) -> None:
    from wenet_hs.heads.kernels import tree_triton

    torch.manual_seed(num_units)
    tree = TREES[kind](num_units)
    head = HSoftmaxHead(dim, tree, bias=True)
    hidden, grad = torch.randn(num_rows, dim), torch.randn(num_rows)
    probs = torch.from_numpy(tree.frequencies / tree.frequencies.sum())
    targets = torch.multinomial(probs, num_rows, replacement=True)
    targets[0] = num_units - 1  # the rarest
    exact = HSoftmaxHead(dim, tree, bias=True).double()
    exact.load_state_dict(head.state_dict())
    for weights in WEIGHTS:
        wide = hidden.double().requires_grad_()
        expected = values_and_gradients(
            exact._plain_cost(wide, targets, weights, not weights.on_all),
            grad,
            (wide, *exact.parameters()),
        )
        leaf = hidden.clone().requires_grad_()
        inputs = leaf, head.inner_vector.weight, head.inner_vector.bias
        tables = head.edges, head.leaf_counts, tree.depth
        results = [tree_triton.cost_of_all_nodes(*inputs, targets, tables, weights)]
        if not weights.on_all:
            for sparse in (False, True):
                paths = head.edges, tree.depth
                results.append(
                    tree_triton.cost_of_paths(*inputs, targets, paths, weights, sparse=sparse)
                )
        for costs in results:
            found = values_and_gradients(costs, grad, inputs)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    paths = head.edges, tree.depth
    without_bias = tree_triton.cost_of_paths(
        hidden, inputs[1], None, targets, paths, WEIGHTS[0], sparse=False
    )
    assert torch.autograd.grad(without_bias.sum(), inputs[1])[0].isfinite().all()


def check_softmax(num_units: int, dim: int, num_rows: int) -> None:
    from wenet_hs.heads.kernels import scores, softmax_triton

    torch.manual_seed(num_units)
    head, exact = SoftmaxHead(dim, num_units), SoftmaxHead(dim, num_units).double()
    exact.load_state_dict(head.state_dict())
    hidden, grad, targets = (
        9 * torch.randn(num_rows, dim),
        torch.randn(num_rows),
        torch.randint(num_units, (num_rows,)),
    )
    for on_target, on_all in ((1.0, 0.0), (0.9 - 0.1 / num_units, 0.1 / num_units)):
        wide = hidden.double().requires_grad_()
        costs = exact._cross_entropy(wide, targets, on_target, on_all)
        expected = values_and_gradients(costs, grad, (wide, *exact.parameters()))
        for max_scores in (2**20, 2 * num_units):
            scores.MAX_SCORES = max_scores
            leaf = hidden.clone().requires_grad_()
            inputs = leaf, head.output.weight, head.output.bias
            costs = softmax_triton.softmax_cost(*inputs, targets, on_target, on_all)
            found = values_and_gradients(costs, grad, inputs)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def check_softmax_in_bf16(num_units: int, dim: int, num_rows: int) -> None:
    """Costs are float32 from scores of bfloat16, gradients are of the dtype of their tensors."""
    from wenet_hs.heads.kernels import softmax_triton

    torch.manual_seed(num_units)
    head = SoftmaxHead(dim, num_units).bfloat16()
    exact = SoftmaxHead(dim, num_units).double()
    exact.load_state_dict(head.state_dict())
    hidden, grad = torch.randn(num_rows, dim, dtype=torch.bfloat16), torch.randn(num_rows)
    targets = torch.randint(num_units, (num_rows,))
    for on_target, on_all in ((1.0, 0.0), (0.9 - 0.1 / num_units, 0.1 / num_units)):
        wide = hidden.double().requires_grad_()
        costs = exact._cross_entropy(wide, targets, on_target, on_all)
        expected = values_and_gradients(costs, grad, (wide, *exact.parameters()))
        leaf = hidden.clone().requires_grad_()
        inputs = leaf, head.output.weight, head.output.bias
        costs = softmax_triton.softmax_cost(*inputs, targets, on_target, on_all)
        assert costs.dtype == torch.float32
        torch.testing.assert_close(
            values_and_gradients(costs, grad, inputs), expected, rtol=2e-2, atol=2e-2
        )


def main() -> None:
    torch.set_num_threads(1)
    for kind in TREES:
        for size in SIZES:
            if (
                kind != "comb" or size[0] < 100
            ):  # in the interpreter a path of a thousand nodes takes seconds
                check_tree(kind, *size)
    for size in SIZES:
        check_softmax(*size)
        check_softmax_in_bf16(*size)


TYPES = {
    "hidden": "*fp32", "weight": "*fp32", "bias": "*fp32", "targets": "*i64", "up": "*i32", "costs": "*fp32",
    "slopes": "*fp32", "nodes": "*i32", "grad_hidden": "*fp32", "num_inner": "i32", "depth": "i32",
    "on_target": "fp32", "per_decision": "fp32", "grad": "*fp32", "order": "*i64", "places": "*i32", "out": "*fp32",
    "out_bias": "*fp32", "num_decisions": "i32", "scores": "*fp32", "leaves": "*i32", "parts": "*fp32",
    "num_blocks": "i32", "on_all": "fp32", "slopes_of_all": "*fp32", "num_units": "i32",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(
    "TRITON_INTERPRET" in os.environ, reason="kernels are interpreted in this process"
)
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize(("dim", "ones"), [(256, ()), (300, ("depth", "num_blocks", "num_inner"))])
def test_compile_without_a_gpu(capability: int, dim: int, ones: tuple[str, ...]) -> None:
    """`ones`: sizes of 1, which Triton compiles as constants."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from wenet_hs.heads.kernels import softmax_triton, tree_triton

    block = {"BLOCK": softmax_triton.block_size(200 * dim)}
    kernels: list[tuple[Any, ...]] = [
        (tree_triton.walk_kernel, tree_triton.walk_constants(dim, has_bias=dim == 300)),
        (tree_triton.sum_by_node_kernel, tree_triton.sum_constants(dim, has_bias=dim == 300)),
        (tree_triton.walk_scores_kernel, {}),
        (tree_triton.all_leaves_kernel, {"BLOCK": tree_triton.SCORES_BLOCK}),
        (tree_triton.add_path_kernel, {"BLOCK": 32}),
        (softmax_triton.softmax_kernel, block),
        (softmax_triton.softmax_kernel, block, {"scores": "*bf16"}),
    ]
    for kernel, sizes, *others in kernels:
        constants = sizes | {name: 1 for name in ones if name in kernel.arg_names}
        types = TYPES | dict(*others)
        types = {
            name: "constexpr" if name in constants else types[name] for name in kernel.arg_names
        }
        source = ASTSource(kernel, types, constexprs=constants)
        assert triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"]


if __name__ == "__main__":
    main()
