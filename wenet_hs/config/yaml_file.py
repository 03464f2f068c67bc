# SPDX-License-Identifier: Apache-2.0
"""YAML files: the settings with the place and the faults of each, and text that reads as itself.

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
"""Size of a config file."""
MAX_DEPTH = 20
"""Sections and lists inside each other; the schema has three."""
MAX_VALUES = 10_000
"""Values in a config file; a value counts each time an alias repeats it."""


_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,400}|[0-9]{1,400}(\.[0-9]{0,400})?)([eE][-+]?[0-9]{1,4})?")
CONSTANTS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


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
    places: dict[Location, Place]
    faults: list[tuple[Place, str]] = field(default_factory=list)

    def copy(self) -> "Settings":
        """Equal settings that share nothing that can be changed."""
        return Settings(deepcopy(self.values), dict(self.places), list(self.faults))

    def place_of(self, location: Location) -> Place:
        """The place of a setting.

        If it is absent: of the setting that selects its section, else of its section.
        """
        known = max(end for end in range(len(location) + 1) if location[:end] in self.places)
        selector = (
            *location[:known],
            *(str(key).removesuffix("_conf") for key in location[known : known + 1]),
        )
        return self.places.get(selector, self.places[location[:known]])

    def place_of_mark(self, mark: Any) -> Place:
        """The place of a mark of PyYAML; all of an override is one place."""
        whole = self.places[()]
        return whole if mark is None or whole.line is None else whole._replace(line=mark.line + 1)

    def read_node(self, node: Any, location: Location, place: Place) -> Any:
        """The plain value of PyYAML's node; adds its places and faults.

        Raises ConfigError above the limits on depth and number of values.
        """
        self.places[location] = place
        if len(self.places) > MAX_VALUES:
            raise ConfigError(place, f"more than {MAX_VALUES} values, counting what aliases repeat")
        if len(location) > MAX_DEPTH:
            raise ConfigError(place, _TOO_DEEP)
        if node.tag is not None:
            self.faults.append((place, f"tag {node.tag!r} is not supported; remove it"))
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return [
                self.read_node(item, (*location, i), self.place_of_mark(item.start_mark))
                for i, item in items
            ]
        if isinstance(node, yaml.ScalarNode):
            if any("\ud800" <= character <= "\udfff" for character in node.value):
                raise ConfigError(place, "half of a surrogate pair is not text", "remove it")
            return resolve_scalar(node.value) if node.style is None else str(node.value)
        section: dict[str, Any] = {}
        for key, value in node.value:
            place = self.place_of_mark(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(
                    place, "a key must be one word, found a list or a section", "write `key: value`"
                )
            if key.value in section:
                first = self.places[*location, key.value]
                self.faults.append(
                    (place, f"{key.value}: duplicate of the key at {first}; keep one")
                )
            else:
                section[key.value] = self.read_node(value, (*location, key.value), place)
        return section


def read_yaml(path: Path | str) -> Settings:
    """The settings of a YAML file; duplicate keys and tags are in its faults.

    Raises ConfigError if the file is missing, too large, not UTF-8, not YAML, or not a section.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            path, f"cannot be read ({error.strerror})", "check the path of the config"
        ) from error
    if len(content) > MAX_BYTES:
        raise ConfigError(
            f"{path}:1",
            f"{len(content)} bytes",
            f"a config has at most {MAX_BYTES}: check the path",
        )
    try:
        settings = parse_yaml(content.decode("utf-8-sig"), Place(str(path), 1))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        to_do = "check that it is a YAML file, and save it as UTF-8"
        raise ConfigError(f"{path}:{line}", "not UTF-8", to_do) from error
    if not isinstance(settings.values, dict):
        found = "nothing" if settings.values is None else describe(settings.values)
        raise ConfigError(
            settings.places[()],
            f"a config has lines of `key: value`, found {found}",
            "check the path",
        )
    return settings


def parse_yaml(text: str, place: Place) -> Settings:
    """Reads one YAML document.

    `place`: line 1 of its file, or for a short text the flag that has it, without a line.

    Raises ConfigError on a syntax error.
    """
    settings = Settings(None, {(): place})
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        problem = (
            (error.problem or error.context or "syntax error")
            .replace("\n", " ")
            .removeprefix("but ")
        )
        advice = next(
            (f"; {what_to_do}" for part, what_to_do in _ADVICE.items() if part in problem), ""
        )
        where = settings.place_of_mark(error.problem_mark or error.context_mark)
        raise ConfigError(where, f"not YAML: {problem}{advice}") from error
    except yaml.reader.ReaderError as error:
        where = place._replace(line=place.line and text.count("\n", 0, error.position) + 1)
        found = f"not YAML: character U+{ord(text[error.position]):04X} is not allowed"
        raise ConfigError(where, found, "remove it") from error
    except RecursionError as error:
        raise ConfigError(place, _TOO_DEEP) from error
    except (ValueError, OverflowError, yaml.YAMLError) as error:  # e.g. of "\UFFFFFFFF"
        raise ConfigError(place, f"not YAML: {' '.join(str(error).split())}") from error
    if root is not None:
        settings.values = settings.read_node(root, (), settings.place_of_mark(root.start_mark))
    return settings


_TOO_DEEP = f"more than {MAX_DEPTH} sections or lists inside each other"
_ADVICE = {
    "'\\t'": "indent with spaces",
    "mapping values are not allowed": "quote a text with `: ` in it, or check the indentation",
    "another document": "keep one document",
}
"""Part of PyYAML's message → what to do."""


class _Loader(yaml.SafeLoader):
    """Gives nodes only the tags that are written in the file, None elsewhere.

    No object is built.
    """

    def resolve(self, kind: object, value: object, implicit: object) -> None:
        return None


def resolve_scalar(text: str) -> Scalar:
    """The value of an unquoted scalar in YAML 1.2's core schema; octal and hexadecimal, `.inf` and
    `.nan` are text.
    """
    if text in CONSTANTS:
        return CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def describe(value: object) -> str:
    """A value as it appears in messages: short, and as YAML writes it."""
    if isinstance(value, dict | list | tuple):
        return "a section" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ---- writing


def dump_yaml(settings: Mapping[str, Any]) -> str:
    """The text of a YAML file that `read_yaml` reads as equal settings."""
    return yaml.dump(settings, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def dump_value(value: Any) -> str:
    """A value on one line of YAML, which `read_yaml` reads as an equal one."""
    text = yaml.dump(
        value,
        Dumper=_Dumper,
        default_flow_style=True,
        allow_unicode=True,
        width=math.inf,
    )
    return text.removesuffix("\n").removesuffix("\n...")


class _Dumper(yaml.SafeDumper):
    """Quotes text that `read_yaml` would take for something else."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    is_plain = text.isprintable() and isinstance(
        resolve_scalar(text), str
    )  # other styles change U+0085
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if is_plain else '"')


_Dumper.add_representer(str, _represent_text)
