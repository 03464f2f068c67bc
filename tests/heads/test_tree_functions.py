# SPDX-License-Identifier: Apache-2.0
"""The tree head's plain functions: exact values, right gradients, over the whole range of floats."""

import pytest
import torch
import torch.nn.functional as F

from wenet_hs.heads.kernels.reference import (
    CostWeights,
    both_log_sigmoids,
    path_cost,
    path_scores,
    smoothed_path_cost,
    sparse_rows,
    with_sparse_gradient,
)


def test_log_sigmoids_are_exact_in_float32() -> None:
    z = torch.cat([torch.linspace(-80, 80, 20001), torch.tensor([-1e4, -1e-8, 0.0, 1e-8, 1e4])])
    left, right = both_log_sigmoids(z)
    exact = F.logsigmoid(z.double())
    normal = exact < -1e-37  # below that float32 has fewer digits itself
    torch.testing.assert_close(left.double()[normal], exact[normal], rtol=1e-6, atol=0)
    torch.testing.assert_close(right, both_log_sigmoids(-z)[0], rtol=0, atol=0)


def test_log_sigmoids_at_the_ends() -> None:
    left, right = both_log_sigmoids(torch.tensor([float("inf"), float("-inf"), float("nan")]))
    assert left[:2].tolist() == [0, float("-inf")]
    assert right[:2].tolist() == [float("-inf"), 0]
    assert left[2].isnan() and right[2].isnan()


def test_gradients_of_log_sigmoids() -> None:
    z = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(both_log_sigmoids, (z,))
    extreme = torch.tensor([-1e4, 0.0, 1e4], requires_grad=True)
    left, right = both_log_sigmoids(extreme)
    (gradient,) = torch.autograd.grad(left.sum() + 10 * right.sum(), extreme)
    assert gradient.tolist() == [1.0, -4.5, -10.0]


# Figure 2's tree: node 0 has nodes (0, 1) on the left, one leaf on the right; rows want units 0, 1 and 2.
NODES = torch.tensor([[0, 1], [0, 1], [0, 0]])
TURNS = torch.tensor([[1, 1], [1, -1], [-1, 0]])
LEAVES = torch.tensor([[2, 1], [1, 1]], dtype=torch.float64)


def test_smoothed_path_cost_by_hand() -> None:
    z = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)

    def cost(z: torch.Tensor) -> torch.Tensor:
        return smoothed_path_cost(z, NODES, TURNS, LEAVES, CostWeights(0.8, 0.05, 0.0))

    left, right = F.logsigmoid(z), F.logsigmoid(-z)
    log_probs = torch.stack([left[:, 0] + left[:, 1], left[:, 0] + right[:, 1], right[:, 0]], dim=-1)
    expected = -0.8 * log_probs.diagonal() - 0.05 * log_probs.sum(-1)
    torch.testing.assert_close(cost(z), expected, atol=1e-12, rtol=1e-12)
    assert torch.autograd.gradcheck(cost, (z,))


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_smoothed_path_cost_holds_in_float32(scale: float) -> None:
    z = (scale * torch.randn(3, 2, generator=torch.Generator().manual_seed(0))).requires_grad_()
    exact = z.detach().double().requires_grad_()
    found = smoothed_path_cost(z, NODES, TURNS, LEAVES.float(), CostWeights(0.8, 0.05, 0.0))
    expected = smoothed_path_cost(exact, NODES, TURNS, LEAVES, CostWeights(0.8, 0.05, 0.0))
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    gradients = torch.autograd.grad(found.sum(), z)[0].double(), torch.autograd.grad(expected.sum(), exact)[0]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_without_gradients_nothing_is_kept() -> None:
    cost = smoothed_path_cost(torch.zeros(3, 2), NODES, TURNS, LEAVES.float(), CostWeights(1.0, 0.0, 0.0))
    assert not cost.requires_grad
    torch.testing.assert_close(cost, torch.tensor([2.0, 2.0, 1.0]) * torch.log(torch.tensor(2.0)))


def test_the_turns_are_smoothed_by_their_scores() -> None:
    # -(1-ε)·log σ(s) - ε·log σ(-s) at each turn of the path.
    z = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)

    def cost(z: torch.Tensor) -> torch.Tensor:
        return smoothed_path_cost(z, NODES, TURNS, LEAVES, CostWeights(1.0, 0.0, 0.3))

    scores = z.gather(1, NODES) * TURNS
    expected = -((0.7 * F.logsigmoid(scores) + 0.3 * F.logsigmoid(-scores)) * TURNS.abs()).sum(-1)
    torch.testing.assert_close(cost(z), expected, atol=1e-12, rtol=1e-12)
    assert torch.autograd.gradcheck(cost, (z,))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_path_scores_touch_what_the_product_of_all_nodes_gives(bias: bool, sparse: bool) -> None:
    hidden, weight = torch.randn(3, 4, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    bias_I = torch.randn(2, dtype=torch.float64) if bias else None
    scores = path_scores(hidden, weight, bias_I, NODES, TURNS, sparse=sparse)
    z = F.linear(hidden, weight, bias_I)
    torch.testing.assert_close(scores, z.gather(1, NODES) * TURNS)
    expected = smoothed_path_cost(z, NODES, TURNS, LEAVES, CostWeights(1.0, 0.0, 0.2))
    torch.testing.assert_close(path_cost(scores, TURNS, 0.2), expected)
    (gradient,) = torch.autograd.grad(path_cost(scores, TURNS, 0.2).sum(), weight)
    (wanted,) = torch.autograd.grad(expected.sum(), weight)
    assert gradient.is_sparse == sparse
    torch.testing.assert_close(gradient.to_dense() if sparse else gradient, wanted)


def test_sparse_rows_are_coalesced() -> None:
    rows = sparse_rows(torch.tensor([1, 3]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.Size([5, 2]))
    assert rows.is_coalesced()
    assert rows.to_dense().tolist() == [[0, 0], [1, 2], [0, 0], [3, 4], [0, 0]]


def test_a_dense_gradient_becomes_sparse_with_all_its_rows() -> None:
    weight = torch.randn(3, 2, requires_grad=True)
    same = with_sparse_gradient(weight)
    assert torch.equal(same, weight)
    (gradient,) = torch.autograd.grad((same * torch.arange(6.0).reshape(3, 2)).sum(), weight)
    assert gradient.is_sparse and gradient.is_coalesced()
    assert gradient.to_dense().tolist() == [[0, 1], [2, 3], [4, 5]]
