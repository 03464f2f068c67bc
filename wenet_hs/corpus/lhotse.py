# SPDX-License-Identifier: Apache-2.0
"""Manifests of lhotse: supervisions with the audio of their recordings; others are refused by name."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wenet_hs.base.files import read_lines
from wenet_hs.manifest.data_list import describe_manifest
from wenet_hs.tree.errors import DataError


def join_recordings(path: Path, records: Sequence[dict[str, Any]]) -> bool:
    """Give each supervision the `audio` of its recording, and its `channel` in that file as a
    letter from A.

    The manifest of the recordings is beside `path`, with `recordings` instead of `supervisions` in
    its name, or is recordings.jsonl.
    Returns: False for records that are not from lhotse.
    Raises DataError for other manifests, if that of the recordings is missing, and for audio that
        is no file.
    """
    found = describe_manifest(records[0]) if records else None
    if found is None:
        return False
    if "recording_id" not in records[0]:
        raise DataError(path, found)
    is_named = "supervisions" in path.name
    name = (
        path.name.removesuffix(".gz").replace("supervisions", "recordings")
        if is_named
        else "recordings.jsonl"
    )
    files = [one for one in (path.with_name(name), path.with_name(f"{name}.gz")) if one.is_file()]
    if not files:
        raise DataError(
            path,
            f"supervisions of lhotse, without {name}(.gz) beside it",
            "put the recordings there",
        )
    try:
        recordings = {
            one["id"]: one["sources"]
            for one in map(json.loads, filter(str.strip, read_lines(files[0])))
        }
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            files[0], "no recordings of lhotse, one per line", "write them again"
        ) from error
    for record in records:
        given = record.get("channel", 0)
        channels = given if isinstance(given, list) else [given]
        of_recording = recordings.get(record["recording_id"], [])
        source = next(
            (one for one in of_recording if {*channels} <= {*one.get("channels", channels)}), None
        )
        if source is None:
            continue  # the caller states that the row has no audio
        if source.get("type") not in ("file", "url"):
            what = f"recording {record['recording_id']!r} is of the type {source.get('type')!r}"
            raise DataError(files[0], what, "save its audio as a file")
        in_file = source.get("channels", channels)
        record["audio"] = source["source"]
        is_one = len(channels) == 1 < len(in_file)
        record["channel"] = (
            chr(ord("A") + in_file.index(channels[0])) if is_one else None
        )  # numbers may count from 1
    return True
