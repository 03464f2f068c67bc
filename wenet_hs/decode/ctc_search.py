# SPDX-License-Identifier: Apache-2.0
"""CTC searches (greedy, prefix beam search with and without a language model) and CTC alignment of
label sequences.

Dimension key: B utterances, T encoder frames, K best units of a frame, D width, C classes (0 is
blank), R label sequences, L labels.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.decode.hypothesis import DIVERGED, Alignment, DecodeOptions, Hypothesis
from wenet_hs.heads.ctc import Alphabet, Ctc, begins_unit, compact_alphabet
from wenet_hs.heads.gpu import copy_to
from wenet_hs.heads.masks import length_mask
from wenet_hs.lm.language_model import LanguageModel
from wenet_hs.tree.errors import CheckpointError

_IMPOSSIBLE = -math.inf
_BLOCK = 2000
"""Frames whose steps are kept at a time by the alignment: an hour of 90,000 frames and 50,000
labels needs 45 MB.
"""
_Ids = tuple[int, ...]


def greedy_search(
    values: Tensor, ids: Tensor, lengths: Tensor, *, blank: int
) -> list[list[Hypothesis]]:
    """The best alignment of each utterance without repeats and blanks: one hypothesis per
    utterance.

    Args:
        values, ids: (B, T, K) log-probabilities and units of `Ctc.topk`; only the first of each
            frame is read.
        lengths: (B,) in T. Frames after an utterance's length are not read.
    Returns: per utterance its hypothesis; the score is that of the alignment, not of all alignments
        together.
    """
    best_BT, ids_BT = values[..., 0], ids[..., 0]
    valid_BT = length_mask(lengths, values.size(1))
    scores = best_BT.masked_fill(~valid_BT, 0.0).double().sum(dim=1).tolist()
    kept_BT = valid_BT & begins_unit(ids_BT, blank)
    rows = zip(ids_BT.cpu(), kept_BT.cpu(), scores, strict=True)
    return [[Hypothesis(tuple(ids_T[kept_T].tolist()), score)] for ids_T, kept_T, score in rows]


def prefix_beam_search(
    values: Tensor, ids: Tensor, lengths: Tensor, *, blank: int, beam_size: int
) -> list[list[Hypothesis]]:
    """The best prefixes of each utterance by the sum over their alignments (Hannun et al.

    2014), with WeNet's pruning.

    In each frame only its K best units are considered (in WeNet K is the beam); the `beam_size`
    best prefixes survive. The search is a Numba kernel in float64. `prefix_beam_search_with_lm`
    without a language model is the same search in plain Python. Of equal scores the prefix that
    extends the better one is first, then the one with the higher unit.

    Args:
        values, ids: (B, T, K) log-probabilities and units of `Ctc.topk`, no NaN; lengths: (B,) in
            T. Frames after an utterance's length are not read.
    Returns: per utterance up to `beam_size` different hypotheses, best first, with the log of the
        sum over the alignments that were considered. An utterance of length 0 has the empty one.
    """
    values_BTK, ids_BTK = (
        values.detach().double().cpu().contiguous().numpy(),
        ids.cpu().contiguous().numpy(),
    )
    results = []
    for values_TK, ids_TK, length in zip(values_BTK, ids_BTK, lengths.tolist(), strict=True):
        search = PrefixSearch(blank=blank, beam_size=beam_size)
        search.advance(values_TK[:length], ids_TK[:length])
        results.append(search.hypotheses())
    return results


class PrefixSearch:
    """The search of `prefix_beam_search` for one utterance, whose frames may arrive in parts."""

    def __init__(self, *, blank: int, beam_size: int) -> None:
        from wenet_hs.decode import ctc_kernels

        self._kernels, self._blank, self._beam_size = ctc_kernels, blank, beam_size
        self._state = ctc_kernels.start_prefixes(blank, beam_size, 1)
        self._slots_V = np.full(blank + 1, -1, np.int32)

    def advance(self, values_TK: NDArray[np.float64], ids_TK: NDArray[np.int64]) -> None:
        """Extend the beam by T frames: log-probabilities and units, contiguous, best first."""
        trie_M5, *beams, sizes_3 = self._state
        if (needed := int(sizes_3[1]) + len(ids_TK) * self._beam_size) > len(trie_M5):
            longer_M5 = np.empty((max(needed, 2 * len(trie_M5)), trie_M5.shape[1]), trie_M5.dtype)
            longer_M5[: len(trie_M5)] = trie_M5
            self._state = (longer_M5, *beams, sizes_3)
        if (missing := int(ids_TK.max(initial=0)) + 1 - len(self._slots_V)) > 0:
            self._slots_V = np.pad(self._slots_V, (0, missing), constant_values=-1)
        self._kernels.advance_prefixes(values_TK, ids_TK, self._blank, self._slots_V, self._state)

    def hypotheses(self) -> list[Hypothesis]:
        """Up to `beam_size` different ones, best first."""
        rows = zip(*self._kernels.read_prefixes(self._state), strict=True)
        return [
            Hypothesis(tuple(units_L[:size].tolist()), float(score))
            for score, size, units_L in rows
        ]


# ---- with a language model, in plain Python


def prefix_beam_search_with_lm(
    values: Tensor,
    ids: Tensor,
    lengths: Tensor,
    *,
    blank: int,
    eos: int,
    options: DecodeOptions,
    lm: LanguageModel | None,
) -> tuple[list[list[Hypothesis]], list[list[Hypothesis]]]:
    """As `prefix_beam_search`, with prefixes ranked by CTC plus language model and length bonus
    (Hannun et al. 2014).

    Returns: per utterance up to `beam_size` hypotheses, best first; and the same hypotheses with
        scores of CTC only.
    """
    searches = [_FusedPrefixSearch(blank, options) for _ in lengths]
    scorer = _FusionScorer(lm, len(searches)) if lm is not None and options.lm_weight else None
    values_BTK, ids_BTK, lengths_B = values.tolist(), ids.tolist(), lengths.tolist()
    results, by_ctc = [list[Hypothesis]() for _ in searches], [list[Hypothesis]() for _ in searches]
    for t in range(1 + max(lengths_B, default=-1)):  # after its frames each utterance has its end
        running = [row for row, length in enumerate(lengths_B) if t <= length]
        frames = [
            dict(zip(ids_BTK[row][t], values_BTK[row][t], strict=True))
            if t < lengths_B[row]
            else {eos: 0.0}
            for row in running
        ]
        units = [[unit for unit in frame if unit != blank] for frame in frames]
        wanted = [
            (row, searches[row].beam, of_row) for row, of_row in zip(running, units, strict=True)
        ]
        scores = _no_scores(wanted) if scorer is None else scorer.score(wanted)
        for row, frame, of_row in zip(running, frames, scores, strict=True):
            if t < lengths_B[row]:
                searches[row].advance(frame, of_row)
                continue
            found = searches[row].finish(of_row)
            results[row] = [Hypothesis(ids, score) for score, _, ids in found]
            by_ctc[row] = [Hypothesis(ids, ctc) for _, ctc, ids in found]
    return results, by_ctc


_Wanted = list[tuple[int, list[_Ids], list[int]]]
"""Per utterance its row, the prefixes of its beam, and the units of which each may be extended by
one.
"""


def _no_scores(wanted: _Wanted) -> list[list[list[float]]]:
    return [[[0.0] * len(units)] * len(beam) for _, beam, units in wanted]


class _FusionScorer:
    """The language model's states of the beams of all utterances, for which a model on a GPU
    computes together.
    """

    def __init__(self, lm: LanguageModel, count: int) -> None:
        self._lm, self._states = lm, lm.start(count)
        self._rows: dict[tuple[int, _Ids], int] = {(row, ()): row for row in range(count)}

    def score(self, wanted: _Wanted) -> list[list[list[float]]]:
        """Per utterance the log-probabilities of the units after each prefix.

        States of other prefixes are dropped.

        A prefix is in the last beam of its utterance, or one unit longer than such a prefix.
        """
        beams = [(row, prefix) for row, beam, _ in wanted for prefix in beam]
        new = [one for one in beams if one not in self._rows]
        if new:
            parents = self._numbers([self._rows[row, prefix[:-1]] for row, prefix in new])
            after = self._lm.advance(
                self._states[parents], self._numbers([prefix[-1] for _, prefix in new])
            )
            self._rows |= {one: len(self._states) + number for number, one in enumerate(new)}
            self._states = torch.cat([self._states, after])
        self._states = self._states[self._numbers([self._rows[one] for one in beams])]
        self._rows = {one: number for number, one in enumerate(beams)}
        size = max(1, *(len(units) for *_, units in wanted))
        ids = [[*units, *[0] * (size - len(units))] for _, beam, units in wanted for _ in beam]
        scores = iter(self._lm.score(self._states, self._numbers(ids)).tolist())
        return [[next(scores)[: len(units)] for _ in beam] for _, beam, units in wanted]

    def _numbers(self, values: list[int] | list[list[int]]) -> Tensor:
        return copy_to(self._states.device, torch.tensor(values))


class _FusedPrefixSearch:
    """The beam of one utterance."""

    def __init__(self, blank: int, options: DecodeOptions) -> None:
        self._blank, self._options = blank, options
        self._beam: dict[_Ids, tuple[float, float]] = {(): (0.0, _IMPOSSIBLE)}
        """Per prefix: log sums over the alignments that end in blank, and in its last unit."""
        self._fusion: dict[_Ids, float] = {(): 0.0}
        """Language model and length bonus of each prefix."""

    @property
    def beam(self) -> list[_Ids]:
        """The prefixes, best first."""
        return list(self._beam)

    def advance(self, frame: dict[int, float], scores: list[list[float]]) -> None:
        """Extend the beam by a frame, given as the log-probability per unit of its best units.

        `scores`: per prefix of the beam, the language model's of each unit of the frame but blank.
        """
        blank_log_prob = frame.pop(self._blank, _IMPOSSIBLE)
        sums: dict[_Ids, list[float]] = {}
        for prefix, (in_blank, in_unit) in self._beam.items():
            total = _log_add(in_blank, in_unit)
            same = sums.setdefault(prefix, [_IMPOSSIBLE, _IMPOSSIBLE])
            same[0] = _log_add(same[0], total + blank_log_prob)
            for unit, log_prob in frame.items():
                longer = sums.setdefault((*prefix, unit), [_IMPOSSIBLE, _IMPOSSIBLE])
                if (
                    prefix and unit == prefix[-1]
                ):  # a new unit only after a blank; without it, the old one continues
                    longer[1] = _log_add(longer[1], in_blank + log_prob)
                    same[1] = _log_add(same[1], in_unit + log_prob)
                else:
                    longer[1] = _log_add(longer[1], total + log_prob)
        fusion = {
            (*prefix, unit): self._fusion[prefix]
            + self._options.lm_weight * score
            + self._options.length_bonus
            for prefix, of_prefix in zip(self._beam, scores, strict=True)
            for unit, score in zip(frame, of_prefix, strict=True)
        }
        self._fusion = fusion | {prefix: self._fusion[prefix] for prefix in self._beam}
        ranks = {prefix: -rank for rank, prefix in enumerate(self._beam)}
        candidates = []
        for prefix, pair in sums.items():
            rank, unit = (
                (ranks[prefix], -1) if prefix in ranks else (ranks[prefix[:-1]], prefix[-1])
            )
            candidates.append((_log_add(*pair) + self._fusion[prefix], rank, unit, prefix))
        best = sorted(candidates, reverse=True)[: self._options.beam_size]
        self._beam = {
            prefix: (sums[prefix][0], sums[prefix][1])
            for score, *_, prefix in best
            if score > _IMPOSSIBLE
        }

    def finish(self, scores: list[list[float]]) -> list[tuple[float, float, _Ids]]:
        """Score with the end of the text, score of CTC only, and units of each prefix, best first.

        `scores`: per prefix of the beam, the language model's of the end.
        """
        found = []
        for (ids, sums), (score,) in zip(self._beam.items(), scores, strict=True):
            ctc = _log_add(*sums)
            found.append((ctc + self._fusion[ids] + self._options.lm_weight * score, ctc, ids))
        return sorted(found, key=lambda prefix: prefix[0], reverse=True)


def _log_add(a: float, b: float) -> float:
    """log(exp a + exp b)."""
    if a < b:
        a, b = b, a
    return a if b == _IMPOSSIBLE else a + math.log1p(math.exp(b - a))


# ---- alignment


def viterbi_align(
    log_probs: Tensor,
    lengths: Tensor,
    labels: Sequence[Sequence[int]],
    rows: Sequence[int] | None = None,
) -> list[Alignment | None]:
    """The best CTC alignment of each label sequence to the frames of an utterance, in O(T · L)
    time, little memory.

    Args:
        log_probs: (B, T, C) natural logarithms, class 0 is blank; lengths: (B,) in T.
        labels: R sequences of classes.
        rows: the utterance of each sequence; None: one sequence per utterance.
    Returns: None if there are too few frames: one per label, and a blank between equal neighbours.
        Of equally good alignments always the same one.
    Raises: CheckpointError if log-probabilities are NaN.
    """
    from wenet_hs.decode import ctc_kernels

    log_probs_BTC, sizes_B = log_probs.detach().float().cpu().contiguous().numpy(), lengths.tolist()
    found: list[Alignment | None] = []
    for row, classes in zip(range(len(labels)) if rows is None else rows, labels, strict=True):
        log_probs_TC = log_probs_BTC[row, : sizes_B[row]]
        spans_L2, sums_L, total = ctc_kernels.best_alignment(
            log_probs_TC, np.array(classes, np.int64), _BLOCK
        )
        if math.isnan(total):
            raise CheckpointError("CTC output", "NaN", DIVERGED)
        means_L = sums_L / (spans_L2[:, 1] - spans_L2[:, 0]).clip(min=1)
        spans = tuple((start, end) for start, end in spans_L2.tolist())
        found.append(
            None if total == -math.inf else Alignment(spans, tuple(means_L.tolist()), total)
        )
    return found


def align_units(
    ctc: Ctc,
    memory: Tensor,
    lengths: Tensor,
    labels: Sequence[Sequence[int]],
    rows: Sequence[int] | None = None,
) -> list[Alignment | None]:
    """As `viterbi_align`, for unit ids and encoder output.

    Only the log-probabilities of these units are computed.

    Args:
        memory: (B, T, D), lengths: (B,) in T.
        labels: R sequences of unit ids. Blank among them, which a decoder may emit, is a label like
            any other.
    """
    rows = range(len(labels)) if rows is None else rows
    joined: list[list[int]] = [
        [] for _ in range(len(memory))
    ]  # per utterance all its label sequences
    begins = []
    for row, ids in zip(rows, labels, strict=True):
        begins.append(len(joined[row]))
        joined[row] += ids
    alphabet = _alphabet(joined, ctc.blank)
    log_probs_BTC = ctc.head.label_log_probs(memory, alphabet.unit_ids.to(memory.device))
    all_classes = alphabet.target_classes.tolist()
    classes = [
        all_classes[row][begin : begin + len(ids)]
        for row, begin, ids in zip(rows, begins, labels, strict=True)
    ]
    return viterbi_align(log_probs_BTC, lengths, classes, rows)


def align_windows(ctc: Ctc, windows: Iterable[Tensor], ids: Sequence[int]) -> Alignment | None:
    """As `align_units`, for the unit ids of one recording and its encoder output in consecutive
    parts (1, T, D).
    """
    alphabet = _alphabet([ids], ctc.blank)
    parts = [
        ctc.head.label_log_probs(part, alphabet.unit_ids.to(part.device)).cpu() for part in windows
    ]
    log_probs_1TC = torch.cat(parts, dim=1)
    return viterbi_align(
        log_probs_1TC, torch.tensor([log_probs_1TC.size(1)]), alphabet.target_classes.tolist()
    )[0]


def _alphabet(labels: Sequence[Sequence[int]], blank: int) -> Alphabet:
    """The classes of each sequence of unit ids."""
    targets_BL = pad_sequence(
        [torch.tensor(ids, dtype=torch.int64) for ids in labels], batch_first=True
    )
    return compact_alphabet(targets_BL, torch.tensor([len(ids) for ids in labels]), blank)
