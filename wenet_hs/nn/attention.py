# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention, and WeNet's variant with positions in the keys.

Dimension key: B batch, L query, S key, D width, H heads, K width of a head, E = 2 K (a key and its
value side by side).
"""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from wenet_hs.heads.gpu import is_gpu
from wenet_hs.heads.products import Linear, linear

HEAD_SIZE_MULTIPLE = 8
"""On a GPU the fused kernels need heads whose width is a multiple of this.

Heads of another width are filled with zeros, which changes no product.
"""
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""All kernels of torch except cuDNN's."""


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention (Vaswani et al. 2017).

    A query that sees no key gets zero, never NaN.
    """

    def __init__(self, num_heads: int, size: int, *, dropout_rate: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_size = size // num_heads
        self.dropout_rate = dropout_rate
        self.linear_q = Linear(size, size)
        self.linear_k = Linear(size, size)
        self.linear_v = Linear(size, size)
        self.linear_out = Linear(size, size)

    def forward(
        self, query: Tensor, memory: Tensor, mask: Tensor | None, positions: Tensor | None = None
    ) -> Tensor:
        """Attention of the queries to the memory.

        Args:
            query: (B, L, D).
            memory: (B, S, D), of which keys and values are computed.
            mask: (B or 1, L or 1, S) bool, the keys that a query sees; None: all.
            positions: (1, S, D) of the keys, for the kinds of attention that use them.
        Returns: (B, L, D).
        """
        # Keys and values come before queries: in self-attention this order of products is the
        # order in which gradients are summed.
        keys_BHSK = self._split_heads(self.linear_k(memory))
        values_BHSK = self._split_heads(self.linear_v(memory))
        context_BLD = self._project_and_attend(query, keys_BHSK, values_BHSK, mask, positions)
        return self.linear_out(context_BLD)

    def forward_cached(
        self, x: Tensor, cache: Tensor, mask: Tensor | None, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Self-attention of the newest frames, to themselves and to those of a cache.

        Args:
            x: (B, L, D).
            cache: (B, H, S, 2 K), keys and values of frames before, side by side and without
                positions. There are H heads of the width K.
            mask: (B or 1, L or 1, S + L) bool, the frames that a frame sees; None: all.
            positions: (1, S + L, D).
        Returns: (B, L, D), and keys and values of all frames, (B, H, S + L, 2 K).
        """
        new_keys_BHLK = self._split_heads(self.linear_k(x))
        new_values_BHLK = self._split_heads(self.linear_v(x))
        new_BHLE = torch.cat([new_keys_BHLK, new_values_BHLK], dim=-1)
        joined_BHSE = torch.cat([cache, new_BHLE], dim=2)
        keys_BHSK, values_BHSK = joined_BHSE.chunk(2, dim=-1)
        context_BLD = self._project_and_attend(x, keys_BHSK, values_BHSK, mask, positions)
        return self.linear_out(context_BLD), joined_BHSE

    def _project_and_attend(
        self,
        query: Tensor,
        keys_BHSK: Tensor,
        values_BHSK: Tensor,
        mask: Tensor | None,
        positions: Tensor | None,
    ) -> Tensor:
        """The attention of queries (B, L, D) that are not projected yet, without `linear_out`.

        `positions` are not used; a subclass may use them. Returns (B, L, D).
        """
        query_BHLK = self._split_heads(self.linear_q(query))
        return self._attend(query_BHLK, keys_BHSK, values_BHSK, mask)

    def forward_with_weights(
        self, query: Tensor, memory: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The output of `forward` and the attention weights, which fused kernels do not return.

        It is slower than `forward`. The arguments are the same; positions are not used.

        Returns: (B, L, D), and (B, H, L, S) float32, the weights of each of H heads before dropout.
            They are 0 where `mask` is False.
        """
        keys_BHSK = self._split_heads(self.linear_k(memory))
        values_BHSK = self._split_heads(self.linear_v(memory))
        query_BHLK = self._split_heads(self.linear_q(query))
        scores_BHLS = query_BHLK @ keys_BHSK.transpose(-2, -1) / math.sqrt(self.head_size)
        is_hidden_B1LS = ~mask[:, None]
        # The smallest float instead of -inf: the softmax of a row of -inf would be NaN.
        smallest = torch.finfo(torch.float32).min
        scores_BHLS = scores_BHLS.float().masked_fill(is_hidden_B1LS, smallest)
        weights_BHLS = scores_BHLS.softmax(-1).masked_fill(is_hidden_B1LS, 0.0)
        dropped_BHLS = F.dropout(weights_BHLS, self.dropout_rate, self.training)
        context_BHLK = dropped_BHLS.to(values_BHSK.dtype) @ values_BHSK
        return self.linear_out(_join_heads(context_BHLK)), weights_BHLS

    def attend_projected(self, query: Tensor, keys_values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of vectors that are projected already, without `linear_out`.

        Args:
            query: (B, L, D), output of `linear_q`.
            keys_values: (B, S, 2 D), outputs of `linear_k` and `linear_v` side by side.
            mask: (B or 1, L or 1, S): bool, float to be added to the scores, or None.
        Returns: (B, L, D).
        """
        keys_BSD, values_BSD = keys_values.chunk(2, dim=-1)
        query_BHLK = self._split_heads(query)
        keys_BHSK = self._split_heads(keys_BSD)
        values_BHSK = self._split_heads(values_BSD)
        return self._attend(query_BHLK, keys_BHSK, values_BHSK, mask)

    def _split_heads(self, x_BLD: Tensor) -> Tensor:
        """(B, L, D) → (B, H, L, K)."""
        x_BLHK = x_BLD.view(*x_BLD.shape[:2], self.num_heads, self.head_size)
        return x_BLHK.transpose(1, 2)

    def _attend(
        self, query_BHLK: Tensor, keys_BHSK: Tensor, values_BHSK: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The fused attention, with dropout in training → (B, L, D).

        mask: (B or 1, L or 1, S) or (B or 1, H or 1, L or 1, S): bool, True = seen, or float to be
            added to the scores; None: each query sees each key.
        """
        if mask is not None:
            mask_BHLS = mask[:, None] if mask.dim() == 3 else mask
            mask = mask_BHLS.expand(-1, -1, query_BHLK.size(2), -1)
        # The kernels of a GPU are fast for some head sizes only: zeros fill up the last dimension.
        num_zeros = 0
        if is_gpu(query_BHLK.device):
            num_zeros = -self.head_size % HEAD_SIZE_MULTIPLE  # up to the next multiple
        if num_zeros > 0:
            query_BHLK = F.pad(query_BHLK, (0, num_zeros))
            keys_BHSK = F.pad(keys_BHSK, (0, num_zeros))
            values_BHSK = F.pad(values_BHSK, (0, num_zeros))
        dropout_rate = self.dropout_rate if self.training else 0.0
        scale = 1 / math.sqrt(self.head_size)
        with attention_kernels(query_BHLK.device):
            context_BHLK = F.scaled_dot_product_attention(
                query_BHLK, keys_BHSK, values_BHSK, mask, dropout_rate, scale=scale
            )
        return _join_heads(context_BHLK[..., : self.head_size])


def _join_heads(x_BHLK: Tensor) -> Tensor:
    """(B, H, L, K) → (B, L, D)."""
    return x_BHLK.transpose(1, 2).flatten(2)


def attention_kernels(device: torch.device) -> AbstractContextManager[None]:
    """A context in which attention on a GPU does not use cuDNN's kernels.

    These build a plan for each new shape, and each batch has a new shape. On a CPU the context
    changes nothing.
    """
    return sdpa_kernel(_KERNELS) if is_gpu(device) else nullcontext()


def join_linear(*layers: Linear) -> tuple[Tensor, Tensor]:
    """Weight (n · D, D) and bias (n · D,) of the linear layer that computes n layers at once.

    Its output has the outputs of the layers side by side.
    """
    weight = torch.cat([layer.weight for layer in layers])
    bias = torch.cat([layer.bias for layer in layers])
    return weight, bias


class RelPositionAttention(MultiHeadAttention):
    """WeNet's `rel_selfattn`: attention with positions in the keys.

    The score of query q and key k is ((q+u)·k + (q+v)·p) / √K. Here p embeds the *absolute*
    position of the key, because WeNet has no `rel_shift`; so this is not Transformer-XL's
    attention. It makes the score cheap: (q+u)·(k+p) + (v-u)·p is one product of queries and keys
    and one number per key.
    """

    def __init__(self, num_heads: int, size: int, *, dropout_rate: float = 0.0) -> None:
        super().__init__(num_heads, size, dropout_rate=dropout_rate)
        self.linear_pos = Linear(size, size, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(num_heads, self.head_size))
        self.pos_bias_v = nn.Parameter(torch.empty(num_heads, self.head_size))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)

    def _project_and_attend(
        self,
        query: Tensor,
        keys_BHSK: Tensor,
        values_BHSK: Tensor,
        mask: Tensor | None,
        positions: Tensor | None,
    ) -> Tensor:
        """The attention of queries (B, L, D) that are not projected yet, without `linear_out`.

        The score of query q and key k is ((q+u)·(k+p) + (v-u)·p) / √K, where p embeds the position
        of the key, and u and v are learned. Here query_BHLK is q+u, positions_1HSK is p, and
        bias_BHLS is (v-u)·p / √K, or -inf for a key that the query does not see.

        positions: (1, S, D) of the keys; they must be given.
        Returns: (B, L, D).
        """
        assert positions is not None
        positions_1HSK = self._split_heads(self.linear_pos(positions))
        bias_D = self.linear_q.bias + self.pos_bias_u.flatten()
        query_BHLK = self._split_heads(linear(query, self.linear_q.weight, bias_D))
        difference_H1K = (self.pos_bias_v - self.pos_bias_u)[:, None] / math.sqrt(self.head_size)
        bias_BHLS = difference_H1K @ positions_1HSK.transpose(-2, -1)  # (1, H, 1, S)
        if mask is not None:
            bias_BHLS = bias_BHLS.masked_fill(~mask[:, None], -math.inf)
        return self._attend(query_BHLK, keys_BHSK + positions_1HSK, values_BHSK, bias_BHLS)
