# SPDX-License-Identifier: Apache-2.0
"""Clips of noise, and datasets of characters over them."""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from wenet_hs.config.dataset import BatchConf, DatasetConf, FbankConf
from wenet_hs.data.batching import Batch
from wenet_hs.data.dataset import SpeechDataset
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable

RATE = 16000
PLAIN = DatasetConf(
    spec_aug=False, fbank_conf=FbankConf(num_mel_bins=23), batch_conf=BatchConf(batch_size=3)
)
RANDOM = DatasetConf(
    speed_perturb=True,
    fbank_conf=FbankConf(dither=1.0, num_mel_bins=23),
    batch_conf=BatchConf(batch_size=3),
)


def noise(num_samples: int, seed: int = 0) -> torch.Tensor:
    return 0.1 * torch.randn(num_samples, generator=torch.Generator().manual_seed(seed))


def encoded(samples: np.ndarray, rate: int, container: str, **options: Any) -> bytes:
    """The content of an audio file."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=container, **options)
    return file.getvalue()


def write_clips(
    folder: Path, seconds: Sequence[float], transcripts: Sequence[str] = ("a",)
) -> list[Utterance]:
    """One clip of noise per length; the transcripts repeat."""
    utterances = []
    for i, duration in enumerate(seconds):
        path = folder / f"{i}.wav"
        soundfile.write(path, noise(round(duration * RATE), i).numpy(), RATE)
        txt = transcripts[i % len(transcripts)]
        utterances.append(Utterance(key=f"u{i}", wav=str(path), txt=txt, duration=duration))
    return utterances


def conv2d_length(num_frames: int) -> int:
    """Encoder frames of the subsampling `conv2d`."""
    return max(0, ((num_frames - 1) // 2 - 1) // 2)


def make_dataset(
    utterances: Iterable[Utterance], conf: DatasetConf = RANDOM, **options: Any
) -> SpeechDataset:
    tokenizer = make_tokenizer("char", UnitTable.from_units("abcé▁"))
    defaults = {"training": True, "seed": 0, "output_length": conv2d_length}
    return SpeechDataset(utterances, tokenizer, conf, **(defaults | options))


def assert_equal_batches(left: Iterable[Batch], right: Iterable[Batch]) -> None:
    for one, other in zip(left, right, strict=True):
        assert (one.keys, one.quarantined) == (other.keys, other.quarantined)
        assert (one.audio_seconds, one.num_targets) == (other.audio_seconds, other.num_targets)
        for name in ("features", "feature_lengths", "targets", "target_lengths"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
