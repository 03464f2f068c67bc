# SPDX-License-Identifier: Apache-2.0
"""Where everything of a drawing stands, the same for SVG and PNG: rows from top to bottom, lines from left to right."""

import heapq
import unicodedata
from dataclasses import dataclass

from wenet_hs.tree.branches import Branches
from wenet_hs.tree.nary import NaryTree
from wenet_hs.tree.tree import Tree

ROW_HEIGHT = 18
LEVEL_WIDTH = 26
LEAST_LEVEL_WIDTH = 6
TREE_WIDTH = 620
"""Levels of a tree that would be wider stand closer together."""
MARGIN = 12
CHARACTER_WIDTH = 8.5
MAX_LABEL = 24
MAX_CODE = 40
_SHAPELESS = ("Cc", "Cf", "Cn", "Co", "Zl", "Zp", "Zs")


@dataclass(frozen=True)
class Row:
    """One end of a drawn branch: a unit, a subtree that is not opened, or those children that are not drawn."""

    label: str
    share: float
    code: str
    is_unit: bool
    y: float
    """The middle of the row, from the top."""
    x: float
    """Where its branch ends, from the left."""


@dataclass(frozen=True)
class Edge:
    """A line from (x, y_parent) down or up to y, and on to x_end."""

    x: float
    y_parent: float
    y: float
    x_end: float
    thickness: float


@dataclass(frozen=True)
class Layout:
    """A drawing in pixels, origin at the top left."""

    title: str
    rows: list[Row]
    edges: list[Edge]
    x_end: float
    """Where the dotted lines to the labels end."""
    x_label: float
    x_share: float
    """The right end of the percentages."""
    x_code: float
    width: float
    height: float


@dataclass(frozen=True)
class _Stub:
    """The children of an opened node that are not drawn."""

    node: int
    hidden: tuple[int, ...]


def layout_tree(tree: Tree | NaryTree, *, max_leaves: int) -> Layout:
    """A tree of at most `max_leaves` units is drawn whole. Of a larger one the most probable branches are opened.

    Then there are `max_leaves` rows at most; a branch that stays closed is a row "… 1,234 units". A node with more
    children than there is room for shows the most probable ones, the others are one more such row.
    """
    if max_leaves < 1:
        raise ValueError(f"max_leaves: must be at least 1, got {max_leaves}")
    branches = Branches.of(tree)
    shown = _shown_children(branches, max_leaves)
    ends = _ends(shown)
    deepest = max(level for _, level in ends)
    step = min(LEVEL_WIDTH, max(LEAST_LEVEL_WIDTH, TREE_WIDTH / max(1, deepest)))
    rows = [_row(branches, end, MARGIN + level * step, index) for index, (end, level) in enumerate(ends)]
    x_end = MARGIN + deepest * step + 4
    x_label = x_end + 6
    x_share = x_label + max(label_width(row.label) for row in rows) * CHARACTER_WIDTH + 70
    x_code = x_share + 14
    return Layout(
        title=branches.title(),
        rows=rows,
        edges=_edges(branches, shown, ends, rows, step),
        x_end=x_end,
        x_label=x_label,
        x_share=x_share,
        x_code=x_code,
        width=x_code + max(len(row.code) for row in rows) * CHARACTER_WIDTH + MARGIN,
        height=len(rows) * ROW_HEIGHT + 2 * MARGIN,
    )


