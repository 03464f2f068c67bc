# SPDX-License-Identifier: Apache-2.0
"""The fields of a tree: their checks, and the file `tree.json`.

Dimension key: V units, I inner nodes, E = I+V-1 edges (children of all inner nodes together).
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from wenet_hs.errors import DataError

FORMAT = "wenet_hs.tree/1"


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
    for unit_id, unit in enumerate(units):
        if not isinstance(unit, str) or not unit:
            raise ValueError(f"units: unit {unit_id} is {repr(unit)[:60]}; expected a non-empty text")
    if len(set(units)) < len(units):
        twice = Counter(units).most_common(1)[0][0]
        first = units.index(twice)
        second = units.index(twice, first + 1)
        raise ValueError(f"units: {repr(twice)[:60]} is both unit {first} and unit {second}; names must differ")
    try:
        "".join(units).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError("units: a name has half of a surrogate pair, which is not text; write it as UTF-8") from error


def check_children(offsets: NDArray[np.int64], children: NDArray[np.int64], num_units: int) -> None:
    """Raise ValueError unless `offsets` (I+1,) and `children` (E,) are one tree, numbered breadth first."""
    if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or offsets[-1] != len(children):
        raise ValueError(f"offsets: expected the start of each inner node's row and, at the end, {len(children)}")
    sizes = np.diff(offsets)
    if (sizes < 2).any():
        node = int(np.argmax(sizes < 2))
        found, to_do = "no children", "name them, or leave the node out"
        if sizes[node] == 1:
            found, to_do = "one child", "put the child in its parent's list"
        raise ValueError(f"children: inner node {node} has {found}; a node needs two or more, {to_do}")
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
        raise ValueError(f"children: inner node {where} has child {found}; a child is 1…{num_edges}")
    uses = np.bincount(children, minlength=num_edges + 1)[1:]
    if (uses != 1).any():
        twice = int(np.argmax(uses)) + 1
        raise ValueError(f"children: node {twice} is a child {uses[twice - 1]} times; each must be one exactly once")
    is_inner = children < num_inner
    inner, expected = children[is_inner], np.arange(1, num_inner)
    if (inner != expected).any():
        wrong = int(np.argmax(inner != expected))
        found = f"found inner node {inner[wrong]} where breadth-first order has {expected[wrong]}"
        raise ValueError(f"children: {found}; number the inner nodes breadth first from the root 0, left before right")
    # Numbers are in order, so a child with a smaller number than its parent is part of a cycle.
    is_cyclic = parents[is_inner] >= inner
    if is_cyclic.any():
        raise ValueError(f"children: inner node {inner[np.argmax(is_cyclic)]} is not under the root (a cycle)")


# ---- tree.json


class TreeFile(BaseModel):
    """The content of a `tree.json`. Whether the fields form a tree is checked by the tree itself."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal["wenet_hs.tree/1"]
    kind: str
    units: list[str]
    children: list[list[Annotated[int, Field(ge=0, lt=2**31)]]]
    """The children of each inner node."""
    frequencies: list[FiniteFloat]
    options: dict[str, Any]

    @classmethod
    def parse(cls, text: str, path: Path | str) -> "TreeFile":
        """The content of the file `path`. Raises DataError, one line with path and fault, on any other text."""
        try:
            record = cls.model_validate_json(text)
            json.loads(text, object_pairs_hook=_check_keys)
            json.dumps(record.options, allow_nan=False)  # 1e999 is infinite, and could not be written again
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            where = ": ".join(map(str, (path, *fault["loc"])))
            found = "" if fault["type"] in ("missing", "json_invalid") else f", found {repr(fault['input'])[:40]}"
            to_do = "build the tree again, or see docs/heads.md for the format"
            raise DataError(where, f"{fault['msg']}{found}", to_do) from error
        except KeyError as error:
            raise DataError(path, f"the key {error} occurs twice", "keep one") from error
        except ValueError as error:
            raise DataError(f"{path}: options", "a number that is not finite", "build the tree again") from error
        return record


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    """Of a repeated key, a parser keeps the last value without a word."""
    name, count = Counter(name for name, _ in pairs).most_common(1)[0] if pairs else ("", 1)
    if count > 1:
        raise KeyError(name[:40])
