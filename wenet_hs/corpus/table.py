# SPDX-License-Identifier: Apache-2.0
"""A table of recordings and transcripts: CSV, TSV or JSON, with the names of the columns in the
first line.

Example: wenet-hs prepare table --table recordings.csv --audio_dir recordings --lang mdw --out data
         wenet-hs prepare table --table my.tsv --columns "audio=File text=Orthography" --out data

Columns are found by the usual names of many tools (COLUMNS in wenet_hs/corpus/columns.py), in any
case: path, audio, wav, file_name; sentence, text, transcript, transcription, wrd; speaker,
client_id, spk_id; language, lang, locale (code or name); start, begin, onset, end or duration;
channel (left, right, A, B, or a number: from 0 if a 0 occurs, from 1 if the number of channels
occurs); split; id. Times are seconds, mm:ss or h:mm:ss; milliseconds if the name of the column says
so (start_ms, ELAN's `Begin Time - msec`). `--columns "split="` ignores this column. Delimiter,
quoting, and the columns that are used and not used are printed. Many rows that give a whole file
different texts are refused: then the columns of times were not found.

Without names of columns a table or `key transcript` lines are read if their first line names an
audio file; what was assumed is printed. JSON has one object per line, or one array or object of
objects. Of lhotse give the supervisions, with the recordings beside them. Files may be compressed
(.gz, .xz, .bz2).
"""

import json
import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise, permutations
from pathlib import Path
from statistics import median
from typing import Any

from wenet_hs.base.options import REQUIRED, option
from wenet_hs.corpus.columns import (
    COLUMNS,
    TIMES,
    find_columns,
    find_near_names,
    has_other_unit,
    is_in_milliseconds,
    is_usual_name,
)
from wenet_hs.corpus.entries import Entry, RecordingOptions
from wenet_hs.corpus.output import Rejected
from wenet_hs.corpus.own_recordings import prepare_entries
from wenet_hs.corpus.table_files import Table, decode_text, read_table_file
from wenet_hs.data.audio import AudioError, read_duration
from wenet_hs.data.containers import ADD_HEADER, RAW_SAMPLES, RAW_SUFFIXES
from wenet_hs.data.media import MediaFinder
from wenet_hs.manifest.file_forms import JSON_OF_SEGMENTS, SEGMENT_LIST
from wenet_hs.tree.errors import DataError, list_names

logger = logging.getLogger(__name__)

_MAX_REPEATED = 0.1
"""Share of the rows whose id another clip has too, or whose file another text; up to it these are
mistakes.
"""
_NEMO_START = "offset"
"""The name that NeMo gives the begin of a segment, which it omits where it is 0."""


_NUM_SAMPLED = 100
"""Rows at the beginning that show whether times are seconds."""
_MIN_DOUBTFUL_S = 30.0
"""Length of the median segment from which on it is checked.

In milliseconds words are longer too.
"""


@dataclass(frozen=True, kw_only=True)
class ColumnOptions(RecordingOptions):
    """Options of how a table is read."""

    columns: str = option(
        "",
        'names of columns, such as "audio=File text=Words"; a name may have spaces: "start=Start time"; '
        f"contents: {' '.join(COLUMNS)}",
        metavar='"CONTENT=NAME …"',
    )
    encoding: str | None = option(
        None, "of the text files (default: UTF-8, or UTF-16 with a byte order mark)"
    )


@dataclass(frozen=True, kw_only=True)
class TableOptions(ColumnOptions):
    """Options of `prepare table`."""

    corpus: Path = option(  # a recipe calls what it reads --corpus
        REQUIRED,
        "table to read: .csv, .tsv or .jsonl",
        flags=("--table", "--corpus"),
        metavar="FILE",
    )


def prepare(options: TableOptions) -> dict[str, Any]:
    """Write the lists of a table. Returns the content of `stats.json`."""
    if options.corpus.is_dir():
        raise DataError(
            options.corpus, "a folder", "name a file in it, or give it to `wenet-hs prepare folder`"
        )
    return prepare_entries(options, "table", read_entries(options.corpus, options), {})


