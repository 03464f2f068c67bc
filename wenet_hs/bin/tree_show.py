# SPDX-License-Identifier: Apache-2.0
"""Print the figures of a tree and its most frequent units, and draw it.

Example: wenet-hs tree show data/tree.json --svg tree.svg
"""

import argparse
from pathlib import Path

import numpy as np

from wenet_hs.files import write_atomic
from wenet_hs.tree.draw import tree_svg, unit_label
from wenet_hs.tree.tree import Tree

NUM_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `tree show`."""
    parser.add_argument("tree", type=Path, help="tree.json")
    parser.add_argument("--svg", type=Path, help="also draw the tree into this file")
    parser.add_argument(
        "--max_leaves", type=_at_least_one, default=60, help="rows of the drawing (default: %(default)s)"
    )


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def figures(tree: Tree) -> str:
    """Size, depth and code length in one line."""
    return (
        f"{tree.kind} tree of {tree.num_units} units | depth {tree.depth} | "
        f"mean code length {tree.mean_code_length():.3f} bits | entropy {tree.entropy():.3f} bits"
    )


def run(args: argparse.Namespace) -> None:
    """Print the figures and the most frequent units; draw the tree where asked."""
    tree = Tree.load(args.tree)
    print(figures(tree))
    for name, value in tree.options.items():
        print(f"  {name}: {value}")
    codes, probabilities = tree.codes(), tree.probabilities()
    most_frequent = np.argsort(-tree.frequencies, kind="stable")[:NUM_SHOWN].tolist()
    labels = {unit_id: unit_label(tree.units[unit_id]) for unit_id in most_frequent}
    width = max(map(len, labels.values()))
    for unit_id in most_frequent:
        print(f"{labels[unit_id]:<{width}}  {100 * probabilities[unit_id]:6.2f} %  {codes[unit_id]}")
    if args.svg:
        write_atomic(args.svg, tree_svg(tree, max_leaves=args.max_leaves))
        print(f"{args.svg}: drawn")
