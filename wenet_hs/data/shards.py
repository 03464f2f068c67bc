# SPDX-License-Identifier: Apache-2.0
"""Opening of data lists and of WeNet's shards, and writing of shards.

A shard is a tar with the members `KEY.wav|flac|mp3…` and `KEY.txt` of each utterance; ours also
have `KEY.json` (lang, duration, speaker). Shards are not unpacked. One pass over the headers of the
tars writes an index, `LIST.index/data.list`, in which `wav` names the bytes of a member as
`TAR#OFFSET+SIZE`. After that a list of shards is used like any other data list. The index is
written again when the list or a shard has changed.
"""

import fcntl
import io
import json
import logging
import math
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
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
}
"""libsndfile's name of a format → suffix of a member. Audio of other formats becomes wav."""
_MAX_TEXT_BYTES = 1 << 20
_DATA_LIST = "data.list"
_INDEX_RECORD = "shards.json"
"""File of an index that records of which shards it is; it is written last."""
_NUM_THREADS = 16
"""Shards that are read at the same time: reading remote ones is mostly waiting."""


def open_lists(
    paths: Sequence[Path], data_type: DataType = "raw", *, flag: str = "--train_data"
) -> UtteranceTable:
    """The utterances of some lists as one table.

    Args:
        data_type: `raw`: JSON per line; `shard`: the path or URL of a tar per line.
        flag: the flag that names the lists, for messages.

    Raises: DataError with one line per fault, also if an utterance is in two lists.
    """
    tables = [open_list(path, data_type) for path in paths]
    if len(tables) == 1:
        return tables[0]
    starts = accumulate(map(len, tables[:-1]), initial=0)
    joined = UtteranceTable(chain.from_iterable(tables), tuple(starts))
    keys, counts = np.unique(joined.columns["key"], return_counts=True)
    repeated_keys = keys[counts > 1]
    if len(repeated_keys):
        found = f"utterance {repeated_keys[0]!r} is in two lists"
        remedy = "remove it from one, or rename it if they are different utterances"
        raise DataError(flag, found, remedy)
    return joined


def open_list(path: Path, data_type: DataType = "raw") -> UtteranceTable:
    """The utterances of one list.

    `data_type`: `raw`: JSON per line; `shard`: the path or URL of a tar per line. Of shards the
    index is read, which is written first if it is missing or outdated.

    Raises: DataError with one line per fault.
    """
    data_list = path if data_type == "raw" else _data_list_of_shards(path)
    return UtteranceTable(iterate_data_list(data_list))


# ---- Reading


