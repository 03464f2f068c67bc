# SPDX-License-Identifier: Apache-2.0
"""Attention against its formula, written out."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wenet_hs.nn.attention import MultiHeadAttention, RelPositionAttention
from wenet_hs.nn.layers import length_mask


def heads(x: Tensor, num: int) -> Tensor:
    return x.unflatten(-1, (num, -1)).transpose(1, 2)


def textbook(attention: MultiHeadAttention, query: Tensor, memory: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
    """WeNet's formula in its own order: ((q+u)·k + (q+v)·p) / √K, softmax over the keys that are kept."""
    num = attention.num_heads
    q, k, v = (
        heads(getattr(attention, f"linear_{n}")(x), num) for n, x in {"q": query, "k": memory, "v": memory}.items()
    )
    if isinstance(attention, RelPositionAttention):
        p = heads(attention.linear_pos(positions), num)
        scores = (q + attention.pos_bias_u[:, None]) @ k.mT + (q + attention.pos_bias_v[:, None]) @ p.mT
    else:
        scores = q @ k.mT
    weights = (scores / math.sqrt(k.size(-1))).masked_fill(~mask[:, None], -torch.inf).softmax(-1)
    weights = weights.masked_fill(~mask[:, None], 0.0)
    return attention.linear_out((weights @ v).transpose(1, 2).flatten(2))


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(0, 7), min_size=1, max_size=3), relative=st.booleans(), seed=st.integers(0, 99))
def test_attention_is_its_formula(lengths: list[int], relative: bool, seed: int) -> None:
    torch.manual_seed(seed)
    attention = (RelPositionAttention if relative else MultiHeadAttention)(2, 8).eval()
    x, positions = torch.randn(len(lengths), 7, 8), torch.randn(1, 7, 8)
    mask = length_mask(torch.tensor(lengths), 7)[:, None]
    out = attention(x, x, mask, positions)
    torch.testing.assert_close(out, textbook(attention, x, x, mask, positions), atol=1e-5, rtol=1e-5)
    if not relative:
        same, weights = attention.forward_with_weights(x, x, mask)
        torch.testing.assert_close(same, out, atol=1e-6, rtol=0)
        torch.testing.assert_close(weights.sum(-1), mask.any(-1).float()[:, None].expand(-1, 2, 7))
        assert not weights[~mask[:, None].expand(-1, 2, 7, -1)].any()


@pytest.mark.parametrize("kind", (MultiHeadAttention, RelPositionAttention))
@pytest.mark.parametrize("training", (True, False))
def test_a_row_without_keys_is_zero_and_has_a_gradient(kind: type[MultiHeadAttention], training: bool) -> None:
    attention = kind(2, 8).train(training)
    x = torch.randn(2, 4, 8, requires_grad=True)
    out = attention(x, x, torch.zeros(2, 1, 4, dtype=torch.bool), torch.randn(1, 4, 8))
    torch.testing.assert_close(out, attention.linear_out.bias.expand_as(out))
    out.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_gradients_of_the_rewritten_relative_scores() -> None:
    torch.manual_seed(0)
    attention = RelPositionAttention(2, 8)
    x, positions, mask = torch.randn(2, 5, 8), torch.randn(1, 5, 8), torch.ones(2, 1, 5, dtype=torch.bool)
    grads = []
    for function in (lambda: attention(x, x, mask, positions), lambda: textbook(attention, x, x, mask, positions)):
        attention.zero_grad()
        function().square().sum().backward()
        grads.append({name: parameter.grad for name, parameter in attention.named_parameters()})
    for name, grad in grads[1].items():
        torch.testing.assert_close(grads[0][name], grad, atol=1e-5, rtol=1e-4)


def test_parameters_start_as_wenets() -> None:
    torch.manual_seed(0)
    attention = RelPositionAttention(4, 64)
    bound = math.sqrt(6 / (4 + 16))
    for bias in (attention.pos_bias_u, attention.pos_bias_v):
        assert bias.shape == (4, 16)
        assert 0.8 * bound < bias.abs().max() <= bound
    assert attention.linear_pos.bias is None
