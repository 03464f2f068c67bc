# SPDX-License-Identifier: Apache-2.0
"""Features of a whole batch at once, on the device that trains: `dataset_conf.features_on: device`.

The workers then read, speed up and distort waveforms, draw what SpecAugment hides, and hand over samples. Dither is
refused: Kaldi draws it for each frame, more numbers than the batch itself. The features are those of the worker to
1e-3, not to the bit, so a resumed run keeps `features_on`.

Dimension key: B batch, N samples, S samples a frame, T frames, F Mel bins.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.config.dataset import DatasetConf
from wenet_hs.data.augment import Masks
from wenet_hs.data.batch import Batch, Example, Waves, collate
from wenet_hs.data.features import INT16_SCALE, log_mel, num_frames, samples_of


def collate_waves(examples: Sequence[Example], conf: DatasetConf) -> Batch:
    """Pad waveforms to the longest of them, in their order; `feature_lengths` are already those of the features."""
    lengths = [frames_of(len(example.features), conf) for example in examples]
    return replace(
        collate(examples),
        feature_lengths=torch.tensor(lengths),
        num_frames=sum(lengths),
        waves=Waves(
            num_samples=tuple(len(example.features) for example in examples),
            masks=tuple(example.masks for example in examples),
        ),
    )


def frames_of(num_samples: int, conf: DatasetConf) -> int:
    """How many feature frames a waveform of so many samples has."""
    return num_frames(
        num_samples,
        sample_rate=conf.resample_conf.resample_rate,
        frame_length_ms=conf.fbank_conf.frame_length,
        frame_shift_ms=conf.fbank_conf.frame_shift,
    )


def with_features(batch: Batch, conf: DatasetConf) -> Batch:
    """The batch with the features of its waveforms, on the device where those are; any other batch as it is."""
    if batch.waves is None:
        return batch
    features_BTF = batch_fbank(batch.features, conf)
    valid_BT1 = _valid(batch.feature_lengths, features_BTF.size(1))
    features_BTF = features_BTF * valid_BT1
    if any(masks is not None for masks in batch.waves.masks):
        keep_BTF = _kept(batch.waves.masks, features_BTF)
        mean_B1F = features_BTF.sum(1, keepdim=True) / batch.feature_lengths[:, None, None]
        features_BTF = torch.where(keep_BTF, features_BTF, mean_B1F) * valid_BT1
    return replace(batch, features=features_BTF, waves=None)


def batch_fbank(waveforms: Tensor, conf: DatasetConf) -> Tensor:
    """`features.fbank` of padded waveforms (B, N) in [-1, 1]: (B, T, F), also behind the ends.

    Each has a frame at least. Outside autocast, which would round the samples.
    """
    rate = conf.resample_conf.resample_rate
    size = samples_of(rate, conf.fbank_conf.frame_length)
    shift = samples_of(rate, conf.fbank_conf.frame_shift)
    with torch.autocast(waveforms.device.type, enabled=False):
        frames_BTS = (waveforms * INT16_SCALE).unfold(1, size, shift)
        features_NF = log_mel(
            frames_BTS.reshape(-1),  # whatever Kaldi does is done to single frames: laid end to end they are one clip
            sample_rate=rate,
            num_mel_bins=conf.fbank_conf.num_mel_bins,
            frame_length_ms=conf.fbank_conf.frame_length,
            frame_shift_ms=conf.fbank_conf.frame_length,
        )
    return features_NF.view(*frames_BTS.shape[:2], -1)


def _valid(lengths: Tensor, num_frames: int) -> Tensor:
    """(B, T, 1) bool: frames of the utterances."""
    return (torch.arange(num_frames, device=lengths.device) < lengths[:, None])[:, :, None]


def _kept(masks: Sequence[Masks | None], features_BTF: Tensor) -> Tensor:
    """(B, T, F) bool: what SpecAugment leaves."""
    _, num_frames, num_bins = features_BTF.shape
    everything = (torch.ones(0, dtype=torch.bool), torch.ones(num_bins, dtype=torch.bool))
    pairs = [everything if one is None else (one.keep_frames, one.keep_bins) for one in masks]
    keep_BT = pad_sequence([frames for frames, _ in pairs], batch_first=True, padding_value=True)
    keep_BT = torch.nn.functional.pad(keep_BT, (0, num_frames - keep_BT.size(1)), value=True)
    keep_BF = torch.stack([bins for _, bins in pairs])
    device = features_BTF.device
    return keep_BT.to(device)[:, :, None] & keep_BF.to(device)[:, None, :]
