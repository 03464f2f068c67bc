# SPDX-License-Identifier: Apache-2.0
"""Data lists as tables: a row is an `Utterance` when it is asked for, and a number in a few columns until then."""

import hashlib
import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from wenet_hs.data.list_index import (
    Columns,
    equal_hashes,
    fingerprint_line,
    index_list,
    key_hash,
    load_columns,
    new_folder,
    num_processes,
    one_at_a_time,
    save_columns,
)
from wenet_hs.data.loading import load_ahead
from wenet_hs.data.shards import read_shard_list, scan_shard
from wenet_hs.data.sources import SourceFault, Stamp, stamp
from wenet_hs.errors import DataError
from wenet_hs.files import open_atomic, read_lines
from wenet_hs.manifest import Utterance, parse_utterance, read_data_list, refuse_faults

logger = logging.getLogger(__name__)

DataType = Literal["raw", "shard"]
DATA_TYPES: tuple[DataType, ...] = ("raw", "shard")
IN_MEMORY_BYTES = 32 << 20
"""A list up to this size (a quarter of a million utterances) is read whole; a longer one gets an index."""
_STAMPS_AT_ONCE = 16


class UtteranceTable(Sequence[Utterance], ABC):
    """The utterances of one or more lists, in order.

    Attributes:
        durations: (N,) seconds; NaN where the list does not tell.
        langs: (N,) places in `lang_names`; -1 where the list does not tell.
        list_starts: the first row of each list.
        digest: SHA-256 of what the lists say of each utterance, apart from where the audio is.
        kept_in: the folder of its columns, beside which what is made of them can be kept; None if there is none.
    """

    durations: NDArray[np.float64]
    langs: NDArray[np.int32]
    lang_names: tuple[str, ...]
    list_starts: tuple[int, ...] = (0,)
    digest: str
    kept_in: Path | None = None

    @abstractmethod
    def row(self, number: int) -> Utterance:
        """The utterance of a row, from 0."""

    @abstractmethod
    def key_hashes(self) -> NDArray[np.uint64]:
        """(N,) 64 bits of each key."""

    @property
    def parts(self) -> "tuple[UtteranceTable, ...]":
        """The tables of the single lists."""
        return (self,)

    def __len__(self) -> int:
        return len(self.durations)

    @overload
    def __getitem__(self, number: int) -> Utterance: ...
    @overload
    def __getitem__(self, number: slice) -> list[Utterance]: ...
    def __getitem__(self, number: int | slice) -> Utterance | list[Utterance]:
        if isinstance(number, slice):
            return [self.row(i) for i in range(*number.indices(len(self)))]
        return self.row(range(len(self))[number])


class ListedUtterances(UtteranceTable):
    """Utterances in memory."""

    def __init__(self, utterances: Iterable[Utterance], list_starts: tuple[int, ...] = (0,)) -> None:
        self._utterances, self.list_starts = list(utterances), list_starts
        langs: dict[str, int] = {}
        rows = (-1 if u.lang is None else langs.setdefault(u.lang, len(langs)) for u in self._utterances)
        self.langs = np.fromiter(rows, np.int32, len(self._utterances))
        self.lang_names = tuple(langs)
        self.durations = np.array([np.nan if u.duration is None else u.duration for u in self._utterances], np.float64)
        text = "\n".join(fingerprint_line(utterance) for utterance in self._utterances)
        self.digest = hashlib.sha256(text.encode()).hexdigest()

    def row(self, number: int) -> Utterance:
        return self._utterances[number]

    def key_hashes(self) -> NDArray[np.uint64]:
        return np.array([key_hash(utterance.key) for utterance in self._utterances], np.uint64)


