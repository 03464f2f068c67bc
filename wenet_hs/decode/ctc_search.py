# SPDX-License-Identifier: Apache-2.0
"""CTC searches (greedy, prefix beam search with and without a language model) and CTC alignment of
label sequences.

Dimension key: B utterances, T encoder frames, K best units of a frame, V units, D width, C classes
(0 is blank), R label sequences, L units or labels, M nodes of a trie, N prefixes of a beam.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
"""Logarithm of a sum over no alignment."""
_BLOCK = 2000
"""Frames whose steps are kept at a time by the alignment: an hour of 90,000 frames and 50,000
labels needs 45 MB.
"""
_Prefix = tuple[int, ...]


def greedy_search(
    values: Tensor, ids: Tensor, lengths: Tensor, *, blank: int
) -> list[list[Hypothesis]]:
    """The best alignment of each utterance without its repeats and blanks, as its one hypothesis.

    Args:
        values, ids: (B, T, K) log-probabilities and units of `Ctc.topk`; only the first of each
            frame is read.
        lengths: (B,) in T. Frames after an utterance's length are not read.
    Returns: per utterance a list of one hypothesis. Its score is that of the best alignment, and
        not the sum over all alignments of its units.
    """
    best_BT = values[..., 0]
    ids_BT = ids[..., 0]
    valid_BT = length_mask(lengths, values.size(1))
    scores = best_BT.masked_fill(~valid_BT, 0.0).double().sum(dim=1).tolist()
    kept_BT = valid_BT & begins_unit(ids_BT, blank)
    nbests = []
    for ids_T, kept_T, score in zip(ids_BT.cpu(), kept_BT.cpu(), scores, strict=True):
        units = tuple(ids_T[kept_T].tolist())
        nbests.append([Hypothesis(units, score)])
    return nbests


# ---- prefix beam search


def prefix_beam_search(
    values: Tensor, ids: Tensor, lengths: Tensor, *, blank: int, beam_size: int
) -> list[list[Hypothesis]]:
    """The best prefixes of each utterance by the sum over their alignments, with WeNet's pruning.

    Hannun et al. 2014. In each frame only its K best units are considered (in WeNet K is the beam);
    the `beam_size` best prefixes survive. The search is a Numba kernel in float64.
    `prefix_beam_search_with_lm` without a language model is the same search in plain Python. Of
    equal scores the prefix that extends the better one is first, then the one with the higher unit.

    Args:
        values, ids: (B, T, K) log-probabilities and units of `Ctc.topk`, no NaN.
        lengths: (B,) in T. Frames after an utterance's length are not read.
    Returns: per utterance up to `beam_size` different hypotheses, best first, with the log of the
        sum over the alignments that were considered. An utterance of length 0 has the empty one.
    """
    values_BTK = values.detach().double().cpu().contiguous().numpy()
    ids_BTK = ids.cpu().contiguous().numpy()
    nbests = []
    for values_TK, ids_TK, length in zip(values_BTK, ids_BTK, lengths.tolist(), strict=True):
        search = PrefixSearch(blank=blank, beam_size=beam_size)
        search.advance(values_TK[:length], ids_TK[:length])
        nbests.append(search.hypotheses())
    return nbests


class PrefixSearch:
    """The search of `prefix_beam_search` for one utterance, whose frames may arrive in parts."""

    def __init__(self, *, blank: int, beam_size: int) -> None:
        from wenet_hs.decode import ctc_kernels

        self._kernels = ctc_kernels
        self._blank = blank
        self._beam_size = beam_size
        # At first the trie has room for the empty prefix only. `advance` makes room for more.
        fields = ctc_kernels.start_prefixes(blank, beam_size, 1)
        self._state = ctc_kernels.PrefixState(*fields)
        self._slots_V = np.full(blank + 1, -1, np.int32)
        """Work space of the kernel, one entry per unit, all -1 (missing) between two calls.

        At first it reaches to the blank. `advance` extends it to the highest unit.
        """

    def advance(self, values_TK: NDArray[np.float64], ids_TK: NDArray[np.int64]) -> None:
        """Extend the beam by T frames: log-probabilities and units, contiguous, best first."""
        self._reserve_nodes(len(ids_TK) * self._beam_size)
        num_missing_slots = int(ids_TK.max(initial=0)) + 1 - len(self._slots_V)
        if num_missing_slots > 0:
            self._slots_V = np.pad(self._slots_V, (0, num_missing_slots), constant_values=-1)
        self._kernels.advance_prefixes(values_TK, ids_TK, self._blank, self._slots_V, *self._state)

    def _reserve_nodes(self, num_new: int) -> None:
        """Make room for more nodes in the trie.

        If it must grow, it becomes at least twice as long, so that it is rarely copied.
        """
        trie_M5 = self._state.trie_M5
        num_used = int(self._state.sizes_3[self._kernels.NUM_NODES])
        num_needed = num_used + num_new
        if num_needed > len(trie_M5):
            new_length = max(num_needed, 2 * len(trie_M5))
            longer_M5 = np.empty((new_length, trie_M5.shape[1]), trie_M5.dtype)
            longer_M5[: len(trie_M5)] = trie_M5
            self._state = self._state._replace(trie_M5=longer_M5)

    def hypotheses(self) -> list[Hypothesis]:
        """Up to `beam_size` different ones, best first."""
        scores_N, lengths_N, units_NL = self._kernels.read_prefixes(*self._state)
        hypotheses = []
        for score, length, units_L in zip(scores_N, lengths_N, units_NL, strict=True):
            hypotheses.append(Hypothesis(tuple(units_L[:length].tolist()), float(score)))
        return hypotheses


# ---- prefix beam search with a language model, in plain Python


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
    """As `prefix_beam_search`, with prefixes ranked by CTC, language model and length bonus.

    Hannun et al. 2014. All utterances advance together, frame by frame, because the language model
    scores the prefixes of all utterances in one call. After its last frame an utterance is scored
    with <eos>, and ends.

    Returns: per utterance up to `beam_size` hypotheses, best first; and the same hypotheses with
        scores of CTC only.
    """
    searches = [_FusedPrefixSearch(blank, options) for _ in lengths]
    scorer: _FusionScorer | None = None
    if lm is not None and options.lm_weight:
        scorer = _FusionScorer(lm, len(searches))
    values_BTK, ids_BTK, lengths_B = values.tolist(), ids.tolist(), lengths.tolist()
    nbests = [list[Hypothesis]() for _ in searches]
    nbests_by_ctc = [list[Hypothesis]() for _ in searches]
    longest = max(lengths_B, default=-1)  # -1: no utterance, so no step
    for t in range(longest + 1):  # one step after the last frame, for the ends
        queries = []
        for row, length in enumerate(lengths_B):
            if t < length:
                units = [unit for unit in ids_BTK[row][t] if unit != blank]
                queries.append(_FusionQuery(row, searches[row].beam, units))
            elif t == length:
                queries.append(_FusionQuery(row, searches[row].beam, [eos]))
        if scorer is None:
            scores = [query.zeros() for query in queries]
        else:
            scores = scorer.score(queries)
        for query, scores_of_beam in zip(queries, scores, strict=True):
            row = query.row
            if t < lengths_B[row]:
                searches[row].advance(ids_BTK[row][t], values_BTK[row][t], scores_of_beam)
            else:
                ended = searches[row].finish(scores_of_beam)
                nbests[row] = [Hypothesis(text.ids, text.score) for text in ended]
                nbests_by_ctc[row] = [Hypothesis(text.ids, text.ctc_score) for text in ended]
    return nbests, nbests_by_ctc


@dataclass(frozen=True)
class _FusionQuery:
    """The extensions of an utterance's prefixes that the language model scores in one frame."""

    row: int
    """Of the utterance."""
    beam: list[_Prefix]
    units: list[int]
    """Each prefix of the beam may be extended by one of these."""

    def zeros(self) -> list[list[float]]:
        """The scores without a language model: 0 for each prefix and unit."""
        return [[0.0] * len(self.units)] * len(self.beam)


