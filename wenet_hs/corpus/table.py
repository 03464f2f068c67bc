# SPDX-License-Identifier: Apache-2.0
"""A table of recordings and transcripts: CSV, TSV or JSON Lines, with the names of the columns in the first line.

Example: wenet-hs prepare table --table recordings.csv --audio_dir recordings --lang mdw --out data
         wenet-hs prepare table --table my.tsv --columns "audio=File text=Orthography" --out data

Columns are found by their usual names, in any case: path, audio, wav, file_name; sentence, text, transcript,
transcription; speaker, client_id; language, lang, locale; start, end or duration (seconds, mm:ss or h:mm:ss);
channel (left, right, A, B, or a number: from 0 if a 0 occurs, from 1 if the number of channels occurs); split; id.
`--columns "split="` ignores this column. Delimiter and quoting are detected and printed. Other columns are ignored.
"""

import argparse
import csv
import difflib
import io
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from wenet_hs.corpus import entries
from wenet_hs.corpus.entries import Entry
from wenet_hs.corpus.output import Rejected
from wenet_hs.errors import ConfigError, DataError, list_names
from wenet_hs.text.normalize import normalize_phones

logger = logging.getLogger(__name__)

COLUMNS = {
    "audio": ("audio", "path", "wav", "file_name", "filename", "file", "audio_path", "audio_file", "audio_filepath"),
    "text": ("text", "sentence", "transcript", "transcription", "txt"),
    "speaker": ("speaker", "client_id", "speaker_id", "spk"),
    "lang": ("language", "lang", "locale"),
    "start": ("start", "begin", "start_time", "begin_time", "offset"),
    "end": ("end", "stop", "end_time", "stop_time"),
    "duration": ("duration", "dur"),
    "channel": ("channel", "audio_channel", "channel_id", "channel_index", "channel_selector", "chan"),
    "split": ("split", "set", "subset"),
    "key": ("id", "key", "utterance_id", "utt_id"),
}
"""What a column contains → the names by which it is found, the most usual first."""
_REQUIRED = ("audio", "text")
_TIMES = ("start", "end", "duration")
_DELIMITERS = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar"}
csv.field_size_limit(2**31 - 1)  # a cell may be a whole transcript; the default is 131,072 characters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `prepare table`."""
    table_help = "table to read: .csv, .tsv or .jsonl"
    parser.add_argument(
        "--table", type=lambda path: Path(path).absolute(), required=True, metavar="FILE", help=table_help
    )
    add_column_arguments(parser)
    entries.add_arguments(parser, None)


def add_column_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of how a table is read."""
    columns_help = f'names of columns, such as "audio=File text=Words"; contents: {" ".join(COLUMNS)}'
    parser.add_argument("--columns", default="", metavar='"CONTENT=NAME …"', help=columns_help)
    encoding_help = "of the text files (default: UTF-8, or UTF-16 with a byte order mark)"
    parser.add_argument("--encoding", help=encoding_help)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write the lists of a table. Returns the content of `stats.json`."""
    return entries.prepare_entries(args, "table", read_table(args.table, args), {})


def read_table(path: Path, args: argparse.Namespace) -> Iterator[Entry | Rejected]:
    """The rows of a table.

    Raises DataError when the table cannot be read or lacks a column, ConfigError for wrong --columns.
    """
    read = _read_json_lines if path.suffix in (".jsonl", ".json") else _read_delimited
    table = read(path, args.encoding)
    if not table.header:
        found = f"no row can be read, line {table.rows[0][0]}: {table.rows[0][1]}" if table.rows else "empty"
        raise DataError(f"{path}: {found}; give a table with the names of the columns")
    columns = _find_columns(path, table.header, args.columns)
    used = ", ".join(f"{name!r} is the {content}" for content, name in columns.items())
    logger.info("%s: %s, %d rows; %s", path, table.form, len(table.rows), used)
    for number, row in table.rows:
        where = f"{path.name}:{number}"
        if isinstance(row, str):
            yield Rejected(where, "", row, "")
            continue
        given = {content: row[name] for content, name in columns.items() if row.get(name) not in (None, "")}
        value = {content: str(one).strip() for content, one in given.items()}
        try:
            if wrong := [content for content, one in given.items() if isinstance(one, list | dict)]:
                raise ValueError(f"{columns[wrong[0]]}: {value[wrong[0]][:40]} is no text or number")
            start, end = _read_times(value)
        except ValueError as error:
            yield Rejected(value.get("key", where), value.get("audio", ""), str(error), value.get("lang", ""))
            continue
        yield Entry(
            where=where,
            audio=(value.get("audio", ""),),
            folder=path.parent,
            txt=value.get("text", ""),
            start=start,
            end=end,
            **{name: value.get(name) for name in ("key", "lang", "speaker", "channel", "split")},
        )


