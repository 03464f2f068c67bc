# SPDX-License-Identifier: Apache-2.0
"""Recurrent language model: input vectors, GRU or LSTM layers, and any output head; its use in
recognition.

Dimension key: B parts of the text, M hypotheses, T steps, E width of the input vectors, D width and
L number of the layers, S = L · D values of a state (LSTM: 2 · L · D), V units of the recogniser.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.heads.base import OutputHead
from wenet_hs.lm.language_model import LanguageModel, text_units
from wenet_hs.text.units import UnitTable
from wenet_hs.tree.errors import DataError

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
        size = (
            self.rnn.num_layers * self.rnn.hidden_size * (2 if isinstance(self.rnn, nn.LSTM) else 1)
        )
        return self.embedding.weight.new_zeros(batch_size, size)

    def forward(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The head's input after each unit, and the state after the last one.

        Args:
            inputs: (B, T) unit ids.  state: (B, S).
        Returns:
            (B, T, D) and (B, S).
        """
        vectors_BTE = F.dropout(self.embedding(inputs), self.dropout_rate, self.training)
        parts = (
            state.view(len(state), -1, self.rnn.num_layers, self.rnn.hidden_size)
            .permute(1, 2, 0, 3)
            .contiguous()
        )
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


class RecurrentModel(LanguageModel):
    """A recurrent model over the recogniser's units, which are found in its table by their symbols.

    A state is the state of the network (S values) and the log-probability of each unit of the
    recogniser (V values). So each hypothesis passes through network and head once.
    """

    def __init__(self, name: object, model: RnnLm, own: UnitTable, table: UnitTable) -> None:
        """`own`: the units of the model, whose folder is `name`; `table`: those of the recogniser.

        Raises DataError if the model knows none of the units.
        """
        self._model = model
        found = {index: own.id_of(unit) for index, unit in text_units(table)}
        self.unknown = [table.units[index] for index, unit_id in found.items() if unit_id is None]
        if len(self.unknown) == len(found) or own.special.unk is None:
            what = f"knows none of the {len(found)} units of the recogniser, or has no <unk>"
            raise DataError(name, what, "train it with units.txt of the recogniser")
        ids = [
            own.special.unk if (unit_id := found.get(index)) is None else unit_id
            for index in range(len(table))
        ]
        ids[table.special.eos] = own.special.eos
        self._device = self._model.embedding.weight.device
        self._ids_V = torch.tensor(ids, device=self._device)
        self._eos = torch.tensor([own.special.eos], device=self._device)
        self._size = self._model.start(1).size(1)

    @torch.no_grad()
    def start(self, count: int, device: torch.device | None = None) -> Tensor:
        return (
            self._step(self._model.start(1), self._eos).expand(count, -1).to(device or self._device)
        )

    def score(self, states: Tensor, ids: Tensor) -> Tensor:
        return states[:, self._size :].gather(1, ids.to(states.device)).to(ids.device)

    @torch.no_grad()
    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        units = self._ids_V[ids.to(self._device)]
        return self._step(states[:, : self._size].to(self._device), units).to(states.device)

    def _step(self, states_MS: Tensor, units_M: Tensor) -> Tensor:
        with torch.autocast(
            self._device.type, enabled=False
        ):  # a rounded state would be rounded again at each unit
            _, after_MS = self._model(units_M[:, None], states_MS)
            log_probs = self._model.head.log_probs(self._model.head_input(after_MS))
        return torch.cat([after_MS, log_probs.index_select(1, self._ids_V)], dim=1)

    @torch.no_grad()
    def score_texts(self, texts: Sequence[Sequence[int]]) -> list[float]:
        rows = [
            torch.cat([self._eos, self._ids_V[torch.tensor(ids, device=self._device)]])
            for ids in texts
        ]
        inputs_ML = pad_sequence([row[:-1] for row in rows], batch_first=True)
        targets_ML = pad_sequence([row[1:] for row in rows], batch_first=True, padding_value=-1)
        with torch.autocast(self._device.type, enabled=False):
            hidden_MLD, _ = self._model(inputs_ML, self._model.start(len(rows)))
        is_target_ML = targets_ML >= 0
        nll_ML = torch.zeros(targets_ML.shape, dtype=torch.float64, device=self._device)
        nll_ML[is_target_ML] = self._model.head.nll(
            hidden_MLD[is_target_ML], targets_ML[is_target_ML]
        ).double()
        return [-cost for cost in nll_ML.sum(1).tolist()]