class _FusionScorer:
    """The language model's states of the prefixes in the beams of all utterances.

    The states are rows of one tensor, so that a model on a GPU computes all of them together.
    """

    def __init__(self, lm: LanguageModel, num_utterances: int) -> None:
        self._lm = lm
        self._states = lm.start(num_utterances)
        self._indices: dict[tuple[int, _Prefix], int] = {
            (row, ()): row for row in range(num_utterances)
        }
        """(row of the utterance, prefix) → index of the prefix's state."""

    def score(self, queries: Sequence[_FusionQuery]) -> list[list[list[float]]]:
        """Per query and prefix of its beam, the log-probabilities of the query's units.

        A prefix must be in the beam of the last query of its utterance, or one unit longer than
        such a prefix. States of all other prefixes are dropped.
        """
        prefixes = []
        for query in queries:
            prefixes += [(query.row, prefix) for prefix in query.beam]
        self._move_states(prefixes)
        longest = max(len(query.units) for query in queries)
        max_units = max(1, longest)  # the model scores at least one unit, if only padding
        padded_ids = []  # per prefix
        for query in queries:
            padding = [0] * (max_units - len(query.units))
            ids = [*query.units, *padding]
            padded_ids += [ids] * len(query.beam)
        padded_scores = self._lm.score(self._states, self._to_tensor(padded_ids)).tolist()
        scores = []
        begin = 0  # of the query's prefixes among all
        for query in queries:
            end = begin + len(query.beam)
            num_units = len(query.units)
            scores.append([scores_V[:num_units] for scores_V in padded_scores[begin:end]])
            begin = end
        return scores

    def _move_states(self, prefixes: list[tuple[int, _Prefix]]) -> None:
        """Replace the states by those of these prefixes, in their order.

        The state of a new prefix is computed from that of the prefix without its last unit. States
        of prefixes that are not in the list are dropped.
        """
        new_prefixes = [prefix for prefix in prefixes if prefix not in self._indices]
        if new_prefixes:
            parents = [self._indices[row, ids[:-1]] for row, ids in new_prefixes]
            last_units = [ids[-1] for _, ids in new_prefixes]
            new_states = self._lm.advance(
                self._states[self._to_tensor(parents)], self._to_tensor(last_units)
            )
            for index, prefix in enumerate(new_prefixes, start=len(self._states)):
                self._indices[prefix] = index
            self._states = torch.cat([self._states, new_states])
        selected = [self._indices[prefix] for prefix in prefixes]
        self._states = self._states[self._to_tensor(selected)]
        self._indices = {prefix: index for index, prefix in enumerate(prefixes)}

    def _to_tensor(self, values: list[int] | list[list[int]]) -> Tensor:
        """Integers as a tensor on the device of the states."""
        return copy_to(self._states.device, torch.tensor(values))


