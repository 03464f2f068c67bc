# SPDX-License-Identifier: Apache-2.0
"""The units of a text as one sequence on disk, and batches of it for truncated back-propagation.

Dimension key: N units of the text with one end of sentence per line, V units of the table, B parts
of the text that are read side by side, T units of each part per batch.
"""

import logging
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

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

NO_TARGET = -1
"""In the targets of a batch: a position after the end of the text."""
_BLOCK_SIZE = 1_000_000
"""How many units are in memory at once while a text is written or counted."""


class TextBatch(NamedTuple):
    """The next units of each part of a text."""

    inputs: Tensor
    """(B, T) int64: the unit before each target. Before the first unit of the text it is the end
    of sentence."""
    targets: Tensor
    """(B, T) int64: `NO_TARGET` after the end of the text."""


@dataclass(frozen=True)
class RunningText:
    """All sentences of a text, one after the other."""

    ids: NDArray[np.int32]
    """(N,), memory-mapped: the units of each sentence, then an end of sentence."""
    eos: int
    """The end of sentence. It is also the input before the first sentence: a `<sos>` of its own
    would be an input only once per epoch."""
    num_sentences: int
    num_empty: int
    """Lines without units. They are sentences too with `keep_empty_lines`, else left out."""
    num_unknown: int
    """Units that are `<unk>`."""
    num_characters: int
    """Of the lines in NFC, with one line end each."""

    def __len__(self) -> int:
        """N."""
        return len(self.ids)

    def count_units(self, num_units: int) -> NDArray[np.int64]:
        """(V,) how often each of the `num_units` units occurs; the end of sentence is one of them.

        Reads the text in blocks, so it may be larger than the memory.
        """
        counts_V = np.zeros(num_units, np.int64)
        for begin in range(0, len(self.ids), _BLOCK_SIZE):
            block = self.ids[begin : begin + _BLOCK_SIZE]
            counts_V += np.bincount(block, minlength=num_units)
        return counts_V

    def num_batches(self, batch_size: int, num_steps: int) -> int:
        """Batches of one pass with these sizes; the last one may be shorter."""
        return _divide_up(self._part_length(batch_size), num_steps)

    def batches(self, batch_size: int, num_steps: int, start: int = 0) -> Iterator[TextBatch]:
        """One pass over the text, in which every unit is a target once.

        The text is cut into B parts of equal length, which are read side by side: row b of a batch
        continues row b of the batch before it. The end of the last part is filled with `NO_TARGET`.

        Args:
            batch_size: B.
            num_steps: T. The last batch may have fewer.
            start: the number of the first batch, from 0; those before it are skipped.
        """
        length = self._part_length(batch_size)  # of a part
        part_begins_B = np.arange(batch_size) * length
        last = len(self.ids) - 1
        for first_step in range(start * num_steps, length, num_steps):
            steps_T = np.arange(first_step, min(first_step + num_steps, length))
            positions_BT = part_begins_B[:, None] + steps_T
            # Positions outside of the text cannot be read, so others are read instead of them
            # (`minimum`, `clip`), and `where` replaces what was read there.
            units_BT = self.ids[np.minimum(positions_BT, last)]
            units_before_BT = self.ids[np.clip(positions_BT - 1, 0, last)]
            targets_BT = np.where(positions_BT > last, NO_TARGET, units_BT)
            inputs_BT = np.where(positions_BT == 0, self.eos, units_before_BT)
            yield TextBatch(
                inputs=torch.from_numpy(inputs_BT).long(),
                targets=torch.from_numpy(targets_BT).long(),
            )

    def _part_length(self, batch_size: int) -> int:
        """Units of each part but the last, which may be shorter."""
        return _divide_up(len(self.ids), batch_size)


