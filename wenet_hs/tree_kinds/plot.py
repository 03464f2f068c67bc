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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from wenet_hs.text.units import show_unit
from wenet_hs.tree.tree import Tree
from wenet_hs.tree.unit_tree import UnitTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PAGE_LABEL = 200
"""Characters of a name that are written; the page's style cuts it to the available width."""
MAX_LABEL = 24
"""Characters of a name in a drawing."""
MAX_CODE = 40
"""Characters of a code in a drawing."""

# Lengths in pixels:
ROW_HEIGHT = 18
LEVEL_WIDTH = 26
LEAST_LEVEL_WIDTH = 6
TREE_WIDTH = 620
"""The levels of a tree that would be wider are drawn closer together."""
MARGIN = 12
BASELINE = 4.5
"""From the middle of a row down to the line that its text stands on."""
CHARACTER_WIDTH = 8.5
"""About the width of a character of a label or a code."""
FONT_SIZE = 13
LINE_GAP = 4
"""Between the deepest level and the end of the dotted lines."""
LABEL_GAP = 6
SHARE_WIDTH = 70
CODE_GAP = 14
LEAST_THICKNESS = 0.75
MOST_THICKNESS = 4.0

INK = "#1c1e21"
QUIET = "#5c6370"
FAINT = "#9aa2af"
PAPER = "#ffffff"
PIXELS_PER_INCH = 100
POINT = 72 / PIXELS_PER_INCH
"""A pixel in points, the unit of Matplotlib's font sizes and line widths."""


class TreeRow(NamedTuple):
    """The end of a drawn branch: a unit, a closed subtree, or children that are not drawn."""

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
    """The drawing as one `<svg>` element, in the colour of the text around it (`currentColor`)."""
    layout = layout_tree(tree, max_leaves=max_leaves)
    return _render_template(
        "tree.svg", layout=layout, width=f"{layout.width:.0f}", height=f"{layout.height:.0f}"
    )


def _render_template(template: str, **values: Any) -> str:
    """The text of a file in the folder `templates`, in which Jinja has put the values.

    Values are escaped for HTML. A name without a value is an error.
    """
    import jinja2  # not needed by most commands that import this module

    loader = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return environment.get_template(template).render(values) + "\n"


def tree_png(tree: UnitTree, *, max_leaves: int = 60) -> bytes:
    """The drawing as a PNG file, dark on white, at twice the resolution; no display is needed.

    A very large drawing has a lower resolution. Fonts for all scripts are taken from this machine.
    A character without a font is written as U+….
    """
    # Matplotlib takes half a second to import.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layout = layout_tree(tree, max_leaves=max_leaves)
    width_in_inches = round(layout.width) / PIXELS_PER_INCH
    height_in_inches = round(layout.height) / PIXELS_PER_INCH
    figure = Figure(figsize=(width_in_inches, height_in_inches), facecolor=PAPER)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, layout.width), ylim=(layout.height, 0))  # y from the top
    axes.axis("off")
    _draw_lines(axes, layout)
    _draw_texts(axes, layout)
    max_side = 2**16 - 1  # Matplotlib's limit of a picture's side
    scale = min(2, max_side / max(layout.width, layout.height))  # PNG pixels per pixel here
    content = io.BytesIO()
    figure.savefig(
        content, format="png", dpi=PIXELS_PER_INCH * scale, metadata={"Title": layout.title}
    )
    return content.getvalue()


def _draw_lines(axes: "Axes", layout: TreeLayout) -> None:
    """Draw the edges of the tree, and a dotted line from each branch's end to its label."""
    from matplotlib.collections import LineCollection

    edges = []
    for edge in layout.edges:
        edges.append([(edge.x, edge.y_parent), (edge.x, edge.y), (edge.x_end, edge.y)])
    widths = [edge.thickness * POINT for edge in layout.edges]
    axes.add_collection(
        LineCollection(edges, colors=INK, linewidths=widths, capstyle="butt", joinstyle="miter")
    )
    dots = (0, (1, 4))  # no offset; a dot of one line width, a gap of four
    dotted = [[(row.x, row.y), (layout.x_end, row.y)] for row in layout.rows]
    axes.add_collection(
        LineCollection(dotted, colors=FAINT, linewidths=0.8 * POINT, linestyles=dots)
    )


def _draw_texts(axes: "Axes", layout: TreeLayout) -> None:
    """Draw label, percentage and code of each row; the label of a unit is dark and upright."""
    families, missing = _choose_fonts(row.label for row in layout.rows)
    style: dict[str, Any] = {
        "fontsize": FONT_SIZE * POINT,
        "parse_math": False,
        "verticalalignment": "baseline",
    }
    for row in layout.rows:
        y = row.y + BASELINE
        label = _replace_characters(row.label, missing)
        slant = "normal" if row.is_unit else "italic"
        color = INK if row.is_unit else QUIET
        axes.text(layout.x_label, y, label, family=families, style=slant, color=color, **style)
        axes.text(layout.x_share, y, row.percent, family=families, color=QUIET, ha="right", **style)
        axes.text(layout.x_code, y, row.code, family="DejaVu Sans Mono", color=QUIET, **style)


