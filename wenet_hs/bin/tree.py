# SPDX-License-Identifier: Apache-2.0
"""Build a tree over the units, show one, or exchange one with other software.

Example: wenet-hs tree build --kind huffman --units data/units.txt --data_list data/train/data.list --out data/tree.json
Example: wenet-hs tree show data/tree.json --svg tree.svg

`wenet-hs tree build --help` and the like have more examples.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from wenet_hs.base.files import one_field
from wenet_hs.bin.main import (
    add_actions,
    add_transcript_arguments,
    check_at_least,
    check_bpe_model,
    main_of,
    read_utterances,
    run_action,
)
from wenet_hs.manifest.data_list import read_data_list
from wenet_hs.model.packed import resolve_model
from wenet_hs.score.tables import format_columns
from wenet_hs.text.tokenizer import KINDS as TOKENIZERS
from wenet_hs.text.tokenizer import make_tokenizer, read_unit_table
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import NaryTree, Tree, load_tree
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError, DataError
from wenet_hs.tree.nested import read_nested_tree
from wenet_hs.tree_kinds.counts import (
    Weighting,
    format_excess,
    language_costs,
    unit_frequencies,
    unit_sequences,
    with_blank_share,
)
from wenet_hs.tree_kinds.embedding import checkpoint_vectors, read_embeddings, write_embeddings
from wenet_hs.tree_kinds.kinds import (
    KINDS,
    TreeSource,
    build_tree,
    check_kind_options,
    required_input,
)
from wenet_hs.tree_kinds.plot import tree_page, tree_png, tree_svg, unit_label

BUILD_HELP = """Build tree.json from the units of data lists or text.

Example: wenet-hs tree build --kind huffman --units data/units.txt --data_list data/train/data.list --out data/tree.json
Example: wenet-hs tree build --kind classes --by top-of brown --units data/units.txt --data_list data/train/data.list \
--out data/tree-classes.json
Example: wenet-hs tree build --kind huffman --tokenizer word --units words.txt --text train.txt --out tree.json
"""
IMPORT_HELP = """Make tree.json from nested lists of units, or from a tree folder of the original implementation.

Example: wenet-hs tree import --nested my_tree.txt --units data/units.txt --out data/tree.json
Example: wenet-hs tree import --original huffman_tree --units data/units.txt --out data/tree.json
"""
SHOW_HELP = """Print the figures of a tree, its most frequent units and its cost per language; draw or explore it.

Example: wenet-hs tree show data/tree.json --svg tree.svg --png tree.png --html tree.html
Example: wenet-hs tree show data/tree.json --data_list data/train/data.list --units data/units.txt
"""
EXPORT_HELP = """Write a binary tree as a tree folder of the original implementation.

