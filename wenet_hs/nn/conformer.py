# SPDX-License-Identifier: Apache-2.0
"""The encoder, and its layers: Conformer (Gulati et al. 2020) and Transformer (Vaswani et al. 2017).

Parameters have WeNet's names. Dimension key: B batch, T time, F features, D width.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from wenet_hs.nn.attention import MultiHeadAttention
from wenet_hs.nn.convolution import ConvolutionModule
from wenet_hs.nn.layers import FeedForward, Residual, length_mask, run_layer
from wenet_hs.nn.subsampling import Subsampling, pad_time


class ConformerLayer(nn.Module):
    """Half a feed-forward (macaron), self-attention, convolution, half a feed-forward, each on a residual branch."""

    def __init__(
        self,
        self_attn: MultiHeadAttention,
        feed_forward: FeedForward,
        *,
        feed_forward_macaron: FeedForward | None = None,
        conv_module: ConvolutionModule | None = None,
        dropout_rate: float = 0.1,
        normalize_before: bool = True,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        size = self_attn.linear_q.in_features
        self.self_attn = self_attn
        self.feed_forward = feed_forward
        self.feed_forward_macaron = feed_forward_macaron
        self.conv_module = conv_module
        self.norm_ff = nn.LayerNorm(size, eps=norm_eps)
        self.norm_mha = nn.LayerNorm(size, eps=norm_eps)
        if feed_forward_macaron is not None:
            self.norm_ff_macaron = nn.LayerNorm(size, eps=norm_eps)
        if conv_module is not None:
            self.norm_conv = nn.LayerNorm(size, eps=norm_eps)
            self.norm_final = nn.LayerNorm(size, eps=norm_eps)
        self.ff_scale = 1.0 if feed_forward_macaron is None else 0.5
        self.residual = Residual(dropout_rate, normalize_before)

    def forward(self, x: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, D), mask (B, T) True = keep, positions (1, T, D) → (B, T, D)."""
        if self.feed_forward_macaron is not None:
            x = self.residual(x, self.norm_ff_macaron, self.feed_forward_macaron, self.ff_scale)
        mask_B1T = mask[:, None]
        x = self.residual(x, self.norm_mha, lambda y: self.self_attn(y, y, mask_B1T, positions))
        convolution = self.conv_module
        if convolution is not None:
            x = self.residual(x, self.norm_conv, lambda y: convolution(y, mask))
        x = self.residual(x, self.norm_ff, self.feed_forward, self.ff_scale)
        return x if convolution is None else self.norm_final(x)


class TransformerEncoderLayer(nn.Module):
    """Self-attention and feed-forward, each on a residual branch."""

    def __init__(
        self,
        self_attn: MultiHeadAttention,
        feed_forward: FeedForward,
        *,
        dropout_rate: float = 0.1,
        normalize_before: bool = True,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        size = self_attn.linear_q.in_features
        self.self_attn = self_attn
        self.feed_forward = feed_forward
        self.norm1 = nn.LayerNorm(size, eps=norm_eps)
        self.norm2 = nn.LayerNorm(size, eps=norm_eps)
        self.residual = Residual(dropout_rate, normalize_before)

    def forward(self, x: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, D), mask (B, T) True = keep, positions (1, T, D) → (B, T, D)."""
        mask_B1T = mask[:, None]
        x = self.residual(x, self.norm1, lambda y: self.self_attn(y, y, mask_B1T, positions))
        return self.residual(x, self.norm2, self.feed_forward)


class GlobalCmvn(nn.Module):
    """(x - mean) · istd, with the statistics of the training data as buffers."""

    def __init__(self, mean: Tensor, istd: Tensor) -> None:
        """mean (F,), istd (F,)."""
        super().__init__()
        self.mean: Tensor
        self.istd: Tensor
        self.register_buffer("mean", mean.float())
        self.register_buffer("istd", istd.float())

    def forward(self, features: Tensor) -> Tensor:
        """features (B, T, F) → (B, T, F)."""
        return (features - self.mean) * self.istd


class Encoder(nn.Module):
    """Features → memory. Padding after the end of an utterance never changes its frames."""

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
        """`recompute`: see `run_layer`."""
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
