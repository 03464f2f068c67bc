# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention, and WeNet's variant with positions in the keys.

Dimension key: B batch, L query, S key, D width, H heads, K width of a head.
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
"""On a GPU the fused kernels need such a width of a head.

Zeros are added to others, which changes no product.
"""
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention (Vaswani et al.

    2017). A query that sees no key gets zero, never NaN.
    """

    def __init__(self, num_heads: int, size: int, *, dropout_rate: float = 0.0) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.dropout_rate = (
            num_heads,
            size // num_heads,
            dropout_rate,
        )
        self.linear_q = Linear(size, size)
        self.linear_k = Linear(size, size)
        self.linear_v = Linear(size, size)
        self.linear_out = Linear(size, size)

    def forward(
        self, query: Tensor, memory: Tensor, mask: Tensor | None, positions: Tensor | None = None
    ) -> Tensor:
        """query (B, L, D), memory (B, S, D), mask (B or 1, L or 1, S) → (B, L, D).

        positions: (1, S, D) of the keys, for the kinds that use them.
        """
        # Keys and values first: in self-attention this order of products is the order in which
        # gradients are summed.
        keys_BHSK, values_BHSK = (
            self._split(self.linear_k(memory)),
            self._split(self.linear_v(memory)),
        )
        return self.linear_out(
            self._project_and_attend(query, keys_BHSK, values_BHSK, mask, positions)
        )

    def forward_cached(
        self, x: Tensor, cache: Tensor, mask: Tensor | None, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Self-attention of the newest frames, to themselves and to those of a cache.

        Args:
            x: (B, L, D).
            cache: (B, H, S, 2 K), keys and values of frames before, without positions.
            mask: (B or 1, L or 1, S + L); positions: (1, S + L, D).
        Returns: (B, L, D), and keys and values of all frames, (B, H, S + L, 2 K).
        """
        new_BHLE = torch.cat([self._split(self.linear_k(x)), self._split(self.linear_v(x))], dim=-1)
        joined_BHSE = torch.cat([cache, new_BHLE], dim=2)
        keys_BHSK, values_BHSK = joined_BHSE.chunk(2, dim=-1)
        return self.linear_out(
            self._project_and_attend(x, keys_BHSK, values_BHSK, mask, positions)
        ), joined_BHSE

    def _project_and_attend(
        self,
        query: Tensor,
        keys_BHSK: Tensor,
        values_BHSK: Tensor,
        mask: Tensor | None,
        positions: Tensor | None,
    ) -> Tensor:
        """The attention of queries that are not projected yet, without `linear_out`.

        `positions` are not used.
        """
        return self._attend(self._split(self.linear_q(query)), keys_BHSK, values_BHSK, mask)

    def forward_with_weights(
        self, query: Tensor, memory: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The output of `forward` and the attention weights (B, H, L, S) float32 before dropout;
        slower.
        """
        keys_BHSK, values_BHSK = (
            self._split(self.linear_k(memory)),
            self._split(self.linear_v(memory)),
        )
        scores_BHLS = (
            self._split(self.linear_q(query))
            @ keys_BHSK.transpose(-2, -1)
            / math.sqrt(self.head_size)
        )
        scores_BHLS = scores_BHLS.float().masked_fill(
            ~mask[:, None], torch.finfo(torch.float32).min
        )
        weights_BHLS = scores_BHLS.softmax(-1).masked_fill(~mask[:, None], 0.0)
        dropped_BHLS = F.dropout(weights_BHLS, self.dropout_rate, self.training).to(
            values_BHSK.dtype
        )
        return self.linear_out(
            (dropped_BHLS @ values_BHSK).transpose(1, 2).flatten(2)
        ), weights_BHLS

    def attend_projected(self, query: Tensor, keys_values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of vectors that are projected already, without `linear_out`.

        Args:
            query: (B, L, D), output of `linear_q`; keys_values: (B, S, 2 D), outputs of `linear_k`
                and `linear_v`.
            mask: (B or 1, L or 1, S) bool, float to be added to the scores, or None.
        Returns: (B, L, D).
        """
        keys_BSD, values_BSD = keys_values.chunk(2, dim=-1)
        return self._attend(
            self._split(query), self._split(keys_BSD), self._split(values_BSD), mask
        )

    def _split(self, x_BLD: Tensor) -> Tensor:
        return x_BLD.view(*x_BLD.shape[:2], self.num_heads, self.head_size).transpose(1, 2)

    def _attend(
        self, query_BHLK: Tensor, keys_BHSK: Tensor, values_BHSK: Tensor, mask: Tensor | None
    ) -> Tensor:
        """`mask`, (B or 1, [H or 1,] L or 1, S), is bool, or float to be added to the scores → (B,
        L, D).
        """
        if mask is not None:
            mask = mask[:, None] if mask.dim() == 3 else mask
            mask = mask.expand(-1, -1, query_BHLK.size(2), -1)
        dropout_rate = self.dropout_rate if self.training else 0.0
        missing = -self.head_size % HEAD_SIZE_MULTIPLE if is_gpu(query_BHLK.device) else 0
        three = query_BHLK, keys_BHSK, values_BHSK
        if missing:
            query_BHLK, keys_BHSK, values_BHSK = (F.pad(one, (0, missing)) for one in three)
        scale = 1 / math.sqrt(self.head_size)
        with attention_kernels(query_BHLK.device):
            out_BHLK = F.scaled_dot_product_attention(
                query_BHLK, keys_BHSK, values_BHSK, mask, dropout_rate, scale=scale
            )
        return out_BHLK[..., : self.head_size].transpose(1, 2).flatten(2)


def attention_kernels(device: torch.device) -> AbstractContextManager[None]:
    """On a GPU the kernels without cuDNN's.

    Those build a plan for each new shape, and each batch is one.
    """
    return sdpa_kernel(_KERNELS) if is_gpu(device) else nullcontext()


def join_linear(*layers: Linear) -> tuple[Tensor, Tensor]:
    """Weight (n · D, D) and bias (n · D,) of one linear layer that computes the outputs of n layers
    side by side.
    """
    return torch.cat([layer.weight for layer in layers]), torch.cat(
        [layer.bias for layer in layers]
    )


class RelPositionAttention(MultiHeadAttention):
    """WeNet's `rel_selfattn`: scores ((q+u)·k + (q+v)·p) / √K, where p embeds the *absolute*
    position of the key.

    WeNet has no `rel_shift`, so this is not Transformer-XL's attention. This makes it cheap: the
    score is (q+u)·(k+p) + (v-u)·p, one product of queries and keys and one number per key.
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
        assert positions is not None
        positions_1HSK = self._split(self.linear_pos(positions))
        query_BHLK = self._split(
            linear(query, self.linear_q.weight, self.linear_q.bias + self.pos_bias_u.flatten())
        )
        difference_H1K = (self.pos_bias_v - self.pos_bias_u)[:, None] / math.sqrt(self.head_size)
        bias_1H1S = difference_H1K @ positions_1HSK.transpose(-2, -1)
        if mask is not None:
            bias_1H1S = bias_1H1S.masked_fill(~mask[:, None], -math.inf)
        return self._attend(query_BHLK, keys_BHSK + positions_1HSK, values_BHSK, bias_1H1S)
