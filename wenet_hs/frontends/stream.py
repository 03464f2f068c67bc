# SPDX-License-Identifier: Apache-2.0
"""Features of a waveform that arrives in pieces."""

import torch
from torch import Tensor

from wenet_hs.frontends.fbank import Fbank


class FbankStream:
    """Computes the frames of a waveform as soon as their windows are complete.

    They are those of the whole waveform, within 1e-5. If its profile says so, `Fbank.compute`
    mirrors audio at both ends. Here the beginning is mirrored when the waveform is a window long,
    and the end by `finish`.
    """

    def __init__(self, frontend: Fbank) -> None:
        self._frontend = frontend
        self._pending_N = torch.empty(0)
        """Samples that a window of the next frame, or of one after it, needs."""
        self._num_samples = 0
        """Of the waveform so far, without mirrored samples."""

    def advance(self, samples: Tensor) -> Tensor:
        """Adds samples to the waveform, and returns the frames whose windows are complete now.

        samples: (N,) float32 in [-1, 1].
        Returns: (T, F); T may be 0.
        """
        had_frames = self._has_frames()
        self._pending_N = torch.cat([self._pending_N, samples])
        self._num_samples += len(samples)
        if self._has_frames() and not had_frames:  # the first window is there
            mirrored_N = self._frontend.mirror_start(self._pending_N)
            self._pending_N = torch.cat([mirrored_N, self._pending_N])
        return self._compute_complete_windows()

    def finish(self) -> Tensor:
        """The frames at the end of the waveform, (T, F), after it is mirrored there."""
        if self._has_frames():
            mirrored_N = self._frontend.mirror_end(self._pending_N, self._num_samples)
            self._pending_N = torch.cat([self._pending_N, mirrored_N])
        return self._compute_complete_windows()

    def _has_frames(self) -> bool:
        """Whether the waveform so far has a frame: whether it is a window long."""
        return self._frontend.length(self._num_samples) > 0

    def _compute_complete_windows(self) -> Tensor:
        """The frames (T, F) of the pending samples; T may be 0.

        Samples that no later frame needs are removed from the pending ones.
        """
        if len(self._pending_N) < self._frontend.window or not self._has_frames():
            return self._pending_N.new_empty(0, self._frontend.width)
        features_TF = self._frontend.compute_windows(self._pending_N)
        num_finished = len(features_TF) * self._frontend.shift
        self._pending_N = self._pending_N[num_finished:].clone()
        return features_TF
