# SPDX-License-Identifier: Apache-2.0
"""The errors of pydantic about a config as faults in the words of YAML."""

import difflib
import re
from collections.abc import Iterator, Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from wenet_hs.config.section import Section, schema_keys
from wenet_hs.config.wenet_keys import IGNORED_KEYS, ONLY_VALUES, RENAMED_KEYS
from wenet_hs.config.yaml_file import Location, describe

_EXPECTED = {
    "bool_type": "must be true or false",
    "dict_type": "must be a section of `key: value` lines",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "model_type": "must be a section of `key: value` lines",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must be of letters, digits and . _ + ! -",
    "string_type": "must be text",
    "tuple_type": "must be a list",
}
"""Kind of pydantic's error → what the value must be."""
_WORDS = {
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
"""Words of pydantic's other messages → ours."""


def schema_faults(error: ValidationError, section: type[Section]) -> Iterator[tuple[Location, str]]:
    """The faults of a config or section that pydantic has refused: the setting and what is wrong.

    `section`: the class that was to be read; similar keys of it are named for an unknown key.
    """
    for details in error.errors(include_url=False):
        yield from _faults_of_error(details, section)


def _faults_of_error(
    details: ErrorDetails, section: type[Section]
) -> Iterator[tuple[Location, str]]:
    """The faults in one error of pydantic: the setting, what is expected, and what was found.

    There may be several: a section has one error for all its conflicts. Of the two errors about a
    setting that is a name or a number, one gives no fault.
    """
    kind = details["type"]
    location = details["loc"]
    context = details.get("ctx", {})
    found = describe(details["input"])
    last_part = str(location[-1]) if location else ""
    if last_part == "[key]":  # of a dict that accepts only certain keys
        location = location[:-1]
        yield location, _unknown_key(section, location, _quoted(context.get("expected", "")))
        return
    # A setting that is a name or a number has an error for each of its two types, whose location
    # ends with the type. The one about the names is shown, with both types.
    if last_part.startswith("constrained-int"):
        return
    is_name_or_number = last_part.startswith("literal[")
    if is_name_or_number:
        location = location[:-1]
    match kind:
        case "conflicts":  # of `Section.conflicts`
            for key, what_to_do in context["conflicts"]:
                yield (*location, *key.split(".")), what_to_do
        case "extra_forbidden":
            yield location, _unknown_key(section, location, ())
        case "literal_error":
            choices = ", ".join(_quoted(context["expected"]))
            or_number = " or a whole number above 0" if is_name_or_number else ""
            yield location, f"must be one of {choices}{or_number}, got {found}"
        case "missing" if location[-2:] == ("head_conf", "tree"):
            yield location, "missing; make one with `wenet-hs tree build`"
        case "missing":
            yield location, "missing"
        case "too_long":
            expected = f"must have {context['max_length']} values"
            yield location, f"{expected}, got {context['actual_length']}"
        case _:
            expected = _EXPECTED.get(kind) or _in_our_words(details["msg"])
            yield location, f"{expected}, got {found}"


def _quoted(text: str) -> list[str]:
    """The parts of a message of pydantic that are in single quotes: the names that it accepts."""
    return re.findall(r"'([^']*)'", text)


def _in_our_words(message: str) -> str:
    """A message of pydantic, such as `Input should be greater than 0`, in the words of the others."""
    for words, ours in _WORDS.items():
        message = message.replace(words, ours)
    return message


def _unknown_key(config: type[Section], location: Location, other_keys: Sequence[str]) -> str:
    """What to do about an unknown key at this location.

    - A key that the section has, but only for another kind, as `head_conf` has for another `head`,
      or that only WeNet has at this place: to remove it.
    - Otherwise a key that may be meant: the setting that replaces a flag of WeNet, or the same key
      of another section, or a similar key of this section.
    - If there is none, to remove it.

    `other_keys`: keys of the section that are not fields of a class.
    """
    *section, name = map(str, location)
    wenet_keys = [tuple(dotted.split(".")) for dotted in (*IGNORED_KEYS, *ONLY_VALUES)]
    known_keys = [*schema_keys(config), *wenet_keys]
    keys_of_section = {key[-1] for key in known_keys if list(key[:-1]) == section}
    keys_of_section.update(other_keys)
    if name in keys_of_section:
        kind = section[-1].removesuffix("_conf") if section else "config"
        return f"not a key of this {kind}; remove it"
    same_elsewhere = [".".join(key) for key in known_keys if key[-1] == name]
    if name in RENAMED_KEYS:
        suggestion = RENAMED_KEYS[name]
    elif same_elsewhere:
        suggestion = same_elsewhere[0]
    else:
        similar = difflib.get_close_matches(name, sorted(keys_of_section), n=1)
        if not similar:
            return "unknown key; remove it"
        suggestion = similar[0]
    return f"unknown key; did you mean `{suggestion}`?"
