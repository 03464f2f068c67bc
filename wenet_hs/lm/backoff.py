# SPDX-License-Identifier: Apache-2.0
"""N-gram models with backoff for recognition: ARPA files and KenLM's binary files.

Dimension key: M hypotheses, K candidates per hypothesis, V units of the recogniser, Q queries, G
n-grams, C contexts (context 0 is the empty one).
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import torch
from torch import Tensor

from wenet_hs.base.files import read_lines
from wenet_hs.heads.gpu import copy_to, is_gpu
from wenet_hs.lm.language_model import LanguageModel, list_text_units
from wenet_hs.lm.ngram import BEGIN, END, UNKNOWN
from wenet_hs.text.units import OTHER_SPACE, SPACE, UnitTable
from wenet_hs.tree.errors import ConfigError, DataError

_LN_10 = math.log(10.0)
_UNKNOWN_LOG_PROB = -100.0 * _LN_10
"""Of a unit that is not in the file if the file has no <unk>; KenLM uses the same value."""
_WORDS_OF_OTHER_TOOLKITS = {"<UNK>": UNKNOWN, OTHER_SPACE: SPACE}
"""Their spelling → ours."""
_MAX_STEPS = 2**18
"""How many steps of KenLM are kept. The cache is emptied when it has so many."""
_FIELD_END = re.compile("[ \t]+")
"""Between the fields of a line. Other white space, such as U+3000, may be in a unit."""

WordIds = tuple[int, ...]
"""The words of an n-gram or a history, by their numbers in `ArpaReader.words`."""


class _NgramTables(NamedTuple):
    """The arrays of an n-gram model on one device."""

    words_V: Tensor
    """int64, the word of the file that each unit is; unknown units and special ones are its
    <unk>."""
    backoffs_C: Tensor
    """float64, added to the log-probability of a word that the context has no n-gram with. For the
    empty context, where no shorter one is left, it is the log-probability of an unknown unit."""
    shorter_C: Tensor
    """int64, the longest context that is a shorter suffix of each context; 0 for context 0."""
    keys_G: Tensor
    """int64, each n-gram as one number (`_ngram_key`), ascending. The other columns of n-grams have
    the same order."""
    log_probs_G: Tensor
    """float64, base e."""
    next_contexts_G: Tensor
    """int64, the context after the n-gram."""


class NgramModel(LanguageModel):
    """An n-gram model with backoff, from an ARPA file.

    p(w | h) is that of the n-gram if there is one, else backoff(h) · p(w | h shortened).
    A context is a history of at most n - 1 words. A state is the number of the longest suffix of
    the history that is a context of the model. All queries of a step are answered together, by a
    search in a sorted table per backoff, on the device of the states. A GPU is not waited for.
    """

    def __init__(self, file: "ArpaReader", units: UnitTable) -> None:
        """Index the n-grams of a file for the units of a recogniser.

        Raises DataError if the file has none of the units as a word.
        """
        text_units = list_text_units(units)
        word_of_unit = _find_known_units(file.words, text_units)
        if not word_of_unit:
            raise make_no_unit_error(file.path, units)
        self.unknown = [unit for unit_id, unit in text_units if unit_id not in word_of_unit]
        # A file without <unk> gets one more word, which is in no n-gram.
        unknown_word = file.words.get(UNKNOWN, len(file.words))
        self._num_words = len(file.words) + 1
        words = [unknown_word] * len(units)
        for unit_id, word in word_of_unit.items():
            words[unit_id] = word
        words[units.special.eos] = file.words[END]

        # A context is a history after which the model can back off. The empty one has the number 0.
        # Its "backoff" is the log-probability of a word that is in no n-gram.
        backoffs = {(): _UNKNOWN_LOG_PROB, **file.backoffs}
        contexts = {context: number for number, context in enumerate(backoffs)}
        first_history = (file.words[BEGIN],) if BEGIN in file.words else ()
        self._begin = _find_longest_context(first_history, contexts)
        self._max_lookups = 1 + max(map(len, contexts))  # from the longest context to the empty one
        # Of each context, the next shorter one. That of the empty context is itself.
        shorter = [_find_longest_context(context[1:], contexts) for context in contexts]

        # Of each n-gram, the key of its row, and the context after it. Rows are sorted by key.
        keys = [self._ngram_key(contexts[ngram[:-1]], ngram[-1]) for ngram in file.log_probs]
        next_contexts = [_find_longest_context(ngram, contexts) for ngram in file.log_probs]
        keys_G = torch.tensor(keys)
        order_G = keys_G.argsort()
        tables = _NgramTables(
            words_V=torch.tensor(words),
            backoffs_C=torch.tensor(list(backoffs.values()), dtype=torch.float64),
            shorter_C=torch.tensor(shorter),
            keys_G=keys_G[order_G],
            log_probs_G=torch.tensor(list(file.log_probs.values()), dtype=torch.float64)[order_G],
            next_contexts_G=torch.tensor(next_contexts)[order_G],
        )
        self._tables_on = {torch.device("cpu"): tables}

    def _ngram_key(self, context: Any, word: Any) -> Any:
        """One number for an n-gram, from the numbers of its context and its last word.

        Both are integers, or tensors of equal shape.
        """
        return context * self._num_words + word

    def start(self, count: int, device: torch.device | None = None) -> Tensor:
        """As in `LanguageModel`: the states are on the CPU, unless a device is given.

        Copies the tables to a device when it is given for the first time.
        """
        if device is not None and device not in self._tables_on:
            cpu_tables = self._tables_on[torch.device("cpu")]
            self._tables_on[device] = _NgramTables(
                *(copy_to(device, table) for table in cpu_tables)
            )
        return torch.full((count,), self._begin, device=device)

    def score(self, states: Tensor, ids: Tensor) -> Tensor:
        """As in `LanguageModel`: one query per hypothesis and candidate, from the same context."""
        contexts_MK = states[:, None].expand_as(ids)
        log_probs_Q, _ = self._look_up(contexts_MK.flatten(), ids.flatten())
        return log_probs_Q.view(ids.shape).float()

    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        """The context after each unit, as in `LanguageModel`."""
        _, next_contexts_M = self._look_up(states, ids)
        return next_contexts_M

    def _look_up(self, contexts_Q: Tensor, ids_Q: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probability of a unit after a context, and the context after it, for Q queries.

        In each round, the n-gram of context and unit is searched in the sorted keys of all n-grams.
        A query without it adds the backoff and goes on with a shorter context. On a GPU all rounds
        are computed, because asking whether all queries are answered would wait for the GPU.

        Args:
            contexts_Q: the numbers of contexts; 0 is the empty one.
            ids_Q: unit ids.
        Returns: (Q,) float64 the log-probabilities, base e, and (Q,) the contexts after the units.
        """
        tables = self._tables_on[ids_Q.device]
        words_Q = tables.words_V[ids_Q]
        log_probs_Q = torch.zeros(len(ids_Q), dtype=torch.float64, device=ids_Q.device)
        next_contexts_Q = torch.zeros_like(contexts_Q)  # the empty one, if no n-gram is found
        is_open_Q = torch.ones_like(contexts_Q, dtype=torch.bool)  # not answered yet
        for _ in range(self._max_lookups):
            keys_Q = self._ngram_key(contexts_Q, words_Q)
            entries_Q = torch.searchsorted(tables.keys_G, keys_Q)
            # A key above the last one would be after the end of the table.
            entries_Q = entries_Q.clamp(max=len(tables.keys_G) - 1)
            has_ngram_Q = tables.keys_G[entries_Q] == keys_Q
            added_Q = torch.where(
                has_ngram_Q, tables.log_probs_G[entries_Q], tables.backoffs_C[contexts_Q]
            )
            log_probs_Q += torch.where(is_open_Q, added_Q, 0.0)
            is_answered_now_Q = is_open_Q & has_ngram_Q
            next_contexts_Q = torch.where(
                is_answered_now_Q, tables.next_contexts_G[entries_Q], next_contexts_Q
            )
            is_open_Q = is_open_Q & ~has_ngram_Q & (contexts_Q > 0)
            contexts_Q = tables.shorter_C[contexts_Q]
            if not is_gpu(ids_Q.device) and not bool(is_open_Q.any()):
                break
        return log_probs_Q, next_contexts_Q