def _data_list_of_shards(path: Path) -> Path:
    """The path of the data list with the utterances of all shards in a list; it is in an index.

    If the index is missing or outdated, it is written first. Of several processes one writes it,
    and the others wait for it.

    Raises: DataError for an empty list, for a list of utterances, and for faults of the shards.
    """
    shards = [line.strip() for line in read_lines(path) if line.strip()]
    if not shards:
        raise DataError(path, "contains no shards", "write the path or URL of one tar per line")
    if shards[0].startswith("{"):
        remedy = "a list of utterances is read with --data_type raw"
        raise DataError(f"{path}:1", "not the path of a tar", remedy)
    index = path.with_name(f"{path.name}.index")
    record = json.dumps({"shards": shards, "versions": source_versions(shards)}, indent=1) + "\n"
    if not _is_current(index, record):
        with path.with_name(f".{path.name}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_current(index, record):  # otherwise another rank has written it meanwhile
                logger.info("%s: indexing %d shards", path, len(shards))
                with ThreadPoolExecutor(_NUM_THREADS) as pool:
                    _write_index(path, index, shards, pool)
                write_atomic(index / _INDEX_RECORD, record)
    return index / _DATA_LIST


def _is_current(index: Path, record: str) -> bool:
    """Whether the index is complete and of this record: the list of shards and their versions."""
    path = index / _INDEX_RECORD
    return path.exists() and path.read_text("utf-8") == record


def source_versions(sources: Sequence[str]) -> list[str]:
    """The version of each file or URL: a text that is another one after the source was changed.

    Of a file these are the size and the time of the last change, of a URL what its server states
    about it. The text is empty if the source cannot be read.
    """
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        return list(pool.map(_source_version, sources))


def _source_version(source: str) -> str:
    """The version of a file or URL, see `source_versions`; empty if it cannot be read."""
    try:
        if is_url(source):
            info = call_fsspec(source, lambda filesystem, path: filesystem.info(path))
            fields = ("size", "ETag", "etag", "md5Hash", "mtime")  # each server has some of them
            return " ".join(str(info.get(field)) for field in fields)
        status = Path(source).stat()
        return f"{status.st_size} {status.st_mtime_ns}"
    except (SourceError, OSError):
        return ""  # the index is then written again, and reading the shard for it raises the error


def _write_index(path: Path, index: Path, shards: Sequence[str], pool: Executor) -> None:
    """Write the data list of an index, reading the shards in `pool`.

    The record of an earlier index is removed first, so that an index that is not finished does not
    look complete.

    path: the list of shards, for messages.

    Raises: DataError with one line per fault: a damaged tar, a missing member, a key twice. The
        data list is then not written.
    """
    faults: list[str] = []
    shard_by_key: dict[str, str] = {}
    (index / _INDEX_RECORD).unlink(missing_ok=True)
    with open_atomic(index / _DATA_LIST) as file:
        contents = pool.map(_scan_shard, shards)
        for shard, (utterances, shard_faults) in zip(shards, contents, strict=True):
            for utterance in utterances:
                if utterance.key in shard_by_key:
                    other_shard = shard_by_key[utterance.key]
                    fault = f"is also in {other_shard}; each needs its own key"
                    shard_faults.append(f"utterance {utterance.key!r} {fault}")
                shard_by_key[utterance.key] = shard
                file.write(f"{format_utterance(utterance)}\n".encode())
            for fault in shard_faults:
                faults.append(f"{shard}: {fault}; restore the shard, or make it again")
        refuse_faults(path, faults)


def _scan_shard(path: str) -> tuple[list[Utterance], list[str]]:
    """The utterances of a shard in the order of their first members, and its faults.

    If the shard cannot be opened or is not a tar, there are no utterances and one fault. Wrong
    members of one utterance are one fault, and the other utterances are returned.
    """
    utterances: list[Utterance] = []
    faults: list[str] = []
    try:
        with _open_shard(path) as file:
            for key, members in _read_members(file).items():
                try:
                    utterances.append(_read_utterance(path, file, key, members))
                except (ValueError, DataError) as error:
                    faults.append(f"utterance {key!r}: {error}")
    except SourceError as error:
        return [], [str(error)]
    except (tarfile.TarError, OSError, EOFError) as error:
        return [], [f"not a complete, uncompressed tar file ({error})"]
    if not utterances and not faults:
        faults = ["contains no utterances"]
    return utterances, faults


def _open_shard(path: str) -> IO[bytes]:
    """Open a shard by its path or URL. Raises SourceError."""
    if not is_url(path):
        return open_local(path)
    file: IO[bytes] = call_fsspec(path, lambda filesystem, name: filesystem.open(name, "rb"))
    return file


def _read_members(file: IO[bytes]) -> dict[str, dict[str, tarfile.TarInfo]]:
    """The regular files of a tar: key of the utterance → suffix without dot → member.

    Folders, links and sparse files are left out.

    Raises: tarfile.ReadError if the tar is damaged, cut off, or has a member twice.
    """
    members_of: dict[str, dict[str, tarfile.TarInfo]] = {}
    with tarfile.open(fileobj=file, mode="r:") as tar:  # "r:": only if it is not compressed
        for member in tar:
            if not member.isreg() or member.sparse is not None:
                continue
            key, _, suffix = member.name.rpartition(".")
            members = members_of.setdefault(key, {})
            if suffix in members:
                raise tarfile.ReadError(f"member {member.name!r} is in it twice")
            members[suffix] = member
        end = tar.offset  # the byte at which tarfile stopped
    # A tar ends with empty blocks. tarfile also stops at a damaged header, without an error.
    file.seek(end)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"cut off or damaged at byte {end}")
    return members_of


def _read_utterance(
    path: str, file: IO[bytes], key: str, members: dict[str, tarfile.TarInfo]
) -> Utterance:
    """An utterance of the shard at `path`. members: suffix without dot → member.

    Without a duration in `KEY.json` the header of the audio is read.

    Raises: ValueError or DataError with what is missing or wrong.
    """
    audio = _find_audio(members)
    record: Any = json.loads(_read_text(file, members["json"])) if "json" in members else {}
    if not isinstance(record, dict):
        raise ValueError(f"{key}.json is not a JSON object")
    fields = {
        "key": key,
        "wav": f"{path}#{audio.offset_data}+{audio.size}",
        "txt": _read_text(file, members["txt"]).rstrip("\r\n"),
        "lang": record.get("lang"),
        "duration": record.get("duration"),
        "speaker": record.get("speaker"),
    }
    utterance = parse_utterance(json.dumps(fields))  # which checks a line of a data list
    if utterance.duration is not None:
        return utterance
    file.seek(audio.offset_data)
    return replace(utterance, duration=read_duration(file.read(audio.size)))


def _find_audio(members: dict[str, tarfile.TarInfo]) -> tarfile.TarInfo:
    """The member of an utterance that is audio.

    Raises ValueError if there is not exactly one, or if there is no transcript.
    """
    audio_suffixes = [suffix for suffix in members if f".{suffix.lower()}" in ALL_SUFFIXES]
    suffixes = ", ".join(f".{suffix}" for suffix in members)
    if len(audio_suffixes) > 1:
        raise ValueError(f"two audio members: {suffixes}")
    if "txt" not in members:
        raise ValueError(f"no .txt member, only {suffixes}")
    if not audio_suffixes:
        raise ValueError(f"no .wav/flac/mp3/… member, only {suffixes}")
    return members[audio_suffixes[0]]


