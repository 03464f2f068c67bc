# SPDX-License-Identifier: Apache-2.0
"""Build tree.json from the units of a data list.

Example: wenet-hs tree build --kind huffman --units data/units.txt --data_list data/train/data.list --out data/tree.json
"""

import argparse
from pathlib import Path

from wenet_hs.bin.tree_show import figures
from wenet_hs.manifest import read_data_list
from wenet_hs.text.tokenize import KINDS as TOKENIZERS
from wenet_hs.text.tokenize import make_tokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.tree.build import KINDS, WEIGHTINGS, build_tree, unit_frequencies


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `tree build`."""
    parser.add_argument("--kind", choices=KINDS, default="huffman", help="how the tree is built (default: %(default)s)")
    parser.add_argument("--units", type=Path, required=True, help="units.txt of the model")
    parser.add_argument("--data_list", type=Path, required=True, help="data.list whose transcripts are counted")
    parser.add_argument(
        "--tokenizer", choices=TOKENIZERS, default="char", help="as in the config (default: %(default)s)"
    )
    parser.add_argument("--bpe_model", type=Path, help="sentencepiece model, for --tokenizer bpe")
    parser.add_argument(
        "--weighting",
        choices=WEIGHTINGS,
        default="pooled",
        help="pooled: count all languages together; per_language: each language has the same weight (default: pooled)",
    )
    parser.add_argument("--out", type=Path, required=True, help="tree.json to write")


def run(args: argparse.Namespace) -> None:
    """Count, build, save, and print the figures."""
    table = UnitTable.read(args.units)
    utterances = read_data_list(args.data_list)
    frequencies = unit_frequencies(utterances, make_tokenizer(args.tokenizer, table, args.bpe_model), args.weighting)
    options = {"weighting": args.weighting, "data_list": str(args.data_list), "num_utterances": len(utterances)}
    tree = build_tree(args.kind, table.units, frequencies, options=options)
    tree.save(args.out)
    print(f"{args.out}: {figures(tree)}")