class _FusedPrefixSearch:
    """The prefix beam search of one utterance, with language model and length bonus."""

    def __init__(self, blank: int, options: DecodeOptions) -> None:
        self._blank = blank
        self._options = options
        # Before the first frame there is one alignment, with probability 1; it ends in no unit.
        self._beam: dict[_Prefix, _AlignmentSums] = {(): _AlignmentSums(in_blank=0.0)}
        """The prefixes, best first."""
        self._fusion: dict[_Prefix, float] = {(): 0.0}
        """The weighted language model scores plus length bonuses of each prefix."""

    @property
    def beam(self) -> list[_Prefix]:
        """The prefixes, best first."""
        return list(self._beam)

    def advance(
        self, ids_K: list[int], log_probs_K: list[float], lm_scores: list[list[float]]
    ) -> None:
        """Extend the beam by a frame.

        Args:
            ids_K, log_probs_K: the best units of the frame, and their log-probabilities.
            lm_scores: per prefix of the beam, the language model's log-probability of each of
                these units except blank.
        """
        log_probs = dict(zip(ids_K, log_probs_K, strict=True))
        blank_log_prob = log_probs.pop(self._blank, _IMPOSSIBLE)
        all_sums: dict[_Prefix, _AlignmentSums] = {}
        for prefix, before in self._beam.items():
            total = before.total()
            last_unit = prefix[-1] if prefix else None
            sums = all_sums.setdefault(prefix, _AlignmentSums())
            sums.in_blank = total + blank_log_prob
            for unit, log_prob in log_probs.items():
                longer_sums = all_sums.setdefault((*prefix, unit), _AlignmentSums())
                if unit == last_unit:
                    # It is a new unit only after a blank; without it, the old one continues.
                    longer_sums.in_unit = _log_add(longer_sums.in_unit, before.in_blank + log_prob)
                    sums.in_unit = _log_add(sums.in_unit, before.in_unit + log_prob)
                else:
                    longer_sums.in_unit = _log_add(longer_sums.in_unit, total + log_prob)
        self._add_fusion(list(log_probs), lm_scores)
        self._beam = self._select(all_sums)

    def _add_fusion(self, units: Sequence[int], lm_scores: list[list[float]]) -> None:
        """Compute `_fusion` of each prefix of the beam that is extended by one of the units.

        It grows by the weighted score of the unit and by the length bonus. Prefixes of the beam
        keep their values. Those of all other prefixes are dropped.

        `lm_scores`: per prefix of the beam, the score of each unit.
        """
        fusion = {}
        for prefix, scores in zip(self._beam, lm_scores, strict=True):
            for unit, score in zip(units, scores, strict=True):
                lm_part = self._options.lm_weight * score
                fusion[*prefix, unit] = self._fusion[prefix] + lm_part + self._options.length_bonus
        for prefix in self._beam:
            fusion[prefix] = self._fusion[prefix]
        self._fusion = fusion

    def _select(self, all_sums: Mapping[_Prefix, _AlignmentSums]) -> dict[_Prefix, _AlignmentSums]:
        """The `beam_size` best of the prefixes that have an alignment, best first.

        Of equal scores the extension of the better prefix is first, then the one with the higher
        unit, and the prefix that was in the beam before is last.
        """
        indices = {prefix: index for index, prefix in enumerate(self._beam)}
        candidates = []
        for prefix, sums in all_sums.items():
            score = sums.total() + self._fusion[prefix]
            if prefix in indices:
                source_index = indices[prefix]
                new_unit = -1  # lower than every unit
            else:
                source_index = indices[prefix[:-1]]
                new_unit = prefix[-1]
            candidates.append((score, -source_index, new_unit, prefix))
        best = sorted(candidates, reverse=True)[: self._options.beam_size]
        return {prefix: all_sums[prefix] for score, *_, prefix in best if score > _IMPOSSIBLE}

    def finish(self, lm_scores: list[list[float]]) -> list[_EndedText]:
        """The prefixes as whole texts, best first.

        `lm_scores`: per prefix of the beam a list of one, the language model's log-probability of
        the end.
        """
        texts = []
        for (ids, sums), (end_score,) in zip(self._beam.items(), lm_scores, strict=True):
            ctc_score = sums.total()
            score = ctc_score + self._fusion[ids] + self._options.lm_weight * end_score
            texts.append(_EndedText(ids, score, ctc_score))
        return sorted(texts, key=lambda text: text.score, reverse=True)


