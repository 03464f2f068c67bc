# SPDX-License-Identifier: Apache-2.0
"""Recurrent language model with any output head, and its use in recognition.

Dimension key: B parts of the text, M hypotheses, T steps of a batch, L units of a text with its
end, E width of the input vectors, D width and R number of the layers, P tensors of a state (LSTM:
hidden and cell state, GRU: 1), S = P · R · D values of a state, V units of the recogniser.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.heads.base import OutputHead
from wenet_hs.lm.language_model import LanguageModel, list_text_units
from wenet_hs.lm.text import NO_TARGET
from wenet_hs.text.units import UnitTable
from wenet_hs.tree.errors import DataError

RnnKind = Literal["gru", "lstm"]


class RnnLm(nn.Module):
    """p(next unit | units before) = head(dropout(rnn(dropout(vector of the last unit), state))).

    A state is one row of S values per part of the text, for GRU and LSTM alike.
    """

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
        """A model with new weights, drawn from torch's random state. The head is given.

        Args:
            head: its width is that of the recurrent layers.
            embedding_size: E.
            num_layers: R.
            dropout_rate: of the input vectors, between the layers, and of the head's inputs.
            sparse_grad: whether the gradient of the input vectors is a sparse tensor.
        """
        super().__init__()
        self.embedding = nn.Embedding(head.num_units, embedding_size, sparse=sparse_grad)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        layer_class = nn.GRU if kind == "gru" else nn.LSTM
        self.rnn = layer_class(
            embedding_size,
            head.dim,
            num_layers,
            batch_first=True,
            dropout=dropout_rate if num_layers > 1 else 0.0,  # torch warns of one without effect
        )
        self.dropout_rate = dropout_rate
        self.head = head

    @property
    def _num_state_tensors(self) -> int:
        """P."""
        return 2 if isinstance(self.rnn, nn.LSTM) else 1

    def start(self, batch_size: int) -> Tensor:
        """(B, S) the state before any unit: zeros, on the device of the weights."""
        state_size = self._num_state_tensors * self.rnn.num_layers * self.rnn.hidden_size
        return self.embedding.weight.new_zeros(batch_size, state_size)

    def forward(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The head's input after each unit, and the state after the last one.

        Args:
            inputs: (B, T) unit ids.
            state: (B, S) for GRU and LSTM alike. torch's layers have the state as one tensor (GRU)
                or two (LSTM: hidden and cell state) of (layers, B, D).
        Returns:
            (B, T, D) and (B, S).
        """
        vectors_BTE = F.dropout(self.embedding(inputs), self.dropout_rate, self.training)
        state_PRBD = self._split_state(state).permute(1, 2, 0, 3).contiguous()  # from BPRD
        if isinstance(self.rnn, nn.LSTM):
            hidden_BTD, after = self.rnn(vectors_BTE, (state_PRBD[0], state_PRBD[1]))
            after_PRBD = torch.stack(after)
        else:
            hidden_BTD, after_RBD = self.rnn(vectors_BTE, state_PRBD[0])
            after_PRBD = after_RBD[None]  # P is 1
        hidden_BTD = F.dropout(hidden_BTD, self.dropout_rate, self.training)
        after_BS = after_PRBD.permute(2, 0, 1, 3).flatten(1)  # through BPRD
        return hidden_BTD, after_BS

    def head_input(self, state: Tensor) -> Tensor:
        """The head's input after the last unit, without dropout: (B, S) → (B, D).

        It is the part of the state that is the hidden state of the last layer.
        """
        return self._split_state(state)[:, 0, -1]

    def _split_state(self, state_BS: Tensor) -> Tensor:
        """A view of a state as (B, P, R, D): R layers of width D, and P = 1 tensor, or an LSTM's 2.

        The hidden states come first, and then the cell states of an LSTM.
        """
        return state_BS.view(len(state_BS), -1, self.rnn.num_layers, self.rnn.hidden_size)


