# SPDX-License-Identifier: Apache-2.0
"""Reading and writing of lists of utterances: `data.list`, `text`, and plain text.

A `data.list` has one utterance per line, as JSON. A file `text` has `key transcript` on each line.
Plain text has one sentence per line.
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

_REMEDIES_OF_MISSING = {
    "key": 'give each utterance a unique name, "key": "…"',
    "wav": 'say where the audio is, "wav": "PATH"',
    "txt": 'write "txt": "" where there is no transcript',
}
"""The fields that each line of a data.list must have, and what to do if one is missing."""
_NUM_FIRST_LINES = 1000
"""How many first lines of a text are searched for the signs of another form."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: JSON can have it, but UTF-8 cannot."""


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
    """Where the segment starts in `wav`, in seconds; None is the start of the file."""
    end: float | None = None
    """Where the segment ends in `wav`, in seconds; None is the end of the file."""
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
"""All fields of a line, in the order in which they are checked."""
_WRITTEN_ORDER = tuple(field.name for field in fields(Utterance))
"""All fields of a line, in the order in which they are written."""


# ---- data.list


def read_data_list(path: Path | str) -> list[Utterance]:
    """All utterances of `iterate_data_list`."""
    return list(iterate_data_list(path))


def iterate_data_list(path: Path | str) -> Iterator[Utterance]:
    """The utterances of a `data.list`, in order.

    Transcripts are converted to NFC. Unknown fields, which WeNet's lists may have, are ignored.
    Empty lines are left out.
    Raises DataError before the first utterance if the file cannot be read or is no data.list.
    Raises DataError after the last one if there are faults, with one line for each of the first
    ten: a line that is not JSON, a field that is missing or mistyped, a key that occurs twice. If
    there is no utterance, it raises DataError too.
    """
    _refuse_other_files(path)
    line_of_key: dict[str, int] = {}
    faults: list[str] = []
    for number, line in enumerate(iterate_lines(path), start=1):
        if not line.strip():
            continue
        try:
            utterance = parse_utterance(line)
        except ValueError as error:
            faults.append(f"{path}:{number}: {error}")
            continue
        first_number = line_of_key.setdefault(utterance.key, number)
        if first_number != number:
            place = f"is already on line {first_number}"
            faults.append(
                f"{path}:{number}: utterance {utterance.key!r} {place}; give each a unique key"
            )
            continue
        yield utterance
    refuse_faults(path, faults)
    if not line_of_key:
        to_do = "run the stage that prepares the data again"
        raise DataError(path, "contains no utterances", to_do)


def _refuse_other_files(path: Path | str) -> None:
    """Raise DataError if the first line shows that a file is no data.list.

    So the error is one fault of the file, not one fault per line. It names a list of shards, a
    known form of text, and JSON of other programs.
    """
    first_line = _read_first_line(Path(path))
    if first_line.endswith(".tar"):
        found = "a list of shards (tars), which are trained with --data_type shard"
        raise DataError(path, found, "give their data.list")
    if not first_line.startswith(("{", "[")):
        refuse_known_forms(Path(path))
        found = "not a data.list (one JSON object per line)"
        to_do = "make one with `wenet-hs prepare table|kaldi|folder|elan|praat`"
        raise DataError(path, found, to_do)
    _refuse_other_json(Path(path), first_line)


def _read_first_line(path: Path) -> str:
    """The first line of a data list that is not empty, without white space around it.

    `{}` for a file without such a line: it is JSON, so only its lack of utterances is reported.
    Raises DataError if the file cannot be read as UTF-8. If it has a known form of annotations, the
    error names this form, because another encoding would not help.
    """
    try:
        lines = filter(str.strip, iterate_lines(path))
        return next(lines, "{}").strip()
    except DataError:
        refuse_known_forms(path)
        raise