@dataclass(slots=True)
class _AlignmentSums:
    """Logs of the sums over the alignments of a prefix."""

    in_blank: float = _IMPOSSIBLE
    """Over those that end in blank."""
    in_unit: float = _IMPOSSIBLE
    """Over those that end in the last unit of the prefix."""

    def total(self) -> float:
        """Over all of them."""
        return _log_add(self.in_blank, self.in_unit)


@dataclass(frozen=True)
class _EndedText:
    """A prefix that has become a whole text."""

    ids: _Prefix
    score: float
    """CTC, language model and length bonus, with the end of the text."""
    ctc_score: float


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
    """The best CTC alignment of each label sequence to the frames of an utterance.

    It takes time in O(T · L), and little memory. Of equally good alignments it is always the same
    one.

    Args:
        log_probs: (B, T, C) natural logarithms, class 0 is blank; lengths: (B,) in T.
        labels: R sequences of classes.
        rows: the utterance of each sequence; None: one sequence per utterance.
    Returns: per sequence its alignment; None if the utterance has too few frames. It needs one per
        label, and one more for a blank between two equal neighbours.
    Raises: CheckpointError if log-probabilities are NaN.
    """
    from wenet_hs.decode import ctc_kernels

    log_probs_BTC = log_probs.detach().float().cpu().contiguous().numpy()
    sizes_B = lengths.tolist()
    rows = range(len(labels)) if rows is None else rows
    alignments: list[Alignment | None] = []
    for row, classes in zip(rows, labels, strict=True):
        log_probs_TC = log_probs_BTC[row, : sizes_B[row]]
        spans_L2, sums_L, score = ctc_kernels.best_alignment(
            log_probs_TC, np.array(classes, np.int64), _BLOCK
        )
        if math.isnan(score):
            raise CheckpointError("CTC output", "NaN", DIVERGED)
        if score == _IMPOSSIBLE:
            alignments.append(None)
            continue
        num_frames_L = spans_L2[:, 1] - spans_L2[:, 0]
        means_L = sums_L / num_frames_L
        spans = tuple((start, end) for start, end in spans_L2.tolist())
        alignments.append(Alignment(spans, log_probs=tuple(means_L.tolist()), score=score))
    return alignments


