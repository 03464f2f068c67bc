# SPDX-License-Identifier: Apache-2.0
"""Language models as decoding uses them: over units for the searches, and over whole texts for
n-best lists.

Dimension key: M hypotheses, K candidates per hypothesis.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from wenet_hs.text.tokenizer import Tokenizer
from wenet_hs.text.units import UnitTable

logger = logging.getLogger(__name__)

_ENOUGH_UNITS = 100
_NEARLY_ALL = 0.9


class LanguageModel(ABC):
    """Log-probabilities of the next unit after a sequence of units; <eos> is the end.

    A state is a row of a tensor (M, …), so a search selects, repeats and drops states like
    hypotheses.
    """

    unknown: Sequence[str] = ()
    """Units that the model does not know, without the special ones; they are its <unk>."""

    @abstractmethod
    def start(self, count: int, device: torch.device | None = None) -> Tensor:
        """The state before the first unit, for `count` hypotheses: (M, …), on the device (default:
        where the model computes best: a recurrent one where its weights are, others on the CPU).
        """

    @abstractmethod
    def score(self, states: Tensor, ids: Tensor) -> Tensor:
        """Log-probability, base e, of each unit or end after a state: (M, …), (M, K) → (M, K)
        float32.

        Both are on the device of `start`, and so are the results.
        """

    @abstractmethod
    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        """The states after one more unit: (M, …), (M,) → (M, …).

        After the end it may be any state.
        """

    def score_texts(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """Log-probability, base e, of each text.

        A text is ids of the model's units and its end, which is the last.
        """
        return [self._score_text(torch.tensor(ids)) for ids in texts]

    def _score_text(self, ids_L: Tensor) -> float:
        state, total = self.start(1), 0.0
        for unit in ids_L[:, None]:
            total += float(self.score(state, unit[:, None]))
            state = self.advance(state, unit)
        return total


class TextModel:
    """A language model over other units than the recogniser's, such as words: it reads the text of
    a hypothesis.
    """

    def __init__(
        self, name: object, lm: LanguageModel, own: Tokenizer, tokenizer: Tokenizer
    ) -> None:
        """`own`: splits text into the units of `lm`, whose file is `name`; `tokenizer`: of the
        recogniser.
        """
        self._name, self._lm, self._own, self._tokenizer = name, lm, own, tokenizer
        self._num_units = self._num_unknown = 0

    def score_texts(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """Log-probability, base e, of each text and its end.

        A text is ids of the recogniser's units.

        A warning says once if nearly all units of the texts are unknown.
        """
        units = [self._own.encode(self._tokenizer.decode(ids)) for ids in texts]
        before, self._num_units = self._num_units, self._num_units + sum(map(len, units))
        self._num_unknown += sum(one.count(self._own.table.special.unk or 0) for one in units)
        if (
            before < _ENOUGH_UNITS <= self._num_units
            and self._num_unknown >= _NEARLY_ALL * self._num_units
        ):
            what = "%s: does not know %d of the first %d words of hypotheses"
            what_to_do = "give a model of this language and spelling"
            logger.warning(f"{what}; {what_to_do}", self._name, self._num_unknown, self._num_units)
        return self._lm.score_texts([[*one, self._own.table.special.eos] for one in units])


AnyLanguageModel = LanguageModel | TextModel


def text_units(table: UnitTable) -> list[tuple[int, str]]:
    """The units of a table that are text, with their ids."""
    return [
        (index, unit) for index, unit in enumerate(table.units) if index not in table.special_ids
    ]
