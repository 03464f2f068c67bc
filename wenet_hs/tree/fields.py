# SPDX-License-Identifier: Apache-2.0
"""The fields of a tree: their checks, and their text in `tree.json`.

Dimension key: V units, I inner nodes, E = I+V-1 edges (children of all inner nodes together).
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from wenet_hs.errors import DataError

FORMAT = "wenet_hs.tree/1"
_FIELDS: dict[str, type] = {
    "format": str,
    "kind": str,
    "units": list,
    "children": list,
    "frequencies": list,
    "options": dict,
}
_NAMES: dict[type, str] = {str: "text", list: "a list", dict: "an object"}
_INT64 = range(-(2**63), 2**63)


# ---- checks: each raises ValueError with one line that names the first fault


def check_frequencies(frequencies: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a copy as a float64 array (V,), V ≥ 1. Raise ValueError if a value is negative or not finite."""
    array = np.array(frequencies, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"frequencies: expected one number per unit, got an array of shape {array.shape}")
    if not len(array):
        raise ValueError("frequencies: the list is empty; a tree needs at least one unit")
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(wrong):
        raise ValueError(f"frequencies: unit {wrong[0]} has {array[wrong[0]]}; each must be finite and not negative")
    try:
        math.fsum(array)
    except OverflowError as error:
        raise ValueError("frequencies: their sum is not finite; scale them down") from error
    return array


def check_names(kind: str, units: tuple[str, ...], num_frequencies: int) -> None:
    """Raise ValueError unless the kind is printable and the units are distinct texts, one per frequency."""
    if not isinstance(kind, str) or not kind or not kind.isprintable():
        raise ValueError(f"kind: {str(kind)[:40]!r} is not the name of a kind; expected one such as 'huffman'")
    if len(units) != num_frequencies:
        raise ValueError(f"units: {len(units)} names for {num_frequencies} frequencies; there must be one per unit")
    if not set(map(type, units)) <= {str} or not all(units) or len(set(units)) < len(units):
        _refuse_units(units)
    try:
        "".join(units).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError("units: a name has half of a surrogate pair, which is not text; write it as UTF-8") from error


def _refuse_units(units: tuple[str, ...]) -> None:
    first_id: dict[str, int] = {}
    for unit_id, unit in enumerate(units):
        if not isinstance(unit, str) or not unit:
            raise ValueError(f"units: unit {unit_id} is {repr(unit)[:60]}; expected a non-empty text")
        if first_id.setdefault(unit, unit_id) != unit_id:
            raise ValueError(
                f"units: {repr(unit)[:60]} is both unit {first_id[unit]} and unit {unit_id}; names must differ"
            )


def _check_num_children(num_children: NDArray[np.int64]) -> None:
    few = np.flatnonzero(num_children < 2)
    if len(few):
        found, to_do = "no children", "name them, or leave the node out"
        if num_children[few[0]] == 1:
            found, to_do = "one child", "put the child in its parent's list"
        raise ValueError(f"children: inner node {few[0]} has {found}; a node needs two or more, {to_do}")


def check_children(offsets: NDArray[np.int64], children: NDArray[np.int64], num_units: int) -> None:
    """Raise ValueError unless `offsets` (I+1,) and `children` (E,) are one tree, numbered breadth first."""
    if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or offsets[-1] != len(children):
        raise ValueError(f"offsets: expected the start of each inner node's row and, at the end, {len(children)}")
    _check_num_children(np.diff(offsets))
    num_inner = len(offsets) - 1
    num_edges = num_inner + num_units - 1 if num_inner else 0
    if len(children) != num_edges or (num_units > 1) != (num_inner > 0):
        raise ValueError(
            f"children: {num_inner} inner nodes with {len(children)} children for {num_units} units; "
            "every node except the root must be a child, and a single unit needs no inner node"
        )
    parents = np.repeat(np.arange(num_inner), np.diff(offsets))
    outside = np.flatnonzero((children < 1) | (children > num_edges))
    if len(outside):
        where, found = parents[outside[0]], children[outside[0]]
        raise ValueError(f"children: inner node {where} has child {found}; a child is 1…{num_edges}")
    uses = np.bincount(children, minlength=num_edges + 1)[1:]
    if (uses != 1).any():
        twice = int(np.argmax(uses)) + 1
        raise ValueError(f"children: node {twice} is a child {uses[twice - 1]} times; each must be one exactly once")
    edges = np.flatnonzero(children < num_inner)
    inner = children[edges]
    wrong = np.flatnonzero(inner != np.arange(1, num_inner))
    if len(wrong):
        raise ValueError(
            f"children: found inner node {inner[wrong[0]]} where breadth-first order has {wrong[0] + 1}; "
            "number the inner nodes breadth first from the root 0, left before right"
        )
    # Numbers are in order, so a child with a smaller number than its parent is part of a cycle.
    cyclic = np.flatnonzero(parents[edges] >= inner)
    if len(cyclic):
        raise ValueError(f"children: inner node {inner[cyclic[0]]} is not under the root (a cycle)")


