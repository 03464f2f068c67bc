# SPDX-License-Identifier: Apache-2.0
"""Language models over units, for `recognize --lm`.

Example: wenet-hs lm train --config conf/wikitext.yaml --train_text train.txt \\
             --valid_text valid.txt --model_dir exp/lm
Example: wenet-hs lm ngram --data_list data/train/data.list --order 4 \\
             --discount_fallback --out units.arpa

Train, score and sample recurrent models, count units of texts, and estimate n-gram models.

`wenet-hs lm ngram --help` and the help texts of the other actions have more examples.
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from wenet_hs.bin.main import (
    Action,
    add_actions,
    add_device_argument,
    add_model_dir_arguments,
    add_setting_arguments,
    add_transcript_arguments,
    check_at_least,
    check_bpe_model,
    main_of,
    read_settings,
    read_utterances,
    run_action,
)
from wenet_hs.compute.devices import find_device
from wenet_hs.lm.loader import load_lm
from wenet_hs.lm.ngram import NUM_SPECIAL, UNKNOWN, estimate, index_units, write_arpa
from wenet_hs.lm.score import sample_sentences, text_nll, text_scores
from wenet_hs.lm.text import count_text, read_running_text
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.text.tokenizer import KINDS as TOKENIZERS
from wenet_hs.text.tokenizer import Tokenizer, make_tokenizer, read_unit_table
from wenet_hs.text.units import UnitTable
from wenet_hs.train.start import TrainOptions
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError, DataError, list_names

TRAIN_HELP = """Train a recurrent language model on text, one sentence per line.

Example: wenet-hs lm train --config conf/wikitext.yaml --train_text train.txt \\
             --valid_text valid.txt --model_dir exp/lm --units units.txt --head hsoftmax \\
             --tree tree.json

The same command resumes a stopped run.
"""
SCORE_HELP = """Print perplexity, bits per unit and bits per character of a text.

Example: wenet-hs lm score --model_dir exp/lm --text test.txt.xz --json exp/lm/test.json
"""
SAMPLE_HELP = """Draw sentences from a language model.

Example: wenet-hs lm sample --model_dir exp/lm --count 5 --seed 1
"""
COUNT_HELP = """Write what texts contain: lines, units, distinct units, characters, unknown words.

Example: wenet-hs lm count --text train.txt valid.txt test.txt --units units.txt \\
             --out results/table4/texts.json

The file is for a table of a study.
"""
NGRAM_HELP = """Estimate an n-gram model, and write it as an ARPA file.

Example: wenet-hs lm ngram --data_list data/train/data.list --order 4 \\
             --discount_fallback --out units.arpa
Example: wenet-hs lm ngram --data_list data/train/data.list --tokenizer bpe \\
             --bpe_model data/bpe.model --out units.arpa
Example: wenet-hs lm ngram --text train.txt.xz --order 3 --out words.arpa

The smoothing is interpolated modified Kneser-Ney.
"""


# ---- lm train, lm score, lm sample, lm count


def _add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `lm train`."""
    add = parser.add_argument
    add("--config", type=Path, required=True, help="YAML of the language model")
    text_help = "text files to train on, one sentence per line; .gz, .xz and .bz2 are decompressed"
    add("--train_text", type=Path, required=True, nargs="+", metavar="FILE", help=text_help)
    add("--valid_text", type=Path, required=True, metavar="FILE", help="text for validation")
    add_model_dir_arguments(parser)
    add_device_argument(parser)
    add_setting_arguments(parser, ("head", "tree", "tokenizer", "units", "bpe_model", "seed"))


def _train(args: argparse.Namespace) -> None:
    """Train the model, or resume its training, and print the path of its final.pt."""
    # The import takes a second, because it includes the code of `wenet-hs train`.
    from wenet_hs.train.language_model import train_lm

    options = TrainOptions(
        config=args.config,
        train_data=args.train_text,
        cv_data=args.valid_text,
        model_dir=args.model_dir,
        override_config=read_settings(args),
        resume=args.resume,
        device=args.device,
    )
    final = train_lm(options)
    print(f"{final}: trained")


