# SPDX-License-Identifier: Apache-2.0
"""Subsampling layers: feature frames to fewer, wider encoder frames with positions.

Convolutions are not padded, so a valid output frame is computed only from valid input frames.
Dimension key: B batch, T frames, F features, C channels, D width.
"""

import math
from typing import TypeVar

import torch
from torch import Tensor, nn

from wenet_hs.heads.products import Linear
from wenet_hs.nn.layers import PositionalEncoding

CONVOLUTIONS: dict[str, tuple[tuple[int, int], ...]] = {
    "conv2d": ((3, 2), (3, 2)),
    "conv2d6": ((3, 2), (5, 3)),
    "conv2d8": ((3, 2), (3, 2), (3, 2)),
}
"""WeNet's `input_layer` → (kernel, stride) of each convolution, in time and in frequency."""


FrameLength = TypeVar("FrameLength", int, Tensor)


class Subsampling(nn.Module):
    """The input layer of an encoder.

    Output frame t is computed from the `min_frames` input frames from t * `stride` on.
    """

    min_frames: int = 1
    stride: int = 1
    geometry: tuple[tuple[int, int], ...] = ()
    """(kernel, stride) in time of each convolution."""

    def output_length(self, length: FrameLength) -> FrameLength:
        """How many output frames `length` input frames give, never below 0; (B,) → (B,)."""
        for kernel, stride in self.geometry:
            length = (length - kernel) // stride + 1
        return length.clamp(min=0) if isinstance(length, Tensor) else max(length, 0)

    def forward(
        self, features: Tensor, offset: int | Tensor = 0, cached: int = 0
    ) -> tuple[Tensor, Tensor]:
        """features (B, T, F) → (x (B, T', D), positions), the arguments and positions of
        `PositionalEncoding`.
        """
        raise NotImplementedError


class Conv2dSubsampling(Subsampling):
    """Two or three convolutions with ReLU, then a linear layer: a quarter, a sixth or an eighth of
    the frames.
    """

    def __init__(
        self,
        kind: str,
        feature_dim: int,
        size: int,
        positional: PositionalEncoding,
        channels: int | None = None,
    ) -> None:
        super().__init__()
        self.kind = kind
        channels = channels or size
        self.geometry = CONVOLUTIONS[kind]
        layers: list[nn.Module] = []
        for index, (kernel, stride) in enumerate(self.geometry):
            layers += [
                nn.Conv2d(channels if index else 1, channels, kernel, stride),
                nn.ReLU(inplace=True),
            ]
        # Channels last: the same numbers in half the time on a CPU.
        self.conv = nn.Sequential(*layers)
        self.conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stub
        bins = self.output_length(feature_dim)
        if bins < 1:
            raise ValueError(
                f"{kind} cannot subsample {feature_dim} features: none would be left; use more"
            )
        linear = Linear(channels * bins, size)
        if kind == "conv2d":  # WeNet's names
            self.out = nn.Sequential(linear)
        else:
            self.linear = linear
        self.pos_enc = positional
        for kernel, stride in reversed(self.geometry):
            self.min_frames = (self.min_frames - 1) * stride + kernel
        self.stride = math.prod(stride for _, stride in self.geometry)

    def forward(
        self, features: Tensor, offset: int | Tensor = 0, cached: int = 0
    ) -> tuple[Tensor, Tensor]:
        x_BCTF = self._convolve(features[:, None])
        project = self.out if self.kind == "conv2d" else self.linear
        x_BTD = project(x_BCTF.transpose(1, 2).flatten(2))
        return self.pos_enc(x_BTD, offset, cached)

    def _convolve(self, x_B1TF: Tensor) -> Tensor:
        # Without gradients on a CPU: one utterance at a time, with the same bits. With a whole
        # batch the first layer would allocate 80 MB at every call, and the page faults take as long
        # as the arithmetic.
        if (
            torch.compiler.is_compiling()
            or x_B1TF.device.type != "cpu"
            or torch.is_grad_enabled()
            or len(x_B1TF) < 2
        ):
            return self.conv(x_B1TF)  # torch.export would fix the number of utterances
        return torch.cat([self.conv(x_1TF[None]) for x_1TF in x_B1TF])


class LinearSubsampling(Subsampling):
    """No subsampling: a linear layer and a normalization of each frame."""

    def __init__(
        self, feature_dim: int, size: int, *, dropout_rate: float, positional: PositionalEncoding
    ) -> None:
        super().__init__()
        self.out = nn.Sequential(
            Linear(feature_dim, size), nn.LayerNorm(size, eps=1e-5), nn.Dropout(dropout_rate)
        )
        self.pos_enc = positional

    def forward(
        self, features: Tensor, offset: int | Tensor = 0, cached: int = 0
    ) -> tuple[Tensor, Tensor]:
        return self.pos_enc(self.out(features), offset, cached)
