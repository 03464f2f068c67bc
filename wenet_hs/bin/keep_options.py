# SPDX-License-Identifier: Apache-2.0
"""Write options.json into a folder of a recipe: with which options the folder is made.

Example: wenet-hs keep-options --folder data --options langs hours --values langs="es it" hours=1

`wenet-hs check-options` refuses other options for the folder.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from wenet_hs.bin.main import main_of
from wenet_hs.recipes.folder_options import FolderOptions, portable_values, write_folder_options
from wenet_hs.tree.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs keep-options`."""
    add = parser.add_argument
    add(
        "--folder",
        type=Path,
        required=True,
        help="of lists or experiments; is made if it does not exist",
    )
    add_option_arguments(parser)
    add(
        "--options",
        nargs="*",
        default=[],
        metavar="NAME",
        help="names of the options that the folder depends on",
    )


def add_option_arguments(parser: argparse._ActionsContainer) -> None:
    """Declare --recipe_dir and --values of the commands that get the options of a recipe."""
    add = parser.add_argument
    add("--recipe_dir", type=Path, metavar="DIR", help="folder of run.sh")
    add("--values", nargs="*", default=[], metavar="NAME=VALUE", help="the options of the recipe")


def run(args: argparse.Namespace) -> None:
    """Write options.json: the name of the recipe, and the values of --options.

    The name is that of the folder above --recipe_dir: `own` for examples/own/s0.
    """
    values = select_values(parse_values(args.values), args.options)
    recipe_dir = args.recipe_dir or Path()
    options = FolderOptions(
        recipe=recipe_dir.resolve().parent.name,
        values=portable_values(values, args.folder),
    )
    write_folder_options(args.folder, options)


def parse_values(words: Sequence[str]) -> dict[str, str]:
    """The values by name of words NAME=VALUE; a name that is repeated has the last value.

    Raises ConfigError for a word without `=`.
    """
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"--values {word}", "has no `=`", "write NAME=VALUE")
        values[name] = value
    return values


def select_values(values: dict[str, str], names: Sequence[str]) -> dict[str, str]:
    """The values of the options `names` by name, in this order.

    Raises ConfigError for an option that is not among the values.
    """
    for name in names:
        if name not in values:
            raise ConfigError(f"--values: {name}", "has no value", f"add {name}=VALUE")
    return {name: values[name] for name in names}


if __name__ == "__main__":
    main_of(__name__)
