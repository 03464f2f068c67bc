# SPDX-License-Identifier: Apache-2.0
"""Tables, sections and choices as HTML. Text from outside is escaped here, unless an argument is said to be HTML."""

import re
from collections.abc import Iterable, Sequence
from html import escape, unescape

from wenet_hs.score.error_rate import UNDEFINED

_NUMBER = re.compile(r"[-+<]?[0-9][0-9,.]*(e[-+]?[0-9]+)?")
_TAG = re.compile(r"<[^>]*>")
_LONG = 30  # characters


def section(anchor: str, heading: str, *parts: str) -> str:
    """A section with its heading; parts (HTML) that are empty are left out. `anchor` is what a link names."""
    body = "\n".join(part for part in parts if part)
    return f'<section id="{anchor}"><h2>{escape(heading)}</h2>\n{body}\n</section>'


def missing(text: str) -> str:
    """The one line of a section that says what it lacks."""
    return f'<p class="quiet missing">{escape(text)}</p>'


def table(header: Sequence[str], rows: Iterable[str], *, caption: str, foot: Iterable[str] = (), name: str = "") -> str:
    """A table that scrolls in a box of its own where the page is narrow, its first column standing still.

    Args:
        header, rows, foot: HTML of whole `<tr>` elements; `foot` is never sorted.
        caption: HTML. Its first sentence is what a screen reader calls the box.
        name: an id, by which a filter finds the table.
    """
    label = unescape(_TAG.sub("", caption)).split(". ")[0].strip()
    below = "\n".join(foot)
    tfoot = f"\n<tfoot>{below}</tfoot>" if below else ""
    known = f' id="{name}"' if name else ""
    body = "\n".join(rows)
    return (
        f'<figure class="table"><figcaption>{caption}</figcaption>'
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}"><table{known} class="sortable">\n'
        f"<thead>{''.join(header)}</thead>\n<tbody>\n{body}\n</tbody>{tfoot}</table></div></figure>"
    )


def plain_table(
    names: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    caption: str,
    foot: Sequence[Sequence[object]] = (),
    name: str = "",
    attributes: Sequence[str] = (),
) -> str:
    """A table of plain values: text left, numbers right, long text wrapped.

    Args:
        caption: HTML.
        attributes: HTML attributes of each row, such as what a filter compares; none given, none written.
    """
    cells, below = ([[str(value) for value in row] for row in part] for part in (rows, foot))
    kinds = [_kind(column) for column in zip(*cells, *below, strict=True)]
    header = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(names, kinds, strict=True))
    marks = attributes or [""] * len(cells)
    return table(
        [f"<tr>{header}</tr>"],
        [_row(row, kinds, mark) for row, mark in zip(cells, marks, strict=True)],
        caption=caption,
        foot=[_row(row, kinds, ' class="average"') for row in below],
        name=name,
    )


def _row(row: Sequence[str], kinds: Sequence[str], attributes: str) -> str:
    values = "".join(f"<td{kind}>{escape(value)}</td>" for value, kind in zip(row[1:], kinds[1:], strict=True))
    return f'<tr{attributes}><th scope="row"{kinds[0]}>{escape(row[0])}</th>{values}</tr>'


def _kind(column: Sequence[str]) -> str:
    """The class of a column by what stands in it."""
    known = [value for value in column if value not in (UNDEFINED, "", "—")]
    if known and all(map(_NUMBER.fullmatch, known)):
        return ""
    return ' class="text long"' if max(map(len, column), default=0) > _LONG else ' class="text"'


def options(choices: Iterable[tuple[str, str]]) -> str:
    """The options of a `<select>`: pairs of value and label."""
    return "".join(f'<option value="{escape(value)}">{escape(label)}</option>' for value, label in choices)


def show_setting(value: object) -> str:
    """A setting as people write it: yes and no, a dash for none, 60 for 60.0."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def number(value: object, digits: int) -> str:
    """A number with so many decimals and thousands apart; n/a for anything else."""
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else UNDEFINED
