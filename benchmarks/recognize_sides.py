# SPDX-License-Identifier: Apache-2.0
"""What recognize.py compares: models of equal weights, utterances of noise, whole passes, and their
arithmetic.

Dimension key: B utterances, T frames, F features, D width, V units, N rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import wenet_search
from paired import Side
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from training_sides import SPECIAL, build_with_head, paper_config

from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.decode.modes import decode
from wenet_hs.heads import SoftmaxHead
from wenet_hs.heads import products as linear
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.nn.transformer import NewNodes, TransformerDecoder, TransformerDecoderLayer

BEAM = 10
FEATURES = 80
PEAKED = 10.0
BLANK_SHARE = 0.6
NEVER = -1e4
CTC_WEIGHT = 0.5
Whole = Callable[[], list[list[Hypothesis]]]


@dataclass(frozen=True)
class Speech:
    """Utterances as a padded batch of noise: the searches do not look at what is said."""

    features: Tensor
    lengths: Tensor

    @property
    def seconds(self) -> float:
        """Of audio, padding left out: 100 frames a second."""
        return float(self.lengths.sum()) / 100


def speech(seconds: Sequence[float], device: str) -> Speech:
    """Utterances of these lengths, each with a voice: what it adds to all of its frames."""
    generator = torch.Generator().manual_seed(len(seconds))
    voices_BF = 2 * torch.randn(len(seconds), FEATURES, generator=generator)
    sizes = [round(100 * length) for length in seconds]
    rows = [
        torch.randn(size, FEATURES, generator=generator) + voice
        for size, voice in zip(sizes, voices_BF, strict=True)
    ]
    lengths = torch.tensor([len(row) for row in rows])
    return Speech(pad_sequence(rows, batch_first=True).to(device), lengths.to(device))


def read_speech(mean_s: float, num: int) -> list[float]:
    """Seconds of clips in the log-normal form of read speech, of this mean on average; 1 to 20 s."""
    spread = 0.4
    centre = np.log(mean_s) - spread**2 / 2
    return (
        np.clip(np.random.default_rng(0).lognormal(centre, spread, num), 1.0, 20.0)
        .round(2)
        .tolist()
    )


def make_model(
    num_units: int, *, head: str = "softmax", scale: float = 1.0, device: str, quick: bool
) -> AsrModel:
    """The paper's size with random weights; those of encoder, decoder and CTC are the same whatever
    the head.

    `scale` multiplies the weights of the decoder's head: PEAKED is about what training makes of
    them.
    """
    torch.manual_seed(0)
    config = paper_config(quick=quick)
    model = flat = build_with_head(config, "softmax", num_units)
    if head != "softmax":
        model = build_with_head(config, head, num_units)
        for name in ("encoder", "decoder", "ctc"):
            model.get_submodule(name).load_state_dict(flat.get_submodule(name).state_dict())
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.mul_(scale)
    return model.to(device).eval()


@torch.no_grad()
def spread_ctc(model: AsrModel, said: Speech) -> AsrModel:
    """The same with CTC's hypotheses as long as speech has them.

    Random weights give every frame the same unit. Here the mean of the scores is taken out and the
    rest multiplied by PEAKED; blank is the best of BLANK_SHARE of the frames.
    """
    memory_BTD = model.encode(said.features, said.lengths)[0]
    output = _peaked(model.ctc.head, memory_BTD)
    scores_BTV = output(memory_BTD)
    own_BT = scores_BTV[..., SPECIAL.blank].clone()
    scores_BTV[..., SPECIAL.blank] = NEVER
    output.bias[SPECIAL.blank] += (scores_BTV.amax(-1) - own_BT).flatten().quantile(BLANK_SHARE)
    return model


@torch.no_grad()
def set_end(model: AsrModel, said: Speech, ends: Sequence[float] | None = None) -> AsrModel:
    """The same with the decoder's states told apart as `spread_ctc` does, and an end, which random
    weights never see.

    Its weights are fitted so that it comes after about `ends` units of each utterance; without them
    it never comes.
    """
    memory_BTD, lengths_B = model.encode(said.features, said.lengths)
    model.decoder.embed[0].weight.div_(
        np.sqrt(memory_BTD.size(-1))
    )  # else nothing is seen of the positions
    generator = torch.Generator().manual_seed(1)
    states = []
    for _ in range(4):
        units_BT = torch.randint(3, model.num_units, memory_BTD.shape[:2], generator=generator).to(
            memory_BTD.device
        )
        states.append(model.decoder(memory_BTD, lengths_B, units_BT, lengths_B))
    states_BTD = torch.cat(states)
    output = _peaked(model.head, states_BTD)
    output.bias[SPECIAL.eos] = NEVER
    if ends is not None:
        _fit_end(output, states_BTD, torch.tensor([*ends] * len(states), device=memory_BTD.device))
    return model


def _peaked(head: nn.Module, states_BTD: Tensor) -> nn.Linear:
    output = cast(SoftmaxHead, head).output
    output.weight.mul_(PEAKED)
    output.bias.copy_(-(output.weight @ states_BTD.flatten(0, 1).mean(0)))
    return output


def _fit_end(output: nn.Linear, states_BTD: Tensor, ends_B: Tensor) -> None:
    """Ridge regression: the end is as likely as the best unit at its time, and rises by a nat in
    three units.
    """
    wanted_BT = (
        (torch.arange(states_BTD.size(1), device=ends_B.device) - ends_B[:, None]) / 3
    ).clamp(-12, 6)
    wanted_BT = wanted_BT + output(states_BTD).amax(-1)
    mean_D = states_BTD.flatten(0, 1).mean(0)
    centred_ND = (states_BTD - mean_D).flatten(0, 1)
    ridge = 1e-4 * float(centred_ND.square().sum()) * torch.eye(len(mean_D), device=ends_B.device)
    weight_D = torch.linalg.solve(
        centred_ND.T @ centred_ND + ridge, centred_ND.T @ wanted_BT.flatten()
    )
    output.weight[SPECIAL.eos] = weight_D
    output.bias[SPECIAL.eos] = wanted_BT.mean() - weight_D @ mean_D


@contextmanager
def torchs_products() -> Iterator[None]:
    """Meanwhile the linear layers are torch's."""
    before, linear._HAS_ONEDNN = linear._HAS_ONEDNN, False
    try:
        yield
    finally:
        linear._HAS_ONEDNN = before


