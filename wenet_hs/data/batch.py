# SPDX-License-Identifier: Apache-2.0
"""One utterance, and some of them padded to one length.   Dimension key: B batch, T frames, F Mel bins, L label."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.data.augment import Masks
from wenet_hs.data.quarantine import BadClip

PADDING_ID = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One utterance, ready for a batch."""

    key: str
    features: Tensor
    """(T, F) float32, before CMVN; the waveform (N,) where the device computes features (`data/device_features.py`)."""
    target: Tensor
    """(L,) int64 unit ids, without begin and end."""
    audio_seconds: float
    masks: Masks | None = None
    """What of a waveform's features is to be hidden; None: nothing, or it is hidden already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waves:
    """What `device_features.with_features` needs beside the waveforms."""

    num_samples: tuple[int, ...]
    """Of each of the B waveforms."""
    masks: tuple[Masks | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Some utterances, padded to one length."""

    keys: list[str]
    features: Tensor
    """(B, T, F) float32, 0 where padded; waveforms (B, N) while `waves` is set."""
    feature_lengths: Tensor
    """(B,) int64, in frames."""
    num_frames: int
    """Their sum."""
    targets: Tensor
    """(B, L) int64, -1 where padded."""
    target_lengths: Tensor
    """(B,) int64."""
    audio_seconds: float
    num_targets: int
    """Labels plus one end of sentence each: what the attention decoder predicts."""
    quarantined: tuple[BadClip, ...] = ()
    """Clips that were drawn for this batch and cannot be read."""
    waves: Waves | None = None
    """Set while the features are still to be computed, on the device."""

    @property
    def num_drawn(self) -> int:
        """Clips that were drawn for this batch, those that cannot be read among them."""
        return len(self.keys) + len(self.quarantined)

    def to(self, device: torch.device | str) -> "Batch":
        """The batch with its tensors on a device."""
        return replace(
            self,
            features=self.features.to(device, non_blocking=True),
            feature_lengths=self.feature_lengths.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
            target_lengths=self.target_lengths.to(device, non_blocking=True),
        )


def collate(examples: Sequence[Example]) -> Batch:
    """Pad examples to the longest of them, in their order."""
    target_lengths = torch.tensor([len(example.target) for example in examples])
    lengths = [len(example.features) for example in examples]
    return Batch(
        keys=[example.key for example in examples],
        features=pad_sequence([example.features for example in examples], batch_first=True),
        feature_lengths=torch.tensor(lengths),
        num_frames=sum(lengths),
        targets=pad_sequence([example.target for example in examples], batch_first=True, padding_value=PADDING_ID),
        target_lengths=target_lengths,
        audio_seconds=sum(example.audio_seconds for example in examples),
        num_targets=int(target_lengths.sum()) + len(examples),
    )
