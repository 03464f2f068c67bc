# SPDX-License-Identifier: Apache-2.0
"""Reading n-gram models in ARPA format, the one that SRILM and KenLM write.

Dimension key: G n-grams, C contexts (context 0 is the empty one).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wenet_hs.errors import DataError

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
_LN_10 = math.log(10.0)
_Lines = Iterator[tuple[int, str]]


@dataclass(frozen=True)
class Ngrams:
    """An n-gram model as tables. A context is what n-grams are asked behind, at most n - 1 words."""

    path: Path
    words: dict[str, int]
    contexts: NDArray[np.int64]
    """(G,) of each n-gram all its words but the last, as a context."""
    last_words: NDArray[np.int64]
    """(G,) its last word."""
    log_probs: NDArray[np.float64]
    """(G,) natural logarithms."""
    behind: NDArray[np.int64]
    """(G,) the context behind it: the longest end of it that is one."""
    backoffs: NDArray[np.float64]
    """(C,) natural logarithms; 0 where the file has none."""
    shorter: NDArray[np.int64]
    """(C,) the longest proper end of each context that is one; of the empty one itself."""


@dataclass
class _Reading:
    """What has been read so far."""

    path: Path
    words: dict[str, int] = field(default_factory=dict)
    entries: dict[tuple[int, ...], float] = field(default_factory=dict)
    backoffs: dict[tuple[int, ...], float] = field(default_factory=dict)


def read_arpa(path: Path) -> Ngrams:
    """The n-grams of a file; logarithms are taken to base e.

    Raises: DataError with file and line where it is no ARPA file, a number is none, a probability is above 1, an n-gram
        comes twice or has a word that is no 1-gram, a section has another number of n-grams than the head says, or
        there is no `</s>`.
    """
    with path.open(encoding="utf-8-sig", errors="strict") as file:
        try:
            reading = _read(path, ((number, line.strip(" \t\r\n")) for number, line in enumerate(file, 1)))
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: is not UTF-8 text; give an n-gram model in ARPA format") from error
    if END not in reading.words:
        raise DataError(f"{path}: has no 1-gram {END}; build the model over whole sentences")
    return _tables(reading)


def _read(path: Path, lines: _Lines) -> _Reading:
    reading, sizes = _Reading(path), _read_head(path, lines)
    for order, size in enumerate(sizes, 1):
        title_line = _skip_to(path, lines, f"\\{order}-grams:")
        for numbered in _until_blank(path, lines, size, title_line):
            _read_entry(reading, order, len(sizes), numbered)
    _skip_to(path, lines, "\\end\\")
    return reading


def _read_head(path: Path, lines: _Lines) -> list[int]:
    """How many n-grams there are of each order."""
    for _, line in lines:
        if line == "\\data\\":
            break
    else:
        raise DataError(f"{path}: no line \\data\\; give an n-gram model in ARPA format")
    sizes: list[int] = []
    for number, line in lines:
        if not line and sizes:
            return sizes
        name, _, size = line.partition("=")
        if not line:
            continue
        if name.split() != ["ngram", str(len(sizes) + 1)] or not size.strip().isdecimal():
            raise DataError(f"{path}:{number}: expected `ngram {len(sizes) + 1}=COUNT`, found {line[:40]!r}")
        sizes.append(int(size))
    raise DataError(f"{path}: ends inside \\data\\; the file is cut off, copy it again")


def _skip_to(path: Path, lines: _Lines, title: str) -> int:
    for number, line in lines:
        if line == title:
            return number
        if line:
            raise DataError(f"{path}:{number}: expected {title}, found {line[:40]!r}")
    raise DataError(f"{path}: no line {title}; the file is cut off, copy it again")


def _until_blank(path: Path, lines: _Lines, size: int, title_line: int) -> _Lines:
    """The next `size` lines."""
    for found in count() if size else ():
        number, line = next(lines, (title_line, ""))
        if not line or line.startswith("\\"):
            raise DataError(f"{path}:{number}: {found} n-grams where the head says {size}; the file is damaged")
        yield number, line
        if found + 1 == size:
            return


def _read_entry(reading: _Reading, order: int, highest: int, numbered: tuple[int, str]) -> None:
    """`log10 probability, words, log10 backoff`; the backoff may be missing."""
    number, line = numbered
    where, fields = f"{reading.path}:{number}", line.split()
    if len(fields) not in (order + 1, order + 2) or (order == highest and len(fields) == order + 2 and order > 1):
        raise DataError(f"{where}: expected a logarithm, {order} words and a backoff, found {len(fields)} fields")
    log_prob = _number(where, fields[0])
    if log_prob > 0:
        raise DataError(f"{where}: a probability of 10^{fields[0]} is above 1; the file is damaged")
    if order == 1:
        reading.words.setdefault(UNKNOWN if fields[1] == "<UNK>" else fields[1], len(reading.words))
    words = tuple(reading.words.get(UNKNOWN if word == "<UNK>" else word, -1) for word in fields[1 : order + 1])
    if -1 in words:
        raise DataError(f"{where}: {fields[1 + words.index(-1)]!r} is no 1-gram; the file is damaged")
    if words in reading.entries:
        raise DataError(f"{where}: {' '.join(fields[1 : order + 1])!r} comes twice; take one of them out")
    reading.entries[words] = log_prob * _LN_10
    if order < highest:
        reading.backoffs[words] = _number(where, fields[order + 1]) * _LN_10 if len(fields) == order + 2 else 0.0


def _number(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: {text[:40]!r} is no logarithm; the file is damaged")
    return value


def _complete(reading: _Reading) -> None:
    """Add what a pruned model lacks: the n-grams that longer ones begin with, of the probability that they have."""

    def log_prob(words: tuple[int, ...]) -> float:
        found = reading.entries.get(words)
        return reading.backoffs.get(words[:-1], 0.0) + log_prob(words[1:]) if found is None else found

    for words in list(reading.entries):
        for size in range(1, len(words)):
            if words[:size] not in reading.entries:
                reading.entries[words[:size]] = log_prob(words[:size])
                reading.backoffs[words[:size]] = 0.0


def _tables(reading: _Reading) -> Ngrams:
    _complete(reading)
    nodes: dict[tuple[int, ...], int] = {(): 0}
    for words in reading.backoffs:
        nodes[words] = len(nodes)

    def longest(words: tuple[int, ...]) -> int:
        return next(nodes[words[begin:]] for begin in range(len(words) + 1) if words[begin:] in nodes)

    entries = reading.entries
    return Ngrams(
        path=reading.path,
        words=reading.words,
        contexts=np.array([nodes[words[:-1]] for words in entries], np.int64),
        last_words=np.array([words[-1] for words in entries], np.int64),
        log_probs=np.array(list(entries.values()), np.float64),
        behind=np.array([longest(words) for words in entries], np.int64),
        backoffs=np.array([reading.backoffs.get(words, 0.0) for words in nodes], np.float64),
        shorter=np.array([longest(words[1:]) for words in nodes], np.int64),
    )
