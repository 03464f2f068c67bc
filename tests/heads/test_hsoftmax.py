# SPDX-License-Identifier: Apache-2.0
"""The tree head against the paper's own formulas, and both of its routes against each other.

Dimension key: N rows, D width, V units, I inner nodes, P longest path.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from wenet_hs.heads import HSoftmaxHead, hsoftmax
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


@pytest.mark.parametrize("num_units", [2, 3, 7, 50, 300])
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
    assert HSoftmaxHead(4, Tree.huffman([1])).inner_vector.weight.shape == (0, 4)


@pytest.mark.parametrize("bias", [False, True])
def test_both_routes_of_the_path_loss_agree(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head = HSoftmaxHead(8, Tree.huffman([2.0**-unit for unit in range(40)]), bias=bias)
    hidden, targets = torch.randn(30, 8, requires_grad=True), torch.randint(40, (30,))
    results = []
    for smallest in (1, 10**9):
        monkeypatch.setattr(hsoftmax, "PATH_ROUTE_MIN_UNITS", smallest)
        cost = head.nll(hidden, targets)
        results.append((cost, *torch.autograd.grad(cost.sum(), (hidden, *head.parameters()))))
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_units", [40, 400])  # one of each route
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


def test_untrained_nodes_give_the_code_lengths() -> None:
    tree = Tree.huffman([5, 9, 12, 13, 16])
    head = HSoftmaxHead(3, tree)
    torch.nn.init.zeros_(head.inner_vector.weight)
    bits = -head.log_probs(torch.randn(3)) / torch.log(torch.tensor(2.0))
    torch.testing.assert_close(bits, torch.tensor(tree.depths(), dtype=torch.float32))


def test_a_leaf_uniform_target_needs_only_the_leaf_counts() -> None:
    # The identity behind the smoothed loss: Σ_v log P(v) = Σ_n [L_n log σ(z_n) + R_n log σ(-z_n)].
    torch.manual_seed(0)
    tree = Tree.huffman([0.0] * 20 + [3.0, 1.0, 4.0, 1.0, 5.0])
    head = HSoftmaxHead(6, tree).double()
    hidden = torch.randn(4, 6, dtype=torch.float64)
    scores = hidden @ head.inner_vector.weight.T
    left, right = torch.tensor(tree.leaf_counts(), dtype=torch.float64).unbind(1)
    expected = F.logsigmoid(scores) @ left + F.logsigmoid(-scores) @ right
    torch.testing.assert_close(head.log_probs(hidden).sum(-1), expected, atol=1e-12, rtol=1e-12)


def test_never_makes_a_tensor_of_units_by_depth() -> None:
    num_units, num_rows = 2000, 16
    tree = Tree.huffman([1.0] * num_units)
    head = HSoftmaxHead(4, tree)
    hidden, targets = torch.randn(num_rows, 4), torch.randint(num_units, (num_rows,))
    with LargestTensor() as seen:
        head.loss(hidden, targets, 0.1).sum().backward()
        head.nll(hidden, targets).sum().backward()
        head.topk(hidden, 10)
    assert num_rows * num_units <= seen.largest <= num_rows * (2 * num_units - 1)
    assert seen.largest < num_rows * num_units * tree.depth / 5


class LargestTensor(TorchFunctionMode):
    """Notes the greatest number of elements that any operation gives."""

    largest = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


def test_moves_and_casts_as_a_module_without_losing_the_tree() -> None:
    head = HSoftmaxHead(4, Tree.huffman(range(1, 3000)))
    before = head.nodes.clone(), head.leaves.clone()
    head.to(torch.bfloat16)
    assert torch.equal(head.nodes, before[0]) and torch.equal(head.leaves, before[1])
    assert head.leaves[0].sum().item() + head.leaves[1].sum().item() > 256  # bfloat16 would have rounded these
