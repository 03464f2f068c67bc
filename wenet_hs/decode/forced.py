# SPDX-License-Identifier: Apache-2.0
"""Forced alignment of a data list: when each unit and word of a known transcript was said, by the CTC branch.

Dimension key: T feature frames, F features.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.build import Experiment
from wenet_hs.data.features import utterance_features
from wenet_hs.data.sampling import ctc_frames_needed
from wenet_hs.decode.alignment import TimedText, align_units, frame_clock, timed_units, timed_words
from wenet_hs.decode.memory import naming_batch
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.manifest import Utterance

MAX_BATCH_FRAMES = 60_000
"""Feature frames in a batch, padding counted: ten minutes. A bound on memory; a longer clip is alone."""
_NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignedUtterance:
    """A transcript in time."""

    utterance: Utterance
    units: tuple[TimedText, ...]
    words: tuple[TimedText, ...]
    score: float
    """Log-probability of the alignment, blanks included; natural logarithm."""
    confidence: float
    """Probability of a unit, the geometric mean over all of them: how well the transcript fits the audio."""


@dataclass
class ForcedAlignment:
    """What came out of a data list."""

    aligned: dict[str, AlignedUtterance] = field(default_factory=dict)
    """By key."""
    failed: dict[str, str] = field(default_factory=dict)
    """Key of each utterance that could not be aligned → why."""


@dataclass(frozen=True, slots=True)
class _Item:
    utterance: Utterance
    ids: list[int]
    features_TF: Tensor


@torch.no_grad()
def align_utterances(
    experiment: Experiment,
    utterances: Sequence[Utterance],
    *,
    batch_size: int = 16,
    on_progress: Callable[[int], None] = lambda count: None,
) -> ForcedAlignment:
    """Align each utterance with its transcript. What cannot be aligned is named in `failed`, the rest goes on.

    An utterance is aligned as a whole, and the encoder's memory grows with the square of its length: a recording of
    more than some minutes has to be cut, with its transcript, before it comes here.

    Args:
        batch_size: most utterances in a batch; it never changes a result.
        on_progress: told how many utterances are done since it was last called.
    Raises: ConfigError where the model was trained without CTC, or the memory does not suffice for a batch;
        CheckpointError where the model's output is NaN.
    """
    if not experiment.config.model_conf.ctc_weight:
        raise ConfigError(
            f"{experiment.model_dir / 'train.yaml'}: model_conf.ctc_weight is 0, so CTC was not trained and cannot "
            "align; take a model trained with CTC"
        )
    found = ForcedAlignment()
    items = _read(experiment, _longest_first(utterances), found.failed)
    frame_s = experiment.config.dataset_conf.fbank_conf.frame_shift / 1000
    for batch in _batches(items, batch_size):
        keys = [item.utterance.key for item in batch]
        longest_s = frame_s * max(len(item.features_TF) for item in batch)
        with naming_batch(keys, longest_s, "lower --batch_size, or cut the longest utterances"):
            _align_batch(experiment, batch, found)
        on_progress(len(batch))
    on_progress(len(found.failed))
    return found


def _longest_first(utterances: Sequence[Utterance]) -> list[Utterance]:
    """So that batches hold little padding; those of unknown length last."""
    return sorted(utterances, key=lambda utterance: utterance.duration or 0.0, reverse=True)


def _read(experiment: Experiment, utterances: Sequence[Utterance], failed: dict[str, str]) -> Iterator[_Item]:
    """Units and features of those that can be aligned; the others go to `failed`."""
    for utterance in utterances:
        try:
            yield _item(experiment, utterance)
        except DataError as error:
            failed[utterance.key] = str(error).removeprefix(f"utterance {utterance.key}: ")


def _item(experiment: Experiment, utterance: Utterance) -> _Item:
    tokenizer = experiment.tokenizer
    unknown = tokenizer.unknown(utterance.txt)
    if unknown:
        units = " ".join(map(repr, list(unknown)[:_NAMED])) + (" …" if len(unknown) > _NAMED else "")
        raise DataError(
            f"the transcript has units that the model does not know: {units}; mend it, or take another model"
        )
    ids = tokenizer.encode(utterance.txt)
    if not ids:
        raise DataError("the transcript is empty; write what was said, or leave the utterance out")
    features_TF = utterance_features(utterance, experiment.config.dataset_conf)
    num_frames, needed = experiment.model.encoder.subsampled_length(len(features_TF)), ctc_frames_needed(ids)
    if num_frames < needed:
        raise DataError(
            f"{utterance.wav}: {num_frames} encoder frames, but CTC needs {needed} for this transcript; check that "
            "they belong together"
        )
    return _Item(utterance, ids, features_TF)


def _batches(items: Iterator[_Item], batch_size: int) -> Iterator[list[_Item]]:
    batch: list[_Item] = []
    for item in items:
        longest = max(len(other.features_TF) for other in [*batch, item])
        if batch and (len(batch) == batch_size or (len(batch) + 1) * longest > MAX_BATCH_FRAMES):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _align_batch(experiment: Experiment, batch: list[_Item], found: ForcedAlignment) -> None:
    model, tokenizer = experiment.model, experiment.tokenizer
    device = next(model.parameters()).device
    clock = frame_clock(model.encoder, experiment.config.dataset_conf)
    features = pad_sequence([item.features_TF for item in batch], batch_first=True).to(device)
    lengths = torch.tensor([len(item.features_TF) for item in batch], device=device)
    memory, memory_lengths = model.encode(features, lengths)
    alignments = align_units(model.ctc, memory, memory_lengths, [item.ids for item in batch])
    for item, alignment in zip(batch, alignments, strict=True):
        key = item.utterance.key
        if alignment is None or alignment.confidence is None:  # probabilities of 0, which float32 has beyond 1e-38
            found.failed[key] = "the model gives no alignment of this transcript any probability; check the transcript"
            continue
        units = timed_units(item.ids, alignment, tokenizer, clock)
        found.aligned[key] = AlignedUtterance(
            utterance=item.utterance,
            units=tuple(units),
            words=tuple(timed_words(units, tokenizer)),
            score=alignment.score,
            confidence=alignment.confidence,
        )
