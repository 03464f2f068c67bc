# SPDX-License-Identifier: Apache-2.0
"""Write the unit table of data lists or text.

Example: wenet-hs units --data_list data/train/data.list --kind char --out data/units.txt
         wenet-hs units --data_list data/train/data.list --kind bpe --vocab_size 500 \\
             --bpe_model data/bpe.model --out data/units.txt
         wenet-hs units --text train.txt --kind word --min_count 3 --out words.txt
         wenet-hs units --data_list data/test/data.list --kind phone --inventory data/inventory.tsv

The table begins with `<blank> 0`, `<unk> 1`, `<sos/eos> 2`. Then follow the units, from 3, in code
point order.
"""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from wenet_hs.bin.main import add_transcript_arguments, check_at_least, main_of, read_utterances
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.text.inventory import collect_inventories, write_inventories
from wenet_hs.text.tokenizer import (
    KINDS,
    bpe_units,
    count_units,
    cut_lines,
    make_tokenizer,
    train_bpe,
)
from wenet_hs.text.units import UnitTable
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError, DataError, list_names

logger = logging.getLogger(__name__)

NUM_SPECIAL = 3
"""Units of the table that are no text: <blank>, <unk>, <sos/eos>."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs units`."""
    add = parser.add_argument
    add_transcript_arguments(parser)
    kind_help = "the units: words are separated by white space"
    add("--kind", choices=KINDS, required=True, help=kind_help)
    add("--out", type=Path, help="units.txt to write")
    inventory_help = (
        "write the units of each language, for `recognize --inventory`; "
        "instead of --out, or besides it"
    )
    add("--inventory", type=Path, metavar="FILE", help=inventory_help)
    add("--min_count", type=int, metavar="N", help="leave out units seen less than N times")
    add("--vocab_size", type=int, help="bpe: number of pieces")
    add("--bpe_model", type=Path, help="bpe: sentencepiece model to write")


def run(args: argparse.Namespace) -> None:
    """Collect the units, and write the table of --out and the inventories of --inventory.

    With --kind bpe the pieces are trained, and the sentencepiece model is written too. Raises
    ConfigError for flags that do not fit each other.
    """
    _check_flags(args)
    utterances = read_utterances(args)
    if args.kind == "bpe":
        table, source = _train_pieces(args, utterances)
    else:
        table, source = _collect_units(args, utterances)
    if args.out is None:
        return
    lost_units = _find_lost_units(args.out, table)
    table.write(args.out)
    if lost_units:
        logger.warning(
            "%s: the table before had %d units that this one does not have: %s",
            args.out,
            len(lost_units),
            list_names(lost_units),
        )
    num_text_units = len(table) - NUM_SPECIAL
    print(f"{args.out}: {len(table)} units ({num_text_units} of them text) from {source}")


def _check_flags(args: argparse.Namespace) -> None:
    """Raise ConfigError for flags that do not fit --kind, or without a file to write."""
    is_bpe = args.kind == "bpe"
    has_model = args.bpe_model is not None
    has_size = args.vocab_size is not None
    if has_model != is_bpe or has_size != is_bpe:  # one is missing for bpe, or not for bpe
        fault = "--vocab_size and --bpe_model belong to --kind bpe, which needs both"
        raise ConfigError(f"--kind {args.kind}", fault)
    if args.min_count is not None and is_bpe:
        fault = "--kind bpe has a --vocab_size instead"
        raise ConfigError("--min_count", fault, "leave --min_count out")
    if args.inventory is not None and is_bpe:
        to_do = "a language has an inventory of characters, phones or words"
        raise ConfigError("--inventory", "not for --kind bpe", to_do)
    if args.out is None and args.inventory is None:
        raise ConfigError("--out", "nothing to write", "give --out or --inventory")
    check_at_least(args, 1, "min_count")


def _train_pieces(
    args: argparse.Namespace, utterances: Sequence[Utterance]
) -> tuple[UnitTable, str]:
    """Train a sentencepiece model on the transcripts, and write it to --bpe_model.

    Returns the table of its pieces, and what they were trained on, as a message says it.
    """
    transcripts = [utterance.txt for utterance in utterances]
    lines = list(cut_lines(transcripts))
    source = f"{len(transcripts)} transcripts"
    if len(lines) != len(transcripts):
        source = f"{len(lines)} lines of {source}"
    model = train_bpe(lines, args.vocab_size)
    write_atomic(args.bpe_model, model)
    return UnitTable.from_units(bpe_units(model)), source


def _collect_units(
    args: argparse.Namespace, utterances: Sequence[Utterance]
) -> tuple[UnitTable, str]:
    """Count the characters, phones or words, and write the inventories of --inventory.

    Returns the table of the units that are frequent enough, and where they are from, as a message
    says it, with the number of units that are left out.
    """
    min_count = args.min_count or 1
    tokenizer = make_tokenizer(args.kind, UnitTable.from_units(()))
    transcripts = [utterance.txt for utterance in utterances]
    table, counts_of_rare_units = count_units(tokenizer, transcripts, min_count)
    source = f"{len(transcripts)} transcripts"
    if counts_of_rare_units:
        source += (
            f"; {len(counts_of_rare_units)} units seen less than {min_count} times are left out "
            f"({sum(counts_of_rare_units)} occurrences)"
        )
    if args.inventory is not None:
        units = set(table.units)
        inventories = collect_inventories(
            utterances, lambda transcript: units.intersection(tokenizer.split(transcript))
        )
        write_inventories(args.inventory, inventories)
        print(f"{args.inventory}: {len(inventories)} languages from {source}")
    return table, source


def _find_lost_units(path: Path, table: UnitTable) -> list[str]:
    """The units of the earlier table at `path` that the new one lacks: such as those added by hand.

    Empty if there is no table, or one that cannot be read.
    """
    try:
        earlier = UnitTable.read(path)
    except DataError:
        return []
    return [unit for unit in earlier.units if table.id_of(unit) is None]


if __name__ == "__main__":
    main_of(__name__)