class RecurrentModel(LanguageModel):
    """A recurrent model over the recogniser's units, which are found in its table by their symbols.

    A state is the state of the network (S values) and the log-probability of each unit of the
    recogniser as the next one (V values). So each hypothesis passes through network and head once.
    """

    def __init__(
        self, name: object, model: RnnLm, *, lm_units: UnitTable, recogniser_units: UnitTable
    ) -> None:
        """Find the recogniser's units among those of the model.

        Args:
            name: the folder of the model, for messages.
            model: over `lm_units`.
        Raises:
            DataError: the model knows none of the recogniser's units, or has no <unk>.
        """
        self._model = model
        text_units = list_text_units(recogniser_units)
        self.unknown = [unit for _, unit in text_units if lm_units.id_of(unit) is None]
        unk = lm_units.special.unk
        if len(self.unknown) == len(text_units) or unk is None:
            fault = f"knows none of the {len(text_units)} units of the recogniser, or has no <unk>"
            raise DataError(name, fault, "train it with units.txt of the recogniser")
        # The model's id of each unit of the recogniser. The special units but <eos> are its <unk>.
        ids = [unk] * len(recogniser_units)
        for unit_id, unit in text_units:
            lm_id = lm_units.id_of(unit)
            if lm_id is not None:
                ids[unit_id] = lm_id
        ids[recogniser_units.special.eos] = lm_units.special.eos
        self._device = self._model.embedding.weight.device
        self._lm_ids_V = torch.tensor(ids, device=self._device)
        self._eos_1 = torch.tensor([lm_units.special.eos], device=self._device)
        self._state_size = self._model.start(1).size(1)

    @torch.no_grad()
    def start(self, count: int, device: torch.device | None = None) -> Tensor:
        """As in `LanguageModel`: the state after an end of sentence, the same for all hypotheses.

        The default device is that of the weights.
        """
        state = self._step(self._model.start(1), self._eos_1)
        return state.expand(count, -1).to(device or self._device)

    def score(self, states: Tensor, ids: Tensor) -> Tensor:
        """As in `LanguageModel`: the log-probabilities are part of the states."""
        log_probs_MV = states[:, self._state_size :]
        return log_probs_MV.gather(1, ids.to(states.device)).to(ids.device)

    @torch.no_grad()
    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        """As in `LanguageModel`: the network reads one unit per hypothesis, on its own device."""
        network_states_MS = states[:, : self._state_size].to(self._device)
        lm_ids_M = self._lm_ids_V[ids.to(self._device)]
        return self._step(network_states_MS, lm_ids_M).to(states.device)

    def _step(self, states_MS: Tensor, lm_ids_M: Tensor) -> Tensor:
        """The states after one more unit: (M, S), (M,) → (M, S+V).

        Args:
            states_MS: states of the network.
            lm_ids_M: ids of the model's own units.
        Returns: the next states of the network, and with each the log-probability of all V units of
            the recogniser after it.
        """
        # Without autocast: a rounded state would be rounded again at each unit.
        with torch.autocast(self._device.type, enabled=False):
            _, after_MS = self._model(lm_ids_M[:, None], states_MS)
            log_probs = self._model.head.log_probs(self._model.head_input(after_MS))
        log_probs_MV = log_probs.index_select(1, self._lm_ids_V)
        return torch.cat([after_MS, log_probs_MV], dim=1)

    @torch.no_grad()
    def score_texts(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """Log-probability, base e, of each text, computed in one batch.

        `texts`: the ids of each text, the last of which is <eos>.
        """
        rows = []  # (L+1,) per text: <eos> as the first input, then its units and its end
        for ids in texts:
            lm_ids_L = self._lm_ids_V[torch.tensor(ids, device=self._device)]
            rows.append(torch.cat([self._eos_1, lm_ids_L]))
        # Shorter texts are filled up: the inputs with any unit, the targets with NO_TARGET.
        inputs_ML = pad_sequence([row[:-1] for row in rows], batch_first=True)
        targets_ML = pad_sequence(
            [row[1:] for row in rows], batch_first=True, padding_value=NO_TARGET
        )
        with torch.autocast(self._device.type, enabled=False):
            hidden_MLD, _ = self._model(inputs_ML, self._model.start(len(rows)))
        is_target_ML = targets_ML != NO_TARGET
        nll_ML = torch.zeros(targets_ML.shape, dtype=torch.float64, device=self._device)
        nll_ML[is_target_ML] = self._model.head.nll(
            hidden_MLD[is_target_ML], targets_ML[is_target_ML]
        ).double()
        return [-nll for nll in nll_ML.sum(1).tolist()]