_Rows = list[tuple[int, list[str]]]
_Quoting = Literal["whole", "by line", "none"]
"""Whether a quoted cell may have line ends, may not, or quotation marks are a part of the text."""


class _Table(NamedTuple):
    form: str
    """What was detected, for the user."""
    header: Sequence[str]
    rows: Sequence[tuple[int, dict[str, Any] | str]]
    """Line, and the values by column or why the row cannot be read."""


def _read_times(value: Mapping[str, str]) -> tuple[float | None, float | None]:
    """Begin and end of a row in seconds; neither: the whole file. Raises ValueError if one of them is missing."""
    start, end, duration = (read_seconds(value[name]) if name in value else None for name in _TIMES)
    if end is None and start is not None and duration is not None:
        end = start + duration
    if (start is None) != (end is None and duration is None):
        missing = "start" if start is None else "end"
        raise ValueError(f"times: the row has no {missing}; add it, or leave out all times for the whole file")
    return start, end


def read_seconds(text: str) -> float:
    """Of `83.5`, `83,5`, `1:23.5` or `0:01:23.5`."""
    *before, last = text.replace(",", ".").split(":")
    try:
        if len(before) > 2 or (before and not 0.0 <= float(last) < 60.0):
            raise ValueError
        return sum((int(value) * 60**power for power, value in enumerate(reversed(before), start=1)), float(last))
    except ValueError:
        raise ValueError(f"times: {text!r} is not a number of seconds, mm:ss or h:mm:ss") from None


def _find_columns(path: Path, header: Sequence[str], chosen: str) -> dict[str, str]:
    """Content → name of its column."""
    by_lower = {name.strip().lower(): name for name in reversed(header)}
    fitting = {content: [by_lower[name] for name in names if name in by_lower] for content, names in COLUMNS.items()}
    for pair in filter(None, re.split(r"\s+(?=[^\s=]*=)", normalize_phones(chosen))):  # a name may have spaces
        content, equals, name = pair.partition("=")
        if content not in COLUMNS or not equals:
            raise ConfigError(f"--columns {pair!r}: expected CONTENT=NAME with a content of {', '.join(COLUMNS)}")
        if name and name not in header:
            guess = _guess([name], by_lower)
            raise ConfigError(f"--columns {pair!r}: {guess}{path.name} has the columns: {list_names(header, most=20)}")
        fitting[content] = [name] if name else []
    if len(fitting["text"]) > 1:
        of_text = list_names([repr(name) for name in fitting["text"]])
        raise DataError(f'{path}:1: several columns can be the transcript: {of_text}; name it: --columns "text=…"')
    found = {content: names[0] for content, names in fitting.items() if names}
    missing = [content for content in _REQUIRED if content not in found]
    if "start" in found and not {"end", "duration"} & found.keys():
        missing.append("end")
    if "end" in found and "start" not in found:
        missing.append("start")
    if "start" not in found:
        found.pop("duration", None)  # that of the file
    if missing:
        others = {lower: name for lower, name in by_lower.items() if name not in found.values()}
        guess = _guess([name for content in missing for name in COLUMNS[content]], others)
        flag = " ".join(f"{content}=…" for content in missing)
        has = list_names(header, most=20)
        raise DataError(f'{path}:1: no column of {", ".join(missing)}; {guess}name them: --columns "{flag}", of: {has}')
    return found


def _guess(names: Sequence[str], by_lower: Mapping[str, str]) -> str:
    """`did you mean …? ` with the columns that have similar names, or nothing."""
    near = {by_lower[one] for name in names for one in difflib.get_close_matches(name.lower(), by_lower, 1, 0.65)}
    return f"did you mean {list_names(sorted(near))}? " if near else ""


# ---- reading


