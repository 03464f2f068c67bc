# SPDX-License-Identifier: Apache-2.0
"""Tables of text on a page, and the texts of settings, numbers and scores in them.

A table is a list of records: name of the column → text.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wenet_hs.score.compare import MACRO, MICRO
from wenet_hs.score.error_rate import UNDEFINED, LanguageScore, MacroScore, Report
from wenet_hs.score.tables import TableRecord, header_and_rows

NONE = "—"
"""The text of a setting that is not set, and of a unit that is absent on one side."""
_NUMBER = re.compile(r"[-+<]?[0-9][0-9,.]*(e[-+]?[0-9]+)?")
_LONG = 30  # characters; a column with a longer text is wide


class TableParts(NamedTuple):
    """The columns and cells of a table as its template needs them."""

    names: list[str]
    """Of the columns."""
    rows: list[list[str]]
    """The cells of each record, in the order of the columns."""
    classes: list[str]
    """The CSS class of each column: empty for numbers, `text`, or `text long`."""


def table_parts(records: Sequence[TableRecord]) -> TableParts:
    """The names of the columns, the cells of each record, and the CSS class of each column.

    A column that a record lacks is n/a.
    """
    names, rows = header_and_rows(records)
    columns = zip(*rows, strict=True)
    return TableParts(names, rows, [_css_class(column) for column in columns])


def _css_class(column: Sequence[str]) -> str:
    """The class of a column with these cells.

    It is empty if all known cells are numbers, and at least one is known. Cells that are n/a, a
    dash or without text are not known. A number may begin with a sign or with `<`, as in `<0.001`,
    and may have thousands separators and an exponent.
    """
    known = [text for text in column if text not in (UNDEFINED, "", NONE)]
    if known and all(_NUMBER.fullmatch(text) for text in known):
        return ""
    is_long = max(map(len, column)) > _LONG
    return "text long" if is_long else "text"


def compare_columns(
    key_name: str, columns: Mapping[str, Mapping[str, str]], missing: str
) -> list[TableRecord]:
    """A table with one row per key, and one column per experiment.

    Args:
        key_name: the name of the first column, which has the keys. If an experiment has this name,
            `(name)` is appended to it.
        columns: the texts of each experiment by key.
        missing: the text of an experiment without the key.
    """
    if key_name in columns:
        key_name = f"{key_name} (name)"
    keys = dict[str, None]()  # as an ordered set
    for texts in columns.values():
        keys |= dict.fromkeys(texts)
    records = list[TableRecord]()
    for key in keys:
        record = {key_name: key}
        for experiment, texts in columns.items():
            record[experiment] = texts.get(key, missing)
        records.append(record)
    return records


def format_setting(value: object) -> str:
    """A setting as text: yes and no, a dash for None, 60 for 60.0, and the keys of a dict.

    The keys of such a dict are the names of files. The values are their hashes, which are too long
    to be shown.
    """
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(value)
    if isinstance(value, float):
        return str(value).removesuffix(".0")
    return str(value)


def format_number(value: object, digits: int) -> str:
    """A number with `digits` decimals and thousands separators; n/a for other values."""
    if not isinstance(value, int | float):
        return UNDEFINED
    return f"{value:,.{digits}f}"


def format_counts(score: LanguageScore) -> str:
    """`N 26 S 1 D 0 I 0`: reference units, substitutions, deletions and insertions of a score."""
    counts = score.counts
    return (
        f"N {counts.num_units:,} S {counts.substitutions:,} "
        f"D {counts.deletions:,} I {counts.insertions:,}"
    )


def score_of(report: Report, group: str) -> LanguageScore | MacroScore:
    """The score of a language, or of an average if `group` is MACRO or MICRO.

    Raises KeyError for a language that the report does not have.
    """
    if group == MACRO:
        return report.macro
    if group == MICRO:
        return report.micro
    return report.languages[group]
