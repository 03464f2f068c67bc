# SPDX-License-Identifier: Apache-2.0
"""Opening of data lists and of WeNet's shards, and writing of shards.

A shard is a tar with the members `KEY.wav|flac|mp3…` and `KEY.txt`; ours also have `KEY.json` (lang, duration,
speaker). Shards are not unpacked. One pass over the tar headers writes `LIST.index/data.list`, in which `wav` names the
bytes of a member as `TAR#OFFSET+SIZE`. After that a list of shards is used like any other data list.
"""

import fcntl
import io
import json
import logging
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

import soundfile

from wenet_hs.data.audio import (
    SourceFault,
    call_fsspec,
    fetch,
    is_url,
    open_local,
    read_audio_file,
    read_duration,
    segment_duration,
)
from wenet_hs.data.loading import load_ahead
from wenet_hs.data.table import UtteranceTable
from wenet_hs.errors import DataError
from wenet_hs.files import open_atomic, read_lines, write_atomic
from wenet_hs.manifest import Utterance, format_utterance, iterate_data_list, parse_utterance, refuse_faults

logger = logging.getLogger(__name__)

DataType = Literal["raw", "shard"]
DATA_TYPES: tuple[DataType, ...] = ("raw", "shard")
AUDIO_SUFFIXES = ("wav", "flac", "mp3", "ogg", "opus")
SHARD_NAME = "shards_{:09d}.tar"
_SUFFIXES = {"WAV": "wav", "WAVEX": "wav", "FLAC": "flac", "MPEG": "mp3", "MP3": "mp3", "OGG": "ogg"}  # libsndfile's
_MAX_TEXT_BYTES = 1 << 20
_ZEROS = bytes(tarfile.BLOCKSIZE)
_FROM_JSON = ("lang", "duration", "speaker")
_REMEDY = "restore the shard, or make it again"
_REQUESTS = 16
"""Shards whose size is requested at the same time."""
_MIN_SHARDS_FOR_WORKERS = 4

Stamp = tuple[int, str]
"""Size of a file in bytes, and its version: the time of its last change, or the server's version of a URL."""


def open_lists(paths: Sequence[Path], data_type: DataType = "raw", *, flag: str = "--train_data") -> UtteranceTable:
    """The utterances of some lists as one table.

    Args:
        data_type: `raw`: JSON per line; `shard`: the path or URL of a tar per line.
        flag: the flag that names the lists, for messages.

    Raises: DataError with one line per fault; also where an utterance is in two lists.
    """
    tables = [open_list(path, data_type) for path in paths]
    if len(tables) == 1:
        return tables[0]
    starts = [sum(map(len, tables[:number])) for number in range(len(tables))]
    joined = UtteranceTable(chain.from_iterable(tables), tuple(starts))
    seen: set[str] = set()
    for key in joined.columns["key"]:
        if key in seen:
            raise DataError(f"{flag}: utterance {key!r} is in more than one list; give each a unique key")
        seen.add(key)
    return joined


def open_list(path: Path, data_type: DataType = "raw") -> UtteranceTable:
    """The utterances of one list; see `open_lists`."""
    return UtteranceTable(iterate_data_list(path if data_type == "raw" else _index_of_shards(path)))


# Reading


