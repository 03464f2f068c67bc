# SPDX-License-Identifier: Apache-2.0
"""The tree head against the paper's own formulas, and its routes against each other.

Dimension key: N rows, D width, V units, I inner nodes, P longest path.
"""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from wenet_hs.heads import HSoftmaxHead
from wenet_hs.heads.hsoftmax import Route, RouteOption
from wenet_hs.tree import Tree


def literal_algorithm_3(tree: Tree, vectors_ID: Tensor, hidden_ND: Tensor) -> Tensor:
    """The paper's Algorithm 3 word for word in float64, its V × depth tensor included. Padding has sign 0, bias 1."""
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
    assert {name: tuple(value.shape) for name, value in HSoftmaxHead(4, tree).state_dict().items()} == {
        "inner_vector.weight": (6, 4)
    }
    assert set(HSoftmaxHead(4, tree, bias=True).state_dict()) == {"inner_vector.weight", "inner_vector.bias"}


def costs_and_gradients(head: HSoftmaxHead, kind: str, smoothing: float, num_rows: int = 30) -> list[Tensor]:
    """The loss of some rows, each weighted otherwise, and its gradient in hidden and in the parameters, all dense."""
    generator = torch.Generator().manual_seed(1)
    hidden_ND = torch.randn(num_rows, head.dim, generator=generator).requires_grad_()
    targets_N = torch.randint(head.num_units, (num_rows,), generator=generator)
    cost_N = head.loss(hidden_ND, targets_N, smoothing, kind)  # type: ignore[arg-type]
    gradients = torch.autograd.grad((cost_N * torch.arange(1.0, num_rows + 1)).sum(), (hidden_ND, *head.parameters()))
    return [cost_N.detach(), *(gradient.to_dense() for gradient in gradients)]


COSTS = [("leaf", 0.0), ("leaf", 0.1), ("node", 0.1)]
ROUTES = ("path", "nodes", "torch-path", "torch-nodes")


def choose(num_units: int, mean_path: float = 8.0, route: RouteOption = "auto", **options: Any) -> Route:
    head = HSoftmaxHead(256, Tree.huffman(1.0 / np.arange(1, num_units + 1)), route=route)
    head._mean_path = mean_path
    return head.cost_route(**{"device_type": "cpu", "dtype": torch.float32, "every_unit": False} | options)


def test_choice_of_a_route() -> None:
    assert choose(10_000) == choose(150) == "path"
    assert choose(150, 75.0) == "nodes"  # a comb
    assert choose(10_000, every_unit=True) == "nodes"
    assert choose(10_000, dtype=torch.float64) == choose(150, route="torch-path") == "torch-path"
    assert choose(150, dtype=torch.float64) == "torch-nodes"
    assert choose(10_000, device_type="cuda") == "torch-path"
    assert choose(2_000, device_type="cuda") == "torch-nodes"  # 13 · 256 numbers for a path
    assert choose(10_000, device_type="cuda", every_unit=True) == "torch-nodes"
    assert choose(10_000, route="nodes") == choose(10_000, route="path", every_unit=True) == "nodes"
    assert choose(150, 75.0, route="path") == "path"
    assert choose(10_000, route="torch-path", every_unit=True) == choose(150, route="torch-nodes") == "torch-nodes"