def _find_known_units(
    words: Mapping[str, int], text_units: Sequence[tuple[int, str]]
) -> dict[int, int]:
    """The units that are words of a file: unit id → number of the word.

    Args:
        words: the words of the file with their numbers.
        text_units: ids and symbols of units. Units and words are compared in NFC.
    """
    number_of = _number_words_in_nfc(words)
    word_of_unit = {}
    for unit_id, unit in text_units:
        word = number_of.get(normalize("NFC", unit))
        if word is not None:
            word_of_unit[unit_id] = word
    return word_of_unit


def _number_words_in_nfc(words: Mapping[str, int]) -> dict[str, int]:
    """The number of each word of a file, by its form in NFC.

    If the file has a word in several forms of Unicode, the number of the form in NFC counts.
    """
    numbers = {normalize("NFC", word): number for word, number in words.items()}
    for word, number in words.items():
        if word in numbers:  # the word is in NFC
            numbers[word] = number
    return numbers


def _find_longest_context(history: WordIds, contexts: Mapping[WordIds, int]) -> int:
    """The number of the longest context that a history ends with.

    `contexts`: the number of each context. The empty one is among them, and every history ends with
    it.
    """
    while history not in contexts:
        history = history[1:]
    return contexts[history]


def make_no_unit_error(path: Path, units: UnitTable) -> DataError:
    """The error for a model that knows none of the recogniser's units."""
    fault = f"knows none of the {len(units)} units of units.txt"
    return DataError(path, fault, "build it from text that is split into units")


