# SPDX-License-Identifier: Apache-2.0
"""Recurrent language model: input vectors, GRU or LSTM layers, and any output head.

Dimension key: B parts of the text or hypotheses, T steps, E width of the input vectors, D width and L number of the
layers, S = L · D values of a state (LSTM: 2 · L · D), V units.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wenet_hs.heads.base import OutputHead

RnnKind = Literal["gru", "lstm"]


class RnnLm(nn.Module):
    """p(next unit | units before) = head(dropout(rnn(dropout(vector of the last unit), state)))."""

    def __init__(
        self,
        head: OutputHead,
        *,
        kind: RnnKind,
        embedding_size: int,
        num_layers: int,
        dropout_rate: float,
        sparse_grad: bool = False,
    ) -> None:
        """The layers have the width of the head; `sparse_grad`: of the input vectors."""
        super().__init__()
        self.embedding = nn.Embedding(head.num_units, embedding_size, sparse=sparse_grad)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        layers = nn.GRU if kind == "gru" else nn.LSTM
        between = dropout_rate if num_layers > 1 else 0.0
        self.rnn = layers(embedding_size, head.dim, num_layers, batch_first=True, dropout=between)
        self.dropout_rate = dropout_rate
        self.head = head

    def start(self, batch_size: int) -> Tensor:
        """(B, S) the state before any unit."""
        size = self.rnn.num_layers * self.rnn.hidden_size * (2 if isinstance(self.rnn, nn.LSTM) else 1)
        return self.embedding.weight.new_zeros(batch_size, size)

    def forward(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The head's input after each unit, and the state after the last one.

        Args:
            inputs: (B, T) unit ids.  state: (B, S).
        Returns:
            (B, T, D) and (B, S).
        """
        vectors_BTE = F.dropout(self.embedding(inputs), self.dropout_rate, self.training)
        parts = state.view(len(state), -1, self.rnn.num_layers, self.rnn.hidden_size).permute(1, 2, 0, 3).contiguous()
        if isinstance(self.rnn, nn.LSTM):
            hidden_BTD, after = self.rnn(vectors_BTE, (parts[0], parts[1]))
            after_XLBD = torch.stack(after)
        else:
            hidden_BTD, after = self.rnn(vectors_BTE, parts[0])
            after_XLBD = after[None]
        hidden_BTD = F.dropout(hidden_BTD, self.dropout_rate, self.training)
        return hidden_BTD, after_XLBD.permute(2, 0, 1, 3).flatten(1)

    def head_input(self, state: Tensor) -> Tensor:
        """The head's input after the last unit of a state, without dropout: (B, S) → (B, D)."""
        parts_BXLD = state.view(len(state), -1, self.rnn.num_layers, self.rnn.hidden_size)
        return parts_BXLD[:, 0, -1]