def read_entries(
    path: Path, options: ColumnOptions, finder: MediaFinder | None = None
) -> Iterator[Entry | Rejected]:
    """The rows of a table.

    `finder`: finds the audio, by which a table without names of columns is recognised.

    Raises DataError when the table cannot be read or lacks a column, ConfigError for wrong
        --columns.
    """
    finder = finder or MediaFinder(options.audio_dir)

    def is_audio(cell: str) -> bool:
        found = finder.find(_audio_paths(cell), path.parent)
        return isinstance(found, Path) or found.startswith(("ambiguous", "unreadable"))

    table = read_table_file(
        path,
        options.encoding,
        is_usual_name,
        is_audio,
        are_columns_chosen=bool(options.columns),
    )
    if not table.header:
        found = (
            f"no row can be read, line {table.rows[0][0]}: {table.rows[0][1]}"
            if table.rows
            else "empty"
        )
        raise DataError(path, found, "give a table with the names of the columns")
    columns = _find_columns(path, table, options)
    in_ms = [content for content in TIMES if is_in_milliseconds(columns.get(content, ""))]
    used = [
        f"{name!r} is the {content}{' in ms' * (content in in_ms)}"
        for content, name in columns.items()
    ]
    logger.info("%s: %s, %d rows; %s", path, table.form, len(table.rows), ", ".join(used))
    unused = [name for name in table.header if name and name not in columns.values()]
    _report_unused(path, unused, {*columns, *re.findall(r"(\w+)=", options.columns)})
    _drop_repeated_ids(path, table, columns)
    rows = {number: row for number, row in table.rows if isinstance(row, dict)}
    values = {number: _read_values(row, columns) for number, row in rows.items()}
    _refuse_raw_samples(path, values, finder)
    _refuse_other_unit(path, values, in_ms, finder)
    doubtful = _find_doubtful(path, table, values, unused)
    for number, row in table.rows:
        where = f"{path.name}:{number}"
        if isinstance(row, str):
            yield Rejected(where, "", row, "")
            continue
        value = values[number]
        try:
            if wrong := [content for content in value if _is_json(row.get(columns[content]))]:
                raise ValueError(
                    f"{columns[wrong[0]]}: {value[wrong[0]][:40]} is no text or number"
                )
            if number in doubtful:
                raise ValueError(
                    "several transcripts: other rows have another text for the whole file; keep one row"
                )
            start, end = _read_times(value, in_ms)
        except ValueError as error:
            names = (
                value.get("key", where),
                value.get("audio", ""),
                str(error),
                value.get("lang", ""),
            )
            yield Rejected(*names, text=value.get("text", ""))
            continue
        yield Entry(
            where=where,
            audio=_audio_paths(value.get("audio", "")),
            folder=path.parent,
            txt=value.get("text", ""),
            start=start,
            end=end,
            **{name: value.get(name) for name in ("key", "lang", "speaker", "channel", "split")},
        )


def _read_values(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, str]:
    """Content → text of a row, without empty cells.

    A missing `offset` beside a duration is 0, the default of NeMo's manifests. NaN is not missing.
    """
    texts = {content: _text(row.get(name)) for content, name in columns.items()}
    value = {content: text for content, text in texts.items() if text}
    start = columns.get("start", "")
    has_no_offset = start.lower() == _NEMO_START and row.get(start) in (None, "")
    if has_no_offset and "duration" in value and "end" not in value:
        value["start"] = "0"
    return value


def _audio_paths(written: str) -> tuple[str, str]:
    """A path as it is written, and without the suffix of another file of the recording.

    Exports name the annotation file, and KsponSpeech its files of raw samples, which users convert.
    """
    return written, re.sub(r"(?i)\.(eaf|textgrid|pcm)$", "", written)


def _refuse_raw_samples(
    path: Path,
    values: Mapping[int, Mapping[str, str]],
    finder: MediaFinder,
) -> None:
    """Raise DataError if the audio of all rows is raw samples, as KsponSpeech has them.

    The first row with other audio ends the search. A few raw files are rejected later, row by row.
    """
    first_name = ""
    for value in values.values():
        written = value.get("audio", "")
        if Path(written).suffix.lower() not in RAW_SUFFIXES:
            return
        audio = finder.find(_audio_paths(written), path.parent)
        if isinstance(audio, Path) or not audio.startswith("unreadable"):
            return
        first_name = first_name or Path(written).name
    if first_name:
        raise DataError(path, f"no audio file, but {first_name}: {RAW_SAMPLES}", ADD_HEADER)


@dataclass(frozen=True)
class _RecordingPart:
    """A part of a recording, as a row gives it."""

    number: int
    """Line of the table."""
    audio: str
    """Path as it is written."""
    start: float
    end: float


