# SPDX-License-Identifier: Apache-2.0
"""A table of recordings and transcripts: CSV, TSV or JSON, with column names in the first line.

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
objects. Of manifests of lhotse, name that of the supervisions; that of the recordings has to be
beside it. Files may be compressed (.gz, .xz, .bz2).
"""

import json
import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise, permutations
from pathlib import Path
from statistics import median
from typing import Any

from wenet_hs.base.options import REQUIRED, option
from wenet_hs.corpus.columns import (
    COLUMNS,
    TIMES,
    find_columns,
    has_other_unit,
    is_in_milliseconds,
    is_usual_name,
    suggest_columns,
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
"""Share of the rows with a repeated id, or with one of several texts of a file.

Up to this share they are mistakes. If there are more, the column means something else.
"""
_NEMO_START = "offset"
"""The column of starts in NeMo's manifests. NeMo leaves it out where the start is 0."""
_NUM_SAMPLED = 100
"""Rows at the beginning that show whether times are seconds."""
_MIN_DOUBTFUL_S = 30.0
"""If the median segment is at least that long, the unit of the times is checked.

Words that are read as seconds, and are milliseconds, are longer too.
"""
_MAX_ROWS_OF_TIMES = 1000
"""Rows at the beginning that show which columns are times."""
_BEGIN_OF_JSON = re.compile(r'\s*[\[{]\s*["\[{]')
"""The beginning of a list or object whose first item is a text, a list, or an object."""


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


# ---- rows → entries


@dataclass(frozen=True)
class _Row:
    """A row of a table that could be read."""

    line: int
    cells: Mapping[str, Any]
    """Name of the column → the value of the cell: a text, or any value of JSON."""
    values: Mapping[str, str]
    """What a column contains, as in `COLUMNS` → text. Empty cells are left out."""


@dataclass(frozen=True)
class _ChosenColumns:
    """Which columns of a table are used, and for what."""

    names: Mapping[str, str]
    """What a column contains, as in `COLUMNS` → its name."""
    in_ms: Collection[str]
    """The contents that are times in milliseconds. Other times are seconds or a clock."""
    unused: Sequence[str]
    """The names of the other columns."""


def read_entries(
    path: Path, options: ColumnOptions, finder: MediaFinder | None = None
) -> Iterator[Entry | Rejected]:
    """The rows of a table, in order. Which columns are used and not used is logged.

    A row that cannot be used is rejected. So is a row whose text is doubtful, because other rows
    give the same whole file another text. All rows are read before the first one is given, because
    some checks need them all.

    Args:
        finder: finds the audio, by which a table without names of columns is recognised; None: a
            new finder for the folder of --audio_dir.
    Raises DataError when the table cannot be read, lacks a column, or its times cannot be right;
        ConfigError for wrong --columns.
    """
    finder = finder or MediaFinder(options.audio_dir)
    table = _read_table(path, options, finder)
    columns = _choose_columns(path, table, options)
    rows = list[_Row]()
    for line, cells in table.rows:
        if isinstance(cells, dict):
            rows.append(_Row(line, cells, _read_values(cells, columns.names)))
    _refuse_raw_samples(path, rows, finder)
    if not columns.in_ms:
        _refuse_other_unit(path, rows, finder)
    doubtful_lines = _find_doubtful_lines(path, rows, columns.unused)
    row_of_line = {row.line: row for row in rows}
    for line, cells in table.rows:
        where = f"{path.name}:{line}"
        if isinstance(cells, str):  # in place of cells, the reason why there are none
            yield Rejected(where, "", reason=cells, lang="")
        else:
            is_doubtful = line in doubtful_lines
            yield _make_entry(row_of_line[line], columns, path.parent, where, is_doubtful)


def _make_entry(
    row: _Row, columns: _ChosenColumns, folder: Path, where: str, is_doubtful: bool
) -> Entry | Rejected:
    """The entry of a row, or rejected if one of its cells cannot be used.

    `folder`: where relative paths begin. `where`: file and line, for messages. `is_doubtful`:
    whether other rows give the whole file another text; then the row is rejected too.
    """
    values = row.values
    try:
        _refuse_json_cells(row, columns.names)
        if is_doubtful:
            raise ValueError(
                "several transcripts: other rows have another text for the whole file; keep one row"
            )
        start, end = _read_times(values, columns.in_ms)
    except ValueError as error:
        return Rejected(
            key=values.get("key", where),
            path=values.get("audio", ""),
            reason=str(error),
            lang=values.get("lang", ""),
            text=values.get("text", ""),
        )
    return Entry(
        where=where,
        audio=_list_audio_paths(values.get("audio", "")),
        folder=folder,
        txt=values.get("text", ""),
        key=values.get("key"),
        lang=values.get("lang"),
        speaker=values.get("speaker"),
        start=start,
        end=end,
        channel=values.get("channel"),
        split=values.get("split"),
    )


def _read_table(path: Path, options: ColumnOptions, finder: MediaFinder) -> Table:
    """The rows of the file. Raises DataError if none can be read."""

    def is_audio(cell: str) -> bool:
        """Whether a cell names an audio file, also if it is ambiguous which one, or unreadable."""
        path_or_fault = finder.find(_list_audio_paths(cell), path.parent)
        if isinstance(path_or_fault, Path):
            return True
        return path_or_fault.startswith(("ambiguous", "unreadable"))

    table = read_table_file(
        path,
        options.encoding,
        is_usual_name,
        is_audio,
        are_columns_chosen=bool(options.columns),
    )
    if not table.header:
        found = "empty"
        if table.rows:  # no row can be read, so each has a fault in place of its cells
            line, fault = table.rows[0]
            found = f"no row can be read, line {line}: {fault}"
        raise DataError(path, found, "give a table with the names of the columns")
    return table


def _read_values(cells: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, str]:
    """Content → text of a row, without empty cells.

    NeMo's manifests leave out a start of 0. So the start is 0 if the column of starts is `offset`,
    its cell is absent, and the row has a duration but no end. A cell that is NaN is not absent: the
    row then has no start.
    """
    texts = {content: _to_text(cells.get(name)) for content, name in columns.items()}
    values = {content: text for content, text in texts.items() if text}
    start = columns.get("start", "")
    has_no_offset = start.lower() == _NEMO_START and cells.get(start) in (None, "")
    if has_no_offset and "duration" in values and "end" not in values:
        values["start"] = "0"
    return values


def _to_text(cell: Any) -> str:
    """The text of a cell without spaces around it; empty for a missing value."""
    is_nan = cell != cell  # pandas writes missing values as NaN into JSON
    if cell is None or is_nan:
        return ""
    return str(cell).strip()


def _list_audio_paths(written: str) -> tuple[str, str]:
    """The paths by which the audio is searched: as it is written, and without some suffixes.

    Exports name the annotation file (`a.eaf`), and KsponSpeech its files of raw samples (`a.pcm`),
    which users convert. Without the suffix the audio of the same name is found.
    """
    return written, re.sub(r"(?i)\.(eaf|textgrid|pcm)$", "", written)


def _refuse_json_cells(row: _Row, columns: Mapping[str, str]) -> None:
    """Raise ValueError if a cell of a used column has a list or an object: no text or number."""
    for content, text in row.values.items():
        if _is_json(row.cells.get(columns[content])):
            raise ValueError(f"{columns[content]}: {text[:40]} is no text or number")


def _is_json(value: Any) -> bool:
    """Whether a value is a list or an object of JSON, or the text of one in a cell of CSV.

    Label Studio writes segments as such texts: `[{"start": 0.25}]`. `[1, 2]` and `[]` are not taken
    for JSON, because a transcript may have a number or nothing in brackets.
    """
    if isinstance(value, str) and _BEGIN_OF_JSON.match(value):
        with suppress(ValueError):  # a text in brackets that is no JSON
            value = json.loads(value)
    return isinstance(value, list | dict)


# ---- times


def _read_times(
    values: Mapping[str, str], in_ms: Collection[str]
) -> tuple[float | None, float | None]:
    """Begin and end of a row in seconds; both None: the row has no times and gives the whole file.

    The end is that of the row, or else the begin plus the duration. `in_ms`: which of start, end
    and duration are milliseconds; the others are seconds or a clock.
    Raises ValueError for a text that is no time, and if begin or end is missing but not both.
    """
    written = {content: values[content] for content in TIMES if content in values}
    for content, text in written.items():
        if content in in_ms and not re.fullmatch(r"\d+(\.\d+)?", text):
            raise ValueError(f"times: {text!r} is not a number of milliseconds")
    seconds = dict[str, float]()
    for content, text in written.items():
        seconds[content] = read_seconds(text)
        if content in in_ms:
            seconds[content] /= 1000
    start = seconds.get("start")
    end = seconds.get("end")
    duration = seconds.get("duration")
    has_start = start is not None
    has_end = end is not None or duration is not None
    if has_start != has_end:
        missing = "end" if has_start else "start"
        raise ValueError(
            f"times: the row has no {missing}; add it, or leave out all times for the whole file"
        )
    if end is None and start is not None and duration is not None:
        end = start + duration
    return start, end


def read_seconds(text: str) -> float:
    """The seconds of a time: `83.5`, `83,5`, `1:23.5` and `0:01:23.5` are the same.

    A number without a colon may be negative. Raises ValueError for another text.
    """
    try:
        return _parse_seconds(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"times: {text[:40]!r} is not a number of seconds, mm:ss or h:mm:ss"
        ) from None


def _parse_seconds(text: str) -> float:
    """The seconds of a number, mm:ss or h:mm:ss.

    A number may be negative, and the caller has to refuse it if it is the time of a clip. Raises
    ValueError for another text, for a negative clock, and for a clock with 60 seconds or more;
    OverflowError for minutes or hours that are too large for a float.
    """
    *hours_and_minutes, last = text.replace(",", ".").split(":")
    if len(hours_and_minutes) > 2:
        raise ValueError("more than hours, minutes and seconds")
    seconds = float(last)
    if not hours_and_minutes:
        return seconds
    if text.strip().startswith("-") or not 0.0 <= seconds < 60.0:
        raise ValueError("not a clock")
    seconds_of_unit = 60  # of a minute, then of an hour
    for value in reversed(hours_and_minutes):
        seconds += int(value) * seconds_of_unit
        seconds_of_unit *= 60
    return seconds


# ---- which columns are used


def _choose_columns(path: Path, table: Table, options: ColumnOptions) -> _ChosenColumns:
    """The columns that are used. Both these and the unused ones are logged.

    A column of ids is not used if many clips share their id with another clip. It is logged as one
    that was found, and then as one that is not used, with the reason. It is then neither in `names`
    nor in `unused`. Raises as `_find_table_columns` does.
    """
    names = _find_table_columns(path, table, options)
    in_ms = [content for content in TIMES if is_in_milliseconds(names.get(content, ""))]
    _report_used(path, table, names, in_ms)
    unused = [name for name in table.header if name and name not in names.values()]
    chosen_by_user = re.findall(r"(\w+)=", options.columns)
    _report_unused(path, unused, {*names, *chosen_by_user})
    fault_of_ids = _find_fault_of_ids(table, names)
    if fault_of_ids is not None:
        name = names.pop("key")
        logger.info("%s: column %r names no clips: %s; it is not used", path, name, fault_of_ids)
    return _ChosenColumns(names, in_ms, unused)


def _find_table_columns(path: Path, table: Table, options: ColumnOptions) -> dict[str, str]:
    """Content → name of its column; see `find_columns`.

    Raises DataError as `find_columns` does, and ConfigError for wrong --columns. In place of a
    DataError of `find_columns`, two cases have an error of their own, because the transcripts of a
    transcription service are in lists of segments:
    1. The file is JSON in a form of such a service: the error names this form.
    2. Cells of the first row have lists of segments: the error names their columns too.
    """
    try:
        return find_columns(path, table.header, options.columns)
    except DataError as error:
        text, _ = decode_text(path, options.encoding, "prepare table")
        if table.form.startswith("JSON") and SEGMENT_LIST.search(text):
            raise DataError(path, JSON_OF_SEGMENTS.name, JSON_OF_SEGMENTS.remedy) from None
        names_with_segments = _find_columns_of_segments(table)
        if names_with_segments:
            quoted = list_names([repr(name) for name in names_with_segments])
            found = f"{error.found}, but lists of segments in {quoted}"
            raise DataError(path, found, f"{JSON_OF_SEGMENTS.remedy}; or {error.to_do}") from None
        raise


def _find_columns_of_segments(table: Table) -> list[str]:
    """The columns that have segments in the first row, as in JSON of transcription services."""
    first_cells = table.rows[0].cells if table.rows else {}
    if isinstance(first_cells, str):
        return []
    return [name for name, value in first_cells.items() if _has_segments(value)]


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


def _report_used(
    path: Path, table: Table, columns: Mapping[str, str], in_ms: Collection[str]
) -> None:
    """Log the form of the table, the number of rows, and what each used column contains."""
    descriptions = list[str]()
    for content, name in columns.items():
        unit = " in ms" if content in in_ms else ""
        descriptions.append(f"{name!r} is the {content}{unit}")
    logger.info("%s: %s, %d rows; %s", path, table.form, len(table.rows), ", ".join(descriptions))


def _report_unused(path: Path, unused: Sequence[str], known: Collection[str]) -> None:
    """Log the columns that are not used; as a warning, with hints, if one seems to be needed.

    `known`: the contents of the columns that are used or that the user named. Beside a start, an
    end is not missed: there may be a duration.
    """
    if not unused:
        return
    without_hint = {*known, "end"} if "start" in known else known
    hints = suggest_columns(unused, without_hint)
    names = list_names([repr(name) for name in unused], most=20)
    level = logging.WARNING if hints else logging.INFO
    logger.log(level, "%s: %s", path, "; ".join([f"columns not used: {names}", *hints]))


def _find_fault_of_ids(table: Table, columns: Mapping[str, str]) -> str | None:
    """Why the ids of a table cannot be the names of clips; None: they can be, or there are none.

    They cannot if many clips have an id of another clip: then they may be the ids of sentences
    (FLEURS) or recordings. Two rows are different clips if their audio, times or channels differ.
    """
    if "key" not in columns:
        return None
    columns_of_clip = [columns[name] for name in ("audio", *TIMES, "channel") if name in columns]
    ids = list[str]()
    clips = set[tuple[str, ...]]()
    for _, cells in table.rows:
        if isinstance(cells, str) or cells.get(columns["key"]) in (None, ""):
            continue
        row_id = str(cells[columns["key"]])
        ids.append(row_id)
        clips.add((row_id, *(str(cells.get(name)) for name in columns_of_clip)))
    num_ids = len({*ids})
    num_clips_with_repeated_id = len(clips) - num_ids  # the first clip of each id is not counted
    if num_clips_with_repeated_id <= _MAX_REPEATED * len(ids):
        return None
    return f"{len(clips)} clips have {num_ids} different ids"


# ---- checks of all rows together


def _refuse_raw_samples(path: Path, rows: Sequence[_Row], finder: MediaFinder) -> None:
    """Raise DataError if the audio of all rows is raw samples, as KsponSpeech has them.

    The first row with other audio ends the search: a few files of raw samples are rejected later,
    row by row.
    """
    for row in rows:
        written = row.values.get("audio", "")
        if Path(written).suffix.lower() not in RAW_SUFFIXES:
            return
        audio = finder.find(_list_audio_paths(written), path.parent)
        if isinstance(audio, Path) or not audio.startswith("unreadable"):
            return
    if rows:
        first_name = Path(rows[0].values["audio"]).name
        raise DataError(path, f"no audio file, but {first_name}: {RAW_SAMPLES}", ADD_HEADER)


@dataclass(frozen=True)
class _RecordingPart:
    """A part of a recording, as a row gives it."""

    line: int
    """Line of the table."""
    audio: str
    """Path as it is written."""
    start: float
    end: float


def _refuse_other_unit(path: Path, rows: Sequence[_Row], finder: MediaFinder) -> None:
    """Raise DataError if times are read as seconds and seem to have a smaller unit.

    They seem so if the median segment is long (`_MIN_DOUBTFUL_S`), and most segments end after
    twice the duration of their audio. Only the first rows are tested, and their audio is opened
    only if the segments are long.
    """
    parts = _read_parts(rows)
    if not parts or median(part.end - part.start for part in parts) < _MIN_DOUBTFUL_S:
        return
    num_outside = 0
    example = ""
    for part in parts:
        duration = _find_duration(part.audio, path.parent, finder)
        # Times up to twice the duration may only be wrong; milliseconds would be far beyond.
        if duration is not None and part.end > 2 * duration:
            num_outside += 1
            times = f"from {part.start:g} to {part.end:g} s"
            example = example or f"line {part.line}: {times} in audio of {duration:g} s"
    if num_outside > len(parts) / 2:
        contents = [content for content in TIMES if any(content in row.values for row in rows)]
        names = " and ".join(f"{content}_ms" for content in contents)
        raise DataError(
            path,
            f"times outside the audio, {example}",
            f"if they are milliseconds, name the columns {names}; write other units in seconds",
        )


def _read_parts(rows: Sequence[_Row]) -> list[_RecordingPart]:
    """The parts of recordings that the first rows give, with times that are read as seconds.

    Rows of whole files, and rows with wrong times, are left out.
    """
    parts = list[_RecordingPart]()
    for row in rows[:_NUM_SAMPLED]:
        with suppress(ValueError):  # wrong times: the row is rejected later
            start, end = _read_times(row.values, in_ms=())
            if start is not None and end is not None:
                audio = row.values.get("audio", "")
                parts.append(_RecordingPart(row.line, audio, start, end))
    return parts


def _find_duration(written: str, folder: Path, finder: MediaFinder) -> float | None:
    """Seconds of an audio file, or None if it is not found or cannot be read."""
    audio = finder.find(_list_audio_paths(written), folder)
    if not isinstance(audio, Path):
        return None
    with suppress(AudioError):
        return read_duration(audio)
    return None


def _find_doubtful_lines(path: Path, rows: Sequence[_Row], unused: Sequence[str]) -> set[int]:
    """The lines of rows for a whole file, or a whole channel of it, that has different texts.

    Raises DataError if they are many: then the columns of times were probably not found. `unused`:
    the names of the columns among which these may be.
    """
    whole_files = [row for row in rows if _is_whole_file(row)]
    texts_of_audio = defaultdict[tuple[str, str], set[str]](set)
    for row in whole_files:
        texts_of_audio[_make_audio_key(row)].add(row.values["text"])
    doubtful = [row for row in whole_files if len(texts_of_audio[_make_audio_key(row)]) > 1]
    if len(doubtful) > _MAX_REPEATED * len(whole_files):
        raise _make_times_error(path, doubtful, unused)
    return {row.line for row in doubtful}


def _is_whole_file(row: _Row) -> bool:
    """Whether a row has audio and text, and no times."""
    has_times = any(content in row.values for content in TIMES)
    return "audio" in row.values and "text" in row.values and not has_times


def _make_audio_key(row: _Row) -> tuple[str, str]:
    return row.values["audio"], row.values.get("channel", "")


def _make_times_error(path: Path, doubtful: Sequence[_Row], unused: Sequence[str]) -> DataError:
    """The error for many rows without times. It names the columns that may have the times."""
    likely_times = _find_likely_times(doubtful, unused)
    if likely_times is None:
        start, end = "…", "…"  # the user puts the names there
        advice = "name the columns of times"
    else:
        start, end = likely_times
        advice = f"{start!r} and {end!r} may be their times"
    return DataError(
        f"{path}:{min(row.line for row in doubtful)}",
        f"{len(doubtful)} rows give whole files, which other rows give with another text",
        f'{advice}: --columns "start={start} end={end}", or keep one row per file',
    )


def _find_likely_times(rows: Sequence[_Row], names: Sequence[str]) -> tuple[str, str] | None:
    """The two columns of numbers by which rows are intervals that follow each other in their file.

    None: no two of the columns with these names are like that.
    """
    first_rows = rows[:_MAX_ROWS_OF_TIMES]
    times_of_column = dict[str, list[float]]()
    for name in names:
        if has_other_unit(name):
            continue
        texts = [_to_text(row.cells.get(name)) for row in first_rows]
        with suppress(ValueError):  # a column with other texts than times
            times_of_column[name] = list(map(read_seconds, texts))
    for start_name, end_name in permutations(times_of_column, 2):
        starts = times_of_column[start_name]
        ends = times_of_column[end_name]
        parts = [
            _RecordingPart(row.line, row.values["audio"], start, end)
            for row, start, end in zip(first_rows, starts, ends, strict=True)
        ]
        if _follow_each_other(parts):
            return start_name, end_name
    return None


def _follow_each_other(parts: Sequence[_RecordingPart]) -> bool:
    """Whether the parts may be segments that follow each other in their files.

    All of them end after they begin. Of all pairs of neighbours in a file, more than half do not
    overlap.
    """
    if not all(part.start < part.end for part in parts):
        return False
    in_order = sorted(parts, key=lambda part: (part.audio, part.start, part.end))
    neighbours = [
        (part, following) for part, following in pairwise(in_order) if part.audio == following.audio
    ]
    num_apart = sum(part.end <= following.start for part, following in neighbours)
    return num_apart > len(neighbours) / 2
