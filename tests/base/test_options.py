# SPDX-License-Identifier: Apache-2.0
"""Options as fields of dataclasses: the flags that are made of them, and what they read."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from wenet_hs.base.options import (
    REQUIRED,
    add_options,
    check_values,
    option,
    read_options,
    recorded_options,
)
from wenet_hs.tree.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options:
    out: Path = option(REQUIRED, "folder")
    beam: int = option(10, "beam")
    kind: Literal["a", "b"] = option("a", "kinds", flags=("--kind", "--type"))
    names: tuple[str, ...] = option((), "names", metavar="NAME")
    langs: tuple[str, ...] = option((), "langs", type=lambda text: tuple(text.split()), group="set")
    share: float | None = option(None, "share", group="set")
    is_quiet: bool = option(False, "quiet", is_recorded=False)

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise ValueError(f"beam {self.beam}: must be at least 1")


def read(line: str) -> Options:
    parser = argparse.ArgumentParser()
    add_options(parser, Options)
    return read_options(parser.parse_args(line.split()), Options)


def test_flags_give_the_values_that_python_gives() -> None:
    assert read("--out x") == Options(out=Path("x"))
    found = read("--out x --beam 3 --type b --names u v --names w --share 0.5 --is_quiet")
    names = ("u", "v", "w")
    assert found == Options(out=Path("x"), beam=3, kind="b", names=names, share=0.5, is_quiet=True)
    assert recorded_options(found) == {
        "beam": 3,
        "kind": "b",
        "names": names,
        "langs": (),
        "share": 0.5,
    }


@pytest.mark.parametrize(
    "line", ["", "--out x --kind c", "--out x --langs a --share 1", "--out x --beam 1.5"]
)
def test_wrong_flags_end_the_command(line: str) -> None:
    with pytest.raises(SystemExit):
        read(line)


def test_a_value_out_of_range_is_a_user_error_of_its_flag() -> None:
    with pytest.raises(ConfigError, match=r"^--beam 0: must be at least 1$"):
        read("--out x --beam 0")


def test_help_has_the_defaults() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, Options)
    lines = parser.format_help().splitlines()
    assert any(line.endswith("beam (default: 10)") for line in lines)
    assert any(line.endswith(" share") for line in lines)


def test_values_from_python_have_the_types_of_the_fields() -> None:
    for wrong, message in (
        ({"out": "x"}, "out 'x': must be of the type Path"),
        ({"names": "u v"}, "names 'u v': must be of the type tuple"),
        ({"share": "1"}, "share '1': must be of the type float"),
        ({"kind": "c"}, "kind 'c': must be one of a, b"),
        ({"kind": None}, "kind None: must be one of a, b"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            check_values(Options(**{"out": Path("x"), **wrong}))
    check_values(Options(out=Path("x"), share=1))
