# SPDX-License-Identifier: Apache-2.0
"""What every output head promises, judged on every head and every shape of tree: a new head is added to HEADS alone.

Dimension key: N rows, D width, V units, K best.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from wenet_hs.heads import HSoftmaxHead, OutputHead, SoftmaxHead
from wenet_hs.tree import Tree

DIM = 8
NUM_UNITS = (1, 2, 3, 7, 50, 300)
FREQUENCIES: dict[str, Callable[[int], np.ndarray]] = {
    "zipf": lambda v: 1.0 / np.arange(1, v + 1),
    "skewed": lambda v: 2.0 ** -np.arange(v, dtype=np.float64),
    "zero_heavy": lambda v: np.where(np.arange(v) % 10 == 0, 1.0, 0.0),
}


def make_head(kind: str, num_units: int) -> OutputHead:
    torch.manual_seed(num_units)
    if kind == "softmax":
        return SoftmaxHead(DIM, num_units)
    shape, _, bias = kind.partition("+")
    head = HSoftmaxHead(DIM, Tree.huffman(FREQUENCIES[shape](num_units)), bias=bool(bias))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head


HEADS = ("softmax", *FREQUENCIES, "zipf+bias")
CASES = [pytest.param(kind, v, id=f"{kind}-{v}") for kind in HEADS for v in NUM_UNITS]
SMALL = [pytest.param(kind, v, id=f"{kind}-{v}") for kind in HEADS for v in (1, 2, 7)]


def rows(head: OutputHead, num_rows: int = 6, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(num_rows, DIM, generator=generator, dtype=dtype)
    return hidden, torch.randint(head.num_units, (num_rows,), generator=generator)


@pytest.mark.parametrize(("kind", "num_units"), CASES)
def test_each_row_is_a_distribution(kind: str, num_units: int) -> None:
    head = make_head(kind, num_units)
    log_probs = head.log_probs(rows(head)[0])
    assert log_probs.shape == (6, num_units)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(6), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("kind", "num_units"), CASES)
def test_nll_and_unsmoothed_loss_are_the_log_prob_of_the_target(kind: str, num_units: int) -> None:
    head = make_head(kind, num_units)
    hidden, targets = rows(head)
    expected = -head.log_probs(hidden).gather(-1, targets[:, None])[:, 0]
    torch.testing.assert_close(head.nll(hidden, targets), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(head.loss(hidden, targets, 0.0), head.nll(hidden, targets))


@pytest.mark.parametrize("smoothing", [0.1, 0.9])
@pytest.mark.parametrize(("kind", "num_units"), CASES)
def test_loss_is_the_divergence_from_the_smoothed_target(kind: str, num_units: int, smoothing: float) -> None:
    head = make_head(kind, num_units)
    hidden, targets = rows(head)
    loss = head.loss(hidden, targets, smoothing)
    wanted_NV = torch.full((6, num_units), smoothing / max(num_units - 1, 1))
    wanted_NV.scatter_(1, targets[:, None], 1 - smoothing if num_units > 1 else 1.0)
    expected = F.kl_div(head.log_probs(hidden), wanted_NV, reduction="none").sum(-1)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    assert (loss >= -1e-6).all()


@pytest.mark.parametrize(("kind", "num_units"), CASES)
def test_topk_is_the_sorted_distribution(kind: str, num_units: int) -> None:
    head = make_head(kind, num_units)
    hidden, _ = rows(head)
    best = head.log_probs(hidden).sort(dim=-1, descending=True, stable=True)
    for k in {1, min(5, num_units), num_units}:
        values, ids = head.topk(hidden, k)
        assert torch.equal(values, best.values[:, :k])
        assert torch.equal(ids, best.indices[:, :k])


@pytest.mark.parametrize("kind", HEADS)
def test_equal_units_come_in_the_order_of_their_ids(kind: str) -> None:
    head = make_head(kind, 50)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    values, ids = head.topk(torch.zeros(2, DIM), 20)
    order = sorted(range(50), key=lambda unit: (-head.log_probs(torch.zeros(DIM))[unit].item(), unit))
    assert ids.tolist() == [order[:20]] * 2
    assert (values[:, :-1] >= values[:, 1:]).all()


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,), (2, 0, 3)])
@pytest.mark.parametrize(("kind", "num_units"), SMALL)
def test_any_leading_shape(kind: str, num_units: int, shape: tuple[int, ...]) -> None:
    head = make_head(kind, num_units)
    hidden, targets = torch.randn(*shape, DIM), torch.zeros(shape, dtype=torch.int32)
    assert head.log_probs(hidden).shape == (*shape, num_units)
    assert head.nll(hidden, targets).shape == head.loss(hidden, targets, 0.1).shape == shape
    values, ids = head.topk(hidden, 1)
    assert values.shape == ids.shape == (*shape, 1)
    assert ids.dtype == torch.int64


@pytest.mark.parametrize("kind", HEADS)
def test_rows_do_not_see_each_other(kind: str) -> None:
    head = make_head(kind, 300)
    hidden, targets = rows(head)
    for smoothing in (0.0, 0.1):
        alone = torch.cat([head.loss(hidden[i : i + 1], targets[i : i + 1], smoothing) for i in range(len(hidden))])
        torch.testing.assert_close(head.loss(hidden, targets, smoothing), alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", HEADS)
def test_autocast_and_half_inputs_change_nothing(kind: str, low: torch.dtype) -> None:
    head = make_head(kind, 50)
    hidden, targets = rows(head)
    hidden = hidden.to(low)
    exact = head.log_probs(hidden.float()), head.loss(hidden.float(), targets, 0.1), head.nll(hidden.float(), targets)
    with torch.autocast("cpu", dtype=low):
        found = head.log_probs(hidden), head.loss(hidden, targets, 0.1), head.nll(hidden, targets)
        values, _ = head.topk(hidden, 3)
    for got, expected in zip(found, exact, strict=True):
        assert got.dtype == torch.float32
        assert torch.equal(got, expected)
    assert values.dtype == torch.float32


@pytest.mark.parametrize("kind", HEADS)
def test_half_weights_are_computed_in_float32(kind: str) -> None:
    head = make_head(kind, 50).to(torch.bfloat16)
    hidden, targets = rows(head)
    twin = make_head(kind, 50)
    twin.load_state_dict({name: value.float() for name, value in head.state_dict().items()})
    for smoothing in (0.0, 0.1):
        assert torch.equal(head.loss(hidden, targets, smoothing), twin.loss(hidden, targets, smoothing))


@pytest.mark.parametrize("kind", HEADS)
def test_float64_stays_float64(kind: str) -> None:
    head = make_head(kind, 7).double()
    hidden, targets = rows(head, dtype=torch.float64)
    log_probs = head.log_probs(hidden)
    assert log_probs.dtype == head.loss(hidden, targets, 0.1).dtype == torch.float64
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(6, dtype=torch.float64), atol=1e-14, rtol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("kind", "num_units"), CASES)
def test_gradients_stay_finite_at_extreme_scores(kind: str, num_units: int, smoothing: float) -> None:
    head = make_head(kind, num_units)
    hidden, targets = rows(head)
    hidden = (1e4 * hidden).requires_grad_()
    loss = head.loss(hidden, targets, smoothing).sum()
    loss.backward()
    assert math.isfinite(loss.item())
    for tensor in (hidden, *head.parameters()):
        assert tensor.grad is not None and tensor.grad.isfinite().all()
    assert head.log_probs(hidden).isfinite().all()


@pytest.mark.parametrize(("kind", "num_units"), SMALL)
def test_gradients_are_right(kind: str, num_units: int) -> None:
    head = make_head(kind, num_units).double()
    hidden, targets = rows(head, 3, torch.float64)
    # gradcheck moves its inputs in place, so handing it the parameters checks their gradients as well.
    inputs = (hidden.requires_grad_(), *(parameter for parameter in head.parameters() if parameter.numel()))
    assert torch.autograd.gradcheck(lambda hidden, *_: head.log_probs(hidden), inputs)
    for smoothing in (0.0, 0.1):
        assert torch.autograd.gradcheck(lambda hidden, *_: head.loss(hidden, targets, smoothing), inputs)  # noqa: B023


@pytest.mark.parametrize("kind", HEADS)
def test_smoothed_gradients_equal_those_of_the_explicit_divergence(kind: str) -> None:
    head = make_head(kind, 300).double()
    hidden, targets = rows(head, dtype=torch.float64)
    hidden.requires_grad_()
    wanted_NV = torch.full((6, 300), 0.1 / 299, dtype=torch.float64).scatter_(1, targets[:, None], 0.9)
    explicit = F.kl_div(head.log_probs(hidden), wanted_NV, reduction="sum")
    expected = torch.autograd.grad(explicit, (hidden, *head.parameters()))
    found = torch.autograd.grad(head.loss(hidden, targets, 0.1).sum(), (hidden, *head.parameters()))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", HEADS)
def test_topk_values_carry_gradients(kind: str) -> None:
    head = make_head(kind, 7)
    hidden = rows(head)[0].requires_grad_()
    head.topk(hidden, 2)[0].sum().backward()
    assert hidden.grad is not None and hidden.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", HEADS)
def test_the_state_dict_holds_parameters_alone(kind: str) -> None:
    head = make_head(kind, 7)
    assert set(head.state_dict()) == {name for name, _ in head.named_parameters()}


@pytest.mark.parametrize("kind", HEADS)
def test_wrong_calls_are_refused(kind: str) -> None:
    head = make_head(kind, 7)
    hidden, targets = rows(head)
    with pytest.raises(ValueError, match="topk: k is 8; with 7 units it must be 1…7"):
        head.topk(hidden, 8)
    with pytest.raises(ValueError, match="topk: k is 0"):
        head.topk(hidden, 0)
    with pytest.raises(ValueError, match="targets: values from -1 to [0-9], expected 0…6; remove padding before"):
        head.loss(hidden, targets.index_fill(0, torch.tensor([0]), -1))
    with pytest.raises(ValueError, match="targets: values from [0-9] to 7, expected 0…6"):
        head.nll(hidden, targets.index_fill(0, torch.tensor([0]), 7))
    with pytest.raises(
        ValueError, match=r"targets: expected integers of shape \(6,\), one a row of hidden, got \(5,\)"
    ):
        head.nll(hidden, targets[:5])
    with pytest.raises(ValueError, match="targets: expected integers"):
        head.nll(hidden, targets.float())
    with pytest.raises(ValueError, match=r"hidden: expected \(..., 8\) of a float dtype, got \(6, 9\) torch.float32"):
        head.log_probs(torch.zeros(6, 9))
    with pytest.raises(ValueError, match="hidden: expected"):
        head.log_probs(torch.zeros(6, 8, dtype=torch.int64))
    for smoothing in (-0.1, 1.0):
        with pytest.raises(ValueError, match=r"smoothing: must be in \[0, 1\), got"):
            head.loss(hidden, targets, smoothing)
