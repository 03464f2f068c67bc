# SPDX-License-Identifier: Apache-2.0
"""Build a tree over the units, show one, or exchange one with other software.

Example: wenet-hs tree build --kind huffman --units data/units.txt --data_list data/train/data.list --out data/tree.json
Example: wenet-hs tree build --kind brown --units data/units.txt --data_list data/train/data.list --out data/tree.json
Example: wenet-hs tree show data/tree.json --svg tree.svg
Example: wenet-hs tree import --original huffman_tree --units data/units.txt --out data/tree.json
Example: wenet-hs tree export data/tree.json --original huffman_tree
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wenet_hs.bin import tree_show
from wenet_hs.bin.command import add_transcript_arguments, main_of, read_transcripts
from wenet_hs.bin.tree_show import check_bpe_model, figures
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.text.tokenizer import KINDS as TOKENIZERS
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import Tree
from wenet_hs.tree.build import KINDS, KindOption, build_tree, check_options, needs_sequences
from wenet_hs.tree.counts import WEIGHTINGS, unit_frequencies, unit_sequences, with_blank_share
from wenet_hs.tree.embedding import checkpoint_vectors, read_embeddings

BUILD_HELP = """Build tree.json from the units of data lists or text.

Example: wenet-hs tree build --kind huffman --units data/units.txt --data_list data/train/data.list --out data/tree.json
Example: wenet-hs tree build --kind classes --by top-of brown --units data/units.txt --data_list data/train/data.list \
--out data/tree-classes.json
Example: wenet-hs tree build --kind huffman --tokenizer word --units words.txt --text train.txt --out tree.json
"""
IMPORT_HELP = """Make tree.json from a tree folder of the original implementation, or from a gensim word2vec model.

Example: wenet-hs tree import --original huffman_tree --units data/units.txt --out data/tree.json
Example: wenet-hs tree import --gensim w2v.model --trust_pickle --add_missing --units units.txt --out tree.json
"""
EXPORT_HELP = """Write a binary tree as a tree folder of the original implementation.

Example: wenet-hs tree export data/tree.json --original huffman_tree
"""


# ---- tree build


def _add_build_arguments(parser: argparse.ArgumentParser) -> None:
    width = max(map(len, KINDS))
    kinds = [f"  {name:<{width}}  {kind.summary}" for name, kind in KINDS.items()]
    parser.epilog = "kinds: units are near each other if\n" + "\n".join(kinds)
    parser.add_argument("--kind", choices=KINDS, default="huffman", help="how the tree is built (default: %(default)s)")
    parser.add_argument("--units", type=Path, required=True, help="units.txt of the model")
    add_transcript_arguments(parser)
    parser.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        default="char",
        help="as in the config; word: units between white space (default: %(default)s)",
    )
    parser.add_argument("--bpe_model", type=Path, help="sentencepiece model, for --tokenizer bpe")
    parser.add_argument(
        "--weighting",
        choices=WEIGHTINGS,
        default="pooled",
        help="pooled: count all languages together; per_language: each language has the same weight. Brown and "
        "embedding always learn from the pooled transcripts (default: pooled)",
    )
    parser.add_argument(
        "--blank_share",
        type=float,
        metavar="S",
        help="for a tree under CTC: <blank> has this share of the total, 0 < S < 1 (default: it is never predicted)",
    )
    parser.add_argument("--out", type=Path, required=True, help="tree.json to write")
    group = parser.add_argument_group("for some kinds only (a flag that --kind does not use is an error)")
    for name, option in _kind_options().items():
        nargs = "+" if isinstance(option.metavar, tuple) else None
        group.add_argument(f"--{name}", type=option.type, metavar=option.metavar, nargs=nargs, help=option.help)


def _kind_options() -> dict[str, KindOption]:
    return {name: option for kind in KINDS.values() for name, option in kind.options.items()}


def _build(args: argparse.Namespace) -> None:
    """Count, build, save, and print the figures."""
    given = {name: getattr(args, name) for name in _kind_options() if getattr(args, name) is not None}
    options = {name: " ".join(value) if isinstance(value, list) else value for name, value in given.items()}
    table = UnitTable.read(args.units)
    check_options(args.kind, options, len(table))  # before minutes of counting
    check_bpe_model(args.tokenizer, args.bpe_model)
    if args.text and args.weighting == "per_language":
        raise ConfigError("--weighting per_language: --text has no languages; use --data_list, or --weighting pooled")
    utterances = read_transcripts(args)
    tokenizer = make_tokenizer(args.tokenizer, table, args.bpe_model)
    frequencies = unit_frequencies(utterances, tokenizer, args.weighting)
    source = "text" if args.text else "data_list"
    record = {"weighting": args.weighting, "tokenizer": args.tokenizer}
    record |= {source: " ".join(map(str, getattr(args, source))), "num_utterances": len(utterances)}
    if args.bpe_model is not None:
        record["bpe_model"] = str(args.bpe_model)
    if args.blank_share is not None:
        frequencies = with_blank_share(frequencies, table.special.blank, args.blank_share)
        record["blank_share"] = args.blank_share
    tree = build_tree(
        args.kind,
        table.units,
        frequencies,
        sequences=unit_sequences(utterances, tokenizer) if needs_sequences(args.kind, options) else None,
        vectors=_vectors(args, table),
        options=options,
        record=record,
    )
    tree.save(args.out)
    print(f"{args.out}: {figures(tree)}")


def _vectors(args: argparse.Namespace, table: UnitTable) -> NDArray[np.floating[Any]] | None:
    """The vectors of --embeddings or --checkpoint; None without either."""
    if args.embeddings:
        return read_embeddings(args.embeddings, table.units)
    if not args.checkpoint:
        return None
    from wenet_hs.interop.weights import load_state  # imports torch, which no other kind needs

    folder = args.checkpoint
    path = folder / "final.pt" if folder.is_dir() and not (folder / "model.pt").exists() else folder
    _check_units(path, table, args.units)
    return checkpoint_vectors(load_state(path), len(table), str(path))


def _check_units(checkpoint: Path, table: UnitTable, units: Path) -> None:
    """Compare the units with the units.txt in the model's folder, if there is one."""
    folders = [checkpoint.parent, *checkpoint.parents[1:3]]  # of final.pt, checkpoints/NAME.pt and NAME/model.pt
    own = next((folder / "units.txt" for folder in folders if (folder / "units.txt").is_file()), None)
    if own is not None and UnitTable.read(own).units != table.units:
        raise DataError(f"{own}: the model has other units than {units}; use --units {own}")