# ---- tree.json


def format_fields(fields: Mapping[str, Any]) -> str:
    """The text of `tree.json`, one field per line. `fields` are JSON values."""
    record = {"format": FORMAT, **fields}
    lines = [f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False, allow_nan=False)}" for k, v in record.items()]
    return "{" + ",\n ".join(lines) + "}\n"


def parse_fields(text: str, path: Path | str) -> dict[str, Any]:
    """The fields of a `tree.json` under the names of `NaryTree`'s fields, each of the right type.

    The tree itself checks that they form a tree. Raises DataError, one line with path and fault, on any other text.
    """
    try:
        record = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON ({error.msg}); build the tree again") from error
    except RecursionError as error:
        raise DataError(f"{path}: nested too deeply to be a {FORMAT} file; build the tree again") from error
    except ValueError as error:  # a constant that is not JSON, a duplicate key, a number of thousands of digits
        raise DataError(f"{path}: not JSON ({error}); build the tree again") from error
    try:
        _check_form(record)
        offsets, children = _flat_children(record["children"])
        return {
            "kind": record["kind"],
            "units": tuple(record["units"]),
            "offsets": offsets,
            "children": children,
            "frequencies": _numbers(record["frequencies"]),
            "options": record["options"],
        }
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {_short(twice)} occurs twice")
    return record


def _check_form(record: Any) -> None:
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        found = record.get("format") if isinstance(record, dict) else record
        raise ValueError(f'format is {_short(found)}, expected "{FORMAT}"; make it with `wenet-hs tree build`')
    for name, kind in _FIELDS.items():
        if name not in record:
            raise ValueError(f"the field {name!r} is missing; build the tree again")
        if not isinstance(record[name], kind):
            raise ValueError(f"{name} is {_short(record[name])}, expected {_NAMES[kind]}")
    unknown = sorted(set(record) - set(_FIELDS))
    if unknown:
        raise ValueError(f"unknown field {_short(unknown[0])}; a {FORMAT} file has {', '.join(_FIELDS)}")
    try:  # 1e999 is infinite and "\ud800" is not text: both could not be written again
        json.dumps(record["options"], ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise ValueError(
            "options: a number that is not finite, or a string that is not text; build the tree again"
        ) from error


def _flat_children(rows: list[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offsets (I+1,) and children (E,). The whole list is checked at C speed; rows are visited only for a fault."""
    are_lists = set(map(type, rows)) <= {list}
    flat = list(chain.from_iterable(rows)) if are_lists else []
    are_numbers = set(map(type, flat)) <= {int}
    if not (are_lists and are_numbers) or (flat and not (min(flat) in _INT64 and max(flat) in _INT64)):
        for node, row in enumerate(rows):
            for found in row if isinstance(row, list) else [row]:
                if not isinstance(row, list) or type(found) is not int or found not in _INT64:
                    raise ValueError(
                        f"children: inner node {node} has {_short(found)}, expected a list of numbers such as [1, 2]"
                    )
    num_children = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    _check_num_children(num_children)
    return np.concatenate([[0], np.cumsum(num_children)]), np.array(flat, dtype=np.int64)


def _numbers(values: list[Any]) -> NDArray[np.float64]:
    if not set(map(type, values)) <= {int, float}:
        unit_id, value = next((i, v) for i, v in enumerate(values) if type(v) not in (int, float))
        raise ValueError(f"frequencies: unit {unit_id} has {_short(value)}, expected a number")
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError as error:
        raise ValueError("frequencies: a number is too large; scale them down") from error


def _short(value: Any) -> str:
    """A value as JSON for a message, at most 40 characters."""
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, (list, dict)) else type(value).__name__
    return text if len(text) <= 40 else text[:39] + "…"