def _refuse_other_json(path: Path, first_line: str) -> None:
    """Raise DataError if the first line is JSON of another kind than a data.list.

    The error names, in this order: a list of segments per recording, manifests of lhotse, those of
    NeMo, and JSON that is one value for the whole file. Anything else is left to the checks per
    line. So is an object with one of the fields key, wav and txt, which may lack the others.
    """
    try:
        record = json.loads(first_line)
    except (RecursionError, ValueError):
        record = None
    is_object = isinstance(record, dict)
    if is_object and not {"wav", "txt", "key"}.isdisjoint(record):
        return
    form = find_form_of_file(path)
    if form is JSON_OF_SEGMENTS:
        raise DataError(path, form.name, form.remedy)
    make_list = "make a data.list of it with `wenet-hs prepare table`"
    if is_object:
        description = describe_manifest(record)
        if description is not None:
            raise DataError(f"{path}:1", description)
        if {"audio_filepath", "duration"} <= record.keys():
            raise DataError(path, "a manifest of NeMo", make_list)
    goes_on = first_line in ("{", "[")  # the value is in several lines
    is_one_value = isinstance(record, list) or goes_on
    if form is JSON and is_one_value:
        raise DataError(path, "JSON of the whole file, not one object per line", make_list)


def parse_utterance(line: str) -> Utterance:
    """The utterance of one line of a `data.list`, with its transcript in NFC.

    A field whose value is null counts as missing, and unknown fields are ignored.
    Raises ValueError with the first fault of the line and what to do, without file and line: not
    JSON, a record of lhotse, a field that is missing or mistyped, an empty key, a key with white
    space, or an end that is not after the start.
    """
    record = _parse_object(line)
    if "key" not in record:
        description = describe_manifest(record)
        if description is not None:
            raise ValueError(description)
    fields: dict[str, Any] = {
        name: record[name] for name in _FIELDS if record.get(name) is not None
    }
    for name, remedy in _REMEDIES_OF_MISSING.items():
        if name not in fields:
            raise ValueError(f"no {name!r} in this line; {remedy}")
    if "channel" in fields:
        _check_channel(fields["channel"])
    for name, value in fields.items():
        if name in _TEXTS:
            _check_text(name, value)
        elif name in _SECONDS:
            _check_seconds(name, value)
    key = fields["key"]
    if not key or any(character.isspace() for character in key):
        raise ValueError(f"key {key!r} is empty or contains white space")
    start = fields.get("start", 0)
    if "end" in fields and fields["end"] <= start:
        raise ValueError(f"'end' is {fields['end']:g}, expected more than 'start', {start:g}")
    fields["txt"] = unicodedata.normalize("NFC", fields["txt"])
    return Utterance(**fields)


