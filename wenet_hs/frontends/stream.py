# SPDX-License-Identifier: Apache-2.0
"""Features of a waveform that arrives in pieces."""

import torch
from torch import Tensor

from wenet_hs.frontends.fbank import Fbank


class FbankStream:
    """The frames of the whole waveform, to 1e-5, as soon as their windows are complete."""

    def __init__(self, frontend: Fbank) -> None:
        self._frontend, self._pending_N, self._num_samples = frontend, torch.empty(0), 0

    def advance(self, samples: Tensor) -> Tensor:
        """samples (N,) float32 in [-1, 1] → the frames that are complete now, (T, F)."""
        is_begun = self._frontend.length(self._num_samples) > 0
        self._pending_N = torch.cat([self._pending_N, samples])
        self._num_samples += len(samples)
        if not is_begun and self._frontend.length(self._num_samples) > 0:
            self._pending_N = torch.cat([self._frontend.before(self._pending_N), self._pending_N])
        return self._take()

    def finish(self) -> Tensor:
        """The frames at the end of the waveform, (T, F)."""
        if self._frontend.length(self._num_samples) > 0:
            after_N = self._frontend.after(self._pending_N, self._num_samples)
            self._pending_N = torch.cat([self._pending_N, after_N])
        return self._take()

    def _take(self) -> Tensor:
        if len(self._pending_N) < self._frontend.window or not self._frontend.length(
            self._num_samples
        ):
            return self._pending_N.new_empty(0, self._frontend.width)
        features_TF = self._frontend.compute_windows(self._pending_N)
        self._pending_N = self._pending_N[len(features_TF) * self._frontend.shift :].clone()
        return features_TF
