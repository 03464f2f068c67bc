# SPDX-License-Identifier: Apache-2.0
"""Drawings of a tree as SVG and PNG, and the tree explorer, an HTML page.

A drawing has the root on the left, and per row a unit with its share of all units and its code. A
tree of at most `max_leaves` units is drawn whole. Of a larger one the most probable branches are
opened until there are `max_leaves` rows; a branch that stays closed is a row "… 1,234 units". Lines
are as thick as their branch is probable.

The page opens branches and searches units. It needs no network, and its content security policy
forbids one.
"""

import heapq
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.cells import cell_len

from wenet_hs.text.units import show_unit
from wenet_hs.tree.tree import Tree
from wenet_hs.tree.unit_tree import UnitTree

MAX_PAGE_LABEL = 200
"""Characters of a name that are written; the page's style cuts it to the available width."""
ROW_HEIGHT = 18
LEVEL_WIDTH = 26
LEAST_LEVEL_WIDTH = 6
TREE_WIDTH = 620
"""The levels of a tree that would be wider are drawn closer together."""
MARGIN = 12
CHARACTER_WIDTH = 8.5
MAX_LABEL = 24
MAX_CODE = 40
INK, QUIET, FAINT, PAPER = "#1c1e21", "#5c6370", "#9aa2af", "#ffffff"


class TreeRow(NamedTuple):
    """The end of a drawn branch: a unit, a closed subtree, or the children of a node that are not
    drawn.
    """

    label: str
    percent: str
    code: str
    is_unit: bool
    x: float
    """Where its branch ends, from the left."""
    y: float
    """The middle of the row, from the top."""


class TreeEdge(NamedTuple):
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
    """The drawing as one self-contained `<svg>` element in the colour of the surrounding text
    (`currentColor`).
    """
    layout = layout_tree(tree, max_leaves=max_leaves)
    return _render_template(
        "tree.svg", layout=layout, width=f"{layout.width:.0f}", height=f"{layout.height:.0f}"
    )


def _render_template(template: str, **values: Any) -> str:
    import jinja2  # not needed by most commands that import this module

    loader = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return environment.get_template(template).render(values) + "\n"


def tree_png(tree: UnitTree, *, max_leaves: int = 60) -> bytes:
    """The drawing as a PNG file, dark on white, at twice the resolution; no display is needed.

    Fonts for all scripts are taken from this machine. A character without a font is written as U+….
    """
    from matplotlib.backends.backend_agg import (
        FigureCanvasAgg,
    )  # matplotlib takes half a second to import
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    layout = layout_tree(tree, max_leaves=max_leaves)
    max_side = 2**16 - 1  # Matplotlib's limit of a picture's side
    scale = min(
        2, max_side / max(layout.width, layout.height)
    )  # PNG pixels per pixel of the layout
    figure = Figure(
        figsize=(round(layout.width) / 100, round(layout.height) / 100), facecolor=PAPER
    )
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, layout.width), ylim=(layout.height, 0))
    axes.axis("off")
    point = 72 / 100  # a pixel of the layout in points
    bent = [[(e.x, e.y_parent), (e.x, e.y), (e.x_end, e.y)] for e in layout.edges]
    widths = [edge.thickness * point for edge in layout.edges]
    axes.add_collection(
        LineCollection(bent, colors=INK, linewidths=widths, capstyle="butt", joinstyle="miter")
    )
    straight = [[(row.x, row.y), (layout.x_end, row.y)] for row in layout.rows]
    axes.add_collection(
        LineCollection(straight, colors=FAINT, linewidths=0.8 * point, linestyles=(0, (1, 4)))
    )
    families, missing = _fonts(row.label for row in layout.rows)
    common: dict[str, Any] = {
        "fontsize": 13 * point,
        "parse_math": False,
        "verticalalignment": "baseline",
    }
    for row in layout.rows:
        label = "".join(
            f"U+{ord(character):04X}" if character in missing else character
            for character in row.label
        )
        slant, colour = ("normal", INK) if row.is_unit else ("italic", QUIET)
        y = row.y + 4.5
        axes.text(layout.x_label, y, label, family=families, style=slant, color=colour, **common)
        axes.text(
            layout.x_share, y, row.percent, family=families, color=QUIET, ha="right", **common
        )
        axes.text(layout.x_code, y, row.code, family="DejaVu Sans Mono", color=QUIET, **common)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100 * scale, metadata={"Title": layout.title})
    return buffer.getvalue()


