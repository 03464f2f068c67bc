# SPDX-License-Identifier: Apache-2.0
"""Interfaces of language models: over units for the searches, and over whole texts for n-best lists.

Dimension key: M hypotheses, K candidates per hypothesis.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor


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

    @abstractmethod
    def score_texts(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """Log-probability, base e, of each text and its end. A text is ids of the recogniser's units."""


AnyLanguageModel = LanguageModel | TextModel
