# SPDX-License-Identifier: Apache-2.0
"""Build a tree over the units, show one, or exchange one with other software.

Example: wenet-hs tree build --kind huffman --units data/units.txt \\
             --data_list data/train/data.list --out data/tree.json
Example: wenet-hs tree show data/tree.json --svg tree.svg

`wenet-hs tree build --help` and the help texts of the other actions have more examples.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from wenet_hs.base.files import one_field
from wenet_hs.bin.main import (
    Action,
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
    KindOption,
    TreeSource,
    build_tree,
    check_kind_options,
    required_input,
)
from wenet_hs.tree_kinds.plot import tree_page, tree_png, tree_svg, unit_label

BUILD_HELP = """Build tree.json from the units of data lists or text.

Example: wenet-hs tree build --kind huffman --units data/units.txt \\
             --data_list data/train/data.list --out data/tree.json
Example: wenet-hs tree build --kind classes --by top-of brown --units data/units.txt \\
             --data_list data/train/data.list --out data/tree-classes.json
Example: wenet-hs tree build --kind huffman --tokenizer word --units words.txt \\
             --text train.txt --out tree.json
"""
SHOW_HELP = """Print the figures of a tree, and its most frequent units; draw or explore it.

Example: wenet-hs tree show data/tree.json --svg tree.svg --png tree.png --html tree.html
Example: wenet-hs tree show data/tree.json --data_list data/train/data.list --units data/units.txt

With --data_list also the cost per language.
"""
IMPORT_HELP = """Make tree.json from nested lists, or from a folder of the original implementation.

Example: wenet-hs tree import --nested my_tree.txt --units data/units.txt --out data/tree.json
Example: wenet-hs tree import --original huffman_tree --units data/units.txt --out data/tree.json
"""
EXPORT_HELP = """Write a binary tree as a tree folder of the original implementation.

Example: wenet-hs tree export data/tree.json --original huffman_tree
"""


# ---- tree build


def _collect_kind_options() -> dict[str, KindOption]:
    """The options that only some kinds of trees have, by name."""
    options: dict[str, KindOption] = {}
    for kind in KINDS.values():
        options |= kind.options
    return options


_KIND_OPTIONS = _collect_kind_options()


def _add_build_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `tree build`, and list the kinds of trees at the end of its help."""
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
        "pooled: count all languages together; per_language: each language has the same weight. "
        "Brown and embedding always learn from the pooled transcripts (default: %(default)s)"
    )
    add("--weighting", choices=get_args(Weighting), default="pooled", help=weighting_help)
    share_help = (
        "for a tree under CTC: <blank> has this share of the total, 0 < S < 1 "
        "(default: it is never predicted)"
    )
    add("--blank_share", type=float, metavar="S", help=share_help)
    add("--out", type=Path, required=True, help="tree.json to write")
    group = parser.add_argument_group(
        "for some kinds only (a flag that --kind does not use is an error)"
    )
    for name, option in _KIND_OPTIONS.items():
        nargs = "+" if isinstance(option.metavar, tuple) else None  # a tuple names several values
        group.add_argument(
            f"--{name}", type=option.type, metavar=option.metavar, nargs=nargs, help=option.help
        )


def _build(args: argparse.Namespace) -> None:
    """Build a tree from the counts of the units, save it, and print its figures.

    Some kinds also need the transcripts as sequences of units, or vectors of the units. Vectors
    that no flag names are learnt from the transcripts, and saved with --save_embeddings.
    The options and the source of the counts are recorded in the tree.
    """
    options = _read_kind_options(args)
    table = read_unit_table(args.tokenizer, args.units)
    check_kind_options(args.kind, options, len(table))  # before minutes of counting
    check_bpe_model(args.tokenizer, args.bpe_model)
    if args.text and args.weighting == "per_language":
        to_do = "use --data_list, or --weighting pooled"
        raise ConfigError("--weighting per_language", "--text has no languages", to_do)
    utterances = read_utterances(args)
    tokenizer = make_tokenizer(args.tokenizer, table, args.bpe_model)
    frequencies = unit_frequencies(utterances, tokenizer, args.weighting)
    if args.blank_share is not None:
        frequencies = with_blank_share(frequencies, table.special.blank, args.blank_share)
    needed_input = required_input(args.kind, options)
    sequences = unit_sequences(utterances, tokenizer) if needed_input == "sequences" else None
    vectors = _read_vectors(args, table)
    if needed_input == "vectors" and vectors is None:
        from wenet_hs.lm.word2vec import unit_vectors  # imports torch, which few kinds need

        seed = args.seed or 0
        options["seed"] = seed
        vectors = unit_vectors(unit_sequences(utterances, tokenizer), len(table), seed)
        if args.save_embeddings:
            write_embeddings(args.save_embeddings, table.units, vectors)
    source = TreeSource(
        units=table.units,
        frequencies=frequencies,
        sequences=sequences,
        vectors=vectors,
        options=options,
    )
    tree = build_tree(args.kind, source, _record_of_build(args, len(utterances)))
    tree.save(args.out)
    print(f"{args.out}: {describe_tree(tree)}")


