# SPDX-License-Identifier: Apache-2.0
"""How much faster is `wenet-hs score` than a dynamic program in plain Python?

The plain side is written from the description of WeNet's compute-wer.py: a table of cells, each a
dictionary with its distance and its step, cleared for each utterance; a walk back; counts for each
token; every utterance in its layout. `lists` is the same with the table as lists of integers: what
Python can do.

Ours: `memory` has the transcripts in memory, makes no intervals and prints nothing; `files` reads
them and prints the report; `intervals` is that with 1,000 bootstrap resamples, as `wenet-hs score`
does by default; `languages` also reads the data.list and has a line a language; `layout` is
`wenet-hs compute-cer`, the same output as the plain sides.

Times are of the processor, not of the wall. Utterances are random words of six scripts, a letter in
seven wrong. All sides must find the same number of errors.

Example: python benchmarks/scoring.py --threads 1 --out benchmarks/notes/scoring_cpu
"""

import argparse
import contextlib
import gc
import io
import os
import random
import sys
import tempfile
import time
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from paired import Facts, Side, make_parser, medians_ms, number, publish, ratios

from wenet_hs.bin import score as command
from wenet_hs.bin.compute_cer import format_wenet
from wenet_hs.bin.main import run_command
from wenet_hs.manifest.data_list import Utterance, read_text, write_data_list, write_text
from wenet_hs.score import Rules, alignments, rules, score
from wenet_hs.score.tables import markdown_table

LETTERS = {
    "es": list("aeiouáéíóúñlrstmnpcdb"),
    "ky": list("аеиоуөүңлрстмнпкдбжы"),
    "tr": list("aeıioöuülrstmnpkdbğşç"),
    "el": list("αεηιοωλρστμνπκδβγθ"),
    "hy": list("աեիոուլրստմնպկդբգշ"),
    "ta": ["க", "கா", "கி", "மு", "ம்", "ன்", "த", "தை", "ல", "ரு", "வா", "ப"],
}
NUM_WORDS, WORD_LENGTH, ERROR_SHARE = 9, (2, 9), 1 / 7
RULES = Rules(metric="cer")
OURS = ("memory", "files", "intervals", "languages", "layout")

Step = tuple[str, str, str]
"""Unit of the reference, unit of the hypothesis, and C, S, D or I."""


def write_texts(num_utterances: int) -> None:
    """The files ref, hyp and data.list."""
    generator = random.Random(0)
    words = {
        lang: [generator.choices(letters, k=generator.randint(*WORD_LENGTH)) for _ in range(3000)]
        for lang, letters in LETTERS.items()
    }
    reference, hypothesis, utterances = {}, {}, []
    for index in range(num_utterances):
        lang = list(LETTERS)[index % len(LETTERS)]
        key = f"{lang}_{index:06d}"
        chosen = [
            words[lang][int(len(words[lang]) * generator.random() ** 3)] for _ in range(NUM_WORDS)
        ]
        heard = [[_heard(letter, LETTERS[lang], generator) for letter in word] for word in chosen]
        reference[key], hypothesis[key] = (
            " ".join("".join(word) for word in text) for text in (chosen, heard)
        )
        utterances.append(Utterance(key=key, wav="x", txt=reference[key], lang=lang))
    write_text("ref", reference)
    write_text("hyp", hypothesis)
    write_data_list("data.list", utterances)


def _heard(letter: str, letters: list[str], generator: random.Random) -> str:
    if generator.random() > ERROR_SHARE:
        return letter
    return generator.choice(("", generator.choice(letters), letter + generator.choice(letters)))


def plain_split(text: str) -> list[str]:
    """Letters with their marks, without spaces."""
    units: list[str] = []
    for character in text:
        if unicodedata.category(character).startswith("M") and units:
            units[-1] += character
        elif not character.isspace():
            units.append(character)
    return units


class DictionarySteps:
    """The steps of a shortest alignment by cells that are dictionaries, used again from one
    utterance to the next.
    """

    def __init__(self) -> None:
        self.table: list[list[dict[str, Any]]] = []

    def __call__(self, ref: list[str], hyp: list[str]) -> list[Step]:
        table = self._cleared(len(ref) + 1, len(hyp) + 1)
        for i, unit in enumerate(ref, start=1):
            for j, other in enumerate(hyp, start=1):
                best, kind = table[i - 1][j - 1]["distance"], "C"
                if unit != other:
                    best, kind = best + 1, "S"
                if table[i - 1][j]["distance"] + 1 < best:
                    best, kind = table[i - 1][j]["distance"] + 1, "D"
                if table[i][j - 1]["distance"] + 1 < best:
                    best, kind = table[i][j - 1]["distance"] + 1, "I"
                table[i][j]["distance"] = best
                table[i][j]["kind"] = kind
        return walk_back(ref, hyp, lambda i, j: str(table[i][j]["kind"]))

    def _cleared(self, num_rows: int, num_columns: int) -> list[list[dict[str, Any]]]:
        for row in range(num_rows):
            if row == len(self.table):
                self.table.append([])
            while len(self.table[row]) < num_columns:
                self.table[row].append({})
            for column in range(num_columns):
                self.table[row][column]["distance"] = row or column
                self.table[row][column]["kind"] = "D" if row else "I"
        return self.table


