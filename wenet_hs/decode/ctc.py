# SPDX-License-Identifier: Apache-2.0
"""Searches in the output of the CTC branch.

They read the K best units of each frame, whatever head these come from.

Dimension key: B utterances, T encoder frames, K best units of a frame.
"""

import torch
from torch import Tensor

from wenet_hs.decode.hypothesis import Hypothesis
from wenet_hs.nn.layers import length_mask


def greedy_search(values: Tensor, ids: Tensor, lengths: Tensor, *, blank: int) -> list[list[Hypothesis]]:
    """The best alignment of each utterance, repeats and blanks taken out: one hypothesis each.

    Args:
        values, ids: (B, T, K) log-probabilities and units of `Ctc.topk`, of which the first of each frame is read.
        lengths: (B,) in T. What stands behind an utterance's length is not read.
    Returns: for each utterance its hypothesis; the score is that of the alignment, not of all alignments together.
    """
    best_BT, ids_BT = values[..., 0], ids[..., 0]
    valid_BT = length_mask(lengths, values.size(1))
    scores = best_BT.masked_fill(~valid_BT, 0.0).double().sum(dim=1).tolist()
    previous_BT = torch.nn.functional.pad(ids_BT[:, :-1], (1, 0), value=blank)  # before the first frame: no unit
    kept_BT = valid_BT & (ids_BT != blank) & (ids_BT != previous_BT)
    rows = zip(ids_BT.cpu(), kept_BT.cpu(), scores, strict=True)
    return [[Hypothesis(tuple(ids_T[kept_T].tolist()), score)] for ids_T, kept_T, score in rows]


def prefix_beam_search(
    values: Tensor, ids: Tensor, lengths: Tensor, *, blank: int, beam_size: int
) -> list[list[Hypothesis]]:
    """The best prefixes of each utterance by the sum over their alignments (Hannun et al. 2014), WeNet's pruning.

    In each frame only its K best units are looked at (in WeNet K is the beam); the `beam_size` best prefixes survive.

    The search is a Numba kernel, float64 inside; `ctc_reference` is the same in plain Python. Of equal scores the
    prefix that goes on from the better one is first, then the one that goes on by the higher unit.

    Args:
        values, ids: (B, T, K) log-probabilities and units of `Ctc.topk`, no NaN; lengths: (B,) in T. What stands
            behind an utterance's length is not read.
    Returns: for each utterance up to `beam_size` different hypotheses, best first, with the log of the sum over the
        alignments that were looked at. An utterance of length 0 has the empty one.
    """
    from wenet_hs.decode import ctc_numba

    found = ctc_numba.prefix_search(
        values.detach().double().cpu().contiguous().numpy(),
        ids.cpu().contiguous().numpy(),
        lengths.long().cpu().numpy(),
        blank=blank,
        beam_size=beam_size,
    )
    results: list[list[Hypothesis]] = []
    for scores_N, sizes_N, units_NT in zip(*found, strict=True):
        beam = zip(scores_N.tolist(), sizes_N.tolist(), units_NT, strict=True)
        results.append(
            [Hypothesis(tuple(units_T[:size].tolist()), score) for score, size, units_T in beam if size >= 0]
        )
    return results
