# SPDX-License-Identifier: Apache-2.0
"""A frontend whose features are the outputs of a frozen encoder, so that they are computed once."""

import torch
from torch import Tensor

from wenet_hs.frontends.base import Frontend, Length
from wenet_hs.model.encoders.pretrained import PretrainedEncoder
from wenet_hs.tree.errors import DataError


class EncoderOutputs(Frontend):
    """Computes the outputs of a frozen encoder from which its memory is computed.

    These are the output of one layer, or those of all layers concatenated. The values are rounded
    to float16, as in the cache: so the first epoch, which fills the cache, computes the same as the
    next ones, which read it.
    """

    def __init__(self, encoder: PretrainedEncoder) -> None:
        """`encoder`: its pretrained layers are in evaluation mode, and it has its own frontend."""
        assert encoder.own_frontend is not None
        self._encoder = encoder
        self._inner = encoder.own_frontend
        self.rate = self._inner.rate
        self.frame_s = self._inner.frame_s * encoder.stride
        window_s = self._inner.span_s(encoder.min_frames)  # the audio of one output
        self.offset_s = (window_s - self.frame_s) / 2  # an output is for the middle of its window
        self.width = encoder.num_states * encoder.state_size
        self.is_half = True  # `compute` rounds to float16
        self.counts_frames = False  # batches are as large as without the cache
        self.window_s = self._inner.window_s

    def length(self, num_samples: Length) -> Length:
        """The number of outputs of the encoder for a number of samples, or of each, (U,)."""
        return self._encoder.states_length(self._inner.length(num_samples))

    def compute(self, wave_N: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The outputs (T, F) for a waveform (N,), float32 on the CPU. `generator` has no effect.

        Raises DataError if an output is too large for float16.
        """
        device = self._encoder.device
        inputs_TF = self._inner.compute(wave_N).to(device)
        length_B = torch.tensor([len(inputs_TF)], device=device)
        num_outputs = int(self.length(len(wave_N)))
        with torch.autocast(device.type, enabled=False):
            outputs_BTF = self._encoder.states(inputs_TF[None], length_B)
        outputs_TF = outputs_BTF[0, :num_outputs].half().cpu()
        if not outputs_TF.isfinite().all():
            raise DataError(
                "encoder_conf.cache",
                "an output is too large for float16",
                "set encoder_conf.cache: null",
            )
        return outputs_TF.float()
