# SPDX-License-Identifier: Apache-2.0
"""Language models over units, for the searches: one small interface, n-grams now.

Dimension key: M hypotheses, K candidates of each, Q = M · K questions, V units, W words of the file.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.decode.arpa import BEGIN, END, UNKNOWN, Ngrams, read_arpa
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.text.tokenizer import SPACE

if TYPE_CHECKING:
    from wenet_hs.text.units import UnitTable

logger = logging.getLogger(__name__)

_NAMED = 5
_KENLM_MAGIC = b"mmap lm http://kheafield.com/code"
_NEVER = -100.0 * math.log(10.0)
"""Of a unit that the file does not know where it has no <unk> either: what KenLM gives."""


class LanguageModel(ABC):
    """Log-probabilities of the next unit behind a sequence of units; <eos> stands for the end.

    A state is a row of a tensor (M, …), so that a search picks, repeats and drops states as it does hypotheses.
    """

    unknown: Sequence[str] = ()
    """The units that it does not know, special ones left out: they are its <unk>."""

    @abstractmethod
    def start(self, count: int) -> Tensor:
        """The state before the first unit, for `count` hypotheses: (M, …)."""

    @abstractmethod
    def score(self, states: Tensor, ids: Tensor) -> Tensor:
        """Log-probability, base e, of each unit or end behind a state: (M, …), (M, K) → (M, K) float32."""

    @abstractmethod
    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        """The states behind one unit more: (M, …), (M,) → (M, …). Behind the end it is any state."""


class NgramModel(LanguageModel):
    """An n-gram model with backoff: p(w | h) = p of the n-gram if there is one, else backoff(h) · p(w | h shortened).

    A state is the longest end of the history that the model has as a context. Each question is a search in a sorted
    table, all of a step at once.
    """

    def __init__(self, ngrams: Ngrams, units: UnitTable) -> None:
        """Raises DataError where the model knows none of the units."""
        self._words_V = np.array([ngrams.words.get(unit, -1) for unit in units.units], np.int64)
        self._words_V[list(units.special_ids)] = -1
        if not (self._words_V >= 0).any():
            raise DataError(
                f"{ngrams.path}: knows none of the {len(units)} units of units.txt; build it over text that is split "
                "into units"
            )
        self.unknown = [unit for unit in _text_units(units) if unit not in ngrams.words]
        self._words_V[self._words_V < 0] = ngrams.words.get(UNKNOWN, len(ngrams.words))
        self._words_V[units.special.eos] = ngrams.words[END]
        self._num_words = len(ngrams.words) + 1  # one more: a word that no n-gram has
        self._ngrams = ngrams
        self._order = np.argsort(ngrams.contexts * self._num_words + ngrams.last_words)
        self._keys = (ngrams.contexts * self._num_words + ngrams.last_words)[self._order]

    def start(self, count: int) -> Tensor:
        begin = np.zeros(1, np.int64)
        if BEGIN in self._ngrams.words:
            begin = self._next(begin, np.array([self._ngrams.words[BEGIN]]))
        return torch.from_numpy(begin).expand(count).clone()

    def score(self, states: Tensor, ids: Tensor) -> Tensor:
        contexts_Q = states.cpu().numpy().repeat(ids.size(1))
        found_Q = self._log_probs(contexts_Q, self._words_V[ids.cpu().numpy().ravel()])
        return torch.from_numpy(found_Q).view(ids.shape).to(ids.device, torch.float32)

    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        nodes_M = self._next(states.cpu().numpy(), self._words_V[ids.cpu().numpy()])
        return torch.from_numpy(nodes_M).to(ids.device)

    def _log_probs(self, contexts_Q: NDArray[np.int64], words_Q: NDArray[np.int64]) -> NDArray[np.float64]:
        totals_Q, open_Q = np.zeros(len(words_Q)), np.arange(len(words_Q))
        while len(open_Q):
            hits, entries = self._find(contexts_Q, words_Q)
            totals_Q[open_Q[hits]] += self._ngrams.log_probs[entries[hits]]
            left = ~hits
            open_Q, contexts_Q, words_Q = open_Q[left], contexts_Q[left], words_Q[left]
            totals_Q[open_Q] += np.where(contexts_Q == 0, _NEVER, self._ngrams.backoffs[contexts_Q])
            open_Q, words_Q, contexts_Q = (x[contexts_Q > 0] for x in (open_Q, words_Q, contexts_Q))
            contexts_Q = self._ngrams.shorter[contexts_Q]
        return totals_Q

    def _next(self, contexts_M: NDArray[np.int64], words_M: NDArray[np.int64]) -> NDArray[np.int64]:
        """The context behind one word more; without any n-gram that ends in the word, the empty one."""
        nodes_M, open_M = np.zeros(len(words_M), np.int64), np.arange(len(words_M))
        while len(open_M):
            hits, entries = self._find(contexts_M, words_M)
            nodes_M[open_M[hits]] = self._ngrams.behind[entries[hits]]
            left = ~hits & (contexts_M > 0)
            open_M, words_M = open_M[left], words_M[left]
            contexts_M = self._ngrams.shorter[contexts_M[left]]
        return nodes_M

    def _find(
        self, contexts_Q: NDArray[np.int64], words_Q: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Whether there is an n-gram of this context and word, and which."""
        keys_Q = contexts_Q * self._num_words + words_Q
        places_Q = np.searchsorted(self._keys, keys_Q).clip(max=len(self._keys) - 1)
        return self._keys[places_Q] == keys_Q, self._order[places_Q]


