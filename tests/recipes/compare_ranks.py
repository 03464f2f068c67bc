# SPDX-License-Identifier: Apache-2.0
"""Compare the experiments of a recipe run in one process with those of the same recipe run with --nproc.

Example: python tests/recipes/compare_ranks.py examples/mini/s0/exp examples/mini/s0/exp-nproc2

Per head: the optimizer steps of both, and the macro error rate of each decoding mode with its 95 % interval over
utterances. The exit code is 1 if steps differ, or if the intervals of two rates do not overlap. The intervals do not
cover the differences between seeds.
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
    parser.add_argument("ranks", type=Path, help="that of several processes")
    args = parser.parse_args(argv)
    heads = sorted(path.parent.name for path in args.alone.glob("*/final.pt"))
    if not heads:
        sys.stderr.write(f"{args.alone}: no experiment with a final.pt; run the recipe first\n")
        return 2
    return 0 if all([are_equal(args.alone / head, args.ranks / head) for head in heads]) else 1


def are_equal(alone: Path, ranks: Path) -> bool:
    """Whether two experiments have equal numbers of steps, and error rates whose intervals overlap."""
    texts = [(folder / "metrics.jsonl").read_text("utf-8") for folder in (alone, ranks)]
    steps = [max(json.loads(line)["step"] for line in text.splitlines()) for text in texts]
    sys.stdout.write(f"{alone.name}: {steps[0]} steps alone, {steps[1]} with ranks\n")
    found = steps[0] == steps[1]
    for path in sorted(alone.glob("test/*/score.json")):
        scores = (path, ranks / path.relative_to(alone))
        macros = [json.loads(score.read_text("utf-8"))["macro"] for score in scores]
        lows, highs = zip(*(macro["interval"] for macro in macros), strict=True)
        overlap = max(lows) <= min(highs)
        one, other = (f"{100 * m['rate']:.2f} % [{', '.join(f'{100 * x:.2f}' for x in m['interval'])}]" for m in macros)
        note = "" if overlap else ": too far apart"
        sys.stdout.write(f"{alone.name}: {path.parent.name}: {one} alone, {other} with ranks{note}\n")
        found &= overlap
    return found


if __name__ == "__main__":
    sys.exit(main())
