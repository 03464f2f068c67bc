# SPDX-License-Identifier: Apache-2.0
"""The tree head's kernels and their PyTorch reference: exact values and gradients, equal bits for any threads."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numba import njit
from torch import Tensor

from wenet_hs.heads import HSoftmaxHead
from wenet_hs.heads.kernels import numba_common, tree_numba
from wenet_hs.heads.kernels import tree as reference
from wenet_hs.heads.kernels.tree import CostWeights
from wenet_hs.tree import Tree


@njit  # type: ignore[untyped-decorator]
def both_functions(sizes: np.ndarray, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    exponentials, logarithms = np.empty_like(sizes), np.empty_like(units)
    for i in range(len(sizes)):
        exponentials[i] = numba_common.exp_minus(sizes[i])
        logarithms[i] = numba_common.log1p_unit(units[i])
    return exponentials, logarithms


def test_exp_and_log1p_to_2e_7() -> None:
    sizes = np.concatenate([np.linspace(0, 87, 50_001), np.geomspace(1e-30, 87, 10_001)]).astype(np.float32)
    units = np.concatenate([np.linspace(0, 1, 50_001), np.geomspace(1e-38, 1, 10_001)]).astype(np.float32)
    exponentials, logarithms = both_functions(sizes, units)
    np.testing.assert_allclose(exponentials, np.exp(-sizes.astype(np.float64)), rtol=2e-7)
    np.testing.assert_allclose(logarithms, np.log1p(units.astype(np.float64)), rtol=2e-7)
    sizes, units = np.array([0, 1e4, np.inf, np.nan], np.float32), np.array([0, 1, 1e-40, np.nan], np.float32)
    exponentials, logarithms = both_functions(sizes, units)
    assert exponentials[0] == 1 and (exponentials[1:3] < 2e-38).all() and np.isnan(exponentials[3])
    assert logarithms[0] == 0 and logarithms[2] == np.float32(1e-40) and np.isnan(logarithms[3])


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("num_units", [1, 2, 60])
def test_costs_and_gradients_against_float64(num_units: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    head = head_over(Tree.huffman([1.0 / (1 + unit) for unit in range(num_units)]))
    hidden = (scale * torch.randn(9, 5, generator=generator)).requires_grad_()
    weight, bias = (
        torch.randn(*shape, generator=generator, requires_grad=True) for shape in ((num_units - 1, 5), (num_units - 1,))
    )
    targets = torch.randint(num_units, (9,), generator=generator)
    inputs = (hidden, weight, bias)
    exact = tuple(value.detach().double().requires_grad_() for value in inputs)
    nodes, turns = head._paths(targets)
    z = F.linear(exact[0], exact[1], exact[2])
    scores = z.gather(1, nodes) * turns
    for smoothing in (0.0, 0.2):
        expected = (F.softplus(-scores, threshold=700) * turns.abs() + smoothing * scores).sum(-1)
        wanted = torch.autograd.grad(expected.sum(), exact, retain_graph=True)
        weights = CostWeights(1.0, 0.0, smoothing)
        for cost in (
            tree_numba.path_cost(
                *inputs, targets, tables=(head.edges, head.path_lengths), turn_smoothing=smoothing, sparse=False
            ),
            tree_numba.node_cost(
                *inputs, targets, tables=(head.edges, head.path_lengths, head.leaf_counts), weights=weights
            ),
        ):
            assert_near(cost, expected)
            for found, gradient in zip(torch.autograd.grad(cost.sum(), inputs), wanted, strict=True):
                assert_near(found, gradient)


def head_over(tree: Tree) -> HSoftmaxHead:
    """Only its tables are used here."""
    return HSoftmaxHead(2, tree)


def assert_near(found: Tensor, exact: Tensor) -> None:
    size = exact.abs().max().item() if exact.numel() else 0.0
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-6 * max(size, 1.0))


def test_log_probs_and_their_gradient_against_float64() -> None:
    head = head_over(Tree.huffman([2.0**-unit for unit in range(30)] + [1.0] * 30))
    z = (4 * torch.randn(40, 59, generator=torch.Generator().manual_seed(0))).requires_grad_()
    exact = z.detach().double().requires_grad_()
    nodes, turns = head._paths(torch.arange(60))
    expected = (F.logsigmoid(exact[:, nodes] * turns) * turns.abs()).sum(-1)
    found = tree_numba.tree_log_probs(z, head.node_children)
    assert_near(found, expected)
    weights = torch.randn(40, 60)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), exact)
    assert_near(torch.autograd.grad((found * weights).sum(), z)[0], wanted)


def test_a_nan_stays_a_nan() -> None:
    head = head_over(Tree.huffman(range(1, 8)))
    hidden, weight = torch.full((1, 2), float("nan")), torch.ones(6, 2)
    weights = CostWeights(0.9, 0.1, 0.0)
    assert tree_numba.path_cost(
        hidden,
        weight,
        None,
        torch.tensor([0]),
        tables=(head.edges, head.path_lengths),
        turn_smoothing=0.0,
        sparse=False,
    ).isnan()
    assert tree_numba.node_cost(
        hidden,
        weight,
        None,
        torch.tensor([0]),
        tables=(head.edges, head.path_lengths, head.leaf_counts),
        weights=weights,
    ).isnan()
    assert tree_numba.tree_log_probs(hidden @ weight.T, head.node_children).isnan().all()


@pytest.mark.parametrize("sparse", [False, True])
def test_no_rows(sparse: bool) -> None:
    head, hidden = HSoftmaxHead(2, Tree.huffman(range(1, 8)), sparse_grad=sparse), torch.randn(0, 2, requires_grad=True)
    cost = head.nll(hidden, torch.zeros(0, dtype=torch.int64))
    gradients = torch.autograd.grad(cost.sum(), (hidden, head.inner_vector.weight))
    assert gradients[0].shape == (0, 2) and not gradients[1].to_dense().any()


def test_decisions_are_sorted_by_node_then_row() -> None:
    generator = np.random.default_rng(0)
    for num_nodes in (1, 5, 3000, 5_000_000):
        nodes = generator.integers(num_nodes, size=2000).astype(np.int32)
        order, starts = tree_numba.sort_by_node(nodes, num_nodes)
        assert order.tolist() == np.argsort(nodes, kind="stable").tolist()
        assert np.array_equal(starts, np.append(np.unique(nodes[order], return_index=True)[1], 2000))


@pytest.fixture
def torch_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_the_same_bits_on_any_number_of_threads(torch_threads: Callable[[int], None]) -> None:
    head = head_over(Tree.huffman([1.0 / (1 + unit) for unit in range(700)]))
    hidden, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((301, 40), (699, 40), (699,)))
    targets = torch.randint(700, (301,))
    results = []
    for threads in (1, 2):
        torch_threads(threads)
        cost = tree_numba.path_cost(
            hidden, weight, bias, targets, tables=(head.edges, head.path_lengths), turn_smoothing=0.1, sparse=False
        )
        results.append((cost, *torch.autograd.grad(cost.square().sum(), (hidden, weight, bias))))
        assert torch.get_num_threads() == threads
    assert all(map(torch.equal, *results))


@pytest.mark.slow
def test_numba_leaves_the_number_of_threads_to_torch() -> None:
    # Its start resets OpenMP's setting, in a process of its own so that it starts here.
    program = """