class KenlmModel(LanguageModel):
    """A binary file of KenLM, read by its own library. A state is the number of a history seen before."""

    def __init__(self, path: Path, units: UnitTable) -> None:
        """Raises ConfigError where kenlm is not installed, DataError where it cannot read the file."""
        self._kenlm = _import_kenlm(path)
        try:
            self._model = self._kenlm.Model(str(path))
        except OSError as error:
            raise DataError(f"{path}: kenlm cannot read it; build it again with build_binary") from error
        self.unknown = [unit for unit in _text_units(units) if unit not in self._model]
        self._units = [UNKNOWN if index in units.special_ids else unit for index, unit in enumerate(units.units)]
        self._units[units.special.eos] = END
        begin = self._kenlm.State()
        self._model.BeginSentenceWrite(begin)
        self._states, self._behind = [begin], dict[tuple[int, int], tuple[float, int]]()

    def start(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int64)

    def score(self, states: Tensor, ids: Tensor) -> Tensor:
        rows = zip(states.tolist(), ids.tolist(), strict=True)
        return torch.tensor([[self._step(state, unit)[0] for unit in row] for state, row in rows], device=ids.device)

    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        pairs = zip(states.tolist(), ids.tolist(), strict=True)
        return torch.tensor([self._step(state, unit)[1] for state, unit in pairs], device=ids.device)

    def _step(self, state: int, unit: int) -> tuple[float, int]:
        found = self._behind.get((state, unit))
        if found is None:
            after = self._kenlm.State()
            log10 = self._model.BaseScore(self._states[state], self._units[unit], after)
            self._states.append(after)
            found = self._behind[state, unit] = (log10 * math.log(10.0), len(self._states) - 1)
        return found


def load_language_model(path: Path, units: UnitTable) -> LanguageModel:
    """An ARPA file, or a binary file of KenLM where kenlm is installed. Its words are units.

    Raises: DataError naming file and line where it is damaged or knows no unit; ConfigError where kenlm is missing.
    """
    try:
        with path.open("rb") as file:
            is_binary = file.read(len(_KENLM_MAGIC)) == _KENLM_MAGIC
    except FileNotFoundError as error:
        raise ConfigError(f"--lm {path}: no such file; give an n-gram model in ARPA format") from error
    return KenlmModel(path, units) if is_binary else NgramModel(read_arpa(path), units)


def warn_of_unknown_units(path: Path, lm: LanguageModel, units: UnitTable) -> None:
    """Say which units a language model does not know: it then works against them wherever they were said."""
    if lm.unknown:
        first = sorted(lm.unknown, key=lambda unit: unit != SPACE)[:_NAMED]
        named = " ".join(first) + (" …" if len(lm.unknown) > _NAMED else "")
        logger.warning(
            "%s: does not know %d of the %d units (%s), so the searches avoid them; build it over text that is split "
            "into this model's units",
            *(path, len(lm.unknown), len(_text_units(units)), named),
        )


def _text_units(units: UnitTable) -> list[str]:
    return [unit for index, unit in enumerate(units.units) if index not in units.special_ids]


def _import_kenlm(path: Path) -> Any:
    try:
        import kenlm
    except ImportError as error:
        raise ConfigError(
            f"--lm {path}: is a binary file of KenLM; run `pip install kenlm`, or give the ARPA file"
        ) from error
    return kenlm
