# SPDX-License-Identifier: Apache-2.0
"""Adam with sparse rows: which parameters, which rows, the norm of both kinds together, and a resume."""

import io
import math
from typing import Any

import pytest
import torch
from small_models import small_config
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from wenet_hs.heads import SoftmaxHead
from wenet_hs.train.optim import AdamBesideSparseAdam, build_optimizer, clip_gradient

CONF: dict[str, Any] = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6}


class SparseHead(SoftmaxHead):
    def sparse_parameters(self) -> list[nn.Parameter]:
        return [self.output.weight]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 3)
        self.head = SparseHead(3, 5)


def optimizer_of(model: nn.Module) -> AdamBesideSparseAdam:
    optimizer = build_optimizer(model, small_config(optim_conf=CONF))
    assert isinstance(optimizer, AdamBesideSparseAdam)
    return optimizer


def in_rows(grad: Tensor, touched: list[int]) -> Tensor:
    """The rows `touched` of a dense gradient; a row named twice comes as two halves, as from two micro-batches."""
    shares = torch.tensor([1 / touched.count(row) for row in touched])
    return torch.sparse_coo_tensor(
        torch.tensor([touched]), grad[touched] * shares[:, None], grad.shape, check_invariants=True
    )


def set_gradients(model: Model, seed: int, touched: list[int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    weight = model.head.output.weight
    assert weight.grad is not None
    weight.grad = in_rows(weight.grad, touched)


def test_a_heads_sparse_parameters_have_their_own_adam() -> None:
    model = Model()
    optimizer = optimizer_of(model)
    dense, sparse = optimizer.param_groups
    assert sparse["params"] == [model.head.output.weight]
    assert dense["params"] == [*model.body.parameters(), model.head.output.bias]
    for group in (dense, sparse):
        assert {key: group[key] for key in CONF} == CONF
    plain = nn.ModuleDict({"head": SoftmaxHead(3, 5)})
    assert type(build_optimizer(plain, small_config(optim_conf=CONF))) is torch.optim.Adam
    model.head.output.weight.requires_grad_(False)
    assert type(build_optimizer(model, small_config(optim_conf=CONF))) is torch.optim.Adam


def test_with_all_rows_touched_it_is_adam() -> None:
    model, expected = Model(), Model()
    optimizer = optimizer_of(model)
    adam = torch.optim.Adam(expected.parameters(), **CONF)
    for seed in range(4):
        set_gradients(model, seed, [4, 1, 0, 3, 2, 1])
        set_gradients(expected, seed, [0, 1, 2, 3, 4])
        weight = expected.head.output.weight
        assert weight.grad is not None
        weight.grad = weight.grad.to_dense()
        optimizer.step()
        adam.step()
    for value, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(value, other)


@pytest.mark.parametrize("is_dense", [False, True])
def test_rows_without_a_gradient_do_not_change(is_dense: bool) -> None:
    model = Model()
    optimizer = optimizer_of(model)
    weight = model.head.output.weight
    for seed, touched in enumerate(([0, 3], [3, 3], [1])):
        before = weight.detach().clone()
        set_gradients(model, seed, touched)
        if is_dense:  # a head may find it cheaper
            assert weight.grad is not None
            weight.grad = weight.grad.to_dense()
        optimizer.step()
        changed = (weight.detach() != before).any(-1)
        assert changed.nonzero()[:, 0].tolist() == sorted(set(touched))


def test_a_saved_state_resumes_with_the_same_bits() -> None:
    model = Model()
    optimizer = optimizer_of(model)
    for seed in range(3):
        set_gradients(model, seed, [0, 3, 4])
        optimizer.step()
    buffer = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), buffer)
    weights, state = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    again = Model()
    again.load_state_dict(weights)
    restored = optimizer_of(again)
    restored.load_state_dict(state)
    for one, other in ((model, optimizer), (again, restored)):
        for group in other.param_groups:
            group["lr"] = 0.05
        for seed in range(3, 6):
            set_gradients(one, seed, [1, 2, 3])
            other.step()
    assert all(torch.equal(value, other) for value, other in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(("limit", "touched"), [(0.01, []), (1.0, [3, 0, 3]), (100.0, [1]), (1.0, [4, 4, 2, 0])])
def test_the_norm_includes_dense_and_sparse_gradients(limit: float, touched: list[int]) -> None:
    model, expected = Model(), Model()
    set_gradients(model, 1, touched)
    set_gradients(expected, 1, touched)
    weight = expected.head.output.weight
    assert weight.grad is not None
    weight.grad = weight.grad.to_dense()
    norm = clip_gradient(model.parameters(), limit)
    torch.testing.assert_close(norm, clip_grad_norm_(expected.parameters(), limit))
    found = model.head.output.weight.grad
    assert found is not None and found.is_sparse and found.is_coalesced()
    assert found.indices()[0].tolist() == sorted(set(touched))
    for value, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert value.grad is not None
        torch.testing.assert_close(value.grad.to_dense(), other.grad)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_sparse_gradient_that_is_not_finite_is_detected(value: float) -> None:
    model = Model()
    set_gradients(model, 0, [1, 2])
    weight = model.head.output.weight
    assert weight.grad is not None
    weight.grad = weight.grad * value
    assert not math.isfinite(float(clip_gradient(model.parameters(), 1.0)))
