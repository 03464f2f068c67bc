# SPDX-License-Identifier: Apache-2.0
"""`tree.json`: one JSON object with format, kind, units, children, frequencies and options, checked when read.

Dimension key: V units, N inner nodes, E edges (children of all inner nodes together).
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from wenet_hs.errors import DataError
from wenet_hs.files import read_lines, write_atomic

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


@dataclass(frozen=True)
class ChildRows:
    """The field `children` of a file: node n has the children flat[offsets[n]:offsets[n+1]], two or more."""

    flat: NDArray[np.int64]
    """(E,) node numbers, row after row."""
    offsets: NDArray[np.int64]
    """(N+1,) where each row begins, and E."""

    def pairs(self) -> NDArray[np.int64]:
        """(N, 2) the rows of a binary tree. Raises ValueError, in words for a user, where a row is longer."""
        sizes = np.diff(self.offsets)
        if (sizes != 2).any():
            wide = int(np.argmax(sizes != 2))
            raise ValueError(
                f"children: inner node {wide} has {sizes[wide]} children, so this is an n-ary tree, for `head: class`; "
                "build a binary one with `wenet-hs tree build --kind huffman`"
            )
        return self.flat.reshape(-1, 2)


def write_fields(path: Path | str, fields: Mapping[str, Any]) -> None:
    """Write the file, one field a line, the whole of it or nothing. `fields` are those of `Tree` as JSON values."""
    record = {"format": FORMAT, **fields}
    lines = [f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False, allow_nan=False)}" for k, v in record.items()]
    write_atomic(path, "{" + ",\n ".join(lines) + "}\n")


def read_fields(path: Path | str) -> dict[str, Any]:
    """The fields of a tree by name, each of the right type; the tree itself checks that they make one.

    `kind` is a str, `units` a tuple, `children` a `ChildRows`, `frequencies` an array (V,), `options` a dict.
    Raises DataError, one line with path and fault, on anything that does not have this form.
    """
    text = "\n".join(read_lines(path))
    try:
        record = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON ({error.msg}); build the tree again") from error
    except RecursionError as error:
        raise DataError(f"{path}: nested too deeply to be a {FORMAT} file; build the tree again") from error
    except ValueError as error:  # a constant that is no JSON, a key twice, a number of thousands of digits
        raise DataError(f"{path}: not JSON ({error}); build the tree again") from error
    try:
        return _checked(record)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {_short(twice)} stands there twice")
    return record


def _check_options(options: dict[str, Any]) -> None:
    """Raise ValueError where they could not be written again: 1e999 is infinite, "\\ud800" is no text."""
    try:
        json.dumps(options, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise ValueError("options: a number that is not finite, or text that is none; build the tree again") from error


def _checked(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        found = record.get("format") if isinstance(record, dict) else record
        raise ValueError(f'format is {_short(found)}, expected "{FORMAT}"; make it with `wenet-hs tree build`')
    for name, kind in _FIELDS.items():
        if name not in record:
            raise ValueError(f"no field {name!r} in it; build the tree again")
        if not isinstance(record[name], kind):
            raise ValueError(f"{name} is {_short(record[name])}, expected {_NAMES[kind]}")
    unknown = sorted(set(record) - set(_FIELDS))
    if unknown:
        raise ValueError(f"unknown field {_short(unknown[0])}; a {FORMAT} file has {', '.join(_FIELDS)}")
    _check_options(record["options"])
    return {
        "kind": record["kind"],
        "units": tuple(record["units"]),
        "children": _children(record["children"]),
        "frequencies": _frequencies(record["frequencies"]),
        "options": record["options"],
    }


def _children(rows: list[Any]) -> ChildRows:
    # The whole file at once, at C speed; only a fault is looked for row by row.
    well_formed = set(map(type, rows)) <= {list} and min(map(len, rows), default=2) >= 2
    flat = list(chain.from_iterable(rows)) if well_formed else []
    if not well_formed or not set(map(type, flat)) <= {int} or (flat and not _fits_int64(flat)):
        _refuse_children(rows)
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)), out=offsets[1:])
    return ChildRows(np.array(flat, dtype=np.int64), offsets)


def _fits_int64(numbers: list[int]) -> bool:
    return min(numbers) in _INT64 and max(numbers) in _INT64


def _refuse_children(rows: list[Any]) -> NoReturn:
    node, row = next(
        (node, row)
        for node, row in enumerate(rows)
        if not (isinstance(row, list) and len(row) >= 2 and all(type(c) is int and c in _INT64 for c in row))
    )
    raise ValueError(f"children: inner node {node} is {_short(row)}, expected [left, right] as node numbers")


def _frequencies(values: list[Any]) -> NDArray[np.float64]:
    if not set(map(type, values)) <= {int, float}:
        unit_id, value = next((i, v) for i, v in enumerate(values) if type(v) not in (int, float))
        raise ValueError(f"frequencies: unit {unit_id} has {_short(value)}, expected a number")
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError as error:
        raise ValueError("frequencies: a number is too large; scale them down") from error


def _short(value: Any) -> str:
    """A value as JSON in a message, cut so that the message stays one line."""
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, (list, dict)) else type(value).__name__
    return text if len(text) <= 40 else text[:39] + "…"