def list_steps(ref: list[str], hyp: list[str]) -> list[Step]:
    """The same by lists of integers, the kinds found on the walk back."""
    rows = [list(range(len(hyp) + 1))]
    for i, unit in enumerate(ref, start=1):
        above, row, left = rows[-1], [i], i
        for j, other in enumerate(hyp):
            best = above[j] + (unit != other)
            left = min(best, above[j + 1] + 1, left + 1)
            row.append(left)
        rows.append(row)

    def kind(i: int, j: int) -> str:
        if i and j and rows[i][j] == rows[i - 1][j - 1] + (ref[i - 1] != hyp[j - 1]):
            return "C" if ref[i - 1] == hyp[j - 1] else "S"
        return "D" if i and rows[i][j] == rows[i - 1][j] + 1 else "I"

    return walk_back(ref, hyp, kind)


def walk_back(ref: list[str], hyp: list[str], kind_of: Callable[[int, int], str]) -> list[Step]:
    """The steps from the last cell to the first, turned round."""
    i, j, steps = len(ref), len(hyp), []
    while i or j:
        kind = kind_of(i, j)
        i, j = i - (kind != "I"), j - (kind != "D")
        steps.append((ref[i] if kind != "I" else "", hyp[j] if kind != "D" else "", kind))
    return steps[::-1]


def plain_score(steps_of: Callable[[list[str], list[str]], list[Step]]) -> int:
    """Score the files; the number of errors."""
    reference, hypothesis = read_text("ref"), read_text("hyp")
    tokens: dict[str, Counter[str]] = {}
    errors, lines = 0, []
    for key, text in reference.items():
        ref = plain_split(text)
        steps = steps_of(ref, plain_split(hypothesis[key]))
        counts = Counter(kind for _, _, kind in steps)
        for unit, other, kind in steps:
            tokens.setdefault(unit or other, Counter())[kind] += 1
        wrong = len(steps) - counts["C"]
        errors += wrong
        said = " ".join(f"{kind}={counts[kind]}" for kind in "CSDI")
        lines += [
            f"utt: {key}",
            f"WER: {100 * wrong / max(1, len(ref)):4.2f} % N={len(ref)} {said}",
        ]
        lines += [
            "lab: " + " ".join(unit for unit, _, _ in steps),
            "rec: " + " ".join(other for _, other, _ in steps),
        ]
    io.StringIO().write("\n".join(lines))
    return errors


def our_sides() -> dict[str, Side]:
    """What is measured of ours, each giving its number of errors."""
    reference, hypothesis = read_text("ref"), read_text("hyp")

    def memory() -> int:
        return score(reference, hypothesis, rules=RULES, num_resamples=0).micro.counts.errors

    def layout() -> int:
        report = score(read_text("ref"), read_text("hyp"), rules=RULES, num_resamples=0)
        io.StringIO().write(format_wenet(report))
        return report.micro.counts.errors

    def command_line(options: str) -> int:
        arguments = f"--metric cer --ref ref --hyp hyp {options}"
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if run_command(command, arguments.split()):
                raise RuntimeError("wenet-hs score failed")
        return sum(
            int(cell.replace(",", "")) for cell in printed.getvalue().splitlines()[-1].split()[4:7]
        )

    return {
        "memory": memory,
        "files": lambda: command_line("--num_resamples 0"),
        "intervals": lambda: command_line("--num_resamples 1000"),
        "languages": lambda: command_line("--num_resamples 1000 --data_list data.list"),
        "layout": layout,
    }


def cpu_seconds(side: Side) -> float:
    """Of one call.

    Everything here runs in one thread, so that other programs on the machine do not count.

    What the package remembers of words is forgotten first: a command begins without.
    """
    for remembered in (rules._split_word, alignments._num_columns, alignments.show_unit):
        remembered.cache_clear()
    gc.collect()
    start = time.process_time()
    side()
    return time.process_time() - start


def measure(args: argparse.Namespace) -> Facts:
    """Milliseconds of each side, and ratios to both plain sides."""
    write_texts(args.utterances)
    plain = DictionarySteps()
    sides: dict[str, Side] = {
        "plain": lambda: plain_score(plain),
        "lists": lambda: plain_score(list_steps),
    }
    sides |= our_sides()
    errors = {name: side() for name, side in sides.items()}
    if len(set(errors.values())) > 1:
        raise RuntimeError(f"the sides disagree: {errors}")
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(args.rounds):
        for name, side in sides.items():
            times[name].append(cpu_seconds(side))
    found = {"errors": errors["plain"], "ms": medians_ms(times)}
    return found | {"ratio": ratios(times, "plain"), "ratio_lists": ratios(times, "lists")}


def main() -> None:
    """Measure and publish."""
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument(
        "--utterances", type=int, default=10_000, help="how many (default: %(default)s)"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    here, out = Path.cwd(), args.out and args.out.resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            found = measure(args)
        finally:
            os.chdir(here)
    ms, ratio, ratio_lists = found["ms"], found["ratio"], found["ratio_lists"]
    rows = [
        [side, number(ms[side]), f"{number(ratio[side])}×", f"{number(ratio_lists[side])}×"]
        for side in OURS
    ]
    text = (
        f"{args.utterances:,} utterances, {found['errors']:,} errors, found by every side; median of {args.rounds} "
        f"rounds, CPU time. Plain: {number(ms['plain'] / 1e3)} s, with lists {number(ms['lists'] / 1e3)} s.\n\n"
        + markdown_table(["ours", "ms", "× faster than plain", "× faster than lists"], rows)
    )
    publish("Scoring", text, {**found, "utterances": args.utterances}, device="cpu", out=out)


if __name__ == "__main__":
    sys.exit(main())