def _add_score_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `lm score`."""
    add = parser.add_argument
    add("--model_dir", type=Path, required=True, help="folder of the language model")
    add(
        "--text",
        type=Path,
        required=True,
        nargs="+",
        metavar="FILE",
        help="text files, one sentence per line",
    )
    add("--json", type=Path, metavar="FILE", help="write the scores")
    add_device_argument(parser)


def _score(args: argparse.Namespace) -> None:
    """Print the scores of the model on the texts; with --json write them to a file, too."""
    lm = load_lm(args.model_dir, device=find_device(args.device))
    text = read_running_text(
        args.text, lm.tokenizer, keep_empty_lines=lm.config.text_conf.keep_empty_lines
    )
    total_nll = text_nll(lm.model, text)
    assert total_nll is not None  # None: it was stopped early, and nothing stops it here
    scores = text_scores(total_nll, text)
    if args.json is not None:
        conditions = {
            "model": str(args.model_dir),
            "text": list(map(str, args.text)),
            "tokenizer": lm.config.tokenizer,
        }
        write_atomic(args.json, json.dumps(conditions | scores, indent=1) + "\n")
    columns = (
        f"perplexity {scores['perplexity']:.2f}",
        f"{scores['bits_per_unit']:.3f} bits per unit",
        f"{scores['bits_per_character']:.3f} bits per character",
        f"{len(text)} units, {text.num_unknown} of them <unk>",
    )
    print(" | ".join(columns))
    if text.num_unknown:
        print(
            "<unk> has no characters: bits per character are comparable only between models of "
            "one unit table"
        )


def _add_sample_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `lm sample`."""
    add = parser.add_argument
    add("--model_dir", type=Path, required=True, help="folder of the language model")
    add("--count", type=int, default=1, help="number of sentences (default: %(default)s)")
    temperature_help = "below 1: more of the likely units (default: %(default)s)"
    add("--temperature", type=float, default=1.0, help=temperature_help)
    add(
        "--max_units",
        type=int,
        default=200,
        help="a longer sentence is ended there (default: %(default)s)",
    )
    add("--seed", type=int, default=0, help="seed of the random numbers (default: %(default)s)")


def _sample(args: argparse.Namespace) -> None:
    """Draw sentences from the model and print one per line.

    Raises ConfigError for a value out of range. torch accepts seeds below 2^63.
    """
    check_at_least(args, 1, "count", "max_units")
    check_at_least(args, 0, "seed")
    if args.seed >= 2**63:
        raise ConfigError(f"--seed {args.seed}", "must be less than 2^63")
    if not 0 < args.temperature < math.inf:
        flag = f"--temperature {args.temperature:g}"
        raise ConfigError(flag, "must be greater than 0 and finite", "1 is the model")
    lm = load_lm(args.model_dir)
    sentences = sample_sentences(
        lm.model,
        lm.tokenizer.table.special,
        args.count,
        temperature=args.temperature,
        max_units=args.max_units,
        seed=args.seed,
    )
    for ids in sentences:
        print(lm.tokenizer.decode(ids))


