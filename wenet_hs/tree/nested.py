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
"""The kind of these trees. They are built without counts, so all frequencies are 0."""


def read_nested_tree(path: Path, units: Sequence[str]) -> Tree | NaryTree:
    """The `nested_tree` of the lists in a JSON file, whose name the tree records in its options.

    Raises DataError with one line if the file is not JSON, or its lists are not one tree over
    `units`.
    """
    try:
        lists = json.loads(read_utf8(path))
    except (ValueError, RecursionError) as error:
        to_do = 'write [["golf", "piano"], "violin"]'
        raise DataError(path, f"not JSON ({error})", to_do) from error
    return nested_tree(lists, units, where=path, options={"file": str(path)})


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
        where: what the message of an error begins with.
        options: what else `tree.json` records.
    Returns: A `Tree` if all lists have two members.
    Raises DataError, one line: a value is neither list nor unit, a list has fewer than two members
    or contains itself, or a unit is missing, unknown or repeated.
    """
    _check_no_cycle(lists, where)
    inner_nodes = _lists_breadth_first(lists, where)
    _check_leaves(_leaves_of(inner_nodes), units, where)
    # The root is node 0; the leaf of unit i has the number (number of lists) + i.
    number_of_list = {id(node): number for number, node in enumerate(inner_nodes)}
    number_of_unit = {unit: number for number, unit in enumerate(units, start=len(inner_nodes))}
    rows: list[list[int]] = []
    for node in inner_nodes:
        row = []
        for child in node:
            is_unit = isinstance(child, str)
            row.append(number_of_unit[child] if is_unit else number_of_list[id(child)])
        rows.append(row)
    frequencies = np.zeros(len(units))
    if all(len(row) == 2 for row in rows):
        children = np.array(rows, dtype=np.int64)
        return Tree(NESTED, tuple(units), children, frequencies, dict(options or {}))
    return NaryTree.from_rows(rows, frequencies, units=units, kind=NESTED, options=options)


def _check_no_cycle(root: Any, where: Path | str) -> None:
    """Raise DataError if a list contains itself, as a member or deeper: its tree would not end.

    JSON cannot contain such a list, but Python can.
    """
    inner_lists: dict[int, list[int]] = {}
    """The identity of each list → the identities of the lists in it."""
    not_visited = [root] if isinstance(root, list) else []
    while not_visited:
        node = not_visited.pop()
        if id(node) in inner_lists:
            continue
        children = [child for child in node if isinstance(child, list)]
        inner_lists[id(node)] = [id(child) for child in children]
        not_visited += children
    try:
        TopologicalSorter(inner_lists).prepare()
    except CycleError as error:
        raise DataError(where, "a list contains itself", "a tree ends in units") from error


def _lists_breadth_first(root: Any, where: Path | str) -> list[list[Any]]:
    """All lists of a nested list: the root, then the lists in it, then the lists in these, ….

    Raises DataError if a value is neither a list nor a text, or a list has fewer than two members.
    """
    lists = [root]
    for node in lists:  # the loop also visits the values that it appends
        _check_list(node, where)
        lists += [child for child in node if not isinstance(child, str)]
    return lists


def _check_list(node: Any, where: Path | str) -> None:
    """Raise DataError if a value is not a list, or is a list of fewer than two members."""
    if not isinstance(node, list):
        raise DataError(where, f"{_as_json(node)} is no list", "write units in quotation marks")
    if len(node) < 2:
        num_members = "one member" if node else "no members"
        fault = f"the list {_as_json(node)} has {num_members}"
        to_do = "a list needs two or more; write a single unit without brackets"
        raise DataError(where, fault, to_do)


def _as_json(value: Any) -> str:
    """The value as JSON for a message, cut to 40 characters.

    Python values that JSON does not have are written as their text.
    """
    return json.dumps(value, ensure_ascii=False, default=str)[:40]


def _leaves_of(lists: Sequence[list[Any]]) -> list[str]:
    """The units that are members of the lists, with repetitions."""
    leaves: list[str] = []
    for node in lists:
        leaves += [child for child in node if isinstance(child, str)]
    return leaves


def _check_leaves(leaves: Sequence[str], units: Sequence[str], where: Path | str) -> None:
    """Raise DataError unless the leaves are the units, each once, in any order.

    Leaves that are no units are named first, then repeated ones, then units that are missing.
    """
    counts = Counter(leaves)
    unknown = sorted(counts.keys() - {*units})
    repeated = [unit for unit, count in counts.items() if count > 1]
    missing = [unit for unit in units if unit not in counts]
    for fault, names, to_do in (
        ("not in the unit table", unknown, "remove them, or give the unit table that has them"),
        ("in it more than once", repeated, "keep one of each"),
        ("missing", missing, "add each once; <blank> and <unk> beside a rare unit, for example"),
    ):
        if names:
            raise DataError(where, f"units {fault}: {list_names(names)}", to_do)
