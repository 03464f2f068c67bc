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
NUM_CORES = (
    len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
)
Options = TypeVar("Options")


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
        help_text: of the flag. The default is added, unless the text has it or it is a switch, None
            or empty.
        flags: all names of the flag; not given: that of the field.
        group: options of one group exclude each other as flags.
        is_recorded: False for what cannot change the results.
        settings: of argparse, such as metavar, or the type if it is not that of the field.
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
    """Declare a flag per field of a dataclass of options."""
    groups = defaultdict[str, Any](parser.add_mutually_exclusive_group)
    for one in fields(cls):
        target = groups[one.metadata["group"]] if one.metadata["group"] else parser
        settings = {"required": True} if one.default is REQUIRED else {"default": one.default}
        settings |= (
            {"dest": one.name, "help": _help_text(one)} | _settings(one) | one.metadata["settings"]
        )
        target.add_argument(*(one.metadata["flags"] or [f"--{one.name}"]), **settings)


def fields_without_option(cls: type) -> list[str]:
    """The names of the fields of a dataclass that `option` did not make: they can be no flags."""
    return [member.name for member in fields(cls) if "is_recorded" not in member.metadata]


def _types(one: Field[Any]) -> tuple[Any, ...]:
    """The type of the field, or those of which the value has one."""
    return get_args(one.type) if NoneType in get_args(one.type) else (one.type,)


def _settings(one: Field[Any]) -> dict[str, Any]:
    """How argparse reads a value of the type of the field."""
    kind = _types(one)[0]
    if kind is bool:
        return {"action": "store_true"}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if get_origin(kind) is tuple and "type" not in one.metadata["settings"]:
        assert not one.default  # argparse would add the words to it
        return {"nargs": "+", "action": "extend", "default": []}
    return {"type": kind}


def _help_text(one: Field[Any]) -> str:
    text: str = one.metadata["help"]
    if (
        one.default in (REQUIRED, None, "", ())
        or isinstance(one.default, bool)
        or "(default" in text
    ):
        return text
    shown = f"{one.default:g}" if isinstance(one.default, float) else one.default
    return f"{text} (default: {shown})"


def check_values(options: Any) -> None:
    """Raise ValueError for a value of another type, or none of the choices of its field; argparse
    checks only flags.
    """
    for one in fields(options):
        types, value = _types(one), getattr(options, one.name)
        if get_origin(types[0]) is Literal:
            if value not in get_args(types[0]) and not (value is None and NoneType in types):
                raise ValueError(
                    f"{one.name} {value!r}: must be one of {', '.join(get_args(types[0]))}"
                )
            continue
        classes = tuple(get_origin(kind) or kind for kind in types)
        numbers = [Integral] * (int in classes) + [Real] * (float in classes)  # also those of numpy
        if not isinstance(value, (*classes, *numbers)):
            raise ValueError(f"{one.name} {value!r}: must be of the type {classes[0].__name__}")


def read_options(args: argparse.Namespace, cls: type[Options]) -> Options:
    """The options that the flags give. Raises ConfigError if a value is out of range."""
    given = {one.name: getattr(args, one.name) for one in fields(cls)}  # type: ignore[arg-type]
    try:
        return cls(
            **{
                name: tuple(value) if isinstance(value, list) else value
                for name, value in given.items()
            }
        )
    except ValueError as error:
        raise ConfigError(f"--{error}") from error


def recorded_options(options: Any, cls: type | None = None) -> dict[str, Any]:
    """Name → value of the options that decide the results, without paths; with `cls` only those of
    this class.
    """
    names = [
        one.name
        for one in fields(cls or options)
        if one.metadata["is_recorded"] and Path not in _types(one)
    ]
    return {name: getattr(options, name) for name in names}
