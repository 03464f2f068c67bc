# SPDX-License-Identifier: Apache-2.0
"""CTC alignment of label sequences: frames per unit, seconds per unit and word.

Dimension key: B utterances, T encoder frames, D width, C classes (0 is blank), R label sequences, L labels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.config.dataset import DatasetConf
from wenet_hs.decode.hypothesis import Alignment
from wenet_hs.errors import CheckpointError
from wenet_hs.heads.ctc import Ctc, compact_alphabet
from wenet_hs.nn.conformer import Encoder
from wenet_hs.text.tokenizer import Tokenizer
from wenet_hs.text.units import SPACE

CTC_NAN = "CTC output: NaN; the weights are damaged or training diverged, use another checkpoint"
_DIGITS = 4  # of a second: the begin of a frame is a multiple of half a millisecond


def viterbi_align(
    log_probs: Tensor, lengths: Tensor, labels: Sequence[Sequence[int]], rows: Sequence[int] | None = None
) -> list[Alignment | None]:
    """The best CTC alignment of each label sequence to the frames of an utterance, in O(T · L).

    Args:
        log_probs: (B, T, C) natural logarithms, class 0 is blank; lengths: (B,) in T.
        labels: R sequences of classes.
        rows: the utterance of each sequence; None: one sequence per utterance.
    Returns: None if there are too few frames: one per label, and a blank between equal neighbours. Of equally good
        alignments always the same one.
    Raises: CheckpointError if log-probabilities are NaN.
    """
    from wenet_hs.decode import ctc_kernels

    log_probs_BTC, sizes_B = log_probs.detach().float().cpu().contiguous().numpy(), lengths.tolist()
    found: list[Alignment | None] = []
    for row, classes in zip(range(len(labels)) if rows is None else rows, labels, strict=True):
        log_probs_TC = log_probs_BTC[row, : sizes_B[row]]
        spans_L2, sums_L, total = ctc_kernels.align(log_probs_TC, np.array(classes, np.int64))
        if math.isnan(total):
            raise CheckpointError(CTC_NAN)
        means_L = sums_L / (spans_L2[:, 1] - spans_L2[:, 0]).clip(min=1)
        spans = tuple((start, end) for start, end in spans_L2.tolist())
        found.append(None if total == -math.inf else Alignment(spans, tuple(means_L.tolist()), total))
    return found


def align_units(
    ctc: Ctc, memory: Tensor, lengths: Tensor, labels: Sequence[Sequence[int]], rows: Sequence[int] | None = None
) -> list[Alignment | None]:
    """As `viterbi_align`, for unit ids and encoder output. Only the log-probabilities of these units are computed.

    Args:
        memory: (B, T, D), lengths: (B,) in T.
        labels: R sequences of unit ids. Blank among them, which a decoder may emit, is a label like any other.
    """
    rows = range(len(labels)) if rows is None else rows
    joined: list[list[int]] = [[] for _ in range(len(memory))]  # per utterance all its label sequences
    begins = []
    for row, ids in zip(rows, labels, strict=True):
        begins.append(len(joined[row]))
        joined[row] += ids
    targets_BL = pad_sequence([torch.tensor(ids, dtype=torch.int64) for ids in joined], batch_first=True)
    target_lengths_B = torch.tensor([len(ids) for ids in joined])
    alphabet = compact_alphabet(targets_BL, target_lengths_B, ctc.blank)
    log_probs_BTC = ctc.head.label_log_probs(memory, alphabet.labels.to(memory.device))
    all_classes = alphabet.classes.tolist()
    classes = [all_classes[row][begin : begin + len(ids)] for row, begin, ids in zip(rows, begins, labels, strict=True)]
    return viterbi_align(log_probs_BTC, lengths, classes, rows)


# ---- seconds

Times = list[tuple[float, float]]
"""Per unit its begin and end, in seconds from the beginning of the utterance."""


@dataclass(frozen=True, slots=True)
class FrameClock:
    """Converts encoder frames to seconds from the beginning of the audio.

    A frame stands for one step (frame shift · subsampling), in the middle of the audio that it is computed from. With
    conv2d and 10 ms, frame 0 is computed from 85 ms and stands for 22.5 to 62.5 ms.
    """

    step_s: float
    offset_s: float

    def times(self, alignment: Alignment, *, begin_s: float = 0.0) -> Times:
        """Begin and end of each unit of an alignment, in seconds to 0.1 ms.

        Args:
            begin_s: position in the utterance's audio at which the encoder's input begins.
        """
        offset_s = begin_s + self.offset_s
        return [
            (round(offset_s + first * self.step_s, _DIGITS), round(offset_s + end * self.step_s, _DIGITS))
            for first, end in alignment.spans
        ]


def frame_clock(encoder: Encoder, conf: DatasetConf) -> FrameClock:
    """The clock of an encoder that reads features computed as `conf` says."""
    rate, fbank_conf = conf.resample_conf.resample_rate, conf.fbank_conf
    # In whole samples, rounded as the features round them.
    size_s, shift_s = (int(rate * ms * 0.001) / rate for ms in (fbank_conf.frame_length, fbank_conf.frame_shift))
    step_s = encoder.embed.stride * shift_s
    receptive_field_s = (encoder.embed.min_frames - 1) * shift_s + size_s
    return FrameClock(step_s, (receptive_field_s - step_s) / 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedText:
    """A unit or a word with its begin and end."""

    text: str
    start: float
    """Seconds from the beginning of the utterance."""
    end: float
    confidence: float
    """Probability under CTC, in [0, 1]: geometric mean over the frames of a unit, and over the units of a word."""


def timed_units(units: Sequence[str], times: Times, log_probs: Sequence[float]) -> list[TimedText]:
    """Units with their times and log-probabilities, as objects."""
    return [
        TimedText(text=text, start=start_s, end=end_s, confidence=math.exp(log_prob))
        for text, (start_s, end_s), log_prob in zip(units, times, log_probs, strict=True)
    ]


def timed_words(units: Sequence[TimedText], tokenizer: Tokenizer) -> list[TimedText]:
    """The words of timed units: a unit that begins with `▁` begins a word, and `▁` alone separates two.

    A word lasts from the begin of its first unit to the end of its last. Phones do not mark words: they are one word.
    """
    groups: list[list[TimedText]] = [[]]
    for unit in units:
        if unit.text.startswith(SPACE):
            groups.append([])
        if unit.text != SPACE:
            groups[-1].append(unit)
    return [
        TimedText(
            text=tokenizer.join(unit.text for unit in group).strip(" "),
            start=group[0].start,
            end=group[-1].end,
            confidence=_geometric_mean([unit.confidence for unit in group]),
        )
        for group in groups
        if group
    ]


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if all(values) else 0.0