def _replace_characters(text: str, missing: frozenset[str]) -> str:
    """The text with the number of each missing character in its place, such as U+0301."""
    return "".join(f"U+{ord(char):04X}" if char in missing else char for char in text)


def _choose_fonts(labels: Iterable[str]) -> tuple[list[str], frozenset[str]]:
    """The font families that have the characters of the labels, and characters that none has.

    DejaVu Sans and Noto Sans come first, then the others by name. Fonts are opened only until all
    characters are found. If no font has any of them, the families are the first two, as far as they
    are installed.
    """
    from matplotlib.font_manager import fontManager
    from matplotlib.ft2font import FT2Font

    path_of_family = {}
    for font in fontManager.ttflist:
        is_upright = font.style == "normal"
        is_regular = font.weight in (400, "normal", "regular")
        has_only_boxes = font.name.startswith("Last Resort")
        if is_upright and is_regular and not has_only_boxes:
            path_of_family[font.name] = font.fname
    preferred: list[str] = [name for name in ("DejaVu Sans", "Noto Sans") if name in path_of_family]
    others = sorted(path_of_family.keys() - preferred)
    families = []
    missing = set(map(ord, "".join(labels)))  # code points that no family so far has
    for name in [*preferred, *others]:
        if not missing:
            break
        supported = missing & set(FT2Font(path_of_family[name]).get_charmap())
        if supported:
            families.append(name)
            missing -= supported
    return families or preferred, frozenset(map(chr, missing))


# ---- the layout


@dataclass(frozen=True)
class _OpenedTree:
    """The part of a tree that is drawn.

    Its nodes are nodes of the tree, and negative numbers (`_rest_of`), which stand for the children
    of a node that are not drawn.
    """

    children: dict[int, list[int]]
    """The children of each opened node from top to bottom; all other nodes are rows."""
    hidden: dict[int, list[int]]
    """The nodes that each negative number stands for."""

    def branches_of(self, node: int) -> list[int]:
        """The nodes of the tree that a drawn node stands for."""
        return self.hidden.get(node, [node])

    def levels(self) -> dict[int, int]:
        """The level of each drawn node, in the order from top to bottom; the root has level 0."""
        levels = {}
        not_visited = [(0, 0)]  # node and level; the last is visited next
        while not_visited:
            node, level = not_visited.pop()
            levels[node] = level
            for child in reversed(self.children.get(node, [])):
                not_visited.append((child, level + 1))
        return levels


def _rest_of(node: int) -> int:
    """The number for the children of a node that are not drawn: -1 for node 0, -2 for node 1, …."""
    return -1 - node


def layout_tree(tree: UnitTree, *, max_leaves: int) -> TreeLayout:
    """The layout of a drawing of at most `max_leaves` ≥ 1 rows.

    A node with too many children shows the most probable ones; the others are one more row. Raises
    ValueError if `max_leaves` is below 1.
    """
    if max_leaves < 1:
        raise ValueError(f"max_leaves: must be at least 1, got {max_leaves}")
    opened = _open_branches(tree, max_leaves)
    levels = opened.levels()
    row_nodes = [node for node in levels if node not in opened.children]
    deepest = max(levels.values())
    level_width = _level_width(deepest)
    x = {node: MARGIN + level * level_width for node, level in levels.items()}
    y = {node: MARGIN + (index + 0.5) * ROW_HEIGHT for index, node in enumerate(row_nodes)}
    shares = {}
    for node in levels:
        shares[node] = float(tree.shares[opened.branches_of(node)].sum())
    num_leaves = tree.num_leaves()
    rows = []
    for node in row_nodes:
        row = TreeRow(
            label=_row_label(tree, node, opened.branches_of(node), num_leaves),
            percent=format_share(shares[node]),
            code="" if node in opened.hidden else _cut(tree.code(node), MAX_CODE),
            is_unit=_is_unit(tree, node),
            x=x[node],
            y=y[node],
        )
        rows.append(row)
    edges = []
    for node in sorted(opened.children, reverse=True):  # children come before their parents
        children = opened.children[node]
        y[node] = (y[children[0]] + y[children[-1]]) / 2  # an opened node has no row of its own
        for child in children:
            edge = TreeEdge(
                x=x[node],
                y_parent=y[node],
                y=y[child],
                x_end=x[child],
                thickness=_thickness(shares[child]),
            )
            edges.append(edge)
    x_end = MARGIN + deepest * level_width + LINE_GAP
    x_label = x_end + LABEL_GAP
    label_width = max(cell_len(row.label) for row in rows) * CHARACTER_WIDTH
    x_share = x_label + label_width + SHARE_WIDTH
    x_code = x_share + CODE_GAP
    code_width = max(len(row.code) for row in rows) * CHARACTER_WIDTH
    return TreeLayout(
        title=f"{tree.kind} tree of {tree.num_units:,} units, depth {tree.depth}",
        rows=rows,
        edges=edges,
        x_end=x_end,
        x_label=x_label,
        x_share=x_share,
        x_code=x_code,
        width=x_code + code_width + MARGIN,
        height=len(rows) * ROW_HEIGHT + 2 * MARGIN,
    )


