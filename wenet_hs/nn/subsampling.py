# SPDX-License-Identifier: Apache-2.0
"""Subsampling layers: from feature frames to fewer and wider encoder frames with positions.

Convolutions are not padded, so a valid output frame is computed only from valid input frames.
Dimension key: B batch, T frames, F features, C channels, D width,
E = C times the features that are left.
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

    Output frame t is computed from the `min_frames` input frames from frame t * `stride` on.
    """

    min_frames: int = 1
    """Input frames that an output frame is computed from."""
    stride: int = 1
    """Input frames from one output frame to the next."""
    geometry: tuple[tuple[int, int], ...] = ()
    """(kernel, stride) in time of each convolution."""

    def output_length(self, length: FrameLength) -> FrameLength:
        """The number of output frames of `length` input frames, 0 or more.

        `length` is a number, or a tensor (B,) of numbers; so is what is returned.
        """
        for kernel, stride in self.geometry:
            length = (length - kernel) // stride + 1
        return length.clamp(min=0) if isinstance(length, Tensor) else max(length, 0)

    def forward(
        self, features: Tensor, offset: int | Tensor = 0, cached: int = 0
    ) -> tuple[Tensor, Tensor]:
        """The encoder frames, and their positions.

        Args:
            features: (B, T, F).
            offset, cached: as in `PositionalEncoding.forward`, in encoder frames.
        Returns: (B, T', D) and (1, cached + T', D).
        """
        raise NotImplementedError


class Conv2dSubsampling(Subsampling):
    """Two or three convolutions with ReLU, then a linear layer.

    A quarter, a sixth or an eighth of the frames is left.
    """

    def __init__(
        self,
        kind: str,
        feature_dim: int,
        size: int,
        positional: PositionalEncoding,
        channels: int | None = None,
    ) -> None:
        """The convolutions of `kind`, with new weights.

        Raises ValueError if there are too few features for them.

        Args:
            kind: a key of `CONVOLUTIONS`.
            feature_dim: F.
            size: D.
            channels: of each convolution; None: D.
        """
        super().__init__()
        self.kind = kind
        self.geometry = CONVOLUTIONS[kind]
        num_bins = self.output_length(feature_dim)  # the same kernels as in time
        if num_bins < 1:
            raise ValueError(
                f"{kind} cannot subsample {feature_dim} features: none would be left; use more"
            )
        channels = channels or size
        in_channels = 1
        layers: list[nn.Module] = []
        for kernel, stride in self.geometry:
            layers.append(nn.Conv2d(in_channels, channels, kernel, stride))
            layers.append(nn.ReLU(inplace=True))
            in_channels = channels
        self.conv = nn.Sequential(*layers)
        # Channels last: the same numbers in half the time on a CPU.
        self.conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stub
        linear = Linear(channels * num_bins, size)
        if kind == "conv2d":  # WeNet's names
            self.out = nn.Sequential(linear)
        else:
            self.linear = linear
        self.pos_enc = positional
        # From the last convolution to the first: n outputs need (n - 1) * stride + kernel inputs.
        for kernel, stride in reversed(self.geometry):
            self.min_frames = (self.min_frames - 1) * stride + kernel
        self.stride = math.prod(stride for _, stride in self.geometry)

    def forward(
        self, features: Tensor, offset: int | Tensor = 0, cached: int = 0
    ) -> tuple[Tensor, Tensor]:
        """The encoder frames (B, T', D) of features (B, T, F), and their positions.

        `offset` and `cached` are those of `PositionalEncoding.forward`, in encoder frames.
        """
        x_BCTF = self._convolve(features[:, None])
        x_BTE = x_BCTF.transpose(1, 2).flatten(2)
        project = self.out if self.kind == "conv2d" else self.linear
        return self.pos_enc(project(x_BTE), offset, cached)

    def _convolve(self, x_B1TF: Tensor) -> Tensor:
        """(B, 1, T, F) → (B, C, T', F'); without gradients on a CPU one utterance at a time.

        With a whole batch the first layer would allocate 80 MB at every call, and the page faults
        would take as long as the arithmetic. The bits are the same.
        """
        is_inference_on_cpu = x_B1TF.device.type == "cpu" and not torch.is_grad_enabled()
        # While torch compiles, the loop would fix the number of utterances.
        if not is_inference_on_cpu or torch.compiler.is_compiling() or len(x_B1TF) < 2:
            return self.conv(x_B1TF)
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
        """As in `Subsampling`; T' is T."""
        return self.pos_enc(self.out(features), offset, cached)