def test_settings_are_checked_and_printed() -> None:
    tree = Tree.huffman(range(1, 8))
    with pytest.raises(ValueError, match="route: must be one of auto, path, .*, got 'fast'"):
        HSoftmaxHead(4, tree, route="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="search: must be one of auto, .*, got 'fast'"):
        HSoftmaxHead(4, tree, search="fast")  # type: ignore[arg-type]
    head = HSoftmaxHead(4, tree, route="path").double()
    with pytest.raises(ValueError, match='route: "path" is a Numba kernel for float32 on a CPU, here is torch.float64'):
        head.nll(torch.zeros(1, 4, dtype=torch.float64), torch.tensor([0]))
    with pytest.raises(ValueError, match='route: "nodes" is a Numba kernel .* here is torch.float32 on cuda'):
        choose(100, device_type="cuda", route="nodes")
    assert "route=path" in repr(head)
    head = HSoftmaxHead(8, Tree.huffman([1.0] * 300))
    assert "num_units=300, depth=9, route=auto: path and nodes, search=auto" in repr(head)
    assert "route=auto: torch-nodes and torch-nodes" in repr(head.double())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_sparse_gradient_has_only_the_touched_rows(smoothing: float) -> None:
    tree = Tree.huffman([1.0] * 512)
    head = HSoftmaxHead(4, tree, sparse_grad=True)
    cost = head.loss(torch.randn(2, 4), torch.tensor([3, 3]), smoothing, "node").sum()
    (gradient,) = torch.autograd.grad(cost, head.inner_vector.weight, retain_graph=True)
    assert gradient.is_sparse and gradient.is_coalesced()
    nodes, _ = tree.paths()
    assert gradient.indices()[0].tolist() == sorted(nodes[3, :9])
    assert head.sparse_parameters() == [head.inner_vector.weight]
    assert HSoftmaxHead(4, tree).sparse_parameters() == []
    before = head.inner_vector.weight.detach().clone()
    cost.backward()
    torch.optim.SparseAdam(head.sparse_parameters()).step()
    moved = (head.inner_vector.weight != before).any(-1).nonzero()[:, 0]
    assert moved.tolist() == sorted(nodes[3, :9])


@pytest.mark.parametrize(("num_units", "route"), [(600, "auto"), (2000, "torch-path")])
def test_labels_have_the_log_probabilities_of_all_units(num_units: int, route: Any) -> None:
    torch.manual_seed(0)
    head = HSoftmaxHead(8, Tree.huffman([1.0 / (1 + unit) for unit in range(num_units)]), route == "auto", route=route)
    hidden = torch.randn(3, 5, 8).requires_grad_()
    labels = torch.randint(num_units, (3, 6))
    labels[1] = labels[1, 0]  # a label that repeats
    expected = head.log_probs(hidden).gather(-1, labels[:, None].expand(-1, 5, -1))
    found = head.label_log_probs(hidden, labels)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    weights = torch.randn(3, 5, 6)
    inputs = (hidden, *head.parameters())
    gradients = [torch.autograd.grad((cost * weights).sum(), inputs) for cost in (found, expected)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)
    assert head.label_log_probs(hidden, labels[:, :0]).shape == (3, 5, 0)
    assert head.label_log_probs(hidden[:0], labels[:0]).shape == (0, 5, 6)


@pytest.mark.parametrize("route", ["auto", "torch-path"])
def test_a_comb_of_hundreds_of_levels(route: Any) -> None:
    num_units = 700
    children = np.stack([num_units - 1 + np.arange(num_units - 1), 1 + np.arange(num_units - 1)], axis=1)
    children[-1, 1] = 2 * num_units - 2
    units = tuple(map(str, range(num_units)))
    tree = Tree("comb", units, children, np.r_[1.0, np.zeros(num_units - 1)])
    head = HSoftmaxHead(4, tree, route=route)
    hidden, targets = torch.randn(2, 4), torch.tensor([5, num_units - 1])
    scores = (hidden.double() @ head.inner_vector.weight.double().T).detach()
    expected = [F.softplus(-scores[0, 5]) + F.softplus(scores[0, :5]).sum(), F.softplus(scores[1]).sum()]
    torch.testing.assert_close(head.nll(hidden, targets).double(), torch.stack(expected), rtol=1e-5, atol=0)
    log_probs = head.log_probs(hidden)
    torch.testing.assert_close(log_probs[[0, 1], targets].double(), -torch.stack(expected), rtol=1e-5, atol=0)
    labels = head.label_log_probs(hidden[None], targets[None])[0]
    torch.testing.assert_close(labels, log_probs[:, targets], rtol=1e-5, atol=0)


@pytest.mark.parametrize(("kind", "smoothing"), COSTS)
@pytest.mark.parametrize("route", ROUTES)
def test_only_tensors_that_require_a_gradient_get_one(route: Any, kind: Any, smoothing: float) -> None:
    head = HSoftmaxHead(8, Tree.huffman([1.0] * 20), bias=True, route=route)
    hidden, targets = torch.randn(6, 8), torch.randint(20, (6,))
    head.loss(hidden, targets, smoothing, kind).sum().backward()
    assert hidden.grad is None and all(parameter.grad is not None for parameter in head.parameters())
    head.requires_grad_(False).zero_grad()
    hidden.requires_grad_()
    head.loss(hidden, targets, smoothing, kind).mean().backward()
    assert hidden.grad is not None and all(parameter.grad is None for parameter in head.parameters())
    with torch.no_grad():
        assert not head.loss(hidden, targets, smoothing, kind).requires_grad


def test_copies_and_pickles_keep_the_tree() -> None:
    head = HSoftmaxHead(8, Tree.huffman(range(1, 40)), bias=True)
    hidden, targets = torch.randn(6, 8), torch.randint(39, (6,))
    expected = head.loss(hidden, targets, 0.1)
    for twin in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert twin.tree == head.tree
        assert torch.equal(twin.loss(hidden, targets, 0.1), expected)
        assert torch.equal(twin.log_probs(hidden), head.log_probs(hidden))


def test_tables_made_in_inference_mode_can_be_used_in_training() -> None:
    head = HSoftmaxHead(8, Tree.huffman(range(1, 40)), route="torch-path")
    hidden, targets = torch.randn(1, 6, 8), torch.randint(39, (1, 6))
    costs: list[Callable[[], Tensor]] = [
        lambda: head.log_probs(hidden),
        lambda: head.loss(hidden, targets, 0.1),
        lambda: head.loss(hidden, targets, 0.1, "node"),
    ]
    for cost in costs:
        with torch.inference_mode():
            cost()
        cost().sum().backward()


def test_concurrent_threads_get_the_same_results() -> None:
    head = HSoftmaxHead(16, Tree.huffman([1.0 / (1 + unit) for unit in range(400)]))
    expected = [costs_and_gradients(head, kind, smoothing, 200) for kind, smoothing in COSTS]
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(costs_and_gradients, head, *COSTS[i % 3], 200) for i in range(24)]
        for i, job in enumerate(jobs):
            assert all(map(torch.equal, job.result(), expected[i % 3]))


