# SPDX-License-Identifier: Apache-2.0
"""Files that contain a table: delimited text with or without names of the columns, `key transcript`
lines, JSON.

Files of gzip, xz and bzip2 are decompressed. What was detected is a part of the result, for the
user.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from wenet_hs.base.files import read_bytes
from wenet_hs.corpus.delimited_text import (
    DelimitedText,
    NumberedRow,
    get_first_line,
    split_keys,
    split_text,
)
from wenet_hs.corpus.lhotse import join_recordings
from wenet_hs.data.media import ALL_SUFFIXES
from wenet_hs.manifest.data_list import describe_manifest
from wenet_hs.manifest.file_forms import check_form, find_form
from wenet_hs.text.normalize import normalize_spelling
from wenet_hs.tree.errors import ConfigError, DataError, list_names

_READER = "prepare table"
"""The command that reads these files, as in `Form.readers`."""
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""Of UTF-16, at the beginning of a file."""
_NO_OBJECT = "not a JSON object"


class TableRow(NamedTuple):
    """A row of a table."""

    line: int
    """The line of the file in which it begins, from 1; in a JSON array, the number of the item."""
    cells: dict[str, Any] | str
    """The cells by the names of the columns, or a text that says why the row cannot be read."""


class Table(NamedTuple):
    """The content of a file."""

    form: str
    """What was detected, for the user."""
    header: Sequence[str]
    """The names of the columns. It is empty if the file has no row that can be read."""
    rows: Sequence[TableRow]


def read_table_file(
    path: Path,
    encoding: str | None,
    is_name: Callable[[str], bool],
    is_audio: Callable[[str], bool],
    *,
    are_columns_chosen: bool = False,
) -> Table:
    """The rows of a file; no rows and no columns if the file is empty.

    The first line is usually the names of the columns. It is a row if it names an audio file and
    has fewer than two usual names of columns; one such name may be a word that is spoken. See
    `_read_unnamed_columns` for this case.

    Args:
        encoding: None: UTF-8, or UTF-16 by its byte order mark.
        is_name: whether a cell is a usual name of a column.
        is_audio: whether a cell names an audio file.
        are_columns_chosen: whether the user named columns. Then a file with columns is a table,
            also if it looks like another form.
    Raises DataError if the file has another form, only one column, or two columns with the same
        name. `_read_unnamed_columns`, `decode_text` and `join_recordings` raise it for more reasons.
    """
    text, encoding = decode_text(path, encoding, _READER)
    if _is_json(path, text):
        check_form(path, text, _READER)
        return _read_json(path, text, encoding)
    text = re.sub(r"\Asep=.(?=\r?\n)", "", text)  # a first line that tells Excel the delimiter
    if not text.strip():
        return Table("", [], [])
    delimited = split_text(text)  # None: there is no delimiter, so there is one column
    if delimited is None or not are_columns_chosen:
        _refuse_other_forms(path, text, delimited, is_audio)
    if not _has_names(delimited, is_name):
        table = _read_unnamed_columns(path, text, delimited, encoding, is_name, is_audio)
        if table is not None:
            return table
    if delimited is None:
        found = f"found one column, {get_first_line(text)[:80]!r}"
        raise DataError(f"{path}:1", found, "separate columns by tabs, commas or semicolons")
    header = [normalize_spelling(name) for name in delimited.rows[0].cells]  # one form of Unicode
    _refuse_repeated_names(path, header)
    return Table(f"{delimited.form}, {encoding}", header, _name_cells(header, delimited.rows[1:]))


def decode_text(path: Path, encoding: str | None, reader: str) -> tuple[str, str]:
    """The text of a file, and its encoding.

    Args:
        encoding: None: UTF-8, or UTF-16 by its byte order mark.
        reader: the command that reads the file, as in `Form.readers`.
    Raises DataError for a file that is no text or has another encoding, ConfigError for an encoding
        that Python does not know. If the file has a known form that the command does not read, the
        message names the form, because another encoding would not help.
    """
    content = read_bytes(path)
    is_given = encoding is not None
    if encoding is None:
        # Python's name of UTF-8 with or without a byte order mark is utf-8-sig.
        encoding = "utf-16" if content.startswith(_BYTE_ORDER_MARKS) else "utf-8-sig"
    name_for_user = encoding.removesuffix("-sig")
    try:
        text = content.decode(encoding).removeprefix("\ufeff")
    except LookupError as error:
        fault = "Python knows no such encoding"
        raise ConfigError(f"--encoding {encoding}", fault, "examples: utf-8, cp1252") from error
    except UnicodeDecodeError as error:
        check_form(path, content, reader)
        line = content[: error.start].count(b"\n") + 1
        found = f"not {name_for_user}: byte {content[error.start]:#x}"
        remedy = "or name its encoding, such as --encoding cp1252"
        if is_given:
            remedy = "or try another --encoding"
        raise DataError(f"{path}:{line}", found, f"save it as UTF-8, {remedy}") from error
    if "\0" in text:
        check_form(path, content, reader)
        raise DataError(
            path,
            "has zero bytes",
            "if it is UTF-16 without a byte order mark, give --encoding utf-16-le",
        )
    return text, name_for_user