# ---- ARPA files


def translate_word(word: str) -> str:
    """A word of an n-gram model as we spell it: `<UNK>` is `<unk>`, `<space>` is `▁`."""
    return _WORDS_OF_OTHER_TOOLKITS.get(word, word)


class ArpaReader:
    """The n-grams of a file in ARPA format, which SRILM and KenLM write.

    Log-probabilities and backoffs are natural logarithms.
    """

    words: dict[str, int]
    """The number of each word, from 0 in the order of the file."""
    log_probs: dict[WordIds, float]
    """Of each n-gram. Each beginning of an n-gram is there too, even if the file lacks it."""
    backoffs: dict[WordIds, float]
    """Of each n-gram below the highest order: the weight of shorter histories after it."""

    def __init__(self, path: Path) -> None:
        """Read the whole file.

        Raises: DataError with file and line if it is no ARPA file, a number is invalid, a
            probability is above 1, an n-gram is repeated or has a word that is no 1-gram, a section
            has another number of n-grams than in the header, or there is no `</s>`.
        """
        self.path = path
        self._lines = read_lines(path)
        self._line_number = 0  # of the last line that was read, from 1
        self.words = {}
        self.log_probs = {}
        self.backoffs = {}
        sizes = self._read_sizes()
        for order, size in enumerate(sizes, start=1):
            self._read_section(order, size, is_highest=order == len(sizes))
        self._read_title("\\end\\")
        if END not in self.words:
            raise DataError(path, f"has no 1-gram {END}", "build the model from whole sentences")
        self._add_missing_prefixes()

    def _read_sizes(self) -> list[int]:
        """The number of n-grams per order: the lines `ngram ORDER=COUNT` after `\\data\\`.

        Text before `\\data\\` is skipped, and so are empty lines after it. The next empty line ends
        the sizes. Raises DataError for a line of another form, and at the end of the file.
        """
        while self._read_line() != "\\data\\":
            pass
        self._peek_at_line()  # skips empty lines
        sizes: list[int] = []
        line = self._read_line()
        while line:
            sizes.append(self._parse_size(line, order=len(sizes) + 1))
            line = self._read_line()
        return sizes

    def _parse_size(self, line: str, order: int) -> int:
        """The count in `ngram ORDER=COUNT`. Raises DataError for another line or order."""
        name, _, count = line.partition("=")
        if name.split() != ["ngram", str(order)] or not count.strip().isdecimal():
            raise self._error(f"expected `ngram {order}=COUNT`, found {line[:40]!r}")
        return int(count)

    def _read_section(self, order: int, size: int, *, is_highest: bool) -> None:
        """Read the n-grams of one order. Raises DataError if their number is not `size`.

        If `size` is 0, the section may be missing with its title: some programs leave it out.
        """
        title = f"\\{order}-grams:"
        if size == 0 and self._peek_at_line() != title:
            return
        self._read_title(title)
        for count in range(size):
            line = self._read_line()
            if not line or line.startswith("\\"):
                raise self._error(
                    f"{count} n-grams, but the header has {size}; the file is damaged"
                )
            self._read_ngram(_FIELD_END.split(line), order, is_highest=is_highest)
        if not self._peek_at_line().startswith("\\"):
            self._line_number += 1  # the error names the line after the section
            raise self._error(
                f"more {order}-grams than the {size} of the header; the file is damaged"
            )

    def _read_ngram(self, fields: Sequence[str], order: int, *, is_highest: bool) -> None:
        """Add one n-gram: log10 of its probability, its words, and log10 of its backoff.

        The backoff may be missing; its logarithm is then 0. n-grams of the highest order have none.
        1-grams may have one even then, which is not used.

        Raises DataError for another number of fields, a wrong number, a word that is no 1-gram, and
        a repeated n-gram.
        """
        has_backoff = len(fields) == order + 2
        may_have_backoff = order == 1 or not is_highest
        is_complete = len(fields) == order + 1 or (has_backoff and may_have_backoff)
        if not is_complete:
            raise self._error(
                f"expected a logarithm, {order} words and a backoff, found {len(fields)} fields; "
                "the file is damaged"
            )
        log10_prob = self._parse_logarithm(fields[0])
        if log10_prob > 0:
            raise self._error(f"a probability of 10^{fields[0]} is above 1; the file is damaged")
        names = [translate_word(name) for name in fields[1 : order + 1]]
        if order == 1:  # the 1-grams are all words of the file
            self.words.setdefault(names[0], len(self.words))
        ngram = self._find_words(names)
        if ngram in self.log_probs:
            raise self._error(f"{' '.join(names)!r} is repeated; remove one of the two lines")
        self.log_probs[ngram] = log10_prob * _LN_10
        if not is_highest:
            log10_backoff = self._parse_logarithm(fields[-1]) if has_backoff else 0.0
            self.backoffs[ngram] = log10_backoff * _LN_10

    def _find_words(self, names: Sequence[str]) -> WordIds:
        """The numbers of words. Raises DataError for one that is no 1-gram."""
        for name in names:
            if name not in self.words:
                raise self._error(f"{name!r} is no 1-gram; the file is damaged")
        return tuple(self.words[name] for name in names)

    def _parse_logarithm(self, text: str) -> float:
        """A finite number. Raises DataError for other text, NaN and infinity."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self._error(f"{text[:40]!r} is no logarithm; the file is damaged")
        return value

    def _read_line(self) -> str:
        """The next line, without spaces and tabs around it.

        Raises DataError at the end of the file.
        """
        if self._line_number == len(self._lines):
            has_header = "\\data\\" in self._lines
            fault = "ends before \\end\\" if has_header else "has no line \\data\\"
            raise DataError(self.path, fault, "give a complete n-gram model in ARPA format")
        line = self._lines[self._line_number]
        self._line_number += 1
        return line.strip(" \t")

    def _peek_at_line(self) -> str:
        """The next line that is not empty. The next call of a reading method gets it again."""
        line = ""
        while not line:
            line = self._read_line()
        self._line_number -= 1
        return line

    def _read_title(self, title: str) -> None:
        """Read empty lines and then the line `title`. Raises DataError if it is another line."""
        line = self._peek_at_line()
        self._line_number += 1
        if line != title:
            raise self._error(f"expected {title}, found {line[:40]!r}")

    def _error(self, text: str) -> DataError:
        """An error in the last line that was read."""
        return DataError(f"{self.path}:{self._line_number}", text)

    def _add_missing_prefixes(self) -> None:
        """Add the n-grams that SRILM leaves out although longer ones begin with them.

        Their log-probability is the one that backing off gives. Their backoff is 1, of which the
        logarithm is 0.
        """
        for ngram in list(self.log_probs):
            for length in range(1, len(ngram)):
                prefix = ngram[:length]
                if prefix not in self.log_probs:
                    self.log_probs[prefix] = self._back_off(prefix)
                    self.backoffs[prefix] = 0.0

    def _back_off(self, ngram: WordIds) -> float:
        """The log-probability of the last word of an n-gram after the others, base e.

        If the file does not have the n-gram, it is the backoff of the others and the
        log-probability after a shorter history.
        """
        log_prob = self.log_probs.get(ngram)
        if log_prob is not None:
            return log_prob
        return self.backoffs.get(ngram[:-1], 0.0) + self._back_off(ngram[1:])


# ---- KenLM


class _KenlmStep(NamedTuple):
    """What KenLM answered for one unit after one state."""

    log_prob: float
    """Base e."""
    next_state: int


class KenlmModel(LanguageModel):
    """A binary file of KenLM, read by its own library.

    A state is the number of a state of KenLM that was seen before: 0 is the begin of a sentence.
    KenLM's states are no longer than the model needs, so there are at most as many as the model has
    contexts.
    """

    known: list[str]
    """The recogniser's units that the model knows."""

    def __init__(self, path: Path, units: UnitTable) -> None:
        """Open a binary file of KenLM and look up the units of a recogniser in it.

        Raises ConfigError if kenlm is not installed, DataError if it cannot read the file.
        """
        self._kenlm = _import_kenlm(path)
        try:
            self._model = self._kenlm.Model(str(path))
        except OSError as error:
            to_do = "build it again with build_binary"
            raise DataError(path, "kenlm cannot read it", to_do) from error
        self.known = []
        unknown = list[str]()
        # The word of each unit. Special units are <unk>, and <eos> is the end.
        self._words = [UNKNOWN] * len(units)
        for unit_id, unit in list_text_units(units):
            word = self._find_word(unit)
            self._words[unit_id] = word
            if word in self._model:
                self.known.append(unit)
            else:
                unknown.append(unit)
        self.unknown = unknown
        self._words[units.special.eos] = END
        begin = self._kenlm.State()
        self._model.BeginSentenceWrite(begin)
        self._states = [begin]
        self._number_of = {begin: 0}  # state → its index in `_states`
        self._steps = dict[tuple[int, int], _KenlmStep]()  # (number of a state, unit id) → step

    def _find_word(self, unit: str) -> str:
        """The spelling with which the model has a unit; the unit if it has none.

        The space may be `<space>`. Other units may be in another form of Unicode.
        """
        if unit == SPACE:
            spellings = [OTHER_SPACE, SPACE]
        else:
            spellings = [unit, normalize("NFC", unit), normalize("NFD", unit)]
        for spelling in spellings:
            if spelling in self._model:
                return spelling
        return unit

    def start(self, count: int, device: torch.device | None = None) -> Tensor:
        """The state 0 for each hypothesis, the begin of a sentence; see `LanguageModel`."""
        return torch.zeros(count, dtype=torch.int64, device=device)

    def score(self, states: Tensor, ids: Tensor) -> Tensor:
        """As in `LanguageModel`: KenLM is asked for one unit of one hypothesis at a time."""
        rows = [
            [self._step(state, unit_id).log_prob for unit_id in unit_ids]
            for state, unit_ids in zip(states.tolist(), ids.tolist(), strict=True)
        ]
        return torch.tensor(rows, device=ids.device)

    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        """The numbers of KenLM's states after one more unit each; see `LanguageModel`."""
        pairs = zip(states.tolist(), ids.tolist(), strict=True)
        next_states = [self._step(state, unit_id).next_state for state, unit_id in pairs]
        return torch.tensor(next_states, device=ids.device)

    def _step(self, state: int, unit_id: int) -> _KenlmStep:
        """The log-probability of a unit after a state, and the next state. States are numbers.

        A state that is new gets the next number. Steps are kept, because `advance` repeats one of
        those that `score` made; if there are very many, all are dropped.
        """
        step = self._steps.get((state, unit_id))
        if step is not None:
            return step
        after = self._kenlm.State()
        log10_prob = self._model.BaseScore(self._states[state], self._words[unit_id], after)
        next_state = self._number_of.get(after)
        if next_state is None:
            next_state = len(self._states)
            self._number_of[after] = next_state
            self._states.append(after)
        if len(self._steps) >= _MAX_STEPS:
            self._steps.clear()
        step = _KenlmStep(log10_prob * _LN_10, next_state)
        self._steps[state, unit_id] = step
        return step


def _import_kenlm(path: Path) -> Any:
    """KenLM's library. Raises ConfigError if it is not installed. `path`: the file to read."""
    try:
        import kenlm
    except ImportError as error:
        to_do = "run `pip install 'wenet_hs[kenlm]'`, or give the ARPA file"
        raise ConfigError(f"--lm {path}", "is a binary file of KenLM", to_do) from error
    return kenlm
