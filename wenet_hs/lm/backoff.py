# SPDX-License-Identifier: Apache-2.0
"""N-gram models with backoff for recognition: ARPA files and KenLM's binary files.

Dimension key: M hypotheses, K candidates per hypothesis, V units of the recogniser; Q queries, G
n-grams, C contexts (context 0 is the empty one).
"""

import math
import re
from pathlib import Path
from unicodedata import normalize

import numpy as np
import torch
from torch import Tensor

from wenet_hs.base.files import read_lines
from wenet_hs.heads.gpu import copy_to, is_gpu
from wenet_hs.lm.language_model import LanguageModel, text_units
from wenet_hs.lm.ngram import BEGIN, END, UNKNOWN
from wenet_hs.text.units import OTHER_SPACE, SPACE, UnitTable
from wenet_hs.tree.errors import ConfigError, DataError

_LN_10 = math.log(10.0)
_UNKNOWN_LOG_PROB = -100.0 * _LN_10
"""Of a unit that is not in the file if the file has no <unk>; KenLM uses the same value."""
OTHER_NAMES = {"<UNK>": UNKNOWN, OTHER_SPACE: SPACE}
"""Names of other toolkits → ours."""
_MAX_SEEN = 2**18
"""Scores of KenLM that are kept."""
_FIELD_END = re.compile("[ \t]+")

WordIds = tuple[int, ...]


