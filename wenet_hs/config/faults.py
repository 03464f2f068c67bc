# SPDX-License-Identifier: Apache-2.0
"""pydantic's errors → one line a fault: where it stands, the dotted key, what is expected, what was found."""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import ValidationError

from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.config.section import Section
from wenet_hs.config.wenet_keys import CHOICES, IDLE, ONLY
from wenet_hs.config.yaml_source import Fault, Node, Place, describe

Location = Sequence[int | str]

_EXPECTED = {
    "bool_type": "must be true or false",
    "dict_type": "must be a section of `key: value` lines",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "model_type": "must be a section of `key: value` lines",
    "multiple_of": "must be a multiple of {multiple_of:g}",
    "string_type": "must be text",
    "tuple_type": "must be a list",
}


def faults_of(error: ValidationError, root: Node) -> list[Fault]:
    """The faults in the order of the schema, each at the nearest place of the file (or override) that it concerns."""
    return [_fault(item, root) for item in error.errors(include_url=False)]


def _fault(item: Any, root: Node) -> Fault:
    kind, location, context = item["type"], item["loc"], item.get("ctx", {})
    if kind == "setting":
        location = (*location[:-1], *context["key"].split("."))
        return Fault(place_of(root, location), f"{_dotted(location)}: {context['text']}")
    if location[-1] == "[key]":  # a dict whose keys are a closed set
        kind, location = "extra_forbidden", location[:-1]
    dotted, place = _dotted(location), place_of(root, location)
    if kind == "extra_forbidden":
        names = re.findall(r"'([^']*)'", context.get("expected", ""))
        return Fault(place, f"{dotted}: {_unknown(location, names)}")
    if kind == "missing":
        remedy = "; make one with `wenet-hs tree build`" if dotted.endswith("head_conf.tree") else ""
        return Fault(place, f"{dotted}: missing{remedy}")
    if kind == "literal_error":
        return Fault(place, f"{dotted}: {_not_a_choice(dotted, context['expected'], item['input'])}")
    if kind == "too_long":
        return Fault(place, f"{dotted}: must have {context['max_length']} values, got {context['actual_length']}")
    expected = _EXPECTED[kind].format(**context) if kind in _EXPECTED else item["msg"]
    return Fault(place, f"{dotted}: {expected}, got {describe(item['input'])}")


def place_of(root: Node, location: Location) -> Place:
    """The place of a setting; if it is not there, of the section it belongs to or of what chose that section's kind."""
    node = root
    for part in location:
        if isinstance(node.value, dict) and part in node.value:
            node = node.value[str(part)]
        elif isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
        elif isinstance(node.value, dict) and isinstance(part, str):
            return node.value.get(part.removesuffix("_conf"), node).place
        else:
            break
    return node.place


def _dotted(location: Location) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def _not_a_choice(dotted: str, expected: str, value: object) -> str:
    choices = [choice if choice.strip() else repr(choice) for choice in re.findall(r"'([^']*)'", expected)]
    if value in CHOICES.get(dotted, ()):
        return f"WeNet's {value!r} is not supported; use {', '.join(choices)}"
    if choices:
        return f"must be one of {', '.join(choices)}, got {describe(value)}"
    return f"{describe(value)} is not supported, only {expected.lower()} is"


def _unknown(location: Location, names: Sequence[str]) -> str:
    """`unknown key`, and which key may have been meant: of this section, else the same name in another one."""
    *section, name = map(str, location)
    own = {*names, *(key[-1] for key in _all_keys() if list(key[:-1]) == section)}
    if name in own:
        return f"not a key of this {section[-1].removesuffix('_conf')}; remove it"
    near = difflib.get_close_matches(name, sorted(own), n=1)
    near = near or [".".join(key) for key in _all_keys() if key[-1] == name]
    return f"unknown key; did you mean `{near[0]}`?" if near else "unknown key; remove it"


def _all_keys() -> list[tuple[str, ...]]:
    """Every key of the schema and every other key of WeNet."""
    return [*_keys_of(ExperimentConfig), *(tuple(dotted.split(".")) for dotted in (*IDLE, *ONLY))]


def _keys_of(section: type[Section]) -> Iterator[tuple[str, ...]]:
    for name, field in section.model_fields.items():
        yield (name,)
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Section):
                yield from ((name, *key) for key in _keys_of(kind))
