# SPDX-License-Identifier: Apache-2.0
"""What selection needs to know of the transcripts of a list under one tokenizer: two columns, kept beside the list."""

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wenet_hs.data.list_index import new_folder, num_processes, one_at_a_time
from wenet_hs.data.listing import UtteranceTable
from wenet_hs.data.loading import load_ahead
from wenet_hs.data.selection import ctc_frames_needed
from wenet_hs.text.tokenizer import BpeTokenizer, Tokenizer

logger = logging.getLogger(__name__)

BLOCK_ROWS = 1 << 16
_FORMAT = "wenet_hs.transcripts/1"
_COLUMNS = ("num_units", "frames_needed", "with_unknown")


@dataclass(frozen=True, kw_only=True, slots=True)
class Transcripts:
    """Facts of transcripts, a row an utterance."""

    num_units: NDArray[np.int32]
    """(N,)"""
    frames_needed: NDArray[np.int32]
    """(N,) the fewest encoder frames that CTC can align."""
    with_unknown: NDArray[np.int64]
    """The rows, ascending, that have units outside the table."""


def read_transcripts(table: UtteranceTable, tokenizer: Tokenizer) -> Transcripts:
    """Encode every transcript once; of a list with an index, once for all runs with this tokenizer."""
    parts = [_of_list(part, tokenizer) for part in table.parts]
    if len(parts) == 1:
        return parts[0]
    unknown = [part.with_unknown + start for part, start in zip(parts, table.list_starts, strict=True)]
    return Transcripts(
        num_units=np.concatenate([part.num_units for part in parts]),
        frames_needed=np.concatenate([part.frames_needed for part in parts]),
        with_unknown=np.concatenate(unknown),
    )


def _of_list(table: UtteranceTable, tokenizer: Tokenizer) -> Transcripts:
    if table.kept_in is None:
        return _encode(table, tokenizer)
    folder = table.kept_in.with_name(f"{table.kept_in.name}-{_fingerprint(table, tokenizer)}")
    found = _load(folder, len(table))
    if found is not None:
        return found
    try:
        with one_at_a_time(folder):
            found = _load(folder, len(table)) or _encode_and_save(folder, table, tokenizer)
    except PermissionError as error:
        logger.warning("%s: cannot be written (%s); transcripts are encoded at every start", folder, error.strerror)
        found = _encode(table, tokenizer)
    return found


def _encode_and_save(folder: Path, table: UtteranceTable, tokenizer: Tokenizer) -> Transcripts:
    logger.info("%s: encoding %d transcripts, once", folder, len(table))
    made = _encode(table, tokenizer)
    with new_folder(folder) as new:
        for name in _COLUMNS:
            np.save(new / f"{name}.npy", getattr(made, name), allow_pickle=False)
    return _load(folder, len(table)) or made


def _load(folder: Path, num_rows: int) -> Transcripts | None:
    try:
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _COLUMNS[:2]}
        unknown = np.load(folder / "with_unknown.npy", allow_pickle=False)
    except Exception:  # a damaged header is parsed as Python and raises whatever that may raise
        return None
    if any(len(array) != num_rows for array in arrays.values()):
        return None
    return Transcripts(**arrays, with_unknown=unknown)


def _fingerprint(table: UtteranceTable, tokenizer: Tokenizer) -> str:
    """Of the transcripts and of all that decides their ids."""
    facts = [_FORMAT, table.digest, type(tokenizer).__name__, tokenizer.table.units, repr(tokenizer.table.special)]
    if isinstance(tokenizer, BpeTokenizer):
        facts.append(hashlib.sha256(tokenizer.processor.serialized_model_proto()).hexdigest())
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _encode(table: UtteranceTable, tokenizer: Tokenizer) -> Transcripts:
    num_blocks = -(-len(table) // BLOCK_ROWS)
    blocks = list(load_ahead(_Encode(table, tokenizer), range(num_blocks), num_workers=num_processes(num_blocks)))
    counts = np.concatenate([counts for counts, _ in blocks]) if blocks else np.empty((0, 2), np.int32)
    unknown = [rows for _, rows in blocks]
    return Transcripts(
        num_units=np.ascontiguousarray(counts[:, 0]),
        frames_needed=np.ascontiguousarray(counts[:, 1]),
        with_unknown=np.concatenate(unknown) if unknown else np.empty(0, np.int64),
    )


class _Encode:
    """What a worker does with the number of a block of rows."""

    def __init__(self, table: UtteranceTable, tokenizer: Tokenizer) -> None:
        self._table, self._tokenizer = table, tokenizer

    def __call__(self, number: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(rows, 2) units and frames needed; the rows with unknown units."""
        first = number * BLOCK_ROWS
        last = min(first + BLOCK_ROWS, len(self._table))
        unk = self._tokenizer.table.special.unk
        counts, unknown = np.empty((last - first, 2), np.int32), []
        for row in range(first, last):
            ids = self._tokenizer.encode(self._table.row(row).txt)
            counts[row - first] = len(ids), ctc_frames_needed(ids)
            if unk is not None and unk in ids:
                unknown.append(row)
        return counts, np.array(unknown, np.int64)
