# SPDX-License-Identifier: Apache-2.0
"""Opening of data lists and of WeNet's shards, and writing of shards.

A shard is a tar with the members `KEY.wav|flac|mp3…` and `KEY.txt`; ours also have `KEY.json`
(lang, duration, speaker). Shards are not unpacked. One pass over the tar headers writes
`LIST.index/data.list`, in which `wav` names the bytes of a member as `TAR#OFFSET+SIZE`. After that
a list of shards is used like any other data list. The index is written again when the list or a
shard has changed.
"""

import fcntl
import io
import json
import logging
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

import numpy as np

from wenet_hs.base.files import read_lines
from wenet_hs.data.audio import (
    call_fsspec,
    fetch,
    is_url,
    open_local,
    read_duration,
    read_segment,
    segment_duration,
)
from wenet_hs.data.containers import SourceError
from wenet_hs.data.decoders import open_decoder
from wenet_hs.data.loading import load_ahead
from wenet_hs.data.media import ALL_SUFFIXES
from wenet_hs.data.sampling import UtteranceTable
from wenet_hs.manifest.data_list import (
    Utterance,
    format_utterance,
    iterate_data_list,
    parse_utterance,
)
from wenet_hs.tree.atomic import open_atomic, write_atomic
from wenet_hs.tree.errors import DataError, refuse_faults

logger = logging.getLogger(__name__)

DataType = Literal["raw", "shard"]
DATA_TYPES: tuple[DataType, ...] = ("raw", "shard")
_SUFFIXES = {
    "WAV": "wav",
    "WAVEX": "wav",
    "FLAC": "flac",
    "MPEG": "mp3",
    "MP3": "mp3",
    "OGG": "ogg",
}  # libsndfile's
_MAX_TEXT_BYTES = 1 << 20
_NUM_THREADS = 16
"""Shards that are read at the same time: the time of remote ones is mostly waiting."""


def open_lists(
    paths: Sequence[Path], data_type: DataType = "raw", *, flag: str = "--train_data"
) -> UtteranceTable:
    """The utterances of some lists as one table.

    Args:
        data_type: `raw`: JSON per line; `shard`: the path or URL of a tar per line.
        flag: the flag that names the lists, for messages.

    Raises: DataError with one line per fault; also where an utterance is in two lists.
    """
    tables = [open_list(path, data_type) for path in paths]
    if len(tables) == 1:
        return tables[0]
    starts = accumulate(map(len, tables[:-1]), initial=0)
    joined = UtteranceTable(chain.from_iterable(tables), tuple(starts))
    keys, counts = np.unique(joined.columns["key"], return_counts=True)
    if (counts > 1).any():
        key = keys[counts > 1][0]
        found = f"utterance {key!r} is in two lists"
        raise DataError(
            flag, found, "remove it from one, or rename it if they are different utterances"
        )
    return joined


def open_list(path: Path, data_type: DataType = "raw") -> UtteranceTable:
    """The utterances of one list; see `open_lists`."""
    return UtteranceTable(iterate_data_list(path if data_type == "raw" else _index_of_shards(path)))


# Reading


