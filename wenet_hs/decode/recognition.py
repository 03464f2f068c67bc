# SPDX-License-Identifier: Apache-2.0
"""A whole data list through the decoding modes: batches by length, every clip accounted for, every stage timed.

Dimension key: N samples, T frames, F features.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.build import Experiment
from wenet_hs.config.dataset import DatasetConf
from wenet_hs.data.audio import probe_audio
from wenet_hs.data.features import fbank, utterance_features
from wenet_hs.decode.alignment import FrameClock, frame_clock
from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.decode.lm import LanguageModel
from wenet_hs.decode.modes import decode, warn_of_wide_beam
from wenet_hs.decode.timing import StageTimes
from wenet_hs.errors import DataError
from wenet_hs.manifest import Utterance

logger = logging.getLogger(__name__)

FEATURES = "features"
"""Name of the stage that reads audio and computes features."""
MAX_BATCH_S = 600.0
"""Seconds of audio in a batch, padding counted: a bound on memory whatever the batch size. A longer clip is alone."""
_WARM_UP_S = 1.0
_NAMED = 5


@dataclass
class Recognition:
    """What came out of a data list."""

    times: StageTimes
    nbest: dict[str, dict[str, list[Hypothesis]]]
    """Mode → key of the utterance → its hypotheses, best first; the best one with its CTC alignment."""
    clock: FrameClock
    """When the encoder frames of the alignments are."""
    failed: dict[str, str] = field(default_factory=dict)
    """Key of each utterance that could not be read → why."""
    too_short: list[str] = field(default_factory=list)
    """Keys of the utterances without a single encoder frame; their hypothesis is empty."""
    audio_seconds: float = 0.0
    """Of the utterances decoded."""


@dataclass(frozen=True)
class _Clip:
    utterance: Utterance
    duration_s: float


def recognize(
    experiment: Experiment,
    utterances: Sequence[Utterance],
    modes: Sequence[str],
    options: DecodeOptions,
    *,
    lm: LanguageModel | None = None,
    batch_size: int = 16,
    on_progress: Callable[[int], None] = lambda count: None,
) -> Recognition:
    """Decode a list, longest utterances first: if memory does not suffice, that shows at once.

    A clip that cannot be read is left out and named in `failed`; one too short for the encoder has the empty hypothesis
    and is named in a warning. One second of noise is decoded before the clock starts.

    Args:
        lm: a language model for the searches.
        batch_size: most utterances in a batch; it never changes a result.
        on_progress: told how many utterances are done since it was last called.
    """
    device = next(experiment.model.parameters()).device
    warn_of_wide_beam(experiment.model, options)
    _warm_up(experiment, modes, options, lm, device)
    clock = frame_clock(experiment.model.encoder, experiment.config.dataset_conf)
    found = Recognition(StageTimes(device), {mode: {} for mode in modes}, clock)
    clips = _probe(utterances, found.failed)
    on_progress(len(found.failed))
    for batch in plan_batches(clips, batch_size):
        _recognize_batch(experiment, batch, options, found, lm=lm, device=device)
        on_progress(len(batch))
    _warn(found)
    return found


def waveform_features(waveform: Tensor, conf: DatasetConf) -> Tensor:
    """The features the model was trained on: waveform (N,) float32 in [-1, 1] at the model's rate → (T, F)."""
    return fbank(
        waveform,
        sample_rate=conf.resample_conf.resample_rate,
        num_mel_bins=conf.fbank_conf.num_mel_bins,
        frame_length_ms=conf.fbank_conf.frame_length,
        frame_shift_ms=conf.fbank_conf.frame_shift,
    )


def plan_batches(clips: Iterable[_Clip], batch_size: int) -> list[list[_Clip]]:
    """Longest first, at most `batch_size` clips and MAX_BATCH_S seconds with padding; equal ones keep their order."""
    batches: list[list[_Clip]] = []
    for clip in sorted(clips, key=lambda clip: clip.duration_s, reverse=True):
        last = batches[-1] if batches else []
        if last and len(last) < batch_size and (len(last) + 1) * last[0].duration_s <= MAX_BATCH_S:
            last.append(clip)
        else:
            batches.append([clip])
    return batches


def _probe(utterances: Sequence[Utterance], failed: dict[str, str]) -> list[_Clip]:
    """The utterances with their durations; those whose header cannot be read go to `failed`."""
    clips = []
    for utterance in utterances:
        try:
            clips.append(_Clip(utterance, _duration(utterance)))
        except DataError as error:
            failed[utterance.key] = str(error)
    return clips


def _duration(utterance: Utterance) -> float:
    if utterance.duration is not None:
        return utterance.duration
    end = utterance.end if utterance.end is not None else probe_audio(utterance.wav).duration_s
    return end - (utterance.start or 0.0)


def _recognize_batch(
    experiment: Experiment,
    batch: list[_Clip],
    options: DecodeOptions,
    found: Recognition,
    *,
    lm: LanguageModel | None,
    device: torch.device,
) -> None:
    with found.times.measure(FEATURES):
        features = _read_features(experiment, batch, found)
        if not features:
            return
        padded = pad_sequence(list(features.values()), batch_first=True).to(device)
        lengths = torch.tensor([len(frames) for frames in features.values()], device=device)
    shortest = experiment.model.encoder.subsampled_length
    found.too_short += [key for key, frames in features.items() if shortest(len(frames)) < 1]
    modes, times = list(found.nbest), found.times
    results = decode(experiment.model, padded, lengths, modes, options, lm=lm, align=True, times=times)
    for mode, lists in results.items():
        found.nbest[mode].update(zip(features, lists, strict=True))


def _read_features(experiment: Experiment, batch: list[_Clip], found: Recognition) -> dict[str, Tensor]:
    """(T, F) by key, of the clips that can be read; the others go to `failed`."""
    features = {}
    for clip in batch:
        key = clip.utterance.key
        try:
            features[key] = utterance_features(clip.utterance, experiment.config.dataset_conf)
            found.audio_seconds += clip.duration_s
        except DataError as error:
            found.failed[key] = str(error).removeprefix(f"utterance {key}: ")
    return features


def _warm_up(
    experiment: Experiment,
    modes: Sequence[str],
    options: DecodeOptions,
    lm: LanguageModel | None,
    device: torch.device,
) -> None:
    """Load whatever is loaded at first use: filter banks, kernels, tables."""
    conf = experiment.config.dataset_conf
    num_samples = int(conf.resample_conf.resample_rate * _WARM_UP_S)
    noise_N = 0.1 * torch.randn(num_samples, generator=torch.Generator().manual_seed(0))
    features = waveform_features(noise_N, conf)
    lengths = torch.tensor([len(features)], device=device)
    decode(experiment.model, features[None].to(device), lengths, modes, options, lm=lm, align=True)


def _warn(found: Recognition) -> None:
    keys = found.too_short
    if keys:
        named = ", ".join(keys[:_NAMED]) + (" …" if len(keys) > _NAMED else "")
        logger.warning("too short for the encoder, so their hypothesis is empty: %d utterances (%s)", len(keys), named)
