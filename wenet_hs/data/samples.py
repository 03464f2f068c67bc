# SPDX-License-Identifier: Apache-2.0
"""Samples in memory: arrays of a caller as mono float32, and pieces of a stream at one rate.

Dimension key: N samples.
"""

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
_MAX_CHANNELS = 64
_FEW_CHANNELS = 8
"""At most so many channels if there are few samples: it may be an array (samples, channels)."""
RATES = 1_000, 1_000_000
"""The lowest and the highest sample rate of a stream, in Hz."""
_MAX_PEAK = 8.0
"""A peak a little over 1 is clipping or resampling.

Far over 1, integers were converted to floats without scaling.
"""


def mono_samples(waveform: AnySamples) -> Tensor:
    """The mean of all channels, (N,) float32 on the CPU, where 1 is full scale.

    waveform: (samples,) or (channels, samples), floats in [-1, 1] or integers of 16 or 32 bits.

    Raises: ValueError for other shapes and types, and for samples that are not finite or far over
        full scale.
    """
    samples = _as_tensor(waveform)
    _check_shape(samples)
    if samples.dtype in (torch.int16, torch.int32):
        full_scale = -torch.iinfo(samples.dtype).min
        samples = samples.double() / full_scale
    elif not samples.is_floating_point():
        raise _make_type_error(samples.dtype)
    samples = samples.float()
    mono_N = samples if samples.dim() == 1 else samples.mean(dim=0)
    peak = float(mono_N.abs().max()) if mono_N.numel() else 0.0
    if not peak <= _MAX_PEAK:  # also true of NaN
        rule = "floats must be finite and in [-1, 1], integers keep their dtype"
        raise ValueError(f"waveform: a peak of {peak:g}; {rule}")
    return mono_N.contiguous()


def _as_tensor(waveform: AnySamples) -> Tensor:
    """The samples as a tensor on the CPU. Raises ValueError for an array of no numbers."""
    if isinstance(waveform, Tensor):
        return waveform.detach().cpu()
    array = np.asarray(waveform)
    if array.dtype.kind not in "iuf":  # integers, unsigned integers, floats
        raise _make_type_error(array.dtype)
    return torch.tensor(array)  # a copy: arrays may be read-only, which torch cannot express


def _check_shape(samples: Tensor) -> None:
    """Raises ValueError for other shapes than (samples,) and (channels, samples)."""
    is_mono = samples.dim() == 1
    has_channels = samples.dim() == 2 and len(samples) > 0
    if not (is_mono or has_channels):
        shape = tuple(samples.shape)
        raise ValueError(f"waveform: shape {shape}, expected (samples,) or (channels, samples)")
    if is_mono:
        return
    num_channels, num_samples = samples.shape
    max_channels = _MAX_CHANNELS if num_samples > _MAX_CHANNELS else _FEW_CHANNELS
    if num_channels > max_channels:
        raise ValueError(
            f"waveform: {num_channels} channels; expected (channels, samples), transpose it"
        )


def _make_type_error(dtype: object) -> ValueError:
    """The error for samples of a type that is not supported."""
    return ValueError(f"waveform: {dtype}; expected floats, or integers of 16 or 32 bits")


class SampleStream:
    """Resamples the pieces of a stream; together they are the same samples as the whole."""

    def __init__(self, to_rate: int) -> None:
        """`to_rate`: the rate of the samples that are returned, in Hz."""
        self._to_rate = to_rate
        self._rate = 0.0  # of the pieces; 0: there was none yet
        self._resampler: soxr.ResampleStream | None = None

    def advance(self, piece: AnySamples | Bytes, rate: float) -> Tensor:
        """Resample the next piece.

        Args:
            piece: samples as for `mono_samples`, or bytes: 16 bits, little-endian, mono.
            rate: samples per second, the same for all pieces.
        Returns: the samples that are complete, (N,) float32; resampling keeps some for later.
        Raises: ValueError for wrong samples, for half a sample, for another rate than before, and
            if the first bytes of the stream begin a file of audio.
        """
        self._check_rate(rate)
        if isinstance(piece, bytes | bytearray | memoryview):
            piece = _as_samples(piece, is_first=not self._rate)
        samples_N = mono_samples(piece)
        self._rate = rate
        if rate == self._to_rate:
            return samples_N
        if self._resampler is None:
            self._resampler = soxr.ResampleStream(
                rate, self._to_rate, num_channels=1, dtype="float32", quality="HQ"
            )
        return torch.from_numpy(self._resampler.resample_chunk(samples_N.numpy()))

    def _check_rate(self, rate: float) -> None:
        """Raises ValueError for an impossible rate, and for another one than before."""
        is_possible = isinstance(rate, Real) and RATES[0] <= rate <= RATES[1]
        if not is_possible:
            raise ValueError(f"sample rate {rate!r}: must be from {RATES[0]} to {RATES[1]} Hz")
        if self._rate and rate != self._rate:
            began = f"the stream began with {self._rate:g} Hz"
            raise ValueError(f"sample rate {rate:g}: {began}; start another stream")

    def finish(self) -> Tensor:
        """The samples that resampling has kept, (N,) float32; none if the rates are equal."""
        if self._resampler is None:
            return torch.empty(0)
        no_samples = np.empty(0, np.float32)
        return torch.from_numpy(self._resampler.resample_chunk(no_samples, last=True))


def _as_samples(piece: Bytes, *, is_first: bool) -> npt.NDArray[np.int16]:
    """The samples of bytes: 16 bits, little-endian, mono.

    is_first: whether the piece begins a stream, so that it may begin a file of audio.
    Raises: ValueError for half a sample, and for bytes that begin a file of audio.
    """
    num_bytes = memoryview(piece).nbytes
    if num_bytes % 2:
        raise ValueError(f"{num_bytes} bytes: samples have 16 bits; give an even number of bytes")
    audio_format = find_pipe_format(bytes(piece[:MAX_SIGNATURE])) if is_first else None
    if audio_format is not None:
        raise ValueError(
            f"the bytes begin a file of the format {audio_format.name}, not samples; decode it"
        )
    return np.frombuffer(piece, "<i2")
