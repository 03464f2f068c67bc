# SPDX-License-Identifier: Apache-2.0
"""Results of a search (`Hypothesis`, `Alignment`), and the options of all searches."""

import math
from dataclasses import dataclass

from wenet_hs.base.options import check_values, option
from wenet_hs.model.modes import greedy_modes, modes_reading
from wenet_hs.nn.layers import Chunk

DIVERGED = "the weights are damaged or training diverged, use another checkpoint"
"""The advice in the message of each CheckpointError for an output that is NaN or infinite."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """The most probable CTC alignment of units to the encoder frames of an utterance."""

    spans: tuple[tuple[int, int], ...]
    """Per unit its first frame, and the frame after its last one.

    In the frames between two units the alignment has blank.
    """
    log_probs: tuple[float, ...]
    """Per unit the mean of its log-probabilities in its frames; natural logarithm."""
    score: float
    """Log-probability of the whole alignment, including the blanks."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A sequence of units that a search found, with its score."""

    ids: tuple[int, ...]
    """Unit ids, without <sos> and <eos>."""
    score: float
    """Natural logarithm. Each mode has its own formula: scores of two modes cannot be compared."""
    alignment: Alignment | None = None
    """CTC alignment of the units: only of a best hypothesis, after `decode(..., align=True)`.

    None also if the utterance has too few frames for the units.
    """


_WHOLE_UTTERANCE = -1
"""`decoding_chunk_size` of an encoder that computes whole utterances at once."""
_ALL_CHUNKS = -1
"""`num_decoding_left_chunks` of a frame that sees every chunk before its own."""
_GREEDY_MODES = ", ".join(greedy_modes())


def _modes_with(length_option: str) -> str:
    """The modes that read an option about the length, as its help text lists them."""
    return ", ".join(modes_reading(length_option))


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeOptions:
    """Options of the searches. Each field is a flag of the commands that decode."""

    beam_size: int = option(
        10, "number of hypotheses in the beam; may be larger than the number of units"
    )
    nbest: int | None = option(
        None,
        "number of hypotheses to return, at most beam_size; decoder searches then stop earlier (default: all)",
    )
    ctc_weight: float = option(
        0.5,
        "attention_rescoring: weight of the CTC score that is added to the decoder's score, at least 0; joint: weight "
        "of CTC in the score, from 0 to 1",
    )
    length_penalty: float = option(
        0.0,
        f"{_modes_with('length_penalty')}: the score is divided by (number of units) ** length_penalty, which favours "
        "long texts; at least 0",
    )
    reverse_weight: float = option(
        0.0,
        "attention_rescoring: weight of the right-to-left decoder of a bitransformer, from 0 to 1",
    )
    finished_list: bool = option(
        False,
        "attention: move finished hypotheses from the beam to a list, as joint does; use it with --length_penalty of "
        "about 1, otherwise short texts win (default: they stay in the beam, as in WeNet)",
    )
    max_len_ratio: float = option(
        1.0,
        f"{_modes_with('max_len_ratio')}: maximum number of units per encoder frame, above 0; one unit is always allowed",
    )
    min_len_ratio: float = option(
        0.0,
        f"{_modes_with('min_len_ratio')}: minimum number of units per encoder frame, from 0 to max_len_ratio",
    )
    lm_weight: float = option(
        0.0,
        f"weight of the language model's log-probability, in all modes except {_GREEDY_MODES}; needed with --lm",
    )
    length_bonus: float = option(
        0.0,
        f"added to the score per unit, in all modes except {_GREEDY_MODES}; compensates for the short texts that a "
        "language model favours",
    )
    decoding_chunk_size: int | None = option(
        None,
        "of a model trained with chunks: encoder frames per chunk, a frame sees no later chunk; -1: whole utterances "
        "(default: -1; of a stream 16)",
    )
    num_decoding_left_chunks: int | None = option(
        None, "chunks before its own that a frame sees; -1: all (default: -1; of a stream 4)"
    )
    simulate_streaming: bool = option(
        False, "compute chunk by chunk, as in a stream; the same results, slower"
    )

    @property
    def chunk(self) -> Chunk | None:
        """The frames of the encoder that each frame sees; None: all frames of its utterance."""
        if self.decoding_chunk_size is None or self.decoding_chunk_size == _WHOLE_UTTERANCE:
            return None
        if self.num_decoding_left_chunks is None:
            return Chunk(self.decoding_chunk_size, left=_ALL_CHUNKS)
        return Chunk(self.decoding_chunk_size, left=self.num_decoding_left_chunks)

    def __post_init__(self) -> None:
        """Raises ValueError for the first option whose type or value is not allowed."""
        check_values(self)
        self._require("beam_size", self.beam_size >= 1, "at least 1")
        is_nbest_in_beam = self.nbest is None or 1 <= self.nbest <= self.beam_size
        self._require("nbest", is_nbest_in_beam, f"from 1 to beam_size, which is {self.beam_size}")
        for name in ("ctc_weight", "length_penalty", "lm_weight"):
            is_finite_weight = 0 <= getattr(self, name) < math.inf
            self._require(name, is_finite_weight, "a finite number of at least 0")
        self._require("reverse_weight", 0 <= self.reverse_weight <= 1, "from 0 to 1")
        self._require("max_len_ratio", 0 < self.max_len_ratio < math.inf, "above 0")
        self._require(
            "min_len_ratio",
            0 <= self.min_len_ratio <= self.max_len_ratio,
            f"from 0 to max_len_ratio, which is {self.max_len_ratio:g}",
        )
        self._require("length_bonus", math.isfinite(self.length_bonus), "a number")
        size = self.decoding_chunk_size
        is_size_allowed = size is None or size == _WHOLE_UTTERANCE or size >= 1
        self._require("decoding_chunk_size", is_size_allowed, "at least 1, or -1: whole utterances")
        left = self.num_decoding_left_chunks
        is_left_allowed = left is None or left == _ALL_CHUNKS or left >= 0
        self._require("num_decoding_left_chunks", is_left_allowed, "at least 0, or -1: all")

    def _require(self, name: str, is_allowed: bool, expected: str) -> None:
        """Raises ValueError with the value of an option unless it is allowed.

        `expected`: which values are allowed, for the message.
        """
        if not is_allowed:
            raise ValueError(f"{name} {getattr(self, name):g}: must be {expected}")
