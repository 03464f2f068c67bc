# SPDX-License-Identifier: Apache-2.0
"""Combine the n-best lists of several models.

Example: wenet-hs combine --nbest exp/softmax/test/joint exp/hsoftmax/test/joint \\
             --out exp/combined/test/joint

Writes OUT/text and OUT/hyps.jsonl, as `recognize` does.

The models must have decoded the same list and must have the same units. docs/recognition.md has the
formula.
"""

import argparse
import math
from pathlib import Path

from wenet_hs.bin.main import check_at_least, main_of
from wenet_hs.decode.combine import CRITERIA, DEFAULT_SCALE, combine, read_nbest_lists
from wenet_hs.decode.recognition import write_hypotheses
from wenet_hs.tree.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs combine`."""
    add = parser.add_argument
    add(
        "--nbest",
        type=Path,
        nargs="+",
        required=True,
        metavar="DIR",
        help="folders with a hyps.jsonl, one per model",
    )
    add("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    add(
        "--weights",
        type=float,
        nargs="+",
        metavar="W",
        help="weight of each model, above 0 (default: equal weights)",
    )
    scale_help = (
        f"factor of all scores before they become probabilities (default: {DEFAULT_SCALE:g})"
    )
    add("--scale", type=float, default=DEFAULT_SCALE, help=scale_help)
    by_help = (
        "the highest posterior, or the least expected number of wrong units (default: posterior)"
    )
    add("--by", choices=CRITERIA, default=CRITERIA[0], help=by_help)


def run(args: argparse.Namespace) -> None:
    """Combine the lists of each utterance, write the results, and print how many texts changed.

    Raises ConfigError for wrong flags, DataError if the lists do not fit each other.
    """
    weights = args.weights or [1.0] * len(args.nbest)
    are_positive = all(0 < weight < math.inf for weight in weights)
    if len(weights) != len(args.nbest) or not are_positive:
        numbers = " ".join(f"{weight:g}" for weight in weights)
        fault = f"expected {len(args.nbest)} numbers above 0, one per folder of --nbest"
        raise ConfigError(f"--weights {numbers}", fault)
    check_at_least(args, 0, "scale")
    folders = [folder.resolve() for folder in args.nbest]
    is_repeated = len(set(folders)) < len(folders)
    if is_repeated or args.out.resolve() in folders:
        to_do = "give each model once, and another folder to write"
        raise ConfigError("--nbest and --out", "the same folder twice", to_do)
    lists_of_systems = read_nbest_lists(args.nbest)
    records = []
    num_changed = 0
    for key, first in lists_of_systems[0].items():
        nbests = [lists[key].nbest for lists in lists_of_systems]
        combined = combine(nbests, weights, scale=args.scale, by=args.by)
        best = combined[0]
        records.append({"key": key, "lang": first.lang, **vars(best), "nbest": combined})
        if best.units != first.nbest[0].units:
            num_changed += 1
    write_hypotheses(args.out, records)
    print(
        f"{args.out / 'text'}: {len(records)} utterances; {num_changed} differ from {args.nbest[0]}"
    )


if __name__ == "__main__":
    main_of(__name__)
