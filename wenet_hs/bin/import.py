# SPDX-License-Identifier: Apache-2.0
"""Make a model folder from a fine-tuned model in Hugging Face's layout.

Example: wenet-hs import --hf mms-1b-all --lang mdw --out exp/mms-mdw

wav2vec 2.0, MMS, HuBERT, WavLM and w2v-BERT are read. The outputs are those of transformers.
`transcribe`, `recognize`, `align` and `train --checkpoint` read the folder.
"""

import argparse
import sys
from pathlib import Path

from wenet_hs.bin.main import main_of
from wenet_hs.interop.huggingface import import_model
from wenet_hs.text.units import SPACE, UnitTable
from wenet_hs.tree.errors import list_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs import`."""
    add = parser.add_argument
    folder_help = "folder with config.json, weights and vocab.json, as downloaded"
    add("--hf", type=Path, required=True, metavar="DIR", help=folder_help)
    add("--out", type=Path, required=True, metavar="MODEL", help="model folder to write")
    add("--lang", help="for MMS: the language, as in adapter.LANG.safetensors")


def run(args: argparse.Namespace) -> None:
    """Write the model folder, print its units, and print what transcripts must observe."""
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    table, tokenizer = import_model(args.hf, args.out, args.lang, command=command)
    kind = "phones" if tokenizer == "phone" else "characters"
    print(f"{args.out}: {len(table)} units, {kind}")
    if tokenizer != "char":
        return
    if _is_upper_case(table):
        print("in upper case, as transcripts for `align` and for `train` with these units must be")
    # Such a unit is recognised, but transcripts are divided at spaces before they are divided into
    # units.
    across_spaces = [unit for unit in table.units if SPACE in unit and unit != SPACE]
    if across_spaces:
        names = list_names(across_spaces)
        print(f"units that are recognised, but not read in transcripts: {names}")


def _is_upper_case(table: UnitTable) -> bool:
    """Whether the units of one character have cases, as Latin letters do, and all are upper."""
    characters = "".join(unit for unit in table.units if len(unit) == 1)
    has_case = characters.upper() != characters.lower()
    return has_case and characters == characters.upper()


if __name__ == "__main__":
    main_of(__name__)