def decode_text(path: Path, encoding: str | None) -> tuple[str, str]:
    """The text of a file, and its encoding."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if content[:4] in (b"PK\x03\x04", b"\xd0\xcf\x11\xe0"):  # .xlsx, .ods, .docx, .numbers; .xls, .doc
        raise DataError(f"{path}: a file of a spreadsheet or word processor; save it there as CSV in UTF-8")
    given = encoding
    if encoding is None:
        encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except LookupError as error:
        raise ConfigError(f"--encoding {encoding}: Python knows no such encoding; examples: utf-8, cp1252") from error
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        remedy = "or try another --encoding" if given else "or name its encoding, such as --encoding cp1252"
        found = f"not {encoding.removesuffix('-sig')}: byte {content[error.start]:#x}"
        raise DataError(f"{path}:{number}: {found}; save it as UTF-8, {remedy}") from error
    if "\0" in text:
        raise DataError(f"{path}: has zero bytes; if it is UTF-16 without a byte order mark, give --encoding utf-16-le")
    return text, encoding.removesuffix("-sig")


def _read_delimited(path: Path, encoding: str | None) -> _Table:
    text, encoding = decode_text(path, encoding)
    text = re.sub(r"\Asep=.(?=\r?\n)", "", text)  # a note for Excel
    first = text.lstrip().partition("\n")[0]
    best: tuple[tuple[float, int, bool, int], str, _Rows] | None = None
    quotings: tuple[_Quoting, ...] = ("whole", "by line", "none") if '"' in text else ("whole",)
    for delimiter in filter(first.__contains__, _DELIMITERS):
        for quoting in quotings:
            try:
                rows = _parse(text, delimiter, quoting)
            except csv.Error:  # a quotation mark that is a part of the text, or is not closed
                continue
            header = rows[0][1] if rows else []
            if len(header) > 1 and not (quoting == "none" and _is_quoted(rows)):
                num_fitting = sum(len(row) == len(header) for _, row in rows)
                # More rows first: a quotation mark may open in one row and close in another, as in a dialogue.
                rank = (num_fitting / len(rows), len(rows), quoting != "none", len(header))
                best = (rank, delimiter, rows) if best is None or rank > best[0] else best
    if best is None and not first.strip():
        return _Table("", [], [])
    if best is None:
        raise DataError(f"{path}:1: found one column, {first[:80]!r}; separate columns by tabs, commas or semicolons")
    (_, _, is_quoted, _), delimiter, rows = best
    header = [normalize_phones(name) for name in rows[0][1]]
    if twice := [name for name, count in Counter(header).items() if name and count > 1]:
        raise DataError(f"{path}:1: several columns have the name {list_names(twice, ' or ')}; rename them")
    values: list[tuple[int, dict[str, Any] | str]] = []
    for number, row in rows[1:]:
        reason = f"wrong number of columns: {len(row)}, the header has {len(header)}"
        if not row:
            reason = 'quotation mark: one is not closed, or has text after it; write "" for one in a cell'
        values.append((number, dict(zip(header, row, strict=True)) if len(row) == len(header) else reason))
    quoted = ", quoted" if is_quoted and '"' in text else ""
    if several := [number for number, row in rows if "\n" in "".join(row)]:
        quoted += f", {len(several)} rows with cells of several lines (the first in line {several[0]})"
    return _Table(f"{_DELIMITERS[delimiter]}-separated{quoted}, {encoding}", header, values)


def _is_quoted(rows: _Rows) -> bool:
    """Whether quotation marks enclose cells, by rows that were read as if they were a part of the text."""
    header = rows[0][1]
    wrong = (row for _, row in rows if len(row) != len(header))
    return all(re.fullmatch('".*"', name) for name in header) or any('"' in "".join(row) for row in wrong)


def _parse(text: str, delimiter: str, quoting: _Quoting) -> _Rows:
    """The first line and the values of each row that is not empty; no values of a line that `by line` cannot read.

    Raises csv.Error for a wrong quotation mark, except `by line`.
    """
    style: Literal[0, 3] = csv.QUOTE_NONE if quoting == "none" else csv.QUOTE_MINIMAL
    rows = _Rows()
    for number, piece in enumerate(text.split("\n") if quoting == "by line" else [text], start=1):
        reader = csv.reader(io.StringIO(piece, newline=""), delimiter=delimiter, strict=True, quoting=style)
        first = number
        try:
            for row in reader:
                # Programs end lines with delimiters: columns that the header does not name are not there if empty.
                while row and not row[-1].strip() and len(row) > (len(rows[0][1]) if rows else 0):
                    row.pop()
                if any(value.strip() for value in row):
                    rows.append((first, row))
                first = number + reader.line_num
        except csv.Error:
            if quoting != "by line":
                raise
            rows.append((number, []))
    return rows


def _read_json_lines(path: Path, encoding: str | None) -> _Table:
    text, encoding = decode_text(path, encoding)
    if text.lstrip().startswith("["):
        raise DataError(f"{path}:1: a JSON array; write one JSON object per line")
    rows: list[tuple[int, dict[str, Any] | str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        reason = "not a JSON object"
        try:
            record = json.loads(line, object_hook=lambda one: {normalize_phones(name): one[name] for name in one})
        except (RecursionError, ValueError) as error:  # lists in lists in lists …
            record, reason = None, f"not JSON: {error}"
        rows.append((number, record if isinstance(record, dict) else reason))
    header = list(dict.fromkeys(name for _, row in rows if isinstance(row, dict) for name in row))
    return _Table(f"JSON Lines, {encoding}", header, rows)