def _index_of_shards(path: Path) -> Path:
    """The data list of the utterances in a list of shards. It is written at the first use, by one process."""
    shards = [line.strip() for line in read_lines(path) if line.strip()]
    if not shards:
        raise DataError(f"{path}: no shards in it; write the path or URL of one tar per line")
    if shards[0].startswith("{"):
        raise DataError(f"{path}:1: not the path of a tar; a list of utterances is read with --data_type raw")
    folder = path.with_name(f"{path.name}.index")
    stamps = _read_stamps(folder, shards)
    if stamps is None:
        with path.with_name(f".{path.name}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _read_stamps(folder, shards) is None:  # otherwise another rank has written it
                _write_index(path, folder, shards)
    else:
        with ThreadPoolExecutor(_REQUESTS) as pool:
            faults = pool.map(_stamp_fault, shards, stamps)
            remedy = f"restore it, or remove {folder} to index again"
            refuse_faults(folder, [f"{fault}; {remedy}" for fault in faults if fault is not None])
    return folder / "data.list"


def _read_stamps(folder: Path, shards: list[str]) -> list[Stamp] | None:
    """The stamps of the indexed shards; None without a complete index of these shards."""
    try:
        record = json.loads((folder / "shards.json").read_text("utf-8"))
        return [(size, version) for size, version in record["stamps"]] if record["shards"] == shards else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _write_index(path: Path, folder: Path, shards: list[str]) -> None:
    """Write `data.list`, then `shards.json`, which marks the index as complete."""
    logger.info("%s: indexing %d shards, once", path, len(shards))
    num_workers = 0 if len(shards) < _MIN_SHARDS_FOR_WORKERS else min(len(shards), len(os.sched_getaffinity(0)))
    stamps: list[Stamp] = []
    faults: list[str] = []
    number_of: dict[str, int] = {}
    (folder / "shards.json").unlink(missing_ok=True)
    with open_atomic(folder / "data.list") as file:
        scans = load_ahead(partial(_scan_number, shards), range(len(shards)), num_workers=num_workers)
        for number, scan in enumerate(scans):
            stamps.append(scan.stamp)
            faults += [f"{shards[number]}: {fault}; {_REMEDY}" for fault in scan.faults]
            for utterance in scan.utterances:
                first = number_of.setdefault(utterance.key, number)
                if first != number:
                    also = f"utterance {utterance.key!r} is also in {shards[first]}"
                    faults.append(f"{shards[number]}: {also}; give each a unique key")
                file.write(f"{format_utterance(utterance)}\n".encode())
        refuse_faults(path, faults)
    write_atomic(folder / "shards.json", json.dumps({"shards": shards, "stamps": stamps}, indent=1) + "\n")


def _stamp_fault(shard: str, indexed: Stamp) -> str | None:
    """The fault if a shard is missing, or was changed after it was indexed."""
    try:
        found = _stamp(shard)
    except SourceFault as fault:
        return f"{shard}: {fault}"
    if found[0] != indexed[0]:
        return f"{shard}: {found[0]} bytes, its index says {indexed[0]}"
    return None if found == indexed else f"{shard}: was changed after it was indexed"


def _stamp(source: str) -> Stamp:
    if is_url(source):
        info = call_fsspec(source, lambda filesystem, path: filesystem.info(path))
        version = next((str(info[name]) for name in ("ETag", "etag", "md5Hash", "mtime") if info.get(name)), "")
        return int(info["size"] or 0), version
    with open_local(source) as file:
        status = os.fstat(file.fileno())
    return status.st_size, str(status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class ShardScan:
    """The content of a shard, read from its headers."""

    stamp: Stamp
    utterances: list[Utterance]
    """In the order of their first members."""
    faults: list[str]
    """Each without the shard's name."""


def _scan_number(shards: Sequence[str], number: int) -> ShardScan:
    return scan_shard(shards[number])


def scan_shard(path: str) -> ShardScan:
    """The utterances of a shard (a path or URL), or its faults: not a tar, truncated, a member missing."""
    utterances, faults = [], []
    try:
        found = _stamp(path)
        with call_fsspec(path, lambda fs, name: fs.open(name, "rb")) if is_url(path) else open_local(path) as file:
            for key, parts in _members(file).items():
                try:
                    utterances.append(_utterance(path, file, key, parts))
                except (ValueError, DataError) as error:
                    faults.append(f"utterance {key!r}: {error}")
    except (SourceFault, tarfile.TarError, OSError, EOFError) as error:
        text = str(error) if isinstance(error, SourceFault) else f"not a whole, uncompressed tar ({error})"
        return ShardScan((0, ""), [], [text])
    return ShardScan(found, utterances, faults if utterances or faults else ["no utterances in it"])


def _members(file: IO[bytes]) -> dict[str, dict[str, tarfile.TarInfo]]:
    """The regular members by key and suffix. Raises tarfile.ReadError where the tar is damaged."""
    members: dict[str, dict[str, tarfile.TarInfo]] = {}
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            if not member.isreg() or member.sparse is not None:
                continue
            key, _, suffix = member.name.rpartition(".")
            if suffix in members.setdefault(key, {}):
                raise tarfile.ReadError(f"member {member.name!r} is in it twice")
            members[key][suffix] = member
        end = tar.offset
    # tarfile takes a damaged header, or none, for the end of the tar.
    file.seek(end)
    if file.read(tarfile.BLOCKSIZE) != _ZEROS:
        raise tarfile.ReadError(f"cut off or damaged at byte {end}")
    return members


def _utterance(path: str, file: IO[bytes], key: str, parts: dict[str, tarfile.TarInfo]) -> Utterance:
    """Raises ValueError with what is missing or wrong."""
    audio = [parts[suffix] for suffix in parts if suffix.lower() in AUDIO_SUFFIXES]
    if len(audio) != 1 or "txt" not in parts:
        kinds = "/".join(AUDIO_SUFFIXES)
        missing = "txt" if "txt" not in parts else f"{kinds}" if not audio else ""
        there = ", ".join(f".{suffix}" for suffix in parts)
        raise ValueError(f"no .{missing} beside {there}" if missing else f"two audio members: {there}")
    record: dict[str, Any] = json.loads(_text(file, parts["json"])) if "json" in parts else {}
    if not isinstance(record, dict):
        raise ValueError(f"{key}.json is not a JSON object")
    record = {name: record[name] for name in _FROM_JSON if record.get(name) is not None}
    wav = f"{path}#{audio[0].offset_data}+{audio[0].size}"
    text = _text(file, parts["txt"]).rstrip("\r\n")
    utterance = parse_utterance(json.dumps({"key": key, "wav": wav, "txt": text, **record}))
    if utterance.duration is not None:
        return utterance
    file.seek(audio[0].offset_data)
    return replace(utterance, duration=read_duration(file.read(audio[0].size)))


def _text(file: IO[bytes], member: tarfile.TarInfo) -> str:
    if member.size > _MAX_TEXT_BYTES:
        raise ValueError(f"{member.name} has {member.size} bytes, more than {_MAX_TEXT_BYTES}")
    file.seek(member.offset_data)
    return file.read(member.size).decode("utf-8")  # UnicodeDecodeError is a ValueError


# Writing


def write_shards(utterances: Iterable[Utterance], out: Path, *, num_utts_per_shard: int) -> Iterator[Path]:
    """Write OUT/shards_000000000.tar … and, when all are complete, OUT/data.list with one shard per line.

    The bytes of an audio file are copied unchanged. A segment becomes a float wav of its samples, so that the shards
    give exactly the features of the list. The same list gives the same bytes.

    Yields: each complete shard. Raises: DataError naming the utterance whose audio cannot be read.
    """
    paths: list[Path] = []
    rest = iter(utterances)
    while group := list(islice(rest, num_utts_per_shard)):
        path = out / SHARD_NAME.format(len(paths))
        with open_atomic(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for utterance in group:
                _add(tar, utterance)
        paths.append(path)
        yield path
    write_atomic(out / "data.list", "".join(f"{path}\n" for path in paths))


def _add(tar: tarfile.TarFile, utterance: Utterance) -> None:
    key = utterance.key
    if PurePosixPath(key).is_absolute() or ".." in PurePosixPath(key).parts:
        raise DataError(f"utterance {key}: cannot name a member of a tar; give it a key without '..' or leading '/'")
    try:
        suffix, audio, duration_s = _audio(utterance)
    except DataError as error:
        raise DataError(f"utterance {key}: {error}") from error
    facts = {"lang": utterance.lang, "duration": duration_s, "speaker": utterance.speaker}
    facts = {name: value for name, value in facts.items() if value is not None}
    _add_member(tar, f"{key}.txt", utterance.txt.encode())
    _add_member(tar, f"{key}.json", json.dumps(facts, ensure_ascii=False).encode())
    _add_member(tar, f"{key}.{suffix}", audio)


def _add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _audio(utterance: Utterance) -> tuple[str, bytes, float]:
    """The suffix and bytes of a member, and its duration: that of the list where the list states it."""
    duration_s = segment_duration(utterance) if utterance.duration is None else utterance.duration
    if utterance.start is None and utterance.end is None:
        read_duration(utterance.wav)  # refuses what is not audio
        content = fetch(utterance.wav)
        content = content if isinstance(content, bytes) else Path(content).read_bytes()
        suffix = _SUFFIXES.get(str(soundfile.info(io.BytesIO(content)).format))  # whatever the file's name is
        if suffix is not None:
            return suffix, content, duration_s
    waveform, rate, _ = read_audio_file(utterance.wav, start=utterance.start, end=utterance.end)
    buffer = io.BytesIO()
    soundfile.write(buffer, waveform, rate, format="WAV", subtype="FLOAT")
    return "wav", buffer.getvalue(), duration_s
