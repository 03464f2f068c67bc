# SPDX-License-Identifier: Apache-2.0
"""Manifests of lhotse: supervisions get the audio of their recordings; others are refused by name."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from wenet_hs.base.files import read_lines
from wenet_hs.manifest.data_list import describe_manifest
from wenet_hs.tree.errors import DataError


def join_recordings(path: Path, records: Sequence[dict[str, Any]]) -> bool:
    """Give each supervision the `audio` of its recording, and its `channel` in that file.

    The records are changed; `_name_channel` describes the channel. All are taken for supervisions
    if the first one is. The manifest of the recordings is beside `path`, with `recordings` instead of `supervisions` in
    its name, or is recordings.jsonl.

    Returns: whether the records are from lhotse; others are not changed.
    Raises DataError for other manifests, if that of the recordings is missing, and for audio that
        is no file.
    """
    kind_and_remedy = describe_manifest(records[0]) if records else None
    if kind_and_remedy is None:
        return False
    is_of_supervisions = "recording_id" in records[0]
    if not is_of_supervisions:
        raise DataError(path, kind_and_remedy)
    recordings_file = _find_recordings_file(path)
    sources_of = _read_recordings(recordings_file)
    for record in records:
        channel = record.get("channel", 0)  # absent: the first channel
        channels = channel if isinstance(channel, list) else [channel]
        source = _find_source(sources_of.get(record["recording_id"], []), channels)
        if source is None:  # the caller finds no audio then, and rejects the supervision
            continue
        if source.get("type") not in ("file", "url"):
            found = f"recording {record['recording_id']!r} is of the type {source.get('type')!r}"
            raise DataError(recordings_file, found, "save its audio as a file")
        record["audio"] = source["source"]
        channels_of_file = source.get("channels", channels)
        record["channel"] = _name_channel(channels, channels_of_file)
    return True


def _find_recordings_file(path: Path) -> Path:
    """The manifest of the recordings, also with .gz, beside that of the supervisions.

    Raises DataError if there is none.
    """
    name = "recordings.jsonl"
    if "supervisions" in path.name:
        name = path.name.removesuffix(".gz").replace("supervisions", "recordings")
    for file in (path.with_name(name), path.with_name(f"{name}.gz")):
        if file.is_file():
            return file
    found = f"supervisions of lhotse, without {name}(.gz) beside it"
    raise DataError(path, found, "put the recordings there")


def _read_recordings(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Id of a recording → its sources. Raises DataError for another file."""
    try:
        recordings = [json.loads(line) for line in read_lines(path) if line.strip()]
        return {recording["id"]: recording["sources"] for recording in recordings}
    except (KeyError, TypeError, ValueError) as error:
        found = "no recordings of lhotse, one per line"
        raise DataError(path, found, "write them again") from error


def _find_source(
    sources: Iterable[dict[str, Any]], channels: Sequence[Any]
) -> dict[str, Any] | None:
    """The first source, a file of a recording, that has all these channels; None: no source has.

    A source that does not name its channels has all of them.
    """
    for source in sources:
        if set(channels) <= set(source.get("channels", channels)):
            return source
    return None


def _name_channel(channels: Sequence[Any], channels_of_file: Sequence[Any]) -> str | None:
    """The letter of the only channel of a supervision: A for the first channel of the file.

    It is a letter, because a number would be ambiguous: numbers may count from 0 or from 1. None:
    the supervision has several channels, or the file has only one.
    """
    if len(channels) != 1 or len(channels_of_file) < 2:
        return None
    position = channels_of_file.index(channels[0])
    return chr(ord("A") + position)
