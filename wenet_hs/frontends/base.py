# SPDX-License-Identifier: Apache-2.0
"""Interface of the frontends: the input of an encoder, computed from a waveform, and the times of
its frames.

Dimension key: B batch, N samples, T frames, F features per frame, U utterances.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

logger = logging.getLogger(__name__)

Length = TypeVar("Length", int, NDArray[np.int64])
Frames = TypeVar("Frames", int, NDArray[np.int64], Tensor)

_MAX_SAMPLES = (
    2.0**53
)  # the largest integer range of a float: the duration in a list may be any number


class Frontend(ABC):
    """Computes the input of an encoder.

    Frames have equal distances and are computed from windows of equal lengths.

    Frame t stands for the audio from offset_s + t * frame_s to offset_s + (t + 1) * frame_s: the
    middle of its window.
    """

    rate: int
    """Samples per second of the waveform."""
    frame_s: float
    """Distance between frames, seconds."""
    offset_s: float
    """Start of the audio that frame 0 stands for, seconds: (window - distance) / 2, or -distance /
    2 if centred.
    """
    width: int
    """Features per frame, F."""
    is_half: bool = False
    """Whether caches keep the features as float16, without a loss."""
    counts_frames: bool = True
    """Whether `batch_conf` limits the frames of this frontend; otherwise frames of 10 ms."""
    window_s: float = math.inf
    """Longer audio is cut into windows of this length, in seconds, which the encoder reads
    separately.
    """

    @abstractmethod
    def length(self, num_samples: Length) -> Length:
        """The number of frames that `compute` returns for a number of samples, 0 below a window; or
        of each, (U,).
        """

    @abstractmethod
    def compute(self, wave_N: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The frames of a waveform (N,) → (T, F), or of padded waveforms (B, N) → (B, T, F),
        padding included.

        Args:
            wave_N: float32 in [-1, 1], of `rate`. The result is on its device.
            generator: source of the random numbers of a training. None, as in decoding: there is no
                randomness.
        """

    def count_frames(
        self, durations_U: NDArray[np.float64], speed: float | NDArray[np.float64] = 1.0
    ) -> NDArray[np.int64]:
        """The number of frames of each utterance, (U,), from its duration in seconds and its speed."""
        samples_U = np.rint(np.minimum(durations_U * self.rate / speed, _MAX_SAMPLES)).astype(
            np.int64
        )
        return self.length(samples_U)

    def batch_lengths(
        self, durations_U: NDArray[np.float64], speed: float | NDArray[np.float64] = 1.0
    ) -> NDArray[np.int64]:
        """The length of each utterance, (U,), in the frames that `batch_conf` limits."""
        if self.counts_frames:
            return self.count_frames(durations_U, speed)
        frames_U: NDArray[np.float64] = np.rint(100 * np.minimum(durations_U / speed, _MAX_SAMPLES))
        return frames_U.astype(np.int64)

    def warn_about_windows(self, where: str, durations_s: Collection[float], to_do: str) -> None:
        """Log how many clips are cut into windows, if any."""
        # 10 ms: segments are measured in such frames, so they may be a little longer.
        if number := sum(seconds > self.window_s + 0.01 for seconds in durations_s):
            message = (
                "%s: the encoder cuts clips longer than %g s in the middle of words: %d of %d; %s"
            )
            logger.warning(message, where, self.window_s, number, len(durations_s), to_do)

    def span_s(self, num_frames: int) -> float:
        """Seconds of audio that `num_frames` successive frames, at least one, are computed from.

        Where the window of frame 0 is centred at 0 s: from the middle of the first window to that
        of the last one.
        """
        return num_frames * self.frame_s + 2 * self.offset_s