def _add_count_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `lm count`."""
    parser.add_argument("--text", type=Path, nargs="+", required=True, metavar="FILE", help="texts")
    parser.add_argument("--units", type=Path, required=True, help="unit table of words")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")


def _count(args: argparse.Namespace) -> None:
    """Write the counts of each text as JSON, and print the path of the file."""
    tokenizer = make_tokenizer("word", UnitTable.read(args.units), None)
    counts = [count_text(path, tokenizer) for path in args.text]
    write_atomic(args.out, json.dumps(counts, indent=1, ensure_ascii=False) + "\n")
    print(args.out)


# ---- lm ngram


def _add_ngram_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `lm ngram`."""
    add = parser.add_argument
    add_transcript_arguments(parser)
    tokenizer_help = (
        "as in the config; word: units between white space (default: char, with --text word)"
    )
    add("--tokenizer", choices=TOKENIZERS, help=tokenizer_help)
    add("--bpe_model", type=Path, help="sentencepiece model, for --tokenizer bpe")
    units_help = (
        "units.txt of the recogniser: text is divided as by its model, "
        "also into units of several letters"
    )
    add("--units", type=Path, help=units_help)
    add(
        "--order",
        type=int,
        default=4,
        metavar="N",
        help="the longest n-grams (default: %(default)s)",
    )
    fallback_help = (
        "use the discounts 0.5, 1 and 1.5 for each order whose own cannot be estimated, "
        "as for few units"
    )
    add("--discount_fallback", action="store_true", help=fallback_help)
    add("--out", type=Path, required=True, help="ARPA file to write")


def _ngram(args: argparse.Namespace) -> None:
    """Estimate an n-gram model from the transcripts, and write it.

    Empty transcripts are left out and counted in the line that is printed. With --units the
    transcripts are divided into units of this table, which may have several letters.

    Raises ConfigError if the flags do not fit each other, DataError if all transcripts are empty.
    """
    check_at_least(args, 1, "order")
    default_kind = "word" if args.text else "char"
    kind = args.tokenizer or default_kind
    check_bpe_model(kind, args.bpe_model)
    if args.out.suffix in (".gz", ".xz", ".bz2"):
        to_do = f"leave out {args.out.suffix}"
        raise ConfigError(f"--out {args.out}", "the file is not compressed", to_do)
    table = UnitTable.from_units(()) if args.units is None else read_unit_table(kind, args.units)
    tokenizer = make_tokenizer(kind, table, args.bpe_model)
    utterances = read_utterances(args)
    text = index_units(_split_transcripts(utterances, tokenizer, is_text=bool(args.text)))
    if not text.num_sentences:
        sources = list_names([str(path) for path in args.text or args.data_list])
        raise DataError(sources, "all transcripts are empty", "give text")
    write_arpa(args.out, estimate(text, args.order, fallback=args.discount_fallback))
    num_units = len(text.units) - NUM_SPECIAL
    message = (
        f"{args.out}: {args.order}-gram model of {num_units} units "
        f"from {text.num_sentences} sentences"
    )
    num_empty = len(utterances) - text.num_sentences
    if num_empty:
        message += f"; empty transcripts left out: {num_empty}"
    if text.num_unknown:
        message += f"; occurrences of {UNKNOWN} in the text: {text.num_unknown}"
    print(message)


def _split_transcripts(
    utterances: Iterable[Utterance], tokenizer: Tokenizer, *, is_text: bool
) -> Iterator[tuple[str, list[str]]]:
    """The units of each transcript that is not empty, with its source for messages.

    The source is the key: `path:line` of a text, `utterance KEY` of a data list.
    """
    prefix = "" if is_text else "utterance "
    for utterance in utterances:
        units = tokenizer.split(utterance.txt)
        if units:
            yield prefix + utterance.key, units


ACTIONS = {
    "train": Action(help=TRAIN_HELP, add_flags=_add_train_arguments, run=_train),
    "score": Action(help=SCORE_HELP, add_flags=_add_score_arguments, run=_score),
    "sample": Action(help=SAMPLE_HELP, add_flags=_add_sample_arguments, run=_sample),
    "count": Action(help=COUNT_HELP, add_flags=_add_count_arguments, run=_count),
    "ngram": Action(help=NGRAM_HELP, add_flags=_add_ngram_arguments, run=_ngram),
}
add_arguments = partial(add_actions, actions=ACTIONS)
run = run_action


if __name__ == "__main__":
    main_of(__name__)
