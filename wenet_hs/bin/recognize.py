# SPDX-License-Identifier: Apache-2.0
"""Decode a data list; results are RESULT_DIR/<mode>/text and hyps.jsonl, RESULT_DIR/rtf.json.

Example: wenet-hs recognize --model_dir exp/hsoftmax --test_data data/test/data.list --result_dir exp/hsoftmax/test \\
             --modes attention attention_rescoring --beam_size 10

A clip that cannot be read is left out of `text` (`wenet-hs score` then counts its reference as deletions), listed in
RESULT_DIR/failed.tsv, and makes the exit code 2; all others are decoded. One too short for the encoder has no text.
"""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from wenet_hs.bin.command import main_of, name_failures
from wenet_hs.build import load_experiment
from wenet_hs.data.listing import DATA_TYPES, open_lists
from wenet_hs.decode import MODES, DecodeOptions
from wenet_hs.decode.lm import load_language_model
from wenet_hs.decode.modes import check_options
from wenet_hs.decode.recognition import Recognition, recognize
from wenet_hs.decode.results import write_results, write_speed
from wenet_hs.devices import find_device
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.manifest import Utterance


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("--model_dir", type=Path, required=True, help="experiment folder, ours or WeNet's")
    add("--test_data", type=Path, required=True, help="data.list to decode")
    add("--data_type", choices=DATA_TYPES, default="raw", help="what the list is: JSON lines, or tars (default: raw)")
    add("--result_dir", type=Path, required=True, help="folder to write")
    add("--modes", nargs="+", choices=MODES, default=list(MODES), metavar="MODE", help=f"{' '.join(MODES)} (default)")
    add("--checkpoint", type=Path, help="weights (default: final.pt of model_dir)")
    add("--device", default="auto", help="cpu, cuda, cuda:1 … (default: cuda if there is one)")
    add("--batch_size", type=int, default=16, help="most utterances at a time; never changes a result (default: 16)")
    add_search_arguments(parser)


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the settings of the searches."""
    add, default = parser.add_argument, DecodeOptions()
    add("--beam_size", type=int, default=default.beam_size, help=f"hypotheses kept (default: {default.beam_size})")
    add(
        "--ctc_weight",
        type=float,
        default=default.ctc_weight,
        help="attention_rescoring: weight of the CTC score beside the decoder's; joint: CTC's share of the score, from "
        f"0 to 1 (default: {default.ctc_weight})",
    )
    add(
        "--length_penalty",
        type=float,
        default=default.length_penalty,
        help="attention, joint: divide the score by (number of units) ** length_penalty (default: 0)",
    )
    add(
        "--reverse_weight",
        type=float,
        default=default.reverse_weight,
        help="attention_rescoring: share of the right-to-left decoder of a bitransformer (default: 0)",
    )
    add("--nbest", type=int, help="hypotheses written, at most beam_size (default: all that a mode has)")
    add(
        "--finished_list",
        action="store_true",
        help="attention: ended hypotheses leave the beam for a list, as in joint (default: they hold their place)",
    )
    add("--max_len_ratio", type=float, default=1.0, help="attention, joint: most units an encoder frame (default: 1)")
    add("--min_len_ratio", type=float, default=0.0, help="attention, joint: fewest units an encoder frame (default: 0)")
    add("--lm", type=Path, metavar="FILE.arpa", help="n-gram language model over units, for all modes but greedy")
    add("--lm_weight", type=float, default=0.0, help="of the language model's log-probability (needed with --lm)")
    add("--length_bonus", type=float, default=0.0, help="added for each unit, beside a language model (default: 0)")


def search_options(args: argparse.Namespace) -> DecodeOptions:
    """The settings of the searches. Raises ConfigError on a value out of range."""
    try:
        return DecodeOptions(**{option.name: getattr(args, option.name) for option in fields(DecodeOptions)})
    except ValueError as error:
        raise ConfigError(f"--{error}") from error


def run(args: argparse.Namespace) -> None:
    """Load, decode, write, and say how fast it was."""
    options = search_options(args)
    if args.batch_size < 1:
        raise ConfigError(f"--batch_size {args.batch_size}: must be at least 1")
    device = find_device(args.device)
    utterances = list(open_lists((args.test_data,), args.data_type, flag="--test_data"))
    experiment = load_experiment(args.model_dir, checkpoint=args.checkpoint, device=device)
    lm = None if args.lm is None else load_language_model(args.lm, experiment.tokenizer.table)
    check_options(experiment.model, options, args.modes, lm)
    args.result_dir.mkdir(parents=True, exist_ok=True)  # what cannot be written is said before the work, not after
    with _progress() as progress:
        task = progress.add_task("decode", total=len(utterances))
        found = recognize(
            experiment,
            utterances,
            tuple(dict.fromkeys(args.modes)),
            options,
            lm=lm,
            batch_size=args.batch_size,
            on_progress=lambda count: progress.advance(task, count),
        )
    write_results(args.result_dir, utterances, found, experiment.tokenizer)
    rtf = write_speed(args.result_dir / "rtf.json", found, options, batch_size=args.batch_size, device=device)
    for mode, factor in rtf.items():
        print(f"{args.result_dir / mode / 'text'}: {len(found.nbest[mode])} utterances, RTF {factor:.4f}")
    _report_failures(args.result_dir, utterances, found)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())


def _report_failures(result_dir: Path, utterances: list[Utterance], found: Recognition) -> None:
    if not found.failed:
        return
    name_failures(found.failed, (utterance.key for utterance in utterances))
    raise DataError(
        f"{result_dir / 'failed.tsv'}: {len(found.failed)} of {len(utterances)} utterances could not be read; "
        "mend their audio or take them out of the data list"
    )


if __name__ == "__main__":
    main_of(__name__)
