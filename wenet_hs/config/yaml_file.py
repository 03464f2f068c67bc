# SPDX-License-Identifier: Apache-2.0
"""Reading and writing of YAML files: settings with the place of each, and their faults.

YAML is read by the scalar rules of version 1.2: `no`, `on` and `yes` are text, `1e-3` is a number,
`010` is ten. Duplicate keys and tags are faults. No object is ever built from a tag.
"""

import math
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from wenet_hs.config.wenet_keys import Scalar
from wenet_hs.tree.errors import ConfigError

Location = tuple[str | int, ...]
"""The keys and list indices that lead to a setting."""
MAX_BYTES = 200_000
"""The largest size of a config file."""
MAX_DEPTH = 20
"""The most sections and lists inside each other; the schema has three."""
MAX_VALUES = 10_000
"""The most values in a config file; a value counts each time an alias repeats it."""
_TOO_DEEP = f"more than {MAX_DEPTH} sections or lists inside each other"
_ADVICE = {
    "'\\t'": "indent with spaces",
    "mapping values are not allowed": "quote a text with `: ` in it, or check the indentation",
    "another document": "keep one document",
}
"""Part of PyYAML's message → what to do."""
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
"""A whole number that fits into 64 bits; one with more digits is read as a float."""
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,400}|[0-9]{1,400}(\.[0-9]{0,400})?)([eE][-+]?[0-9]{1,4})?")
"""Any other number; text that has even more digits stays text."""
CONSTANTS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
"""Unquoted text → its value."""


