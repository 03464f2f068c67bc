# SPDX-License-Identifier: Apache-2.0
"""Tables of text on the page, which it sorts by any column, and the texts of settings and numbers in them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wenet_hs.score.error_rate import UNDEFINED
from wenet_hs.score.tables import Record, header_and_rows

_NUMBER = re.compile(r"[-+<]?[0-9][0-9,.]*(e[-+]?[0-9]+)?")
NONE = "—"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text, which the page sorts by any column."""

    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    foot: Sequence[Sequence[str]] = ()
    """Rows that stay at the end."""

    @property
    def classes(self) -> list[str]:
        """The CSS class of each column: empty for numbers, `text`, `text long`."""
        found = []
        for column in zip(*self.rows, *self.foot, strict=True):
            known = [value for value in column if value not in (UNDEFINED, "", NONE)]
            is_number = bool(known) and all(map(_NUMBER.fullmatch, known))
            found.append("" if is_number else "text long" if max(map(len, column)) > 30 else "text")
        return found


def table_of(records: Sequence[Record], total: Sequence[Record] = ()) -> Table:
    """The table of these rows, `total` as its last ones; n/a for a column that a row lacks."""
    names, rows = header_and_rows([*records, *total])
    return Table(names=names, rows=rows[: len(records)], foot=rows[len(records) :])


def compare_columns(first: str, columns: Mapping[str, Mapping[str, str]], missing: str) -> list[Record]:
    """One row per key, one column per experiment, and `first` as the name of the column of keys."""
    keys = dict.fromkeys(key for column in columns.values() for key in column)
    return [{first: key, **{name: column.get(key, missing) for name, column in columns.items()}} for key in keys]


def format_setting(value: object) -> str:
    """A setting as text: yes and no, a dash for none, 60 for 60.0, names without their hashes."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(value)
    return NONE if value is None else str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def format_number(value: object, digits: int) -> str:
    """A number with `digits` decimals and thousands separators; n/a for other values."""
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else UNDEFINED
