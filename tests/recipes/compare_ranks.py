# SPDX-License-Identifier: Apache-2.0
"""Compare the experiments of a recipe run in one process with those of the same recipe run with --nproc.

Example: python tests/recipes/compare_ranks.py examples/mini/s0/exp examples/mini/s0/exp-nproc2

For each head: the optimizer steps of both, and the macro error rate of each decoding mode with its 95 % interval over
utterances. The exit code is 1 if steps differ, or if the intervals of two rates do not overlap. What another seed would
change is not in these intervals: the test is as strict as one pair of trainings allows.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line per mode. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("alone", type=Path, help="the recipe's exp folder, of one process")
    parser.add_argument("ranks", type=Path, help="that of several")
    args = parser.parse_args(argv)
    heads = sorted(path.parent.name for path in args.alone.glob("*/final.pt"))
    if not heads:
        sys.stderr.write(f"{args.alone}: no experiment with a final.pt; run the recipe first\n")
        return 2
    return 0 if all([same(args.alone / head, args.ranks / head) for head in heads]) else 1


def same(alone: Path, ranks: Path) -> bool:
    """Whether two experiments have equal numbers of steps, and error rates whose intervals overlap."""
    steps = [last_step(folder) for folder in (alone, ranks)]
    say(f"{alone.name}: {steps[0]} steps alone, {steps[1]} with ranks")
    agree = steps[0] == steps[1]
    for path in sorted(alone.glob("test/*/score.json")):
        mode = path.parent.name
        one, other = macro_rate(path), macro_rate(ranks / "test" / mode / "score.json")
        fits = overlap(one, other)
        say(f"{alone.name}: {mode}: {shown(one)} alone, {shown(other)} with ranks{'' if fits else ': too far apart'}")
        agree &= fits
    return agree


def last_step(folder: Path) -> int:
    """The last optimizer step that metrics.jsonl tells of."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return max(int(record["step"]) for record in records)


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def macro_rate(path: Path) -> tuple[float, float, float]:
    """The macro average of a score.json, and its interval."""
    macro = json.loads(path.read_text("utf-8"))["macro"]
    return macro["rate"], *macro["interval"]


def overlap(one: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    """Whether the intervals of two rates have something in common."""
    return one[1] <= other[2] and other[1] <= one[2]


def shown(macro: tuple[float, float, float]) -> str:
    """A rate and its interval, in percent."""
    rate, low, high = (100 * value for value in macro)
    return f"{rate:.2f} % [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
