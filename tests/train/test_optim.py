# SPDX-License-Identifier: Apache-2.0
"""The schedules, against values worked out by hand, and Adam with sparse rows."""

import math
from typing import Any

import pytest
import torch
from small_models import small_config, small_model
from torch import nn
from torch.nn.utils import clip_grad_norm_

from wenet_hs.heads import SoftmaxHead
from wenet_hs.train import optim
from wenet_hs.train.optim import (
    AdamBesideSparseAdam,
    attention_guide,
    build_optimizer,
    clip_gradient,
    ctc_weight,
    current_rates,
    learning_rate,
    matmul_precision,
)
from wenet_hs.tree.errors import ConfigError


def rates(steps: tuple[int, ...], warmup: int, **total: int) -> list[float]:
    conf = {"warmup_steps": warmup, **total}
    scheduler: Any = "warmup_cosine" if total else "warmuplr"
    config = small_config(optim_conf={"lr": 0.002}, scheduler_conf=conf, scheduler=scheduler)
    return [learning_rate(step, config) for step in steps]


def test_warmuplr_is_wenets_formula() -> None:
    """lr · warmup^0.5 · min(n^-0.5, n · warmup^-1.5) with a warm-up of 400: 400^0.5 = 20, 400^1.5 =
    8000.
    """
    expected = [
        0.002 * 20 * (1 / 8000),
        0.002 * 20 * (100 / 8000),
        0.002,
        0.002 * 20 / 40,
        0.002 * 20 / 200,
    ]
    assert rates((1, 100, 400, 1600, 40_000), 400) == pytest.approx(expected, rel=1e-12)
    assert rates((1, 4, 25), 0) == pytest.approx([0.002, 0.001, 0.0004], rel=1e-12)


def test_cosine_rises_linearly_and_ends_at_zero_at_the_steps_or_the_minutes_whichever_comes_first() -> (
    None
):
    quarter = 0.002 * 0.5 * (1 + math.sqrt(0.5))
    expected = [0.0002, 0.001, 0.002, quarter, 0.001, 0.0, 0.0]
    found = rates((1, 5, 10, 35, 60, 110, 500), 10, total_steps=110)
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-18)
    assert rates((1, 2), 0, total_steps=2) == pytest.approx([0.001, 0.0], abs=1e-18)

    def rates_at(minutes: float, **total: int) -> list[float]:
        conf = {"warmup_steps": 10, **total}
        config = small_config(
            scheduler="warmup_cosine", scheduler_conf=conf, max_minutes=12.0, optim_conf={"lr": 1.0}
        )
        return [
            learning_rate(step, config, seconds=60 * minutes, warmup_seconds=120.0)
            for step in (5, 60, 110)
        ]

    assert rates_at(2.0, total_steps=110) == pytest.approx([0.5, 0.5, 0.0])
    assert rates_at(4.5, total_steps=110) == pytest.approx([0.5, 0.5, 0.0]), (
        "half of the steps, a quarter of the time"
    )
    assert rates_at(9.5, total_steps=110) == pytest.approx([0.5, 0.5 * (1 - math.sqrt(0.5)), 0.0])
    assert rates_at(2.0) == pytest.approx([0.5, 1.0, 1.0]), "no jump at the end of the warm-up"
    assert rates_at(7.0) == pytest.approx([0.5, 0.5, 0.5]), (
        "without total_steps only the time counts"
    )
    assert rates_at(12.0) == pytest.approx([0.5, 0.0, 0.0])


def test_the_ctc_weight_and_the_attention_guide_change_linearly() -> None:
    ramp = small_config(
        model_conf={"ctc_weight": 0.9, "ctc_weight_final": 0.3, "ctc_weight_steps": 4}
    )
    assert [ctc_weight(step, ramp) for step in (1, 2, 3, 5, 6, 100)] == pytest.approx(
        [0.9, 0.75, 0.6, 0.3, 0.3, 0.3]
    )
    assert ctc_weight(17, small_config(model_conf={"ctc_weight": 0.4})) == 0.4
    guided = small_config(
        model_conf={"attention_guide": 3.0, "attention_guide_steps": 4, "ctc_only_steps": 2}
    )
    assert [ctc_weight(step, guided) for step in (2, 3)] == [1.0, 0.3]
    weights = [attention_guide(step, guided) for step in (2, 3, 4, 6, 7, 100)]
    assert weights == pytest.approx([0.0, 3.0, 2.25, 0.75, 0.0, 0.0])
    assert attention_guide(1, small_config()) == 0.0


