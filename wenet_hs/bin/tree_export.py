# SPDX-License-Identifier: Apache-2.0
"""Write a binary tree as a tree folder of the original implementation.

Example: wenet-hs tree export data/tree.json --original huffman_tree
"""

import argparse
from pathlib import Path

from wenet_hs.tree import Tree


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `tree export`."""
    parser.add_argument("tree", type=Path, help="tree.json")
    parser.add_argument(
        "--original", type=Path, metavar="DIR", required=True, help="folder to write, for the original implementation"
    )


def run(args: argparse.Namespace) -> None:
    """Read the tree, write the folder."""
    from wenet_hs.interop.hsoftmax_original import write_original_tree  # with it torch, which no other action needs

    tree = Tree.load(args.tree)
    write_original_tree(tree, args.original)
    print(f"{args.original}: tree of {tree.num_units} units, depth {tree.depth}")
