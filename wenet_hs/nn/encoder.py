# SPDX-License-Identifier: Apache-2.0
"""The encoder: normalize, subsample, and a stack of layers.   Dimension key: B batch, T time, F features, D width."""

from collections.abc import Sequence

from torch import Tensor, nn

from wenet_hs.nn.masks import length_mask
from wenet_hs.nn.recomputing import run_layer
from wenet_hs.nn.subsampling import Subsampling, pad_time


class GlobalCmvn(nn.Module):
    """(x - mean) · istd, with the statistics of the training data as buffers."""

    def __init__(self, mean: Tensor, istd: Tensor) -> None:
        super().__init__()
        if mean.shape != istd.shape or mean.dim() != 1:
            raise ValueError(f"mean {tuple(mean.shape)} and istd {tuple(istd.shape)} must both be (F,)")
        self.mean: Tensor
        self.istd: Tensor
        self.register_buffer("mean", mean.float())
        self.register_buffer("istd", istd.float())

    def forward(self, features: Tensor) -> Tensor:
        """features (B, T, F) → (B, T, F)."""
        return (features - self.mean) * self.istd


class Encoder(nn.Module):
    """Features → memory. What stands behind the end of an utterance never changes its frames."""

    def __init__(
        self,
        embed: Subsampling,
        layers: Sequence[nn.Module],
        *,
        output_size: int,
        global_cmvn: GlobalCmvn | None = None,
        normalize_before: bool = True,
        norm_eps: float = 1e-5,
        recompute: bool = False,
    ) -> None:
        """`recompute`: layers are computed again in the backward pass, and keep nothing for it."""
        super().__init__()
        self.recompute = recompute
        self.output_size = output_size
        self.normalize_before = normalize_before
        self.global_cmvn = global_cmvn
        self.embed = embed
        self.after_norm = nn.LayerNorm(output_size, eps=norm_eps)
        self.encoders = nn.ModuleList(layers)

    def subsampled_length(self, length: int) -> int:
        """How many encoder frames `length` feature frames give; 0 where they are too few for one."""
        return self.embed.subsampled_length(length)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """features (B, T, F) float32, lengths (B,) in feature frames → (memory (B, T', D), lengths (B,) in T').

        An utterance too short for one encoder frame has length 0; T' is at least 1, for a batch of such utterances.
        """
        normalized_BTF = features if self.global_cmvn is None else self.global_cmvn(features)
        x_BTD, positions_1TD = self.embed(pad_time(normalized_BTF, self.embed.min_frames))
        out_lengths_B = self.embed.subsampled_length(lengths)
        mask_BT = length_mask(out_lengths_B, x_BTD.size(1))
        for layer in self.encoders:
            x_BTD = run_layer(layer, x_BTD, mask_BT, positions_1TD, recompute=self.recompute)
        return (self.after_norm(x_BTD) if self.normalize_before else x_BTD), out_lengths_B