# ---- other forms


def _refuse_other_forms(
    path: Path,
    text: str,
    delimited: DelimitedText | None,
    is_audio: Callable[[str], bool],
) -> None:
    """Raise DataError for a form that `prepare table` does not read.

    Some tables without names of columns look like such a form: like a list of audio files, STM, or
    the segments of one recording. They are not refused if they have a column of audio files and
    one that can be the transcripts.

    The exception are two columns, of which the first seems to have keys, and the second has the
    files, as in a list of audio files. They are refused; the error also says what to write if the
    keys are transcripts after all. A file .scp is always a list of audio files.
    """
    form = find_form(path, text)
    if form is None or _READER in form.readers:
        return
    if delimited is None or path.suffix == ".scp":
        raise DataError(path, form.name, form.remedy)
    audio = _find_audio_file(delimited, is_audio)
    if audio is None:
        raise DataError(path, form.name, form.remedy)
    columns = _list_columns(delimited.rows)
    text_columns = _find_text_columns(columns, audio)
    if not text_columns:
        raise DataError(path, form.name, form.remedy)
    is_only_first_text = len(columns) == 2 and text_columns == [0]
    if is_only_first_text and _are_keys(columns[0], columns[audio]):
        hint = "if column 1 is the text, write a first line with the names text and path"
        raise DataError(path, form.name, f"{form.remedy}; {hint}")


def _find_audio_file(delimited: DelimitedText, is_audio: Callable[[str], bool]) -> int | None:
    """The index of the first cell of the first row that names an audio file, or None.

    A cell between tabs must have the suffix of audio: lines of STM have tabs too, and begin with
    the name of a recording without suffix.
    """
    for index, cell in enumerate(delimited.rows[0].cells):
        has_suffix = cell.strip().lower().endswith(ALL_SUFFIXES)
        may_be_file = has_suffix or delimited.separator != "\t"
        if may_be_file and is_audio(cell):
            return index
    return None


def _are_keys(cells: Sequence[str], files: Sequence[str]) -> bool:
    """Whether cells are more likely to be the keys of files than what is spoken in them.

    Keys are all different, and one of these rules holds:
    1. More than half of them are the name of their file, without suffix.
    2. More than half of them have `_`.
    3. Many differ from others only in signs that are no letters, as `rec1` and `rec2`: there are at
       most half as many spellings without these signs.
    """
    if len({*cells}) < len(cells):
        return False
    num_file_names = sum(Path(file).stem == cell for cell, file in zip(cells, files, strict=False))
    num_with_underscore = sum("_" in cell for cell in cells)
    num_spellings = len({_keep_letters(cell) for cell in cells})
    half = len(cells) / 2
    return num_file_names > half or num_with_underscore > half or num_spellings <= half


# ---- with names of the columns


def _has_names(delimited: DelimitedText | None, is_name: Callable[[str], bool]) -> bool:
    """Whether the first row has at least two different usual names of columns."""
    if delimited is None:
        return False
    usual_names = {cell for cell in delimited.rows[0].cells if is_name(cell)}
    return len(usual_names) >= 2


def _refuse_repeated_names(path: Path, header: Sequence[str]) -> None:
    """Raise DataError if two columns have the same name. Columns without a name are not used."""
    repeated = [name for name, count in Counter(header).items() if name and count > 1]
    if repeated:
        raise DataError(
            f"{path}:1",
            f"several columns have the name {list_names(repeated, ' or ')}",
            "rename them, or write a first line with names, such as path, text, start, end",
        )


def _name_cells(header: Sequence[str], rows: Sequence[NumberedRow]) -> list[TableRow]:
    """The rows with their cells by column, or with the reason why they cannot be read."""
    named = list[TableRow]()
    for line, cells in rows:
        if not cells:  # the mark of a line that cannot be read
            fault = 'quotation mark: one is not closed, or has text after it; write "" for one in a cell'
            named.append(TableRow(line, fault))
        elif len(cells) != len(header):
            fault = f"wrong number of columns: {len(cells)}, the header has {len(header)}"
            named.append(TableRow(line, fault))
        else:
            named.append(TableRow(line, dict(zip(header, cells, strict=True))))
    return named


