# SPDX-License-Identifier: Apache-2.0
"""Reading and writing of `data.list` (one utterance per line as JSON) and of `text` (`key
transcript` per line).
"""

import json
import logging
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import chain, islice
from pathlib import Path
from typing import Any

from wenet_hs.base.files import iterate_lines, read_lines
from wenet_hs.manifest.file_forms import (
    JSON,
    JSON_OF_SEGMENTS,
    find_form,
    find_form_of_file,
    refuse_annotations,
    refuse_known_forms,
)
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError, refuse_faults

logger = logging.getLogger(__name__)

_REMEDIES = {
    "key": 'give each utterance a unique name, "key": "…"',
    "wav": 'say where the audio is, "wav": "PATH"',
    "txt": 'write "txt": "" where there is no transcript',
}
_NUM_FIRST_LINES = 1000
"""Of a text that are searched for the signs of another form."""
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Utterance:
    """One utterance: its transcript and where its audio is."""

    key: str
    """Unique name, without white space."""
    wav: str
    """Path of the audio file; a relative one is relative to the working folder, as in WeNet."""
    txt: str
    """Transcript, NFC."""
    lang: str | None = None
    """Language code.

    Rules of normalisation are chosen by it (`text/normalize.py`), so a language that they know
    needs its ISO 639 code. Otherwise it is the code of the corpus (Common Voice's locale, UCLA's
    ISO 639-3).
    """
    duration: float | None = None
    """Length of the utterance in seconds."""
    speaker: str | None = None
    start: float | None = None
    """Begin of the segment in `wav`, seconds; None: the begin of the file."""
    end: float | None = None
    """End of the segment in `wav`, seconds; None: the end of the file."""
    channel: int | None = None
    """The channel of `wav` that has the speech, from 0; None: the mean of all channels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BadClip:
    """An utterance whose audio cannot be used."""

    key: str
    wav: str
    reason: str


_TEXTS = ("key", "wav", "txt", "lang", "speaker")
_SECONDS = ("duration", "start", "end")
_FIELDS = (*_TEXTS, *_SECONDS, "channel")
_ORDER = tuple(field.name for field in fields(Utterance))


def read_data_list(path: Path | str) -> list[Utterance]:
    """All utterances of `iterate_data_list`."""
    return list(iterate_data_list(path))


def read_sentences(path: Path | str, *, keep_empty_lines: bool = False) -> list[Utterance]:
    """The lines of a text file (also .gz, .xz, .bz2) as utterances without audio; text becomes NFC.

    `keep_empty_lines`: they are sentences without units; otherwise they are left out.
    Raises DataError if the file cannot be read or has no sentence, and as `iterate_sentences`.
    """
    lines = list(iterate_sentences(path))
    if not any(lines):
        raise DataError(path, "contains no sentences", "write one per line")
    if num_empty := lines.count(""):
        logger.info(
            "%s: %d empty lines %s", path, num_empty, "kept" if keep_empty_lines else "left out"
        )
    kept = [
        (number, line) for number, line in enumerate(lines, start=1) if line or keep_empty_lines
    ]
    return [Utterance(key=f"{path}:{number}", wav="", txt=line) for number, line in kept]


def iterate_sentences(path: Path | str) -> Iterator[str]:
    """The lines of a text file in NFC, without white space around them; they may be empty.

    Raises DataError if the file cannot be read, or if it begins as JSON or as a known form of
    annotations: their names, times and tags would become sentences.
    """
    lines = iterate_lines(path)
    try:
        first_lines = list(islice(lines, _NUM_FIRST_LINES))
    except DataError:  # a form is named in any encoding
        refuse_annotations(Path(path))
        raise
    form = find_form(Path(path), "\n".join(first_lines))
    if form is JSON:
        raise DataError(f"{path}:1", "JSON, not text", "give a data.list as --data_list")
    if form is not None and form.is_annotation:
        raise DataError(path, form.name, form.remedy)
    for line in chain(first_lines, lines):
        yield unicodedata.normalize("NFC", line.strip(" \t"))


def iterate_data_list(path: Path | str) -> Iterator[Utterance]:
    """The utterances of a `data.list`, in order; unknown fields (WeNet lists may have them) are
    ignored.

    Transcripts are converted to NFC.
    Raises DataError at the end of the list, with one line per fault (the first ten): not JSON, a
        field missing or mistyped, a duplicate key.
    """
    beginning = _read_first_line(Path(path))
    if beginning.endswith(".tar"):
        found = "a list of shards (tars), which are trained with --data_type shard"
        raise DataError(path, found, "give their data.list")
    if beginning[0] not in "{[":  # one fault, not one per line
        refuse_known_forms(Path(path))
        found = "not a data.list (one JSON object per line)"
        raise DataError(
            path, found, "make one with `wenet-hs prepare table|kaldi|folder|elan|praat`"
        )
    _refuse_other_json(Path(path), beginning)
    first_line: dict[str, int] = {}
    faults: list[str] = []
    for number, line in enumerate(iterate_lines(path), start=1):
        if not line.strip():
            continue
        try:
            utterance = parse_utterance(line)
            first = first_line.setdefault(utterance.key, number)
            if first != number:
                raise ValueError(
                    f"utterance {utterance.key!r} is already on line {first}; give each a unique key"
                )
        except ValueError as error:
            faults.append(f"{path}:{number}: {error}")
            continue
        yield utterance
    refuse_faults(path, faults)
    if not first_line:
        raise DataError(
            path, "contains no utterances", "run the stage that prepares the data again"
        )


def _refuse_other_json(path: Path, first_line: str) -> None:
    """Raise DataError for JSON that is no data.list: one line for the file, not one per record.

    A list of segments per recording is named, and so are the manifests of NeMo and lhotse.
    """
    try:
        record = json.loads(first_line)
    except (RecursionError, ValueError):
        record = None
    if isinstance(record, dict) and not {"wav", "txt", "key"}.isdisjoint(record):
        return
    form = find_form_of_file(path)
    if form is JSON_OF_SEGMENTS:
        raise DataError(path, form.name, form.remedy)
    if isinstance(record, dict) and (description := describe_manifest(record)):
        raise DataError(f"{path}:1", description)
    make_list = "make a data.list of it with `wenet-hs prepare table`"
    if isinstance(record, dict) and {"audio_filepath", "duration"} <= record.keys():
        raise DataError(path, "a manifest of NeMo", make_list)
    if form is JSON and (isinstance(record, list) or first_line in ("{", "[")):
        raise DataError(path, "JSON of the whole file, not one object per line", make_list)


def _read_first_line(path: Path) -> str:
    """The first line of a data list that is not empty; `{}` for a file without one.

    Raises DataError. It names a known form of annotations, because another encoding would not help.
    """
    try:
        return next(filter(str.strip, iterate_lines(path)), "{}").strip()
    except DataError:
        refuse_known_forms(path)
        raise


def parse_utterance(line: str) -> Utterance:
    """The utterance of one line of a `data.list`.

    Raises ValueError with the fault, without file and line.
    """
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        to_do = 'write {"key": "…", "wav": "PATH", "txt": "…"} on each line'
        raise ValueError(f"not JSON ({error.msg} at column {error.colno}); {to_do}") from error
    except (RecursionError, ValueError) as error:  # deeply nested lists, a number of 5000 digits
        raise ValueError("not a JSON object with key, wav and txt") from error
    if not isinstance(record, dict):
        raise ValueError("expected a JSON object with key, wav and txt")
    if "key" not in record and (found := describe_manifest(record)):
        raise ValueError(found)
    fields: dict[str, Any] = {
        name: record[name] for name in _FIELDS if record.get(name) is not None
    }
    for name, remedy in _REMEDIES.items():
        if name not in fields:
            raise ValueError(f"no {name!r} in this line; {remedy}")
    channel = fields.get("channel", 0)
    if not isinstance(channel, int) or isinstance(channel, bool) or channel < 0:
        raise ValueError(
            f"'channel' is {json.dumps(channel, ensure_ascii=False)}, expected a whole number, from 0"
        )
    for name, value in fields.items():
        if not isinstance(value, str if name in _TEXTS else (int, float)) or isinstance(
            value, bool
        ):
            expected = "text" if name in _TEXTS else "a number of seconds"
            raise ValueError(
                f"{name!r} is {json.dumps(value, ensure_ascii=False)}, expected {expected}"
            )
        if isinstance(value, str):
            if _SURROGATE.search(value):
                raise ValueError(
                    f"{name!r} has half of a surrogate pair, which is not text; correct the line"
                )
        elif not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name!r} is {value:g}, expected a number of seconds, 0 or more")
    if not fields["key"] or any(character.isspace() for character in fields["key"]):
        raise ValueError(f"key {fields['key']!r} is empty or contains white space")
    if "end" in fields and fields["end"] <= fields.get("start", 0):
        raise ValueError(
            f"'end' is {fields['end']:g}, expected more than 'start', {fields.get('start', 0):g}"
        )
    return Utterance(**{**fields, "txt": unicodedata.normalize("NFC", fields["txt"])})


def describe_manifest(record: Mapping[str, Any]) -> str | None:
    """Which manifest of lhotse a record is from, and what to do with it; None: it is from another
    file.
    """
    if (
        str(record.get("type", "")).endswith("Cut")
        or {"supervisions", "recording"} <= record.keys()
    ):
        how = "in Python, `lhotse.CutSet.from_file(…).decompose(FOLDER)` writes recordings and supervisions"
        return f"cuts of lhotse; {how}, which `wenet-hs prepare table` reads"
    if {"sources", "sampling_rate"} <= record.keys():
        return "recordings of lhotse; give the supervisions beside them to `wenet-hs prepare table`"
    if {"id", "recording_id", "start", "duration", "channel"} <= record.keys():
        return "supervisions of lhotse; make a data.list of them with `wenet-hs prepare table`"
    return None


def write_data_list(path: Path | str, utterances: Iterable[Utterance]) -> None:
    """Write a `data.list`; fields that are None are omitted."""
    write_atomic(path, "".join(format_utterance(utterance) + "\n" for utterance in utterances))


def format_utterance(utterance: Utterance) -> str:
    """The line of a `data.list`, without its line end; fields that are None are omitted."""
    record = {name: value for name in _ORDER if (value := getattr(utterance, name)) is not None}
    return json.dumps(record, ensure_ascii=False)


def read_text(path: Path | str) -> dict[str, str]:
    """The transcripts of a `text` file by key; a line with only a key has an empty transcript.

    Raises DataError on a duplicate key, and on JSON.
    """
    return parse_text(path, read_lines(path))


def parse_text(path: Path | str, lines: Iterable[str]) -> dict[str, str]:
    """The transcripts of the lines of a `text` file by key; see `read_text`."""
    transcripts: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        parts = line.split(maxsplit=1)  # at a space, or at the tab of Kaldi's files
        if not parts:
            continue
        key = parts[0]
        if key.startswith('{"'):  # hyps.jsonl, or a data.list
            found = "JSON lines, not `key transcript` lines"
            raise DataError(f"{path}:{number}", found, "give the file `text` of the same folder")
        if key in transcripts:
            found = f"{key!r} occurs twice"
            raise DataError(f"{path}:{number}", found, "keep one of the two lines")
        transcripts[key] = parts[1].rstrip() if len(parts) == 2 else ""
    return transcripts


def write_text(path: Path | str, transcripts: Mapping[str, str]) -> None:
    """Write one `key transcript` per line."""
    write_atomic(
        path,
        "".join(f"{key} {transcript}".rstrip() + "\n" for key, transcript in transcripts.items()),
    )
