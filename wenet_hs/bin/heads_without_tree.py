# SPDX-License-Identifier: Apache-2.0
"""Print which output layers are built without a tree.

Example: wenet-hs heads-without-tree softmax hsoftmax

Recipes need it to name the folders of experiments. It prints one name per line. A wrong name is not
printed; `wenet-hs check-options` refuses it.
"""

import argparse

from wenet_hs.bin.main import main_of
from wenet_hs.config.heads import is_without_tree


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the names of the output layers."""
    parser.add_argument("heads", nargs="*", metavar="HEAD", help="output layers")


def run(args: argparse.Namespace) -> None:
    """Print the names that were given and are layers without a tree, in this order."""
    for head in args.heads:
        if is_without_tree(head):
            print(head)


if __name__ == "__main__":
    main_of(__name__)
