# SPDX-License-Identifier: Apache-2.0
"""The decoder: one unit at a time as all at once, whatever is padded, reordered or shared."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import NUM_UNITS, small_model
from torch import Tensor

from wenet_hs.nn.masks import length_mask
from wenet_hs.nn.transformer import DecoderCache, TransformerDecoder

DECODERS: tuple[TransformerDecoder, ...] = (
    small_model().decoder,
    small_model(decoder_conf={"normalize_before": False, "num_blocks": 1}).decoder,
)
WIDTH = 16


def some(rows: int, frames: int, labels: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(rows, frames, WIDTH, generator=generator)
    return memory, torch.randint(0, NUM_UNITS, (rows, labels), generator=generator)


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6)), min_size=1, max_size=3),
    which=st.integers(0, 1),
)
def test_forward_does_not_see_padding(lengths: list[tuple[int, int]], which: int) -> None:
    decoder = DECODERS[which]
    memory, units = some(len(lengths), 10, 7)
    memory_lengths, unit_lengths = torch.tensor(lengths).unbind(1)
    with torch.inference_mode():
        hidden = decoder(memory, memory_lengths, units, unit_lengths)
        for row, (frames, labels) in enumerate(lengths):
            alone = decoder(
                memory[row : row + 1, : max(frames, 1)],
                memory_lengths[row : row + 1],
                units[row : row + 1, :labels],
                unit_lengths[row : row + 1],
            )
            torch.testing.assert_close(hidden[row, :labels], alone[0], atol=1e-5, rtol=1e-5)
    assert hidden.isfinite().all()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("first", (1, 3))
def test_step_is_forward(decoder: TransformerDecoder, first: int) -> None:
    """Step by step, or with a prefix of three units in the first step."""
    memory, units = some(2, 8, 6)
    memory_lengths = torch.tensor([8, 5])
    mask, cache = length_mask(memory_lengths, 8), None
    with torch.inference_mode():
        hidden = decoder(memory, memory_lengths, units, torch.tensor([6, 6]))
        for length in range(first, 7):
            last, cache = decoder.step(memory, mask, units[:, :length], cache)
            assert cache.num_units == length
            torch.testing.assert_close(last, hidden[:, length - 1], atol=1e-5, rtol=1e-5)


def run(decoder: TransformerDecoder, memory: Tensor, mask: Tensor, units: Tensor) -> tuple[Tensor, DecoderCache]:
    """All but the last unit in steps."""
    cache: DecoderCache | None = None
    for length in range(1, units.size(1)):
        last, cache = decoder.step(memory, mask, units[:, :length], cache)
    assert cache is not None
    return last, cache


@settings(max_examples=20, deadline=None)
@given(data=st.data(), group=st.integers(1, 3), shared=st.booleans())
def test_reordered_cache_is_a_fresh_one(data: st.DataObject, group: int, shared: bool) -> None:
    """Beams exchange their places inside an utterance; its memory stands once, or once a hypothesis."""
    decoder, utterances = DECODERS[0], 2
    memory, _ = some(utterances, 6, 1)
    _, units = some(utterances * group, 6, 5, seed=1)
    mask = length_mask(torch.tensor([6, 4]), 6)
    if not shared:
        memory, mask = memory.repeat_interleave(group, 0), mask.repeat_interleave(group, 0)
    places = [[data.draw(st.integers(0, group - 1)) for _ in range(group)] for _ in range(utterances)]
    indices = torch.tensor([row * group + place for row, inside in enumerate(places) for place in inside])
    with torch.inference_mode():
        _, cache = run(decoder, memory, mask, units)
        chosen = units[indices]
        chosen[:, -1] = torch.arange(len(chosen)) % NUM_UNITS
        last, _ = decoder.step(memory, mask, chosen, cache.select(indices))
        expected, _ = decoder.step(memory, mask, chosen, None)
    torch.testing.assert_close(last, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("group", (1, 2))
def test_whole_utterances_leave(group: int) -> None:
    decoder = DECODERS[0]
    memory, _ = some(3, 6, 1)
    _, units = some(3 * group, 6, 4, seed=1)
    mask = length_mask(torch.tensor([6, 4, 5]), 6)
    keep = torch.tensor([0, 2])
    indices = (keep[:, None] * group + torch.arange(group).flip(0)).flatten()
    with torch.inference_mode():
        _, cache = run(decoder, memory, mask, units)
        last, _ = decoder.step(memory[keep], mask[keep], units[indices], cache.select(indices))
        expected, _ = decoder.step(memory[keep], mask[keep], units[indices], None)
    torch.testing.assert_close(last, expected, atol=1e-5, rtol=1e-5)


def test_wrong_calls() -> None:
    memory, units = some(2, 4, 3)
    mask = torch.ones(2, 4, dtype=torch.bool)
    _, cache = DECODERS[0].step(memory, mask, units, None)
    with pytest.raises(ValueError, match="3 units, of which 3 are cached already: nothing to compute"):
        DECODERS[0].step(memory, mask, units, cache)
    with pytest.raises(ValueError, match="3 hypotheses are no multiple of 2 utterances"):
        DECODERS[0].step(memory, mask, units[[0, 1, 1]], None)


def test_names_are_wenets() -> None:
    names = {name for name in DECODERS[0].state_dict() if not name.startswith("decoders.1.")}
    weights = {"self_attn.linear_q", "self_attn.linear_k", "self_attn.linear_v", "self_attn.linear_out"}
    weights |= {name.replace("self", "src") for name in weights} | {"feed_forward.w_1", "feed_forward.w_2"}
    weights |= {"norm1", "norm2", "norm3"}
    expected = {f"decoders.0.{name}.{kind}" for name in weights for kind in ("weight", "bias")}
    assert names == expected | {"embed.0.weight", "after_norm.weight", "after_norm.bias"}
