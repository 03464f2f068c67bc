# SPDX-License-Identifier: Apache-2.0
"""A tree drawn as SVG and as PNG: root on the left, one row per unit with its probability and code.

Both formats use one layout. A tree of at most `max_leaves` units is drawn whole. Of a larger one the most probable
branches are opened until there are `max_leaves` rows; a branch that stays closed is a row "… 1,234 units". Lines are
as thick as their branch is probable.
"""

import heapq
import io
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from wenet_hs.tree.tree import Tree, UnitTree

ROW_HEIGHT = 18
LEVEL_WIDTH = 26
LEAST_LEVEL_WIDTH = 6
TREE_WIDTH = 620
"""The levels of a tree that would be wider are drawn closer together."""
MARGIN = 12
CHARACTER_WIDTH = 8.5
MAX_LABEL = 24
MAX_CODE = 40
SCALE = 2
"""PNG pixels per pixel of the layout."""
MAX_SIDE = 2**16 - 1
"""Matplotlib's limit of a picture's side."""
FIRST_FONTS = ("DejaVu Sans", "Noto Sans")
INK, QUIET, FAINT, PAPER = "#1c1e21", "#5c6370", "#9aa2af", "#ffffff"
_SHAPELESS = ("Cc", "Cf", "Cn", "Co", "Zl", "Zp", "Zs")


@dataclass(frozen=True)
class TreeRow:
    """The end of a drawn branch: a unit, a closed subtree, or the children of a node that are not drawn."""

    label: str
    share: float
    code: str
    is_unit: bool
    x: float
    """Where its branch ends, from the left."""
    y: float
    """The middle of the row, from the top."""


@dataclass(frozen=True)
class TreeEdge:
    """A line from (x, y_parent) vertically to y, then horizontally to x_end."""

    x: float
    y_parent: float
    y: float
    x_end: float
    thickness: float


@dataclass(frozen=True)
class TreeLayout:
    """A drawing in pixels, origin at the top left."""

    title: str
    rows: list[TreeRow]
    edges: list[TreeEdge]
    x_end: float
    """Where the dotted lines to the labels end."""
    x_label: float
    x_share: float
    """The right end of the percentages."""
    x_code: float
    width: float
    height: float


