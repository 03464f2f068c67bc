# SPDX-License-Identifier: Apache-2.0
"""How long utterances are, in feature frames and after the encoder, for many of them at once."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from wenet_hs.config.dataset import DatasetConf
from wenet_hs.data.features import samples_of

_ROWS_AT_ONCE = 1 << 20
_MOST_SAMPLES = 2.0**53  # what a float counts in whole numbers: a list may say anything of a duration


def conv2d_length(num_frames: int) -> int:
    """Encoder frames of so many feature frames after WeNet's `conv2d`, which reads 7 frames and steps 4."""
    return max(0, ((num_frames - 1) // 2 - 1) // 2)


class FrameCounts:
    """Seconds to feature frames to encoder frames."""

    def __init__(self, conf: DatasetConf, subsampled: Callable[[int], int]) -> None:
        """subsampled: feature frames → encoder frames."""
        self.subsampled = subsampled
        self._rate = conf.resample_conf.resample_rate
        self._size = samples_of(self._rate, conf.fbank_conf.frame_length)
        self._shift = samples_of(self._rate, conf.fbank_conf.frame_shift)

    def of(self, durations: NDArray[np.float64], speed: float | NDArray[np.float64] = 1.0) -> NDArray[np.int64]:
        """Feature frames of audio of so many seconds played at a speed: what `fbank` makes of it. (N,) → (N,)."""
        samples = np.rint(np.minimum(durations * self._rate / speed, _MOST_SAMPLES)).astype(np.int64)
        return np.where(samples < self._size, 0, 1 + (samples - self._size) // self._shift)

    def after_encoder(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Encoder frames of so many feature frames; the encoder is asked once for each number. (N,) → (N,)."""
        out = np.empty(len(frames), np.int64)
        for first in range(0, len(frames), _ROWS_AT_ONCE):
            stretch = slice(first, first + _ROWS_AT_ONCE)
            numbers, places = np.unique(frames[stretch], return_inverse=True)
            out[stretch] = np.array([self.subsampled(number) for number in numbers.tolist()], np.int64)[places]
        return out
