# SPDX-License-Identifier: Apache-2.0
"""Rows of a text with columns: the delimiter and the quotation marks are found by trying them."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

csv.field_size_limit(2**31 - 1)  # a cell may be a whole transcript; the default is 131,072
_DELIMITERS = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar"}
"""Delimiter → its name for the user."""
_Quoting = Literal["whole", "by line", "none"]
"""How quotation marks are read.

whole: they may enclose cells, also cells of several lines.
by line: they may enclose cells within one line.
none: they are a part of the text.
"""


class NumberedRow(NamedTuple):
    """A row with at least one cell that is not empty, or a line that cannot be read."""

    line: int
    """Where the row begins, from 1."""
    cells: list[str]
    """An empty list: the line cannot be read, because a quotation mark in it is wrong."""


@dataclass(frozen=True)
class DelimitedText:
    """The rows of a text, and how they were found."""

    form: str
    """For the user: `tab-separated, quoted`."""
    rows: list[NumberedRow]
    separator: str
    """What stands between two cells: a tab, ` :: `, or a space after a key."""


def split_text(text: str) -> DelimitedText | None:
    """The rows by the separator of the first line; None: it has only one column.

    ` :: ` comes before the usual delimiters, which a transcript may have, and `::` after them.
    """
    first_line = get_first_line(text)
    return (
        _split_double_colons(text, first_line, " :: ")
        or _split_columns(text, first_line)
        or _split_double_colons(text, first_line, "::")
    )


def get_first_line(text: str) -> str:
    """The first line that is not empty; an empty text if there is none."""
    return text.lstrip().partition("\n")[0]


def split_keys(text: str) -> DelimitedText:
    """Lines of `key transcript`, as LibriSpeech, MLS, AISHELL and Kaldi have them.

    A key without a transcript gets an empty one.
    """
    rows = list[NumberedRow]()
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.strip().split(maxsplit=1)
        if words:
            key = words[0]
            transcript = words[1] if len(words) > 1 else ""
            rows.append(NumberedRow(number, [key, transcript]))
    return DelimitedText("`key transcript` lines", rows, " ")


def _split_double_colons(text: str, first_line: str, separator: str) -> DelimitedText | None:
    """Lines of `path :: transcript`, as KsponSpeech has them; None: a line has no separator."""
    if separator not in first_line:
        return None
    rows = list[NumberedRow]()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(separator, maxsplit=1)]
        if len(cells) < 2:
            return None
        rows.append(NumberedRow(number, cells))
    return DelimitedText("separated by double colons", rows, separator)


# ---- delimiters and quotation marks


@dataclass(frozen=True)
class _Reading:
    """The rows of a text by one delimiter and one way of quoting."""

    delimiter: str
    quoting: _Quoting
    rows: list[NumberedRow]

    @property
    def num_columns(self) -> int:
        """The cells of the first row; 0: there is no row."""
        return len(self.rows[0].cells) if self.rows else 0

    @property
    def rank(self) -> tuple[float, int, bool, int]:
        """How well the text is read; the reading with the largest rank is used. It has rows.

        The values count in this order:
        1. The share of the rows that have as many cells as the first row.
        2. The number of rows. It is too small if two quotation marks of a text, which stand in
           different rows, are read as the marks of one cell.
        3. Whether quotation marks enclose cells.
        4. The number of columns.
        """
        num_fitting = sum(len(row.cells) == self.num_columns for row in self.rows)
        share_fitting = num_fitting / len(self.rows)
        are_marks_around_cells = self.quoting != "none"
        return share_fitting, len(self.rows), are_marks_around_cells, self.num_columns


def _split_columns(text: str, first_line: str) -> DelimitedText | None:
    """The rows by the delimiter and quoting that fit best; None: there is only one column.

    The form states whether cells are quoted, and how many rows have cells of several lines.
    """
    best = max(_list_readings(text, first_line), key=lambda reading: reading.rank, default=None)
    if best is None:
        return None
    form = f"{_DELIMITERS[best.delimiter]}-separated"
    if '"' in text and best.quoting != "none":
        form += ", quoted"
    multiline_rows = [row for row in best.rows if "\n" in "".join(row.cells)]
    if multiline_rows:
        form += (
            f", {len(multiline_rows)} rows with cells of several lines "
            f"(the first in line {multiline_rows[0].line})"
        )
    return DelimitedText(form, best.rows, best.delimiter)


def _list_readings(text: str, first_line: str) -> Iterator[_Reading]:
    """The readings of a text that have several columns.

    Each delimiter that the first line has is tried with each way of quoting. A reading that takes
    quotation marks for text is left out if they seem to enclose cells, and a reading that the CSV
    parser refuses is left out too.
    """
    quotings: tuple[_Quoting, ...] = ("whole", "by line", "none") if '"' in text else ("whole",)
    delimiters = [delimiter for delimiter in _DELIMITERS if delimiter in first_line]
    for delimiter in delimiters:
        for quoting in quotings:
            try:
                rows = _parse(text, delimiter, quoting)
            except csv.Error:  # a quotation mark that is a part of the text, or is not closed
                continue
            reading = _Reading(delimiter, quoting, rows)
            if reading.num_columns < 2:
                continue
            if quoting == "none" and _do_marks_enclose_cells(rows):
                continue
            yield reading


def _do_marks_enclose_cells(rows: Sequence[NumberedRow]) -> bool:
    """Whether quotation marks enclose cells, in rows whose marks were read as text.

    They enclose cells in two cases:
    1. All cells of the first row begin and end with a mark.
    2. A row with a mark has another number of cells than the first row. Then a cell between two
       marks seems to contain the delimiter, and was divided there.
    """
    header = rows[0].cells
    if all(re.fullmatch('".*"', name) for name in header):
        return True
    rows_of_other_length = [row for row in rows if len(row.cells) != len(header)]
    return any('"' in "".join(row.cells) for row in rows_of_other_length)


def _parse(text: str, delimiter: str, quoting: _Quoting) -> list[NumberedRow]:
    """The rows that are not empty, by this delimiter and quoting.

    With the quoting `by line`, a line with a wrong quotation mark is a row without cells. With
    another quoting, csv.Error is raised for it.
    """
    rows = list[NumberedRow]()
    if quoting != "by line":
        _append_rows(rows, text, delimiter, quoting, first_line=1)
        return rows
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            _append_rows(rows, line, delimiter, quoting, first_line=number)
        except csv.Error:
            rows.append(NumberedRow(number, []))
    return rows


def _append_rows(
    rows: list[NumberedRow], text: str, delimiter: str, quoting: _Quoting, *, first_line: int
) -> None:
    """Append to `rows` the rows of a text that begins in line `first_line` of the file.

    Some programs write delimiters at the end of each line. So empty cells at the end of a row are
    removed: all of them in the first row of the file, and below it those in columns that the first
    row does not have. A row without any text is left out.

    Raises csv.Error for a wrong quotation mark.
    """
    csv_quoting: Literal[0, 3] = csv.QUOTE_NONE if quoting == "none" else csv.QUOTE_MINIMAL
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, strict=True, quoting=csv_quoting
    )
    line = first_line
    for cells in reader:
        num_columns = len(rows[0].cells) if rows else 0  # 0: this is the first row
        while len(cells) > num_columns and not cells[-1].strip():
            cells.pop()
        if any(cell.strip() for cell in cells):
            rows.append(NumberedRow(line, cells))
        line = first_line + reader.line_num  # where the next row begins
