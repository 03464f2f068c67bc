# SPDX-License-Identifier: Apache-2.0
"""Build a tree over the units, or show one.

Example: wenet-hs tree build --kind huffman --units data/units.txt --data_list data/train/data.list --out data/tree.json
Example: wenet-hs tree show data/tree.json --svg tree.svg
"""

import argparse
from pathlib import Path

import numpy as np

from wenet_hs.bin.command import main_of
from wenet_hs.files import write_atomic
from wenet_hs.manifest import read_data_list
from wenet_hs.text.tokenize import KINDS as TOKENIZERS
from wenet_hs.text.tokenize import make_tokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.tree.build import KINDS, WEIGHTINGS, build_tree, unit_frequencies
from wenet_hs.tree.draw import tree_svg, unit_label
from wenet_hs.tree.tree import Tree

NUM_SHOWN = 20

BUILD_HELP = """Build tree.json from the units of a data list.

Example: wenet-hs tree build --kind huffman --units data/units.txt --data_list data/train/data.list --out data/tree.json
"""
SHOW_HELP = """Print the figures of a tree and its most frequent units, and draw it.

Example: wenet-hs tree show data/tree.json --svg tree.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="build|show")
    raw = argparse.RawDescriptionHelpFormatter
    build = actions.add_parser("build", help="make tree.json", description=BUILD_HELP, formatter_class=raw)
    build.add_argument("--kind", choices=KINDS, default="huffman", help="how the tree is built (default: %(default)s)")
    build.add_argument("--units", type=Path, required=True, help="units.txt of the model")
    build.add_argument("--data_list", type=Path, required=True, help="data.list whose transcripts are counted")
    build.add_argument(
        "--tokenizer", choices=TOKENIZERS, default="char", help="as in the config (default: %(default)s)"
    )
    build.add_argument("--bpe_model", type=Path, help="sentencepiece model, for --tokenizer bpe")
    build.add_argument(
        "--weighting",
        choices=WEIGHTINGS,
        default="pooled",
        help="pooled: count all languages together; per_language: each language has the same weight (default: pooled)",
    )
    build.add_argument("--out", type=Path, required=True, help="tree.json to write")
    show = actions.add_parser("show", help="figures and a drawing", description=SHOW_HELP, formatter_class=raw)
    show.add_argument("tree", type=Path, help="tree.json")
    show.add_argument("--svg", type=Path, help="also draw the tree into this file")
    show.add_argument("--max_leaves", type=_at_least_one, default=60, help="rows of the drawing (default: %(default)s)")


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def run(args: argparse.Namespace) -> None:
    """Build or show."""
    if args.action == "build":
        _build(args)
    else:
        _show(args)


def _build(args: argparse.Namespace) -> None:
    table = UnitTable.read(args.units)
    utterances = read_data_list(args.data_list)
    frequencies = unit_frequencies(utterances, make_tokenizer(args.tokenizer, table, args.bpe_model), args.weighting)
    options = {"weighting": args.weighting, "data_list": str(args.data_list), "num_utterances": len(utterances)}
    tree = build_tree(args.kind, table.units, frequencies, options=options)
    tree.save(args.out)
    print(f"{args.out}: {_figures(tree)}")


def _figures(tree: Tree) -> str:
    return (
        f"{tree.kind} tree of {tree.num_units} units | depth {tree.depth} | "
        f"mean code length {tree.mean_code_length():.3f} bits | entropy {tree.entropy():.3f} bits"
    )


def _show(args: argparse.Namespace) -> None:
    tree = Tree.load(args.tree)
    print(_figures(tree))
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


if __name__ == "__main__":
    main_of(__name__)