import torch
from wenet_hs.heads.kernels.numba_common import use_torch_threads
torch.set_num_threads(1)
use_torch_threads()
print(torch.get_num_threads())
"""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout == "1\n"


def test_the_reference_cost_by_hand() -> None:
    # Figure 2's tree: node 0 has node 1 (units 0 and 1) on the left, unit 2 on the right; the targets are 0, 1 and 2.
    nodes, turns = torch.tensor([[0, 1], [0, 1], [0, 0]]), torch.tensor([[1, 1], [1, -1], [-1, 0]])
    leaves = torch.tensor([[2, 1], [1, 1]], dtype=torch.float64)
    z = torch.randn(3, 2, dtype=torch.float64)
    left, right = F.logsigmoid(z), F.logsigmoid(-z)
    log_probs = torch.stack([left[:, 0] + left[:, 1], left[:, 0] + right[:, 1], right[:, 0]], dim=-1)
    scores = torch.stack([z[0].sum(), z[1, 0] - z[1, 1], -z[2, 0]])
    for target, every, turn in ((0.8, 0.05, 0.0), (1.0, 0.0, 0.3)):
        expected = -target * log_probs.diagonal() - every * log_probs.sum(-1) + turn * scores
        found = reference.node_cost(z, nodes, turns, leaves, CostWeights(target, every, turn))
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
