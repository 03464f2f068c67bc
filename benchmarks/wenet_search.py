# SPDX-License-Identifier: Apache-2.0
"""WeNet's searches as its users describe them, as a baseline: equal weights, the same hypotheses,
nothing shared.

Written from a description. The decoder keeps the keys and values of every hypothesis, and of the
memory once for each hypothesis; at each unit the whole prefix is embedded again, the masks are
built again, and the caches are copied in the order of the survivors; all hypotheses of all
utterances are computed until the last one has ended. The prefix search is a dictionary of prefixes,
every number fetched by itself. Rescoring goes utterance by utterance, the memory repeated for each
hypothesis, and reads the scores one number at a time.

Dimension key: B utterances, N beam, P = B · N hypotheses, T frames, L units so far (<sos> first), D
width, H heads, K width of a head, V units.
"""

import math
from collections import defaultdict
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from wenet_hs.heads.masks import length_mask
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.nn.attention import MultiHeadAttention
from wenet_hs.nn.layers import FeedForward, causal_mask
from wenet_hs.nn.transformer import TransformerDecoder, TransformerDecoderLayer

Pair = tuple[Tensor, Tensor]
NBest = list[tuple[tuple[int, ...], float]]
"""Units and score of each hypothesis, best first."""


def attention_beam(model: AsrModel, memory: Tensor, lengths: Tensor, beam_size: int) -> list[NBest]:
    """Memory (B, T, D), lengths (B,) → the beam of each utterance; limited by the frames of the
    longest.
    """
    batch, eos, device = len(memory), model.special.eos, memory.device
    steps = _CachedDecoder(
        model, memory.repeat_interleave(beam_size, 0), lengths.repeat_interleave(beam_size)
    )
    units_PL = torch.full((batch * beam_size, 1), model.special.sos, device=device)
    once_N = torch.tensor([0.0] + [-math.inf] * (beam_size - 1), device=device)
    scores_P = once_N.repeat(batch)
    ended_P = torch.zeros_like(scores_P, dtype=torch.bool)
    first_B1 = beam_size * torch.arange(batch, device=device)[:, None]
    for _ in range(memory.size(1)):
        if bool(ended_P.all()):
            break
        values_PN, ids_PN = steps.log_probs(units_PL).topk(beam_size)
        values_PN = torch.where(ended_P[:, None], once_N, values_PN)
        ids_PN = ids_PN.masked_fill(ended_P[:, None], eos)
        scores_BN, order_BN = (scores_P[:, None] + values_PN).view(batch, -1).topk(beam_size)
        parents_P = (first_B1 + order_BN // beam_size).flatten()
        units_P1 = ids_PN.view(batch, -1).gather(1, order_BN).view(-1, 1)
        scores_P, units_PL = scores_BN.flatten(), torch.cat([units_PL[parents_P], units_P1], dim=1)
        ended_P = units_P1[:, 0] == eos
        steps.reorder(parents_P)
    return _ranked(units_PL[:, 1:].view(batch, beam_size, -1), scores_P.view(batch, -1), eos)


def _ranked(units_BNL: Tensor, scores_BN: Tensor, eos: int) -> list[NBest]:
    found = []
    for rows, scores in zip(units_BNL.tolist(), scores_BN.tolist(), strict=True):
        texts = [tuple(row[: row.index(eos)] if eos in row else row) for row in rows]
        pairs = zip(texts, scores, strict=True)
        found.append(sorted(pairs, key=lambda pair: pair[1], reverse=True))
    return found


class _CachedDecoder:
    """One unit after the other: the layers see the last position alone, by the keys and values of
    those before.
    """

    def __init__(self, model: AsrModel, memory_PTD: Tensor, lengths_P: Tensor) -> None:
        self._model = model
        self._decoder = cast(TransformerDecoder, model.decoder)
        self._layers = [cast(TransformerDecoderLayer, layer) for layer in self._decoder.decoders]
        self._seen_P1T = length_mask(lengths_P, memory_PTD.size(1))[:, None]
        self._memory = [_keys_values(layer.src_attn, memory_PTD) for layer in self._layers]
        self._past: list[Pair | None] = [None] * len(self._layers)

    def log_probs(self, units_PL: Tensor) -> Tensor:
        """(P, V) of the unit behind these."""
        num_units = units_PL.size(1)
        x_PLD = self._decoder.embed[1](self._decoder.embed[0](units_PL))[0]
        mask_P1L = causal_mask(num_units, device=units_PL.device).expand(len(units_PL), -1, -1)[
            :, -1:
        ]
        for number, layer in enumerate(self._layers):
            x_PLD = self._layer(layer, number, x_PLD, mask_P1L)
        return self._model.head.log_probs(self._decoder.after_norm(x_PLD[:, -1]))

    def _layer(
        self, layer: TransformerDecoderLayer, number: int, x_PLD: Tensor, mask_P1L: Tensor
    ) -> Tensor:
        query_P1D, x_P1D = layer.norm1(x_PLD)[:, -1:], x_PLD[:, -1:]
        new, past = _keys_values(layer.self_attn, query_P1D), self._past[number]
        kept = (
            new
            if past is None
            else (torch.cat([past[0], new[0]], dim=2), torch.cat([past[1], new[1]], dim=2))
        )
        self._past[number] = kept
        x_P1D = x_P1D + _attend(layer.self_attn, query_P1D, kept, mask_P1L)
        x_P1D = x_P1D + _attend(
            layer.src_attn, layer.norm2(x_P1D), self._memory[number], self._seen_P1T
        )
        return x_P1D + _feed_forward(layer.feed_forward, layer.norm3(x_P1D))

    def reorder(self, parents_P: Tensor) -> None:
        """The caches of the survivors, copied into their places."""
        for number, past in enumerate(self._past):
            if past is not None:
                self._past[number] = (
                    past[0].index_select(0, parents_P),
                    past[1].index_select(0, parents_P),
                )


def _linear(layer: torch.nn.Module, x: Tensor) -> Tensor:
    """torch's own product, whatever the layer would take."""
    return F.linear(x, cast(Tensor, layer.weight), cast(Tensor, layer.bias))


def _keys_values(attention: MultiHeadAttention, x_PLD: Tensor) -> Pair:
    """(P, L, D) → two (P, H, L, K)."""
    shape = *x_PLD.shape[:2], attention.num_heads, attention.head_size
    keys, values = (
        _linear(layer, x_PLD).view(shape) for layer in (attention.linear_k, attention.linear_v)
    )
    return keys.transpose(1, 2), values.transpose(1, 2)


def _attend(
    attention: MultiHeadAttention, query_PLD: Tensor, pair: Pair, mask_PLS: Tensor
) -> Tensor:
    """Scores, softmax, sum, each by itself."""
    shape = *query_PLD.shape[:2], attention.num_heads, attention.head_size
    query_PHLK = _linear(attention.linear_q, query_PLD).view(shape).transpose(1, 2)
    scores_PHLS = query_PHLK @ pair[0].transpose(-2, -1) / math.sqrt(attention.head_size)
    weights_PHLS = scores_PHLS.masked_fill(~mask_PLS[:, None], -math.inf).softmax(-1)
    weights_PHLS = weights_PHLS.masked_fill(~mask_PLS[:, None], 0.0)
    return _linear(attention.linear_out, (weights_PHLS @ pair[1]).transpose(1, 2).flatten(2))


def _feed_forward(layer: FeedForward, x: Tensor) -> Tensor:
    return _linear(layer.w_2, layer.activation(_linear(layer.w_1, x)))


def prefix_beam(log_probs: Tensor, lengths: Tensor, *, blank: int, beam_size: int) -> list[NBest]:
    """Log-probabilities (B, T, V), lengths (B,) → the beam of each utterance."""
    found = []
    for log_probs_TV, length in zip(log_probs, lengths.tolist(), strict=True):
        beam: list[tuple[tuple[int, ...], tuple[float, float]]] = [((), (0.0, -math.inf))]
        for log_probs_V in log_probs_TV[:length]:
            beam = _next_prefixes(beam, log_probs_V, blank, beam_size)
        found.append([(prefix, _log_add(*sums)) for prefix, sums in beam])
    return found


def _next_prefixes(
    beam: list[tuple[tuple[int, ...], tuple[float, float]]],
    log_probs_V: Tensor,
    blank: int,
    beam_size: int,
) -> list[tuple[tuple[int, ...], tuple[float, float]]]:
    """Prefixes with the sums over their alignments that end in a blank, and in their unit."""
    sums: dict[tuple[int, ...], tuple[float, float]] = defaultdict(lambda: (-math.inf, -math.inf))
    for index in log_probs_V.topk(beam_size)[1]:
        unit = int(index.item())
        log_prob = log_probs_V[unit].item()
        for prefix, (in_blank, in_unit) in beam:
            last = prefix[-1] if prefix else None
            both = _log_add(in_blank, in_unit)
            if unit == blank:
                old_blank, old_unit = sums[prefix]
                sums[prefix] = _log_add(old_blank, both + log_prob), old_unit
                continue
            if unit == last:  # the old unit goes on
                old_blank, old_unit = sums[prefix]
                sums[prefix] = old_blank, _log_add(old_unit, in_unit + log_prob)
            longer = (*prefix, unit)
            old_blank, old_unit = sums[longer]
            sums[longer] = (
                old_blank,
                _log_add(old_unit, (in_blank if unit == last else both) + log_prob),
            )
    return sorted(sums.items(), key=lambda item: _log_add(*item[1]), reverse=True)[:beam_size]


def _log_add(a: float, b: float) -> float:
    if a == b == -math.inf:
        return -math.inf
    most = max(a, b)
    return most + math.log(math.exp(a - most) + math.exp(b - most))


def rescore(
    model: AsrModel, memory: Tensor, lengths: Tensor, found: list[NBest], ctc_weight: float
) -> list[NBest]:
    """The hypotheses of the prefix search by the decoder's score and `ctc_weight` times that of
    CTC.
    """
    results = []
    for memory_TD, length, nbest in zip(memory, lengths.tolist(), found, strict=True):
        log_probs_NLV = _whole_log_probs(model, memory_TD[:length], [ids for ids, _ in nbest])
        rescored: NBest = []
        for log_probs_LV, (ids, ctc_score) in zip(log_probs_NLV, nbest, strict=True):
            score = 0.0
            for place, unit in enumerate((*ids, model.special.eos)):
                score += log_probs_LV[place][unit].item()
            rescored.append((ids, score + ctc_weight * ctc_score))
        results.append(sorted(rescored, key=lambda pair: pair[1], reverse=True))
    return results


def _whole_log_probs(model: AsrModel, memory_TD: Tensor, texts: list[tuple[int, ...]]) -> Tensor:
    """(N, L, V): hypotheses padded to the longest, the memory repeated for each."""
    decoder, special = cast(TransformerDecoder, model.decoder), model.special
    rows = [torch.tensor([special.sos, *ids], device=memory_TD.device) for ids in texts]
    units_NL = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=special.eos)
    memory_NTD = memory_TD.expand(len(texts), -1, -1).contiguous()
    lengths_N = torch.tensor([len(row) for row in rows], device=memory_TD.device)
    mask_NLL = length_mask(lengths_N, units_NL.size(1))[:, None] & causal_mask(
        units_NL.size(1), device=memory_TD.device
    )
    seen_N1T = torch.ones(len(texts), 1, len(memory_TD), dtype=torch.bool, device=memory_TD.device)
    x_NLD = decoder.embed[1](decoder.embed[0](units_NL))[0]
    for module in decoder.decoders:
        layer = cast(TransformerDecoderLayer, module)
        y_NLD = layer.norm1(x_NLD)
        x_NLD = x_NLD + _attend(
            layer.self_attn, y_NLD, _keys_values(layer.self_attn, y_NLD), mask_NLL
        )
        memory_pair = _keys_values(layer.src_attn, memory_NTD)
        x_NLD = x_NLD + _attend(layer.src_attn, layer.norm2(x_NLD), memory_pair, seen_N1T)
        x_NLD = x_NLD + _feed_forward(layer.feed_forward, layer.norm3(x_NLD))
    return model.head.log_probs(decoder.after_norm(x_NLD))
