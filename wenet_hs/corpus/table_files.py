# SPDX-License-Identifier: Apache-2.0
"""Files that contain a table: delimited text with or without names of the columns, `key transcript` lines, JSON.

Files of gzip, xz and bzip2 are decompressed. What was detected is a part of the result, for the user.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple

from wenet_hs.corpus.lhotse import join_recordings
from wenet_hs.errors import ConfigError, DataError, list_names
from wenet_hs.file_forms import check_form
from wenet_hs.files import read_bytes
from wenet_hs.manifest import describe_manifest
from wenet_hs.text.normalize import normalize_phones

_DELIMITERS = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar"}
csv.field_size_limit(2**31 - 1)  # a cell may be a whole transcript; the default is 131,072 characters
_Rows = list[tuple[int, list[str]]]
_Quoting = Literal["whole", "by line", "none"]
"""Whether a quoted cell may have line ends, may not, or quotation marks are a part of the text."""


class Table(NamedTuple):
    """The content of a file."""

    form: str
    """What was detected, for the user."""
    header: Sequence[str]
    rows: Sequence[tuple[int, dict[str, Any] | str]]
    """Line, and the values by column or why the row cannot be read."""


def read_table_file(
    path: Path, encoding: str | None, is_name: Callable[[str], bool], is_audio: Callable[[str], bool]
) -> Table:
    """The rows of a file. Raises DataError if it has another form.

    Args:
        is_name: whether a cell is a usual name of a column.
        is_audio: whether a cell names an audio file. A first line with such a cell and without two usual names is no
            header (one may be a transcript): columns are then named audio, text, and by their number.
    """
    text, encoding = decode_text(path, encoding, "prepare table")
    check_form(path, text, "prepare table")
    if path.name.removesuffix(".gz").endswith((".json", ".jsonl")) or re.match(r'\s*[\[{]\s*["{]', text):
        return _read_json(path, text, encoding)
    text = re.sub(r"\Asep=.(?=\r?\n)", "", text)  # a note for Excel
    if not text.strip():
        return Table("", [], [])
    first = text.lstrip().partition("\n")[0]
    parsed = _split_double_colons(text, first, " :: ") or _split_columns(text, first)
    parsed = parsed or _split_double_colons(text, first, "::")
    cells = parsed.rows[0][1] if parsed else []
    if len({*filter(is_name, cells)}) < 2:
        for form, rows in (parsed, _split_keys(text)) if parsed else (_split_keys(text),):
            named = (number for number, cell in enumerate(rows[0][1]) if not is_name(cell) and is_audio(cell))
            audio = next(named, None)
            if audio is not None:
                return _without_header(path, f"{form}, {encoding}", rows, audio)
    if parsed is None:
        found = f"found one column, {first[:80]!r}"
        raise DataError(f"{path}:1", found, "separate columns by tabs, commas or semicolons")
    header = [normalize_phones(name) for name in cells]
    if twice := [name for name, count in Counter(header).items() if name and count > 1]:
        what = f"several columns have the name {list_names(twice, ' or ')}"
        to_do = "rename them, or write a first line with names, such as path, text, start, end"
        raise DataError(f"{path}:1", what, to_do)
    return Table(f"{parsed.form}, {encoding}", header, _values(header, parsed.rows[1:]))


def decode_text(path: Path, encoding: str | None, reader: str) -> tuple[str, str]:
    """The text of a file, and its encoding.

    reader: the command that reads the file, as in `Form.readers`.
    Raises DataError for a file that is no text or has another encoding. If it has a known form that
    the command does not read, the line names the form, because another encoding would not help.
    """
    content = read_bytes(path)
    given = encoding
    if encoding is None:
        encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding).removeprefix("\ufeff")
    except LookupError as error:
        fault = "Python knows no such encoding"
        raise ConfigError(f"--encoding {encoding}", fault, "examples: utf-8, cp1252") from error
    except UnicodeDecodeError as error:
        check_form(path, content, reader)
        number = content[: error.start].count(b"\n") + 1
        remedy = "or try another --encoding" if given else "or name its encoding, such as --encoding cp1252"
        found = f"not {encoding.removesuffix('-sig')}: byte {content[error.start]:#x}"
        raise DataError(f"{path}:{number}", found, f"save it as UTF-8, {remedy}") from error
    if "\0" in text:
        check_form(path, content, reader)
        raise DataError(path, "has zero bytes", "if it is UTF-16 without a byte order mark, give --encoding utf-16-le")
    return text, encoding.removesuffix("-sig")


class _Columns(NamedTuple):
    form: str
    rows: _Rows


def _split_columns(text: str, first: str) -> _Columns | None:
    """The rows by the delimiter and quoting that split most of them alike; None: there is only one column."""
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
    if best is None:
        return None
    (_, _, is_quoted, _), delimiter, rows = best
    quoted = ", quoted" if is_quoted and '"' in text else ""
    if several := [number for number, row in rows if "\n" in "".join(row)]:
        quoted += f", {len(several)} rows with cells of several lines (the first in line {several[0]})"
    return _Columns(f"{_DELIMITERS[delimiter]}-separated{quoted}", rows)


def _split_double_colons(text: str, first: str, separator: str) -> _Columns | None:
    """Lines of `path :: transcript`, as KsponSpeech has them; None: a line does not have the separator."""
    if separator not in first:
        return None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    rows = [(number, [cell.strip() for cell in line.split(separator, maxsplit=1)]) for number, line in lines]
    if any(len(row) < 2 for _, row in rows):
        return None
    return _Columns("separated by double colons", rows)


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


def _values(header: Sequence[str], rows: _Rows) -> list[tuple[int, dict[str, Any] | str]]:
    values = list[tuple[int, dict[str, Any] | str]]()
    for number, row in rows:
        reason = f"wrong number of columns: {len(row)}, the header has {len(header)}"
        if not row:
            reason = 'quotation mark: one is not closed, or has text after it; write "" for one in a cell'
        values.append((number, dict(zip(header, row, strict=True)) if len(row) == len(header) else reason))
    return values


# ---- without names of the columns


def _split_keys(text: str) -> _Columns:
    """Lines of `key transcript`, as LibriSpeech, MLS, AISHELL and Kaldi have them."""
    lines = ((number, line.strip()) for number, line in enumerate(text.split("\n"), start=1))
    return _Columns(
        "`key transcript` lines", [(number, [*line.split(maxsplit=1), ""][:2]) for number, line in lines if line]
    )


def _without_header(path: Path, form: str, rows: _Rows, audio: int) -> Table:
    """The table of rows whose column `audio` names the audio files."""
    columns = [[row[number] for _, row in rows if number < len(row)] for number in range(len(rows[0][1]))]
    texts = _text_columns(columns, audio)
    if len(texts) != 1:
        found = f"columns {', '.join(str(number + 1) for number in texts)} can be the text" if texts else "none is text"
        fault = "no names of columns"
        raise DataError(path, fault, f"{found}; write a first line with the names, such as path and text")
    header = [str(number + 1) for number in range(len(columns))]
    header[audio], header[texts[0]] = "audio", "text"
    form += f", without names of columns: column {audio + 1} is taken for the audio, {texts[0] + 1} for the text"
    return Table(form, header, _values(header, rows))


def _text_columns(columns: Sequence[Sequence[str]], audio: int) -> list[int]:
    """The columns that can be transcripts. Of several with the same letters it is the last one: the normalised form.

    Single words are text only if no column has several, and letters with spaces between them only if nothing else has.
    """
    words = {number: [cell.split() for cell in cells] for number, cells in enumerate(columns) if number != audio}
    by_words = {number: mean(map(len, cells)) for number, cells in words.items() if any(map(_letters, columns[number]))}
    found = [number for number, size in by_words.items() if size > 1.5] or [*by_words]
    spelt = {number for number in found if mean(len(word) < 2 for cell in words[number] for word in cell or [""]) > 0.5}
    found = [number for number in found if number not in spelt] or found
    same = [number for number in found if _is_same(columns[number], columns[found[-1]])]
    return found[-1:] if len(same) == len(found) else found


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text.casefold()))


def _is_same(cells: Sequence[str], others: Sequence[str]) -> bool:
    """Whether most cells have the same letters: digits may be written out in one of the two columns."""
    return mean(_letters(one) == _letters(other) for one, other in zip(cells, others, strict=False)) > 0.5


# ---- JSON


def _read_json(path: Path, text: str, encoding: str) -> Table:
    """Objects, one per line or in one array or object; those of lhotse with their recordings."""
    form, rows = "JSON Lines", [*enumerate(text.split("\n"), start=1)]
    values: list[tuple[int, Any]] = [(number, _parse_object(line)) for number, line in rows if line.strip()]
    first = values[0][1] if values else {}
    if isinstance(first, str) or (len(values) == 1 and not describe_manifest(first)):  # no object, or one of all lines
        with suppress(RecursionError, ValueError):
            form, values = "JSON", [*enumerate(_records(json.loads(text, object_hook=_clean)), start=1)]
            values = [(number, one if isinstance(one, dict) else "not a JSON object") for number, one in values]
    records = [one for _, one in values if isinstance(one, dict)]
    if join_recordings(path, records):
        form += ", supervisions of lhotse"
    return Table(f"{form}, {encoding}", list(dict.fromkeys(name for one in records for name in one)), values)


def _parse_object(line: str) -> dict[str, Any] | str:
    """The object, or why there is none."""
    try:
        value = json.loads(line, object_hook=_clean)
    except (RecursionError, ValueError) as error:  # lists in lists in lists …
        return f"not JSON: {error}"
    return value if isinstance(value, dict) else "not a JSON object"


def _clean(record: dict[str, Any]) -> Any:
    """The object with clean names; of audio as Hugging Face writes it the path."""
    if "path" in record and record.keys() <= {"path", "bytes", "array", "sampling_rate"} and len(record) > 1:
        return record["path"]
    return {normalize_phones(name): value for name, value in record.items()}


def _records(content: Any) -> list[Any]:
    """The records of an array, of an object of records by id (SpeechBrain), or of an object with one array."""
    if isinstance(content, dict):
        values = [*content.values()]
        if all(isinstance(one, dict) for one in values):
            return [{"id": key, **one} for key, one in content.items()]
        arrays = [one for one in values if isinstance(one, list) and all(isinstance(row, dict) for row in one)]
        return arrays[0] if len(arrays) == 1 else [content]
    return content if isinstance(content, list) else [content]
