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
_TO_DO = "build the tree again, or see docs/heads.md for the format"


# ---- checks: each raises ValueError with one line that names the first fault


def check_frequencies(frequencies: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a copy as a float64 array (V,), V ≥ 1.

    Raise ValueError if a value is negative or not finite.
    """
    array = np.array(frequencies, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(
            f"frequencies: expected one number per unit, got an array of shape {array.shape}"
        )
    if not len(array):
        raise ValueError("frequencies: the list is empty; a tree needs at least one unit")
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(wrong):
        raise ValueError(
            f"frequencies: unit {wrong[0]} has {array[wrong[0]]}; each must be finite and not negative"
        )
    try:
        math.fsum(array)
    except OverflowError as error:
        raise ValueError("frequencies: their sum is not finite; scale them down") from error
    return array


def check_names(kind: str, units: tuple[str, ...], num_frequencies: int) -> None:
    """Raise ValueError unless the kind is printable and the units are distinct texts, one per
    frequency.
    """
    if not isinstance(kind, str) or not kind or not kind.isprintable():
        raise ValueError(
            f"kind: {str(kind)[:40]!r} is not the name of a kind; expected one such as 'huffman'"
        )
    if len(units) != num_frequencies:
        raise ValueError(
            f"units: {len(units)} names for {num_frequencies} frequencies; there must be one per unit"
        )
    for unit_id, unit in enumerate(units):
        if not isinstance(unit, str) or not unit:
            raise ValueError(
                f"units: unit {unit_id} is {repr(unit)[:60]}; expected a non-empty text"
            )
    if len(set(units)) < len(units):
        twice = Counter(units).most_common(1)[0][0]
        first = units.index(twice)
        second = units.index(twice, first + 1)
        raise ValueError(
            f"units: {repr(twice)[:60]} is both unit {first} and unit {second}; names must differ"
        )
    try:
        "".join(units).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            "units: a name has half of a surrogate pair, which is not text; write it as UTF-8"
        ) from error


def check_children(offsets: NDArray[np.int64], children: NDArray[np.int64], num_units: int) -> None:
    """Raise ValueError unless `offsets` (I+1,) and `children` (E,) are one tree, numbered breadth
    first.
    """
    if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or offsets[-1] != len(children):
        raise ValueError(
            f"offsets: expected the start of each inner node's row and, at the end, {len(children)}"
        )
    sizes = np.diff(offsets)
    if (sizes < 2).any():
        node = int(np.argmax(sizes < 2))
        found, to_do = "no children", "name them, or leave the node out"
        if sizes[node] == 1:
            found, to_do = "one child", "put the child in its parent's list"
        raise ValueError(
            f"children: inner node {node} has {found}; a node needs two or more, {to_do}"
        )
    num_inner = len(sizes)
    num_edges = num_inner + num_units - 1 if num_inner else 0
    if len(children) != num_edges or (num_units > 1) != (num_inner > 0):
        rule = "every node except the root must be a child, and a single unit needs no inner node"
        found = f"{num_inner} inner nodes with {len(children)} children for {num_units} units"
        raise ValueError(f"children: {found}; {rule}")
    parents = np.repeat(np.arange(num_inner), sizes)
    outside = np.flatnonzero((children < 1) | (children > num_edges))
    if len(outside):
        where, found = parents[outside[0]], children[outside[0]]
        raise ValueError(
            f"children: inner node {where} has child {found}; a child is 1…{num_edges}"
        )
    uses = np.bincount(children, minlength=num_edges + 1)[1:]
    if (uses != 1).any():
        twice = int(np.argmax(uses)) + 1
        raise ValueError(
            f"children: node {twice} is a child {uses[twice - 1]} times; each must be one exactly once"
        )
    is_inner = children < num_inner
    inner, expected = children[is_inner], np.arange(1, num_inner)
    if (inner != expected).any():
        wrong = int(np.argmax(inner != expected))
        found = f"found inner node {inner[wrong]} where breadth-first order has {expected[wrong]}"
        raise ValueError(
            f"children: {found}; number the inner nodes breadth first from the root 0, left before right"
        )
    # Numbers are in order, so a child with a smaller number than its parent is part of a cycle.
    is_cyclic = parents[is_inner] >= inner
    if is_cyclic.any():
        raise ValueError(
            f"children: inner node {inner[np.argmax(is_cyclic)]} is not under the root (a cycle)"
        )


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
        if fields.get("format", FORMAT) != FORMAT:
            raise _field_error(path, "format", f"expected {FORMAT!r}", fields["format"])
        _check_field_names(fields, path)
        if not isinstance(fields["kind"], str):
            raise _field_error(path, "kind", "expected a text", fields["kind"])
        if not isinstance(fields["options"], dict):
            raise _field_error(path, "options", "expected an object", fields["options"])
        _check_writable(fields["options"], path)
        return cls(
            kind=fields["kind"],
            units=_list_of(fields, "units", _is_text, "a text", path),
            children=_list_of(
                fields, "children", _is_row_of_children, "a list of numbers from 0 to 2^31-1", path
            ),
            frequencies=_list_of(fields, "frequencies", _is_finite_number, "a finite number", path),
            options=fields["options"],
        )


def _parse_object(text: str, path: Path | str) -> dict[str, Any]:
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

    Raises KeyError for a repeated key, of which json keeps the last value.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise KeyError(name[:40])
    return fields


def _check_field_names(fields: dict[str, Any], path: Path | str) -> None:
    for name in FIELDS:
        if name not in fields:
            raise DataError(f"{path}: {name}", "this field is missing", _TO_DO)
    for name in fields:
        if name not in FIELDS:
            raise DataError(
                f"{path}: {name[:40]}",
                f"not a field of a tree, which has {', '.join(FIELDS)}",
                _TO_DO,
            )


def _check_writable(options: dict[str, Any], path: Path | str) -> None:
    """Raise DataError for values that json reads but that could not be written again."""
    try:
        text = json.dumps(options, ensure_ascii=False, allow_nan=False)
    except ValueError as error:  # 1e999 is read as infinity
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

    Raises DataError unless it is one, and each of its values is valid.
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
    return isinstance(value, list) and all(
        type(child) is int and 0 <= child < 2**31 for child in value
    )


def _is_finite_number(value: Any) -> bool:
    if type(value) not in (int, float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the range of float64
        return False


def _field_error(path: Path | str, where: str, expected: str, value: Any) -> DataError:
    return DataError(f"{path}: {where}", f"{expected}, found {repr(value)[:40]}", _TO_DO)
