# SPDX-License-Identifier: Apache-2.0
"""Train word vectors with word2vec: skip-gram or CBOW with a tree or a full softmax.

Example: wenet-hs embed --text train.txt --out vectors.txt
         wenet-hs embed --text train.txt --units words.txt --arch cbow --window 8 \\
             --tree tree.json --out vectors.txt
         wenet-hs embed --data_list data/train/data.list --units data/units.txt \\
             --tokenizer phone --dim 32 --out vectors.txt
         wenet-hs tree build --kind embedding --embeddings vectors.txt --tokenizer word \\
             --text train.txt --units words.txt --out tree-embedding.json

The vectors are written in word2vec's text format.
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

DEFAULT_MIN_COUNT = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs embed`."""
    add = parser.add_argument
    defaults = Word2VecOptions()
    add_transcript_arguments(parser)
    units_help = (
        "units.txt; other words of the text are left out "
        "(default: the words of the text, see --min_count)"
    )
    add("--units", type=Path, help=units_help)
    count_help = (
        f"without --units: leave out words seen less than N times (default: {DEFAULT_MIN_COUNT})"
    )
    add("--min_count", type=int, help=count_help)
    tokenizer_help = "word: units between white space (default: %(default)s)"
    add("--tokenizer", choices=KINDS, default="word", help=tokenizer_help)
    add("--bpe_model", type=Path, help="sentencepiece model, for --tokenizer bpe")
    arch_help = (
        "skipgram: each word is predicted from each word around it; cbow: from their mean "
        "(default: %(default)s)"
    )
    add("--arch", choices=get_args(Architecture), default=defaults.arch, help=arch_help)
    head_help = (
        "the output layer: a tree, or a softmax over all units, for few units "
        "(default: %(default)s)"
    )
    add("--head", choices=("hsoftmax", "softmax"), default="hsoftmax", help=head_help)
    tree_help = "tree.json over the units (default: a Huffman tree of the counts in the text)"
    add("--tree", type=Path, help=tree_help)
    add("--dim", type=int, default=defaults.dim, help="numbers per vector (default: %(default)s)")
    window_help = "words on each side that are used (default: %(default)s)"
    add("--window", type=int, default=defaults.window, help=window_help)
    shrink_help = (
        "draw the window of each word from 1 … --window, so that near words count more (default)"
    )
    add("--shrink_windows", action="store_true", default=defaults.shrink_windows, help=shrink_help)
    add(
        "--no_shrink_windows",
        action="store_false",
        dest="shrink_windows",
        help="use the whole window at each word",
    )
    epochs_help = "passes over the text (default: %(default)s)"
    add("--epochs", type=int, default=defaults.epochs, help=epochs_help)
    lr_help = "learning rate at the start (default: %(default)s)"
    add("--lr", type=float, default=defaults.lr, help=lr_help)
    min_lr_help = "learning rate at the end (default: %(default)s)"
    add("--min_lr", type=float, default=defaults.min_lr, help=min_lr_help)
    sample_help = (
        "leave out some occurrences of words with a larger share than this, such as 1e-3 "
        "(default: none)"
    )
    add("--sample", type=float, default=defaults.sample, metavar="SHARE", help=sample_help)
    seed_help = "seed of the first vectors, windows and --sample (default: 0)"
    add("--seed", type=int, default=defaults.seed, help=seed_help)
    out_help = "vectors to write; a unit that does not occur has none"
    add("--out", type=Path, required=True, help=out_help)


def run(args: argparse.Namespace) -> None:
    """Train the vectors, write them, and print their number and the last loss.

    Raises ConfigError for flags that do not fit each other, DataError for a text or a tree that
    cannot be used.
    """
    _check_flags(args)
    transcripts = [utterance.txt for utterance in read_utterances(args)]
    table = _choose_units(args, transcripts)
    tree = None
    if args.tree is not None:
        tree = load_tree(args.tree)
        check_tree(tree, table.units, args.tree)
    text = encode_text(transcripts, make_tokenizer(args.tokenizer, table, args.bpe_model))
    _check_text(text, table, args)
    counts = text.count_units(len(table))
    if args.head == "hsoftmax" and tree is None:
        tree = Tree.huffman(counts.astype(np.float64), table.units)
    num_vectors = np.count_nonzero(counts)
    num_sentences = len(text.starts) - 1  # the last start is the end of the text
    logger.info(
        "%d words, %d of them different, in %d sentences",
        len(text.ids),
        num_vectors,
        num_sentences,
    )
    options = Word2VecOptions(
        arch=args.arch,
        dim=args.dim,
        window=args.window,
        shrink_windows=args.shrink_windows,
        epochs=args.epochs,
        lr=args.lr,
        min_lr=args.min_lr,
        sample=args.sample,
        seed=args.seed,
    )
    trained = train_word2vec(text, len(table), options, tree=tree, show_progress=_track)
    write_embeddings(args.out, table.units, trained.vectors)
    print(
        f"{args.out}: {num_vectors} vectors of {args.dim} numbers | "
        f"{trained.losses[-1]:.4f} nats per prediction"
    )