Example: wenet-hs tree export data/tree.json --original huffman_tree
"""


# ---- tree build

_KIND_OPTIONS = {name: option for kind in KINDS.values() for name, option in kind.options.items()}


def _add_build_arguments(parser: argparse.ArgumentParser) -> None:
    width = max(map(len, KINDS))
    kinds = [f"  {name:<{width}}  {kind.summary}" for name, kind in KINDS.items()]
    parser.epilog = "kinds: units are near each other if\n" + "\n".join(kinds)
    add = parser.add_argument
    add(
        "--kind",
        choices=KINDS,
        default="huffman",
        help="how the tree is built (default: %(default)s)",
    )
    add("--units", type=Path, required=True, help="units.txt of the model")
    add_transcript_arguments(parser)
    tokenizer_help = "as in the config; word: units between white space (default: %(default)s)"
    add("--tokenizer", choices=TOKENIZERS, default="char", help=tokenizer_help)
    add("--bpe_model", type=Path, help="sentencepiece model, for --tokenizer bpe")
    weighting_help = (
        "pooled: count all languages together; per_language: each language has the same weight. Brown and embedding "
        "always learn from the pooled transcripts (default: %(default)s)"
    )
    add("--weighting", choices=get_args(Weighting), default="pooled", help=weighting_help)
    share_help = "for a tree under CTC: <blank> has this share of the total, 0 < S < 1 (default: it is never predicted)"
    add("--blank_share", type=float, metavar="S", help=share_help)
    add("--out", type=Path, required=True, help="tree.json to write")
    group = parser.add_argument_group(
        "for some kinds only (a flag that --kind does not use is an error)"
    )
    for name, option in _KIND_OPTIONS.items():
        nargs = "+" if isinstance(option.metavar, tuple) else None
        group.add_argument(
            f"--{name}", type=option.type, metavar=option.metavar, nargs=nargs, help=option.help
        )


def _build(args: argparse.Namespace) -> None:
    given = {name: getattr(args, name) for name in _KIND_OPTIONS if getattr(args, name) is not None}
    options = {
        name: " ".join(value) if isinstance(value, list) else value for name, value in given.items()
    }
    table = read_unit_table(args.tokenizer, args.units)
    check_kind_options(args.kind, options, len(table))  # before minutes of counting
    check_bpe_model(args.tokenizer, args.bpe_model)
    if args.text and args.weighting == "per_language":
        to_do = "use --data_list, or --weighting pooled"
        raise ConfigError("--weighting per_language", "--text has no languages", to_do)
    utterances = read_utterances(args)
    tokenizer = make_tokenizer(args.tokenizer, table, args.bpe_model)
    frequencies = unit_frequencies(utterances, tokenizer, args.weighting)
    flag = "text" if args.text else "data_list"
    record = {"weighting": args.weighting, "tokenizer": args.tokenizer}
    record |= {flag: " ".join(map(str, getattr(args, flag))), "num_utterances": len(utterances)}
    if args.bpe_model is not None:
        record["bpe_model"] = str(args.bpe_model)
    if args.blank_share is not None:
        frequencies = with_blank_share(frequencies, table.special.blank, args.blank_share)
        record["blank_share"] = args.blank_share
    needed = required_input(args.kind, options)
    sequences = unit_sequences(utterances, tokenizer) if needed == "sequences" else None
    vectors = _read_vectors(args, table)
    if needed == "vectors" and vectors is None:
        from wenet_hs.lm.word2vec import unit_vectors  # imports torch, which few kinds need

        options["seed"] = seed = args.seed or 0
        vectors = unit_vectors(unit_sequences(utterances, tokenizer), len(table), seed)
        if args.save_embeddings:
            write_embeddings(args.save_embeddings, table.units, vectors)
    source = TreeSource(table.units, frequencies, sequences, vectors, options)
    tree = build_tree(args.kind, source, record)
    tree.save(args.out)
    print(f"{args.out}: {figures(tree)}")


def _read_vectors(args: argparse.Namespace, table: UnitTable) -> NDArray[np.floating[Any]] | None:
    """The vectors of --embeddings or --checkpoint; None without either."""
    if args.embeddings:
        return read_embeddings(args.embeddings, table.units)
    if not args.checkpoint:
        return None
    from wenet_hs.model.checkpoint import (
        read_weights,
        weights_path,
    )  # imports torch, which no other kind needs

    path = weights_path(resolve_model(args.checkpoint))
    folders = [
        path.parent,
        *path.parents[1:3],
    ]  # of final.pt, checkpoints/NAME.pt and NAME/model.pt
    own = next(
        (folder / "units.txt" for folder in folders if (folder / "units.txt").is_file()), None
    )
    if own is not None and UnitTable.read(own).units != table.units:
        raise DataError(own, f"the model has other units than {args.units}", f"use --units {own}")
    return checkpoint_vectors(read_weights(path), len(table), str(path))


# ---- tree show

MAX_CODE = 60
MAX_LEAVES = 60
MAX_OPTION = 200


def _add_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tree", type=Path, help="tree.json")
    parser.add_argument(
        "--svg", type=Path, help="draw the tree into this file, for light and dark pages"
    )
    parser.add_argument("--png", type=Path, help="the same drawing as a picture, dark on white")
    parser.add_argument(
        "--html", type=Path, help="a page to open branches and search units, without a network"
    )
    parser.add_argument(
        "--max_leaves",
        type=int,
        metavar="N",
        help=f"rows of --svg and --png (default: {MAX_LEAVES})",
    )
    group = parser.add_argument_group("code lengths by language")
    group.add_argument(
        "--data_list", type=Path, help="data.list whose transcripts are counted per language"
    )
    group.add_argument("--units", type=Path, help="units.txt of the tree, for --data_list")
    group.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        help="as in the config (default: the tree's own, else char)",
    )
    group.add_argument("--bpe_model", type=Path, help="sentencepiece model, for --tokenizer bpe")


def _show(args: argparse.Namespace) -> None:
    check_at_least(args, 1, "max_leaves")
    if args.max_leaves and not (args.svg or args.png):
        to_do = "add one of them, or leave --max_leaves out"
        raise ConfigError("--max_leaves", "is used with --svg and --png only", to_do)
    if args.data_list and not args.units:
        raise ConfigError(
            "--data_list",
            "needs --units as well",
            "name the units.txt that the tree was built with",
        )
    for name in ("units", "tokenizer", "bpe_model"):
        if getattr(args, name) and not args.data_list:
            raise ConfigError(
                f"--{name}",
                "is used with --data_list only",
                f"add --data_list, or leave --{name} out",
            )
    tree = load_tree(args.tree)
    table = _language_table(args, tree) if args.data_list else []
    print(figures(tree))
    for name, value in tree.options.items():
        print(f"  {_printable(name)}: {_printable(value)}")
    probabilities = tree.probabilities()
    most_frequent = np.argsort(-tree.frequencies, kind="stable")[:20].tolist()
    rows = [
        (unit_label(tree.units[unit_id]), f"{100 * probabilities[unit_id]:6.2f} %")
        for unit_id in most_frequent
    ]
    for unit_id, line in zip(most_frequent, format_columns(rows), strict=True):
        code = tree.code(tree.num_inner + unit_id)
        print(f"{line}  {code if len(code) <= MAX_CODE else code[: MAX_CODE - 1] + '…'}".rstrip())
    for line in format_columns(table):
        print(line)
    for path, draw in ((args.svg, tree_svg), (args.png, tree_png)):
        if path:
            write_atomic(path, draw(tree, max_leaves=args.max_leaves or MAX_LEAVES))
            print(f"{path}: drawn")
    if args.html:
        write_atomic(args.html, tree_page(tree, figures(tree).partition(" | ")[2], table))
        print(f"{args.html}: written; open it in a browser")


def figures(tree: Tree | NaryTree) -> str:
    """Size, depth, code length and redundancy (the code length above the entropy) in one line."""
    length, entropy = tree.mean_code_length(), tree.entropy()
    return (
        f"{tree.kind} tree of {tree.num_units} units | depth {tree.depth} | mean code length {length:.3f} bits | "
        f"entropy {entropy:.3f} bits | redundancy {format_excess(length, entropy, ' bits')}"
    )


def _printable(value: object) -> str:
    """A value of a file as text without control characters: what is not printable is escaped."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    shown = one_field(text[:MAX_OPTION])
    return shown if len(text) <= MAX_OPTION else f"{shown}…"


