# SPDX-License-Identifier: Apache-2.0
"""The outputs of a frozen encoder as features, so that they are computed once."""

import torch
from torch import Tensor

from wenet_hs.frontends.base import Frontend, Length
from wenet_hs.model.encoders.pretrained import PretrainedEncoder
from wenet_hs.tree.errors import DataError


class EncoderOutputs(Frontend):
    """The outputs of a frozen encoder that its memory is computed from: one, or those of all layers
    concatenated.

    The values are rounded to float16, as the cache keeps them: the first epoch computes the same as
    the next ones.
    """

    def __init__(self, encoder: PretrainedEncoder) -> None:
        """`encoder`: its pretrained layers are in evaluation mode."""
        assert encoder.own_frontend is not None
        self._inner, self._encoder = encoder.own_frontend, encoder
        self.rate, self.frame_s = self._inner.rate, self._inner.frame_s * encoder.stride
        self.offset_s = (self._inner.span_s(encoder.min_frames) - self.frame_s) / 2
        self.width, self.is_half = encoder.num_states * encoder.state_size, True
        self.counts_frames, self.window_s = False, self._inner.window_s

    def length(self, num_samples: Length) -> Length:
        return self._encoder.states_length(self._inner.length(num_samples))

    def compute(self, wave_N: Tensor, generator: torch.Generator | None = None) -> Tensor:
        device = self._encoder.device
        inputs, frames = self._inner.compute(wave_N).to(device), int(self.length(len(wave_N)))
        with torch.autocast(device.type, enabled=False):
            outputs_TF = self._encoder.states(
                inputs[None], torch.tensor([len(inputs)], device=device)
            )[0, :frames]
        outputs_TF = outputs_TF.half().cpu()
        if not outputs_TF.isfinite().all():
            raise DataError(
                "encoder_conf.cache",
                "an output is too large for float16",
                "set encoder_conf.cache: null",
            )
        return outputs_TF.float()