def tree_svg(tree: UnitTree, *, max_leaves: int = 60) -> str:
    """The drawing as one self-contained `<svg>` element in the colour of the surrounding text (`currentColor`)."""
    layout = layout_tree(tree, max_leaves=max_leaves)
    width, height = f"{layout.width:.0f}", f"{layout.height:.0f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" font-family="sans-serif" font-size="13" fill="currentColor">',
        f"<title>{_xml(layout.title)}</title>",
    ]
    parts += [
        f'<path d="M{edge.x:g} {edge.y_parent:.1f}V{edge.y:.1f}H{edge.x_end:g}" fill="none" stroke="currentColor" '
        f'stroke-width="{edge.thickness:.2f}"/>'
        for edge in layout.edges
    ]
    parts += [
        f'<path d="M{row.x:g} {row.y:.1f}H{layout.x_end:g}" stroke="currentColor" stroke-dasharray="1 4" '
        'opacity="0.5"/>'
        for row in layout.rows
    ]
    for row in layout.rows:
        y = f"{row.y + 4.5:g}"
        style = "" if row.is_unit else ' font-style="italic" opacity="0.75"'
        parts += [
            f'<text x="{layout.x_label:g}" y="{y}"{style}>{_xml(row.label)}</text>',
            f'<text x="{layout.x_share:.0f}" y="{y}" text-anchor="end" opacity="0.75">{percent(row.share)}</text>',
            f'<text x="{layout.x_code:.0f}" y="{y}" font-family="monospace" opacity="0.75">{row.code}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _xml(text: str) -> str:
    """Text for XML: escaped, and the two non-characters that XML does not allow as U+FFFD."""
    return escape(text.replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd"))


def tree_png(tree: UnitTree, *, max_leaves: int = 60) -> bytes:
    """The drawing as a PNG file, dark on white, at twice the resolution; no display is needed.

    Fonts for all scripts are taken from this machine. A character without a font is written as U+….
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # matplotlib takes half a second to import
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    layout = layout_tree(tree, max_leaves=max_leaves)
    scale = min(SCALE, MAX_SIDE / max(layout.width, layout.height))
    figure = Figure(figsize=(round(layout.width) / 100, round(layout.height) / 100), facecolor=PAPER)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, layout.width), ylim=(layout.height, 0))
    axes.axis("off")
    point = 72 / 100  # a pixel of the layout in points
    bent = [[(e.x, e.y_parent), (e.x, e.y), (e.x_end, e.y)] for e in layout.edges]
    widths = [edge.thickness * point for edge in layout.edges]
    axes.add_collection(LineCollection(bent, colors=INK, linewidths=widths, capstyle="butt", joinstyle="miter"))
    straight = [[(row.x, row.y), (layout.x_end, row.y)] for row in layout.rows]
    axes.add_collection(LineCollection(straight, colors=FAINT, linewidths=0.8 * point, linestyles=(0, (1, 4))))
    families, missing = _fonts(row.label for row in layout.rows)
    common: dict[str, Any] = {"fontsize": 13 * point, "parse_math": False, "verticalalignment": "baseline"}
    for row in layout.rows:
        label = "".join(f"U+{ord(character):04X}" if character in missing else character for character in row.label)
        slant, colour = ("normal", INK) if row.is_unit else ("italic", QUIET)
        y = row.y + 4.5
        axes.text(layout.x_label, y, label, family=families, style=slant, color=colour, **common)
        axes.text(layout.x_share, y, percent(row.share), family=families, color=QUIET, ha="right", **common)
        axes.text(layout.x_code, y, row.code, family="DejaVu Sans Mono", color=QUIET, **common)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100 * scale, metadata={"Title": layout.title})
    return buffer.getvalue()


def _fonts(labels: Iterable[str]) -> tuple[list[str], frozenset[str]]:
    """The font families that have the characters of the labels, and the characters that no font has.

    Fonts are opened in the order of their names, only until all characters are found.
    """
    from matplotlib.font_manager import fontManager
    from matplotlib.ft2font import FT2Font

    lacking = {ord(character) for label in labels for character in label}
    plain = {
        entry.name: entry.fname
        for entry in fontManager.ttflist
        if entry.style == "normal"
        and entry.weight in (400, "normal", "regular")
        and not entry.name.startswith("Last Resort")  # has only boxes
    }
    first = [name for name in FIRST_FONTS if name in plain]
    families = []
    for name in [*first, *sorted(set(plain) - set(first))]:
        if not lacking:
            break
        found = lacking & set(FT2Font(plain[name]).get_charmap())
        if found:
            families.append(name)
            lacking -= found
    return families or list(first), frozenset(map(chr, lacking))


def layout_tree(tree: UnitTree, *, max_leaves: int) -> TreeLayout:
    """The layout of a drawing of at most `max_leaves` rows.

    A node with too many children shows the most probable ones; the others are one more row.
    """
    if max_leaves < 1:
        raise ValueError(f"max_leaves: must be at least 1, got {max_leaves}")
    shown, hidden = _open_branches(tree, max_leaves)
    ends: list[tuple[int, int]] = []  # what is drawn as a row, and its level, from top to bottom
    stack = [(0, 0)]
    while stack:
        node, level = stack.pop()
        if node in shown:
            stack += [(child, level + 1) for child in reversed(shown[node])]
        else:
            ends.append((node, level))
    deepest = max(level for _, level in ends)
    step = min(LEVEL_WIDTH, max(LEAST_LEVEL_WIDTH, TREE_WIDTH / max(1, deepest)))
    num_leaves = tree.num_leaves()
    rows: dict[int, TreeRow] = {}
    for index, (node, level) in enumerate(ends):
        x, y = MARGIN + level * step, MARGIN + (index + 0.5) * ROW_HEIGHT
        if node in hidden:
            nodes = hidden[node]
            num_units, share, code = int(num_leaves[nodes].sum()), float(tree.shares[nodes].sum()), ""
            is_unit = False
            label = f"… {num_units:,} units" + (f" in {len(nodes):,} branches" if num_units > len(nodes) else "")
        else:
            is_unit, share, code = node >= tree.num_inner, float(tree.shares[node]), tree.code(node)
            code = code if len(code) <= MAX_CODE else code[: MAX_CODE - 1] + "…"
            label = unit_label(tree.units[node - tree.num_inner]) if is_unit else f"… {num_leaves[node]:,} units"
        rows[node] = TreeRow(label, share, code, is_unit, x, y)
    x_end = MARGIN + deepest * step + 4
    x_label = x_end + 6
    x_share = x_label + max(label_width(row.label) for row in rows.values()) * CHARACTER_WIDTH + 70
    x_code = x_share + 14
    return TreeLayout(
        title=f"{tree.kind} tree of {tree.num_units:,} units, depth {tree.depth}",
        rows=list(rows.values()),
        edges=_edges(tree, shown, rows, step),
        x_end=x_end,
        x_label=x_label,
        x_share=x_share,
        x_code=x_code,
        width=x_code + max(len(row.code) for row in rows.values()) * CHARACTER_WIDTH + MARGIN,
        height=len(rows) * ROW_HEIGHT + 2 * MARGIN,
    )


def _open_branches(tree: UnitTree, max_leaves: int) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """The opened nodes with the children that are drawn, and the children that are not.

    The most probable closed branch is opened next. The children of node n that are not drawn are one row with the
    number ~n; it is the last of the node's drawn children and the key of the second dictionary.
    """
    whole = tree.num_units <= max_leaves
    most = max_leaves if whole else max(2, max_leaves // 3)  # children of one node, so that some of them are opened too
    closed = [(-float(tree.shares[0]), 0)] if tree.num_inner else []
    shown: dict[int, list[int]] = {}
    hidden: dict[int, list[int]] = {}
    num_rows = 1
    while closed:
        _, node = heapq.heappop(closed)
        children = tree.children_of(node)
        room = min(most, max_leaves - num_rows + 1)
        if len(children) > room and (isinstance(tree, Tree) or room < 2):
            continue
        number = len(children) if len(children) <= room else room - 1
        best = sorted(range(len(children)), key=lambda i: (-float(tree.shares[children[i]]), i))[:number]
        shown[node] = [children[i] for i in sorted(best)]
        for child in shown[node]:
            if child < tree.num_inner:
                heapq.heappush(closed, (-float(tree.shares[child]), child))
        if number < len(children):
            hidden[~node] = sorted(set(children) - set(shown[node]))
            shown[node].append(~node)
        num_rows += len(shown[node]) - 1
    return shown, hidden


def _edges(tree: UnitTree, shown: dict[int, list[int]], rows: dict[int, TreeRow], step: float) -> list[TreeEdge]:
    """A line from each drawn node to its parent."""
    middle = {node: row.y for node, row in rows.items()}
    left = {node: row.x for node, row in rows.items()}
    share = {node: row.share for node, row in rows.items()}
    edges = []
    for node in sorted(shown, reverse=True):  # breadth-first numbers: children come before their parents
        children = shown[node]
        middle[node] = (middle[children[0]] + middle[children[-1]]) / 2
        left[node] = left[children[0]] - step
        share[node] = float(tree.shares[node])
        edges += [
            TreeEdge(left[node], middle[node], middle[child], left[node] + step, 0.75 + 3.25 * share[child] ** 0.5)
            for child in children
        ]
    return edges


def unit_label(unit: str, *, longest: int = MAX_LABEL) -> str:
    """A unit as readable text: a space as ▁, a combining mark on ◌, an invisible character as U+…; cut if long."""
    unit = unit.replace(" ", "▁")
    if unicodedata.category(unit[0]).startswith("M"):
        unit = "◌" + unit
    shown = "".join(
        f"U+{ord(character):04X}" if unicodedata.category(character) in _SHAPELESS else character for character in unit
    )
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def label_width(label: str) -> int:
    """The columns of a label: two for East Asian wide characters, none for combining marks."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in label
    )


def percent(share: float) -> str:
    """A share as "21.8 %", a small one with two digits."""
    in_percent = 100 * float(share)
    return f"{in_percent:.2g} %" if 0 < in_percent < 1 else f"{in_percent:.1f} %"
