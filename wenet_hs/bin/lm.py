# SPDX-License-Identifier: Apache-2.0
"""Language models over units, for `recognize --lm`.

Example: wenet-hs lm ngram --data_list data/train/data.list --order 4 --discount_fallback --out units.arpa

`wenet-hs lm ngram --help` has more examples.
"""

import argparse
from pathlib import Path

from wenet_hs.bin.main import (
    add_actions,
    add_transcript_arguments,
    check_at_least,
    check_bpe_model,
    main_of,
    read_transcripts,
)
from wenet_hs.errors import ConfigError, DataError, list_names
from wenet_hs.lm.ngram import NUM_SPECIAL, UNKNOWN, estimate, index_units, write_arpa
from wenet_hs.text.tokenizer import KINDS as TOKENIZERS
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable

NGRAM_HELP = """Estimate an n-gram model with interpolated modified Kneser-Ney smoothing and write it as an ARPA file.

Example: wenet-hs lm ngram --data_list data/train/data.list --order 4 --discount_fallback --out units.arpa
Example: wenet-hs lm ngram --data_list data/train/data.list --tokenizer bpe --bpe_model data/bpe.model --out units.arpa
Example: wenet-hs lm ngram --text train.txt.xz --order 3 --out words.arpa
"""


# ---- lm ngram


def _add_ngram_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_transcript_arguments(parser)
    tokenizer_help = "as in the config; word: units between white space (default: char, with --text word)"
    add("--tokenizer", choices=TOKENIZERS, help=tokenizer_help)
    add("--bpe_model", type=Path, help="sentencepiece model, for --tokenizer bpe")
    add("--order", type=int, default=4, metavar="N", help="the longest n-grams (default: %(default)s)")
    fallback_help = "use the discounts 0.5, 1 and 1.5 for each order whose own cannot be estimated, as for few units"
    add("--discount_fallback", action="store_true", help=fallback_help)
    add("--out", type=Path, required=True, help="ARPA file to write")


def _ngram(args: argparse.Namespace) -> None:
    check_at_least(args, 1, "order")
    kind = args.tokenizer or ("word" if args.text else "char")
    check_bpe_model(kind, args.bpe_model)
    if args.out.suffix in (".gz", ".xz"):
        raise ConfigError(f"--out {args.out}: the file is not compressed; leave out {args.out.suffix}")
    tokenizer = make_tokenizer(kind, UnitTable.from_units(()), args.bpe_model)
    utterances = read_transcripts(args)
    prefix = "" if args.text else "utterance "
    sentences = ((prefix + utterance.key, tokenizer.split(utterance.txt)) for utterance in utterances)
    text = index_units((source, units) for source, units in sentences if units)
    if not text.num_sentences:
        raise DataError(f"{list_names([*map(str, args.text or args.data_list)])}: all transcripts are empty; give text")
    write_arpa(args.out, estimate(text, args.order, fallback=args.discount_fallback))
    num_empty = len(utterances) - text.num_sentences
    notes = [f"; empty transcripts left out: {num_empty}"] if num_empty else []
    if text.num_unknown:
        notes.append(f"; occurrences of {UNKNOWN} in the text: {text.num_unknown}")
    what = f"{args.order}-gram model of {len(text.units) - NUM_SPECIAL} units from {text.num_sentences} sentences"
    print(f"{args.out}: {what}{''.join(notes)}")


ACTIONS = {"ngram": (NGRAM_HELP, _add_ngram_arguments, _ngram)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An action and its flags."""
    add_actions(parser, ACTIONS)


def run(args: argparse.Namespace) -> None:
    """Run the action."""
    args.run_action(args)


if __name__ == "__main__":
    main_of(__name__)
