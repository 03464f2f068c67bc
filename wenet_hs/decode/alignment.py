# SPDX-License-Identifier: Apache-2.0
"""Which frames of an utterance belong to which unit: the best CTC alignment of a label sequence, in frames and seconds.

Dimension key: B utterances, T encoder frames, D width, C classes (0 is blank), R label sequences, L labels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.config.dataset import DatasetConf
from wenet_hs.decode.hypothesis import Alignment
from wenet_hs.errors import CheckpointError
from wenet_hs.heads.ctc import Ctc, compact_alphabet
from wenet_hs.nn.conformer import Encoder
from wenet_hs.text.tokenizer import SPACE, Tokenizer

CTC_NAN = "CTC output: NaN; the weights are damaged or training diverged, take another checkpoint"
"""What a CheckpointError says of log-probabilities that are none."""
_DIGITS = 4  # of a second: a frame's begin is a multiple of half a millisecond


def viterbi_align(
    log_probs: Tensor, lengths: Tensor, labels: Sequence[Sequence[int]], rows: Sequence[int] | None = None
) -> list[Alignment | None]:
    """The best CTC alignment of each label sequence to the frames of an utterance, in O(T · L).

    Args:
        log_probs: (B, T, C) natural logarithms, class 0 is blank; lengths: (B,) in T.
        labels: R sequences of classes.
        rows: which utterance each is of; without it, there is one of each utterance.
    Returns: None where the frames are too few: one for each label, and a blank between equal neighbours. Of equally
        good alignments always the same one.
    Raises: CheckpointError where log-probabilities are NaN.
    """
    from wenet_hs.decode import ctc_numba

    if not labels:
        return []
    rows_R = torch.arange(len(labels)) if rows is None else torch.tensor(rows)
    sizes_R = torch.tensor([len(classes) for classes in labels])
    classes_RL = pad_sequence([torch.tensor(classes, dtype=torch.int64) for classes in labels], batch_first=True)
    spans_RL2, sums_RL, totals_R = ctc_numba.align(
        log_probs.detach().float().cpu().contiguous().numpy(),
        rows_R.numpy(),
        lengths.long().cpu()[rows_R].numpy(),
        classes_RL.numpy(),
        sizes_R.numpy(),
    )
    means_RL = sums_RL / (spans_RL2[..., 1] - spans_RL2[..., 0]).clip(min=1)
    found: list[Alignment | None] = []
    for row, total in enumerate(totals_R.tolist()):
        if math.isnan(total):
            raise CheckpointError(CTC_NAN)
        size = len(labels[row])
        spans = tuple((start, end) for start, end in spans_RL2[row, :size].tolist())
        means = tuple(means_RL[row, :size].tolist())
        found.append(None if total == -math.inf else Alignment(spans, means, total))
    return found


def align_units(
    ctc: Ctc, memory: Tensor, lengths: Tensor, labels: Sequence[Sequence[int]], rows: Sequence[int] | None = None
) -> list[Alignment | None]:
    """As `viterbi_align`, of unit ids to the output of the encoder. Only their log-probabilities are asked for.

    Args:
        memory: (B, T, D), lengths: (B,) in T.
        labels: R sequences of unit ids. Blank among them, which a decoder may write, is a label like any other.
    """
    rows = range(len(labels)) if rows is None else rows
    joined: list[list[int]] = [[] for _ in range(len(memory))]  # all that is to be aligned to an utterance
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


@dataclass(frozen=True, slots=True)
class FrameClock:
    """When an encoder frame is, in seconds from the beginning of the utterance's audio.

    A frame stands for as much time as it steps on (frame shift · subsampling), in the middle of the audio that the
    subsampling computes it from: with conv2d and 10 ms, frame 0 is computed from 85 ms and stands for 22.5 to 62.5 ms.
    """

    step_s: float
    offset_s: float

    def span(self, first: int, end: int, *, begin_s: float = 0.0) -> tuple[float, float]:
        """Begin of frame `first` and begin of frame `end`, in seconds to 0.1 ms.

        Args:
            begin_s: where in the utterance's audio the encoder began to read.
        """
        offset_s = begin_s + self.offset_s
        return round(offset_s + first * self.step_s, _DIGITS), round(offset_s + end * self.step_s, _DIGITS)


def frame_clock(encoder: Encoder, conf: DatasetConf) -> FrameClock:
    """The clock of an encoder that reads features made as `conf` says."""
    rate, fbank_conf = conf.resample_conf.resample_rate, conf.fbank_conf
    # In whole samples, rounded as the features round them.
    size_s, shift_s = (int(rate * ms * 0.001) / rate for ms in (fbank_conf.frame_length, fbank_conf.frame_shift))
    step_s = encoder.embed.stride * shift_s
    seen_s = (encoder.embed.min_frames - 1) * shift_s + size_s
    return FrameClock(step_s, (seen_s - step_s) / 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedText:
    """A unit or a word and when it was said."""

    text: str
    start: float
    """Seconds from the beginning of the utterance."""
    end: float
    confidence: float
    """Its probability under CTC, in [0, 1]: the geometric mean over a unit's frames, over a word's units."""


def timed_units(
    ids: Sequence[int], alignment: Alignment, tokenizer: Tokenizer, clock: FrameClock, *, begin_s: float = 0.0
) -> list[TimedText]:
    """The units of an alignment: each from the first to the last frame that emits it.

    Args:
        begin_s: where in the utterance's audio the encoder began to read.
    """
    units = []
    for unit_id, (first, end), log_prob in zip(ids, alignment.spans, alignment.log_probs, strict=True):
        start_s, end_s = clock.span(first, end, begin_s=begin_s)
        text = tokenizer.table.units[unit_id]
        units.append(TimedText(text=text, start=start_s, end=end_s, confidence=math.exp(log_prob)))
    return units


def timed_words(units: Sequence[TimedText], tokenizer: Tokenizer) -> list[TimedText]:
    """The words that units make up: a unit that opens with `▁` opens a word, and `▁` alone lies between two.

    A word lasts from the begin of its first unit to the end of its last. Phones do not mark words: theirs are one.
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
