# SPDX-License-Identifier: Apache-2.0
"""The fields of a tree: their checks, and the file `tree.json`.

Dimension key: V units, I inner nodes, E = I+V-1 edges (children of all inner nodes together).
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.errors import DataError, one_line

FORMAT = "wenet_hs.tree/1"
FIELDS = ("format", "kind", "units", "children", "frequencies", "options")
"""The fields of a `tree.json`."""
_MAX_CHILD = 2**31 - 1
"""The largest number of a node that `tree.json` may have."""
_TO_DO = "build the tree again, or see docs/heads.md for the format"


# ---- checks: each raises ValueError with one line that names the first fault


def check_frequencies(frequencies: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a copy as a float64 array (V,), V ≥ 1.

    Raise ValueError if it is not one list of numbers, a value is negative or not finite, or their
    sum is too large for a float64.
    """
    array = np.array(frequencies, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(
            f"frequencies: expected one number per unit, got an array of shape {array.shape}"
        )
    if not len(array):
        raise ValueError("frequencies: the list is empty; a tree needs at least one unit")
    is_valid = np.isfinite(array) & (array >= 0)
    if not is_valid.all():
        unit_id = int(np.argmin(is_valid))
        fault = f"unit {unit_id} has {array[unit_id]}"
        raise ValueError(f"frequencies: {fault}; each must be finite and not negative")
    try:
        math.fsum(array)
    except OverflowError as error:
        raise ValueError("frequencies: their sum is not finite; scale them down") from error
    return array


def check_names(kind: str, units: tuple[str, ...], num_frequencies: int) -> None:
    """Raise ValueError unless kind and units are texts that a `tree.json` can hold.

    The kind is printable. The units are distinct and not empty, one per frequency.
    """
    if not isinstance(kind, str) or not kind or not kind.isprintable():
        raise ValueError(
            f"kind: {str(kind)[:40]!r} is not the name of a kind; expected one such as 'huffman'"
        )
    if len(units) != num_frequencies:
        fault = f"{len(units)} names for {num_frequencies} frequencies"
        raise ValueError(f"units: {fault}; there must be one per unit")
    for unit_id, unit in enumerate(units):
        if not isinstance(unit, str) or not unit:
            raise ValueError(
                f"units: unit {unit_id} is {repr(unit)[:60]}; expected a non-empty text"
            )
    if len(set(units)) < len(units):
        repeated, _ = Counter(units).most_common(1)[0]
        first = units.index(repeated)
        second = units.index(repeated, first + 1)
        fault = f"{repr(repeated)[:60]} is both unit {first} and unit {second}"
        raise ValueError(f"units: {fault}; names must differ")
    try:
        "".join(units).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            "units: a name has half of a surrogate pair, which is not text; write it as UTF-8"
        ) from error


def check_children(offsets: NDArray[np.int64], children: NDArray[np.int64], num_units: int) -> None:
    """Raise ValueError unless the children are one tree over the units, numbered breadth first.

    Args:
        offsets: (I+1,) where the row of each inner node starts in `children`, and E at the end.
        children: (E,) the children of all inner nodes. Inner nodes are 0…I-1, and the leaf of unit
            i is I+i.
        num_units: V.
    """
    _check_offsets(offsets, num_edges=len(children))
    num_children = np.diff(offsets)
    _check_row_sizes(num_children)
    num_inner = len(num_children)
    _check_number_of_edges(len(children), num_inner, num_units)
    parents = np.repeat(np.arange(num_inner), num_children)
    _check_each_node_once(children, parents)
    _check_breadth_first(children, parents, num_inner)


def _check_offsets(offsets: NDArray[np.int64], num_edges: int) -> None:
    """Raise ValueError unless the offsets are a list that starts with 0 and ends with E."""
    is_list = offsets.ndim == 1 and len(offsets) > 0
    if not is_list or offsets[0] != 0 or offsets[-1] != num_edges:
        raise ValueError(
            f"offsets: expected the start of each inner node's row and, at the end, {num_edges}"
        )


