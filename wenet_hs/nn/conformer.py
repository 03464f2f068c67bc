# SPDX-License-Identifier: Apache-2.0
"""Encoder layers: Conformer (Gulati et al. 2020) and Transformer (Vaswani et al. 2017).

Parameters have WeNet's names. Padding never changes the frames of an utterance.

Dimension key: B batch, T time, F features, D width, W ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wenet_hs.heads.products import linear
from wenet_hs.nn.attention import MultiHeadAttention
from wenet_hs.nn.layers import ACTIVATIONS, FeedForward, Residual


class MaskedBatchNorm(nn.Module):
    """Batch normalization over the valid frames only.

    Without padding it equals nn.BatchNorm1d, and it has the same names of parameters and buffers.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.eps = 1e-5
        self.momentum = 0.1
        self.across_ranks: Callable[[Tensor], Tensor] | None = None
        """Gathers a tensor from each rank, (…) → (W, …).

        Training with several ranks sets it. The statistics are then those of the batches of all
        ranks.
        """
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.num_batches_tracked: Tensor
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (B, T, D), mask (B, T), False for padding → (B, T, D) in the dtype of the weights.

        Training uses the statistics of the batch and updates the running ones; evaluation uses the
        running ones.
        """
        x_BTD = x.to(self.weight.dtype)
        if self.training:
            mean_D, var_D = self._compute_statistics(x_BTD, mask)
        else:
            mean_D = self.running_mean
            var_D = self.running_var
        scale_D = self.weight * torch.rsqrt(var_D + self.eps)
        shift_D = self.bias - mean_D * scale_D
        return torch.addcmul(shift_D, x_BTD, scale_D)  # x * scale + shift

    def _compute_statistics(self, x_BTD: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (D,) of the valid frames of all W ranks, where `mask_BT` is True.

        Updates the running statistics; they keep their values if no rank has a valid frame.
        """
        # A weighted sum instead of x[mask]: no copy of the batch, and no synchronization of a GPU.
        # The number of frames is at least 1 where it divides: without frames the sums are 0.
        weight_BT1 = mask_BT[..., None].to(x_BTD.dtype)
        count = weight_BT1.sum()
        mean_D = (x_BTD * weight_BT1).sum((0, 1)) / count.clamp(min=1)
        squares_D = ((x_BTD - mean_D).square() * weight_BT1).sum((0, 1))
        if self.across_ranks is not None:
            # Chan et al. 1979: the sum of squares around the mean of all ranks is the sum of those
            # around the mean of each rank, plus the squared distances of these means.
            stacked = self.across_ranks(torch.cat([count[None], mean_D, squares_D]))
            counts_W1, means_WD, squares_WD = stacked.tensor_split((1, 1 + len(mean_D)), dim=1)
            count = counts_W1.sum()
            mean_D = (counts_W1 * means_WD).sum(0) / count.clamp(min=1)
            squares_D = (squares_WD + counts_W1 * (means_WD - mean_D).square()).sum(0)
        var_D = squares_D / count.clamp(min=1)
        with torch.no_grad():
            rate = self.momentum * (count > 0)  # 0 without valid frames: nothing changes
            unbiased_D = var_D * count / (count - 1).clamp(min=1)  # as nn.BatchNorm1d keeps it
            self.running_mean.lerp_(mean_D, rate)
            self.running_var.lerp_(unbiased_D, rate)
            self.num_batches_tracked += 1
        return mean_D, var_D


