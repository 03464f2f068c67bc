# SPDX-License-Identifier: Apache-2.0
"""Guided attention: nothing on the diagonal, a hand-worked penalty beside it, nothing from padding or in evaluation."""

import math

import pytest
import torch
from small_models import small_batch, small_model

from wenet_hs.nn.attention import MultiHeadAttention
from wenet_hs.nn.transformer import GuidedAttentionLoss


def one_hot(frames: list[int], num_frames: int) -> torch.Tensor:
    """Attention weights (1, 1, L, T) in which unit l looks at frame `frames[l]` alone."""
    return torch.nn.functional.one_hot(torch.tensor(frames), num_frames).float()[None, None]


def penalty(weights: torch.Tensor, num_frames: int, num_units: int, width: float = 0.1) -> float:
    guide = GuidedAttentionLoss(torch.tensor([num_frames]), torch.tensor([num_units]), width=width)
    guide.add_layer(weights)
    return float(guide.total())


def test_the_diagonal_costs_nothing() -> None:
    assert penalty(one_hot([0, 2, 4, 6], 8), num_frames=8, num_units=4) == 0.0


def test_a_hand_worked_penalty() -> None:
    # Unit 0 looks at frame 2 of 4 (0.5 away), unit 1 at frame 2 of 4, where it should (1/2 = 2/4).
    expected = 1 - math.exp(-(0.5**2) / (2 * 0.3**2))
    assert penalty(one_hot([2, 2], 4), num_frames=4, num_units=2, width=0.3) == pytest.approx(expected, rel=1e-6)


def test_layers_and_heads_are_averaged_and_padding_costs_nothing() -> None:
    good, bad = one_hot([0, 2], 4), one_hot([2, 2], 4)
    alone = penalty(bad, num_frames=4, num_units=2)
    padded = torch.nn.functional.pad(torch.cat([good, bad], dim=1), (0, 0, 0, 5), value=0.25)  # five units of padding
    guide = GuidedAttentionLoss(torch.tensor([4]), torch.tensor([2]), width=0.1)
    guide.add_layer(padded)
    guide.add_layer(padded.flip(1))
    assert float(guide.total()) == pytest.approx(alone / 2, rel=1e-6)


def test_visible_attention_is_the_attention() -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(2, 8)
    query, memory = torch.randn(3, 4, 8), torch.randn(3, 6, 8)
    mask = torch.arange(6) < torch.tensor([6, 4, 1])[:, None]
    out, weights = attention.forward_with_weights(query, memory, mask[:, None])
    torch.testing.assert_close(out, attention(query, memory, mask[:, None]), atol=1e-6, rtol=0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 4))
    assert (weights * ~mask[:, None, None]).abs().max() == 0


def test_the_guide_changes_the_training_loss_alone() -> None:
    model, batch = small_model(), small_batch([40, 60], [5, 3])
    plain = model(batch)
    model.attention_guide = 2.0
    assert model(batch).total == plain.total, "evaluation has no guide"
    assert plain.guide == 0
    model.train()
    losses = model(batch)
    assert 0 < losses.guide.item() <= batch.num_targets
    expected = 0.3 * losses.ctc + 0.7 * losses.attention + 2.0 * losses.guide
    torch.testing.assert_close(losses.total, expected)


def test_the_guide_teaches_the_diagonal() -> None:
    """Gradient descent on the penalty alone lowers it, through the queries and keys of the decoder."""
    model, batch = small_model(), small_batch([80, 80], [6, 6])
    model.train()
    model.attention_guide = 1.0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    history = []
    for _ in range(15):
        losses = model(batch)
        losses.guide.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(float(losses.guide.detach()))
    assert history[-1] < 0.7 * history[0]
