# SPDX-License-Identifier: Apache-2.0
"""`tree.json`: one JSON object with format, kind, units, children, frequencies and options, checked when read."""

import json
from collections.abc import Mapping
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


def write_fields(path: Path | str, fields: Mapping[str, Any]) -> None:
    """Write the file, one field a line, the whole of it or nothing. `fields` are those of `Tree` as JSON values."""
    record = {"format": FORMAT, **fields}
    lines = [f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False, allow_nan=False)}" for k, v in record.items()]
    write_atomic(path, "{" + ",\n ".join(lines) + "}\n")


def read_fields(path: Path | str) -> dict[str, Any]:
    """The fields of `Tree` by name, each of the right type; `Tree` itself checks that they make a tree.

    Raises DataError, one line with path and fault, on anything that does not have this form.
    """
    text = "\n".join(read_lines(path))
    try:
        record = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON ({error.msg}); build the tree again") from error
    except RecursionError as error:
        raise DataError(f"{path}: nested too deeply to be a {FORMAT} file; build the tree again") from error
    except ValueError as error:  # a constant that is no JSON, or a number of thousands of digits
        raise DataError(f"{path}: not JSON ({error}); build the tree again") from error
    try:
        return _checked(record)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


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
        raise ValueError(f"unknown field {unknown[0]!r}; a {FORMAT} file has {', '.join(_FIELDS)}")
    return {
        "kind": record["kind"],
        "units": tuple(record["units"]),
        "children": _children(record["children"]),
        "frequencies": _frequencies(record["frequencies"]),
        "options": record["options"],
    }


def _children(rows: list[Any]) -> NDArray[np.int64]:
    for node, pair in enumerate(rows):
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(c) is int and c in _INT64 for c in pair)):
            raise ValueError(f"children: inner node {node} is {_short(pair)}, expected [left, right] as node numbers")
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


def _frequencies(values: list[Any]) -> NDArray[np.float64]:
    for unit_id, value in enumerate(values):
        if type(value) not in (int, float):
            raise ValueError(f"frequencies: unit {unit_id} has {_short(value)}, expected a number")
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError as error:
        raise ValueError("frequencies: a number is too large; scale them down") from error


def _short(value: Any) -> str:
    """A value as JSON in a message, cut so that the message stays one line."""
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, (list, dict)) else type(value).__name__
    return text if len(text) <= 40 else text[:39] + "…"