def _read_kind_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of kinds that were given, by name; several words of one are joined by spaces."""
    options = {}
    for name in _KIND_OPTIONS:
        value = getattr(args, name)
        if isinstance(value, list):
            options[name] = " ".join(value)
        elif value is not None:
            options[name] = value
    return options


def _record_of_build(args: argparse.Namespace, num_utterances: int) -> dict[str, Any]:
    """What the tree states about its counts: flags, files of transcripts, number of utterances."""
    source_flag = "text" if args.text else "data_list"
    source_files = getattr(args, source_flag)
    record = {
        "weighting": args.weighting,
        "tokenizer": args.tokenizer,
        source_flag: " ".join(map(str, source_files)),
        "num_utterances": num_utterances,
    }
    if args.bpe_model is not None:
        record["bpe_model"] = str(args.bpe_model)
    if args.blank_share is not None:
        record["blank_share"] = args.blank_share
    return record


def _read_vectors(args: argparse.Namespace, table: UnitTable) -> NDArray[np.floating[Any]] | None:
    """The vectors of --embeddings or --checkpoint, one row per unit; None without both flags.

    Raises DataError if the model of --checkpoint has other units than `table`.
    """
    if args.embeddings:
        return read_embeddings(args.embeddings, table.units)
    if not args.checkpoint:
        return None
    # imports torch, which no other kind needs
    from wenet_hs.model.checkpoint import read_weights, weights_path

    path = weights_path(resolve_model(args.checkpoint))
    model_units = _find_units_of_model(path)
    if model_units is not None and UnitTable.read(model_units).units != table.units:
        fault = f"the model has other units than {args.units}"
        raise DataError(model_units, fault, f"use --units {model_units}")
    return checkpoint_vectors(read_weights(path), len(table), str(path))


def _find_units_of_model(weights: Path) -> Path | None:
    """The units.txt of the model with these weights; None if it has none.

    The weights are MODEL/final.pt, MODEL/checkpoints/NAME.pt or MODEL/checkpoints/NAME/model.pt.
    """
    for folder in weights.parents[:3]:
        path = folder / "units.txt"
        if path.is_file():
            return path
    return None


# ---- tree show

NUM_FREQUENT = 20
"""Units that are printed, the most frequent first."""
MAX_CODE = 60
"""Characters of a code that are printed."""
MAX_LEAVES = 60
MAX_OPTION = 200
"""Characters of a recorded option that are printed."""


def _add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `tree show`."""
    add = parser.add_argument
    add("tree", type=Path, help="tree.json")
    add("--svg", type=Path, help="draw the tree into this file, for light and dark pages")
    add("--png", type=Path, help="the same drawing as a picture, dark on white")
    add("--html", type=Path, help="a page to open branches and search units, without a network")
    leaves_help = f"rows of --svg and --png (default: {MAX_LEAVES})"
    add("--max_leaves", type=int, metavar="N", help=leaves_help)
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
    """Print figures, options, frequent units and the costs of a tree; write the drawings."""
    _check_show_flags(args)
    tree = load_tree(args.tree)
    language_rows = _cost_per_language(args, tree) if args.data_list else []
    print(describe_tree(tree))
    for name, value in tree.options.items():
        print(f"  {_printable(name)}: {_printable(value)}")
    for line in _list_frequent_units(tree):
        print(line)
    for line in format_columns(language_rows):
        print(line)
    max_leaves = args.max_leaves or MAX_LEAVES
    if args.svg:
        write_atomic(args.svg, tree_svg(tree, max_leaves=max_leaves))
        print(f"{args.svg}: drawn")
    if args.png:
        write_atomic(args.png, tree_png(tree, max_leaves=max_leaves))
        print(f"{args.png}: drawn")
    if args.html:
        figures = describe_tree(tree).partition(" | ")[2]  # without kind and size
        write_atomic(args.html, tree_page(tree, figures, language_rows))
        print(f"{args.html}: written; open it in a browser")


def _check_show_flags(args: argparse.Namespace) -> None:
    """Raise ConfigError for a flag without the other one that it needs."""
    check_at_least(args, 1, "max_leaves")
    if args.max_leaves and not (args.svg or args.png):
        to_do = "add one of them, or leave --max_leaves out"
        raise ConfigError("--max_leaves", "is used with --svg and --png only", to_do)
    if args.data_list and not args.units:
        to_do = "name the units.txt that the tree was built with"
        raise ConfigError("--data_list", "needs --units as well", to_do)
    for name in ("units", "tokenizer", "bpe_model"):
        if getattr(args, name) and not args.data_list:
            to_do = f"add --data_list, or leave --{name} out"
            raise ConfigError(f"--{name}", "is used with --data_list only", to_do)


def describe_tree(tree: Tree | NaryTree) -> str:
    """Size, depth, mean code length, entropy and redundancy in one line.

    The redundancy is how much the mean code length is above the entropy.
    """
    length = tree.mean_code_length()
    entropy = tree.entropy()
    redundancy = format_excess(length, entropy, " bits")
    figures = (
        f"{tree.kind} tree of {tree.num_units} units",
        f"depth {tree.depth}",
        f"mean code length {length:.3f} bits",
        f"entropy {entropy:.3f} bits",
        f"redundancy {redundancy}",
    )
    return " | ".join(figures)


