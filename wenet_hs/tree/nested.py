# SPDX-License-Identifier: Apache-2.0
"""A tree written by hand as nested lists of units, such as `[["golf", "piano"], "violin"]` in a JSON file."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wenet_hs.tree.errors import DataError, list_names
from wenet_hs.tree.text_file import read_utf8
from wenet_hs.tree.tree import NaryTree, Tree

NESTED = "nested"
"""The kind of these trees. They have no counts: all frequencies are 0."""


def read_nested_tree(path: Path, units: Sequence[str]) -> Tree | NaryTree:
    """The tree over `units` whose inner nodes are the lists of the file; lists have two or more members.

    A `Tree` if all lists have two. Raises DataError, one line: not such a file; a unit is missing, unknown or repeated.
    """
    try:
        root = json.loads(read_utf8(path))
    except (ValueError, RecursionError) as error:
        raise DataError(path, f"not JSON ({error})", 'write [["golf", "piano"], "violin"]') from error
    lists, leaves = _lists_and_leaves(root, path)
    _check_leaves(leaves, units, path)
    number = {id(node): at for at, node in enumerate(lists)}
    leaf = {unit: len(lists) + unit_id for unit_id, unit in enumerate(units)}
    rows = [[leaf[child] if isinstance(child, str) else number[id(child)] for child in node] for node in lists]
    frequencies, options = np.zeros(len(units)), {"file": str(path)}
    if all(len(row) == 2 for row in rows):
        return Tree(NESTED, tuple(units), np.array(rows, dtype=np.int64), frequencies, options)
    return NaryTree.from_rows(rows, frequencies, units=units, kind=NESTED, options=options)


def _lists_and_leaves(root: Any, path: Path) -> tuple[list[list[Any]], list[str]]:
    """The lists, breadth first, and the units in them."""
    lists, leaves = [root], []
    for node in lists:  # grows
        if not isinstance(node, list):
            fault = f"{json.dumps(node, ensure_ascii=False)[:40]} is no list"
            raise DataError(path, fault, "write units in quotation marks")
        if len(node) < 2:
            found = f"the list {json.dumps(node, ensure_ascii=False)[:40]} has {'one member' if node else 'no members'}"
            raise DataError(path, found, "a list needs two or more; write a single unit without brackets")
        leaves += [child for child in node if isinstance(child, str)]
        lists += [child for child in node if not isinstance(child, str)]
    return lists, leaves


def _check_leaves(leaves: Sequence[str], units: Sequence[str], path: Path) -> None:
    counts = Counter(leaves)
    missing = [unit for unit in units if unit not in counts]
    unknown = sorted(counts.keys() - {*units})
    repeated = [unit for unit, count in counts.items() if count > 1]
    for found, names, to_do in (
        ("not in --units", unknown, "remove them, or give the unit table that has them"),
        ("in it more than once", repeated, "keep one of each"),
        ("missing", missing, "add each once; <blank> and <unk> beside a rare unit, for example"),
    ):
        if names:
            raise DataError(path, f"units {found}: {list_names(names)}", to_do)
