# SPDX-License-Identifier: Apache-2.0
"""Recomputation of layers in the backward pass: bit-equal results, and fewer values are kept."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_models import small_batch, small_model

from wenet_hs.model.asr_model import AsrModel

ON: dict[str, Any] = {"gradient_checkpointing": True}


def train_steps(low: bool, conf: dict[str, Any]) -> tuple[AsrModel, list[float]]:
    """Two backward passes with every dropout on, and the guided attention penalty in the second."""
    busy = {"dropout_rate": 0.2, "positional_dropout_rate": 0.2, **conf}
    encoder, decoder = (
        busy | {"attention_dropout_rate": 0.2},
        busy | {"src_attention_dropout_rate": 0.2},
    )
    model = small_model(seed=4, encoder_conf=encoder, decoder_conf=decoder).train()
    torch.manual_seed(9)
    losses = []
    for guide in (0.0, 1.0):
        model.loss_weights = replace(model.loss_weights, guide=guide)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
            total = model(small_batch([70, 44, 61], [6, 3, 5])).total
        total.backward()
        losses.append(total.item())
    return model, losses


@pytest.mark.parametrize("low", [False, True])
def test_losses_gradients_statistics_and_random_state_are_the_same_bits(low: bool) -> None:
    plain, losses = train_steps(low, {})
    state = torch.get_rng_state()
    again, same_losses = train_steps(low, ON)
    assert again.encoder.recompute and again.decoder.recompute
    assert same_losses == losses
    assert torch.equal(torch.get_rng_state(), state)
    for (name, value), other in zip(
        plain.state_dict().items(), again.state_dict().values(), strict=True
    ):
        assert torch.equal(value, other), name
    for (name, parameter), other in zip(plain.named_parameters(), again.parameters(), strict=True):
        assert parameter.grad is not None and other.grad is not None, name
        assert torch.equal(parameter.grad, other.grad), name


def test_fewer_values_are_kept_and_only_for_gradients() -> None:
    kept = {}
    for name, conf in (("plain", {}), ("again", ON)):
        model, sizes, batch = (
            small_model(encoder_conf=conf, decoder_conf=conf).train(),
            [],
            small_batch([400], [5]),
        )

        def pack(value: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(0 if isinstance(value, torch.nn.Parameter) else value.numel())
            return value

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            model(batch)
        kept[name] = sum(sizes)
        with torch.no_grad():
            assert torch.isfinite(model(batch).total)
    assert kept["again"] < 0.7 * kept["plain"]
