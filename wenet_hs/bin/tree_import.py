# SPDX-License-Identifier: Apache-2.0
"""Make tree.json of a tree folder of the original implementation, or of a gensim word2vec model trained with hs=1.

Example: wenet-hs tree import --original huffman_tree --units data/units.txt --out data/tree.json
Example: wenet-hs tree import --gensim w2v.model --trust_pickle --add_missing --units units.txt --out tree.json
"""

import argparse
from pathlib import Path

from wenet_hs.bin.tree_show import figures
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import Tree


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `tree import`."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--original", type=Path, metavar="DIR", help="tree folder of the original implementation")
    source.add_argument("--gensim", type=Path, metavar="FILE", help="what `save` of a gensim Word2Vec with hs=1 wrote")
    parser.add_argument(
        "--trust_pickle", action="store_true", help="read the gensim file although reading it can run code in it"
    )
    parser.add_argument(
        "--add_missing",
        action="store_true",
        help="units that gensim's model has no word for become a subtree of their own under the root",
    )
    parser.add_argument("--units", type=Path, required=True, help="units.txt of the model")
    parser.add_argument("--out", type=Path, required=True, help="tree.json to write")


def run(args: argparse.Namespace) -> None:
    """Read, check, save, and print the figures. What needs torch is imported below: the other actions do not."""
    table = UnitTable.read(args.units)
    tree = _from_gensim(args, table.units) if args.gensim else _from_original(args, table.units)
    tree.save(args.out)
    print(f"{args.out}: {figures(tree)}")


def _from_original(args: argparse.Namespace, units: tuple[str, ...]) -> Tree:
    for flag in ("trust_pickle", "add_missing"):
        if getattr(args, flag):
            raise ConfigError(f"--{flag}: belongs to --gensim; leave it out with --original")
    from wenet_hs.interop.hsoftmax_original import read_original_tree

    return read_original_tree(args.original, units).tree


def _from_gensim(args: argparse.Namespace, units: tuple[str, ...]) -> Tree:
    from wenet_hs.interop.gensim import gensim_tree, load_gensim, tree_over

    model = load_gensim(args.gensim, trust_pickle=args.trust_pickle)
    try:
        tree = tree_over(gensim_tree(model), units, add_missing=args.add_missing)
    except DataError as error:
        raise DataError(f"{args.gensim}: {error}") from error
    left_out = tree.options["left_out"]
    if left_out:
        print(f"{args.gensim}: {left_out} of {tree.options['words']} words are no units and were left out")
    return tree
