# SPDX-License-Identifier: Apache-2.0
"""The softmax's loss for many units: the cost and its gradients are those of the plain computation."""

import pytest
import torch
from torch import Tensor

from wenet_hs.heads import base, softmax
from wenet_hs.heads.softmax import SoftmaxHead
from wenet_hs.train.optim import matmul_precision

ROWS, DIM, UNITS = 11, 6, 23


@pytest.fixture(autouse=True)
def _few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "MANY_UNITS", UNITS)
    monkeypatch.setattr(softmax, "BLOCK_VALUES", 3 * UNITS)


def head_and_rows(dtype: torch.dtype) -> tuple[SoftmaxHead, Tensor, Tensor]:
    torch.manual_seed(3)
    hidden = 4 * torch.randn(ROWS, DIM, dtype=dtype)
    return SoftmaxHead(DIM, UNITS).to(dtype), hidden.requires_grad_(), torch.randint(UNITS, (ROWS,))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cost_and_gradients_of_many_units(smoothing: float) -> None:
    head, hidden, targets = head_and_rows(torch.float64)
    parameters = (hidden, head.output.weight, head.output.bias)
    expected = head.loss(hidden, targets, smoothing)
    without_gradient = head.loss(hidden.detach(), targets, smoothing)
    assert torch.autograd.gradcheck(lambda *_: head.loss(hidden, targets, smoothing), parameters)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(softmax, "MANY_UNITS", UNITS + 1)
        plain = head.loss(hidden, targets, smoothing)
    torch.testing.assert_close(expected, plain)
    torch.testing.assert_close(expected, without_gradient)


def test_a_second_backward_gives_the_same_gradient() -> None:
    head, hidden, targets = head_and_rows(torch.float32)
    weights = torch.linspace(-1, 1, ROWS)
    cost = (head.nll(hidden, targets) * weights).sum()
    first = torch.autograd.grad(cost, head.output.weight, retain_graph=True)[0].clone()
    torch.testing.assert_close(
        torch.autograd.grad(cost, head.output.weight)[0], first, rtol=0, atol=0
    )


def test_frozen_weights_get_no_gradient() -> None:
    head, hidden, targets = head_and_rows(torch.float32)
    head.requires_grad_(False)
    head.nll(hidden, targets).sum().backward()
    assert hidden.grad is not None and head.output.weight.grad is None


def test_no_overflow_with_large_scores() -> None:
    head, hidden, targets = head_and_rows(torch.float32)
    cost = head.nll(1e4 * hidden, targets)
    cost.sum().backward()
    assert (
        bool(cost.isfinite().all())
        and hidden.grad is not None
        and bool(hidden.grad.isfinite().all())
    )


@pytest.mark.skipif(
    not torch.cpu._is_amx_tile_supported(), reason="oneDNN rounds to bfloat16 only with AMX"
)
def test_products_in_bfloat16_change_the_gradient_a_little() -> None:
    gradients = []
    for name in ("highest", "medium"):
        torch.manual_seed(3)
        head, hidden = SoftmaxHead(256, 4096), torch.randn(256, 256).requires_grad_()
        with matmul_precision(name, torch.device("cpu")):
            head.nll(hidden, torch.arange(256)).sum().backward()
        assert hidden.grad is not None
        gradients.append(
            torch.cat([hidden.grad.flatten(), *(x.grad.flatten() for x in head.parameters())])
        )  # type: ignore[union-attr]
    exact, rounded = gradients
    assert 1e-6 < float((exact - rounded).norm() / exact.norm()) < 1e-3


def test_without_gradients_many_rows_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head, hidden, targets = SoftmaxHead(4, 6), torch.randn(10, 4), torch.arange(10) % 6
    expected = head.nll(hidden, targets), head.loss(hidden, targets, 0.1)
    sizes = list[int]()
    whole = head._log_probs
    monkeypatch.setattr(head, "_log_probs", lambda rows: (sizes.append(len(rows)), whole(rows))[1])
    monkeypatch.setattr(base, "TOPK_MAX_SCORES", 20)
    with torch.no_grad():
        found = head.nll(hidden, targets), head.loss(hidden, targets, 0.1)
    assert sizes == [3, 3, 3, 1] * 2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_metrics_of_log_probs() -> None:
    log_probs = torch.tensor([[0.25, 0.5, 0.25], [0.4, 0.4, 0.2]]).log()
    nll, is_best = base.metrics_of_log_probs(log_probs, torch.tensor([1, 1]))
    torch.testing.assert_close(nll, -torch.tensor([0.5, 0.4]).log())
    assert is_best.tolist() == [True, False]  # of the equal units the first is ranked first