class IndexedList(UtteranceTable):
    """A list on disk with its columns; a row is read from its line, and must be the one that was indexed."""

    def __init__(self, path: Path, columns: Columns, kept_in: Path | None) -> None:
        self._path, self._columns, self.kept_in = path, columns, kept_in
        self.durations, self.langs, self.lang_names = columns.durations, columns.langs, columns.lang_names
        self.digest = columns.digest
        self._file: tuple[int, int] | None = None

    def row(self, number: int) -> Utterance:
        offsets = self._columns.offsets
        begin, end = int(offsets[number]), int(offsets[number + 1])
        try:
            utterance = parse_utterance(os.pread(self._descriptor(), end - begin, begin).decode("utf-8"))
        except (OSError, ValueError) as error:
            raise self._changed() from error
        if key_hash(utterance.key) != self._columns.key_hashes[number]:
            raise self._changed()
        return utterance

    def key_hashes(self) -> NDArray[np.uint64]:
        return self._columns.key_hashes

    def _descriptor(self) -> int:
        """Opened at first use, and again in every worker process."""
        if self._file is None or self._file[0] != os.getpid():
            self._file = (os.getpid(), os.open(self._path, os.O_RDONLY))
        return self._file[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}

    def __del__(self) -> None:
        file = self.__dict__.get("_file")
        if file is not None and file[0] == os.getpid():
            os.close(file[1])

    def _changed(self) -> DataError:
        return DataError(f"{self._path}: is not what was indexed any more; leave it alone, or start again")


class JoinedTables(UtteranceTable):
    """Several lists, one after the other."""

    def __init__(self, tables: Sequence[UtteranceTable]) -> None:
        self._tables = tuple(tables)
        starts = np.cumsum([0, *(len(table) for table in tables)])
        self.list_starts = tuple(starts[:-1].tolist())
        self.durations = np.concatenate([table.durations for table in tables])
        names: dict[str, int] = {}
        langs = []
        for table in tables:
            here = [names.setdefault(name, len(names)) for name in table.lang_names]
            langs.append(np.array([*here, -1], np.int32)[table.langs])  # -1 is the last one
        self.langs, self.lang_names = np.concatenate(langs), tuple(names)
        self.digest = hashlib.sha256("\n".join(table.digest for table in tables).encode()).hexdigest()

    @property
    def parts(self) -> tuple[UtteranceTable, ...]:
        return self._tables

    def row(self, number: int) -> Utterance:
        place = int(np.searchsorted(self.list_starts, number, side="right")) - 1
        return self._tables[place].row(number - self.list_starts[place])

    def key_hashes(self) -> NDArray[np.uint64]:
        return np.concatenate([table.key_hashes() for table in self._tables])


def open_lists(paths: Sequence[Path], data_type: DataType = "raw", *, flag: str = "--train_data") -> UtteranceTable:
    """The utterances of some lists as one table.

    Args:
        data_type: `raw`: JSON a line; `shard`: the path or URL of a tar a line.
        flag: that names the lists, for messages.

    Raises: DataError, a line for each fault; where an utterance stands in two lists.
    """
    tables = [open_list(path, data_type) for path in paths]
    if len(tables) == 1:
        return tables[0]
    joined = JoinedTables(tables)
    seen: set[str] = set()
    for row in equal_hashes(joined.key_hashes()).tolist():
        key = joined.row(row).key
        if key in seen:
            raise DataError(f"{flag}: utterance {key!r} stands in more than one list; give each a unique key")
        seen.add(key)
    if all(isinstance(table, ListedUtterances) for table in tables):
        return ListedUtterances(joined, joined.list_starts)
    return joined