def _fonts(labels: Iterable[str]) -> tuple[list[str], frozenset[str]]:
    """The font families that have the characters of the labels, and the characters that no font
    has.

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
    first = [name for name in ("DejaVu Sans", "Noto Sans") if name in plain]
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
    """The layout of a drawing of at most `max_leaves` ≥ 1 rows.

    A node with too many children shows the most probable ones; the others are one more row.
    """
    if max_leaves < 1:
        raise ValueError(f"max_leaves: must be at least 1, got {max_leaves}")
    shown, hidden = _open_branches(tree, max_leaves)
    levels, ends = {0: 0}, []  # `ends` are the nodes that are drawn as rows, from top to bottom
    stack = [0]
    while stack:
        node = stack.pop()
        if node not in shown:
            ends.append(node)
        for child in reversed(shown.get(node, ())):
            levels[child] = levels[node] + 1
            stack.append(child)
    deepest = max(levels[node] for node in ends)
    step = min(LEVEL_WIDTH, max(LEAST_LEVEL_WIDTH, TREE_WIDTH / max(1, deepest)))
    x = {node: MARGIN + level * step for node, level in levels.items()}
    y = {node: MARGIN + (index + 0.5) * ROW_HEIGHT for index, node in enumerate(ends)}
    branches = {node: hidden.get(node, [node]) for node in levels}
    shares = {node: float(tree.shares[nodes].sum()) for node, nodes in branches.items()}
    num_leaves = tree.num_leaves()
    rows = []
    for node in ends:
        num_branches, num_units = len(branches[node]), int(num_leaves[branches[node]].sum())
        label = f"… {num_units:,} units" + (
            f" in {num_branches:,} branches" if num_units > num_branches > 1 else ""
        )
        if node >= tree.num_inner:
            label = unit_label(tree.units[node - tree.num_inner])
        code = "" if node in hidden else _cut(tree.code(node), MAX_CODE)
        rows.append(
            TreeRow(
                label, format_share(shares[node]), code, node >= tree.num_inner, x[node], y[node]
            )
        )
    edges = []
    for node in sorted(
        shown, reverse=True
    ):  # breadth-first numbers: children come before their parents
        y[node] = (y[shown[node][0]] + y[shown[node][-1]]) / 2
        for child in shown[node]:
            edges.append(
                TreeEdge(x[node], y[node], y[child], x[child], 0.75 + 3.25 * shares[child] ** 0.5)
            )
    x_end = MARGIN + deepest * step + 4
    x_label = x_end + 6
    x_share = x_label + max(cell_len(row.label) for row in rows) * CHARACTER_WIDTH + 70
    x_code = x_share + 14
    width = x_code + max(len(row.code) for row in rows) * CHARACTER_WIDTH + MARGIN
    title = f"{tree.kind} tree of {tree.num_units:,} units, depth {tree.depth}"
    return TreeLayout(
        title,
        rows,
        edges,
        x_end,
        x_label,
        x_share,
        x_code,
        width,
        len(rows) * ROW_HEIGHT + 2 * MARGIN,
    )


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _open_branches(
    tree: UnitTree, max_leaves: int
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """The opened nodes with the children that are drawn, and the children that are not.

    The most probable closed branch is opened next. The children of node n that are not drawn are
    one row with the number ~n; it is the last of the node's drawn children and the key of the
    second dictionary.
    """
    whole = tree.num_units <= max_leaves
    most = (
        max_leaves if whole else max(2, max_leaves // 3)
    )  # children of one node, so that some of them are opened too
    closed = [(-float(tree.shares[0]), 0)] if tree.num_inner else []
    shown: dict[int, list[int]] = {}
    hidden: dict[int, list[int]] = {}
    num_rows = 1
    while closed:
        _, node = heapq.heappop(closed)
        children = tree.children_of(node)
        max_children = min(most, max_leaves - num_rows + 1)
        if len(children) > max_children and (isinstance(tree, Tree) or max_children < 2):
            continue
        number = len(children) if len(children) <= max_children else max_children - 1
        best = set(
            sorted(children, key=lambda child: -tree.shares[child])[:number]
        )  # ties by index
        shown[node] = [child for child in children if child in best]
        for child in shown[node]:
            if child < tree.num_inner:
                heapq.heappush(closed, (-float(tree.shares[child]), child))
        if number < len(children):
            hidden[~node] = [child for child in children if child not in best]
            shown[node].append(~node)
        num_rows += len(shown[node]) - 1
    return shown, hidden


def unit_label(unit: str, *, longest: int = MAX_LABEL) -> str:
    """A unit as `show_unit` in full; cut if long."""
    return _cut(show_unit(unit, in_full=True), longest)


def format_share(share: float) -> str:
    """A share as "21.8 %", a small one with two digits."""
    in_percent = 100 * float(share)
    return f"{in_percent:.2g} %" if 0 < in_percent < 1 else f"{in_percent:.1f} %"


# ---- the explorer


def tree_page(tree: UnitTree, summary: str, table: Sequence[Sequence[str]] = ()) -> str:
    """The HTML of the page.

    Args:
        summary: figures of the tree in one line, parts separated by " | ".
        table: code lengths by language, a row of headings first; empty for no table.
    """
    return _render_template(
        "explorer.html",
        title=f"{tree.kind} tree of {tree.num_units:,} units",
        figures=summary.split(" | "),
        table=table,
        data=_page_data(tree),
    )


def _page_data(tree: UnitTree) -> dict[str, Any]:
    """The data that the page's script draws. `labels`: by unit id, where a name is not readable."""
    labels = {
        unit_id: unit_label(unit, longest=MAX_PAGE_LABEL) for unit_id, unit in enumerate(tree.units)
    }
    return {
        "binary": isinstance(tree, Tree),
        "rows": tree.rows(),
        "names": tree.units,
        "shares": [float(f"{share:.4g}") for share in tree.shares[tree.num_inner :]],
        "labels": {
            unit_id: label for unit_id, label in labels.items() if label != tree.units[unit_id]
        },
    }