def _refuse_other_unit(
    path: Path,
    values: Mapping[int, Mapping[str, str]],
    in_ms: Collection[str],
    finder: MediaFinder,
) -> None:
    """Raise DataError if times are read as seconds and seem to have a smaller unit.

    Then segments are long, and most end after twice the duration of their audio. The audio is only
    asked for the first rows of tables with long segments.
    """
    if in_ms:
        return
    segments = _read_segments(values)
    if not segments or median(one.end - one.start for one in segments) < _MIN_DOUBTFUL_S:
        return
    num_outside = 0
    example = ""
    for segment in segments:
        duration = _find_duration(segment.audio, path.parent, finder)
        if duration is not None and segment.end > 2 * duration:
            num_outside += 1
            times = f"from {segment.start:g} to {segment.end:g} s"
            example = example or f"line {segment.number}: {times} in audio of {duration:g} s"
    if num_outside > len(segments) / 2:
        contents = [name for name in TIMES if any(name in value for value in values.values())]
        names = " and ".join(f"{name}_ms" for name in contents)
        found = f"times outside the audio, {example}"
        to_do = f"if they are milliseconds, name the columns {names}; write other units in seconds"
        raise DataError(path, found, to_do)


def _read_segments(values: Mapping[int, Mapping[str, str]]) -> list[_RecordingPart]:
    """The parts of recordings of the first rows, without those of wrong times."""
    segments = []
    for number, value in islice(values.items(), _NUM_SAMPLED):
        with suppress(ValueError):
            start, end = _read_times(value, in_ms=())
            if start is not None and end is not None:
                segments.append(_RecordingPart(number, value.get("audio", ""), start, end))
    return segments


def _find_duration(written: str, folder: Path, finder: MediaFinder) -> float | None:
    """Seconds of an audio file, or None if it is not found or cannot be read."""
    audio = finder.find(_audio_paths(written), folder)
    if not isinstance(audio, Path):
        return None
    with suppress(AudioError):
        return read_duration(audio)
    return None


def _find_columns(path: Path, table: Table, options: ColumnOptions) -> dict[str, str]:
    """Content → name of its column.

    Raises DataError if a column is missing, ConfigError for wrong --columns. If JSON has lists of
    segments in its columns, the line says so.
    """
    try:
        return find_columns(path, table.header, options.columns)
    except DataError as error:
        text, _ = decode_text(path, options.encoding, "prepare table")
        if table.form.startswith("JSON") and SEGMENT_LIST.search(text):
            raise DataError(path, JSON_OF_SEGMENTS.name, JSON_OF_SEGMENTS.remedy) from None
        if names := _find_columns_of_segments(table):
            found = f"{error.found}, but lists of segments in {list_names([*map(repr, names)])}"
            raise DataError(path, found, f"{JSON_OF_SEGMENTS.remedy}; or {error.to_do}") from None
        raise


def _find_columns_of_segments(table: Table) -> list[str]:
    """The columns of JSON that have segments in the first row, as those of transcription services."""
    first_row = table.rows[0][1] if table.rows else {}
    if not isinstance(first_row, dict):
        return []
    return [name for name, value in first_row.items() if _has_segments(value)]


def _has_segments(value: Any) -> bool:
    """Whether a value of JSON has, at any depth, a list of objects that have a text or a time."""
    if isinstance(value, dict):
        return any(map(_has_segments, value.values()))
    if not isinstance(value, list):
        return False
    return any(_has_text_or_time(item) or _has_segments(item) for item in value)


def _has_text_or_time(value: Any) -> bool:
    """Whether an object, or one inside it, has the usual name of a column of text or times."""
    if not isinstance(value, dict):
        return False
    has_name = any(is_usual_name(name, ("text", *TIMES)) for name in value)
    return has_name or any(map(_has_text_or_time, value.values()))


def _text(cell: Any) -> str:
    return (
        "" if cell is None or cell != cell else str(cell).strip()
    )  # NaN of JSON: pandas' missing value


def _is_json(value: Any) -> bool:
    """Whether a value is a list or object, also as text: Label Studio writes segments into cells."""
    if isinstance(value, str) and re.match(r'\s*[\[{]\s*["\[{]', value):
        with suppress(ValueError):
            value = json.loads(value)
    return isinstance(value, list | dict)


def _drop_repeated_ids(path: Path, table: Table, columns: dict[str, str]) -> None:
    """Use no column of ids that many rows share with other audio: these are of sentences (FLEURS)
    or recordings.
    """
    if "key" not in columns:
        return
    selecting = [columns[name] for name in ("audio", *TIMES, "channel") if name in columns]
    rows = [
        row
        for _, row in table.rows
        if isinstance(row, dict) and row.get(columns["key"]) not in (None, "")
    ]
    names = [str(row[columns["key"]]) for row in rows]
    clips = {
        (name, *(str(row.get(column)) for column in selecting))
        for name, row in zip(names, rows, strict=True)
    }
    if len(clips) - len(set(names)) > _MAX_REPEATED * len(rows):
        found = f"{len(clips)} clips have {len(set(names))} different ids"
        logger.info(
            "%s: column %r names no clips: %s; it is not used", path, columns.pop("key"), found
        )


