# SPDX-License-Identifier: Apache-2.0
"""Combine the n-best lists of several models.

Example: wenet-hs combine --nbest exp/softmax/test/joint exp/hsoftmax/test/joint --out exp/combined/test/joint

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
    weights = args.weights or [1.0] * len(args.nbest)
    if len(weights) != len(args.nbest) or not all(0 < weight < math.inf for weight in weights):
        found = " ".join(f"{weight:g}" for weight in weights)
        fault = f"expected {len(args.nbest)} numbers above 0, one per folder of --nbest"
        raise ConfigError(f"--weights {found}", fault)
    check_at_least(args, 0, "scale")
    folders = [folder.resolve() for folder in args.nbest]
    if args.out.resolve() in folders or len(set(folders)) < len(folders):
        fault = "the same folder twice"
        raise ConfigError(
            "--nbest and --out", fault, "give each model once, and another folder to write"
        )
    systems = read_nbest_lists(args.nbest)
    records, num_changed = [], 0
    for of_utterance in zip(*(system.values() for system in systems), strict=True):
        first = of_utterance[0]
        nbest = combine([one.nbest for one in of_utterance], weights, scale=args.scale, by=args.by)
        records.append({"key": first.key, "lang": first.lang, **vars(nbest[0]), "nbest": nbest})
        num_changed += nbest[0].units != first.nbest[0].units
    write_hypotheses(args.out, records)
    print(
        f"{args.out / 'text'}: {len(records)} utterances; {num_changed} differ from {args.nbest[0]}"
    )


if __name__ == "__main__":
    main_of(__name__)