# ---- tree import and tree export


def _add_import_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--original", type=Path, metavar="DIR", help="tree folder of the original implementation")
    source.add_argument(
        "--gensim", type=Path, metavar="FILE", help="file written by `save` of a gensim Word2Vec (hs=1)"
    )
    parser.add_argument(
        "--trust_pickle", action="store_true", help="read the gensim file although reading it can run code in it"
    )
    parser.add_argument(
        "--add_missing",
        action="store_true",
        help="units that are not words of gensim's model become a subtree of their own under the root",
    )
    parser.add_argument("--units", type=Path, required=True, help="units.txt of the model")
    parser.add_argument("--out", type=Path, required=True, help="tree.json to write")


def _import(args: argparse.Namespace) -> None:
    """Read, check, save, and print the figures. The readers import torch, which the other actions do not need."""
    units = UnitTable.read(args.units).units
    if args.gensim:
        from wenet_hs.interop.gensim import gensim_tree, load_gensim, tree_over

        model = load_gensim(args.gensim, trust_pickle=args.trust_pickle)
        try:
            tree = tree_over(gensim_tree(model), units, add_missing=args.add_missing)
        except DataError as error:
            raise DataError(f"{args.gensim}: {error}") from error
        left_out = tree.options["left_out"]
        if left_out:
            print(f"{args.gensim}: {left_out} of {tree.options['words']} words are not units and were left out")
    else:
        for flag in ("trust_pickle", "add_missing"):
            if getattr(args, flag):
                raise ConfigError(f"--{flag}: belongs to --gensim; leave it out with --original")
        from wenet_hs.interop.hsoftmax_original import read_original_tree

        tree = read_original_tree(args.original, units).tree
    tree.save(args.out)
    print(f"{args.out}: {figures(tree)}")


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tree", type=Path, help="tree.json")
    parser.add_argument("--original", type=Path, metavar="DIR", required=True, help="folder to write")


def _export(args: argparse.Namespace) -> None:
    from wenet_hs.interop.hsoftmax_original import write_original_tree  # imports torch

    tree = Tree.load(args.tree)
    write_original_tree(tree, args.original)
    print(f"{args.original}: tree of {tree.num_units} units, depth {tree.depth}")


# ---- the command


class Action(NamedTuple):
    """A subcommand: its help, the function that adds its flags, and the function that runs it."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


ACTIONS = {
    "build": Action(BUILD_HELP, _add_build_arguments, _build),
    "show": Action(tree_show.__doc__ or "", tree_show.add_arguments, tree_show.run),
    "import": Action(IMPORT_HELP, _add_import_arguments, _import),
    "export": Action(EXPORT_HELP, _add_export_arguments, _export),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An action and its flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="|".join(ACTIONS))
    raw = argparse.RawDescriptionHelpFormatter
    for name, action in ACTIONS.items():
        summary = action.help.partition("\n")[0]
        action.add_arguments(actions.add_parser(name, help=summary, description=action.help, formatter_class=raw))


def run(args: argparse.Namespace) -> None:
    """Run the action."""
    ACTIONS[args.action].run(args)


if __name__ == "__main__":
    main_of(__name__)
