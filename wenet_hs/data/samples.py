# SPDX-License-Identifier: Apache-2.0
"""Samples in memory: arrays of a caller as mono float32, and a stream of pieces at one rate."""

from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import soxr
import torch
from torch import Tensor

from wenet_hs.data.signatures import MAX_SIGNATURE, find_pipe_format

AnySamples = npt.NDArray[Any] | Tensor
Bytes = bytes | bytearray | memoryview
"""Samples of 16 bits, little-endian, mono."""
_MAX_CHANNELS, _FEW_CHANNELS = (
    64,
    8,
)  # the second where there are few samples: perhaps it is (samples, channels)
RATES = 1_000, 1_000_000
"""The lowest and the highest sample rate of a stream, in Hz."""
_MAX_PEAK = 8.0  # a little over 1 is clipping or resampling; far over it, integers were converted to floats unscaled


def mono_samples(waveform: AnySamples) -> Tensor:
    """The mean of all channels, (samples,) float32 on the CPU.

    waveform: (samples,) or (channels, samples), floats in [-1, 1] or integers of 16 or 32 bits.

    Raises ValueError for other shapes and types, and for samples that are not finite or far over
        full scale.
    """
    # A copy: arrays may be read-only, which torch cannot express.
    if (
        not isinstance(waveform, Tensor)
        and (waveform := np.asarray(waveform)).dtype.kind not in "iuf"
    ):
        raise ValueError(
            f"waveform: {waveform.dtype}; expected floats, or integers of 16 or 32 bits"
        )
    samples = waveform.detach().cpu() if isinstance(waveform, Tensor) else torch.tensor(waveform)
    if samples.dim() not in (1, 2) or (samples.dim() == 2 and not len(samples)):
        raise ValueError(
            f"waveform: shape {tuple(samples.shape)}, expected (samples,) or (channels, samples)"
        )
    if samples.dim() == 2 and len(samples) > (
        _MAX_CHANNELS if samples.size(1) > _MAX_CHANNELS else _FEW_CHANNELS
    ):
        raise ValueError(
            f"waveform: {len(samples)} channels; expected (channels, samples), transpose it"
        )
    if samples.dtype in (torch.int16, torch.int32):
        samples = samples.double() / -torch.iinfo(samples.dtype).min
    elif not samples.is_floating_point():
        raise ValueError(
            f"waveform: {samples.dtype}; expected floats, or integers of 16 or 32 bits"
        )
    samples = samples.float()
    mono_N = samples if samples.dim() == 1 else samples.mean(dim=0)
    peak = float(mono_N.abs().max()) if mono_N.numel() else 0.0
    if not peak <= _MAX_PEAK:
        rule = "floats must be finite and in [-1, 1], integers keep their dtype"
        raise ValueError(f"waveform: a peak of {peak:g}; {rule}")
    return mono_N.contiguous()


class SampleStream:
    """The pieces of a stream, resampled: together the same samples as the whole."""

    def __init__(self, to_rate: int) -> None:
        self._to_rate, self._rate = to_rate, 0.0
        self._resampler: soxr.ResampleStream | None = None

    def advance(self, piece: AnySamples | Bytes, rate: float) -> Tensor:
        """The next samples at the rate of the stream, (N,) float32.

        Args:
            piece: samples as for `mono_samples`, or bytes: 16 bits, little-endian, mono.
            rate: samples per second, the same for all pieces.
        Raises: ValueError, also for half a sample, for another rate, and for bytes that begin a
            file of audio.
        """
        if not (isinstance(rate, Real) and RATES[0] <= rate <= RATES[1]):
            raise ValueError(f"sample rate {rate!r}: must be from {RATES[0]} to {RATES[1]} Hz")
        if rate != (self._rate or rate):
            raise ValueError(
                f"sample rate {rate:g}: the stream began with {self._rate:g} Hz; start another stream"
            )
        if isinstance(piece, bytes | bytearray | memoryview):
            if (num_bytes := memoryview(piece).nbytes) % 2:
                raise ValueError(
                    f"{num_bytes} bytes: samples have 16 bits; give an even number of bytes"
                )
            is_first = not self._rate
            audio_format = find_pipe_format(bytes(piece[:MAX_SIGNATURE])) if is_first else None
            if audio_format is not None:
                name = audio_format.name
                raise ValueError(
                    f"the bytes begin a file of the format {name}, not samples; decode it"
                )
            piece = np.frombuffer(piece, "<i2")
        samples_N, self._rate = mono_samples(piece), rate
        if rate == self._to_rate:
            return samples_N
        self._resampler = self._resampler or soxr.ResampleStream(
            rate, self._to_rate, 1, "float32", "HQ"
        )
        return torch.from_numpy(self._resampler.resample_chunk(samples_N.numpy()))

    def finish(self) -> Tensor:
        """The samples that resampling has kept, (N,)."""
        if self._resampler is None:
            return torch.empty(0)
        return torch.from_numpy(self._resampler.resample_chunk(np.empty(0, np.float32), last=True))
