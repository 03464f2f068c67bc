# SPDX-License-Identifier: Apache-2.0
"""YAML text → nodes that know their line. Only what a settings file needs, by the scalar rules of YAML 1.2.

`no`, `on` and `yes` are text, `1e-3` is a number, `010` is ten. Duplicate keys, tags, several documents and aliases
that explode are faults. No object is ever built from a tag.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from wenet_hs.errors import ConfigError

Scalar = str | int | float | bool | None

MAX_DEPTH = 20
"""Sections inside sections; the schema has three."""
MAX_VALUES = 10_000
"""Values in one file, those that aliases repeat included."""

_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,400}|[0-9]{1,400}(\.[0-9]{0,400})?)([eE][-+]?[0-9]{1,4})?")
_CONSTANTS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a setting stands: a file and a line, or an override."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        """`file:line`, or the override as the user wrote it."""
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the file, a list or a section of them. In a section `place` is that of the key."""

    value: "Scalar | list[Node] | dict[str, Node]"
    place: Place

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong, as one line."""

    place: Place
    text: str

    def __str__(self) -> str:
        """`place: text`, always one line."""
        return one_line(f"{self.place}: {self.text}")


def one_line(text: str) -> str:
    """The text with line breaks and other control characters as escapes."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def resolve_scalar(text: str) -> Scalar:
    """What an unquoted scalar means in YAML 1.2's core schema, without its octal and hexadecimal numbers."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def read_yaml(path: Path | str) -> tuple[Node, list[Fault]]:
    """The file's root section, and the faults that do not hinder reading on (duplicate keys, tags).

    Raises ConfigError if it is missing, not UTF-8, not YAML, empty, or not a section.
    """
    path = Path(path)
    try:
        content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); check the path of the config") from error
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8; is this a YAML file?") from error
    root, faults = parse_yaml(text, Place(str(path), 1))
    if root.value is None:
        raise ConfigError(f"{path}:1: empty; a config has lines of `key: value`")
    if not isinstance(root.value, dict):
        raise ConfigError(f"{root.place}: a config has lines of `key: value`, here is {describe(root.plain())}")
    return root, faults


def parse_yaml(text: str, place: Place) -> tuple[Node, list[Fault]]:
    """Parse one document that begins at `place`; without a line there, every node has that place.

    Raises ConfigError on a syntax error.
    """
    parser = _Parser(place)
    try:
        return parser.document(text), parser.faults
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = (error.problem or error.context or "syntax error").replace("\n", " ")
        raise ConfigError(f"{parser.at(mark)}: not YAML: {problem}{_advice(problem)}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        where = Place(place.source, line) if place.line else place
        raise ConfigError(f"{where}: not YAML: character U+{_code_point(error):04X} is not allowed") from error
    except (ValueError, OverflowError, RecursionError, yaml.YAMLError) as error:  # e.g. of "\UFFFFFFFF"
        raise ConfigError(f"{place}: not YAML: {' '.join(str(error).split())}") from error


def describe(value: object) -> str:
    """A value as it is named in a message: short, and as YAML writes it."""
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _code_point(error: yaml.reader.ReaderError) -> int:
    return error.character if isinstance(error.character, int) else ord(error.character)


def _advice(problem: str) -> str:
    if "'\\t'" in problem:
        return "; indent with spaces"
    if "mapping values are not allowed" in problem:
        return "; quote a text with `: ` in it, or check the indentation"
    return ""


class _Parser:
    """PyYAML's events to nodes. Aliases share nodes; `sizes` counts what they stand for."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.faults: list[Fault] = []
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._events: Iterator[yaml.Event] = iter(())
        self._num_values = 0

    def at(self, mark: Any) -> Place:
        """The place of a mark of PyYAML."""
        return self.place if mark is None or self.place.line is None else Place(self.place.source, mark.line + 1)

    def document(self, text: str) -> Node:
        """The one document of the text; null if there is none."""
        self._events = iter(yaml.parse(text, Loader=yaml.SafeLoader))
        root = Node(None, self.place)
        num_documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                num_documents += 1
                if num_documents > 1:
                    raise ConfigError(f"{self.at(event.start_mark)}: a second document begins here; keep one")
                root = self._node(next(self._events), 0)
        return root

    def _node(self, event: Any, depth: int) -> Node:
        place = self.at(event.start_mark)
        if depth > MAX_DEPTH:
            raise ConfigError(f"{place}: more than {MAX_DEPTH} sections or lists inside each other")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), place)
        if event.tag is not None and event.tag != "!":
            self.faults.append(Fault(place, f"tag {event.tag!r} is not supported; remove it"))
        before = self._num_values
        self._count(1, place)
        node = Node(self._value(event, depth, place), place)
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, self._num_values - before)
        return node

    def _value(self, event: Any, depth: int, place: Place) -> Scalar | list[Node] | dict[str, Node]:
        if isinstance(event, yaml.SequenceStartEvent):
            return [self._node(item, depth + 1) for item in self._until(yaml.SequenceEndEvent)]
        if isinstance(event, yaml.MappingStartEvent):
            return self._section(depth)
        if any("\ud800" <= character <= "\udfff" for character in event.value):
            raise ConfigError(f"{place}: half of a surrogate pair is not text")
        return resolve_scalar(event.value) if event.style is None else str(event.value)

    def _section(self, depth: int) -> dict[str, Node]:
        section: dict[str, Node] = {}
        for event in self._until(yaml.MappingEndEvent):
            place = self.at(event.start_mark)
            key = event.value if isinstance(event, yaml.ScalarEvent) else None
            if key is None:
                raise ConfigError(f"{place}: a key must be one word, here is a list, a section or an alias")
            node = self._node(next(self._events), depth + 1)
            if key in section:
                self.faults.append(Fault(place, f"{key}: stands already on line {section[key].place.line}; keep one"))
            else:
                section[key] = Node(node.value, place)
        return section

    def _until(self, end: type[yaml.Event]) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event

    def _alias(self, anchor: str, place: Place) -> Node:
        if anchor not in self._anchors:
            raise ConfigError(f"{place}: alias *{anchor} has no anchor &{anchor} before it")
        node, size = self._anchors[anchor]
        self._count(size, place)
        return Node(node.value, place)

    def _count(self, number: int, place: Place) -> None:
        self._num_values += number
        if self._num_values > MAX_VALUES:
            raise ConfigError(f"{place}: more than {MAX_VALUES} values, those that aliases repeat included")
