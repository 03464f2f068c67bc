# SPDX-License-Identifier: Apache-2.0
"""Interface of the frontends: the input of an encoder from a waveform, and the times of its frames.

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

_LARGEST_EXACT = 2.0**53
"""Integers up to here are exact as floats.

Durations are limited to it before they become integers, because a data list may state any number.
"""
_MEASURING_ERROR_S = 0.01
"""Segments are measured in frames of 10 ms, so they may be a little longer than they should be."""


class Frontend(ABC):
    """Computes the input of an encoder.

    Frames have equal distances. Each is computed from a window of the audio, all of one length, and
    stands for the middle of its window: frame t for the audio from offset_s + t * frame_s to
    offset_s + (t + 1) * frame_s.
    """

    rate: int
    """Samples per second of the waveform."""
    frame_s: float
    """Distance between frames, seconds."""
    offset_s: float
    """Start of the audio that frame 0 stands for, seconds.

    (window - frame_s) / 2 if the window of frame 0 begins at 0 s. -frame_s / 2 if it is centred
    there.
    """
    width: int
    """Features per frame, F."""
    is_half: bool = False
    """Whether caches keep the features as float16, without a loss."""
    counts_frames: bool = True
    """Whether `batch_conf` limits the frames of this frontend; otherwise frames of 10 ms."""
    window_s: float = math.inf
    """Longer audio is cut into windows of this length in seconds, and the encoder reads each alone.

    inf: audio is never cut.
    """

    @abstractmethod
    def length(self, num_samples: Length) -> Length:
        """The number of frames that `compute` returns for a number of samples.

        It is 0 for less than a window. For an array (U,) it is the number for each, (U,).
        """

    @abstractmethod
    def compute(self, wave_N: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The frames of a waveform (N,) → (T, F), or of padded waveforms (B, N) → (B, T, F).

        The frames of the padding are included. The result is on the device of `wave_N`.

        Args:
            wave_N: float32 in [-1, 1], `rate` samples per second.
            generator: source of the random numbers of a training. None, as in decoding: nothing is
                random.
        """

    def count_frames(
        self, durations_U: NDArray[np.float64], speed: float | NDArray[np.float64] = 1.0
    ) -> NDArray[np.int64]:
        """The number of frames of each utterance, (U,).

        Args:
            durations_U: in seconds, as recorded.
            speed: the factor by which it is played faster: of all, or of each, (U,).
        """
        samples_U = np.minimum(durations_U * self.rate / speed, _LARGEST_EXACT)
        return self.length(np.rint(samples_U).astype(np.int64))

    def batch_lengths(
        self, durations_U: NDArray[np.float64], speed: float | NDArray[np.float64] = 1.0
    ) -> NDArray[np.int64]:
        """The length of each utterance, (U,), in the frames that `batch_conf` limits.

        These are the frames of this frontend, or frames of 10 ms if `counts_frames` is not set. The
        arguments are those of `count_frames`.
        """
        if self.counts_frames:
            return self.count_frames(durations_U, speed)
        seconds_U = np.minimum(durations_U / speed, _LARGEST_EXACT)
        frames_of_10_ms_U: NDArray[np.float64] = np.rint(100 * seconds_U)
        return frames_of_10_ms_U.astype(np.int64)

    def warn_about_windows(self, where: str, durations_s: Collection[float], to_do: str) -> None:
        """Logs a warning with the number of clips that are cut into windows, if there are any.

        `where` begins the message, and `to_do` ends it.
        """
        longest_s = self.window_s + _MEASURING_ERROR_S
        num_cut = sum(seconds > longest_s for seconds in durations_s)
        if num_cut > 0:
            logger.warning(
                "%s: the encoder cuts clips longer than %g s in the middle of words: %d of %d; %s",
                where,
                self.window_s,
                num_cut,
                len(durations_s),
                to_do,
            )

    def span_s(self, num_frames: int) -> float:
        """Seconds of audio that `num_frames` successive frames, at least one, are computed from.

        This is from the begin of the first window to the end of the last one. If the window of
        frame 0 is centred at 0 s, it is from the middle of the first to the middle of the last.
        """
        # offset_s is the part of a window before the audio that its frame stands for. The part
        # after it is as long.
        return num_frames * self.frame_s + 2 * self.offset_s
