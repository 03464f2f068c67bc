# SPDX-License-Identifier: Apache-2.0
"""Print the figures of a tree, its most frequent units and its cost per language; draw or explore it.

Example: wenet-hs tree show data/tree.json --svg tree.svg --png tree.png --html tree.html
Example: wenet-hs tree show data/tree.json --data_list data/train/data.list --units data/units.txt
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wenet_hs.errors import ConfigError, DataError
from wenet_hs.files import write_atomic
from wenet_hs.manifest import read_data_list
from wenet_hs.text.tokenizer import KINDS as TOKENIZERS
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import NaryTree, Tree, load_tree
from wenet_hs.tree.counts import HEADINGS, language_costs
from wenet_hs.tree.plot import label_width, tree_png, tree_svg, unit_label

NUM_SHOWN = 20
MAX_CODE = 60
MAX_LEAVES = 60
MAX_OPTION = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `tree show`."""
    parser.add_argument("tree", type=Path, help="tree.json")
    parser.add_argument("--svg", type=Path, help="draw the tree into this file, for light and dark pages")
    parser.add_argument("--png", type=Path, help="the same drawing as a picture, dark on white")
    parser.add_argument("--html", type=Path, help="a page to open branches and search units, without a network")
    parser.add_argument("--max_leaves", type=int, metavar="N", help=f"rows of --svg and --png (default: {MAX_LEAVES})")
    group = parser.add_argument_group("code lengths by language")
    group.add_argument("--data_list", type=Path, help="data.list whose transcripts are counted per language")
    group.add_argument("--units", type=Path, help="units.txt of the tree, for --data_list")
    group.add_argument("--tokenizer", choices=TOKENIZERS, help="as in the config (default: the tree's own, else char)")
    group.add_argument("--bpe_model", type=Path, help="sentencepiece model, for --tokenizer bpe")


def run(args: argparse.Namespace) -> None:
    """Print the figures, the most frequent units and the languages; draw the tree where asked."""
    _check_flags(args)
    tree = load_tree(args.tree)
    table = _language_table(args, tree) if args.data_list else []
    print(figures(tree))
    for name, value in tree.options.items():
        print(f"  {_printable(name)}: {_printable(value)}")
    _print_most_frequent(tree)
    _print_table(table)
    max_leaves = args.max_leaves or MAX_LEAVES
    for path, draw in ((args.svg, tree_svg), (args.png, tree_png)):
        if path:
            write_atomic(path, draw(tree, max_leaves=max_leaves))
            print(f"{path}: drawn")
    if args.html:
        from wenet_hs.tree.explore import tree_page  # imports jinja2, only for this flag

        write_atomic(args.html, tree_page(tree, figures(tree).partition(" | ")[2], table))
        print(f"{args.html}: written; open it in a browser")


def figures(tree: Tree | NaryTree) -> str:
    """Size, depth, code length and redundancy (the code length above the entropy) in one line."""
    length, entropy = tree.mean_code_length(), tree.entropy()
    redundancy = max(0.0, length - entropy)  # sums of logarithms may end just below zero
    share = f" ({100 * redundancy / length:.1f} %)" if length > 0 else ""
    return (
        f"{tree.kind} tree of {tree.num_units} units | depth {tree.depth} | mean code length {length:.3f} bits | "
        f"entropy {entropy:.3f} bits | redundancy {redundancy:.3f} bits{share}"
    )


def check_bpe_model(tokenizer: str, bpe_model: Path | None) -> None:
    """Raise ConfigError unless the sentencepiece model is given exactly if the tokenizer uses it."""
    if tokenizer == "bpe" and bpe_model is None:
        raise ConfigError("--bpe_model: tokenizer bpe without a model; name the sentencepiece file")
    if tokenizer != "bpe" and bpe_model is not None:
        raise ConfigError(f"--bpe_model: tokenizer {tokenizer} does not use it; add --tokenizer bpe, or leave it out")


def _printable(value: object) -> str:
    """A value of a file as text without control characters: what is not printable is escaped."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[:MAX_OPTION])
    return shown if len(text) <= MAX_OPTION else f"{shown}…"


def _check_flags(args: argparse.Namespace) -> None:
    if args.max_leaves is not None and args.max_leaves < 1:
        raise ConfigError(f"--max_leaves: must be at least 1, got {args.max_leaves}")
    if args.max_leaves is not None and not (args.svg or args.png):
        raise ConfigError("--max_leaves: is used with --svg and --png only; add one of them, or leave --max_leaves out")
    if args.data_list and not args.units:
        raise ConfigError("--data_list: needs --units as well; name the units.txt that the tree was built with")
    for name in ("units", "tokenizer", "bpe_model"):
        if getattr(args, name) and not args.data_list:
            raise ConfigError(f"--{name}: is used with --data_list only; add --data_list, or leave --{name} out")


def _language_table(args: argparse.Namespace, tree: Tree | NaryTree) -> list[Sequence[str]]:
    """The headings and one row per language."""
    table = UnitTable.read(args.units)
    if table.units != tree.units:
        different = next((i for i, (a, b) in enumerate(zip(table.units, tree.units, strict=False)) if a != b), None)
        found = (
            f"{len(table)} units against {tree.num_units}"
            if different is None
            else f"unit {different} is {table.units[different]!r} against {tree.units[different]!r}"
        )
        raise DataError(f"{args.units}: not the units of {args.tree} ({found}); name the units.txt of this tree")
    recorded = tree.options.get("tokenizer")
    kind = args.tokenizer or (recorded if recorded in TOKENIZERS else "char")
    check_bpe_model(kind, args.bpe_model)
    costs = language_costs(tree, read_data_list(args.data_list), make_tokenizer(kind, table, args.bpe_model))
    return [HEADINGS, *(cost.cells() for cost in costs)]


def _print_most_frequent(tree: Tree | NaryTree) -> None:
    probabilities = tree.probabilities()
    most_frequent = np.argsort(-tree.frequencies, kind="stable")[:NUM_SHOWN].tolist()
    labels = {unit_id: unit_label(tree.units[unit_id]) for unit_id in most_frequent}
    width = max(map(label_width, labels.values()))
    for unit_id, label in labels.items():
        code = tree.code(tree.num_inner + unit_id)
        code = code if len(code) <= MAX_CODE else f"{code[: MAX_CODE - 1]}…"
        print(f"{_padded(label, width)}  {100 * probabilities[unit_id]:6.2f} %  {code}".rstrip())


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Text in the first column, numbers in the others, each as wide as its widest cell."""
    widths = [max(map(label_width, column)) for column in zip(*rows, strict=True)]
    for first, *numbers in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:], strict=True))
        print("  ".join([_padded(first, widths[0]), *cells]))


def _padded(label: str, width: int) -> str:
    return label + " " * (width - label_width(label))