# ---- without names of the columns


def _read_unnamed_columns(
    path: Path,
    text: str,
    delimited: DelimitedText | None,
    encoding: str,
    is_name: Callable[[str], bool],
    is_audio: Callable[[str], bool],
) -> Table | None:
    """The table of a file whose first line is a row; None: the line names no audio file.

    The line is divided by delimiters (`delimited`), or else after a key, as in `rec1.wav mo lu`.
    Raises as `_name_columns` does.
    """
    divisions = [split_keys(text)]
    if delimited is not None:
        divisions.insert(0, delimited)
    for division in divisions:
        audio = _find_audio_cell(division.rows[0].cells, is_name, is_audio)
        if audio is not None:
            return _name_columns(path, division, encoding, audio)
    return None


def _find_audio_cell(
    cells: Sequence[str],
    is_name: Callable[[str], bool],
    is_audio: Callable[[str], bool],
) -> int | None:
    """The index of the first cell that names an audio file and is no name of a column, or None."""
    for index, cell in enumerate(cells):
        if not is_name(cell) and is_audio(cell):
            return index
    return None


def _name_columns(path: Path, delimited: DelimitedText, encoding: str, audio: int) -> Table:
    """The table of rows without names of columns, whose column `audio` has the audio files.

    The columns of audio and text are named so, the others by their number from 1. The form of the
    table states what was taken for audio and text.
    Raises DataError if no column or several ones can be the text.
    """
    columns = _list_columns(delimited.rows)
    text_columns = _find_text_columns(columns, audio)
    if len(text_columns) != 1:
        found = "none is text"
        if text_columns:
            numbers = ", ".join(str(index + 1) for index in text_columns)
            found = f"columns {numbers} can be the text"
        raise DataError(
            path,
            "no names of columns",
            f"{found}; write a first line with the names, such as path and text",
        )
    text = text_columns[0]
    header = [str(index + 1) for index in range(len(columns))]
    header[audio] = "audio"
    header[text] = "text"
    form = (
        f"{delimited.form}, {encoding}, without names of columns: "
        f"column {audio + 1} is taken for the audio, {text + 1} for the text"
    )
    return Table(form, header, _name_cells(header, delimited.rows))


def _list_columns(rows: Sequence[NumberedRow]) -> list[list[str]]:
    """The cells of each column that the first row has. Rows may have other numbers of cells."""
    columns: list[list[str]] = [[] for _ in rows[0].cells]
    for row in rows:
        for column, cell in zip(columns, row.cells, strict=False):
            column.append(cell)
    return columns


def _find_text_columns(columns: Sequence[Sequence[str]], audio: int) -> list[int]:
    """The indices of the columns that can be transcripts.

    Candidates are all columns with letters, except that of the audio files, whose index is `audio`.
    Then each rule in its turn may leave out some of the candidates that are left.
    """
    candidates = [
        index
        for index, cells in enumerate(columns)
        if index != audio and any(map(_keep_letters, cells))
    ]
    for rule in (_prefer_sentences, _prefer_whole_words, _prefer_normalised):
        candidates = rule(columns, candidates)
    return candidates


def _prefer_sentences(columns: Sequence[Sequence[str]], candidates: Sequence[int]) -> list[int]:
    """Rule: columns with several words per cell, or if no column has several, all candidates.

    Example: of `rec1.wav`, `female`, `mo lu ke` the third column.
    """
    sentences = list[int]()
    for index in candidates:
        mean_words = mean(len(cell.split()) for cell in columns[index])
        if mean_words > 1.5:
            sentences.append(index)
    return sentences or list(candidates)


def _prefer_whole_words(columns: Sequence[Sequence[str]], candidates: Sequence[int]) -> list[int]:
    """Rule: columns whose words are mostly longer than a letter, or else all candidates.

    Example: FLEURS has `mo lu` and also its letters, `m o | l u`.
    """
    whole_words = [index for index in candidates if not _are_spelt(columns[index])]
    return whole_words or list(candidates)


def _are_spelt(cells: Sequence[str]) -> bool:
    """Whether more than half of the words have one letter. An empty cell counts as such a word."""
    are_short = list[bool]()
    for cell in cells:
        words = cell.split() or [""]
        are_short += [len(word) < 2 for word in words]
    return mean(are_short) > 0.5


