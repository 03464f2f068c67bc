# SPDX-License-Identifier: Apache-2.0
"""Results of a search (hypotheses, alignments) and the options that all searches share."""

import math
from dataclasses import dataclass

from wenet_hs.base.options import check_values, option
from wenet_hs.model.modes import greedy_modes, modes_reading
from wenet_hs.nn.layers import Chunk

DIVERGED = "the weights are damaged or training diverged, use another checkpoint"
"""What to do if an output is NaN."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """The most probable CTC alignment of a sequence of units to the encoder frames of an utterance."""

    spans: tuple[tuple[int, int], ...]
    """Per unit: its first frame, and the frame after its last.

    The frames between two units emit blank.
    """
    log_probs: tuple[float, ...]
    """Per unit: the mean log-probability over its frames; natural logarithm."""
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
    """Set by `decode(..., align=True)` for the best hypothesis of each mode, if its units fit into
    the frames.
    """


_NOT_NEGATIVE = "a finite number of at least 0"
_GREEDY_MODES = ", ".join(greedy_modes())


def _readers(option: str) -> str:
    """The modes that read an option of the length, for its help text."""
    return ", ".join(modes_reading(option))


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
        f"{_readers('length_penalty')}: the score is divided by (number of units) ** length_penalty, which favours "
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
        f"{_readers('max_len_ratio')}: maximum number of units per encoder frame, above 0; one unit is always allowed",
    )
    min_len_ratio: float = option(
        0.0,
        f"{_readers('min_len_ratio')}: minimum number of units per encoder frame, from 0 to max_len_ratio",
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
        """What the frames of the encoder see; None: everything."""
        if self.decoding_chunk_size in (None, -1):
            return None
        left = self.num_decoding_left_chunks
        return Chunk(self.decoding_chunk_size, -1 if left is None else left)

    def __post_init__(self) -> None:
        check_values(self)
        max_nbest = f"from 1 to beam_size, which is {self.beam_size}"
        size, left = self.decoding_chunk_size, self.num_decoding_left_chunks
        max_ratio = f"from 0 to max_len_ratio, which is {self.max_len_ratio:g}"
        checks = (
            ("beam_size", self.beam_size >= 1, "at least 1"),
            ("nbest", self.nbest is None or 1 <= self.nbest <= self.beam_size, max_nbest),
            ("ctc_weight", 0 <= self.ctc_weight < math.inf, _NOT_NEGATIVE),
            ("length_penalty", 0 <= self.length_penalty < math.inf, _NOT_NEGATIVE),
            ("lm_weight", 0 <= self.lm_weight < math.inf, _NOT_NEGATIVE),
            ("reverse_weight", 0 <= self.reverse_weight <= 1, "from 0 to 1"),
            ("max_len_ratio", 0 < self.max_len_ratio < math.inf, "above 0"),
            ("min_len_ratio", 0 <= self.min_len_ratio <= self.max_len_ratio, max_ratio),
            ("length_bonus", math.isfinite(self.length_bonus), "a number"),
            (
                "decoding_chunk_size",
                size in (None, -1) or size >= 1,
                "at least 1, or -1: whole utterances",
            ),
            ("num_decoding_left_chunks", left is None or left >= -1, "at least 0, or -1: all"),
        )
        for name, is_valid, expected in checks:
            if not is_valid:
                raise ValueError(f"{name} {getattr(self, name):g}: must be {expected}")