def ours(model: AsrModel, said: Speech, mode: str, options: DecodeOptions) -> Whole:
    """Features → hypotheses by the package."""
    return lambda: decode(model, said.features, said.lengths, [mode], options)[mode]


def wenets(model: AsrModel, said: Speech, mode: str) -> Whole:
    """The same by WeNet's searches behind our encoder with torch's products."""

    @torch.no_grad()
    @torchs_products()
    def whole() -> list[list[Hypothesis]]:
        memory, lengths = model.encode(said.features, said.lengths)
        if mode == "attention":
            found = wenet_search.attention_beam(model, memory, lengths, BEAM)
        else:
            log_probs = model.ctc.log_probs(memory)
            found = wenet_search.prefix_beam(
                log_probs, lengths, blank=SPECIAL.blank, beam_size=BEAM
            )
        if mode == "attention_rescoring":
            found = wenet_search.rescore(model, memory, lengths, found, CTC_WEIGHT)
        return [[Hypothesis(ids, score) for ids, score in nbest] for nbest in found]

    return whole


def share_equal(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> float:
    """The share of the lists' places with equal units.

    Raises RuntimeError where a best hypothesis or score differs.
    """
    same = total = 0
    for number, (nbest, others) in enumerate(zip(found, expected, strict=True)):
        ours_best, theirs_best = nbest[0], others[0]
        near = abs(ours_best.score - theirs_best.score) <= 1e-4 * max(1.0, abs(theirs_best.score))
        if ours_best.ids != theirs_best.ids or not near:
            raise RuntimeError(
                f"utterance {number}: the sides disagree: {ours_best} and {theirs_best}"
            )
        total += len(others)
        same += sum(left.ids == right.ids for left, right in zip(nbest, others, strict=False))
    return same / total


def encoder_alone(model: AsrModel, said: Speech) -> Side:
    """Features → memory."""

    @torch.no_grad()
    def encode() -> object:
        return model.encode(said.features, said.lengths)

    return encode


def rows_of_steps(model: AsrModel, whole: Whole) -> list[int]:
    """How many rows the decoder computes in each of its calls during one pass."""
    decoder, rows = cast(TransformerDecoder, model.decoder), []
    decode_step = decoder.decode_step

    def counted(cache: object, nodes: NewNodes) -> Tensor:
        rows.append(len(nodes.units))
        return decode_step(cache, nodes)  # type: ignore[arg-type]

    decoder.decode_step = counted  # type: ignore[method-assign, assignment]
    try:
        whole()
    finally:
        del decoder.decode_step
    return rows


def products_alone(model: AsrModel, said: Speech, rows: Sequence[int]) -> Side:
    """The decoder's linear layers, of the memory once and of these rows, and nothing else: no
    attention, no search.
    """
    layers = [
        cast(TransformerDecoderLayer, layer)
        for layer in cast(TransformerDecoder, model.decoder).decoders
    ]
    with torch.no_grad():
        memory_BTD = model.encode(said.features, said.lengths)[0]
    wide = layers[0].feed_forward.w_1.out_features
    device, size = memory_BTD.device, memory_BTD.size(-1)
    inputs = {
        count: (torch.randn(count, size, device=device), torch.randn(count, wide, device=device))
        for count in rows
    }

    @torch.no_grad()
    def multiply() -> None:
        for layer in layers:
            layer.src_attn.linear_k(memory_BTD), layer.src_attn.linear_v(memory_BTD)
        for count in rows:
            narrow_ND, wide_ND = inputs[count]
            for layer in layers:
                own, other = layer.self_attn, layer.src_attn
                for product in (
                    own.linear_q,
                    own.linear_k,
                    own.linear_v,
                    own.linear_out,
                    other.linear_q,
                ):
                    product(narrow_ND)
                (
                    other.linear_out(narrow_ND),
                    layer.feed_forward.w_1(narrow_ND),
                    layer.feed_forward.w_2(wide_ND),
                )
            cast(SoftmaxHead, model.head).output(narrow_ND)

    return multiply
