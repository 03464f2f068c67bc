# SPDX-License-Identifier: Apache-2.0
"""The tree head against the paper's own formulas, its settings, and its kernels.

Dimension key: N rows, D width, V units, I inner nodes, P longest path.
"""

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numba import njit
from torch import Tensor
from torch.overrides import TorchFunctionMode
from trees import comb

from wenet_hs.heads import HSoftmaxHead, hsoftmax, node_head
from wenet_hs.heads.kernels import numba_common
from wenet_hs.heads.kernels.tree_numba import sort_by_node
from wenet_hs.tree import Tree


def literal_algorithm_3(tree: Tree, vectors_ID: Tensor, hidden_ND: Tensor) -> Tensor:
    """The paper's Algorithm 3 word for word in float64, its V × depth tensor included.

    Padding has sign 0, bias 1.
    """
    depth = max(len(code) for code in tree.codes())
    index = torch.zeros(tree.num_units, depth, dtype=torch.int64)
    sign = torch.zeros(tree.num_units, depth, dtype=torch.float64)
    bias = torch.ones(tree.num_units, depth, dtype=torch.float64)
    for unit, code in enumerate(tree.codes()):
        node = 0
        for step, bit in enumerate(code):
            index[unit, step] = node
            sign[unit, step], bias[unit, step] = (1.0, 0.0) if bit == "0" else (-1.0, 1.0)
            node = int(tree.children[node, int(bit)])
    sigmoid_NI = torch.sigmoid(hidden_ND.double() @ vectors_ID.double().T)
    return torch.log(sign * sigmoid_NI[:, index] + bias).sum(-1)


@pytest.mark.parametrize("num_units", [2, 7, 300])
def test_equals_algorithm_3(num_units: int) -> None:
    torch.manual_seed(0)
    tree = Tree.huffman([1.0 / (1 + unit) if unit % 4 else 0.0 for unit in range(num_units)])
    head = HSoftmaxHead(16, tree)
    hidden_ND = torch.randn(5, 16)
    expected = literal_algorithm_3(tree, head.inner_vector.weight, hidden_ND)
    torch.testing.assert_close(head.log_probs(hidden_ND).double(), expected, atol=1e-5, rtol=1e-5)
    exact = head.double().log_probs(hidden_ND.double())
    torch.testing.assert_close(exact, expected, atol=1e-12, rtol=1e-12)


def test_the_three_leaves_of_figure_2() -> None:
    head = HSoftmaxHead(2, Tree.huffman([1, 2, 4]))
    with torch.no_grad():
        head.inner_vector.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    z1, z2 = torch.tensor(0.3), torch.tensor(-0.7)
    p1, p2 = torch.sigmoid(z1), torch.sigmoid(z2)
    expected = torch.stack([p1 * p2, p1 * (1 - p2), 1 - p1])
    torch.testing.assert_close(head.log_probs(torch.stack([z1, z2])).exp(), expected)


def test_parameters_have_the_names_of_the_original() -> None:
    tree = Tree.huffman(range(7))
    assert {
        name: tuple(value.shape) for name, value in HSoftmaxHead(4, tree).state_dict().items()
    } == {"inner_vector.weight": (6, 4)}
    assert set(HSoftmaxHead(4, tree, bias=True).state_dict()) == {
        "inner_vector.weight",
        "inner_vector.bias",
    }


def costs_and_best(
    head: HSoftmaxHead, kind: Any, smoothing: float, num_rows: int = 200
) -> list[Tensor]:
    """The loss of some rows, its gradients, and the best units."""
    generator = torch.Generator().manual_seed(1)
    hidden_ND = torch.randn(num_rows, head.dim, generator=generator).requires_grad_()
    targets_N = torch.randint(head.num_units, (num_rows,), generator=generator)
    cost_N = head.loss(hidden_ND, targets_N, smoothing, kind)
    gradients = torch.autograd.grad(
        (cost_N * torch.arange(1.0, num_rows + 1)).sum(), (hidden_ND, *head.parameters())
    )
    best = [head.topk(hidden_ND.detach()[:rows], 10) for rows in (2, num_rows)]
    return [cost_N.detach(), *gradients, *itertools.chain(*best)]


def set_kernels(monkeypatch: pytest.MonkeyPatch, has_kernels: bool) -> None:
    for module in (node_head, hsoftmax):
        monkeypatch.setattr(module, "can_use_kernels", lambda _: has_kernels)


COSTS = [("leaf", 0.0), ("leaf", 0.1), ("node", 0.1)]