class ConvolutionModule(nn.Module):
    """The Conformer's convolution: pointwise, GLU, depthwise, norm, activation, pointwise."""

    def __init__(
        self,
        size: int,
        kernel_size: int,
        *,
        activation: str = "swish",
        norm: str = "batch_norm",
        is_causal: bool = False,
    ) -> None:
        """Layers with new weights.

        Args:
            size: D.
            kernel_size: frames; odd, unless `is_causal`.
            activation: a key of `ACTIVATIONS`.
            norm: batch_norm or layer_norm.
            is_causal: whether a frame sees only itself and frames before it.
        """
        super().__init__()
        self.num_before = kernel_size - 1 if is_causal else 0
        """Inputs before a frame that a causal module needs; 0 if it is not causal.

        Before the utterance there are zeros.
        """
        self.padding = 0 if is_causal else kernel_size // 2
        # Conv1d has the shapes of WeNet's parameters; a kernel of one frame is computed as a linear
        # layer.
        self.pointwise_conv1 = nn.Conv1d(size, 2 * size, 1)
        self.depthwise_conv = nn.Conv1d(size, size, kernel_size, groups=size)
        self.norm = MaskedBatchNorm(size) if norm == "batch_norm" else nn.LayerNorm(size)
        self.pointwise_conv2 = nn.Conv1d(size, size, 1)
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x: Tensor, mask: Tensor, before: Tensor | None = None) -> Tensor:
        """The output for each frame; padded frames contain unspecified values.

        The steps are pointwise convolution, GLU, mask, depthwise convolution, norm, activation and
        pointwise convolution.

        Args:
            x: (B, T, D).
            mask: (B, T) bool, True = speech, False = padding.
            before: (B, num_before, D), the inputs before x, if the module is causal. None: x begins
                the utterances.
        Returns: (B, T, D).
        """
        is_speech_BT = mask
        is_causal = self.num_before > 0
        if is_causal:
            # As in WeNet, the inputs before x are added ahead of the first layer. So the zeros
            # before an utterance are not zeros for the depthwise convolution: the first layer adds
            # its bias to them.
            if before is None:
                x = F.pad(x, (0, 0, self.num_before, 0))
            else:
                x = torch.cat([before, x], dim=1)
            is_speech_BT = F.pad(mask, (self.num_before, 0), value=True)
        x_BTD = F.glu(_pointwise(self.pointwise_conv1, x), dim=-1)
        # WeNet masks before the first layer instead. The bias of that layer then fills the padding,
        # and so changes the frames beside it in the depthwise convolution.
        x_BTD = x_BTD.masked_fill(~is_speech_BT[..., None], 0.0)
        x_BTD = self._depthwise(x_BTD)
        if isinstance(self.norm, MaskedBatchNorm):
            x_BTD = self.norm(x_BTD, mask)
        else:
            x_BTD = self.norm(x_BTD)
        return _pointwise(self.pointwise_conv2, self.activation(x_BTD))

    def _depthwise(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D); of a causal module (B, num_before + T, D) → (B, T, D).

        It is computed as a convolution over an image of height 1, which is several times faster
        than conv1d on a CPU. It is in float32 also under autocast: for bfloat16, oneDNN compiles a
        kernel for each new length, which takes seconds.
        """
        weight_D11K = self.depthwise_conv.weight[:, :, None]
        x_BD1T = x_BTD.to(weight_D11K.dtype).transpose(1, 2)[:, :, None]
        with torch.autocast(x_BTD.device.type, enabled=False):
            out_BD1T = F.conv2d(
                x_BD1T,
                weight_D11K,
                self.depthwise_conv.bias,
                padding=(0, self.padding),
                groups=x_BTD.size(-1),
            )
        return out_BD1T[:, :, 0].transpose(1, 2)


def _pointwise(convolution: nn.Conv1d, x_BTD: Tensor) -> Tensor:
    """A convolution with a kernel of one frame, computed as a linear layer."""
    return linear(x_BTD, convolution.weight[:, :, 0], convolution.bias)


@dataclass
class LayerMemory:
    """What a layer needs of the frames before a chunk, for streaming.

    A call of the layer with a chunk adds the frames of the chunk.
    """

    attention: Tensor
    """(B, H, S, 2 K): keys and values, without positions."""
    convolution: Tensor
    """(B, num_before, D): the last inputs of the convolution; zeros at the beginning.

    `num_before` is 0 in a layer without a convolution.
    """


def _attend(
    attention: MultiHeadAttention,
    x_BTD: Tensor,
    visible: Tensor,
    positions: Tensor,
    cache: LayerMemory | None,
) -> Tensor:
    """Self-attention (B, T, D) → (B, T, D), with a cache also to the frames before x.

    The cache gets keys and values of x.
    """
    if cache is None:
        return attention(x_BTD, x_BTD, visible, positions)
    out_BTD, all_keys_values = attention.forward_cached(x_BTD, cache.attention, visible, positions)
    cache.attention = all_keys_values
    return out_BTD


def _convolve(
    convolution: ConvolutionModule, x_BTD: Tensor, is_speech: Tensor, cache: LayerMemory | None
) -> Tensor:
    """The convolution (B, T, D) → (B, T, D), with the inputs before x from a cache.

    The cache gets the last inputs, as many as it had.
    """
    if cache is None:
        return convolution(x_BTD, is_speech)
    before_BTD = cache.convolution
    inputs_BTD = torch.cat([before_BTD, x_BTD], dim=1)
    cache.convolution = inputs_BTD[:, x_BTD.size(1) :]
    return convolution(x_BTD, is_speech, before_BTD)


class ConformerLayer(nn.Module):
    """Half a feed-forward (macaron), self-attention, convolution, half a feed-forward.

    Each is on a residual branch. Without `feed_forward_macaron` the last feed-forward counts whole.
    Without `conv_module` there is neither a convolution nor a normalization at the end.
    """

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
        """A layer of these parts, with a new norm for each; all have WeNet's names."""
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
        self.ff_scale = 1.0 if feed_forward_macaron is None else 0.5  # two halves
        self.residual = Residual(dropout_rate, normalize_before)

    def forward(
        self,
        x: Tensor,
        is_speech: Tensor,
        visible: Tensor,
        positions: Tensor,
        cache: LayerMemory | None = None,
    ) -> Tensor:
        """The frames after this layer.

        Half a feed-forward (if there is a second one), attention, convolution (if there is one) and
        the other feed-forward are each added to x, by `residual`.

        Args:
            x: (B, T, D).
            is_speech: (B, T) bool, False for padding: such frames reach neither the convolution nor
                its statistics.
            visible: (B or 1, T or 1, S + T) bool: the keys that each frame sees in the attention.
            positions: (1, S + T, D).
            cache: of the S frames before x; the frames of x are added to it. None: x begins the
                utterances, and S is 0.
        Returns: (B, T, D).
        """
        if self.feed_forward_macaron is not None:
            x = self.residual(x, self.norm_ff_macaron, self.feed_forward_macaron, self.ff_scale)
        x = self.residual(
            x, self.norm_mha, lambda y: _attend(self.self_attn, y, visible, positions, cache)
        )
        convolution = self.conv_module
        if convolution is not None:
            x = self.residual(
                x, self.norm_conv, lambda y: _convolve(convolution, y, is_speech, cache)
            )
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
        """A layer of these parts, with a new norm for each; all have WeNet's names."""
        super().__init__()
        size = self_attn.linear_q.in_features
        self.self_attn = self_attn
        self.feed_forward = feed_forward
        self.norm1 = nn.LayerNorm(size, eps=norm_eps)
        self.norm2 = nn.LayerNorm(size, eps=norm_eps)
        self.residual = Residual(dropout_rate, normalize_before)

    def forward(
        self,
        x: Tensor,
        is_speech: Tensor,
        visible: Tensor,
        positions: Tensor,
        cache: LayerMemory | None = None,
    ) -> Tensor:
        """The frames after this layer. The arguments are those of `ConformerLayer.forward`.

        `is_speech` is not used: padding only matters for the convolution, which this layer lacks.
        """
        x = self.residual(
            x, self.norm1, lambda y: _attend(self.self_attn, y, visible, positions, cache)
        )
        return self.residual(x, self.norm2, self.feed_forward)


class GlobalCmvn(nn.Module):
    """Normalization of features by the statistics of the training data: (x - mean) · istd."""

    def __init__(self, mean: Tensor, istd: Tensor) -> None:
        """`mean` (F,), and `istd` (F,), the inverse of the standard deviation, become buffers."""
        super().__init__()
        self.mean: Tensor
        self.istd: Tensor
        self.register_buffer("mean", mean.float())
        self.register_buffer("istd", istd.float())

    def forward(self, features: Tensor) -> Tensor:
        """features (B, T, F) → (B, T, F)."""
        return (features - self.mean) * self.istd
