# SPDX-License-Identifier: Apache-2.0
"""Train word vectors with word2vec: skip-gram or CBOW with a tree or a full softmax.

Write word2vec's text format.

Example: wenet-hs embed --text train.txt --out vectors.txt
         wenet-hs embed --text train.txt --units words.txt --arch cbow --window 8 --tree tree.json --out vectors.txt
         wenet-hs embed --data_list data/train/data.list --units data/units.txt --tokenizer phone --dim 32 \\
             --out vectors.txt
         wenet-hs tree build --kind embedding --embeddings vectors.txt --tokenizer word --text train.txt \\
             --units words.txt --out tree-embedding.json
"""

import argparse
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
from rich.console import Console
from rich.progress import track

from wenet_hs.bin.main import (
    add_transcript_arguments,
    check_at_least,
    check_bpe_model,
    main_of,
    read_utterances,
)
from wenet_hs.lm.word2vec import (
    Architecture,
    EncodedText,
    SentenceRange,
    Word2VecOptions,
    encode_text,
    train_word2vec,
)
from wenet_hs.model.experiment import check_tree
from wenet_hs.text.tokenizer import KINDS, count_units, make_tokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import Tree, load_tree
from wenet_hs.tree.errors import ConfigError, DataError, list_names
from wenet_hs.tree_kinds.embedding import write_embeddings

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, default = parser.add_argument, Word2VecOptions()
    add_transcript_arguments(parser)
    units_help = "units.txt; other words of the text are left out (default: the words of the text, see --min_count)"
    add("--units", type=Path, help=units_help)
    add(
        "--min_count",
        type=int,
        help="without --units: leave out words seen less than N times (default: 5)",
    )
    add(
        "--tokenizer",
        choices=KINDS,
        default="word",
        help="word: units between white space (default: %(default)s)",
    )
    add("--bpe_model", type=Path, help="sentencepiece model, for --tokenizer bpe")
    arch_help = "skipgram: each word is predicted from each word around it; cbow: from their mean (default: %(default)s)"
    add("--arch", choices=get_args(Architecture), default=default.arch, help=arch_help)
    head_help = "the output layer: a tree, or a softmax over all units, for few units (default: %(default)s)"
    add("--head", choices=("hsoftmax", "softmax"), default="hsoftmax", help=head_help)
    add(
        "--tree",
        type=Path,
        help="tree.json over the units (default: a Huffman tree of the counts in the text)",
    )
    add("--dim", type=int, default=default.dim, help="numbers per vector (default: %(default)s)")
    add(
        "--window",
        type=int,
        default=default.window,
        help="words on each side that are used (default: %(default)s)",
    )
    shrink_help = (
        "draw the window of each word from 1 … --window, so that near words count more (default)"
    )
    add("--shrink_windows", action="store_true", default=default.shrink_windows, help=shrink_help)
    add(
        "--no_shrink_windows",
        action="store_false",
        dest="shrink_windows",
        help="use the whole window at each word",
    )
    add(
        "--epochs",
        type=int,
        default=default.epochs,
        help="passes over the text (default: %(default)s)",
    )
    add(
        "--lr",
        type=float,
        default=default.lr,
        help="learning rate at the start (default: %(default)s)",
    )
    add(
        "--min_lr",
        type=float,
        default=default.min_lr,
        help="learning rate at the end (default: %(default)s)",
    )
    sample_help = "leave out some occurrences of words with a larger share than this, such as 1e-3 (default: none)"
    add("--sample", type=float, default=default.sample, metavar="SHARE", help=sample_help)
    add(
        "--seed",
        type=int,
        default=default.seed,
        help="seed of the first vectors, windows and --sample (default: 0)",
    )
    add(
        "--out",
        type=Path,
        required=True,
        help="vectors to write; a unit that does not occur has none",
    )


