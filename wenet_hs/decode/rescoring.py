# SPDX-License-Identifier: Apache-2.0
"""The hypotheses of the CTC prefix search, ranked anew with the attention decoder.

Dimension key: B utterances, T frames, D width.
"""

from collections.abc import Sequence

from torch import Tensor

from wenet_hs.decode.fusion import sequence_gains
from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.decode.lm import LanguageModel
from wenet_hs.decode.prefix_tree import score_sequences
from wenet_hs.model import AsrModel
from wenet_hs.nn.transformer import BiTransformerDecoder

_Sequences = list[tuple[int, tuple[int, ...]]]


def rescore(
    model: AsrModel,
    memory: Tensor,
    lengths: Tensor,
    candidates: Sequence[Sequence[Hypothesis]],
    options: DecodeOptions,
    lm: LanguageModel | None = None,
) -> list[list[Hypothesis]]:
    """The same hypotheses by (1 - r) · left + r · right + ctc_weight · CTC score, best first (WeNet's formula).

    left and right are the decoders' log-probabilities of units and end, r is `reverse_weight`; no length divides them.
    A language model and a bonus for units are one more term.

    Args:
        memory: (B, T, D) encoder output; lengths: (B,) in T, at least 1.
        candidates: of each utterance the hypotheses of the prefix search, scored by CTC alone.
    """
    flat = [(row, hypothesis.ids) for row, nbest in enumerate(candidates) for hypothesis in nbest]
    scores = _decoder_scores(model, (memory, lengths), flat, options.reverse_weight)
    gains = sequence_gains(lm, options, [ids for _, ids in flat], model.special.eos)
    results: list[list[Hypothesis]] = []
    terms = iter(zip(scores, gains, strict=True))
    for nbest in candidates:
        rescored = []
        for hypothesis, (score, gain) in zip(nbest, terms, strict=False):
            rescored.append(Hypothesis(hypothesis.ids, score + options.ctc_weight * hypothesis.score + gain))
        results.append(sorted(rescored, key=lambda hypothesis: hypothesis.score, reverse=True))
    return results


def _decoder_scores(
    model: AsrModel, memory: tuple[Tensor, Tensor], sequences: _Sequences, reverse_weight: float
) -> list[float]:
    """Log-probability of each sequence and its end, both directions weighted."""
    decoder, right_head = model.decoder, model.right_head
    if not isinstance(decoder, BiTransformerDecoder) or right_head is None:
        left = decoder.left_decoder if isinstance(decoder, BiTransformerDecoder) else decoder
        return score_sequences(left, model.head, memory, sequences, model.special)
    left_scores = score_sequences(decoder.left_decoder, model.head, memory, sequences, model.special)
    if not reverse_weight:
        return left_scores
    turned = [(row, ids[::-1]) for row, ids in sequences]
    right_scores = score_sequences(decoder.right_decoder, right_head, memory, turned, model.special)
    pairs = zip(left_scores, right_scores, strict=True)
    return [(1 - reverse_weight) * left + reverse_weight * right for left, right in pairs]
