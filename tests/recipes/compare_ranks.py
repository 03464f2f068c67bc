# SPDX-License-Identifier: Apache-2.0
"""Compare the exp folder of a recipe run in one process with that of a run with --nproc (`make
mini-ranks`).

Per head: the optimizer steps of both, and the macro error rate of each decoding mode with its 95 %
interval over utterances, which does not cover the differences between seeds. The exit code is 1 if
steps differ or intervals do not overlap.
"""

import json
import sys
from pathlib import Path


def main(alone: Path, ranks: Path) -> bool:
    heads = sorted(path.parent.name for path in alone.glob("*/final.pt"))
    if not heads:
        sys.exit(f"{alone}: no experiment with a final.pt; run the recipe first")
    return all([are_equal(alone / head, ranks / head) for head in heads])


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
        one, other = (
            f"{100 * m['rate']:.2f} % [{', '.join(f'{100 * x:.2f}' for x in m['interval'])}]"
            for m in macros
        )
        note = "" if overlap else ": too far apart"
        sys.stdout.write(
            f"{alone.name}: {path.parent.name}: {one} alone, {other} with ranks{note}\n"
        )
        found &= overlap
    return found


if __name__ == "__main__":
    sys.exit(0 if main(*map(Path, sys.argv[1:])) else 1)