@pytest.mark.parametrize("num_units", [40, 400])  # of each route
def test_a_confident_path_keeps_its_digits(num_units: int) -> None:
    # 1 - 1e-9 is 1 in float32: the original's cost is 0 here, or its gradient at the wrong turn.
    head = HSoftmaxHead(1, Tree.huffman([1.0] * (num_units - 1) + [1e9]))
    with torch.no_grad():
        head.inner_vector.weight.fill_(1.0)
    rare, frequent = torch.tensor([0]), torch.tensor([num_units - 1])
    hidden = torch.tensor([[-20.0]])  # turn right at the root, to the frequent unit
    assert head.nll(hidden, frequent).item() == pytest.approx(2.0611536e-9, rel=1e-5)
    hidden = torch.tensor([[-300.0]], requires_grad=True)
    cost = head.nll(hidden, rare)
    assert cost.item() > 300
    (gradient,) = torch.autograd.grad(cost.sum(), hidden)
    assert gradient.item() < -1


@pytest.mark.parametrize("route", ["auto", "torch-nodes"])
def test_no_tensor_has_units_times_depth_elements(route: Any) -> None:
    num_units, num_rows = 2000, 16
    tree = Tree.huffman([1.0] * num_units)
    head = HSoftmaxHead(4, tree, route=route)
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