def open_list(path: Path, data_type: DataType = "raw") -> UtteranceTable:
    """The utterances of one list; a long one, or one of shards, has its columns in `LIST.index/`."""
    if data_type == "shard":
        return _open_shards(path)
    if not path.is_file() or path.stat().st_size <= IN_MEMORY_BYTES:
        return ListedUtterances(read_data_list(path))
    status = path.stat()
    belongs_to = {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
    folder = index_folder(path)
    columns = load_columns(folder, belongs_to)
    if columns is None:
        try:
            columns = _make_index(path, folder, belongs_to)
        except PermissionError as error:
            logger.warning("%s: cannot be written (%s); %s is indexed at every start", folder, error.strerror, path)
            return IndexedList(path, index_list(path), None)
    return IndexedList(path, columns, folder)


def index_folder(path: Path) -> Path:
    """Where the columns of a list are kept."""
    return path.with_name(f"{path.name}.index")


def _make_index(path: Path, folder: Path, belongs_to: dict[str, Any]) -> Columns:
    with one_at_a_time(folder):
        columns = load_columns(folder, belongs_to)
        if columns is not None:  # another rank made it
            return columns
        logger.info("%s: indexing %.1f GB, once", path, path.stat().st_size / 1e9)
        columns = index_list(path)
        with new_folder(folder) as new:
            save_columns(new, columns, belongs_to)
    return load_columns(folder, belongs_to) or columns


# Shards


def _open_shards(path: Path) -> IndexedList:
    shards = read_shard_list(read_lines(path))
    if not shards:
        raise DataError(f"{path}: no shards in it; write the path or URL of a tar a line")
    if shards[0].startswith("{"):
        raise DataError(f"{path}:1: not the path of a tar; a list of utterances is read with --data_type raw")
    folder = index_folder(path)
    belongs_to = {"shards": hashlib.sha256("\n".join(shards).encode()).hexdigest()}
    columns = load_columns(folder, belongs_to)
    if columns is None:
        with one_at_a_time(folder):
            columns = load_columns(folder, belongs_to)
            if columns is None:
                return _index_shards(path, shards, folder, belongs_to)
    _check_stamps(folder, shards)
    return IndexedList(folder / "data.list", columns, folder)


def _index_shards(path: Path, shards: list[str], folder: Path, belongs_to: dict[str, Any]) -> IndexedList:
    logger.info("%s: indexing %d shards, once", path, len(shards))
    stamps: list[Stamp] = []
    faults: list[str] = []
    with new_folder(folder) as new:
        with open_atomic(new / "data.list") as file:
            workers = num_processes(len(shards))
            for scan in load_ahead(_Scan(shards), range(len(shards)), num_workers=workers):
                file.write("".join(f"{line}\n" for line in scan.lines).encode())
                stamps.append(scan.stamp)
                faults += scan.faults
        refuse_faults(path, faults)
        columns = _index_unique(new / "data.list", path)
        (new / "shards.json").write_text(json.dumps([asdict(stamp) for stamp in stamps]), "utf-8")
        save_columns(new, columns, belongs_to)
    return IndexedList(folder / "data.list", load_columns(folder, belongs_to) or columns, folder)


class _Scan:
    """What a worker does with the number of a shard."""

    def __init__(self, shards: Sequence[str]) -> None:
        self._shards = shards

    def __call__(self, number: int) -> Any:
        return scan_shard(self._shards[number])


def _index_unique(data_list: Path, shard_list: Path) -> Columns:
    """The columns of the list of members; an utterance that two shards have is told by the shards' names."""
    try:
        return index_list(data_list)
    except DataError as error:
        if "stands already on line" not in str(error):
            raise
    where: dict[str, str] = {}
    faults = []
    for line in read_lines(data_list):
        utterance = parse_utterance(line)
        shard = utterance.wav.rpartition("#")[0]
        if utterance.key in where:
            first = where[utterance.key]
            faults.append(f"{shard}: utterance {utterance.key!r} stands in {first} too; give each a unique key")
        where.setdefault(utterance.key, shard)
    refuse_faults(shard_list, faults)
    raise DataError(f"{shard_list}: an utterance stands in two shards; give each a unique key")


def _check_stamps(folder: Path, shards: Sequence[str]) -> None:
    """Raises DataError naming each shard that is gone, or not what it was when it was indexed."""
    then = [Stamp(**record) for record in json.loads((folder / "shards.json").read_text("utf-8"))]
    with ThreadPoolExecutor(_STAMPS_AT_ONCE) as pool:
        now = pool.map(_stamp_or_fault, shards)
        faults = [fault for fault in map(_change, shards, then, now) if fault is not None]
    refuse_faults(folder, [f"{fault}; restore it, or remove {folder} to index anew" for fault in faults])


def _stamp_or_fault(shard: str) -> Stamp | str:
    try:
        return stamp(shard)
    except SourceFault as fault:
        return str(fault)


def _change(shard: str, then: Stamp, now: Stamp | str) -> str | None:
    if isinstance(now, str):
        return f"{shard}: {now}"
    if now.size != then.size:
        return f"{shard}: {now.size} bytes, its index says {then.size}"
    return None if now.version == then.version else f"{shard}: was changed after it was indexed"