class Place(NamedTuple):
    """Where a setting is: a file and a line, or an override."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        """`file:line`, or the override as the user wrote it."""
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass
class Settings:
    """The values of a config, the place of each value, and the faults found so far."""

    values: Any
    """Sections as dictionaries, lists, text, numbers, booleans and None."""
    places: dict[Location, Place]
    """That of () is the place of the whole: line 1 of the file, or the override."""
    faults: list[tuple[Place, str]] = field(default_factory=list)
    """The place of each fault, and its text without the place."""

    def copy(self) -> "Settings":
        """Equal settings that share nothing that can be changed."""
        return Settings(deepcopy(self.values), dict(self.places), list(self.faults))

    def place_of(self, location: Location) -> Place:
        """The place of a setting, for a message about it.

        If the setting is absent, this is the place of the innermost section around it that is
        there. But if that section has a setting which selects the absent one, as `head` selects
        `head_conf`, it is the place of the selecting setting.
        """
        depth = len(location)
        while location[:depth] not in self.places:  # that of () is always known
            depth -= 1
        around = location[:depth]
        if around == location:
            return self.places[location]
        selector = str(location[depth]).removesuffix("_conf")
        return self.places.get((*around, selector), self.places[around])

    def place_of_mark(self, mark: Any) -> Place:
        """The place of a mark of PyYAML, which counts lines from 0.

        Without a mark it is the place of the whole, and so it is in an override, which has no
        lines.
        """
        whole = self.places[()]
        if mark is None or whole.line is None:
            return whole
        return whole._replace(line=mark.line + 1)

    def read_node(self, node: Any, location: Location, place: Place) -> Any:
        """The value of PyYAML's node; adds the places and faults of all that is in it.

        A tag is a fault, and so is a key that a section has twice: its first value counts.
        Raises ConfigError above the limits on depth and number of values, and for text or keys that
        cannot be read.
        """
        self.places[location] = place
        if len(self.places) > MAX_VALUES:
            raise ConfigError(place, f"more than {MAX_VALUES} values, counting what aliases repeat")
        if len(location) > MAX_DEPTH:
            raise ConfigError(place, _TOO_DEEP)
        if node.tag is not None:
            self.faults.append((place, f"tag {node.tag!r} is not supported; remove it"))
        if isinstance(node, yaml.ScalarNode):
            return _read_scalar(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [
                self.read_node(item, (*location, index), self.place_of_mark(item.start_mark))
                for index, item in enumerate(node.value)
            ]
        return self._read_section(node, location)

    def _read_section(self, node: Any, location: Location) -> dict[str, Any]:
        """The values of PyYAML's node of `key: value` lines, by key; see `read_node`."""
        section: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = self.place_of_mark(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                found = "a key must be one word, found a list or a section"
                raise ConfigError(place, found, "write `key: value`")
            key = key_node.value
            if key in section:
                first = self.places[*location, key]
                fault = f"{key}: duplicate of the key at {first}; keep one"
                self.faults.append((place, fault))
            else:
                section[key] = self.read_node(value_node, (*location, key), place)
        return section


def _read_scalar(node: Any, place: Place) -> Scalar:
    """The value of PyYAML's node of text; quoted text stays text.

    Raises ConfigError for half of a surrogate pair, which an escape in quoted text can write.
    """
    if any("\ud800" <= character <= "\udfff" for character in node.value):
        raise ConfigError(place, "half of a surrogate pair is not text", "remove it")
    is_quoted = node.style is not None
    return str(node.value) if is_quoted else resolve_scalar(node.value)


def read_yaml(path: Path | str) -> Settings:
    """The settings of a YAML file; duplicate keys and tags are in its faults.

    Raises ConfigError if the file is missing, too large, not UTF-8, not YAML, or not a section.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        found = f"cannot be read ({error.strerror})"
        raise ConfigError(path, found, "check the path of the config") from error
    if len(content) > MAX_BYTES:
        to_do = f"a config has at most {MAX_BYTES}: check the path"
        raise ConfigError(f"{path}:1", f"{len(content)} bytes", to_do)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        to_do = "check that it is a YAML file, and save it as UTF-8"
        raise ConfigError(f"{path}:{line}", "not UTF-8", to_do) from error
    settings = parse_yaml(text, Place(str(path), line=1))
    if not isinstance(settings.values, dict):
        value = "nothing" if settings.values is None else describe(settings.values)
        found = f"a config has lines of `key: value`, found {value}"
        raise ConfigError(settings.places[()], found, "check the path")
    return settings


def parse_yaml(text: str, place: Place) -> Settings:
    """The settings of one YAML document, with their places and faults.

    `place`: line 1 of its file, or for a short text the flag that has it, without a line.
    Raises ConfigError on a syntax error, with its line, and as `Settings.read_node` does.
    """
    settings = Settings(None, {(): place})
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        where = settings.place_of_mark(error.problem_mark or error.context_mark)
        raise ConfigError(where, _describe_syntax_error(error)) from error
    except yaml.reader.ReaderError as error:
        where = place
        if place.line is not None:
            where = place._replace(line=text.count("\n", 0, error.position) + 1)
        found = f"not YAML: character U+{ord(text[error.position]):04X} is not allowed"
        raise ConfigError(where, found, "remove it") from error
    except RecursionError as error:
        raise ConfigError(place, _TOO_DEEP) from error
    except (ValueError, OverflowError, yaml.YAMLError) as error:  # e.g. of "\UFFFFFFFF"
        message = " ".join(str(error).split())
        raise ConfigError(place, f"not YAML: {message}") from error
    if root is not None:
        root_place = settings.place_of_mark(root.start_mark)
        settings.values = settings.read_node(root, (), root_place)
    return settings


def _describe_syntax_error(error: yaml.MarkedYAMLError) -> str:
    """What PyYAML has found, on one line, and what to do about it where that is known."""
    message = error.problem or error.context or "syntax error"
    # PyYAML may begin with "but", because its problem follows its context.
    problem = message.replace("\n", " ").removeprefix("but ")
    for part, what_to_do in _ADVICE.items():
        if part in problem:
            return f"not YAML: {problem}; {what_to_do}"
    return f"not YAML: {problem}"


class _Loader(yaml.SafeLoader):
    """PyYAML's loader, whose nodes have only the tags that are written in the file.

    No object is built from a tag.
    """

    def resolve(self, kind: object, value: object, implicit: object) -> None:
        """Leave a node without a tag: PyYAML would choose one by the rules of YAML 1.1."""


def resolve_scalar(text: str) -> Scalar:
    """The value of unquoted text by the rules of YAML 1.2: null, a boolean, a number, or text.

    `0x10`, `0o7`, `.inf` and `.nan` are text, against these rules; `010` is ten.
    """
    if text in CONSTANTS:
        return CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def describe(value: object) -> str:
    """A value as it appears in messages, with at most 60 characters.

    Null and booleans are written as in YAML, other values as in Python, with quotes around text.
    For a section or a list the message says only that it is one.
    """
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    is_short = len(text) <= 60
    return text if is_short else f"{text[:57]}..."


# ---- writing


def dump_yaml(settings: Mapping[str, Any]) -> str:
    """The text of a YAML file that `read_yaml` reads as equal settings."""
    return yaml.dump(settings, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def dump_value(value: Any) -> str:
    """A value on one line of YAML, which `read_yaml` reads as an equal one.

    Sections and lists have braces and brackets. The end of the document, which PyYAML marks after a
    single value, is left out.
    """
    text = yaml.dump(
        value,
        Dumper=_Dumper,
        default_flow_style=True,
        allow_unicode=True,
        width=math.inf,
    )
    return text.removesuffix("\n").removesuffix("\n...")


class _Dumper(yaml.SafeDumper):
    """PyYAML's dumper, which quotes text that `read_yaml` would take for something else."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """PyYAML's node of a text, with double quotes where they are needed.

    They are needed for text that would be read as another value, and for text with characters that
    do not print: only double quotes keep U+0085, the line end of some encodings. Without them
    PyYAML decides about quotes (None).
    """
    reads_as_text = isinstance(resolve_scalar(text), str)
    style = None if reads_as_text and text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)
