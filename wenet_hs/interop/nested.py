# SPDX-License-Identifier: Apache-2.0
"""The text of a tree in which every node stands inside its parent, read and written without recursion.

`{"freq": 3.0, "tokenid": null, "idx": 0, "left": {…}, "right": {…}}`, a leaf with a tokenid and null for children. It
is JSON, but json's own reader stops at a depth of about a thousand, which a tree of rare units reaches.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TOKEN = re.compile(
    r'\s*(?:"(?P<key>\w+)"\s*:\s*(?:(?P<inner>\{)|(?P<value>[-+.\w]+))|(?P<open>\{)|(?P<close>\}))\s*,?'
)
_SPACE = re.compile(r"\s*")
_CHILDREN = ("left", "right")
_KEYS = frozenset(("freq", "tokenid", "idx", *_CHILDREN))


@dataclass
class NestedTree:
    """What the text says, unchecked but for its form: a node's child is a tokenid, or ~idx where it is an inner one."""

    root: int = 0
    children: dict[int, tuple[int, int]] = field(default_factory=dict)
    """idx → children."""
    frequencies: dict[int, float] = field(default_factory=dict)
    """tokenid → freq."""
    leaf_numbers: dict[int, int] = field(default_factory=dict)
    """tokenid → idx."""

    def add(self, fields: dict[str, Any]) -> int:
        """Take a node whose children are taken; its own number as a child. Raises ValueError."""
        missing = sorted(_KEYS - fields.keys())
        if missing:
            raise ValueError(f'a node has no "{missing[0]}"')
        number = _whole("idx", fields["idx"])
        left, right = fields["left"], fields["right"]
        if (left is None) != (right is None):
            raise ValueError(f"node {number} has one child; it must have two or none")
        if left is None:
            unit_id = _whole("tokenid", fields["tokenid"])
            if unit_id in self.frequencies:
                raise ValueError(f"tokenid {unit_id} is two leaves")
            self.frequencies[unit_id] = _number("freq", fields["freq"])
            self.leaf_numbers[unit_id] = number
            return unit_id
        if fields["tokenid"] is not None:
            raise ValueError(f"node {number} has children and tokenid {fields['tokenid']}; it must be null there")
        if number in self.children:
            raise ValueError(f"idx {number} is two inner nodes")
        self.children[number] = (left, right)
        return ~number


def parse_nested(text: str) -> NestedTree:
    """The tree of a text. Raises ValueError naming the first fault and, where it is one of form, the character."""
    tree, position = NestedTree(), 0
    open_nodes: list[dict[str, Any]] = []
    waiting: list[str] = []  # for each open node but the root the key of its parent that it is the value of
    while True:
        token = _TOKEN.match(text, position)
        if token is None or (token["key"] and not open_nodes) or (token["open"] and open_nodes):
            raise ValueError(_fault_of_form(text, position))
        position = token.end()
        if token["value"]:
            _set(open_nodes[-1], token["key"], _scalar(token["key"], token["value"]))
        elif token["close"]:
            if not open_nodes:
                raise ValueError(_fault_of_form(text, 0))
            number = tree.add(open_nodes.pop())
            if not open_nodes:
                break
            _set(open_nodes[-1], waiting.pop(), number)
        else:
            if token["inner"]:
                waiting.append(token["key"])
            open_nodes.append({})
    if _SPACE.fullmatch(text, position) is None:
        raise ValueError(_fault_of_form(text, position))
    tree.root = number
    return tree


def nested_text(children: NDArray[np.int64], weights: NDArray[np.float64], numbers: NDArray[np.int64]) -> str:
    """The text of a tree: children (N, 2) and weights (2N+1,) in the numbering of `Tree`, numbers (N,) as `idx`."""
    num_inner, pairs, freq = len(children), children.tolist(), weights.tolist()
    numbers_N = numbers.tolist()
    parts: list[str] = []
    todo: list[int | str] = [0]
    while todo:
        node = todo.pop()
        if isinstance(node, str):
            parts.append(node)
        elif node < num_inner:
            parts.append(f'{{"freq": {freq[node]!r}, "tokenid": null, "idx": {numbers_N[node]}, "left": ')
            left, right = pairs[node]
            todo += ["}", right, ', "right": ', left]
        else:
            parts.append(f'{{"freq": {freq[node]!r}, "tokenid": {node - num_inner}, "idx": {node}, ')
            parts.append('"left": null, "right": null}')
    return "".join(parts) + "\n"


def _set(fields: dict[str, Any], key: str, value: Any) -> None:
    if key in fields:
        raise ValueError(f'a node has "{key}" twice')
    fields[key] = value


def _scalar(key: str, text: str) -> str | None:
    if text == "null":
        return None
    if key in _CHILDREN:
        raise ValueError(f'"{key}" is {text}, expected a node or null')
    return text


def _whole(key: str, text: str | None) -> int:
    if text is None or not re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        raise ValueError(f'"{key}" is {text or "null"}, expected a whole number')
    return int(text)


def _number(key: str, text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError as error:
        raise ValueError(f'"{key}" is {text or "null"}, expected a number') from error


def _fault_of_form(text: str, position: int) -> str:
    rest = text[position : position + 20].split("\n")[0].strip()
    found = f"{rest!r} at character {position}" if text[position:].strip() else "the end of the file"
    return f"not a tree in JSON: found {found}"