def _parse_object(line: str) -> dict[str, Any]:
    """The JSON object of a line. Raises ValueError with what to do if it is no JSON object."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        to_do = 'write {"key": "…", "wav": "PATH", "txt": "…"} on each line'
        raise ValueError(f"not JSON ({error.msg} at column {error.colno}); {to_do}") from error
    except (RecursionError, ValueError) as error:  # deeply nested lists, a number of 5000 digits
        raise ValueError("not a JSON object with key, wav and txt") from error
    if not isinstance(record, dict):
        raise ValueError("expected a JSON object with key, wav and txt")
    return record


def _check_text(name: str, value: object) -> None:
    """Raise ValueError if the value of a field is not text that can be written as UTF-8."""
    if not isinstance(value, str):
        raise _mistyped(name, value, "text")
    if _SURROGATE.search(value):
        raise ValueError(
            f"{name!r} has half of a surrogate pair, which is not text; correct the line"
        )


def _check_seconds(name: str, value: object) -> None:
    """Raise ValueError if the value of a field is not a finite number of at least 0."""
    is_bool = isinstance(value, bool)  # which Python takes for a number
    if is_bool or not isinstance(value, (int, float)):
        raise _mistyped(name, value, "a number of seconds")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name!r} is {value:g}, expected a number of seconds, 0 or more")


def _check_channel(value: object) -> None:
    """Raise ValueError if the value of the field `channel` is not a whole number of at least 0."""
    is_bool = isinstance(value, bool)  # which Python takes for a number
    if is_bool or not isinstance(value, int) or value < 0:
        raise _mistyped("channel", value, "a whole number, from 0")


def _mistyped(name: str, value: object, expected: str) -> ValueError:
    """The error for a field with a value of another type than `expected`."""
    shown = json.dumps(value, ensure_ascii=False)
    return ValueError(f"{name!r} is {shown}, expected {expected}")


def describe_manifest(record: Mapping[str, Any]) -> str | None:
    """Which manifest of lhotse a JSON object is from, and what to do with it, for a message.

    None if it is none of lhotse's cuts, recordings and supervisions.
    """
    names = record.keys()
    is_typed_cut = str(record.get("type", "")).endswith("Cut")  # MonoCut, MultiCut, …
    if is_typed_cut or {"supervisions", "recording"} <= names:
        how = (
            "in Python, `lhotse.CutSet.from_file(…).decompose(FOLDER)` "
            "writes recordings and supervisions"
        )
        return f"cuts of lhotse; {how}, which `wenet-hs prepare table` reads"
    if {"sources", "sampling_rate"} <= names:
        return "recordings of lhotse; give the supervisions beside them to `wenet-hs prepare table`"
    if {"id", "recording_id", "start", "duration", "channel"} <= names:
        return "supervisions of lhotse; make a data.list of them with `wenet-hs prepare table`"
    return None


def write_data_list(path: Path | str, utterances: Iterable[Utterance]) -> None:
    """Write a `data.list`; fields that are None are omitted."""
    write_atomic(path, "".join(format_utterance(utterance) + "\n" for utterance in utterances))


def format_utterance(utterance: Utterance) -> str:
    """The line of a `data.list`, without its line end; fields that are None are omitted."""
    record = {}
    for name in _WRITTEN_ORDER:
        value = getattr(utterance, name)
        if value is not None:
            record[name] = value
    return json.dumps(record, ensure_ascii=False)


# ---- text: `key transcript` per line


def read_text(path: Path | str) -> dict[str, str]:
    """The transcripts of a `text` file by key.

    Raises DataError if it cannot be read, and as `parse_text` does.
    """
    return parse_text(path, read_lines(path))


def parse_text(path: Path | str, lines: Iterable[str]) -> dict[str, str]:
    """The transcripts of the lines of a `text` file by key, in the order of the lines.

    A line with only a key has an empty transcript. Empty lines are left out.
    Raises DataError, with `path`, if a key occurs twice or a line begins as JSON.
    """
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
        has_transcript = len(parts) == 2
        transcripts[key] = parts[1].rstrip() if has_transcript else ""
    return transcripts


def write_text(path: Path | str, transcripts: Mapping[str, str]) -> None:
    """Write one `key transcript` per line; only the key if the transcript is empty."""
    lines = [f"{key} {transcript}".rstrip() for key, transcript in transcripts.items()]
    write_atomic(path, "".join(f"{line}\n" for line in lines))


# ---- plain text: one sentence per line


def read_sentences(path: Path | str, *, keep_empty_lines: bool = False) -> list[Utterance]:
    """The lines of a text file (also .gz, .xz, .bz2) as utterances without audio; text becomes NFC.

    The key of each is `path:line`.
    `keep_empty_lines`: empty lines become sentences without units; otherwise they are left out.
    Their number is logged.
    Raises DataError if the file cannot be read or has no sentence, and as `iterate_sentences`.
    """
    lines = list(iterate_sentences(path))
    if not any(lines):
        raise DataError(path, "contains no sentences", "write one per line")
    num_empty = lines.count("")
    if num_empty:
        action = "kept" if keep_empty_lines else "left out"
        logger.info("%s: %d empty lines %s", path, num_empty, action)
    sentences = []
    for number, line in enumerate(lines, start=1):
        if line or keep_empty_lines:
            sentences.append(Utterance(key=f"{path}:{number}", wav="", txt=line))
    return sentences


def iterate_sentences(path: Path | str) -> Iterator[str]:
    """The lines of a text file in NFC, without white space around them; they may be empty.

    Raises DataError if the file cannot be read, or if its first 1,000 lines show JSON or a known
    form of annotations, whose names, times and tags would become sentences.
    """
    lines = iterate_lines(path)
    try:
        first_lines = list(islice(lines, _NUM_FIRST_LINES))
    except DataError:
        # An annotation is named even if its encoding is not UTF-8.
        refuse_annotations(Path(path))
        raise
    form = find_form(Path(path), "\n".join(first_lines))
    if form is JSON:
        raise DataError(f"{path}:1", "JSON, not text", "give a data.list as --data_list")
    if form is not None and form.is_annotation:
        raise DataError(path, form.name, form.remedy)
    for line in chain(first_lines, lines):
        yield unicodedata.normalize("NFC", line.strip(" \t"))
