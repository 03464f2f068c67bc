# SPDX-License-Identifier: Apache-2.0
"""The columns of a long list: where each line is, its seconds, language and key's hash; made once, kept on disk.

`LIST.index/` is a folder of .npy columns and `index.json`, committed by a rename. It belongs to one state of the list.
"""

import fcntl
import glob
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wenet_hs.data.loading import load_ahead
from wenet_hs.errors import DataError
from wenet_hs.files import fsync_path, write_atomic
from wenet_hs.manifest import NO_UTTERANCES, Utterance, parse_utterance, refuse_faults

logger = logging.getLogger(__name__)

FORMAT = "wenet_hs.index/1"
BLOCK_BYTES = 8 << 20
"""Of a list, indexed at a time by one process."""
_FEWEST_BLOCKS = 4  # that are worth starting processes for
_HASH_BYTES = 8
_NO_LANG = -1
_BOM = b"\xef\xbb\xbf"
_COLUMNS = ("offsets", "durations", "langs", "key_hashes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Facts of a list, a row an utterance."""

    offsets: NDArray[np.int64]
    """(N + 1,) first byte of each line; the last is the end of the last line."""
    durations: NDArray[np.float64]
    """(N,) seconds; NaN where the list does not tell."""
    langs: NDArray[np.int32]
    """(N,) places in `lang_names`; -1 where the list does not tell."""
    key_hashes: NDArray[np.uint64]
    """(N,)"""
    lang_names: tuple[str, ...]
    digest: str
    """SHA-256 of what the list says of each utterance, apart from where the audio is."""


def key_hash(key: str) -> int:
    """64 bits of a key."""
    return int.from_bytes(blake2b(key.encode(), digest_size=_HASH_BYTES).digest(), "little")


def fingerprint_line(utterance: Utterance) -> str:
    """What the digest of a list is made of: everything about an utterance but where its audio is."""
    return f"{utterance.key}\t{utterance.txt}\t{utterance.duration}\t{utterance.start}\t{utterance.end}"


def num_processes(num_blocks: int) -> int:
    """How many processes to work on so many blocks with; 0 is this one."""
    return 0 if num_blocks < _FEWEST_BLOCKS else min(num_blocks, len(os.sched_getaffinity(0)))


# Building


@dataclass(frozen=True, slots=True)
class _Block:
    """The rows of the lines that begin in one stretch of a list."""

    rows: list[tuple[int, float, int, int]]
    """offset, seconds, language, hash of the key."""
    lang_names: list[str]
    digest_bytes: bytes
    faults: list[tuple[int, str]]
    """Line within the block, from 0, and what is wrong with it."""
    num_lines: int
    end: int
    """After the last line, without its line end."""


def index_list(path: Path) -> Columns:
    """Read a `data.list` from end to end. Raises DataError as `read_data_list` does: a line for each fault."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    num_blocks = max(1, -(-size // BLOCK_BYTES))
    blocks = load_ahead(partial(_index_block, path), range(num_blocks), num_workers=num_processes(num_blocks))
    columns = _joined(path, blocks)
    if not len(columns.durations):
        raise DataError(f"{path}: {NO_UTTERANCES}")
    _refuse_duplicates(path, columns)
    return columns


def _joined(path: Path, blocks: Iterator[_Block]) -> Columns:
    parts: list[NDArray[Any]] = []
    langs: dict[str, int] = {}
    faults: list[str] = []
    digest, num_lines, end = hashlib.sha256(), 0, 0
    for block in blocks:
        rows = np.array(block.rows, dtype=_ROW)
        here = np.array([langs.setdefault(name, len(langs)) for name in block.lang_names] + [_NO_LANG], np.int32)
        rows["lang"] = here[rows["lang"]]  # -1 is the last one
        if len(rows):
            digest.update(b"\n" + block.digest_bytes if end else block.digest_bytes)
            end = block.end
        parts.append(rows)
        faults += [f"{path}:{num_lines + line + 1}: {fault}" for line, fault in block.faults]
        num_lines += block.num_lines
    refuse_faults(path, faults)
    return Columns(
        offsets=np.append(_column(parts, "offset"), end),
        durations=_column(parts, "duration"),
        langs=_column(parts, "lang"),
        key_hashes=_column(parts, "key"),
        lang_names=tuple(langs),
        digest=digest.hexdigest(),
    )


_ROW = np.dtype([("offset", np.int64), ("duration", np.float64), ("lang", np.int32), ("key", np.uint64)])


def _column(parts: Sequence[NDArray[Any]], name: str) -> NDArray[Any]:
    return np.concatenate([part[name] for part in parts])


def _index_block(path: Path, number: int) -> _Block:
    rows: list[tuple[int, float, int, int]] = []
    langs: dict[str, int] = {}
    facts: list[str] = []
    faults: list[tuple[int, str]] = []
    count = end = 0
    for count, (offset, raw) in enumerate(_lines_of(path, number), start=1):
        if not raw.strip():
            continue
        try:
            utterance = parse_utterance(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            faults.append((count - 1, f"not UTF-8 at byte {error.start}; convert the file to UTF-8"))
            continue
        except ValueError as error:
            faults.append((count - 1, str(error)))
            continue
        seconds = float("nan") if utterance.duration is None else utterance.duration
        lang = _NO_LANG if utterance.lang is None else langs.setdefault(utterance.lang, len(langs))
        rows.append((offset, seconds, lang, key_hash(utterance.key)))
        facts.append(fingerprint_line(utterance))
        end = offset + len(raw)
    return _Block(rows, list(langs), "\n".join(facts).encode(), faults, count, end)


def _lines_of(path: Path, number: int) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of each line that begins in block `number`, without its end."""
    begin = number * BLOCK_BYTES
    with path.open("rb") as file:
        if begin:
            file.seek(begin - 1)
            file.readline()  # up to the first line that begins here
        offset = file.tell()
        while offset < begin + BLOCK_BYTES and (raw := file.readline()):
            stripped = raw.removeprefix(_BOM) if offset == 0 else raw
            yield offset + len(raw) - len(stripped), stripped.removesuffix(b"\n").removesuffix(b"\r")
            offset += len(raw)


def _refuse_duplicates(path: Path, columns: Columns) -> None:
    twice = equal_hashes(columns.key_hashes)
    if not len(twice):
        return
    first_row: dict[str, int] = {}
    faults = []
    with path.open("rb") as file:
        for row in twice.tolist():
            key = _utterance_at(file, columns.offsets, row).key
            if key in first_row:
                first = _line_number(path, columns.offsets[first_row[key]])
                number = _line_number(path, columns.offsets[row])
                faults.append(
                    f"{path}:{number}: utterance {key!r} stands already on line {first}; give each a unique key"
                )
            first_row.setdefault(key, row)
            if len(faults) > 10:  # each costs a walk through the file
                break
    refuse_faults(path, faults)


def equal_hashes(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The rows, ascending, whose hash another row has too."""
    ordered = np.sort(hashes)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    return np.flatnonzero(np.isin(hashes, repeated)) if len(repeated) else np.empty(0, np.int64)


def _utterance_at(file: Any, offsets: NDArray[np.int64], row: int) -> Utterance:
    file.seek(int(offsets[row]))
    return parse_utterance(file.readline().decode("utf-8"))


def _line_number(path: Path, offset: int) -> int:
    """From 1, of the line at byte `offset`."""
    number, rest = 1, int(offset)
    with path.open("rb") as file:
        while chunk := file.read(min(rest, BLOCK_BYTES)):
            number += chunk.count(b"\n")
            rest -= len(chunk)
    return number


# On disk


def load_columns(folder: Path, belongs_to: dict[str, Any]) -> Columns | None:
    """The index in a folder, mapped into memory; None if there is none, or one of another state of the list."""
    try:
        record = json.loads((folder / "index.json").read_text("utf-8"))
        if record["format"] != FORMAT or record["belongs_to"] != belongs_to:
            return None
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _COLUMNS}
        num = len(arrays["durations"])
        if [len(arrays[name]) for name in _COLUMNS] != [num + 1, num, num, num]:
            return None
        return Columns(**arrays, lang_names=tuple(record["langs"]), digest=record["digest"])
    except Exception:  # a damaged header is parsed as Python and raises whatever that may raise
        return None


def save_columns(folder: Path, columns: Columns, belongs_to: dict[str, Any]) -> None:
    """Write an index into a folder that nobody reads yet."""
    for name in _COLUMNS:
        np.save(folder / f"{name}.npy", getattr(columns, name), allow_pickle=False)
    record = {
        "format": FORMAT,
        "belongs_to": belongs_to,
        "langs": columns.lang_names,
        "digest": columns.digest,
    }
    write_atomic(folder / "index.json", json.dumps(record, ensure_ascii=False, indent=1) + "\n")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill that becomes `folder`, in the place of an old one, when the block ends well.

    To be used inside `one_at_a_time`: what a killed process left is removed.
    """
    for left in folder.parent.glob(f".{glob.escape(folder.name)}.*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.iterdir():
            fsync_path(file)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_path(folder.parent)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Held by the process that makes an index; the other ranks of this machine wait, and find it made."""
    lock = folder.with_name(f".{folder.name}.lock")
    with lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
