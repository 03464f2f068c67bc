# SPDX-License-Identifier: Apache-2.0
"""What a search gives back, and the settings that all searches share."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alignment:
    """The most probable way of CTC through an utterance's encoder frames that spells given units."""

    spans: tuple[tuple[int, int], ...]
    """Of each unit its first frame and the one behind its last: the frames that emit it. Those between two units, of
    which there may be none, emit blank and belong to neither."""
    log_probs: tuple[float, ...]
    """Of each unit its log-probability, the mean over its frames; natural logarithm."""
    score: float
    """Log-probability of the whole alignment, its blanks included."""

    @property
    def confidence(self) -> float | None:
        """The units' probabilities, each the geometric mean over its frames, as one: their geometric mean, in [0, 1].

        None where there is no unit.
        """
        return math.exp(sum(self.log_probs) / len(self.log_probs)) if self.log_probs else None


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One reading of an utterance."""

    ids: tuple[int, ...]
    """Unit ids, without begin and end of sentence."""
    score: float
    """Natural logarithm; what it sums is the search's own: scores of two modes cannot be compared."""
    alignment: Alignment | None = None
    """Where `decode` was asked for it: of the best hypothesis of each mode, unless it has too many units for its
    frames."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeOptions:
    """Settings of the searches; each names the modes that read it."""

    beam_size: int = 10
    """Hypotheses kept, in all modes but ctc_greedy_search. It may be larger than the number of units."""
    nbest: int | None = None
    """Hypotheses given back, at most beam_size: the searches of the decoder stop as soon as so many are certain.
    None: all of the beam, and of ctc_greedy_search its one."""
    ctc_weight: float = 0.5
    """attention_rescoring: weight of the CTC score, added to the decoder's; at least 0. joint: the share of CTC in the
    score, in [0, 1]."""
    length_penalty: float = 0.0
    """attention, joint: the final score is divided by (number of units) ** length_penalty; at least 0."""
    reverse_weight: float = 0.0
    """attention_rescoring: share of the right-to-left decoder in the decoder's score, in [0, 1]."""
    finished_list: bool = False
    """attention: hypotheses that have ended leave the beam for a list, on which scores are compared with their length
    penalty, as joint does always. False: they hold their place until the end, and are divided then (WeNet)."""
    max_len_ratio: float = 1.0
    """attention, joint: most units of a hypothesis for an encoder frame, above 0; one unit is always possible."""
    min_len_ratio: float = 0.0
    """attention, joint: fewest units for an encoder frame, from 0 to max_len_ratio."""
    lm_weight: float = 0.0
    """Weight of the language model's log-probability in all modes but ctc_greedy_search; at least 0."""
    length_bonus: float = 0.0
    """Added for each unit in all modes but ctc_greedy_search: against the short hypotheses that a language model
    prefers."""

    def __post_init__(self) -> None:
        if self.beam_size < 1:
            raise ValueError(f"beam_size {self.beam_size}: must be at least 1")
        if self.nbest is not None and not 1 <= self.nbest <= self.beam_size:
            raise ValueError(f"nbest {self.nbest}: must be from 1 to beam_size, which is {self.beam_size}")
        for name in ("ctc_weight", "length_penalty", "lm_weight"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} {value:g}: must be at least 0")
        if not 0 <= self.reverse_weight <= 1:
            raise ValueError(f"reverse_weight {self.reverse_weight:g}: must be from 0 to 1")
        if not 0 < self.max_len_ratio < math.inf:
            raise ValueError(f"max_len_ratio {self.max_len_ratio:g}: must be above 0")
        if not 0 <= self.min_len_ratio <= self.max_len_ratio:
            limit = f"max_len_ratio, which is {self.max_len_ratio:g}"
            raise ValueError(f"min_len_ratio {self.min_len_ratio:g}: must be from 0 to {limit}")
        if not math.isfinite(self.length_bonus):
            raise ValueError(f"length_bonus {self.length_bonus:g}: must be a number")