def _check_flags(args: argparse.Namespace) -> None:
    """Raise ConfigError for a value out of range, or for flags that do not fit each other."""
    check_bpe_model(args.tokenizer, args.bpe_model)
    check_at_least(args, 1, "dim", "window", "epochs", "min_count")
    if args.units is not None and args.min_count is not None:
        raise ConfigError("--min_count", "--units names the words already", "leave one of them out")
    check_at_least(args, 0, "min_lr", "seed")
    if not 0 < args.lr < np.inf:
        fault = "must be greater than 0 and finite"
        raise ConfigError(f"--lr {args.lr:g}", fault, "word2vec uses 0.025")
    if args.min_lr > args.lr:
        raise ConfigError(f"--min_lr {args.min_lr:g}", f"must be at most --lr {args.lr:g}")
    if not 0 <= args.sample < 1:
        fault = "must be a share of the text, from 0 (none is left out) to less than 1"
        raise ConfigError(f"--sample {args.sample:g}", fault)
    if args.tree is not None and args.head == "softmax":
        to_do = "leave --tree out, or use --head hsoftmax"
        raise ConfigError("--tree", "--head softmax has no tree", to_do)


def _choose_units(args: argparse.Namespace, transcripts: Sequence[str]) -> UnitTable:
    """The table of --units; without it, the units that occur at least --min_count times."""
    if args.units is not None:
        return UnitTable.read(args.units)
    tokenizer = make_tokenizer(args.tokenizer, UnitTable.from_units(()), args.bpe_model)
    table, _ = count_units(tokenizer, transcripts, _min_count(args))
    return table


def _min_count(args: argparse.Namespace) -> int:
    """How often a unit must occur; --min_count has no default, so that --units can refuse it."""
    return args.min_count or DEFAULT_MIN_COUNT


def _check_text(text: EncodedText, table: UnitTable, args: argparse.Namespace) -> None:
    """Log the units that are left out. Raise DataError if there is nothing to predict.

    A prediction needs two different units in the text, and a sentence with two units.
    """
    num_unknown = text.unknown.total()
    num_units = num_unknown + len(text.ids)
    unknown_names = list_names([repr(unit) for unit, _ in text.unknown.most_common()])
    where = " ".join(map(str, args.text or args.data_list))
    if not len(text.ids):
        raise _no_units_error(args, where, num_units, unknown_names)
    if (text.ids == text.ids[0]).all():
        unit = table.units[text.ids[0]]
        fault = f"only the unit {unit!r} occurs, so there is nothing to predict"
        raise DataError(where, fault, "give more text")
    sentence_lengths = np.diff(text.starts)
    if (sentence_lengths < 2).all():
        fault = "no sentence has two units, so there is nothing to predict"
        raise DataError(where, fault, "write whole sentences on each line")
    if num_unknown:
        counts = f"{num_unknown:,} of {num_units:,} units of the text"
        share = f"{num_unknown / num_units:.2%}"
        table_name = args.units or f"the table of words seen {_min_count(args)} times"
        logger.warning(
            "%s: %s (%s) are not in %s and are left out: %s",
            where,
            counts,
            share,
            table_name,
            unknown_names,
        )


def _no_units_error(
    args: argparse.Namespace, where: str, num_units: int, unknown_names: str
) -> DataError:
    """The error about a text without a unit of the table.

    Args:
        where: the files of the text.
        num_units: all units of the text.
        unknown_names: some of them.
    """
    if args.units is None:
        fault = f"no word occurs {_min_count(args)} times (found {unknown_names})"
        return DataError(where, fault, "give more text, or a lower --min_count")
    fault = (
        f"none of the {num_units:,} units of the text is in {args.units} (found {unknown_names})"
    )
    to_do = "give the --units that were made from this text, and their --tokenizer"
    return DataError(where, fault, to_do)


def _track(jobs: Sequence[SentenceRange], name: str) -> Iterable[SentenceRange]:
    """The jobs, with a progress bar on stderr if that is a terminal."""
    console = Console(stderr=True)
    return track(jobs, name, console=console, transient=True, disable=not console.is_terminal)


if __name__ == "__main__":
    main_of(__name__)