def _check_row_sizes(num_children: NDArray[np.int64]) -> None:
    """Raise ValueError for the first inner node with fewer than two children."""
    is_too_small = num_children < 2
    if not is_too_small.any():
        return
    node = int(np.argmax(is_too_small))
    if num_children[node] == 1:
        fault = "one child"
        to_do = "put the child in its parent's list"
    else:
        fault = "no children"
        to_do = "name them, or leave the node out"
    raise ValueError(f"children: inner node {node} has {fault}; a node needs two or more, {to_do}")


def _check_number_of_edges(num_edges: int, num_inner: int, num_units: int) -> None:
    """Raise ValueError unless there is an edge to every node except the root.

    A single unit is a tree without inner nodes and edges; two or more units need inner nodes.
    """
    num_expected = num_inner + num_units - 1 if num_inner else 0
    needs_inner_nodes = num_units > 1
    has_inner_nodes = num_inner > 0
    if num_edges != num_expected or needs_inner_nodes != has_inner_nodes:
        fault = f"{num_inner} inner nodes with {num_edges} children for {num_units} units"
        rule = "every node except the root must be a child, and a single unit needs no inner node"
        raise ValueError(f"children: {fault}; {rule}")


def _check_each_node_once(children: NDArray[np.int64], parents: NDArray[np.int64]) -> None:
    """Raise ValueError unless the children (E,) are the nodes 1…E in any order.

    `parents` (E,) are the nodes whose children they are.
    """
    num_edges = len(children)
    is_outside = (children < 1) | (children > num_edges)
    if is_outside.any():
        edge = int(np.argmax(is_outside))
        fault = f"inner node {parents[edge]} has child {children[edge]}"
        raise ValueError(f"children: {fault}; a child is 1…{num_edges}")
    num_uses = np.bincount(children, minlength=num_edges + 1)
    if (num_uses[1:] != 1).any():
        node = int(np.argmax(num_uses))  # one node is missing, so another is there twice
        fault = f"node {node} is a child {num_uses[node]} times"
        raise ValueError(f"children: {fault}; each must be one exactly once")


def _check_breadth_first(
    children: NDArray[np.int64], parents: NDArray[np.int64], num_inner: int
) -> None:
    """Raise ValueError unless the inner nodes among the children are in ascending order.

    Each child is known to be there once. `parents` (E,) are the nodes whose children they are.
    """
    is_inner = children < num_inner
    inner_nodes = children[is_inner]
    expected = np.arange(1, num_inner)
    is_wrong = inner_nodes != expected
    if is_wrong.any():
        index = int(np.argmax(is_wrong))
        fault = (
            f"found inner node {inner_nodes[index]} where breadth-first order has {expected[index]}"
        )
        to_do = "number the inner nodes breadth first from the root 0, left before right"
        raise ValueError(f"children: {fault}; {to_do}")
    # Numbers are in order, so a child with a smaller number than its parent is part of a cycle.
    is_cyclic = parents[is_inner] >= inner_nodes
    if is_cyclic.any():
        node = inner_nodes[np.argmax(is_cyclic)]
        raise ValueError(f"children: inner node {node} is not under the root (a cycle)")


# ---- tree.json