def align_units(
    ctc: Ctc,
    memory: Tensor,
    lengths: Tensor,
    labels: Sequence[Sequence[int]],
    rows: Sequence[int] | None = None,
) -> list[Alignment | None]:
    """As `viterbi_align`, for unit ids and encoder output.

    Only the log-probabilities of the units in `labels` are computed. All sequences of an utterance
    are joined for this, so that each of its units is computed once.

    Args:
        memory: (B, T, D), lengths: (B,) in T.
        labels: R sequences of unit ids. Blank among them, which a decoder may emit, is a label like
            any other.
        rows: the utterance of each sequence; None: one sequence per utterance.
    """
    rows = range(len(labels)) if rows is None else rows
    joined: list[list[int]] = [[] for _ in range(len(memory))]
    begins = []  # of each sequence in the joined one
    for row, ids in zip(rows, labels, strict=True):
        begins.append(len(joined[row]))
        joined[row] += ids
    alphabet = _make_alphabet(joined, ctc.blank)
    log_probs_BTC = ctc.head.label_log_probs(memory, alphabet.unit_ids.to(memory.device))
    joined_classes = alphabet.target_classes.tolist()
    classes = []
    for row, begin, ids in zip(rows, begins, labels, strict=True):
        classes.append(joined_classes[row][begin : begin + len(ids)])
    return viterbi_align(log_probs_BTC, lengths, classes, rows)


def align_windows(ctc: Ctc, windows: Iterable[Tensor], ids: Sequence[int]) -> Alignment | None:
    """The alignment of the unit ids of one recording; None if it has too few frames.

    As `align_units`, for encoder output in consecutive parts (1, T, D). Of each part only the
    log-probabilities of these units are kept, on the CPU.
    """
    alphabet = _make_alphabet([ids], ctc.blank)
    parts = []
    for memory_1TD in windows:
        unit_ids_1C = alphabet.unit_ids.to(memory_1TD.device)
        parts.append(ctc.head.label_log_probs(memory_1TD, unit_ids_1C).cpu())
    log_probs_1TC = torch.cat(parts, dim=1)
    length_1 = torch.tensor([log_probs_1TC.size(1)])
    (alignment,) = viterbi_align(log_probs_1TC, length_1, alphabet.target_classes.tolist())
    return alignment


def _make_alphabet(labels: Sequence[Sequence[int]], blank: int) -> Alphabet:
    """Per sequence of unit ids its distinct units as classes, and the sequence in these classes."""
    targets = [torch.tensor(ids, dtype=torch.int64) for ids in labels]
    targets_BL = pad_sequence(targets, batch_first=True)
    lengths_B = torch.tensor([len(ids) for ids in labels])
    return compact_alphabet(targets_BL, lengths_B, blank)