def test_choice_of_a_route() -> None:
    on_cpu, on_gpu = torch.empty(0), torch.empty(0, device="meta")
    heads = {
        units: HSoftmaxHead(256, Tree.huffman(1.0 / np.arange(1, units + 1)))
        for units in (150, 2_000, 10_000)
    }
    assert all(head.uses_paths(on_cpu) for head in heads.values())
    assert heads[10_000].uses_paths(on_gpu) and not heads[2_000].uses_paths(
        on_gpu
    )  # 13 · 256 numbers for a path
    assert not HSoftmaxHead(4, comb(150)).uses_paths(on_cpu)
    assert HSoftmaxHead(4, comb(150), route="path").uses_paths(on_cpu)
    assert not HSoftmaxHead(4, heads[150].tree, route="all").uses_paths(on_cpu)


def test_settings_are_checked_and_printed() -> None:
    tree = Tree.huffman(range(1, 8))
    with pytest.raises(ValueError, match="route: must be one of auto, path, all, got 'fast'"):
        HSoftmaxHead(4, tree, route="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="search: must be one of auto, .*, got 'fast'"):
        HSoftmaxHead(4, tree, search="fast")  # type: ignore[arg-type]
    head = HSoftmaxHead(64, Tree.huffman([1.0] * 300))
    assert "num_units=300, depth=9, route=auto: path, search=auto" in repr(head)
    assert "route=auto: all" in repr(head.double())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_sparse_gradient_has_only_the_touched_rows(smoothing: float) -> None:
    tree = Tree.huffman([1.0] * 512)
    head = HSoftmaxHead(4, tree, sparse_grad=True)
    cost = head.loss(torch.randn(2, 4), torch.tensor([3, 3]), smoothing, "node").sum()
    (gradient,) = torch.autograd.grad(cost, head.inner_vector.weight)
    assert gradient.is_sparse and gradient.is_coalesced()
    nodes, _ = tree.paths()
    assert gradient.indices()[0].tolist() == sorted(nodes[3, :9])
    of_no_rows = torch.autograd.grad(
        head.nll(torch.randn(0, 4), torch.zeros(0).long()).sum(), head.inner_vector.weight
    )
    assert not of_no_rows[0].to_dense().any()
    assert head.sparse_parameters() == [head.inner_vector.weight]
    assert HSoftmaxHead(4, tree).sparse_parameters() == []


@pytest.mark.parametrize("route", ["path", "all"])
def test_a_comb_of_hundreds_of_levels(route: Any) -> None:
    head = HSoftmaxHead(4, comb(700), route=route)
    hidden, targets = torch.randn(2, 4), torch.tensor([5, 699])
    scores = (hidden.double() @ head.inner_vector.weight.double().T).detach()
    expected = [
        F.softplus(-scores[0, 5]) + F.softplus(scores[0, :5]).sum(),
        F.softplus(scores[1]).sum(),
    ]
    torch.testing.assert_close(
        head.nll(hidden, targets).double(), torch.stack(expected), rtol=1e-5, atol=0
    )
    log_probs = head.log_probs(hidden)
    torch.testing.assert_close(
        log_probs[[0, 1], targets].double(), -torch.stack(expected), rtol=1e-5, atol=0
    )
    labels = head.label_log_probs(hidden[None], targets[None])[0]
    torch.testing.assert_close(labels, log_probs[:, targets], rtol=1e-5, atol=0)


@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize("route", ["path", "all"])
def test_only_tensors_that_require_a_gradient_get_one(
    route: Any, has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_kernels(monkeypatch, has_kernels)
    hidden, targets = torch.randn(6, 8), torch.randint(20, (6,))
    for kind, smoothing in COSTS:
        head = HSoftmaxHead(8, Tree.huffman([1.0] * 20), bias=True, route=route)
        head.loss(hidden.detach(), targets, smoothing, kind).sum().backward()
        assert all(parameter.grad is not None for parameter in head.parameters())
        head.requires_grad_(False).zero_grad()
        wanted = hidden.clone().requires_grad_()
        head.loss(wanted, targets, smoothing, kind).mean().backward()
        assert wanted.grad is not None and all(
            parameter.grad is None for parameter in head.parameters()
        )


def test_tables_made_in_inference_mode_can_be_used_in_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_kernels(monkeypatch, False)
    head = HSoftmaxHead(8, Tree.huffman(range(1, 40)))
    hidden, targets = torch.randn(1, 6, 8), torch.randint(39, (1, 6))
    for kind, smoothing in COSTS:
        with torch.inference_mode():
            head.loss(hidden, targets, smoothing, kind)
        head.loss(hidden, targets, smoothing, kind).sum().backward()


def test_one_or_more_threads_and_concurrent_calls_give_the_same_bits() -> None:
    search: Any
    for search in ("best_first", "all"):
        head = HSoftmaxHead(
            16, Tree.huffman([1.0 / (1 + unit) for unit in range(400)]), bias=True, search=search
        )
        torch.set_num_threads(2)
        with_two = [costs_and_best(head, *cost) for cost in COSTS]
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        expected = [costs_and_best(head, *cost) for cost in COSTS]
        for (kind, smoothing), one, two in zip(COSTS, expected, with_two, strict=True):
            # With all nodes, the gradient of the hidden states is MKL's product: on AMD, two
            # threads change its sums.
            first = 2 if kind == "leaf" and smoothing else 0
            assert all(map(torch.equal, one[first:], two[first:]))
            torch.testing.assert_close(
                one, two, rtol=1e-5, atol=1e-4
            )  # of gradients up to several hundred
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(costs_and_best, head, *COSTS[i % 3]) for i in range(12)]
            for i, job in enumerate(jobs):
                assert all(map(torch.equal, job.result(), expected[i % 3]))


def test_a_confident_path_keeps_its_digits() -> None:
    # 1 - 1e-9 is 1 in float32: the original's cost is 0 here, or its gradient at the wrong turn.
    head = HSoftmaxHead(1, Tree.huffman([1.0] * 39 + [1e9]))
    with torch.no_grad():
        head.inner_vector.weight.fill_(1.0)
    rare, frequent = torch.tensor([0]), torch.tensor([39])
    hidden = torch.tensor([[-20.0]])  # turn right at the root, to the frequent unit
    assert head.nll(hidden, frequent).item() == pytest.approx(2.0611536e-9, rel=1e-5)
    hidden = torch.tensor([[-300.0]], requires_grad=True)
    cost = head.nll(hidden, rare)
    assert cost.item() > 300
    (gradient,) = torch.autograd.grad(cost.sum(), hidden)
    assert gradient.item() < -1


@pytest.mark.parametrize("has_kernels", [True, False])
def test_no_tensor_has_units_times_depth_elements(
    has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_kernels(monkeypatch, has_kernels)
    num_units, num_rows = 2000, 16
    tree = Tree.huffman([1.0] * num_units)
    head = HSoftmaxHead(4, tree)
    hidden, targets = torch.randn(num_rows, 4), torch.randint(num_units, (num_rows,))
    with LargestTensor() as seen:
        head.loss(hidden, targets, 0.1).sum().backward()
        head.nll(hidden, targets).sum().backward()
        head.topk(hidden, 10)
    assert num_rows * (num_units - 1) <= seen.largest <= num_rows * (2 * num_units - 1)
    assert seen.largest < num_rows * num_units * tree.depth / 5


class LargestTensor(TorchFunctionMode):
    """Records the largest number of elements of any result."""

    largest = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


# ---- the kernels


@njit  # type: ignore[untyped-decorator]
def both_functions(sizes: np.ndarray, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    exponentials, logarithms = np.empty_like(sizes), np.empty_like(units)
    for i in range(len(sizes)):
        exponentials[i] = numba_common.exp_minus(sizes[i])
        logarithms[i] = numba_common.log1p_unit(units[i])
    return exponentials, logarithms


def test_exp_and_log1p_to_2e_7() -> None:
    sizes = np.concatenate([np.linspace(0, 87, 50_001), np.geomspace(1e-30, 87, 10_001)]).astype(
        np.float32
    )
    units = np.concatenate([np.linspace(0, 1, 50_001), np.geomspace(1e-38, 1, 10_001)]).astype(
        np.float32
    )
    exponentials, logarithms = both_functions(sizes, units)
    np.testing.assert_allclose(exponentials, np.exp(-sizes.astype(np.float64)), rtol=2e-7)
    np.testing.assert_allclose(logarithms, np.log1p(units.astype(np.float64)), rtol=2e-7)
    sizes, units = (
        np.array([0, 1e4, np.inf, np.nan], np.float32),
        np.array([0, 1, 1e-40, np.nan], np.float32),
    )
    exponentials, logarithms = both_functions(sizes, units)
    assert exponentials[0] == 1 and (exponentials[1:3] < 2e-38).all() and np.isnan(exponentials[3])
    assert logarithms[0] == 0 and logarithms[2] == np.float32(1e-40) and np.isnan(logarithms[3])


@pytest.mark.parametrize("num_nodes", [1, 3000, 5_000_000])
def test_decisions_are_sorted_by_node_then_row(num_nodes: int) -> None:
    nodes = np.random.default_rng(0).integers(num_nodes, size=2000).astype(np.int32)
    order, starts = sort_by_node(nodes, num_nodes)
    assert order.tolist() == np.argsort(nodes, kind="stable").tolist()
    assert np.array_equal(starts, np.append(np.unique(nodes[order], return_index=True)[1], 2000))


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
    environment = {
        name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")
    }
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout == "1\n"


def test_nodes_above_units() -> None:
    """By hand: of four units in a balanced tree the first is left, left and the last right, right."""
    nodes, is_on_path = hsoftmax.nodes_above(Tree.balanced(np.ones(4)), np.array([0, 3]))
    assert nodes.tolist() == [0, 1, 2]
    assert is_on_path[0].tolist() == [[True, False], [True, False], [False, False]]
    assert is_on_path[1].tolist() == [[False, True], [False, False], [False, True]]
