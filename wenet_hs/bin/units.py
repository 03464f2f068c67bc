# SPDX-License-Identifier: Apache-2.0
"""Write the unit table of data lists or text.

Example: wenet-hs units --data_list data/train/data.list --kind char --out data/units.txt
         wenet-hs units --data_list data/train/data.list --kind bpe --vocab_size 500 --bpe_model data/bpe.model \\
             --out data/units.txt
         wenet-hs units --text train.txt --kind word --min_count 3 --out words.txt
         wenet-hs units --data_list data/test/data.list --kind phone --inventory data/inventory.tsv

It begins with `<blank> 0`, `<unk> 1`, `<sos/eos> 2`; units follow from 3 in code point order.
"""

import argparse
import logging
from pathlib import Path

from wenet_hs.bin.main import add_transcript_arguments, check_at_least, main_of, read_utterances
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_transcript_arguments(parser)
    parser.add_argument(
        "--kind", choices=KINDS, required=True, help="the units: words are separated by white space"
    )
    parser.add_argument("--out", type=Path, help="units.txt to write")
    inventory_help = "write the units of each language, for `recognize --inventory`; instead of --out, or besides it"
    parser.add_argument("--inventory", type=Path, metavar="FILE", help=inventory_help)
    parser.add_argument(
        "--min_count", type=int, metavar="N", help="leave out units seen less than N times"
    )
    parser.add_argument("--vocab_size", type=int, help="bpe: number of pieces")
    parser.add_argument("--bpe_model", type=Path, help="bpe: sentencepiece model to write")


def run(args: argparse.Namespace) -> None:
    if (args.kind == "bpe") != (args.bpe_model is not None) or (args.kind == "bpe") != (
        args.vocab_size is not None
    ):
        raise ConfigError(
            f"--kind {args.kind}",
            "--vocab_size and --bpe_model belong to --kind bpe, which needs both",
        )
    if args.min_count is not None and args.kind == "bpe":
        raise ConfigError(
            "--min_count", "--kind bpe has a --vocab_size instead", "leave --min_count out"
        )
    if args.inventory is not None and args.kind == "bpe":
        found = "not for --kind bpe"
        raise ConfigError(
            "--inventory", found, "a language has an inventory of characters, phones or words"
        )
    if args.out is None and args.inventory is None:
        raise ConfigError("--out", "nothing to write", "give --out or --inventory")
    check_at_least(args, 1, "min_count")
    least = args.min_count or 1
    utterances = read_utterances(args)
    transcripts = [utterance.txt for utterance in utterances]
    left_out, source = "", f"{len(transcripts)} transcripts"
    if args.kind == "bpe":
        lines = list(cut_lines(transcripts))
        source = source if len(lines) == len(transcripts) else f"{len(lines)} lines of {source}"
        model = train_bpe(lines, args.vocab_size)
        write_atomic(args.bpe_model, model)
        table = UnitTable.from_units(bpe_units(model))
    else:
        tokenizer = make_tokenizer(args.kind, UnitTable.from_units(()))
        table, rare = count_units(tokenizer, transcripts, least)
        if rare:
            left_out = f"; {len(rare)} units seen less than {least} times are left out ({sum(rare)} occurrences)"
        if args.inventory is not None:
            kept = set(table.units)
            inventories = collect_inventories(
                utterances, lambda txt: kept.intersection(tokenizer.split(txt))
            )
            write_inventories(args.inventory, inventories)
            print(f"{args.inventory}: {len(inventories)} languages from {source}{left_out}")
    if args.out is None:
        return
    lost = _find_lost_units(args.out, table)
    table.write(args.out)
    if lost:
        logger.warning(
            "%s: the table before had %d units that this one does not have: %s",
            args.out,
            len(lost),
            list_names(lost),
        )
    size = f"{len(table)} units ({len(table) - 3} of them text)"
    print(f"{args.out}: {size} from {source}{left_out}")


def _find_lost_units(path: Path, table: UnitTable) -> list[str]:
    """The units of the table at `path` that the new one does not have, such as those added by hand.

    Nothing if there is no table.
    """
    try:
        before = UnitTable.read(path)
    except DataError:
        return []
    return [unit for unit in before.units if table.id_of(unit) is None]


if __name__ == "__main__":
    main_of(__name__)