def _report_unused(path: Path, unused: Sequence[str], known: set[str]) -> None:
    hints = find_near_names(unused, known | ({"end"} if "start" in known else set()))
    if unused:
        line = "; ".join(
            [f"columns not used: {list_names([repr(name) for name in unused], most=20)}", *hints]
        )
        logger.log(logging.WARNING if hints else logging.INFO, "%s: %s", path, line)


def _find_doubtful(
    path: Path, table: Table, values: Mapping[int, Mapping[str, str]], unused: Sequence[str]
) -> set[int]:
    """The lines of rows for one whole file (and channel) with different texts.

    Raises DataError if they are many: then there is a column of times that was not found.
    """
    files = defaultdict[tuple[str, str], dict[int, str]](dict)
    for number, value in values.items():
        if {"audio", "text"} <= value.keys() and not {*TIMES} & value.keys():
            files[value["audio"], value.get("channel", "")][number] = value["text"]
    doubtful = {
        number for of_file in files.values() if len({*of_file.values()}) > 1 for number in of_file
    }
    if len(doubtful) > _MAX_REPEATED * sum(map(len, files.values())):
        intervals = _find_likely_times(table, values, doubtful, unused)
        start, end = intervals or ("…", "…")
        advice = (
            f"{start!r} and {end!r} may be their times"
            if intervals
            else "name the columns of times"
        )
        found = f"{len(doubtful)} rows give whole files, which other rows give with another text"
        remedy = f'{advice}: --columns "start={start} end={end}", or keep one row per file'
        raise DataError(f"{path}:{min(doubtful)}", found, remedy)
    return doubtful


def _find_likely_times(
    table: Table,
    values: Mapping[int, Mapping[str, str]],
    numbers: Collection[int],
    names: Sequence[str],
) -> tuple[str, str] | None:
    """Two columns of numbers by which most of these rows are intervals that follow each other in
    their file.
    """
    rows = [
        (values[number]["audio"], row)
        for number, row in table.rows
        if number in numbers and isinstance(row, dict)
    ]
    times = dict[str, list[float]]()
    for name in names:
        if not has_other_unit(name):
            with suppress(ValueError):
                times[name] = [read_seconds(_text(row.get(name))) for _, row in rows[:1000]]
    for pair in permutations(times, 2):
        found = sorted(
            zip((audio for audio, _ in rows), times[pair[0]], times[pair[1]], strict=False)
        )
        following = [one[2] <= other[1] for one, other in pairwise(found) if one[0] == other[0]]
        if all(start < end for _, start, end in found) and sum(following) > len(following) / 2:
            return pair
    return None


def _read_times(
    value: Mapping[str, str], in_ms: Collection[str]
) -> tuple[float | None, float | None]:
    """Begin and end of a row in seconds; neither: the whole file.

    Raises ValueError if one of them is missing.
    """
    given = {name: value[name] for name in TIMES if name in value}
    if wrong := [
        text
        for name, text in given.items()
        if name in in_ms and not re.fullmatch(r"\d+(\.\d+)?", text)
    ]:
        raise ValueError(f"times: {wrong[0]!r} is not a number of milliseconds")
    times = {
        name: read_seconds(text) / (1000 if name in in_ms else 1) for name, text in given.items()
    }
    start, end, duration = map(times.get, TIMES)
    if end is None and start is not None and duration is not None:
        end = start + duration
    if (start is None) != (end is None and duration is None):
        missing = "start" if start is None else "end"
        raise ValueError(
            f"times: the row has no {missing}; add it, or leave out all times for the whole file"
        )
    return start, end


def read_seconds(text: str) -> float:
    """Of `83.5`, `83,5`, `1:23.5` or `0:01:23.5`."""
    *before, last = text.replace(",", ".").split(":")
    try:
        if len(before) > 2 or (
            before and (text.strip().startswith("-") or not 0.0 <= float(last) < 60.0)
        ):
            raise ValueError
        return sum(
            (int(value) * 60**power for power, value in enumerate(reversed(before), start=1)),
            float(last),
        )
    except (ValueError, OverflowError):
        raise ValueError(
            f"times: {text[:40]!r} is not a number of seconds, mm:ss or h:mm:ss"
        ) from None