def _shown_children(branches: Branches, max_leaves: int) -> dict[int, list[int | _Stub]]:
    """The nodes to open, each with what is drawn below it: the most probable closed branch is opened next."""
    whole = len(branches.units) <= max_leaves
    most = max_leaves if whole else max(2, max_leaves // 3)  # children of one node, so that its own are seen as well
    closed = [(-float(branches.shares[0]), 0)] if branches.num_inner else []
    shown: dict[int, list[int | _Stub]] = {}
    num_rows = 1
    while closed:
        _, node = heapq.heappop(closed)
        children = branches.children_of(node)
        room = min(most, max_leaves - num_rows + 1)
        if len(children) > room and (branches.binary or room < 2):
            continue
        kept = _most_probable(branches, children, len(children) if len(children) <= room else room - 1)
        hidden = tuple(sorted(set(children) - set(kept)))
        shown[node] = [*kept, *([_Stub(node, hidden)] if hidden else [])]
        num_rows += len(shown[node]) - 1
        for child in kept:
            if child < branches.num_inner:
                heapq.heappush(closed, (-float(branches.shares[child]), child))
    return shown


def _most_probable(branches: Branches, children: list[int], number: int) -> list[int]:
    """So many of the children in their own order; of equally probable ones the first."""
    best = sorted(range(len(children)), key=lambda place: (-float(branches.shares[children[place]]), place))[:number]
    return [children[place] for place in sorted(best)]


def _ends(shown: dict[int, list[int | _Stub]]) -> list[tuple[int | _Stub, int]]:
    """The drawn ends with their levels, from top to bottom; children from left to right are from top to bottom."""
    ends: list[tuple[int | _Stub, int]] = []
    waiting: list[tuple[int | _Stub, int]] = [(0, 0)]
    while waiting:
        end, level = waiting.pop()
        if isinstance(end, int) and end in shown:
            waiting += [(child, level + 1) for child in reversed(shown[end])]
        else:
            ends.append((end, level))
    return ends


def _row(branches: Branches, end: int | _Stub, x: float, index: int) -> Row:
    y = MARGIN + (index + 0.5) * ROW_HEIGHT
    if isinstance(end, _Stub):
        hidden = list(end.hidden)
        num_units, share = int(branches.leaves[hidden].sum()), float(branches.shares[hidden].sum())
        label = f"… {num_units:,} units" + (f" in {len(hidden):,} branches" if num_units > len(hidden) else "")
        return Row(label, share, "", is_unit=False, y=y, x=x)
    code = branches.code(end)
    code = code if len(code) <= MAX_CODE else code[: MAX_CODE - 1] + "…"
    is_unit = end >= branches.num_inner
    label = unit_label(branches.units[end - branches.num_inner]) if is_unit else f"… {branches.leaves[end]:,} units"
    return Row(label, float(branches.shares[end]), code, is_unit=is_unit, y=y, x=x)


def _edges(
    branches: Branches,
    shown: dict[int, list[int | _Stub]],
    ends: list[tuple[int | _Stub, int]],
    rows: list[Row],
    step: float,
) -> list[Edge]:
    """A line from each drawn node to its parent, as thick as it is probable."""
    middle = {end: row.y for (end, _), row in zip(ends, rows, strict=True)}
    left = {end: row.x for (end, _), row in zip(ends, rows, strict=True)}
    share = {end: row.share for (end, _), row in zip(ends, rows, strict=True)}
    edges = []
    for node in sorted(shown, reverse=True):  # breadth-first numbers: children come before their parents
        children = shown[node]
        middle[node] = (middle[children[0]] + middle[children[-1]]) / 2
        left[node] = left[children[0]] - step
        share[node] = float(branches.shares[node])
        edges += [
            Edge(left[node], middle[node], middle[child], left[node] + step, 0.75 + 3.25 * share[child] ** 0.5)
            for child in children
        ]
    return edges


def unit_label(unit: str, *, longest: int = MAX_LABEL) -> str:
    """A unit as it can be read: a space as ▁, a combining mark on ◌, what has no shape as U+…, cut when it is long."""
    unit = unit.replace(" ", "▁")
    if unicodedata.category(unit[0]).startswith("M"):
        unit = "◌" + unit
    shown = "".join(
        f"U+{ord(character):04X}" if unicodedata.category(character) in _SHAPELESS else character for character in unit
    )
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def label_width(label: str) -> int:
    """Columns that a label takes: East Asian wide characters two, combining marks none."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in label
    )


def percent(share: float) -> str:
    """A share as "21.8 %", a small one with two digits."""
    in_percent = 100 * float(share)
    return f"{in_percent:.2g} %" if 0 < in_percent < 1 else f"{in_percent:.1f} %"
