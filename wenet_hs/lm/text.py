# SPDX-License-Identifier: Apache-2.0
"""The units of a text as one sequence, on disk, and its batches for truncated back-propagation.

Dimension key: N units of the text with an end of sentence per line, V units of the table, B parts
of the text, T units of each part per batch.
"""

import logging
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.base.files import NO_SPACE
from wenet_hs.manifest.data_list import iterate_sentences
from wenet_hs.text.tokenizer import Tokenizer
from wenet_hs.text.units import MOST_UNKNOWN
from wenet_hs.tree.errors import DataError

logger = logging.getLogger(__name__)

_BUFFER = 1_000_000  # units that are in memory before they are written


class TextBatch(NamedTuple):
    """A part of the running text per row."""

    inputs: Tensor
    """(B, T) int64: the unit before each target; before the first one of the text the end of
    sentence.
    """
    targets: Tensor
    """(B, T) int64, -1 after the end of the text."""


@dataclass(frozen=True)
class RunningText:
    """All sentences of a text, one after the other."""

    ids: NDArray[np.int32]
    """(N,), memory-mapped: each sentence and an end of sentence."""
    eos: int
    """The end of sentence, also before the first sentence: a `<sos>` of its own would be an input
    once per epoch.
    """
    num_sentences: int
    num_empty: int
    """Lines without units: sentences too with `keep_empty_lines`, else left out."""
    num_unknown: int
    """Units that are `<unk>`."""
    num_characters: int
    """Of the lines in NFC, with one line end each."""

    def __len__(self) -> int:
        return len(self.ids)

    def counts(self, num_units: int) -> NDArray[np.int64]:
        """(V,) how often each unit is a target."""
        parts = (self.ids[first : first + _BUFFER] for first in range(0, len(self.ids), _BUFFER))
        return sum(
            (np.bincount(part, minlength=num_units) for part in parts),
            np.zeros(num_units, np.int64),
        )

    def num_batches(self, batch_size: int, num_steps: int) -> int:
        """Batches of one pass."""
        return -(-self._part_length(batch_size) // num_steps)

    def batches(self, batch_size: int, num_steps: int, start: int = 0) -> Iterator[TextBatch]:
        """The text as `batch_size` parts of equal length, read side by side, from batch `start` on.

        Row b of a batch continues row b of the batch before it. Every unit of the text is a target
        once per pass.
        """
        length = self._part_length(batch_size)
        begins = np.arange(batch_size) * length
        for first in range(start * num_steps, length, num_steps):
            columns = np.arange(first, min(first + num_steps, length))
            at_BT = begins[:, None] + columns
            targets_BT = np.where(
                at_BT < len(self.ids), self.ids[np.minimum(at_BT, len(self.ids) - 1)], -1
            )
            before_BT = np.where(
                at_BT == 0, self.eos, self.ids[np.clip(at_BT - 1, 0, len(self.ids) - 1)]
            )
            yield TextBatch(torch.from_numpy(before_BT).long(), torch.from_numpy(targets_BT).long())

    def _part_length(self, batch_size: int) -> int:
        return -(-len(self.ids) // batch_size)


@contextmanager
def _report_full_folder() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        found = f"{error.strerror}; the units of the text are written there"
        raise DataError(
            tempfile.gettempdir(), found, "free disk space, or name another folder in TMPDIR"
        ) from error


def read_running_text(
    paths: Iterable[Path], tokenizer: Tokenizer, *, keep_empty_lines: bool = False
) -> RunningText:
    """Encode text files, one sentence per line; the ids are in a temporary file, so the text may
    exceed the memory.

    Raises DataError if a file cannot be read or is no text (`iterate_sentences`), if there is no
    unit, if a share of `MOST_UNKNOWN` of the units is unknown, or if the folder of temporary files
    is full.
    """
    special = tokenizer.table.special
    num_sentences = num_empty = num_unknown = num_characters = 0
    names = ", ".join(map(str, paths := list(paths)))
    buffer = array("i")
    with _report_full_folder(), tempfile.TemporaryFile(prefix="wenet_hs-ids-") as file:
        for path in paths:
            for text in iterate_sentences(path):
                num_empty += not text
                if not text and not keep_empty_lines:
                    continue
                ids = tokenizer.encode(text)
                num_unknown += ids.count(-1 if special.unk is None else special.unk)
                buffer.extend(ids)
                buffer.append(special.eos)
                num_sentences += 1
                num_characters += len(text) + 1
                if len(buffer) >= _BUFFER:
                    buffer.tofile(file)
                    del buffer[:]
        buffer.tofile(file)
        num_units = file.tell() // buffer.itemsize
        if num_units == num_sentences:
            raise DataError(names, "contains no sentences", "write one per line")
        file.flush()
        ids_N = np.memmap(
            file, np.int32, "r", shape=(num_units,)
        )  # keeps the file, which has no name, until the end
    if num_unknown >= MOST_UNKNOWN * num_units:
        found = f"{num_unknown:,} of {num_units:,} units are <unk> or not in the unit table"
        raise DataError(
            names, found, "give text of this language and kind of units, or a table with more units"
        )
    logger.info(
        "%s: %d units in %d sentences; %d empty lines %s; %d units (%.2f %%) are <unk>",
        *(names, num_units, num_sentences, num_empty, "kept" if keep_empty_lines else "left out"),
        *(num_unknown, 100 * num_unknown / num_units),
    )
    return RunningText(ids_N, special.eos, num_sentences, num_empty, num_unknown, num_characters)


def count_text(path: Path, tokenizer: Tokenizer) -> dict[str, str | int]:
    """What a text contains (Table 1 of Jiang et al. 2017), with empty lines."""
    text = read_running_text([path], tokenizer, keep_empty_lines=True)
    counts = {
        "lines": text.num_sentences,
        "empty lines": text.num_empty,
        "units with line ends": len(text),
    }
    distinct = int((text.counts(len(tokenizer.table)) > 0).sum())
    counts |= {
        "distinct units": distinct,
        "characters": text.num_characters,
        "<unk>": text.num_unknown,
    }
    return {"text": path.name, **counts}