def _read_text(file: IO[bytes], member: tarfile.TarInfo) -> str:
    """The text of a member. Raises ValueError if it is too long or not UTF-8."""
    if member.size > _MAX_TEXT_BYTES:
        raise ValueError(f"{member.name} has {member.size} bytes, more than {_MAX_TEXT_BYTES}")
    file.seek(member.offset_data)
    return file.read(member.size).decode("utf-8")  # UnicodeDecodeError is a ValueError


# ---- Writing


def write_shards(
    utterances: Sequence[Utterance], out: Path, *, num_utts_per_shard: int, num_workers: int = 0
) -> Iterator[Path]:
    """Write OUT/shards_000000000.tar and so on, then OUT/data.list with one shard per line.

    The list is written when all shards are complete. The bytes of an audio file are copied
    unchanged. A segment or a channel becomes a float wav of its samples, so that the shards give
    exactly the features of the list. The same list gives the same bytes, with any number of
    workers.

    num_workers: processes that write a shard each at the same time; 0: none but this one.
    Yields: each complete shard, in order.
    Raises: DataError naming the utterance whose audio cannot be read.
    """
    paths: list[Path] = []
    numbers = range(math.ceil(len(utterances) / num_utts_per_shard))
    write = partial(_write_shard, utterances, out, num_utts_per_shard)
    for path in load_ahead(write, numbers, num_workers=min(num_workers, len(numbers))):
        paths.append(path)
        yield path
    write_atomic(out / _DATA_LIST, "".join(f"{path}\n" for path in paths))


def _write_shard(
    utterances: Sequence[Utterance], out: Path, num_utts_per_shard: int, number: int
) -> Path:
    """Write one of the shards of `utterances`, which are numbered from 0. Returns its path.

    The last shard may have fewer than `num_utts_per_shard` utterances.
    """
    path = out / f"shards_{number:09d}.tar"
    first = number * num_utts_per_shard
    end = min(len(utterances), first + num_utts_per_shard)
    with (
        open_atomic(path) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for position in range(first, end):
            _add_utterance(tar, utterances[position])
    return path


def _add_utterance(tar: tarfile.TarFile, utterance: Utterance) -> None:
    """Add the members of an utterance to a tar: its transcript, a JSON of its facts, its audio.

    The facts are language, duration and speaker; the duration is read from the audio if the list
    does not state it.

    Raises: DataError naming the utterance, if its key cannot name a member of a tar or its audio
        cannot be read.
    """
    key = utterance.key
    if PurePosixPath(key).is_absolute() or ".." in PurePosixPath(key).parts:
        found = "cannot name a member of a tar"
        raise DataError(f"utterance {key}", found, "give it a key without '..' or leading '/'")
    try:
        duration_s = utterance.duration
        if duration_s is None:
            duration_s = segment_duration(utterance)
        audio = _encode_audio(utterance)
    except DataError as error:
        raise DataError(f"utterance {key}: {error.where}", error.found, error.to_do) from error
    facts = {"lang": utterance.lang, "duration": duration_s, "speaker": utterance.speaker}
    stated_facts = {name: value for name, value in facts.items() if value is not None}
    contents = {
        "txt": utterance.txt.encode(),
        "json": json.dumps(stated_facts, ensure_ascii=False).encode(),
        audio.suffix: audio.content,
    }
    for suffix, content in contents.items():
        member = tarfile.TarInfo(f"{key}.{suffix}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


@dataclass(frozen=True)
class _EncodedAudio:
    """The audio of an utterance as a member of a shard."""

    suffix: str
    """Without dot, such as flac."""
    content: bytes


def _encode_audio(utterance: Utterance) -> _EncodedAudio:
    """The audio of an utterance: the bytes of its file, or a float wav.

    It is a wav of the samples if the utterance is a segment or a channel of the file, or if the
    file has a format that is not in _SUFFIXES. Raises DataError.
    """
    is_whole_file = utterance.start is None and utterance.end is None
    if is_whole_file and utterance.channel is None:
        read_duration(utterance.wav)  # only for its error, if the file is not audio
        source = fetch(utterance.wav)
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
        decoder, _ = open_decoder(content)
        with decoder as file:
            suffix = _SUFFIXES.get(file.format)  # that of the content: the name may have another
        if suffix is not None:
            return _EncodedAudio(suffix=suffix, content=content)
    from scipy.io import wavfile  # slow to import

    # Not libsndfile, which writes the current time into the file: the bytes would differ each time.

    waveform, rate, _ = read_segment(utterance)
    buffer = io.BytesIO()
    wavfile.write(buffer, rate, waveform)
    return _EncodedAudio(suffix="wav", content=buffer.getvalue())