# Optimizers

CONF: dict[str, Any] = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.0}


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


def set_gradients(model: Model, seed: int, touched: list[int], *, is_dense: bool = False) -> None:
    """Random gradients; of the head only the rows `touched`.

    A row named twice comes as two halves.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    weight = model.head.output.weight
    assert weight.grad is not None
    shares = torch.tensor([1 / touched.count(row) for row in touched])
    rows = weight.grad[touched] * shares[:, None]
    grad = torch.sparse_coo_tensor(
        torch.tensor([touched]), rows, weight.shape, check_invariants=True
    )
    weight.grad = grad.to_dense() if is_dense else grad


def test_the_optimizer_is_the_configured_one_and_sparse_rows_have_their_own_adam() -> None:
    model = Model()
    dense, sparse = optimizer_of(model).param_groups
    assert sparse["params"] == [model.head.output.weight]
    assert dense["params"] == [*model.body.parameters(), model.head.output.bias]
    for group in (dense, sparse):
        assert {key: group.get(key, 0.0) for key in CONF} == CONF
    model.head.output.weight.requires_grad_(False)
    conf = {**CONF, "weight_decay": 0.25}
    for name, kind in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        optimizer = build_optimizer(model, small_config(optim=name, optim_conf=conf))
        assert type(optimizer) is kind
        (group,) = optimizer.param_groups
        assert {key: group[key] for key in conf} == conf
        assert group["params"] == [*model.body.parameters(), model.head.output.bias]


def test_a_part_with_a_rate_of_its_own_is_a_group_of_the_dense_and_of_the_sparse_optimizer() -> (
    None
):
    model = Model()
    conf = {**CONF, "lr_of": {"head": 0.5, "body.bias": 0.25}}
    config = small_config(optim_conf=conf, scheduler_conf={"warmup_steps": 4})
    optimizer = build_optimizer(model, config)
    groups = [(group.get("part"), group["params"]) for group in optimizer.param_groups]
    body, head = model.body, model.head.output
    dense = [(None, [body.weight]), ("body.bias", [body.bias]), ("head", [head.bias])]
    assert groups == [*dense, ("head", [head.weight])]
    optimizer.load_state_dict(optimizer.state_dict())
    assert [group.get("part") for group in optimizer.param_groups] == [
        None,
        "body.bias",
        "head",
        "head",
    ]
    set_gradients(model, 1, [0, 4])
    before = [value.detach().clone() for value in model.parameters()]
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(1, config, part=group.get("part"))
    rates = current_rates(optimizer)
    optimizer.step()
    steps = [
        float((value.detach() - old).abs().max())
        for value, old in zip(model.parameters(), before, strict=True)
    ]
    expected = [
        rates["lr"],
        rates["lr_of"]["body.bias"],
        *[rates["lr_of"]["head"]] * 2,
    ]  # Adam's first step
    assert steps == pytest.approx(expected, rel=1e-4)
    assert expected == pytest.approx([rates["lr"] * ratio for ratio in (1, 2.5, 5, 5)], rel=1e-12)


def test_the_longest_name_of_a_part_counts_and_all_may_have_one() -> None:
    layers = {
        "encoder_conf": {
            "num_blocks": 11,
            "output_size": 8,
            "attention_heads": 1,
            "linear_units": 4,
        }
    }
    model = small_model(**layers)
    parts = {"encoder": 1e-5, "encoder.encoders.1": 1e-4, "decoder": 0.1, "head": 0.2, "ctc": 0.3}
    optimizer = build_optimizer(model, small_config(optim_conf={"lr_of": parts}))
    found = {
        id(value): group.get("part")
        for group in optimizer.param_groups
        for value in group["params"]
    }
    of = {name: found[id(value)] for name, value in model.named_parameters()}
    assert {of[name] for name in of if name.startswith("encoder.encoders.1.")} == {
        "encoder.encoders.1"
    }
    assert {
        of[name] for name in of if name.startswith(("encoder.encoders.10.", "encoder.embed"))
    } == {"encoder"}
    assert {*of.values()} == {*parts} and optimizer.param_groups[0]["params"] == []


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"bdy": 1}, r"'bdy' is no parameter and no module with parameters; did you mean body\?$"),
        (
            {"qqq": 1},
            r"'qqq' is no parameter and no module with parameters; did you mean body or head\?$",
        ),
        (
            {"body.weight": 1, "body.bias": 1, "body": 1},
            "no trained parameter has the rate of body; remove it, or",
        ),
        (
            {"body": 1, "head.output.bias": 1},
            "no trained parameter has the rate of head.output.bias; remove it, or",
        ),
    ],
)
def test_parts_that_do_not_exist_or_are_not_trained_are_refused(
    parts: dict[str, float], message: str
) -> None:
    model = Model()
    model.head.output.bias.requires_grad_("head.output.bias" not in parts)
    with pytest.raises(ConfigError, match=f"^a.yaml: optim_conf.lr_of: {message}"):
        build_optimizer(model, small_config(optim_conf={"lr_of": parts}), where="a.yaml")


def test_with_all_rows_touched_it_is_adam() -> None:
    model, expected = Model(), Model()
    optimizer, adam = optimizer_of(model), torch.optim.Adam(expected.parameters(), **CONF)
    for seed in range(4):
        set_gradients(model, seed, [4, 1, 0, 3, 2, 1])
        set_gradients(expected, seed, [0, 1, 2, 3, 4], is_dense=True)
        optimizer.step()
        adam.step()
    torch.testing.assert_close(model.state_dict(), expected.state_dict())


@pytest.mark.parametrize("is_dense", [False, True])  # a head may find a dense one cheaper
def test_rows_without_a_gradient_do_not_change(is_dense: bool) -> None:
    model = Model()
    optimizer, weight = optimizer_of(model), model.head.output.weight
    for seed, touched in enumerate(([0, 3], [3, 3], [1])):
        before = weight.detach().clone()
        set_gradients(model, seed, touched, is_dense=is_dense)
        optimizer.step()
        assert (weight.detach() != before).any(-1).nonzero()[:, 0].tolist() == sorted(set(touched))


@pytest.mark.parametrize(
    ("limit", "touched"), [(0.01, []), (1.0, [3, 0, 3]), (100.0, [1]), (1.0, [4, 4, 2, 0])]
)
def test_the_norm_includes_dense_and_sparse_gradients(limit: float, touched: list[int]) -> None:
    model, expected = Model(), Model()
    set_gradients(model, 1, touched)
    set_gradients(expected, 1, touched, is_dense=True)
    norm = clip_gradient(model.parameters(), limit)
    torch.testing.assert_close(norm, clip_grad_norm_(expected.parameters(), limit))
    found = model.head.output.weight.grad
    assert found is not None and found.is_sparse and found.is_coalesced()
    assert found.indices()[0].tolist() == sorted(set(touched))
    for value, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert value.grad is not None
        torch.testing.assert_close(value.grad.to_dense(), other.grad)
    model.head.output.weight.grad = found * math.nan
    assert math.isfinite(float(clip_gradient(model.parameters(), limit))) == (not touched)


def test_matmul_precision_ends_with_the_block_and_is_refused_without_native_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu, before = torch.device("cpu"), torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = False  # as `find_device` sets it
    with matmul_precision("high", cpu):
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == before
    monkeypatch.setattr(optim, "has_native_bf16", lambda device: False)
    message = r"matmul_precision: medium: .* does not multiply bfloat16; use high"
    with pytest.raises(ConfigError, match=message), matmul_precision("medium", cpu):
        pass
