# SPDX-License-Identifier: Apache-2.0
"""The optimizer and the schedules, against values worked out by hand."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import small_config
from torch import nn

from wenet_hs.train.optim import attention_guide, build_optimizer, ctc_weight, learning_rate


def rate(step: int, **sections: Any) -> float:
    return learning_rate(step, small_config(optim_conf={"lr": 0.002}, **sections))


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        # lr * warmup^0.5 * min(n^-0.5, n * warmup^-1.5), warmup 400: sqrt(400) = 20, 400^1.5 = 8000
        (1, 0.002 * 20 * (1 / 8000)),
        (100, 0.002 * 20 * (100 / 8000)),
        (400, 0.002),
        (1600, 0.002 * 20 / 40),
        (40_000, 0.002 * 20 / 200),
    ],
)
def test_warmuplr_is_wenets_formula(step: int, expected: float) -> None:
    assert rate(step, scheduler_conf={"warmup_steps": 400}) == pytest.approx(expected, rel=1e-12)


def test_warmuplr_without_warm_up() -> None:
    assert [rate(step, scheduler_conf={"warmup_steps": 0}) for step in (1, 4, 25)] == pytest.approx(
        [0.002, 0.001, 0.0004], rel=1e-12
    )


def test_cosine_rises_linearly_and_ends_at_zero() -> None:
    cosine = {"scheduler": "warmup_cosine", "scheduler_conf": {"warmup_steps": 10, "total_steps": 110}}
    assert [rate(step, **cosine) for step in (1, 5, 10)] == pytest.approx([0.0002, 0.001, 0.002], rel=1e-12)
    assert rate(35, **cosine) == pytest.approx(0.002 * 0.5 * (1 + math.sqrt(0.5)), rel=1e-12)  # a quarter of the way
    assert rate(60, **cosine) == pytest.approx(0.001, rel=1e-12)
    assert rate(110, **cosine) == pytest.approx(0.0, abs=1e-18)
    assert rate(500, **cosine) == pytest.approx(0.0, abs=1e-18)
    no_warm_up = {**cosine, "scheduler_conf": {"warmup_steps": 0, "total_steps": 2}}
    assert [rate(step, **no_warm_up) for step in (1, 2)] == pytest.approx([0.001, 0.0], abs=1e-18)


@given(
    step=st.integers(1, 10**6),
    warmup=st.integers(0, 10**5),
    kind=st.sampled_from(["warmuplr", "warmup_cosine"]),
)
def test_rates_stay_between_zero_and_lr(step: int, warmup: int, kind: str) -> None:
    conf = {"warmup_steps": warmup} | ({"total_steps": warmup + 50} if kind == "warmup_cosine" else {})
    assert 0.0 <= rate(step, scheduler=kind, scheduler_conf=conf) <= 0.002 * (1 + 1e-12)


def test_the_ctc_weight_changes_linearly() -> None:
    ramp = small_config(model_conf={"ctc_weight": 0.9, "ctc_weight_final": 0.3, "ctc_weight_steps": 4})
    assert [ctc_weight(step, ramp) for step in (1, 2, 3, 5, 6, 100)] == pytest.approx([0.9, 0.75, 0.6, 0.3, 0.3, 0.3])
    assert ctc_weight(17, small_config(model_conf={"ctc_weight": 0.4})) == 0.4


def test_the_attention_guide_decreases_linearly() -> None:
    guided = small_config(model_conf={"attention_guide": 3.0, "attention_guide_steps": 4})
    assert [attention_guide(step, guided) for step in (1, 2, 4, 5, 100)] == pytest.approx([3.0, 2.25, 0.75, 0.0, 0.0])
    assert attention_guide(1, small_config()) == 0.0


def test_the_optimizer_is_the_configured_one() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    conf = {"lr": 0.5, "betas": (0.8, 0.98), "eps": 1e-6, "weight_decay": 0.25}
    for name, kind in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        optimizer = build_optimizer(model, small_config(optim=name, optim_conf=conf))
        assert type(optimizer) is kind
        (group,) = optimizer.param_groups
        assert {key: group[key] for key in conf} == conf
        assert group["params"] == [model.weight]
