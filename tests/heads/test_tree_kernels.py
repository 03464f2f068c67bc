# SPDX-License-Identifier: Apache-2.0
"""The tree head's kernels and their PyTorch reference: exact values and gradients, equal bits for any threads."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numba import njit
from torch import Tensor

from wenet_hs.heads import HSoftmaxHead
from wenet_hs.heads.base import CostWeights
from wenet_hs.heads.hsoftmax import torch_cost_of_all_nodes
from wenet_hs.heads.kernels import numba_common
from wenet_hs.heads.kernels.tree_numba import sort_by_node
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


def small_head(num_units: int, dim: int = 5) -> HSoftmaxHead:
    torch.manual_seed(0)
    head = HSoftmaxHead(dim, Tree.huffman([1.0 / (1 + unit) for unit in range(num_units)]), bias=True)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("num_units", [2, 60])
def test_results_and_gradients_against_float64(num_units: int, scale: float) -> None:
    head, twin = small_head(num_units), small_head(num_units).double()
    hidden, targets = (scale * torch.randn(9, 5)).requires_grad_(), torch.randint(num_units, (9,))
    exact_hidden = hidden.detach().double().requires_grad_()
    for smoothing in (0.0, 0.2, None):
        expected = results(twin, exact_hidden, targets, smoothing)
        for head.route in ("path", "nodes"):
            for found, exact in zip(results(head, hidden, targets, smoothing), expected, strict=True):
                size = exact.abs().max().item() if exact.numel() else 0.0
                torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=2e-6 * max(size, 1.0))


def results(head: HSoftmaxHead, hidden: Tensor, targets: Tensor, smoothing: float | None) -> list[Tensor]:
    """The node loss, without smoothing all log-probabilities, and their gradients."""
    values = head.log_probs(hidden) if smoothing is None else head.loss(hidden, targets, smoothing, "node")
    weighted = values * torch.linspace(-1, 2, values.numel(), dtype=values.dtype).view_as(values)
    return [values, *torch.autograd.grad(weighted.sum(), (hidden, *head.parameters()))]


def test_a_nan_stays_a_nan() -> None:
    head, hidden = small_head(7), torch.full((1, 5), torch.nan)
    for head.route in ("path", "nodes"):
        assert head.loss(hidden, torch.tensor([0]), 0.1).isnan() and head.nll(hidden, torch.tensor([0])).isnan()
    assert head.log_probs(hidden).isnan().all()


@pytest.mark.parametrize("sparse", [False, True])
def test_no_rows(sparse: bool) -> None:
    head, hidden = HSoftmaxHead(2, Tree.huffman(range(1, 8)), sparse_grad=sparse), torch.randn(0, 2, requires_grad=True)
    cost = head.nll(hidden, torch.zeros(0, dtype=torch.int64))
    gradients = torch.autograd.grad(cost.sum(), (hidden, head.inner_vector.weight))
    assert gradients[0].shape == (0, 2) and not gradients[1].to_dense().any()


@pytest.mark.parametrize("num_nodes", [1, 3000, 5_000_000])
def test_decisions_are_sorted_by_node_then_row(num_nodes: int) -> None:
    nodes = np.random.default_rng(0).integers(num_nodes, size=2000).astype(np.int32)
    order, starts = sort_by_node(nodes, num_nodes)
    assert order.tolist() == np.argsort(nodes, kind="stable").tolist()
    assert np.array_equal(starts, np.append(np.unique(nodes[order], return_index=True)[1], 2000))


def test_the_same_bits_on_any_number_of_threads() -> None:
    head = small_head(700, dim=40)
    hidden, targets = torch.randn(301, 40, requires_grad=True), torch.randint(700, (301,))
    expected = results(head, hidden, targets, 0.1)
    torch.set_num_threads(2)
    try:
        found = results(head, hidden, targets, 0.1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert all(map(torch.equal, found, expected))


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
    for weights in (CostWeights(0.8, 0.05, 0.0), CostWeights(1.0, 0.0, 0.3)):
        expected = -weights.on_target * log_probs.diagonal() - weights.on_all * log_probs.sum(-1)
        expected += weights.per_decision * scores
        found = torch_cost_of_all_nodes(z, nodes, turns, leaves, weights)
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
