#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""WeNet's scorer command line and layout, with wenet-hs's numbers.

Example: tools/compute-cer.py --char=1 --v=1 data/test/text exp/test/attention_rescoring/text

Unlike WeNet's tool it splits every script into letters with their marks, keeps case, never scores a key, and counts
an utterance without a hypothesis as deletions. `wenet-hs score` tells more.
"""

import argparse
import sys
from pathlib import Path

from wenet_hs.bin.command import run_command
from wenet_hs.manifest import read_text
from wenet_hs.score import Rules, score
from wenet_hs.score.table import format_wenet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.prog = Path(__file__).name
    parser.add_argument("--char", type=int, choices=(0, 1), default=1, help="1: letters; 0: what stands between spaces")
    parser.add_argument(
        "--v", type=int, choices=(0, 1), default=1, help="1: every utterance; 0: the overall line alone"
    )
    parser.add_argument("ref", type=Path, help="reference: `key transcript` a line")
    parser.add_argument("hyp", type=Path, help="hypotheses: the same")


def run(args: argparse.Namespace) -> None:
    """Score and print."""
    rules = Rules(metric="cer" if args.char else "wer")
    report = score(read_text(args.ref), read_text(args.hyp), rules=rules, num_resamples=0)
    print(format_wenet(report, verbose=bool(args.v)), end="")
    if report.missing:
        print(f"{args.hyp}: {len(report.missing)} of {len(report.utterances)} missing", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(run_command(sys.modules[__name__]))