def _prefer_normalised(columns: Sequence[Sequence[str]], candidates: Sequence[int]) -> list[int]:
    """Rule: the last candidate, if all have the same letters; otherwise all candidates.

    Example: LJSpeech has `Mo, lu!` and then the normalised form `mo lu`.
    """
    if not candidates:
        return []
    last = candidates[-1]
    have_same_text = all(_have_same_letters(columns[index], columns[last]) for index in candidates)
    return [last] if have_same_text else list(candidates)


def _have_same_letters(cells: Sequence[str], others: Sequence[str]) -> bool:
    """Whether more than half of the pairs of cells have the same letters.

    The others may differ: a number may be written in digits in one column, and in words in the
    other one.
    """
    pairs = zip(cells, others, strict=False)
    return mean(_keep_letters(cell) == _keep_letters(other) for cell, other in pairs) > 0.5


def _keep_letters(text: str) -> str:
    """The letters of a text in lower case, without spaces, digits and signs."""
    return "".join(filter(str.isalpha, text.casefold()))


# ---- JSON


def _is_json(path: Path, text: str) -> bool:
    """Whether a file is JSON, by its first brackets or its suffix."""
    has_brackets = re.match(r'\s*[\[{]\s*["{]', text) is not None
    return has_brackets or path.name.removesuffix(".gz").endswith((".json", ".jsonl"))


def _read_json(path: Path, text: str, encoding: str) -> Table:
    """The table of objects, one per line or in one array or object.

    Supervisions of lhotse get the audio of their recordings; see `join_recordings`, also for the
    errors that it raises.
    """
    form = "JSON Lines"
    rows = _read_json_lines(text)
    if _may_be_one_value(rows):
        # A text that is not one value of JSON stays JSON Lines, with the faults of its lines.
        with suppress(RecursionError, ValueError):
            rows = _read_json_value(text)
            form = "JSON"
    records = [row.cells for row in rows if isinstance(row.cells, dict)]
    if join_recordings(path, records):  # it also changes the records
        form += ", supervisions of lhotse"
    names = dict[str, None]()  # a dict as a set that keeps the order
    for record in records:
        names |= dict.fromkeys(record)
    return Table(f"{form}, {encoding}", list(names), rows)


def _read_json_lines(text: str) -> list[TableRow]:
    """The object of each line that is not empty, or why there is none."""
    rows = list[TableRow]()
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            rows.append(TableRow(number, _parse_object(line)))
    return rows


def _parse_object(line: str) -> dict[str, Any] | str:
    """The object of a line, or why there is none."""
    try:
        value = json.loads(line, object_hook=_clean_object)
    except (RecursionError, ValueError) as error:  # lists in lists in lists …
        return f"not JSON: {error}"
    return value if isinstance(value, dict) else _NO_OBJECT


def _may_be_one_value(rows: Sequence[TableRow]) -> bool:
    """Whether all lines together may be one array or object, and not one object per line.

    This is possible if the first line is no object, such as `[`. It is also possible if there is
    only one line, unless that is the record of a manifest of lhotse.
    """
    if not rows:
        return False
    first_cells = rows[0].cells
    if isinstance(first_cells, str):  # why the line is no object
        return True
    return len(rows) == 1 and describe_manifest(first_cells) is None


def _read_json_value(text: str) -> list[TableRow]:
    """The records of one array or object, numbered from 1.

    Raises ValueError or RecursionError if the text is not JSON.
    """
    content = json.loads(text, object_hook=_clean_object)
    rows = list[TableRow]()
    for number, record in enumerate(_list_records(content), start=1):
        rows.append(TableRow(number, record if isinstance(record, dict) else _NO_OBJECT))
    return rows


def _clean_object(record: dict[str, Any]) -> Any:
    """An object of JSON with names in one form of Unicode, or the path of an object that is audio.

    Hugging Face writes audio as an object with a `path` and with `bytes`, an `array` or a
    `sampling_rate`, which are not read.
    """
    is_audio = "path" in record and len(record) > 1
    if is_audio and record.keys() <= {"path", "bytes", "array", "sampling_rate"}:
        return record["path"]
    return {normalize_spelling(name): value for name, value in record.items()}


def _list_records(content: Any) -> list[Any]:
    """The records of a value of JSON.

    1. The items of an array.
    2. The values of an object whose values are all objects (SpeechBrain). Each gets its name there
       as `id`, unless it has an `id`.
    3. The items of the only array of objects that is in an object.
    4. Otherwise the value itself is the only record.
    """
    if isinstance(content, list):
        return content
    if not isinstance(content, dict):
        return [content]
    if all(isinstance(value, dict) for value in content.values()):
        return [{"id": key, **record} for key, record in content.items()]
    arrays = [value for value in content.values() if _is_array_of_objects(value)]
    return arrays[0] if len(arrays) == 1 else [content]


def _is_array_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)