def _index_of_shards(path: Path) -> Path:
    """The data list of the utterances in a list of shards.

    Where it is missing or outdated, one process writes it.
    """
    shards = [line.strip() for line in read_lines(path) if line.strip()]
    if not shards:
        raise DataError(path, "contains no shards", "write the path or URL of one tar per line")
    if shards[0].startswith("{"):
        raise DataError(
            f"{path}:1",
            "not the path of a tar",
            "a list of utterances is read with --data_type raw",
        )
    folder = path.with_name(f"{path.name}.index")
    record = json.dumps({"shards": shards, "versions": source_versions(shards)}, indent=1) + "\n"
    if not _is_current(folder, record):
        with path.with_name(f".{path.name}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_current(folder, record):  # otherwise another rank has written it
                logger.info("%s: indexing %d shards", path, len(shards))
                with ThreadPoolExecutor(_NUM_THREADS) as pool:
                    _write_index(path, folder, shards, pool)
                write_atomic(folder / "shards.json", record)
    return folder / "data.list"


def _is_current(folder: Path, record: str) -> bool:
    """Whether the index is complete and of this record: the list of shards and their versions."""
    return (folder / "shards.json").exists() and (folder / "shards.json").read_text(
        "utf-8"
    ) == record


def source_versions(sources: Sequence[str]) -> list[str]:
    """Size and time of the last change, or the server's version of a URL; empty where a file cannot
    be read.
    """
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        return list(pool.map(_version, sources))


def _version(source: str) -> str:
    try:
        if is_url(source):
            info = call_fsspec(source, lambda filesystem, path: filesystem.info(path))
            return " ".join(
                str(info.get(name)) for name in ("size", "ETag", "etag", "md5Hash", "mtime")
            )
        status = Path(source).stat()
        return f"{status.st_size} {status.st_mtime_ns}"
    except (SourceError, OSError):
        return ""  # the index is then written again, and reading the shard for it raises the error


def _write_index(path: Path, folder: Path, shards: Sequence[str], pool: Executor) -> None:
    """Write the data list.

    Raises DataError with one line per fault: a damaged tar, a missing member, a key twice.
    """
    faults: list[str] = []
    shard_of: dict[str, str] = {}
    (folder / "shards.json").unlink(missing_ok=True)
    with open_atomic(folder / "data.list") as file:
        for shard, (utterances, found) in zip(shards, pool.map(_scan_shard, shards), strict=True):
            for utterance in utterances:
                if utterance.key in shard_of:
                    found.append(
                        f"utterance {utterance.key!r} is also in {shard_of[utterance.key]}; each needs its own key"
                    )
                shard_of[utterance.key] = shard
                file.write(f"{format_utterance(utterance)}\n".encode())
            faults += [f"{shard}: {fault}; restore the shard, or make it again" for fault in found]
        refuse_faults(path, faults)


def _scan_shard(path: str) -> tuple[list[Utterance], list[str]]:
    """The utterances of a shard in the order of their first members, and its faults.

    If the shard cannot be opened or is not a tar, there are no utterances and one fault. Wrong
    members of one utterance are one fault, and the other utterances are returned.
    """
    utterances, faults = [], []
    try:
        with (
            call_fsspec(path, lambda fs, name: fs.open(name, "rb"))
            if is_url(path)
            else open_local(path) as file
        ):
            for key, parts in _members(file).items():
                try:
                    utterances.append(_utterance(path, file, key, parts))
                except (ValueError, DataError) as error:
                    faults.append(f"utterance {key!r}: {error}")
    except SourceError as error:
        return [], [str(error)]
    except (tarfile.TarError, OSError, EOFError) as error:
        return [], [f"not a complete, uncompressed tar file ({error})"]
    if not utterances and not faults:
        faults = ["contains no utterances"]
    return utterances, faults


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
    file.seek(end)
    if file.read(tarfile.BLOCKSIZE) != bytes(
        tarfile.BLOCKSIZE
    ):  # tarfile ends at a damaged header without an error
        raise tarfile.ReadError(f"cut off or damaged at byte {end}")
    return members


def _utterance(
    path: str, file: IO[bytes], key: str, parts: dict[str, tarfile.TarInfo]
) -> Utterance:
    """Raises ValueError with what is missing or wrong."""
    audio = [member for suffix, member in parts.items() if f".{suffix.lower()}" in ALL_SUFFIXES]
    if len(audio) != 1 or "txt" not in parts:
        missing = "txt" if "txt" not in parts else "wav/flac/mp3/…"
        there = ", ".join(f".{suffix}" for suffix in parts)
        raise ValueError(
            f"two audio members: {there}"
            if len(audio) > 1
            else f"no .{missing} member, only {there}"
        )
    record: dict[str, Any] = json.loads(_text(file, parts["json"])) if "json" in parts else {}
    if not isinstance(record, dict):
        raise ValueError(f"{key}.json is not a JSON object")
    record = {name: record.get(name) for name in ("lang", "duration", "speaker")}
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


def write_shards(
    utterances: Sequence[Utterance], out: Path, *, num_utts_per_shard: int, num_workers: int = 0
) -> Iterator[Path]:
    """Write OUT/shards_000000000.tar … and, when all are complete, OUT/data.list with one shard per
    line.

    The bytes of an audio file are copied unchanged. A segment or a channel becomes a float wav of
    its samples, so that the shards give exactly the features of the list. The same list gives the
    same bytes, with any number of workers.

    num_workers: processes that write a shard each at the same time; 0: none but this one.
    Yields: each complete shard, in order. Raises: DataError naming the utterance whose audio cannot
        be read.
    """
    paths: list[Path] = []
    numbers = range(-(-len(utterances) // num_utts_per_shard))
    write = partial(_write_shard, utterances, out, num_utts_per_shard)
    for path in load_ahead(write, numbers, num_workers=min(num_workers, len(numbers))):
        paths.append(path)
        yield path
    write_atomic(out / "data.list", "".join(f"{path}\n" for path in paths))


def _write_shard(utterances: Sequence[Utterance], out: Path, size: int, number: int) -> Path:
    path = out / f"shards_{number:09d}.tar"
    with (
        open_atomic(path) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for position in range(number * size, min(len(utterances), (number + 1) * size)):
            _add(tar, utterances[position])
    return path


def _add(tar: tarfile.TarFile, utterance: Utterance) -> None:
    key = utterance.key
    if PurePosixPath(key).is_absolute() or ".." in PurePosixPath(key).parts:
        found = "cannot name a member of a tar"
        raise DataError(f"utterance {key}", found, "give it a key without '..' or leading '/'")
    try:
        suffix, audio, duration_s = _audio(utterance)
    except DataError as error:
        raise DataError(f"utterance {key}: {error.where}", error.found, error.to_do) from error
    facts = {"lang": utterance.lang, "duration": duration_s, "speaker": utterance.speaker}
    facts = {name: value for name, value in facts.items() if value is not None}
    contents = {
        "txt": utterance.txt.encode(),
        "json": json.dumps(facts, ensure_ascii=False).encode(),
        suffix: audio,
    }
    for name, content in contents.items():
        member = tarfile.TarInfo(f"{key}.{name}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


def _audio(utterance: Utterance) -> tuple[str, bytes, float]:
    """The suffix and bytes of a member, and its duration: that of the list where the list states
    it.
    """
    duration_s = segment_duration(utterance) if utterance.duration is None else utterance.duration
    if utterance.start is None and utterance.end is None and utterance.channel is None:
        read_duration(utterance.wav)  # refuses what is not audio
        content = fetch(utterance.wav)
        content = content if isinstance(content, bytes) else Path(content).read_bytes()
        with open_decoder(content)[0] as file:
            suffix = _SUFFIXES.get(file.format)  # the name of the file may be wrong
        if suffix is not None:
            return suffix, content, duration_s
    from scipy.io import wavfile  # slow to import; libsndfile would write the time into the file

    waveform, rate, _ = read_segment(utterance)
    buffer = io.BytesIO()
    wavfile.write(buffer, rate, waveform)
    return "wav", buffer.getvalue(), duration_s
