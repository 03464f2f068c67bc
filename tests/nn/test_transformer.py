# SPDX-License-Identifier: Apache-2.0
"""Attention is its formula; the decoder node by node equals the decoder on whole sequences; guided
attention.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import NUM_UNITS, small_batch, small_model
from torch import Tensor

from wenet_hs.heads.masks import length_mask
from wenet_hs.nn.attention import MultiHeadAttention, RelPositionAttention
from wenet_hs.nn.transformer import NewNodes, TransformerDecoder, guided_attention_loss

DECODERS: tuple[TransformerDecoder, ...] = (
    small_model().decoder,
    small_model(decoder_conf={"normalize_before": False, "num_blocks": 1}).decoder,
)
WIDTH = 16
Step = list[list[tuple[int | None, int]]]


def random_inputs(rows: int, frames: int, labels: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(rows, frames, WIDTH, generator=generator)
    return memory, torch.randint(0, NUM_UNITS, (rows, labels), generator=generator)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6)), min_size=1, max_size=3),
    st.sampled_from(DECODERS),
)
def test_padding_changes_no_hidden_vector(
    lengths: list[tuple[int, int]], decoder: TransformerDecoder
) -> None:
    memory, units = random_inputs(len(lengths), 10, 7)
    memory_lengths, unit_lengths = torch.tensor(lengths).unbind(1)
    with torch.inference_mode():
        hidden = decoder(memory, memory_lengths, units, unit_lengths)
        for row, (frames, labels) in enumerate(lengths):
            own_memory, own_units = memory[[row], : max(frames, 1)], units[[row], :labels]
            alone = decoder(own_memory, memory_lengths[[row]], own_units, unit_lengths[[row]])
            torch.testing.assert_close(hidden[row, :labels], alone[0], atol=1e-5, rtol=1e-5)
    assert hidden.isfinite().all()


def run_steps(
    decoder: TransformerDecoder, memory: Tensor, mask: Tensor, steps: list[Step]
) -> tuple[list[Tensor], Any]:
    """The hidden vectors of the nodes of each step; a step has, of each utterance, (parent, unit)
    for each new node.
    """
    cache, hidden = decoder.init_cache(memory, mask), []
    total = sum(max(map(len, step)) for step in steps)
    seen = torch.zeros(len(memory), total, total, dtype=torch.bool)
    for step in steps:
        past, num_slots = cache.num_nodes, max(map(len, step))
        new = [
            (u, past + slot, *node)
            for u, nodes in enumerate(step)
            for slot, node in enumerate(nodes)
        ]
        for utterance, number, parent, _ in new:
            if parent is not None:
                seen[utterance, number] = seen[utterance, parent]
            seen[utterance, number, number] = True
        units = torch.tensor([unit for *_, unit in new])
        depths = torch.tensor(
            [int(seen[utterance, number].sum()) - 1 for utterance, number, *_ in new]
        )
        slots = torch.tensor(
            [utterance * num_slots + number - past for utterance, number, *_ in new]
        )
        end = past + num_slots
        hidden.append(
            decoder.decode_step(cache, NewNodes(units, depths, seen[:, past:end, :end], slots))
        )
    return hidden, cache


@pytest.mark.parametrize("decoder", DECODERS)
def test_step_by_step_the_decoder_gives_the_vectors_of_whole_sequences(
    decoder: TransformerDecoder,
) -> None:
    """Two utterances: a chain of nodes in one, a branch in the other; node numbers count free slots
    too.
    """
    memory, _ = random_inputs(2, 8, 1)
    lengths = torch.tensor([8, 5])
    steps = [
        [[(None, 2)], [(None, 2)]],
        [
            [(0, 4), (1, 5), (2, 6)],
            [(0, 7), (0, 8)],
        ],  # a node may be the parent of another one of its step
        [[(3, 9)], [(1, 3), (2, 3), (2, 4)]],
    ]
    branches = [  # utterance, units, the step and row of the last one
        *((0, (2, 4, 5, 6, 9)[: 2 + i], (1, i)) for i in range(3)),
        (0, (2, 4, 5, 6, 9), (2, 0)),
        *((1, ids, (1, 3 + i)) for i, ids in enumerate([(2, 7), (2, 8)])),
        *((1, ids, (2, 1 + i)) for i, ids in enumerate([(2, 7, 3), (2, 8, 3), (2, 8, 4)])),
    ]
    with torch.inference_mode():
        hidden, cache = run_steps(decoder, memory, length_mask(lengths, 8), steps)
        assert cache.num_nodes == 7
        for utterance, ids, (step, row) in branches:
            whole = decoder(
                memory[[utterance]],
                lengths[[utterance]],
                torch.tensor([ids]),
                torch.tensor([len(ids)]),
            )
            torch.testing.assert_close(hidden[step][row], whole[0, -1], atol=1e-5, rtol=1e-5)


def test_removed_utterances_and_nodes_have_no_effect() -> None:
    decoder, lengths = DECODERS[0], torch.tensor([6, 4, 5])
    memory, _ = random_inputs(3, 6, 1)
    first = torch.ones(3, 1, 1, dtype=torch.bool)
    with torch.inference_mode():
        cache = decoder.init_cache(memory, length_mask(lengths, 6))
        decoder.decode_step(
            cache, NewNodes(torch.full((3,), 2), torch.zeros(3, dtype=torch.int64), first)
        )
        fork = torch.tensor([[True, True, False], [True, False, True]]).expand(3, -1, -1)
        decoder.decode_step(
            cache,
            NewNodes(torch.tensor([4, 5, 6, 7, 8, 9]), torch.ones(6, dtype=torch.int64), fork),
        )
        cache.keep_utterances(torch.tensor([2, 0]))
        cache.keep_nodes(torch.tensor([[0, 2], [1, 0]]))  # of the third utterance the second branch
        seen = torch.ones(2, 1, 3, dtype=torch.bool)
        nodes = NewNodes(torch.tensor([3, 10]), torch.full((2,), 2), seen)
        hidden = decoder.decode_step(cache, nodes)
        for row, (utterance, ids) in enumerate([(2, (2, 9, 3)), (0, (2, 4, 10))]):
            whole = decoder(
                memory[[utterance]], lengths[[utterance]], torch.tensor([ids]), torch.tensor([3])
            )
            torch.testing.assert_close(hidden[row], whole[0, -1], atol=1e-5, rtol=1e-5)
        with pytest.raises(
            ValueError,
            match=r"visible: \(2, 1, 3\) does not fit 2 utterances of 3 nodes and 1 new ones",
        ):
            decoder.decode_step(cache, nodes)


def test_the_guided_attention_penalty_by_hand() -> None:
    def penalty(*layers: Tensor, width: float = 0.3) -> float:
        return float(
            guided_attention_loss(layers, torch.tensor([4]), torch.tensor([2]), width=width)
        )

    # The frame that a unit attends to, as one-hot weights (1, 1, L = 2, T = 4).
    good, bad = (
        torch.nn.functional.one_hot(torch.tensor(at), 4).float()[None, None]
        for at in ([0, 2], [2, 2])
    )
    assert penalty(good) == 0.0, "the diagonal"
    # Unit 0 attends to frame 2 of 4 (0.5 away), unit 1 to frame 2 of 4, which is right (1/2 = 2/4).
    assert penalty(bad) == pytest.approx(1 - math.exp(-(0.5**2) / (2 * 0.3**2)), rel=1e-6)
    padded = torch.nn.functional.pad(
        torch.cat([good, bad], dim=1), (0, 0, 0, 5), value=0.25
    )  # five units of padding
    assert penalty(padded, padded.flip(1)) == pytest.approx(penalty(bad) / 2, rel=1e-6), (
        "the mean of layers and heads"
    )


def test_the_penalty_is_part_of_the_training_loss_only() -> None:
    model, batch = small_model(), small_batch([40, 60], [5, 3])
    plain = model(batch)
    model.loss_weights = replace(model.loss_weights, guide=2.0)
    assert model(batch).total == plain.total, "not in evaluation"
    assert plain.guide == 0
    model.train()
    losses = model(batch)
    assert 0 < losses.guide.item() <= batch.num_targets
    expected = 0.3 * losses.ctc + 0.7 * losses.attention + 2.0 * losses.guide
    torch.testing.assert_close(losses.total, expected)


# ---- attention


def heads(x: Tensor, num: int) -> Tensor:
    return x.unflatten(-1, (num, -1)).transpose(1, 2)


def textbook(
    attention: MultiHeadAttention, query: Tensor, memory: Tensor, mask: Tensor, positions: Tensor
) -> Tensor:
    """WeNet's formula in its own order: ((q+u)·k + (q+v)·p) / √K, softmax over the keys that are
    kept.
    """
    num = attention.num_heads
    q, k, v = (
        heads(getattr(attention, f"linear_{n}")(x), num)
        for n, x in {"q": query, "k": memory, "v": memory}.items()
    )
    if isinstance(attention, RelPositionAttention):
        p = heads(attention.linear_pos(positions), num)
        scores = (q + attention.pos_bias_u[:, None]) @ k.mT + (
            q + attention.pos_bias_v[:, None]
        ) @ p.mT
    else:
        scores = q @ k.mT
    weights = (scores / math.sqrt(k.size(-1))).masked_fill(~mask[:, None], -torch.inf).softmax(-1)
    weights = weights.masked_fill(~mask[:, None], 0.0)
    return attention.linear_out((weights @ v).transpose(1, 2).flatten(2))


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    relative=st.booleans(),
    seed=st.integers(0, 99),
)
def test_attention_and_its_gradients_are_those_of_the_formula(
    lengths: list[int], relative: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    attention = (RelPositionAttention if relative else MultiHeadAttention)(2, 8).eval()
    x, positions = torch.randn(len(lengths), 7, 8), torch.randn(1, 7, 8)
    mask = length_mask(torch.tensor(lengths), 7)[:, None]
    out, expected = attention(x, x, mask, positions), textbook(attention, x, x, mask, positions)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    grads = [
        torch.autograd.grad(value.square().sum(), [*attention.parameters()])
        for value in (out, expected)
    ]
    torch.testing.assert_close(*grads, atol=1e-5, rtol=1e-4)
    if not relative:
        same, weights = attention.forward_with_weights(x, x, mask)
        torch.testing.assert_close(same, out, atol=1e-6, rtol=0)
        torch.testing.assert_close(weights.sum(-1), mask.any(-1).float()[:, None].expand(-1, 2, 7))
        assert not weights[~mask[:, None].expand(-1, 2, 7, -1)].any()


@pytest.mark.parametrize("kind", (MultiHeadAttention, RelPositionAttention))
@pytest.mark.parametrize("training", (True, False))
def test_a_row_without_keys_is_zero_and_has_a_gradient(
    kind: type[MultiHeadAttention], training: bool
) -> None:
    attention = kind(2, 8).train(training)
    x = torch.randn(2, 4, 8, requires_grad=True)
    out = attention(x, x, torch.zeros(2, 1, 4, dtype=torch.bool), torch.randn(1, 4, 8))
    torch.testing.assert_close(out, attention.linear_out.bias.expand_as(out))
    out.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_parameters_start_as_wenets() -> None:
    torch.manual_seed(0)
    attention = RelPositionAttention(4, 64)
    bound = math.sqrt(6 / (4 + 16))
    for bias in (attention.pos_bias_u, attention.pos_bias_v):
        assert bias.shape == (4, 16)
        assert 0.8 * bound < bias.abs().max() <= bound
    assert attention.linear_pos.bias is None
