# SPDX-License-Identifier: Apache-2.0
"""Tables of text on the page, which are lists of records, and the texts of settings, numbers and
scores in them.
"""

import re
from collections.abc import Mapping, Sequence

from wenet_hs.score.compare import MACRO, MICRO
from wenet_hs.score.error_rate import UNDEFINED, LanguageScore, MacroScore, Report
from wenet_hs.score.tables import TableRecord, header_and_rows

_NUMBER = re.compile(r"[-+<]?[0-9][0-9,.]*(e[-+]?[0-9]+)?")
NONE = "—"


def table_parts(records: Sequence[TableRecord]) -> tuple[list[str], list[list[str]], list[str]]:
    """The names of the columns, the cells of each record, and the CSS class of each column.

    A column that a record lacks is n/a. The classes are empty for numbers, `text`, or `text long`.
    """
    names, rows = header_and_rows(records)
    classes = []
    for column in zip(*rows, strict=True):
        known = [value for value in column if value not in (UNDEFINED, "", NONE)]
        is_number = bool(known) and all(map(_NUMBER.fullmatch, known))
        classes.append("" if is_number else "text long" if max(map(len, column)) > 30 else "text")
    return names, rows, classes


def compare_columns(
    first: str, columns: Mapping[str, Mapping[str, str]], missing: str
) -> list[TableRecord]:
    """One row per key, one column per experiment, and `first` as the name of the column of keys."""
    keys = dict.fromkeys(key for column in columns.values() for key in column)
    first = (
        f"{first} (name)" if first in columns else first
    )  # an experiment's folder may have any name
    return [
        {first: key, **{name: column.get(key, missing) for name, column in columns.items()}}
        for key in keys
    ]


def format_setting(value: object) -> str:
    """A setting as text: yes and no, a dash for none, 60 for 60.0, names without their hashes."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(value)
    return (
        NONE
        if value is None
        else str(value).removesuffix(".0")
        if isinstance(value, float)
        else str(value)
    )


def format_number(value: object, digits: int) -> str:
    """A number with `digits` decimals and thousands separators; n/a for other values."""
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else UNDEFINED


def format_counts(score: LanguageScore) -> str:
    """N, S, D and I of a score."""
    counts = score.counts
    return f"N {counts.num_units:,} S {counts.substitutions:,} D {counts.deletions:,} I {counts.insertions:,}"


def score_of(report: Report, group: str) -> LanguageScore | MacroScore:
    """The score of a language, or of an average by its name."""
    if group == MACRO:
        return report.macro
    if group == MICRO:
        return report.micro
    return report.languages[group]