def run(args: argparse.Namespace) -> None:
    _check_flags(args)
    transcripts = [utterance.txt for utterance in read_utterances(args)]
    table = _find_units(args, transcripts) if args.units is None else UnitTable.read(args.units)
    tree = None if args.tree is None else load_tree(args.tree)
    if tree is not None:
        check_tree(tree, table.units, args.tree)
    text = encode_text(transcripts, make_tokenizer(args.tokenizer, table, args.bpe_model))
    _check_text(text, table, args)
    names = ("arch", "dim", "window", "shrink_windows", "epochs", "lr", "min_lr", "sample", "seed")
    options, counts = (
        Word2VecOptions(**{name: getattr(args, name) for name in names}),
        text.count_units(len(table)),
    )
    if args.head == "hsoftmax" and tree is None:
        tree = Tree.huffman(counts.astype(np.float64), table.units)
    num_vectors = np.count_nonzero(counts)
    logger.info(
        "%d words, %d of them different, in %d sentences",
        len(text.ids),
        num_vectors,
        len(text.starts) - 1,
    )
    found = train_word2vec(text, len(table), options, tree=tree, show_progress=_track)
    write_embeddings(args.out, table.units, found.vectors)
    print(
        f"{args.out}: {num_vectors} vectors of {args.dim} numbers | {found.losses[-1]:.4f} nats per prediction"
    )


def _find_units(args: argparse.Namespace, transcripts: Sequence[str]) -> UnitTable:
    tokenizer = make_tokenizer(args.tokenizer, UnitTable.from_units(()), args.bpe_model)
    return count_units(tokenizer, transcripts, args.min_count or 5)[0]


def _check_flags(args: argparse.Namespace) -> None:
    check_bpe_model(args.tokenizer, args.bpe_model)
    check_at_least(args, 1, "dim", "window", "epochs", "min_count")
    if args.units is not None and args.min_count is not None:
        raise ConfigError("--min_count", "--units names the words already", "leave one of them out")
    check_at_least(args, 0, "min_lr", "seed")
    if not 0 < args.lr < np.inf:
        raise ConfigError(
            f"--lr {args.lr:g}", "must be greater than 0 and finite", "word2vec uses 0.025"
        )
    if args.min_lr > args.lr:
        raise ConfigError(f"--min_lr {args.min_lr:g}", f"must be at most --lr {args.lr:g}")
    if not 0 <= args.sample < 1:
        found = "must be a share of the text, from 0 (none is left out) to less than 1"
        raise ConfigError(f"--sample {args.sample:g}", found)
    if args.tree is not None and args.head == "softmax":
        raise ConfigError(
            "--tree", "--head softmax has no tree", "leave --tree out, or use --head hsoftmax"
        )


def _check_text(text: EncodedText, table: UnitTable, args: argparse.Namespace) -> None:
    """Log the units that are left out. Raise DataError if there is nothing to predict."""
    num_unknown, num_units = text.unknown.total(), text.unknown.total() + len(text.ids)
    names = list_names([repr(unit) for unit, _ in text.unknown.most_common()])
    where = " ".join(map(str, args.text or args.data_list))
    if not len(text.ids):
        if args.units is None:
            found = f"no word occurs {args.min_count or 5} times (found {names})"
            raise DataError(where, found, "give more text, or a lower --min_count")
        found = f"none of the {num_units:,} units of the text is in {args.units} (found {names})"
        raise DataError(
            where, found, "give the --units that were made from this text, and their --tokenizer"
        )
    if (text.ids == text.ids[0]).all():
        name = table.units[text.ids[0]]
        raise DataError(
            where,
            f"only the unit {name!r} occurs, so there is nothing to predict",
            "give more text",
        )
    if (np.diff(text.starts) < 2).all():
        found = "no sentence has two units, so there is nothing to predict"
        raise DataError(where, found, "write whole sentences on each line")
    if num_unknown:
        share = (
            f"{num_unknown:,} of {num_units:,} units of the text ({num_unknown / num_units:.2%})"
        )
        table_name = args.units or f"the table of words seen {args.min_count or 5} times"
        logger.warning("%s: %s are not in %s and are left out: %s", where, share, table_name, names)


def _track(jobs: Sequence[SentenceRange], name: str) -> Iterable[SentenceRange]:
    console = Console(stderr=True)
    return track(jobs, name, console=console, transient=True, disable=not console.is_terminal)


if __name__ == "__main__":
    main_of(__name__)
