# SPDX-License-Identifier: Apache-2.0
"""Encoder layers: Conformer (Gulati et al. 2020) and Transformer (Vaswani et al. 2017), with WeNet's parameter names.

Dimension key: B batch, T time, D width.
"""

from collections.abc import Callable

from torch import Tensor, nn

from wenet_hs.nn.attention import MultiHeadAttention
from wenet_hs.nn.convolution import ConvolutionModule
from wenet_hs.nn.dropout import Dropout
from wenet_hs.nn.feed_forward import FeedForward


class Residual(nn.Module):
    """x + scale · dropout(branch(norm(x))), or the norm behind the sum. It holds no parameter of its own."""

    def __init__(self, dropout_rate: float, normalize_before: bool) -> None:
        super().__init__()
        self.dropout = Dropout(dropout_rate)
        self.normalize_before = normalize_before

    def forward(self, x: Tensor, norm: nn.Module, branch: Callable[[Tensor], Tensor], scale: float = 1.0) -> Tensor:
        """x (B, T, D) → (B, T, D)."""
        change_BTD = self.dropout(branch(norm(x) if self.normalize_before else x))
        out: Tensor = x.add(change_BTD, alpha=scale)
        return out if self.normalize_before else norm(out)

    def onto(self, x: Tensor, norm: nn.Module, branch: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The same without dropout, of a branch that adds itself: branch(y, x) = x + what it makes of y."""
        out = branch(norm(x) if self.normalize_before else x, x)
        return out if self.normalize_before else norm(out)


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
        out: Tensor = self.residual(x, self.norm2, self.feed_forward)
        return out
