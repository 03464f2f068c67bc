# SPDX-License-Identifier: Apache-2.0
"""The commands of each recipe's stages over combinations of its options.

`stage_commands/RECIPE.json` has the options of each run and the commands that it calls, in order.
Checks of the options are left out: other tests have them. `python
tests/recipes/test_stage_commands.py RECIPE…` runs the recipes with these options and writes the
commands again; read what changed. A new recipe begins with a file that has the options only:
`[{"options": "--corpus c"}]`.
"""

import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from stub_commands import RECIPES, make_checkout, run_recipe

EXPECTED = Path(__file__).parent / "stage_commands"
NUM_PLAIN = 1
"""Cases of each recipe in the plain test run."""


@dataclass(frozen=True)
class Case:
    """Options of a recipe, and the commands that it then calls, as lines of a shell."""

    recipe: str
    options: str
    commands: tuple[str, ...]


def read_cases(recipe: str) -> list[Case]:
    records = json.loads((EXPECTED / f"{recipe}.json").read_text("utf-8"))
    return [
        Case(recipe, record["options"], tuple(record.get("commands", ()))) for record in records
    ]


def parameters() -> Iterator[ParameterSet]:
    """The cases; all but the first ones of each recipe are for CI only."""
    for recipe in RECIPES:
        for number, case in enumerate(read_cases(recipe)):
            marks = [pytest.mark.slow] if number >= NUM_PLAIN else []
            yield pytest.param(case, marks=marks, id=f"{recipe} {case.options}")


def commands_of(folder: Path, recipe: str, options: str) -> list[str]:
    """The commands of a recipe in a new checkout.

    Trainings run one after the other, so that their order is fixed.
    """
    checkout = make_checkout(folder)
    for name in ("train", "valid", "test"):
        text = checkout / f"text/wiki.{name}.txt"
        text.parent.mkdir(exist_ok=True)
        text.touch()
    words = [word.replace("CHECKOUT", str(checkout)) for word in shlex.split(options)]
    run = run_recipe(checkout, recipe, *words, "--jobs", "1")
    return [command.shown() for command in run.stage_commands()]


def by_flags(command: str) -> dict[str, list[str]]:
    """The values of each flag, in any order; words before the first flag have "" as key."""
    values: dict[str, list[str]] = {"": []}
    flag = ""
    for word in shlex.split(command):
        if word.startswith("--"):
            flag = word
            values.setdefault(flag, [])
        else:
            values[flag].append(word)
    return values


@pytest.mark.parametrize("case", [*parameters()])
def test_commands_of_the_stages(case: Case, tmp_path: Path) -> None:
    commands = commands_of(tmp_path / "checkout", case.recipe, case.options)
    assert [*map(by_flags, commands)] == [*map(by_flags, case.commands)]


def write_expectations(recipe: str) -> None:
    """Run every case of a recipe and write what it calls now."""
    records = []
    for case in read_cases(recipe):
        with tempfile.TemporaryDirectory() as folder:
            commands = commands_of(Path(folder) / "checkout", recipe, case.options)
        records.append({"options": case.options, "commands": commands})
    text = json.dumps(records, indent=1, ensure_ascii=False)
    (EXPECTED / f"{recipe}.json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_expectations(name)
