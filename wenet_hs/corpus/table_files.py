# SPDX-License-Identifier: Apache-2.0
"""Files that contain a table: delimited text with or without names of the columns, `key transcript`
lines, JSON.

Files of gzip, xz and bzip2 are decompressed. What was detected is a part of the result, for the
user.
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

from wenet_hs.base.files import read_bytes
from wenet_hs.corpus.lhotse import join_recordings
from wenet_hs.data.media import ALL_SUFFIXES
from wenet_hs.manifest.data_list import describe_manifest
from wenet_hs.manifest.file_forms import check_form, find_form
from wenet_hs.text.normalize import normalize_phones
from wenet_hs.tree.errors import ConfigError, DataError, list_names

_READER = "prepare table"
_DELIMITERS = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar"}
csv.field_size_limit(
    2**31 - 1
)  # a cell may be a whole transcript; the default is 131,072 characters
_NumberedRows = list[tuple[int, list[str]]]
_Quoting = Literal["whole", "by line", "none"]
"""Whether a quoted cell may have line ends, may not, or quotation marks are a part of the text."""


class Table(NamedTuple):
    """The content of a file."""

    form: str
    """What was detected, for the user."""
    header: Sequence[str]
    rows: Sequence[tuple[int, dict[str, Any] | str]]
    """Line, and the values by column or why the row cannot be read."""


class _Columns(NamedTuple):
    """The rows of a file as text, and how they were found."""

    form: str
    rows: _NumberedRows
    separator: str


def read_table_file(
    path: Path,
    encoding: str | None,
    is_name: Callable[[str], bool],
    is_audio: Callable[[str], bool],
    *,
    are_columns_chosen: bool = False,
) -> Table:
    """The rows of a file. Raises DataError if it has another form.

    Args:
        is_name: whether a cell is a usual name of a column.
        is_audio: whether a cell names an audio file. A first line with such a cell and without two
            usual names is no header (one may be a transcript): columns are then named audio, text,
            and by their number.
        are_columns_chosen: whether the user named columns. Then a file with columns is a table,
            also if it looks like another form.
    """
    text, encoding = decode_text(path, encoding, _READER)
    is_json = re.match(r'\s*[\[{]\s*["{]', text) is not None
    if is_json or path.name.removesuffix(".gz").endswith((".json", ".jsonl")):
        check_form(path, text, _READER)
        return _read_json(path, text, encoding)
    text = re.sub(r"\Asep=.(?=\r?\n)", "", text)  # a note for Excel
    if not text.strip():
        return Table("", [], [])
    columns = _read_columns(text)
    has_chosen_columns = are_columns_chosen and columns is not None
    if not has_chosen_columns:
        _refuse_other_forms(path, text, columns, is_audio)
    cells = columns.rows[0][1] if columns else []
    has_names = len({*filter(is_name, cells)}) >= 2
    if not has_names:
        for rows_of_form in filter(None, (columns, _split_keys(text))):
            audio = _find_audio_cell(rows_of_form.rows[0][1], is_name, is_audio)
            if audio is not None:
                form = f"{rows_of_form.form}, {encoding}"
                return _without_header(path, form, rows_of_form.rows, audio)
    if columns is None:
        first = text.lstrip().partition("\n")[0]
        found = f"found one column, {first[:80]!r}"
        raise DataError(f"{path}:1", found, "separate columns by tabs, commas or semicolons")
    header = [normalize_phones(name) for name in cells]
    repeated = [name for name, count in Counter(header).items() if name and count > 1]
    if repeated:
        found = f"several columns have the name {list_names(repeated, ' or ')}"
        to_do = "rename them, or write a first line with names, such as path, text, start, end"
        raise DataError(f"{path}:1", found, to_do)
    return Table(f"{columns.form}, {encoding}", header, _values(header, columns.rows[1:]))


def _read_columns(text: str) -> _Columns | None:
    """The rows by the separator of the first line; None: it has only one column."""
    first = text.lstrip().partition("\n")[0]
    return (
        _split_double_colons(text, first, " :: ")
        or _split_columns(text, first)
        or _split_double_colons(text, first, "::")
    )


def _find_audio_cell(
    cells: Sequence[str],
    is_name: Callable[[str], bool],
    is_audio: Callable[[str], bool],
) -> int | None:
    """The number of the first cell that names an audio file and is no name of a column, or None."""
    for number, cell in enumerate(cells):
        if not is_name(cell) and is_audio(cell):
            return number
    return None


def _refuse_other_forms(
    path: Path,
    text: str,
    columns: _Columns | None,
    is_audio: Callable[[str], bool],
) -> None:
    """Raise DataError for a form that `prepare table` does not read.

    Lists of audio files, STM, and segments of one recording look like tables without names of
    columns. A table has a column of audio files and another one of text.
    """
    form = find_form(path, text)
    if form is None or _READER in form.readers:
        return
    to_do = form.remedy
    audio = _find_audio_file(columns, is_audio) if columns else None
    if columns and audio is not None and path.suffix != ".scp":
        cells = _list_columns(columns.rows)
        texts = _text_columns(cells, audio)
        may_be_keys = len(cells) == 2 and texts == [0] and _are_keys(cells[0], cells[audio])
        if texts and not may_be_keys:
            return
        if may_be_keys:
            to_do += "; if column 1 is the text, write a first line with the names text and path"
    raise DataError(path, form.name, to_do)


def _find_audio_file(columns: _Columns, is_audio: Callable[[str], bool]) -> int | None:
    """The number of the first cell of the first row that is an audio file of a table, or None.

    Between tabs its suffix is necessary: STM has tabs too, and begins with the name of a recording.
    """
    for number, cell in enumerate(columns.rows[0][1]):
        has_suffix = cell.strip().lower().endswith(ALL_SUFFIXES)
        may_be_file = has_suffix or columns.separator != "\t"
        if may_be_file and is_audio(cell):
            return number
    return None


def _are_keys(cells: Sequence[str], files: Sequence[str]) -> bool:
    """Whether cells are more likely to be the keys of files than what is spoken in them.

    A key occurs once. It is the name of its file, has `_`, or differs from others in digits only.
    """
    if len({*cells}) < len(cells):
        return False
    num_names = sum(Path(file).stem == cell for cell, file in zip(cells, files, strict=False))
    num_joined = sum("_" in cell for cell in cells)
    num_spellings = len({_letters(cell) for cell in cells})
    half = len(cells) / 2
    return num_names > half or num_joined > half or num_spellings <= half


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
        remedy = (
            "or try another --encoding"
            if given
            else "or name its encoding, such as --encoding cp1252"
        )
        found = f"not {encoding.removesuffix('-sig')}: byte {content[error.start]:#x}"
        raise DataError(f"{path}:{number}", found, f"save it as UTF-8, {remedy}") from error
    if "\0" in text:
        check_form(path, content, reader)
        raise DataError(
            path,
            "has zero bytes",
            "if it is UTF-16 without a byte order mark, give --encoding utf-16-le",
        )
    return text, encoding.removesuffix("-sig")


def _split_columns(text: str, first: str) -> _Columns | None:
    """The rows by the delimiter and quoting that split most of them alike; None: there is only one
    column.
    """
    best: tuple[tuple[float, int, bool, int], str, _NumberedRows] | None = None
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
                # More rows first: a quotation mark may open in one row and close in another, as in
                # a dialogue.
                rank = (num_fitting / len(rows), len(rows), quoting != "none", len(header))
                best = (rank, delimiter, rows) if best is None or rank > best[0] else best
    if best is None:
        return None
    (_, _, is_quoted, _), delimiter, rows = best
    quoted = ", quoted" if is_quoted and '"' in text else ""
    if several := [number for number, row in rows if "\n" in "".join(row)]:
        quoted += (
            f", {len(several)} rows with cells of several lines (the first in line {several[0]})"
        )
    return _Columns(f"{_DELIMITERS[delimiter]}-separated{quoted}", rows, delimiter)


def _split_double_colons(text: str, first: str, separator: str) -> _Columns | None:
    """Lines of `path :: transcript`, as KsponSpeech has them; None: a line does not have the
    separator.
    """
    if separator not in first:
        return None
    lines = [
        (number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()
    ]
    rows = [
        (number, [cell.strip() for cell in line.split(separator, maxsplit=1)])
        for number, line in lines
    ]
    if any(len(row) < 2 for _, row in rows):
        return None
    return _Columns("separated by double colons", rows, separator)


def _is_quoted(rows: _NumberedRows) -> bool:
    """Whether quotation marks enclose cells, by rows that were read as if they were a part of the
    text.
    """
    header = rows[0][1]
    wrong = (row for _, row in rows if len(row) != len(header))
    return all(re.fullmatch('".*"', name) for name in header) or any(
        '"' in "".join(row) for row in wrong
    )


def _parse(text: str, delimiter: str, quoting: _Quoting) -> _NumberedRows:
    """The first line and the values of each row that is not empty; no values of a line that `by
    line` cannot read.

    Raises csv.Error for a wrong quotation mark, except `by line`.
    """
    style: Literal[0, 3] = csv.QUOTE_NONE if quoting == "none" else csv.QUOTE_MINIMAL
    rows = _NumberedRows()
    for number, piece in enumerate(text.split("\n") if quoting == "by line" else [text], start=1):
        reader = csv.reader(
            io.StringIO(piece, newline=""), delimiter=delimiter, strict=True, quoting=style
        )
        first = number
        try:
            for row in reader:
                # Programs end lines with delimiters: columns that the header does not name are not
                # there if empty.
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


def _values(header: Sequence[str], rows: _NumberedRows) -> list[tuple[int, dict[str, Any] | str]]:
    values = list[tuple[int, dict[str, Any] | str]]()
    for number, row in rows:
        reason = f"wrong number of columns: {len(row)}, the header has {len(header)}"
        if not row:
            reason = 'quotation mark: one is not closed, or has text after it; write "" for one in a cell'
        values.append(
            (number, dict(zip(header, row, strict=True)) if len(row) == len(header) else reason)
        )
    return values


# ---- without names of the columns


def _split_keys(text: str) -> _Columns:
    """Lines of `key transcript`, as LibriSpeech, MLS, AISHELL and Kaldi have them."""
    rows = _NumberedRows()
    for number, line in enumerate(text.split("\n"), start=1):
        key, *transcript = line.strip().split(maxsplit=1) or [""]
        if key:
            rows.append((number, [key, *(transcript or [""])]))
    return _Columns("`key transcript` lines", rows, " ")


def _without_header(path: Path, form: str, rows: _NumberedRows, audio: int) -> Table:
    """The table of rows whose column `audio` names the audio files."""
    columns = _list_columns(rows)
    texts = _text_columns(columns, audio)
    if len(texts) != 1:
        found = (
            f"columns {', '.join(str(number + 1) for number in texts)} can be the text"
            if texts
            else "none is text"
        )
        fault = "no names of columns"
        raise DataError(
            path, fault, f"{found}; write a first line with the names, such as path and text"
        )
    header = [str(number + 1) for number in range(len(columns))]
    header[audio], header[texts[0]] = "audio", "text"
    form += f", without names of columns: column {audio + 1} is taken for the audio, {texts[0] + 1} for the text"
    return Table(form, header, _values(header, rows))


def _list_columns(rows: _NumberedRows) -> list[list[str]]:
    """The cells of each column that the first row has."""
    columns: list[list[str]] = [[] for _ in rows[0][1]]
    for _, row in rows:
        for column, cell in zip(columns, row, strict=False):
            column.append(cell)
    return columns


def _text_columns(columns: Sequence[Sequence[str]], audio: int) -> list[int]:
    """The columns that can be transcripts.

    Of several with the same letters it is the last one: the normalised form.

    Single words are text only if no column has several, and letters with spaces between them only
    if nothing else has.
    """
    words = {
        number: [cell.split() for cell in cells]
        for number, cells in enumerate(columns)
        if number != audio
    }
    by_words = {
        number: mean(map(len, cells))
        for number, cells in words.items()
        if any(map(_letters, columns[number]))
    }
    found = [number for number, size in by_words.items() if size > 1.5] or [*by_words]
    spelt = {
        number
        for number in found
        if mean(len(word) < 2 for cell in words[number] for word in cell or [""]) > 0.5
    }
    found = [number for number in found if number not in spelt] or found
    same = [number for number in found if _is_same(columns[number], columns[found[-1]])]
    return found[-1:] if len(same) == len(found) else found


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text.casefold()))


def _is_same(cells: Sequence[str], others: Sequence[str]) -> bool:
    """Whether most cells have the same letters: digits may be written out in one of the two
    columns.
    """
    return (
        mean(_letters(one) == _letters(other) for one, other in zip(cells, others, strict=False))
        > 0.5
    )


# ---- JSON


def _read_json(path: Path, text: str, encoding: str) -> Table:
    """Objects, one per line or in one array or object; those of lhotse with their recordings."""
    form, rows = "JSON Lines", [*enumerate(text.split("\n"), start=1)]
    values: list[tuple[int, Any]] = [
        (number, _parse_object(line)) for number, line in rows if line.strip()
    ]
    first = values[0][1] if values else {}
    if isinstance(first, str) or (
        len(values) == 1 and not describe_manifest(first)
    ):  # no object, or one of all lines
        with suppress(RecursionError, ValueError):
            form, values = (
                "JSON",
                [*enumerate(_records(json.loads(text, object_hook=_clean)), start=1)],
            )
            values = [
                (number, one if isinstance(one, dict) else "not a JSON object")
                for number, one in values
            ]
    records = [one for _, one in values if isinstance(one, dict)]
    if join_recordings(path, records):
        form += ", supervisions of lhotse"
    return Table(
        f"{form}, {encoding}", list(dict.fromkeys(name for one in records for name in one)), values
    )


def _parse_object(line: str) -> dict[str, Any] | str:
    """The object, or why there is none."""
    try:
        value = json.loads(line, object_hook=_clean)
    except (RecursionError, ValueError) as error:  # lists in lists in lists …
        return f"not JSON: {error}"
    return value if isinstance(value, dict) else "not a JSON object"


def _clean(record: dict[str, Any]) -> Any:
    """The object with clean names; of audio as Hugging Face writes it the path."""
    if (
        "path" in record
        and record.keys() <= {"path", "bytes", "array", "sampling_rate"}
        and len(record) > 1
    ):
        return record["path"]
    return {normalize_phones(name): value for name, value in record.items()}


def _records(content: Any) -> list[Any]:
    """The records of an array, of an object of records by id (SpeechBrain), or of an object with
    one array.
    """
    if isinstance(content, dict):
        values = [*content.values()]
        if all(isinstance(one, dict) for one in values):
            return [{"id": key, **one} for key, one in content.items()]
        arrays = [
            one
            for one in values
            if isinstance(one, list) and all(isinstance(row, dict) for row in one)
        ]
        return arrays[0] if len(arrays) == 1 else [content]
    return content if isinstance(content, list) else [content]
