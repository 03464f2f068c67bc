# SPDX-License-Identifier: Apache-2.0
"""The hypotheses of the CTC prefix search, ranked anew with the attention decoder.

Dimension key: B utterances, R hypotheses of all of them, T frames, D width, L units, M = L + 1 decoder positions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.heads.base import OutputHead
from wenet_hs.model import AsrModel, reverse_labels, with_sos_eos
from wenet_hs.nn.masks import length_mask
from wenet_hs.nn.transformer import BiTransformerDecoder, TransformerDecoder


def rescore(
    model: AsrModel,
    memory: Tensor,
    lengths: Tensor,
    candidates: Sequence[Sequence[Hypothesis]],
    options: DecodeOptions,
) -> list[list[Hypothesis]]:
    """The same hypotheses by (1 - r) · left + r · right + ctc_weight · CTC score, best first (WeNet's formula).

    left and right are the decoders' log-probabilities of units and end, r is `reverse_weight`; no length divides them.

    Args:
        memory: (B, T, D) encoder output; lengths: (B,) in T, at least 1.
        candidates: of each utterance the hypotheses of the prefix search.
    """
    flat = [(row, hypothesis) for row, nbest in enumerate(candidates) for hypothesis in nbest]
    rows_R = torch.tensor([row for row, _ in flat], device=memory.device)
    labels = [torch.tensor(hypothesis.ids, dtype=torch.int64) for _, hypothesis in flat]
    lengths_R = torch.tensor([len(ids) for ids in labels], device=memory.device)
    labels_RL = pad_sequence(labels, batch_first=True).to(memory.device)
    scores_R = _decoder_scores(model, (memory[rows_R], lengths[rows_R]), labels_RL, lengths_R, options.reverse_weight)
    results: list[list[Hypothesis]] = [[] for _ in candidates]
    for (row, hypothesis), score in zip(flat, scores_R.tolist(), strict=True):
        results[row].append(Hypothesis(hypothesis.ids, score + options.ctc_weight * hypothesis.score))
    return [sorted(nbest, key=lambda hypothesis: hypothesis.score, reverse=True) for nbest in results]


def _decoder_scores(
    model: AsrModel, memory: tuple[Tensor, Tensor], labels_RL: Tensor, lengths_R: Tensor, reverse_weight: float
) -> Tensor:
    """Log-probability of each sequence and its end, both directions weighted: (R,) float64."""
    decoder, right_head = model.decoder, model.right_head
    if not isinstance(decoder, BiTransformerDecoder) or right_head is None:
        return _sequence_scores(model, decoder, model.head, memory, labels_RL, lengths_R)
    left_R = _sequence_scores(model, decoder.left_decoder, model.head, memory, labels_RL, lengths_R)
    if not reverse_weight:
        return left_R
    reversed_RL = reverse_labels(labels_RL, lengths_R)
    right_R = _sequence_scores(model, decoder.right_decoder, right_head, memory, reversed_RL, lengths_R)
    return (1 - reverse_weight) * left_R + reverse_weight * right_R


def _sequence_scores(
    model: AsrModel,
    decoder: TransformerDecoder | BiTransformerDecoder,
    head: OutputHead,
    memory: tuple[Tensor, Tensor],
    labels_RL: Tensor,
    lengths_R: Tensor,
) -> Tensor:
    units_in_RM, targets_RM = with_sos_eos(labels_RL, lengths_R, model.special)
    hidden_RMD = decoder(*memory, units_in_RM, lengths_R + 1)
    valid_RM = length_mask(lengths_R + 1, targets_RM.size(1))
    costs_RM = torch.zeros(targets_RM.shape, dtype=torch.float64, device=labels_RL.device)
    costs_RM[valid_RM] = head.nll(hidden_RMD[valid_RM], targets_RM[valid_RM]).double()
    return -costs_RM.sum(dim=1)