class NgramModel(LanguageModel):
    """An n-gram model with backoff: p(w | h) = p of the n-gram if there is one, else backoff(h) ·
    p(w | h shortened).

    A context is a history of at most n - 1 words. A state is the number of the longest suffix of
    the history that is a context of the model. All queries of a step are answered together, by a
    search in a sorted table per backoff, on the device of the states; a GPU is not waited for.
    """

    def __init__(self, file: "ArpaReader", units: UnitTable) -> None:
        """Raises DataError if the model knows none of the units."""
        known = {normalize("NFC", word): number for word, number in file.words.items()}
        known |= {
            word: number for word, number in file.words.items() if word in known
        }  # the form of the units counts
        names = [normalize("NFC", unit) for unit in units.units]
        words_V = np.array([known.get(name, -1) for name in names], np.int64)
        words_V[list(units.special_ids)] = -1
        if not (words_V >= 0).any():
            raise make_no_unit_error(file.path, units)
        self.unknown = [unit for index, unit in text_units(units) if names[index] not in known]
        words_V[words_V < 0] = file.words.get(
            UNKNOWN, len(file.words)
        )  # one more for a word that is in no n-gram
        words_V[units.special.eos] = file.words[END]
        self._num_words = len(file.words) + 1
        backoffs = {(): _UNKNOWN_LOG_PROB, **file.backoffs}
        contexts = {words: number for number, words in enumerate(backoffs)}

        def longest_context(words: WordIds) -> int:
            return next(
                contexts[words[begin:]]
                for begin in range(len(words) + 1)
                if words[begin:] in contexts
            )

        self._begin = longest_context((file.words[BEGIN],) if BEGIN in file.words else ())
        self._max_lookups = 1 + max(map(len, contexts))
        shorter_C = np.array([longest_context(words[1:]) for words in contexts], np.int64)
        # Per n-gram, sorted by key: context and last word as one number, log-probability, and the
        # context after it.
        keys_G = np.array(
            [contexts[words[:-1]] * self._num_words + words[-1] for words in file.log_probs],
            np.int64,
        )
        order_G = keys_G.argsort()
        log_probs_G = np.array(list(file.log_probs.values()))[order_G]
        next_contexts_G = np.array([longest_context(words) for words in file.log_probs], np.int64)[
            order_G
        ]
        arrays = (
            words_V,
            np.array(list(backoffs.values())),
            shorter_C,
            keys_G[order_G],
            log_probs_G,
            next_contexts_G,
        )
        self._tables = {torch.device("cpu"): tuple(map(torch.from_numpy, arrays))}

    def start(self, count: int, device: torch.device | None = None) -> Tensor:
        if device is not None and device not in self._tables:
            self._tables[device] = tuple(
                copy_to(device, table) for table in self._tables[torch.device("cpu")]
            )
        return torch.full((count,), self._begin, device=device)

    def score(self, states: Tensor, ids: Tensor) -> Tensor:
        log_probs_Q, _ = self._look_up(states[:, None].expand_as(ids).flatten(), ids.flatten())
        return log_probs_Q.view(ids.shape).float()

    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        return self._look_up(states, ids)[1]

    def _look_up(self, contexts_Q: Tensor, ids_Q: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probability of a unit after a context, and the context after it: (Q,), (Q,) →
        (Q,), (Q,).
        """
        words_V, backoffs_C, shorter_C, keys_G, log_probs_G, next_contexts_G = self._tables[
            ids_Q.device
        ]
        words_Q, log_probs_Q = (
            words_V[ids_Q],
            torch.zeros(len(ids_Q), dtype=torch.float64, device=ids_Q.device),
        )
        next_Q, is_open_Q = (
            torch.zeros_like(contexts_Q),
            torch.ones_like(contexts_Q, dtype=torch.bool),
        )
        for _ in range(self._max_lookups):  # each with a shorter context, until an n-gram answers
            keys_Q = contexts_Q * self._num_words + words_Q
            entries_Q = torch.searchsorted(keys_G, keys_Q).clamp(max=len(keys_G) - 1)
            is_found_Q = keys_G[entries_Q] == keys_Q
            added_Q = torch.where(is_found_Q, log_probs_G[entries_Q], backoffs_C[contexts_Q])
            log_probs_Q += torch.where(is_open_Q, added_Q, 0.0)
            next_Q = torch.where(is_open_Q & is_found_Q, next_contexts_G[entries_Q], next_Q)
            is_open_Q = is_open_Q & ~is_found_Q & (contexts_Q > 0)
            contexts_Q = shorter_C[contexts_Q]
            if not is_gpu(ids_Q.device) and not bool(is_open_Q.any()):
                break
        return log_probs_Q, next_Q


def make_no_unit_error(path: Path, units: UnitTable) -> DataError:
    found = f"knows none of the {len(units)} units of units.txt"
    return DataError(path, found, "build it from text that is split into units")


# ---- ARPA files


class ArpaReader:
    """The n-grams of a file in ARPA format, which SRILM and KenLM write, as dictionaries with
    natural logarithms.
    """

    def __init__(self, path: Path) -> None:
        """Raises: DataError with file and line if it is no ARPA file, a number is invalid, a
        probability is above 1, an n-gram is repeated or has a word that is no 1-gram, a section has
        another number of n-grams than in the header, or there is no `</s>`.
        """
        self.path = path
        self._lines = read_lines(path)
        self._line_number = 0
        self.words: dict[str, int] = {}
        self.log_probs: dict[WordIds, float] = {}
        self.backoffs: dict[WordIds, float] = {}
        sizes = self._read_sizes()
        for order, size in enumerate(sizes, start=1):
            self._read_section(order, size, is_highest=order == len(sizes))
        self._expect("\\end\\")
        if END not in self.words:
            raise DataError(path, f"has no 1-gram {END}", "build the model from whole sentences")
        self._add_missing_prefixes()

    def _read_sizes(self) -> list[int]:
        """The number of n-grams per order: the lines from `\\data\\` to an empty one."""
        while self._next_line() != "\\data\\":
            pass
        sizes: list[int] = []
        while (line := self._next_line()) or not sizes:
            if not line:
                continue
            name, _, number = line.partition("=")
            if name.split() != ["ngram", str(len(sizes) + 1)] or not number.strip().isdecimal():
                raise self._error(f"expected `ngram {len(sizes) + 1}=COUNT`, found {line[:40]!r}")
            sizes.append(int(number))
        return sizes

    def _read_section(self, order: int, size: int, *, is_highest: bool) -> None:
        """Read the n-grams of one order. Raises DataError if their number is not `size`.

        If there are none, some programs leave out the title of the section too.
        """
        title = f"\\{order}-grams:"
        if size == 0 and self._peek() != title:
            return
        self._expect(title)
        for count in range(size):
            line = self._next_line()
            if not line or line.startswith("\\"):
                raise self._error(
                    f"{count} n-grams, but the header has {size}; the file is damaged"
                )
            fields = _FIELD_END.split(line)  # not at U+3000 and the like, which may be units
            self._read_ngram(fields, order, is_highest=is_highest)
        if not self._peek().startswith("\\"):
            self._line_number += 1  # of that line
            raise self._error(
                f"more {order}-grams than the {size} of the header; the file is damaged"
            )

    def _error(self, text: str) -> DataError:
        return DataError(f"{self.path}:{self._line_number}", text)

    def _next_line(self) -> str:
        if self._line_number == len(self._lines):
            found = "ends before \\end\\" if "\\data\\" in self._lines else "has no line \\data\\"
            raise DataError(self.path, found, "give a complete n-gram model in ARPA format")
        self._line_number += 1
        return self._lines[self._line_number - 1].strip(" \t")

    def _peek(self) -> str:
        """The next line that is not empty, which stays to be read."""
        while not (line := self._next_line()):
            pass
        self._line_number -= 1
        return line

    def _expect(self, title: str) -> None:
        """Read empty lines and then the line `title`."""
        line = self._peek()
        self._line_number += 1
        if line != title:
            raise self._error(f"expected {title}, found {line[:40]!r}")

    def _read_ngram(self, fields: list[str], order: int, *, is_highest: bool) -> None:
        """Read `log10 probability, words, log10 backoff`; the backoff may be missing."""
        has_backoff = len(fields) == order + 2
        if len(fields) not in (order + 1, order + 2) or (has_backoff and is_highest and order > 1):
            raise self._error(
                f"expected a logarithm, {order} words and a backoff, found {len(fields)} fields; the file is damaged"
            )
        log_prob = self._number(fields[0])
        if log_prob > 0:
            raise self._error(f"a probability of 10^{fields[0]} is above 1; the file is damaged")
        names = [OTHER_NAMES.get(name, name) for name in fields[1 : order + 1]]
        if order == 1:
            self.words.setdefault(names[0], len(self.words))
        words = tuple(self.words.get(name, -1) for name in names)
        if -1 in words:
            raise self._error(f"{names[words.index(-1)]!r} is no 1-gram; the file is damaged")
        if words in self.log_probs:
            raise self._error(f"{' '.join(names)!r} is repeated; remove one of the two lines")
        self.log_probs[words] = log_prob * _LN_10
        if not is_highest:
            self.backoffs[words] = self._number(fields[order + 1]) * _LN_10 if has_backoff else 0.0

    def _number(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self._error(f"{text[:40]!r} is no logarithm; the file is damaged")
        return value

    def _add_missing_prefixes(self) -> None:
        """Add what SRILM leaves out: n-grams that longer ones begin with, with their backed-off
        probability.
        """

        def log_prob(words: WordIds) -> float:
            found = self.log_probs.get(words)
            return (
                self.backoffs.get(words[:-1], 0.0) + log_prob(words[1:]) if found is None else found
            )

        for words in list(self.log_probs):
            for size in range(1, len(words)):
                if words[:size] not in self.log_probs:
                    self.log_probs[words[:size]] = log_prob(words[:size])
                    self.backoffs[words[:size]] = 0.0


# ---- KenLM


class KenlmModel(LanguageModel):
    """A binary file of KenLM, read by its own library.

    A state is the number of a state of KenLM that was seen before.

    KenLM's states are no longer than the model needs, so there are at most as many as the model has
    contexts.
    """

    def __init__(self, path: Path, units: UnitTable) -> None:
        """Raises ConfigError if kenlm is not installed, DataError if it cannot read the file."""
        try:
            import kenlm
        except ImportError as error:
            to_do = "run `pip install 'wenet_hs[kenlm]'`, or give the ARPA file"
            raise ConfigError(f"--lm {path}", "is a binary file of KenLM", to_do) from error
        self._kenlm = kenlm
        try:
            self._model = kenlm.Model(str(path))
        except OSError as error:
            raise DataError(
                path, "kenlm cannot read it", "build it again with build_binary"
            ) from error
        space = OTHER_SPACE if OTHER_SPACE in self._model else SPACE
        names = [space if unit == SPACE else self._spelling(unit) for unit in units.units]
        self.known = [unit for index, unit in text_units(units) if names[index] in self._model]
        self.unknown = [
            unit for index, unit in text_units(units) if names[index] not in self._model
        ]
        self._units = [
            UNKNOWN if index in units.special_ids else name for index, name in enumerate(names)
        ]
        self._units[units.special.eos] = END
        begin = kenlm.State()
        self._model.BeginSentenceWrite(begin)
        self._states, self._number_of = [begin], {begin: 0}
        self._seen = dict[tuple[int, int], tuple[float, int]]()

    def _spelling(self, unit: str) -> str:
        """The form of Unicode in which the model has the unit, or else the unit."""
        forms = (unit, normalize("NFC", unit), normalize("NFD", unit))
        return next((form for form in forms if form in self._model), unit)

    def start(self, count: int, device: torch.device | None = None) -> Tensor:
        return torch.zeros(count, dtype=torch.int64, device=device)

    def score(self, states: Tensor, ids: Tensor) -> Tensor:
        rows = zip(states.tolist(), ids.tolist(), strict=True)
        return torch.tensor(
            [[self._step(state, unit)[0] for unit in row] for state, row in rows], device=ids.device
        )

    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        pairs = zip(states.tolist(), ids.tolist(), strict=True)
        return torch.tensor(
            [self._step(state, unit)[1] for state, unit in pairs], device=ids.device
        )

    def _step(self, state: int, unit: int) -> tuple[float, int]:
        """Log-probability of a unit after a state, and the next state."""
        found = self._seen.get((state, unit))
        if found is None:
            after = self._kenlm.State()
            log10 = self._model.BaseScore(self._states[state], self._units[unit], after)
            number = self._number_of.setdefault(after, len(self._states))
            if number == len(self._states):
                self._states.append(after)
            if len(self._seen) >= _MAX_SEEN:
                self._seen.clear()
            found = self._seen[state, unit] = (log10 * _LN_10, number)
        return found
