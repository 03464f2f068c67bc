# SPDX-License-Identifier: Apache-2.0
"""Augmentation of training data: SpecAugment and speed.   Dimension key: T frames, F Mel bins.

Both are pure functions; whatever is random comes from the caller's generator.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from wenet_hs.config.dataset import SpecAugConf
from wenet_hs.data.audio import resample

SPEED_FACTORS = (1.0, 0.9, 1.1)


@dataclass(frozen=True, slots=True)
class Masks:
    """What SpecAugment leaves of an utterance."""

    keep_frames: Tensor
    """(T,) bool."""
    keep_bins: Tensor
    """(F,) bool."""


def spec_augment(features: Tensor, conf: SpecAugConf, generator: torch.Generator) -> Tensor:
    """Features with bands of time and of frequency hidden (Park et al. 2019, without warping).

    A width is uniform in 0…max and a place uniform where the band fits. Two deliberate differences from WeNet:
    what is hidden becomes the utterance's own mean of that bin, which global CMVN carries near 0 (WeNet writes 0
    before CMVN, which is near silence in log-Mel and far from the mean after it); and all bands of time together
    hide at most half of the frames, which changes nothing from 2 * num_t_mask * max_t frames on (2 s as shipped).

    Args:
        features: (T, F), before CMVN; not changed.
    """
    num_frames, num_bins = features.shape
    if not num_frames:
        return features
    masks = draw_masks(num_frames, num_bins, conf, generator)
    keep_TF = masks.keep_frames[:, None] & masks.keep_bins
    return torch.where(keep_TF, features, features.mean(dim=0, keepdim=True))


def draw_masks(num_frames: int, num_bins: int, conf: SpecAugConf, generator: torch.Generator) -> Masks:
    """What `spec_augment` hides of features (num_frames, num_bins)."""
    keep_T = torch.ones(num_frames, dtype=torch.bool)
    keep_F = torch.ones(num_bins, dtype=torch.bool)
    max_t = min(conf.max_t, num_frames // (2 * max(1, conf.num_t_mask)))
    for _ in range(conf.num_t_mask):
        begin, end = _band(num_frames, max_t, generator)
        keep_T[begin:end] = False
    for _ in range(conf.num_f_mask):
        begin, end = _band(num_bins, min(conf.max_f, num_bins), generator)
        keep_F[begin:end] = False
    return Masks(keep_T, keep_F)


def _band(size: int, max_width: int, generator: torch.Generator) -> tuple[int, int]:
    """Begin and end of a band inside 0…size, of a width uniform in 0…max_width."""
    width = int(torch.randint(max_width + 1, (), generator=generator))
    begin = int(torch.randint(size - width + 1, (), generator=generator))
    return begin, begin + width


def speed_perturb(waveform: Tensor, factor: float) -> Tensor:
    """The waveform played `factor` times as fast, its pitch moving along (what `sox speed` does), by resampling.

    waveform: (N,) float32. Returns: (round(N / factor),).
    """
    if factor == 1.0:
        return waveform
    num_samples = round(len(waveform) / factor)
    changed = resample(waveform, factor, 1.0)[:num_samples]
    return torch.nn.functional.pad(changed, (0, num_samples - len(changed)))  # soxr may round the length down
