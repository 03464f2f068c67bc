# SPDX-License-Identifier: Apache-2.0
"""Score hypotheses that do not belong to the reference: never a rate over another set of utterances than was asked for.

Lines of a hypothesis file are dropped, doubled, renamed, added, shuffled and emptied, alone and together. `wenet-hs
score` must refuse doubled keys by name, and count and name missing ones and those without a reference, which make its
exit code 2; where it prints a rate, that is the one of all utterances of the reference and of no other, a missing one
being all deletions, by the edit distance of a textbook. `compare` must refuse two systems that cover other utterances.
Then random pairs in twenty scripts: the counts are those of the textbook and of jiwer.

Example: python tests/faults/scored_sets.py --mutations 200 --pairs 5000
"""

import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "score"))

from agreement import SCRIPTS, check_pairs, random_pair
from fault_script import Tally, call, one_thread, script_parser
from textbook import edit_distance

from wenet_hs.bin import compare as compare_command
from wenet_hs.bin import score as score_command
from wenet_hs.manifest import write_text
from wenet_hs.score import Rules, split_units

NUM_UTTERANCES = 40
CHANGES = ("drop", "double", "rename", "add", "shuffle", "empty")


@dataclass(frozen=True)
class Mutation:
    """A hypothesis file and what was done to it."""

    lines: tuple[tuple[str, str], ...]
    changes: tuple[str, ...]

    def doubled(self) -> set[str]:
        """Keys that occur twice."""
        return {key for key, count in Counter(key for key, _ in self.lines).items() if count > 1}


def main(argv: Sequence[str] | None = None) -> int:
    """Mutate, score, count. Returns the exit code."""
    parser = script_parser(__doc__)
    parser.add_argument("--mutations", type=int, default=200, help="of a hypothesis file (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5000, help="of random texts (default: %(default)s)")
    args = parser.parse_args(argv)
    one_thread()
    tally, generator = Tally(args.seed), random.Random(args.seed)
    pairs = [random_pair([*SCRIPTS][index % len(SCRIPTS)], generator) for index in range(NUM_UTTERANCES)]
    reference = {f"utt{index:03d}": ref for index, (ref, _) in enumerate(pairs)}
    hypothesis = {f"utt{index:03d}": hyp for index, (_, hyp) in enumerate(pairs)}
    refused = 0
    with tempfile.TemporaryDirectory() as temporary:
        scratch = args.scratch or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        write_text(scratch / "ref", reference)
        write_text(scratch / "whole", hypothesis)
        for number in range(args.mutations):
            mutation = mutate(hypothesis, generator, CHANGES[number % len(CHANGES)])
            refused += is_refused(scratch, mutation, reference, tally)
    try:
        check_pairs(args.pairs)
    except AssertionError as error:
        tally.check(False, f"random pairs: {error}")
    return tally.conclude(
        f"{args.mutations} hypothesis files ({refused} refused, {args.mutations - refused} with a rate of all)",
        f"silent rates {len(tally.violations)}/{args.mutations}",
        f"{args.pairs} random pairs as the textbook and jiwer count them",
    )


def mutate(hypothesis: dict[str, str], generator: random.Random, first: str) -> Mutation:
    """One change, and up to two more."""
    changes = (first, *generator.sample(CHANGES, generator.randrange(3)))
    lines = list(hypothesis.items())
    for change in changes:
        for _ in range(generator.randint(1, 4)):
            at = generator.randrange(len(lines))
            key, text = lines[at]
            match change:
                case "drop":
                    del lines[at]
                case "double":
                    lines.insert(generator.randrange(len(lines)), (key, generator.choice((text, "other"))))
                case "rename":
                    lines[at] = (generator.choice((key.upper(), key + "0", key[:-1], "ü" + key)), text)
                case "add":
                    lines.insert(at, (f"new{generator.randrange(99)}", text))
                case "shuffle":
                    generator.shuffle(lines)
                case "empty":
                    lines[at] = (key, "")
    return Mutation(tuple(lines), changes)


def is_refused(scratch: Path, mutation: Mutation, reference: dict[str, str], tally: Tally) -> bool:
    """Score it; whether it was refused."""
    where = f"{' and '.join(mutation.changes)}"
    (scratch / "hyp").write_text("".join(f"{key} {text}".rstrip() + "\n" for key, text in mutation.lines), "utf-8")
    common = ("--metric", "cer", "--ref", scratch / "ref", "--num_resamples", 0)
    ended = call(score_command, *common, "--hyp", scratch / "hyp", "--json", scratch / "score.json")
    doubled, keys = mutation.doubled(), {key for key, _ in mutation.lines}
    if doubled:
        tally.check(ended.clean_fault() and not ended.out, f"{where}: a rate of some of them: {ended.out[-200:]}")
        tally.check(any(key in ended.err for key in doubled) and "hyp" in ended.err, f"{where}: not named: {ended.err}")
        return True
    missing, extra = reference.keys() - keys, keys - reference.keys()
    tally.check(ended.clean_fault() if extra else ended.code == 0, f"{where}: {ended.shown()}")
    record = json.loads((scratch / "score.json").read_text("utf-8"))
    for what, wrong, text in (("missing", missing, ended.out), ("extra", extra, ended.err)):
        tally.check(set(record[what]) == wrong, f"{where}: {what} are {wrong}, counted {record[what]}")
        named = not wrong or str(len(wrong)) in text and any(key in text for key in wrong)
        tally.check(named, f"{where}: {len(wrong)} {what} and not in the output: {text}")
    printed = f"{100 * expected_rate(reference, dict(mutation.lines)):.2f}"
    tally.check(printed in ended.out, f"{where}: a rate over other utterances: not {printed}, but {ended.out}")
    if missing or extra:
        ended = call(compare_command, *common[:4], "--hyp_a", scratch / "whole", "--hyp_b", scratch / "hyp")
        tally.check(ended.clean_fault(), f"{where}: compare: {ended.shown()}")
    return False


def expected_rate(reference: dict[str, str], hypothesis: dict[str, str]) -> float:
    """Errors per unit by the textbook, over every utterance of the reference."""
    errors, num_units = 0.0, 0
    for key, text in reference.items():
        units = split_units(text, Rules(metric="cer"))
        errors += edit_distance(units, split_units(hypothesis.get(key, ""), Rules(metric="cer")))
        num_units += len(units)
    return errors / num_units


if __name__ == "__main__":
    sys.exit(main())
