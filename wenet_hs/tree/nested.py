# SPDX-License-Identifier: Apache-2.0
"""A tree written by hand as nested lists of units, such as `[["golf", "piano"], "violin"]`."""

import json
from collections import Counter
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np

from wenet_hs.tree.errors import DataError, list_names
from wenet_hs.tree.text_file import read_utf8
from wenet_hs.tree.tree import NaryTree, Tree, TreeOptions

NESTED = "nested"
"""The kind of these trees. They have no counts: all frequencies are 0."""


def nested_tree(
    lists: Sequence[Any],
    units: Sequence[str],
    *,
    where: Path | str = "nested lists",
    options: TreeOptions = None,
) -> Tree | NaryTree:
    """The tree over `units` whose inner nodes are the lists; lists have two or more members.

    Args:
        lists: a list of units and of such lists.
        units: the V units in the order of their ids.
        where: the begin of the message of an error.
        options: what else `tree.json` records.
    Returns: A `Tree` if all lists have two members.
    Raises DataError, one line: a value is neither list nor unit, a list has fewer than two members
    or contains itself, or a unit is missing, unknown or repeated.
    """
    _refuse_cycle(lists, where)
    inner_nodes, leaves = _lists_and_leaves(lists, where)
    _check_leaves(leaves, units, where)
    number = {id(node): at for at, node in enumerate(inner_nodes)}
    leaf = {unit: len(inner_nodes) + unit_id for unit_id, unit in enumerate(units)}
    rows = []
    for node in inner_nodes:
        rows.append(
            [leaf[child] if isinstance(child, str) else number[id(child)] for child in node]
        )
    frequencies = np.zeros(len(units))
    if all(len(row) == 2 for row in rows):
        children = np.array(rows, dtype=np.int64)
        return Tree(NESTED, tuple(units), children, frequencies, dict(options or {}))
    return NaryTree.from_rows(rows, frequencies, units=units, kind=NESTED, options=options)


def read_nested_tree(path: Path, units: Sequence[str]) -> Tree | NaryTree:
    """`nested_tree` of a JSON file. Raises DataError, one line, also if it is not JSON."""
    try:
        lists = json.loads(read_utf8(path))
    except (ValueError, RecursionError) as error:
        to_do = 'write [["golf", "piano"], "violin"]'
        raise DataError(path, f"not JSON ({error})", to_do) from error
    return nested_tree(lists, units, where=path, options={"file": str(path)})


def _refuse_cycle(root: Any, where: Path | str) -> None:
    """Raise DataError if a list contains itself, as a member or deeper: its tree would not end."""
    inner_lists = dict[int, list[int]]()
    """The identity of each list → those of the lists in it."""
    waiting = [root] if isinstance(root, list) else []
    while waiting:
        node = waiting.pop()
        if id(node) in inner_lists:
            continue
        children = [child for child in node if isinstance(child, list)]
        inner_lists[id(node)] = [id(child) for child in children]
        waiting += children
    try:
        TopologicalSorter(inner_lists).prepare()
    except CycleError as error:
        raise DataError(where, "a list contains itself", "a tree ends in units") from error


def _lists_and_leaves(root: Any, where: Path | str) -> tuple[list[list[Any]], list[str]]:
    """The lists, breadth first, and the units in them."""
    lists, leaves = [root], []
    for node in lists:  # grows
        if not isinstance(node, list):
            fault = f"{_as_json(node)} is no list"
            raise DataError(where, fault, "write units in quotation marks")
        if len(node) < 2:
            num_members = "one member" if node else "no members"
            fault = f"the list {_as_json(node)} has {num_members}"
            to_do = "a list needs two or more; write a single unit without brackets"
            raise DataError(where, fault, to_do)
        leaves += [child for child in node if isinstance(child, str)]
        lists += [child for child in node if not isinstance(child, str)]
    return lists, leaves


def _as_json(value: Any) -> str:
    """At most 40 characters."""
    return json.dumps(value, ensure_ascii=False, default=str)[:40]


def _check_leaves(leaves: Sequence[str], units: Sequence[str], where: Path | str) -> None:
    counts = Counter(leaves)
    missing = [unit for unit in units if unit not in counts]
    unknown = sorted(counts.keys() - {*units})
    repeated = [unit for unit, count in counts.items() if count > 1]
    for fault, names, to_do in (
        ("not in the unit table", unknown, "remove them, or give the unit table that has them"),
        ("in it more than once", repeated, "keep one of each"),
        ("missing", missing, "add each once; <blank> and <unk> beside a rare unit, for example"),
    ):
        if names:
            raise DataError(where, f"units {fault}: {list_names(names)}", to_do)
