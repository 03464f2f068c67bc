# SPDX-License-Identifier: Apache-2.0
"""A tree as SVG text: root on the left, one row a unit with its probability and code, readable on light and dark."""

import heapq
import unicodedata
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.tree import Tree

ROW_HEIGHT = 18
LEVEL_WIDTH = 26
MARGIN = 12
CHARACTER_WIDTH = 8.5
MAX_LABEL = 24


@dataclass(frozen=True)
class _Row:
    """One end of a drawn branch: the leaf of a unit, or a subtree that is not opened."""

    node: int
    level: int
    code: str


def tree_svg(tree: Tree, *, max_leaves: int = 60) -> str:
    """The drawing of a tree as one self-contained `<svg>` element.

    A tree of at most `max_leaves` units is drawn whole. Of a larger one the most probable branches are opened until
    there are `max_leaves` rows; a branch that stays closed is a row "… 1,234 units". Lines are as thick as their
    branch is probable. Colours are the surrounding text's (`currentColor`).
    """
    if max_leaves < 1:
        raise ValueError(f"max_leaves: must be at least 1, got {max_leaves}")
    weights = tree.weights()
    shares = weights / weights[0] if weights[0] > 0 else tree.num_leaves() / tree.num_units
    opened = _opened(tree, shares, max_leaves)
    rows = _rows(tree, opened)
    labels = [_row_label(tree, row) for row in rows]
    deepest = max(row.level for row in rows)
    x_label = MARGIN + deepest * LEVEL_WIDTH + 10
    x_share = x_label + max(map(_width, labels)) * CHARACTER_WIDTH + 70
    x_code = x_share + 14
    width = x_code + max(len(row.code) for row in rows) * CHARACTER_WIDTH + MARGIN
    height = len(rows) * ROW_HEIGHT + 2 * MARGIN
    title = f"{tree.kind} tree of {tree.num_units:,} units, depth {tree.depth}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        f'height="{height}" role="img" font-family="sans-serif" font-size="13" fill="currentColor">',
        f"<title>{_xml(title)}</title>",
        *_branches(tree, rows, shares, opened),
    ]
    for index, (row, label) in enumerate(zip(rows, labels, strict=True)):
        y = MARGIN + (index + 0.5) * ROW_HEIGHT + 4.5
        style = ' font-style="italic" opacity="0.75"' if row.node < len(tree.children) else ""
        parts.append(f'<text x="{x_label}" y="{y:g}"{style}>{_xml(label)}</text>')
        parts.append(
            f'<text x="{x_share:.0f}" y="{y:g}" text-anchor="end" opacity="0.75">{_percent(shares[row.node])}</text>'
        )
        parts.append(f'<text x="{x_code:.0f}" y="{y:g}" font-family="monospace" opacity="0.75">{row.code}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def unit_label(unit: str) -> str:
    """A unit as it can be read: a space as ▁, a combining mark on ◌, what has no shape as U+…, cut when it is long."""
    unit = unit.replace(" ", "▁")
    if unicodedata.category(unit[0]).startswith("M"):
        unit = "◌" + unit
    shown = "".join(
        f"U+{ord(character):04X}" if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Zs") else character
        for character in unit
    )
    return shown if len(shown) <= MAX_LABEL else shown[: MAX_LABEL - 1] + "…"


def _opened(tree: Tree, shares: NDArray[np.float64], max_leaves: int) -> set[int]:
    """The inner nodes to draw: the most probable closed branch is opened until there are enough rows."""
    num_inner = len(tree.children)
    closed = [(-float(shares[0]), 0)] if num_inner else []
    opened: set[int] = set()
    while closed and len(opened) + 1 < max_leaves:
        _, node = heapq.heappop(closed)
        opened.add(node)
        for child in tree.children[node].tolist():
            if child < num_inner:
                heapq.heappush(closed, (-float(shares[child]), child))
    return opened


def _rows(tree: Tree, opened: set[int]) -> list[_Row]:
    """The drawn ends from top to bottom, left children above right ones."""
    rows: list[_Row] = []
    waiting = [_Row(0, 0, "")]
    while waiting:
        row = waiting.pop()
        if row.node in opened:
            left, right = tree.children[row.node].tolist()
            waiting.append(_Row(right, row.level + 1, row.code + "1"))
            waiting.append(_Row(left, row.level + 1, row.code + "0"))
        else:
            rows.append(row)
    return rows


def _branches(tree: Tree, rows: list[_Row], shares: NDArray[np.float64], opened: set[int]) -> list[str]:
    """A line from each drawn node to its parent, and a dotted one from an end to its label."""
    deepest = max(row.level for row in rows)
    middle = {row.node: MARGIN + (index + 0.5) * ROW_HEIGHT for index, row in enumerate(rows)}
    level = {row.node: row.level for row in rows}
    lines = []
    for node in sorted(opened, reverse=True):  # breadth-first numbers: children come before their parents
        children = tree.children[node].tolist()
        middle[node] = sum(middle[child] for child in children) / 2
        level[node] = level[children[0]] - 1
        x = MARGIN + level[node] * LEVEL_WIDTH
        for child in children:
            thickness = 0.75 + 3.25 * float(shares[child]) ** 0.5
            path = f"M{x} {middle[node]:.1f}V{middle[child]:.1f}H{x + LEVEL_WIDTH}"
            lines.append(f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="{thickness:.2f}"/>')
    end = MARGIN + deepest * LEVEL_WIDTH + 4
    for row in rows:
        start, y = MARGIN + row.level * LEVEL_WIDTH, middle[row.node]
        lines.append(f'<path d="M{start} {y:.1f}H{end}" stroke="currentColor" stroke-dasharray="1 4" opacity="0.5"/>')
    return lines


def _row_label(tree: Tree, row: _Row) -> str:
    num_inner = len(tree.children)
    if row.node >= num_inner:
        return unit_label(tree.units[row.node - num_inner])
    return f"… {tree.num_leaves()[row.node]:,} units"


def _width(label: str) -> int:
    """Columns that a label takes: East Asian wide characters two, combining marks none."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in label
    )


def _percent(share: float) -> str:
    percent = 100 * float(share)
    return f"{percent:.2g} %" if 0 < percent < 1 else f"{percent:.1f} %"


def _xml(text: str) -> str:
    """Text for XML: escaped, and the two non-characters that XML cannot hold as U+FFFD."""
    return escape(text.replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd"))
