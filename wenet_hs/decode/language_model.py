# SPDX-License-Identifier: Apache-2.0
"""Interfaces of language models: over units for the searches, and over whole texts for n-best lists.

Dimension key: M hypotheses, K candidates per hypothesis.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from wenet_hs.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_ENOUGH_UNITS = 100
_NEARLY_ALL = 0.9


class LanguageModel(ABC):
    """Log-probabilities of the next unit after a sequence of units; <eos> is the end.

    A state is a row of a tensor (M, …), so a search selects, repeats and drops states like hypotheses.
    """

    unknown: Sequence[str] = ()
    """Units that the model does not know, without the special ones; they are its <unk>."""

    @abstractmethod
    def start(self, count: int) -> Tensor:
        """The state before the first unit, for `count` hypotheses: (M, …)."""

    @abstractmethod
    def score(self, states: Tensor, ids: Tensor) -> Tensor:
        """Log-probability, base e, of each unit or end after a state: (M, …), (M, K) → (M, K) float32."""

    @abstractmethod
    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        """The states after one more unit: (M, …), (M,) → (M, …). After the end it may be any state."""


class TextModel(ABC):
    """Log-probabilities of whole texts, for models over other units than the recogniser's, such as words."""

    def __init__(self, name: object, own: "Tokenizer", tokenizer: "Tokenizer") -> None:
        """`own`: splits text into the units of the model, whose file is `name`; `tokenizer`: of the recogniser."""
        self._name, self._own, self._tokenizer = name, own, tokenizer
        self._num_units = self._num_unknown = 0

    def _encode(self, texts: Sequence[Sequence[int]]) -> list[list[int]]:
        """The model's units of each text and its end. A warning says once if nearly all of them are unknown."""
        units = [self._own.encode(self._tokenizer.decode(ids)) for ids in texts]
        before, self._num_units = self._num_units, self._num_units + sum(map(len, units))
        self._num_unknown += sum(one.count(self._own.table.special.unk or 0) for one in units)
        if before < _ENOUGH_UNITS <= self._num_units and self._num_unknown >= _NEARLY_ALL * self._num_units:
            what = (
                "%s: does not know %d of the first %d words of hypotheses; give a model of this language and spelling"
            )
            logger.warning(what, self._name, self._num_unknown, self._num_units)
        return [[*one, self._own.table.special.eos] for one in units]

    @abstractmethod
    def score_texts(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """Log-probability, base e, of each text and its end. A text is ids of the recogniser's units."""


AnyLanguageModel = LanguageModel | TextModel
