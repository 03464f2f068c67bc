# SPDX-License-Identifier: Apache-2.0
"""The prefix beam search in plain Python: what the kernel of `ctc.prefix_beam_search` is tested and measured against.

Dimension key: B utterances, T encoder frames, K best units of a frame.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from wenet_hs.decode.hypothesis import Hypothesis

_IMPOSSIBLE = -math.inf


def prefix_beam_search(
    values: Tensor, ids: Tensor, lengths: Tensor, *, blank: int, beam_size: int
) -> list[list[Hypothesis]]:
    """As `ctc.prefix_beam_search`, frame by frame and utterance by utterance."""
    results = []
    for values_TK, ids_TK, length in zip(values.cpu(), ids.cpu(), lengths.tolist(), strict=True):
        frames = zip(values_TK[:length].tolist(), ids_TK[:length].tolist(), strict=True)
        search = _PrefixSearch(blank, beam_size)
        for values_K, ids_K in frames:
            search.advance(values_K, ids_K)
        results.append(search.hypotheses())
    return results


@dataclass(frozen=True, slots=True)
class _Prefix:
    """A survivor: its node in the trie, and the log of the sum over alignments that end in a blank and in its unit."""

    node: int
    blank: float
    unit: float
    total: float


class _PrefixSearch:
    """The beam of one utterance.

    Prefixes are nodes of a trie, numbered once: a prefix that falls out of the beam and comes back has its old number,
    so two ways to one prefix always meet.
    """

    def __init__(self, blank: int, beam_size: int) -> None:
        self._blank = blank
        self._beam_size = beam_size
        self._parents = [0]
        self._units = [blank]  # the root ends in no unit; no frame extends by the blank, so it never looks repeated
        self._children: dict[tuple[int, int], int] = {}
        self._beam = [_Prefix(0, 0.0, _IMPOSSIBLE, 0.0)]

    def advance(self, log_probs: Sequence[float], ids: Sequence[int]) -> None:
        """Go on by one frame, of which only the units `ids` are possible."""
        frame = dict(zip(ids, log_probs, strict=True))
        blank_log_prob = frame.pop(self._blank, _IMPOSSIBLE)
        unit_scores = [prefix.unit + frame.get(self._units[prefix.node], _IMPOSSIBLE) for prefix in self._beam]
        candidates = self._extensions(frame, unit_scores)
        for index, (prefix, unit_score) in enumerate(zip(self._beam, unit_scores, strict=True)):
            total = _log_add(prefix.total + blank_log_prob, unit_score)
            candidates.append((total, -index, -1))
        best = heapq.nlargest(self._beam_size, candidates)
        self._beam = [
            self._survivor(score, -index, unit, blank_log_prob, unit_scores)
            for score, index, unit in best
            if score > _IMPOSSIBLE
        ]

    def _extensions(self, frame: dict[int, float], unit_scores: list[float]) -> list[tuple[float, int, int]]:
        """(score, -index of the prefix, unit) of each prefix that is not in the beam yet.

        Where a longer prefix is in the beam already, its entry of `unit_scores` takes the alignments in instead.
        """
        in_beam = {prefix.node: index for index, prefix in enumerate(self._beam)}
        known: dict[int, dict[int, int]] = {}
        for prefix in self._beam:
            if prefix.node and self._parents[prefix.node] in in_beam:
                known.setdefault(self._parents[prefix.node], {})[self._units[prefix.node]] = in_beam[prefix.node]
        candidates = []
        for index, prefix in enumerate(self._beam):
            last, longer = self._units[prefix.node], known.get(prefix.node)
            for unit, log_prob in frame.items():
                # The same unit again is a new one only behind a blank; without it, it is the old one going on.
                score = log_prob + (prefix.blank if unit == last else prefix.total)
                if longer is not None and unit in longer:
                    child = longer[unit]
                    unit_scores[child] = _log_add(unit_scores[child], score)
                else:
                    candidates.append((score, -index, unit))
        return candidates

    def _survivor(
        self, score: float, index: int, unit: int, blank_log_prob: float, unit_scores: list[float]
    ) -> _Prefix:
        prefix = self._beam[index]
        if unit < 0:
            return _Prefix(prefix.node, prefix.total + blank_log_prob, unit_scores[index], score)
        node = self._children.setdefault((prefix.node, unit), len(self._parents))
        if node == len(self._parents):
            self._parents.append(prefix.node)
            self._units.append(unit)
        return _Prefix(node, _IMPOSSIBLE, score, score)

    def hypotheses(self) -> list[Hypothesis]:
        """The beam, best first."""
        return [Hypothesis(self._ids(prefix.node), prefix.total) for prefix in self._beam]

    def _ids(self, node: int) -> tuple[int, ...]:
        ids = []
        while node:
            ids.append(self._units[node])
            node = self._parents[node]
        return tuple(reversed(ids))


def _log_add(a: float, b: float) -> float:
    """log(exp a + exp b)."""
    if a < b:
        a, b = b, a
    return a if b == _IMPOSSIBLE else a + math.log1p(math.exp(b - a))