@dataclass(frozen=True)
class TreeFile:
    """The content of a `tree.json`.

    Whether the fields form a tree is checked by the tree itself.
    """

    kind: str
    units: list[str]
    children: list[list[int]]
    """The children of each inner node."""
    frequencies: list[float]
    options: dict[str, Any]

    @classmethod
    def parse(cls, text: str, path: Path | str) -> "TreeFile":
        """The content of the file `path`.

        Raises DataError, one line with path and fault, on any other text.
        """
        fields = _parse_object(text, path)
        if fields.get("format", FORMAT) != FORMAT:  # first: another version has other fields
            raise _field_error(path, "format", f"expected {FORMAT!r}", fields["format"])
        _check_field_names(fields, path)
        if not isinstance(fields["kind"], str):
            raise _field_error(path, "kind", "expected a text", fields["kind"])
        if not isinstance(fields["options"], dict):
            raise _field_error(path, "options", "expected an object", fields["options"])
        _check_writable(fields["options"], path)
        row = "a list of numbers from 0 to 2^31-1"
        return cls(
            kind=fields["kind"],
            units=_list_of(fields, "units", _is_text, "a text", path),
            children=_list_of(fields, "children", _is_row_of_children, row, path),
            frequencies=_list_of(fields, "frequencies", _is_finite_number, "a finite number", path),
            options=fields["options"],
        )


def _parse_object(text: str, path: Path | str) -> dict[str, Any]:
    """The JSON object in the text of the file `path`.

    Raises DataError for another JSON value, a repeated key, or text that is not JSON.
    """
    try:
        fields = json.loads(text, object_pairs_hook=_object_of_pairs)
    except KeyError as error:
        raise DataError(path, f"the key {error} occurs twice", "keep one") from error
    except (ValueError, RecursionError) as error:
        raise DataError(path, f"not JSON ({one_line(error)})", _TO_DO) from error
    if not isinstance(fields, dict):
        raise DataError(
            path, f"expected an object with the fields of a tree, found {repr(fields)[:40]}", _TO_DO
        )
    return fields


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object with these keys and values.

    Raises KeyError with a repeated key. Without this check, json would keep its last value.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated, _ = counts.most_common(1)[0]
        raise KeyError(repeated[:40])
    return fields


def _check_field_names(fields: dict[str, Any], path: Path | str) -> None:
    """Raise DataError for the first missing field, else for the first that a tree does not have."""
    for name in FIELDS:
        if name not in fields:
            raise DataError(f"{path}: {name}", "this field is missing", _TO_DO)
    for name in fields:
        if name not in FIELDS:
            fault = f"not a field of a tree, which has {', '.join(FIELDS)}"
            raise DataError(f"{path}: {name[:40]}", fault, _TO_DO)


def _check_writable(options: dict[str, Any], path: Path | str) -> None:
    """Raise DataError for values that json reads but that could not be written again.

    These are numbers that are not finite (1e999 is read as infinity), and halves of a surrogate
    pair.
    """
    try:
        text = json.dumps(options, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise DataError(
            f"{path}: options", "a number that is not finite", "build the tree again"
        ) from error
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{path}: options", "half of a surrogate pair, which is not text", _TO_DO
        ) from error


def _list_of(
    fields: dict[str, Any],
    name: str,
    is_valid: Callable[[Any], bool],
    expected: str,
    path: Path | str,
) -> list[Any]:
    """The list in the field `name`.

    Raises DataError if it is not a list, or for the first value that is not valid; it says what was
    `expected` there, such as "a text".
    """
    values = fields[name]
    if not isinstance(values, list):
        raise _field_error(path, name, "expected a list", values)
    for index, value in enumerate(values):
        if not is_valid(value):
            raise _field_error(path, f"{name}: {index}", f"expected {expected}", value)
    return values


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_row_of_children(value: Any) -> bool:
    """Whether a value is a list of numbers that may be children of a node."""
    return isinstance(value, list) and all(map(_is_child, value))


def _is_child(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_CHILD  # True is an int, but no child


def _is_finite_number(value: Any) -> bool:
    """Whether a value is a number other than NaN and infinity, and in the range of float64."""
    if type(value) not in (int, float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the range of float64
        return False


def _field_error(path: Path | str, where: str, expected: str, value: Any) -> DataError:
    """The error of a field with an unexpected value, of which 40 characters are quoted."""
    return DataError(f"{path}: {where}", f"{expected}, found {repr(value)[:40]}", _TO_DO)
