# SPDX-License-Identifier: Apache-2.0
"""Forced alignment: begin and end of each unit and word of known transcripts, by the CTC branch.

Example: wenet-hs align --model_dir exp/hsoftmax --data_list data/test/data.list \\
             --out exp/hsoftmax/align.jsonl --textgrid exp/hsoftmax/textgrid

Each line of OUT is an utterance with its units and words: text, start, end (seconds from the
beginning of the utterance) and confidence (its probability under CTC). A unit lasts from the first
to the last encoder frame that emits it. The blank frames between two units belong to neither. A
frame stands for frame shift × subsampling, usually 40 ms. An utterance may be a whole recording of
hours: the encoder reads what is longer than two minutes in windows.

Some utterances cannot be aligned: the audio cannot be read or is too short for the transcript, or
the model does not have all units. They are listed on stderr, and the exit code is 2. All others are
aligned.
"""

import argparse
from pathlib import Path

from wenet_hs.bin.main import (
    MODEL_HELP,
    add_device_argument,
    check_at_least,
    main_of,
    print_failures,
)
from wenet_hs.bin.search_flags import add_batch_size, progress_bar
from wenet_hs.compute.devices import find_device
from wenet_hs.data.audio import describe_incomplete
from wenet_hs.decode import alignment
from wenet_hs.decode.recognition import mark_confidence
from wenet_hs.manifest.data_list import read_data_list
from wenet_hs.model.experiment import load_experiment
from wenet_hs.tree.errors import DataError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs align`."""
    add = parser.add_argument
    add("--model_dir", type=Path, required=True, help=MODEL_HELP)
    add("--data_list", type=Path, required=True, help="data.list with audio and transcripts")
    add("--out", type=Path, required=True, help="JSON lines to write")
    add("--ctm", type=Path, help="also write the words (of a phone model the phones) as NIST's CTM")
    add(
        "--textgrid",
        type=Path,
        metavar="DIR",
        help="also write DIR/KEY.TextGrid for Praat: tiers of units and words",
    )
    elan_help = (
        "also write DIR/NAME.eaf per recording for ELAN: tiers of utterances, words and confidence"
    )
    add("--elan", type=Path, metavar="DIR", help=elan_help)
    add("--checkpoint", type=Path, help="weights (default: final.pt of model_dir)")
    add_device_argument(parser)
    add_batch_size(parser)


def run(args: argparse.Namespace) -> None:
    """Align all utterances, write the chosen formats, and print the number of utterances.

    Raises DataError before the work if files cannot be written, and at the end if utterances could
    not be aligned. If none could be, --out and --ctm are not written: then the same command can be
    repeated, which refuses files that exist.
    """
    check_at_least(args, 1, "batch_size")
    device = find_device(args.device)
    utterances = read_data_list(args.data_list)
    files = [path for path in (args.out, args.ctm) if path is not None]
    alignment.check_outputs(utterances, files=files, textgrid=args.textgrid, elan=args.elan)
    experiment = load_experiment(args.model_dir, checkpoint=args.checkpoint, device=device)
    # A folder that cannot be written is reported before the work.
    for folder in (args.out.parent, args.textgrid, args.elan):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    with progress_bar("align") as advance:
        results = alignment.align_utterances(
            experiment, utterances, batch_size=args.batch_size, on_progress=advance
        )
    aligned = []
    reason_of_key = {}
    for utterance in utterances:
        result = results[utterance.key]
        if isinstance(result, str):  # the reason why it could not be aligned
            reason_of_key[utterance.key] = result
        else:
            aligned.append(result)
    units_are_words = experiment.config.tokenizer == "phone"  # a phone model knows no words
    if aligned:
        alignment.write_alignments(args.out, aligned, mark_confidence(experiment.is_overfitted))
    if aligned and args.ctm is not None:
        alignment.write_ctm(args.ctm, aligned, of_units=units_are_words)
    if args.textgrid is not None:
        alignment.write_textgrids(args.textgrid, aligned)
    if args.elan is not None:
        alignment.write_eafs(args.elan, aligned, of_units=units_are_words)
    print(f"{args.out}: {len(aligned)} utterances")
    num_incomplete = sum(result.is_incomplete for result in aligned)
    if num_incomplete:
        print(describe_incomplete(num_incomplete))
    if reason_of_key:
        print_failures(reason_of_key)
        fault = f"{len(reason_of_key)} of {len(utterances)} utterances could not be aligned"
        raise DataError(args.data_list, fault, "see the lines above")


if __name__ == "__main__":
    main_of(__name__)
