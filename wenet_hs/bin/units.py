# SPDX-License-Identifier: Apache-2.0
"""Write the unit table of a data list: `<blank> 0`, `<unk> 1`, `<sos/eos> 2`, units from 3 in code point order.

Example: wenet-hs units --data_list data/train/data.list --kind char --out data/units.txt
         wenet-hs units --data_list data/train/data.list --kind bpe --vocab_size 500 --bpe_model data/bpe.model \\
             --out data/units.txt
"""

import argparse
from pathlib import Path

from wenet_hs.bin.command import main_of
from wenet_hs.errors import ConfigError
from wenet_hs.files import write_atomic
from wenet_hs.manifest import read_data_list
from wenet_hs.text.tokenizer import KINDS, bpe_units, count_units, train_bpe
from wenet_hs.text.units import UnitTable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--data_list", type=Path, required=True, nargs="+", help="data.list files of the training set")
    parser.add_argument("--kind", choices=KINDS, required=True, help="what a unit is")
    parser.add_argument("--out", type=Path, required=True, help="units.txt to write")
    parser.add_argument("--vocab_size", type=int, help="bpe: number of pieces")
    parser.add_argument("--bpe_model", type=Path, help="bpe: sentencepiece model to write")


def run(args: argparse.Namespace) -> None:
    """Write the table, and for bpe the model."""
    if (args.kind == "bpe") != (args.bpe_model is not None) or (args.kind == "bpe") != (args.vocab_size is not None):
        raise ConfigError(f"--kind {args.kind}: --vocab_size and --bpe_model belong to --kind bpe, which needs both")
    transcripts = [utterance.txt for path in args.data_list for utterance in read_data_list(path)]
    if args.kind == "bpe":
        model = train_bpe(transcripts, args.vocab_size)
        write_atomic(args.bpe_model, model)
        table = UnitTable.from_units(bpe_units(model))
    else:
        table = UnitTable.from_counts(count_units(args.kind, transcripts))
    table.write(args.out)
    print(f"{args.out}: {len(table)} units ({len(table) - 3} of them text) from {len(transcripts)} transcripts")


if __name__ == "__main__":
    main_of(__name__)
