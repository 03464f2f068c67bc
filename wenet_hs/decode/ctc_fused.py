# SPDX-License-Identifier: Apache-2.0
"""The CTC prefix beam search with a language model (Hannun et al. 2014): in plain Python, one utterance at a time.

Prefixes are ranked by their sum over alignments and what language model and bonus add. Without either this is the
search of `ctc.prefix_beam_search`, which is a kernel and much faster.

Dimension key: B utterances, T encoder frames, K best units of a frame.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.decode.lm import LanguageModel

_IMPOSSIBLE = -math.inf
_Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FusedPrefix:
    """A prefix of the beam's end."""

    ids: _Ids
    ctc: float
    """Log of the sum over its alignments."""
    gain: float
    """What language model, its end included, and bonus add."""

    @property
    def hypothesis(self) -> Hypothesis:
        """It by its whole score."""
        return Hypothesis(self.ids, self.ctc + self.gain)


def fused_prefix_search(
    values: Tensor,
    ids: Tensor,
    lengths: Tensor,
    *,
    special: tuple[int, int],
    options: DecodeOptions,
    lm: LanguageModel | None,
) -> list[list[FusedPrefix]]:
    """The best prefixes of each utterance, best first, up to `beam_size`.

    Args:
        values, ids, lengths: as of `ctc.prefix_beam_search`.
        special: ids of blank and end.
    """
    results = []
    for values_TK, ids_TK, length in zip(values.cpu(), ids.cpu(), lengths.tolist(), strict=True):
        search = _FusedSearch(special, options, lm)
        for values_K, ids_K in zip(values_TK[:length].tolist(), ids_TK[:length].tolist(), strict=True):
            search.advance(dict(zip(ids_K, values_K, strict=True)))
        results.append(search.ended())
    return results


class _FusedSearch:
    """The beam of one utterance: of each prefix the sums over alignments that end in blank, and in its last unit."""

    def __init__(self, special: tuple[int, int], options: DecodeOptions, lm: LanguageModel | None) -> None:
        self._blank, self._eos = special
        self._options = options
        self._gains = _Gains(lm, options)
        self._beam: dict[_Ids, tuple[float, float]] = {(): (0.0, _IMPOSSIBLE)}

    def advance(self, frame: dict[int, float]) -> None:
        """Go on by one frame, of which only the units of `frame` are possible; their log-probabilities."""
        blank_log_prob = frame.pop(self._blank, _IMPOSSIBLE)
        self._gains.prepare(list(self._beam), list(frame))
        sums: dict[_Ids, list[float]] = {}
        for prefix, (in_blank, in_unit) in self._beam.items():
            total = _log_add(in_blank, in_unit)
            here = sums.setdefault(prefix, [_IMPOSSIBLE, _IMPOSSIBLE])
            here[0] = _log_add(here[0], total + blank_log_prob)
            for unit, log_prob in frame.items():
                longer = sums.setdefault((*prefix, unit), [_IMPOSSIBLE, _IMPOSSIBLE])
                if prefix and unit == prefix[-1]:  # a new one only behind a blank; without it, the old one going on
                    longer[1] = _log_add(longer[1], in_blank + log_prob)
                    here[1] = _log_add(here[1], in_unit + log_prob)
                else:
                    longer[1] = _log_add(longer[1], total + log_prob)
        ranked = sorted(
            ((_log_add(*pair) + self._gains[prefix], prefix) for prefix, pair in sums.items()),
            key=lambda scored: scored[0],
            reverse=True,
        )
        best = [prefix for score, prefix in ranked[: self._options.beam_size] if score > _IMPOSSIBLE]
        self._beam = {prefix: (sums[prefix][0], sums[prefix][1]) for prefix in best}

    def ended(self) -> list[FusedPrefix]:
        """The beam with the ends added."""
        gains = self._gains.ends(list(self._beam), self._eos)
        pairs = zip(self._beam.items(), gains, strict=True)
        found = [FusedPrefix(ids, _log_add(*sums), gain) for (ids, sums), gain in pairs]
        return sorted(found, key=lambda prefix: prefix.ctc + prefix.gain, reverse=True)


class _Gains:
    """What language model and bonus add to the prefixes of the beam and to those one unit longer."""

    def __init__(self, lm: LanguageModel | None, options: DecodeOptions) -> None:
        self._lm = lm if options.lm_weight else None
        self._weight, self._bonus = options.lm_weight, options.length_bonus
        self._totals: dict[_Ids, float] = {(): 0.0}
        self._states: dict[_Ids, Tensor] = {} if self._lm is None else {(): self._lm.start(1)}

    def __getitem__(self, prefix: _Ids) -> float:
        return self._totals[prefix]

    def prepare(self, prefixes: Sequence[_Ids], units: Sequence[int]) -> None:
        """Ask, all at once, what each of `units` adds behind each of `prefixes`, the beam."""
        scores = self._ask(prefixes, units)
        longer = {
            (*prefix, unit): self._totals[prefix] + self._weight * score + self._bonus
            for prefix, row in zip(prefixes, scores, strict=True)
            for unit, score in zip(units, row, strict=True)
        }
        self._totals = longer | {prefix: self._totals[prefix] for prefix in prefixes}

    def ends(self, prefixes: Sequence[_Ids], eos: int) -> list[float]:
        """The gains of prefixes as whole texts."""
        scores = self._ask(prefixes, [eos])
        return [self._totals[prefix] + self._weight * score for prefix, (score,) in zip(prefixes, scores, strict=True)]

    def _ask(self, prefixes: Sequence[_Ids], units: Sequence[int]) -> list[list[float]]:
        if self._lm is None or not units:
            return [[0.0] * len(units) for _ in prefixes]
        new = [prefix for prefix in prefixes if prefix not in self._states]
        if new:  # each is one unit longer than a prefix of the beam before
            parents = torch.cat([self._states[prefix[:-1]] for prefix in new])
            states = self._lm.advance(parents, torch.tensor([prefix[-1] for prefix in new]))
            self._states |= {prefix: states[row : row + 1] for row, prefix in enumerate(new)}
        self._states = {prefix: self._states[prefix] for prefix in prefixes}
        ids = torch.tensor([list(units)]).expand(len(prefixes), -1)
        scores: list[list[float]] = self._lm.score(torch.cat(list(self._states.values())), ids).tolist()
        return scores


def _log_add(a: float, b: float) -> float:
    """log(exp a + exp b)."""
    if a < b:
        a, b = b, a
    return a if b == _IMPOSSIBLE else a + math.log1p(math.exp(b - a))
