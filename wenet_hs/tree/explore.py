# SPDX-License-Identifier: Apache-2.0
"""One HTML page to explore a tree of thousands of units: branches to open and fold, a search, probabilities, codes.

The page is self-contained: no network, and its policy forbids one. All names are data (JSON) or escaped text.
"""

import json
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.branches import Branches
from wenet_hs.tree.explore_script import SCRIPT
from wenet_hs.tree.explore_style import STYLE
from wenet_hs.tree.languages import HEADINGS, LanguageCost
from wenet_hs.tree.layout import unit_label
from wenet_hs.tree.nary import NaryTree
from wenet_hs.tree.tree import Tree

MAX_UNITS = 20_000
"""A page holds so many units, the most probable ones; of a larger tree the others are counted where they hang."""
LONGEST = 200
"""Characters of a name that is written; the page's style cuts it to the width that there is."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def tree_page(
    tree: Tree | NaryTree, summary: str, costs: Sequence[LanguageCost] = (), *, max_units: int = MAX_UNITS
) -> str:
    """The HTML of the page.

    Args:
        summary: figures of the tree in one line, parts between " | ".
        costs: the rows of a table by language; none, no table.
        max_units: how many units the page holds, at least 1.
    """
    if max_units < 1:
        raise ValueError(f"max_units: must be at least 1, got {max_units}")
    branches = Branches.of(tree)
    title = escape(f"{branches.kind} tree of {len(branches.units):,} units")
    figures = "".join(f"<li>{escape(part)}</li>" for part in summary.split(" | "))
    tables = _languages(costs) + _folded(branches, max_units)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<header><h1>{title}</h1>\n<ul class="figures">{figures}</ul>\n{tables}{_CONTROLS}</header>\n{_TREE}\n'
        f'<script type="application/json" id="data">{_json(page_data(branches, max_units))}</script>\n'
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


_CONTROLS = """<div class="controls" role="search">
<div class="find"><input id="find" type="search" placeholder="Find a unit ( / )" aria-label="Find a unit"
 autocomplete="off" autocapitalize="off" spellcheck="false" role="combobox" aria-expanded="false" aria-controls="found">
<ul id="found" role="listbox" aria-label="Units found" hidden></ul></div>
<button id="more" type="button">Open more</button><button id="fold" type="button">Fold</button>
<span id="said" role="status"></span></div>"""
_TREE = """<noscript><p>This page needs JavaScript to draw its tree.</p></noscript>
<main id="tree" role="tree" aria-label="Tree"></main>
<footer id="detail" aria-live="polite">↑ ↓ to go, → to open, ← to close, / to search</footer>"""


def page_data(branches: Branches, max_units: int = MAX_UNITS) -> dict[str, Any]:
    """What the page's script draws: a tree with the same numbering, its leaves first the units, then the stubs.

    Returns:
        binary; rows, the children of each inner node; names, shares and ids of the units; labels, by the number of a
        unit, where its name as it is cannot be read; stubs, (units, share) of what is left out below one node; places,
        by the number of a node, of its children where stubs have moved them.
    """
    num_inner = branches.num_inner
    kept = _kept(branches, max_units)
    inner, leaves = np.flatnonzero(kept[:num_inner]), np.flatnonzero(kept[num_inner:])
    new_number = np.full(len(kept), -1, dtype=np.int64)
    new_number[inner], new_number[num_inner + leaves] = np.arange(len(inner)), len(inner) + np.arange(len(leaves))
    rows: list[list[int]] = []
    stubs: list[tuple[int, float]] = []
    places: dict[int, list[int]] = {}
    for number, node in enumerate(inner.tolist()):
        row, hidden = _row(branches, node, new_number)
        if hidden:
            row[row.index(-1)] = len(inner) + len(leaves) + len(stubs)
            stubs.append((int(branches.leaves[hidden].sum()), _rounded(branches.shares[hidden].sum())))
        if len(hidden) > 1:
            places[number] = branches.places[[c for c in branches.children_of(node) if kept[c]]].tolist()
        rows.append(row)
    names = [branches.units[unit] for unit in leaves.tolist()]
    labels = {
        number: label for number, name in enumerate(names) if (label := unit_label(name, longest=LONGEST)) != name
    }
    shares = [_rounded(share) for share in branches.shares[num_inner + leaves]]
    return {
        "binary": branches.binary, "rows": rows, "names": names, "shares": shares, "ids": leaves.tolist(),
        "labels": labels, "stubs": stubs, "places": places,
    }  # fmt: skip


def _kept(branches: Branches, max_units: int) -> NDArray[np.bool_]:
    """(I+V,) the most probable units, ties by id, and all nodes above them."""
    num_inner = branches.num_inner
    kept = np.zeros(num_inner + len(branches.units), dtype=bool)
    climbing = num_inner + np.argsort(-branches.shares[num_inner:], kind="stable")[:max_units]
    while len(climbing):
        kept[climbing] = True
        above = np.unique(branches.parents[climbing])
        climbing = above[(above >= 0) & ~kept[above]]
    return kept


def _row(branches: Branches, node: int, new_number: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """The children of a node by their new numbers, -1 for the stub, and the children that the stub stands for.

    A single stub stays in its place; several are one, at the end.
    """
    children = branches.children_of(node)
    row = new_number[children].tolist()
    hidden = [child for child, number in zip(children, row, strict=True) if number < 0]
    if len(hidden) > 1:
        row = [number for number in row if number >= 0] + [-1]
    return row, hidden


def _rounded(share: float) -> float:
    return float(f"{share:.4g}")


def _json(data: dict[str, Any]) -> str:
    """JSON that can end no script element and is one line for any reader."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _languages(costs: Sequence[LanguageCost]) -> str:
    if not costs:
        return ""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in HEADINGS)
    rows = ""
    for cost in costs:
        first, *numbers = cost.cells()
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in numbers)
        rows += f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
    return (
        "<details><summary>Code length by language, bits a unit</summary>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>\n'
    )


def _folded(branches: Branches, max_units: int) -> str:
    num_units = len(branches.units)
    if num_units <= max_units:
        return ""
    return (
        f'<p class="quiet">The page holds the {max_units:,} most probable of {num_units:,} units. The others are '
        "counted where they hang, and cannot be searched.</p>\n"
    )