def _printable(value: object) -> str:
    """A value of a file as text that a terminal can show.

    Control characters are escaped, a value that is no text is JSON, and a long one is cut.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    escaped = one_field(text[:MAX_OPTION])
    return f"{escaped}…" if len(text) > MAX_OPTION else escaped


def _list_frequent_units(tree: Tree | NaryTree) -> Iterator[str]:
    """Lines with the most frequent units: label, share of all units, and code, cut if it is long.

    Units of the same frequency are in the order of the unit table.
    """
    probabilities = tree.probabilities()
    unit_ids = np.argsort(-tree.frequencies, kind="stable")[:NUM_FREQUENT].tolist()
    rows = []
    for unit_id in unit_ids:
        rows.append((unit_label(tree.units[unit_id]), f"{100 * probabilities[unit_id]:6.2f} %"))
    for unit_id, columns in zip(unit_ids, format_columns(rows), strict=True):
        code = tree.code(tree.num_inner + unit_id)  # the leaves are numbered after the inner nodes
        if len(code) > MAX_CODE:
            code = code[: MAX_CODE - 1] + "…"
        yield f"{columns}  {code}".rstrip()


def _cost_per_language(args: argparse.Namespace, tree: Tree | NaryTree) -> list[tuple[str, ...]]:
    """The rows of `language_costs`: the mean code length of the units of each language, in bits.

    The transcripts are divided by --tokenizer, else by the tokenizer that is recorded in the tree,
    else into characters. Raises DataError if the table of --units is not that of the tree.
    """
    table = UnitTable.read(args.units)
    difference = _find_difference(table.units, tree.units)
    if difference is not None:
        fault = f"not the units of {args.tree} ({difference})"
        raise DataError(args.units, fault, "give the units.txt that the tree was built with")
    recorded = tree.options.get("tokenizer")
    default = recorded if recorded in TOKENIZERS else "char"
    kind = args.tokenizer or default
    check_bpe_model(kind, args.bpe_model)
    tokenizer = make_tokenizer(kind, table, args.bpe_model)
    return language_costs(tree, read_data_list(args.data_list), tokenizer)


def _find_difference(units: Sequence[str], tree_units: Sequence[str]) -> str | None:
    """The first difference of the units of a table and of a tree, in words; None if all are equal.

    It is the first unit that differs, or the numbers of units, if all units up to the end of the
    shorter list are equal.
    """
    for unit_id, (here, in_tree) in enumerate(zip(units, tree_units, strict=False)):
        if here != in_tree:
            return f"unit {unit_id} is {here!r} here and {in_tree!r} in the tree"
    if len(units) != len(tree_units):
        return f"{len(units)} units here and {len(tree_units)} in the tree"
    return None


# ---- tree import and tree export


def _add_import_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `tree import`."""
    source = parser.add_mutually_exclusive_group(required=True)
    nested_help = 'JSON such as [["a", "b"], ["c", "d", "e"]]'
    source.add_argument("--nested", type=Path, metavar="FILE", help=nested_help)
    original_help = "tree folder of the original implementation"
    source.add_argument("--original", type=Path, metavar="DIR", help=original_help)
    parser.add_argument("--units", type=Path, required=True, help="units.txt of the model")
    parser.add_argument("--out", type=Path, required=True, help="tree.json to write")


def _import(args: argparse.Namespace) -> None:
    """Read a tree in one of the two other formats, save it as tree.json, and print its figures."""
    units = UnitTable.read(args.units).units
    tree: Tree | NaryTree
    if args.nested:
        tree = read_nested_tree(args.nested, units)
    else:
        from wenet_hs.tree.original import read_original_tree  # imports torch

        tree = read_original_tree(args.original, units)
    tree.save(args.out)
    print(f"{args.out}: {describe_tree(tree)}")


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `tree export`."""
    parser.add_argument("tree", type=Path, help="tree.json")
    parser.add_argument(
        "--original", type=Path, metavar="DIR", required=True, help="folder to write"
    )


def _export(args: argparse.Namespace) -> None:
    """Write the tree in the format of the original implementation. It must be binary."""
    from wenet_hs.tree.original import write_original_tree  # imports torch

    tree = Tree.load(args.tree)
    write_original_tree(tree, args.original)
    print(f"{args.original}: tree of {tree.num_units} units, depth {tree.depth}")


ACTIONS = {
    "build": Action(help=BUILD_HELP, add_flags=_add_build_arguments, run=_build),
    "show": Action(help=SHOW_HELP, add_flags=_add_show_arguments, run=_show),
    "import": Action(help=IMPORT_HELP, add_flags=_add_import_arguments, run=_import),
    "export": Action(help=EXPORT_HELP, add_flags=_add_export_arguments, run=_export),
}
add_arguments = partial(add_actions, actions=ACTIONS)
run = run_action


if __name__ == "__main__":
    main_of(__name__)
