# SPDX-License-Identifier: Apache-2.0
"""Build a tree over the units, show one, or exchange one with other software.

Example: wenet-hs tree build --kind huffman --units data/units.txt --data_list data/train/data.list --out data/tree.json
Example: wenet-hs tree build --kind brown --units data/units.txt --data_list data/train/data.list --out data/tree.json
Example: wenet-hs tree show data/tree.json --svg tree.svg
Example: wenet-hs tree import --original huffman_tree --units data/units.txt --out data/tree.json
Example: wenet-hs tree export data/tree.json --original huffman_tree
"""

import argparse

from wenet_hs.bin import tree_build, tree_export, tree_import, tree_show
from wenet_hs.bin.command import main_of

ACTIONS = {"build": tree_build, "show": tree_show, "import": tree_import, "export": tree_export}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An action and its flags; each is a module with a docstring that opens its help, `add_arguments` and `run`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="|".join(ACTIONS))
    raw = argparse.RawDescriptionHelpFormatter
    for name, module in ACTIONS.items():
        text = module.__doc__ or ""
        module.add_arguments(
            actions.add_parser(name, help=text.partition("\n")[0], description=text, formatter_class=raw)
        )


def run(args: argparse.Namespace) -> None:
    """Hand over to the action."""
    ACTIONS[args.action].run(args)


if __name__ == "__main__":
    main_of(__name__)
