# SPDX-License-Identifier: Apache-2.0
"""Options as fields of dataclasses, from which the flags of a command are made.

A field `x: int = option(10, "what it is")` is the flag `--x`. Its type gives the type of the flag:
`bool` a switch, `Literal` choices, `tuple[str, ...]` one or more words, `T | None` the same as `T`.
Ranges are checked in `__post_init__`, which raises ValueError with a text that begins with the name
of the option.
"""

import argparse
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import MISSING, Field, field, fields
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

from wenet_hs.tree.errors import ConfigError

REQUIRED = MISSING
"""The default of an option that has to be given."""
Options = TypeVar("Options")
"""A dataclass of options."""


def _num_usable_cores() -> int:
    """The number of cores that this process may use; without `sched_getaffinity` (macOS) all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


NUM_CORES = _num_usable_cores()


def option(
    default: Any,
    help_text: str,
    *,
    flags: Sequence[str] = (),
    group: str = "",
    is_recorded: bool = True,
    **settings: Any,
) -> Any:
    """A field of a dataclass of options.

    Args:
        default: the value without the flag; REQUIRED if the flag must be given.
        help_text: the help of the flag. `add_options` adds the default to it.
        flags: all spellings of the flag; if not given, `--` and the name of the field.
        group: options of one group exclude each other as flags.
        is_recorded: False for an option that cannot change the results.
        settings: arguments of `argparse.ArgumentParser.add_argument` that replace those which
            follow from the type of the field, such as `metavar` or `type`.
    """
    metadata = {
        "help": help_text,
        "flags": flags,
        "group": group,
        "is_recorded": is_recorded,
        "settings": settings,
    }
    return field(default=default, metadata=metadata)


def add_options(parser: argparse.ArgumentParser, cls: type) -> None:
    """Declare a flag in the parser for each field of a dataclass of options.

    Fields with the same group become one group of flags that exclude each other.
    """
    groups = defaultdict[str, Any](parser.add_mutually_exclusive_group)
    for member in fields(cls):
        group = member.metadata["group"]
        target = groups[group] if group else parser
        flags = member.metadata["flags"] or [f"--{member.name}"]
        settings: dict[str, Any] = {"dest": member.name, "help": _help_text(member)}
        if member.default is REQUIRED:
            settings["required"] = True
        else:
            settings["default"] = member.default
        settings |= _settings_of_type(member)
        settings |= member.metadata["settings"]
        target.add_argument(*flags, **settings)


def _help_text(member: Field[Any]) -> str:
    """The help of a flag, with its default in brackets.

    No default is added if the text itself gives one, for a switch, and for a default that is
    missing, None or empty.
    """
    text: str = member.metadata["help"]
    default = member.default
    has_default = default not in (REQUIRED, None, "", ())
    is_switch = isinstance(default, bool)
    if not has_default or is_switch or "(default" in text:
        return text
    shown = f"{default:g}" if isinstance(default, float) else default
    return f"{text} (default: {shown})"


def _settings_of_type(member: Field[Any]) -> dict[str, Any]:
    """The arguments of argparse's `add_argument` that follow from the type of the field.

    A tuple is one or more words, unless `option` was given a `type` that makes it from one word.
    """
    kind = _value_types(member)[0]  # T of `T | None`
    if kind is bool:
        return {"action": "store_true"}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if get_origin(kind) is tuple and "type" not in member.metadata["settings"]:
        assert not member.default  # argparse would add the words to it
        return {"nargs": "+", "action": "extend", "default": []}
    return {"type": kind}


def _value_types(member: Field[Any]) -> tuple[Any, ...]:
    """The types that a value of the field may have: T and NoneType for `T | None`, else one."""
    if NoneType in get_args(member.type):
        return get_args(member.type)
    return (member.type,)


def fields_without_option(cls: type) -> list[str]:
    """The names of the fields of a dataclass that `option` did not make: they can be no flags."""
    # `option` gives each of its fields the metadata `is_recorded`.
    return [member.name for member in fields(cls) if "is_recorded" not in member.metadata]


def read_options(args: argparse.Namespace, cls: type[Options]) -> Options:
    """The dataclass of options with the values of the parsed flags; lists become tuples.

    Raises ConfigError that begins with the flag if a value is out of range.
    """
    values = {}
    for member in fields(cls):  # type: ignore[arg-type]
        value = getattr(args, member.name)
        values[member.name] = tuple(value) if isinstance(value, list) else value
    try:
        return cls(**values)
    except ValueError as error:  # its text begins with the name of the option
        raise ConfigError(f"--{error}") from error


def check_values(options: Any) -> None:
    """Raise ValueError for a value of options from Python that a flag could not have given.

    It has a type that its field does not have, or is none of the choices of its field.
    """
    for member in fields(options):
        value = getattr(options, member.name)
        types = _value_types(member)
        if get_origin(types[0]) is Literal:
            _check_choice(member.name, value, types)
        else:
            _check_type(member.name, value, types)


def _check_choice(name: str, value: Any, types: tuple[Any, ...]) -> None:
    """Raise ValueError if a value is not one of the choices of a Literal, which is `types[0]`.

    None is a choice if `types` has NoneType.
    """
    choices = get_args(types[0])
    is_allowed_none = value is None and NoneType in types
    if value not in choices and not is_allowed_none:
        raise ValueError(f"{name} {value!r}: must be one of {', '.join(choices)}")


def _check_type(name: str, value: Any, types: tuple[Any, ...]) -> None:
    """Raise ValueError if a value has none of the types.

    Numbers of numpy are accepted as int and float, and a whole number as float. Of a type such as
    `tuple[str, ...]` only `tuple` is checked.
    """
    classes = [get_origin(kind) or kind for kind in types]
    accepted = [*classes]
    if int in classes:
        accepted.append(Integral)
    if float in classes:
        accepted.append(Real)
    if not isinstance(value, tuple(accepted)):
        raise ValueError(f"{name} {value!r}: must be of the type {classes[0].__name__}")


def recorded_options(options: Any, cls: type | None = None) -> dict[str, Any]:
    """The values by name of the options that decide the results.

    Paths are left out, and fields with `is_recorded=False`. With `cls`, a base class of the
    options, only the fields of this class are returned.
    """
    return {
        member.name: getattr(options, member.name)
        for member in fields(cls or options)
        if _is_recorded(member)
    }


def _is_recorded(member: Field[Any]) -> bool:
    """Whether the value of a field decides the results, and is not a path."""
    return member.metadata["is_recorded"] and Path not in _value_types(member)
