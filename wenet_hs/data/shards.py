# SPDX-License-Identifier: Apache-2.0
"""WeNet's shards: tars of `KEY.wav|flac|mp3…` and `KEY.txt`, to which ours add `KEY.json` (lang, duration, speaker).

A tar is never unpacked. One pass over its headers says where each member's bytes are; after that they are read there.
"""

import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any

import soundfile

from wenet_hs.data.audio import probe_audio, read_audio_file
from wenet_hs.data.sources import SourceFault, Stamp, fetch, open_source, piece_of, stamp
from wenet_hs.errors import DataError
from wenet_hs.files import open_atomic, write_atomic
from wenet_hs.manifest import Utterance, format_utterance, parse_utterance

AUDIO_SUFFIXES = ("wav", "flac", "mp3", "ogg", "opus")
SHARD_NAME = "shards_{:09d}.tar"
_SUFFIXES = {"WAV": "wav", "WAVEX": "wav", "FLAC": "flac", "MPEG": "mp3", "MP3": "mp3", "OGG": "ogg"}  # libsndfile's
_MAX_TEXT_BYTES = 1 << 20
_ZEROS = bytes(tarfile.BLOCKSIZE)
_FROM_JSON = ("lang", "duration", "speaker")
_REMEDY = "restore the shard, or make it again"


@dataclass(frozen=True, slots=True)
class ShardScan:
    """What one pass over a shard's headers found."""

    lines: list[str]
    """A line of a `data.list` for each utterance, in the order of their first members."""
    faults: list[str]
    """What is wrong with it, each with the shard's name."""
    stamp: Stamp


def scan_shard(path: str) -> ShardScan:
    """The utterances of a shard, a path or URL, or its faults: not a tar, cut off, an utterance without a member."""
    found = Stamp(0, "")
    try:
        found = stamp(path)
        with open_source(path) as file:
            members = _members(file)
            lines, faults = _utterances(path, file, members)
        return ShardScan(lines, [f"{path}: {fault}; {_REMEDY}" for fault in faults], found)
    except (SourceFault, tarfile.TarError, OSError, EOFError) as error:
        text = str(error) if isinstance(error, SourceFault) else f"not a whole, uncompressed tar ({error})"
        return ShardScan([], [f"{path}: {text}; {_REMEDY}"], found)


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
    # The library takes a damaged header, or none, for the end.
    file.seek(end)
    if file.read(tarfile.BLOCKSIZE) != _ZEROS:
        raise tarfile.ReadError(f"cut off or damaged at byte {end}")
    return members


def _utterances(
    path: str, file: IO[bytes], members: dict[str, dict[str, tarfile.TarInfo]]
) -> tuple[list[str], list[str]]:
    lines, faults = [], []
    for key, parts in members.items():
        try:
            lines.append(format_utterance(_utterance(path, file, key, parts)))
        except (ValueError, DataError) as error:
            faults.append(f"utterance {key!r}: {error}")
    return lines, faults if lines or faults else ["no utterances in it"]


def _utterance(path: str, file: IO[bytes], key: str, parts: dict[str, tarfile.TarInfo]) -> Utterance:
    """Raises ValueError that says what is missing or wrong."""
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
    wav = piece_of(path, audio[0].offset_data, audio[0].size)
    text = _text(file, parts["txt"]).rstrip("\r\n")
    utterance = parse_utterance(json.dumps({"key": key, "wav": wav, "txt": text, **record}))
    if utterance.duration is not None:
        return utterance
    file.seek(audio[0].offset_data)
    return replace(utterance, duration=probe_audio(file.read(audio[0].size)).duration_s)


def _text(file: IO[bytes], member: tarfile.TarInfo) -> str:
    if member.size > _MAX_TEXT_BYTES:
        raise ValueError(f"{member.name} has {member.size} bytes, more than {_MAX_TEXT_BYTES}")
    file.seek(member.offset_data)
    return file.read(member.size).decode("utf-8")  # UnicodeDecodeError is a ValueError


def write_shards(utterances: Iterable[Utterance], out: Path, *, num_utts_per_shard: int) -> Iterator[Path]:
    """Write OUT/shards_000000000.tar … and, when all are there, OUT/data.list with a shard a line.

    The bytes of an audio file are copied as they are; a segment becomes a float wav of its samples, so that the shards
    give the very features of the list. The same list gives the same bytes.

    Yields: each shard, once it is complete. Raises: DataError naming the utterance whose audio cannot be read.
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
    """The suffix and bytes of a member, and its seconds: those of the list where it tells."""
    if utterance.start is None and utterance.end is None:
        suffix, content = _whole_file(utterance.wav)
        if suffix is not None:
            return suffix, content, _seconds(utterance)
    waveform, rate = read_audio_file(utterance.wav, start=utterance.start, end=utterance.end)
    buffer = io.BytesIO()
    soundfile.write(buffer, waveform, rate, format="WAV", subtype="FLOAT")
    return "wav", buffer.getvalue(), _seconds(utterance)


def _seconds(utterance: Utterance) -> float:
    if utterance.duration is not None:
        return utterance.duration
    end = utterance.end if utterance.end is not None else probe_audio(utterance.wav).duration_s
    return max(0.0, end - (utterance.start or 0.0))


def _whole_file(wav: str) -> tuple[str | None, bytes]:
    """The suffix of what is in a file, whatever its name says, and its bytes; no suffix if WeNet knows none for it."""
    probe_audio(wav)  # refuses what is no audio
    content = fetch(wav)
    if not isinstance(content, bytes):
        content = Path(content).read_bytes()
    return _SUFFIXES.get(str(soundfile.info(io.BytesIO(content)).format)), content


def read_shard_list(lines: Sequence[str]) -> list[str]:
    """The shards of a list: a path or URL a line."""
    return [line.strip() for line in lines if line.strip()]