def _level_width(num_levels: int) -> float:
    """The width of one level of a drawing: `LEVEL_WIDTH`, or less so that all fit `TREE_WIDTH`.

    It is never less than `LEAST_LEVEL_WIDTH`, so that a very deep tree is wider.
    """
    if num_levels * LEVEL_WIDTH <= TREE_WIDTH:
        return LEVEL_WIDTH
    return max(LEAST_LEVEL_WIDTH, TREE_WIDTH / num_levels)


def _is_unit(tree: UnitTree, node: int) -> bool:
    """Whether a drawn node is a leaf; a number of `_rest_of`, which is negative, is none."""
    return node >= tree.num_inner


def _row_label(
    tree: UnitTree, node: int, branches: Sequence[int], num_leaves: NDArray[np.int64]
) -> str:
    """The label of a row: its unit, or how many units are in the branches that it stands for.

    `num_leaves` are those of each node of the tree.
    """
    if _is_unit(tree, node):
        return unit_label(tree.units[node - tree.num_inner])
    return _branches_label(len(branches), int(num_leaves[branches].sum()))


def _thickness(share: float) -> float:
    """How thick the line of a branch is; with the square root, rare branches still differ."""
    thickness: float = LEAST_THICKNESS + (MOST_THICKNESS - LEAST_THICKNESS) * share**0.5
    return thickness


def _branches_label(num_branches: int, num_units: int) -> str:
    """The label of a row for more than one unit: "… 1,234 units", or "… 1,234 units in 5 branches".

    Branches are not counted if there is only one, or if each is a unit.
    """
    label = f"… {num_units:,} units"
    return f"{label} in {num_branches:,} branches" if num_units > num_branches > 1 else label


def _open_branches(tree: UnitTree, max_leaves: int) -> _OpenedTree:
    """Open the most probable branches of a tree until it has `max_leaves` rows, or all its units.

    The first branch is the root, and the most probable closed branch is opened next. Of a node with
    more children than there is room for, the most probable are drawn, and one more row stands for
    the others. A node stays closed if there is no room for two rows.
    """
    # A wide node of a large tree gets a part of the rows, so that some of its children are opened
    # too.
    is_whole = tree.num_units <= max_leaves
    max_children_of_node = max_leaves if is_whole else max(2, max_leaves // 3)
    opened = _OpenedTree(children={}, hidden={})
    # A heap: the most probable first, of equal ones the lowest number.
    closed = [(-float(tree.shares[0]), 0)] if tree.num_inner else []
    num_rows = 1
    while closed:
        _, node = heapq.heappop(closed)
        children = tree.children_of(node)
        num_free_rows = max_leaves - num_rows + 1  # with the row of the node itself
        max_children = min(max_children_of_node, num_free_rows)
        are_too_many = len(children) > max_children
        if are_too_many and max_children < 2:
            continue  # it stays a row
        num_drawn = max_children - 1 if are_too_many else len(children)
        by_share = sorted(children, key=lambda child: -tree.shares[child])  # ties stay in order
        most_probable = set(by_share[:num_drawn])
        drawn = [child for child in children if child in most_probable]
        for child in drawn:
            if child < tree.num_inner:
                heapq.heappush(closed, (-float(tree.shares[child]), child))
        if are_too_many:
            rest = _rest_of(node)
            opened.hidden[rest] = [child for child in children if child not in most_probable]
            drawn.append(rest)
        opened.children[node] = drawn
        num_rows += len(drawn) - 1
    return opened


def unit_label(unit: str, *, longest: int = MAX_LABEL) -> str:
    """A unit as readable text (`show_unit`); cut if it is longer than `longest` characters."""
    return _cut(show_unit(unit, in_full=True), longest)


def _cut(text: str, longest: int) -> str:
    """The text, or its begin and "…" if it is longer than `longest` characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def format_share(share: float) -> str:
    """A share of 0…1 in percent, as "21.8 %"; below one percent with two digits, as "0.012 %"."""
    percent = 100 * float(share)
    return f"{percent:.2g} %" if 0 < percent < 1 else f"{percent:.1f} %"


# ---- the explorer


def tree_page(tree: UnitTree, summary: str, table: Sequence[Sequence[str]] = ()) -> str:
    """The HTML of the page on which a reader opens branches and searches units.

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
    """The data that the page's script draws, as JSON values.

    `rows` are the children of each inner node, `names` and `shares` belong to the units. `labels`
    has the readable text of a unit by its id, only where it differs from the name.
    """
    labels = {}
    for unit_id, unit in enumerate(tree.units):
        label = unit_label(unit, longest=MAX_PAGE_LABEL)
        if label != unit:
            labels[unit_id] = label
    shares = tree.shares[tree.num_inner :]
    return {
        "binary": isinstance(tree, Tree),
        "rows": tree.rows(),
        "names": tree.units,
        "shares": [float(f"{share:.4g}") for share in shares],  # four digits are enough to draw
        "labels": labels,
    }
