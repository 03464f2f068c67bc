# SPDX-License-Identifier: Apache-2.0
"""Interfaces of language models: over units for the searches, over whole texts for n-best lists.

Dimension key: M hypotheses, K candidates per hypothesis, L units of a text.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from wenet_hs.text.tokenizer import Tokenizer
from wenet_hs.text.units import UnitTable

logger = logging.getLogger(__name__)

_NUM_CHECKED_UNITS = 100
"""After this many units of hypotheses, `TextModel` checks how many of them are unknown."""
_MOST_UNKNOWN_SHARE = 0.9
"""From this share of unknown units on, `TextModel` warns."""


class LanguageModel(ABC):
    """Log-probabilities of the next unit after a sequence of units; <eos> is the end.

    A state stands for the units so far. The states of M hypotheses are the rows of a tensor (M, …),
    so a search selects, repeats and drops states like hypotheses.
    """

    unknown: Sequence[str] = ()
    """The recogniser's units that the model does not know. Each has the probability of <unk>."""

    @abstractmethod
    def start(self, count: int, device: torch.device | None = None) -> Tensor:
        """The state before the first unit, for `count` hypotheses: (M, …).

        Args:
            device: of the states. Default: where the model computes best. A recurrent model does so
                on the device of its weights, other models on the CPU.
        """

    @abstractmethod
    def score(self, states: Tensor, ids: Tensor) -> Tensor:
        """Log-probability, base e, of each unit or end after a state.

        Args:
            states: (M, …).  ids: (M, K). Both on the device that `start` got.
        Returns: (M, K) float32, on the same device.
        """

    @abstractmethod
    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        """The states after one more unit: (M, …), (M,) → (M, …).

        The state after the end is not used, so it may have any value.
        """

    def score_texts(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """Log-probability, base e, of each text.

        Args:
            texts: the ids of each text, the last of which is <eos>.
        """
        return [self._score_text(torch.tensor(ids)) for ids in texts]

    def _score_text(self, ids_L: Tensor) -> float:
        """Log-probability, base e, of one text: the sum over its units and its end."""
        state = self.start(1)
        total = 0.0
        for id_1 in ids_L[:, None]:  # (1,): the next unit of a batch of one hypothesis
            candidates_11 = id_1[:, None]
            total += float(self.score(state, candidates_11))
            state = self.advance(state, id_1)
        return total


class TextModel:
    """A language model over other units than the recogniser's, such as words.

    It cannot take part in a search. It scores whole hypotheses: each is decoded to text, which is
    then split into the units of the model.
    """

    def __init__(
        self,
        name: object,
        lm: LanguageModel,
        lm_tokenizer: Tokenizer,
        recogniser_tokenizer: Tokenizer,
    ) -> None:
        """Combine a model with the tokenizers of its own units and of the recogniser's.

        Args:
            name: the file or folder of the model, for messages.
            lm: over the units of `lm_tokenizer`.
        """
        self._name = name
        self._lm = lm
        self._lm_tokenizer = lm_tokenizer
        self._recogniser_tokenizer = recogniser_tokenizer
        self._num_units = 0  # of all texts so far, in units of `lm`
        self._num_unknown = 0

    def score_texts(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """Log-probability, base e, of each text and its end.

        Logs one warning, after 100 units of the model, if at least 90 % of them are unknown.

        Args:
            texts: ids of the recogniser's units, without an end.
        """
        texts_in_lm_units = [
            self._lm_tokenizer.encode(self._recogniser_tokenizer.decode(ids)) for ids in texts
        ]
        self._count_unknown(texts_in_lm_units)
        eos = self._lm_tokenizer.table.special.eos
        return self._lm.score_texts([[*ids, eos] for ids in texts_in_lm_units])

    def _count_unknown(self, texts_in_lm_units: Sequence[Sequence[int]]) -> None:
        """Count all units and the unknown ones, and warn once if nearly all are unknown.

        The check is made as soon as at least 100 units are counted.
        """
        was_checked = self._num_units >= _NUM_CHECKED_UNITS
        unk = self._lm_tokenizer.table.special.unk
        for ids in texts_in_lm_units:
            self._num_units += len(ids)
            if unk is not None:
                self._num_unknown += ids.count(unk)
        if was_checked or self._num_units < _NUM_CHECKED_UNITS:
            return
        if self._num_unknown >= _MOST_UNKNOWN_SHARE * self._num_units:
            logger.warning(
                "%s: does not know %d of the first %d words of hypotheses; give a model of this "
                "language and spelling",
                self._name,
                self._num_unknown,
                self._num_units,
            )


AnyLanguageModel = LanguageModel | TextModel


def list_text_units(table: UnitTable) -> list[tuple[int, str]]:
    """The id and the symbol of each unit that is text: all but <blank>, <unk> and the like."""
    return [
        (unit_id, unit)
        for unit_id, unit in enumerate(table.units)
        if unit_id not in table.special_ids
    ]