def _language_table(args: argparse.Namespace, tree: Tree | NaryTree) -> list[tuple[str, ...]]:
    """The rows of `language_costs`: the mean code length of each language's units, in bits per
    unit.
    """
    table = UnitTable.read(args.units)
    if table.units != tree.units:
        pairs = enumerate(zip(table.units, tree.units, strict=False))
        found = next(
            (f"unit {i} is {a!r} here and {b!r} in the tree" for i, (a, b) in pairs if a != b), None
        )
        found = found or f"{len(table)} units here and {tree.num_units} in the tree"
        found = f"not the units of {args.tree} ({found})"
        raise DataError(args.units, found, "give the units.txt that the tree was built with")
    recorded = tree.options.get("tokenizer")
    kind = args.tokenizer or (recorded if recorded in TOKENIZERS else "char")
    check_bpe_model(kind, args.bpe_model)
    return language_costs(
        tree, read_data_list(args.data_list), make_tokenizer(kind, table, args.bpe_model)
    )


# ---- tree import and tree export


def _add_import_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--nested", type=Path, metavar="FILE", help='JSON such as [["a", "b"], ["c", "d", "e"]]'
    )
    source.add_argument(
        "--original", type=Path, metavar="DIR", help="tree folder of the original implementation"
    )
    parser.add_argument("--units", type=Path, required=True, help="units.txt of the model")
    parser.add_argument("--out", type=Path, required=True, help="tree.json to write")


def _import(args: argparse.Namespace) -> None:
    units = UnitTable.read(args.units).units
    if args.nested:
        tree = read_nested_tree(args.nested, units)
    else:
        from wenet_hs.tree.original import read_original_tree  # imports torch

        tree = read_original_tree(args.original, units)
    tree.save(args.out)
    print(f"{args.out}: {figures(tree)}")


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tree", type=Path, help="tree.json")
    parser.add_argument(
        "--original", type=Path, metavar="DIR", required=True, help="folder to write"
    )


def _export(args: argparse.Namespace) -> None:
    from wenet_hs.tree.original import write_original_tree  # imports torch

    tree = Tree.load(args.tree)
    write_original_tree(tree, args.original)
    print(f"{args.original}: tree of {tree.num_units} units, depth {tree.depth}")


ACTIONS = {
    "build": (BUILD_HELP, _add_build_arguments, _build),
    "show": (SHOW_HELP, _add_show_arguments, _show),
    "import": (IMPORT_HELP, _add_import_arguments, _import),
    "export": (EXPORT_HELP, _add_export_arguments, _export),
}
add_arguments, run = partial(add_actions, actions=ACTIONS), run_action


if __name__ == "__main__":
    main_of(__name__)