def _divide_up(dividend: int, divisor: int) -> int:
    """The quotient of two integers, rounded up."""
    return -(-dividend // divisor)  # `//` rounds down, and -x rounded down is -(x rounded up)


# ---- reading a text


@dataclass
class _TextCounts:
    """What was counted while a text was encoded; see the fields of `RunningText`."""

    num_sentences: int = 0
    num_empty: int = 0
    num_unknown: int = 0
    num_characters: int = 0


def read_running_text(
    paths: Iterable[Path], tokenizer: Tokenizer, *, keep_empty_lines: bool = False
) -> RunningText:
    """Encode text files, one sentence per line, and log their counts.

    The ids are in a temporary file, so the text may exceed the memory.

    Args:
        keep_empty_lines: an empty line is a sentence of only an end. Default: it is left out.
    Raises:
        DataError: a file cannot be read or is no text (`iterate_sentences`), there is no unit, at
            least half of the units are unknown (`MOST_UNKNOWN`), or the folder of temporary files
            is full.
    """
    paths = list(paths)
    names = ", ".join(map(str, paths))
    counts = _TextCounts()
    eos = tokenizer.table.special.eos
    with _report_full_folder(), tempfile.TemporaryFile(prefix="wenet_hs-ids-") as file:
        sentences = _encode_lines(paths, tokenizer, counts, keep_empty_lines=keep_empty_lines)
        num_ids = _write_ids(file, sentences, eos)
        if num_ids == counts.num_sentences:  # nothing but ends of sentences
            raise DataError(names, "contains no sentences", "write one per line")
        # The file has no name. Its content stays on the disk until the array is deleted.
        ids_N = np.memmap(file, np.int32, "r", shape=(num_ids,))
    _refuse_mostly_unknown(names, counts.num_unknown, num_ids)
    logger.info(
        "%s: %d units in %d sentences; %d empty lines %s; %d units (%.2f %%) are <unk>",
        names,
        num_ids,
        counts.num_sentences,
        counts.num_empty,
        "kept" if keep_empty_lines else "left out",
        counts.num_unknown,
        100 * counts.num_unknown / num_ids,
    )
    return RunningText(
        ids=ids_N,
        eos=eos,
        num_sentences=counts.num_sentences,
        num_empty=counts.num_empty,
        num_unknown=counts.num_unknown,
        num_characters=counts.num_characters,
    )


def _encode_lines(
    paths: Iterable[Path], tokenizer: Tokenizer, counts: _TextCounts, *, keep_empty_lines: bool
) -> Iterator[list[int]]:
    """The unit ids of each line, without an end of sentence. Adds to `counts` line by line."""
    unk = tokenizer.table.special.unk
    for path in paths:
        for line in iterate_sentences(path):
            if not line:
                counts.num_empty += 1
                if not keep_empty_lines:
                    continue
            ids = tokenizer.encode(line)
            if unk is not None:
                counts.num_unknown += ids.count(unk)
            counts.num_sentences += 1
            counts.num_characters += len(line) + 1  # and its line end
            yield ids


def _write_ids(file: IO[bytes], sentences: Iterable[Sequence[int]], eos: int) -> int:
    """Write the ids of each sentence, and `eos` after each, as int32. Returns the number of ids.

    They are written in blocks. At the end, all are on the disk.
    """
    block = array("i")
    for ids in sentences:
        block.extend(ids)
        block.append(eos)
        if len(block) >= _BLOCK_SIZE:
            block.tofile(file)
            del block[:]
    block.tofile(file)
    num_ids = file.tell() // block.itemsize
    file.flush()
    return num_ids


@contextmanager
def _report_full_folder() -> Iterator[None]:
    """Raise DataError with the folder of temporary files if the disk is full inside of `with`."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        fault = f"{error.strerror}; the units of the text are written there"
        to_do = "free disk space, or name another folder in TMPDIR"
        raise DataError(tempfile.gettempdir(), fault, to_do) from error


def _refuse_mostly_unknown(names: str, num_unknown: int, num_ids: int) -> None:
    """Raise DataError if at least the share `MOST_UNKNOWN` of the units is unknown."""
    if num_unknown >= MOST_UNKNOWN * num_ids:
        fault = f"{num_unknown:,} of {num_ids:,} units are <unk> or not in the unit table"
        to_do = "give text of this language and kind of units, or a table with more units"
        raise DataError(names, fault, to_do)


def count_text(path: Path, tokenizer: Tokenizer) -> dict[str, str | int]:
    """The counts of a text file by the names of their columns, as in Table 1 of Jiang et al. 2017.

    Empty lines count as sentences. Raises DataError if the file is no text of these units.
    """
    text = read_running_text([path], tokenizer, keep_empty_lines=True)
    counts_V = text.count_units(len(tokenizer.table))
    return {
        "text": path.name,
        "lines": text.num_sentences,
        "empty lines": text.num_empty,
        "units with line ends": len(text),
        "distinct units": int(np.count_nonzero(counts_V)),
        "characters": text.num_characters,
        "<unk>": text.num_unknown,
    }
