# SPDX-License-Identifier: Apache-2.0
"""The tree explorer: one self-contained HTML page to open branches and search units of a tree of thousands of units.

The page needs no network, and its content security policy forbids one. Its HTML, CSS and JavaScript are in `templates`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.plot import unit_label
from wenet_hs.tree.tree import Tree, UnitTree

MAX_UNITS = 20_000
"""The most units on a page: the most probable ones. Of a larger tree the others are only counted."""
LONGEST = 200
"""Characters of a name that are written; the page's style cuts it to the available width."""


def tree_page(tree: UnitTree, summary: str, table: Sequence[Sequence[str]] = (), *, max_units: int = MAX_UNITS) -> str:
    """The HTML of the page.

    Args:
        summary: figures of the tree in one line, parts separated by " | ".
        table: code lengths by language, a row of headings first; empty for no table.
        max_units: the number of units on the page, at least 1.
    """
    if max_units < 1:
        raise ValueError(f"max_units: must be at least 1, got {max_units}")
    folder = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
    environment = jinja2.Environment(loader=folder, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    page = environment.get_template("explorer.html").render(
        title=f"{tree.kind} tree of {tree.num_units:,} units",
        figures=summary.split(" | "),
        table=table,
        num_units=tree.num_units,
        max_units=max_units,
        data=page_data(tree, max_units),
    )
    return page + "\n"


def page_data(tree: UnitTree, max_units: int = MAX_UNITS) -> dict[str, Any]:
    """The data that the page's script draws: a tree with the same numbering, its leaves first the units, then stubs.

    Returns:
        binary; rows, the children of each inner node; names, shares and ids of the units; labels, by the number of a
        unit, where its name is not readable; stubs, (units, share) of what is left out below one node; places, by the
        number of a node, the child indexes of its children where stubs have moved them.
    """
    num_inner = tree.num_inner
    is_kept = _most_probable(tree, max_units)
    inner, leaves = np.flatnonzero(is_kept[:num_inner]), np.flatnonzero(is_kept[num_inner:])
    new_number = np.full(len(is_kept), -1, dtype=np.int64)
    new_number[inner], new_number[num_inner + leaves] = np.arange(len(inner)), len(inner) + np.arange(len(leaves))
    rows: list[list[int]] = []
    stubs: list[tuple[int, float]] = []
    places: dict[int, list[int]] = {}
    num_leaves = tree.num_leaves()
    for number, node in enumerate(inner.tolist()):
        children = tree.children_of(node)
        row = new_number[children].tolist()
        hidden = [child for child in children if not is_kept[child]]
        if len(hidden) > 1:  # several children become one stub at the end of the row; a single one keeps its index
            places[number] = [tree.child_index(child) for child in children if is_kept[child]]
            row = [child for child in row if child >= 0] + [-1]
        if hidden:
            row[row.index(-1)] = len(inner) + len(leaves) + len(stubs)
            stubs.append((int(num_leaves[hidden].sum()), _rounded(tree.shares[hidden].sum())))
        rows.append(row)
    names = [tree.units[unit] for unit in leaves.tolist()]
    labels = {
        number: label for number, name in enumerate(names) if (label := unit_label(name, longest=LONGEST)) != name
    }
    shares = [_rounded(share) for share in tree.shares[num_inner + leaves]]
    return {
        "binary": isinstance(tree, Tree), "rows": rows, "names": names, "shares": shares, "ids": leaves.tolist(),
        "labels": labels, "stubs": stubs, "places": places,
    }  # fmt: skip


def _most_probable(tree: UnitTree, max_units: int) -> NDArray[np.bool_]:
    """(I+V,) the most probable units, ties by id, and all nodes above them."""
    is_kept = np.zeros(tree.num_inner + tree.num_units, dtype=bool)
    climbing = tree.num_inner + np.argsort(-tree.shares[tree.num_inner :], kind="stable")[:max_units]
    while len(climbing):
        is_kept[climbing] = True
        above = np.unique(tree.parents[climbing])
        climbing = above[(above >= 0) & ~is_kept[above]]
    return is_kept


def _rounded(share: float) -> float:
    return float(f"{share:.4g}")
