# SPDX-License-Identifier: Apache-2.0
"""Make a model folder from a fine-tuned model in Hugging Face's layout.

Example: wenet-hs import --hf mms-1b-all --lang mdw --out exp/mms-mdw

wav2vec 2.0, MMS, HuBERT, WavLM and w2v-BERT are read.

Its outputs are those of transformers. `transcribe`, `recognize`, `align` and `train --checkpoint`
read the folder.
"""

import argparse
import sys
from pathlib import Path

from wenet_hs.bin.main import main_of
from wenet_hs.interop.huggingface import import_model
from wenet_hs.text.units import SPACE
from wenet_hs.tree.errors import list_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    folder_help = "folder with config.json, weights and vocab.json, as downloaded"
    parser.add_argument("--hf", type=Path, required=True, metavar="DIR", help=folder_help)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="MODEL", help="model folder to write"
    )
    parser.add_argument("--lang", help="for MMS: the language, as in adapter.LANG.safetensors")


def run(args: argparse.Namespace) -> None:
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    table, tokenizer = import_model(args.hf, args.out, args.lang, command=command)
    print(f"{args.out}: {len(table)} units, {'phones' if tokenizer == 'phone' else 'characters'}")
    letters = "".join(unit for unit in table.units if len(unit) == 1)
    if tokenizer == "char" and letters == letters.upper() != letters.lower():
        print("in upper case, as transcripts for `align` and for `train` with these units must be")
    # Such a unit is recognised, but transcripts are divided at spaces before they are divided into
    # units.
    across_spaces = [unit for unit in table.units if SPACE in unit and unit != SPACE]
    if tokenizer == "char" and across_spaces:
        print(
            f"units that are recognised, but not read in transcripts: {list_names(across_spaces)}"
        )


if __name__ == "__main__":
    main_of(__name__)
