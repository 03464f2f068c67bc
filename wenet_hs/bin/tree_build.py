# SPDX-License-Identifier: Apache-2.0
"""Build tree.json from the units of a data list.

Example: wenet-hs tree build --kind huffman --units data/units.txt --data_list data/train/data.list --out data/tree.json
Example: wenet-hs tree build --kind classes --by top-of brown --units data/units.txt --data_list data/train/data.list \
--out data/tree-classes.json
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wenet_hs.bin.tree_show import check_bpe_model, figures
from wenet_hs.errors import DataError
from wenet_hs.manifest import read_data_list
from wenet_hs.text.tokenizer import KINDS as TOKENIZERS
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.tree.build import (
    KINDS,
    WEIGHTINGS,
    BuildOptions,
    binary_kind,
    build_tree,
    check_options,
    needs_sequences,
    unit_frequencies,
    unit_sequences,
    with_blank_share,
)
from wenet_hs.tree.embedding import checkpoint_vectors, read_embeddings


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
        help="pooled: count all languages together; per_language: each language has the same weight; what brown and "
        "embedding learn from the transcripts is pooled in any case (default: pooled)",
    )
    parser.add_argument(
        "--blank_share",
        type=float,
        metavar="S",
        help="for a tree under CTC: <blank> has this share of all mass, 0 < S < 1 (default: it is never predicted)",
    )
    parser.add_argument("--out", type=Path, required=True, help="tree.json to write")
    _add_options(parser.add_argument_group("for some kinds alone (a flag that --kind does not use is an error)"))


def _add_options(group: argparse._ArgumentGroup) -> None:
    """The flags that become `BuildOptions`; without one the kind's own default holds."""
    group.add_argument("--max_depth", type=int, metavar="N", help="huffman: no code is longer than N bits")
    group.add_argument("--seed", type=int, metavar="N", help="random, and embedding where it trains (default: 0)")
    group.add_argument(
        "--embeddings",
        type=Path,
        metavar="FILE",
        help="embedding: vectors of the units, word2vec's text or .npz or .npy "
        "(default: skip-gram with hierarchical softmax is trained on the transcripts)",
    )
    group.add_argument(
        "--checkpoint",
        type=Path,
        metavar="MODEL_DIR_OR_PT",
        help="embedding: the output rows of a trained softmax model, ours or WeNet's, are the vectors",
    )
    group.add_argument("--num_classes", type=int, metavar="C", help="classes: children of the root (default: √V)")
    group.add_argument(
        "--by",
        nargs="+",
        metavar=("frequency|top-of", "KIND"),
        help="classes: bins of equal frequency, or the top of a binary tree of KIND (default: frequency)",
    )


def run(args: argparse.Namespace) -> None:
    """Count, build, save, and print the figures."""
    by = " ".join(args.by) if args.by else None
    options = BuildOptions(args.max_depth, args.seed, args.embeddings, args.checkpoint, args.num_classes, by)
    table = UnitTable.read(args.units)
    check_options(args.kind, options, len(table))  # before minutes of counting
    check_bpe_model(args.tokenizer, args.bpe_model)
    utterances = read_data_list(args.data_list)
    tokenizer = make_tokenizer(args.tokenizer, table, args.bpe_model)
    frequencies = unit_frequencies(utterances, tokenizer, args.weighting)
    if args.blank_share is not None:
        frequencies = with_blank_share(frequencies, table.special.blank, args.blank_share)
    begin = binary_kind(args.kind, options) == "brown"
    sequences = unit_sequences(utterances, tokenizer, begin=begin) if needs_sequences(args.kind, options) else None
    tree = build_tree(
        args.kind,
        table.units,
        frequencies,
        sequences=sequences,
        vectors=_vectors(args, table),
        options=options,
        record=_record(args, len(utterances)),
    )
    tree.save(args.out)
    print(f"{args.out}: {figures(tree)}")


def _vectors(args: argparse.Namespace, table: UnitTable) -> NDArray[np.floating[Any]] | None:
    """The vectors of the file or model that is named; None where there is none."""
    if args.embeddings:
        return read_embeddings(args.embeddings, table.units)
    if not args.checkpoint:
        return None
    from wenet_hs.interop.weights import load_state  # with it torch, which no other tree needs

    folder = args.checkpoint
    path = folder / "final.pt" if folder.is_dir() and not (folder / "model.pt").exists() else folder
    _check_units(path, table, args.units)
    return checkpoint_vectors(load_state(path), len(table), str(path))


def _check_units(checkpoint: Path, table: UnitTable, units: Path) -> None:
    """The row of a unit must be the unit's: compare the units.txt of the model's folder, where there is one."""
    folders = [checkpoint.parent, *checkpoint.parents[1:3]]  # of final.pt, of checkpoints/NAME.pt and NAME/model.pt
    own = next((folder / "units.txt" for folder in folders if (folder / "units.txt").is_file()), None)
    if own is not None and UnitTable.read(own).units != table.units:
        raise DataError(f"{own}: the model has other units than {units}; use --units {own}")


def _record(args: argparse.Namespace, num_utterances: int) -> dict[str, Any]:
    """Where the counts come from, for the options of the tree."""
    record = {"weighting": args.weighting, "tokenizer": args.tokenizer, "data_list": str(args.data_list)}
    given = {"bpe_model": args.bpe_model and str(args.bpe_model), "blank_share": args.blank_share}
    kept = {name: value for name, value in given.items() if value is not None}
    return {**record, "num_utterances": num_utterances, **kept}
