# SPDX-License-Identifier: Apache-2.0
"""Utterances of data lists as one table of NumPy columns in memory."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from wenet_hs.manifest import Utterance

_BLOCK_ROWS = 1 << 16
_TEXT = np.dtypes.StringDType(na_object=None)  # UTF-8, about the length of the text plus 16 bytes per row
_COLUMNS = {"key": _TEXT, "wav": _TEXT, "txt": _TEXT, "speaker": _TEXT} | dict.fromkeys(
    ("duration", "start", "end"), np.dtype(np.float64)
)


class UtteranceTable(Sequence[Utterance]):
    """The utterances of one or more lists, in order; a row becomes an `Utterance` when it is read.

    Worker processes share the columns without copies.

    Attributes:
        columns: (N,) each, by the names of an utterance's fields; NaN for a number that the list does not state.
        langs: (N,) positions in `lang_names`; -1 where the list does not state the language.
        list_starts: the first row of each list.
        digest: SHA-256 of everything the lists state about the utterances, except where the audio is.
    """

    def __init__(self, utterances: Iterable[Utterance], list_starts: tuple[int, ...] = (0,)) -> None:
        """Read the utterances in blocks, so that most of them never exist as Python objects at the same time."""
        langs: dict[str | None, int] = {None: -1}
        blocks: list[dict[str, NDArray[Any]]] = []
        digest = hashlib.sha256()
        remaining = iter(utterances)
        while (block := list(islice(remaining, _BLOCK_ROWS))) or not blocks:
            facts = "\n".join(f"{u.key}\t{u.txt}\t{u.duration}\t{u.start}\t{u.end}" for u in block)
            digest.update(("\n" + facts if blocks else facts).encode())
            columns = {name: np.array([getattr(u, name) for u in block], dtype) for name, dtype in _COLUMNS.items()}
            columns["lang"] = np.array([langs.setdefault(u.lang, len(langs) - 1) for u in block], np.int32)
            blocks.append(columns)
        self.columns = {name: np.concatenate([block[name] for block in blocks]) for name in (*_COLUMNS, "lang")}
        self.langs = self.columns.pop("lang")
        self.lang_names = tuple(name for name in langs if name is not None)
        self.list_starts, self.digest = list_starts, digest.hexdigest()

    @property
    def durations(self) -> NDArray[np.float64]:
        """(N,) seconds; NaN where the list does not state the duration."""
        return self.columns["duration"]

    def __len__(self) -> int:
        return len(self.langs)

    @overload
    def __getitem__(self, number: int) -> Utterance: ...
    @overload
    def __getitem__(self, number: slice) -> list[Utterance]: ...
    def __getitem__(self, number: int | slice) -> Utterance | list[Utterance]:
        if isinstance(number, slice):
            return [self[row] for row in range(*number.indices(len(self)))]
        values = {name: column[number] for name, column in self.columns.items()}
        for name in ("duration", "start", "end"):
            values[name] = None if np.isnan(values[name]) else float(values[name])
        lang = int(self.langs[number])
        return Utterance(**values, lang=None if lang < 0 else self.lang_names[lang])
