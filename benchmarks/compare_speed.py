# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks of two checkouts in turns and compares the times, speeds and ratios of their tables.

    python benchmarks/compare_speed.py --base ../base --work ../speed --out benchmarks/notes/compare_speed

Each repeat runs a benchmark of the base, then the same one of this checkout (every other repeat in the opposite
order), each with the scripts and the package of its own side. A figure is the time of the base divided by the new
time: above 1 the new side is faster. `ratio` compares the ratios that a table prints (a head to softmax, ours to
WeNet), `time` the times and speeds beside them. Single figures vary by much more than their medians between two
processes: those are listed that are worse by more than 10 % in every repeat. The results of each run are kept in
--work, so an interrupted comparison goes on.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paired import markdown_table, number, publish

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS: dict[str, tuple[str, ...]] = {
    "head_training": ("--threads", "2", "--rounds", "5", "--units", "150", "10000"),
    "head_search": ("--threads", "2", "--rounds", "5"),
    "recognize": ("--threads", "1", "--rounds", "2", "--rounds_of_heads", "1"),
    "training_speed": ("--threads", "1", "--rounds", "2"),
    "scoring": ("--threads", "1"),
}
TIMES = ("ms", "rtf")
SPEEDS = ("audio_seconds_a_second", "data")
RATIOS = ("ratio", "ratio_lists", "gain")
LIMIT = 0.1  # a figure is listed on its own if it is worse by more than this


def figures(record: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[str, str, float]]:
    """The figures of a benchmark's JSON: its group (a ratio or a time, and of which side), its name, and its speed."""
    if isinstance(record, list):
        for item in record:
            yield from figures(item, where)
    elif isinstance(record, dict):
        plain = {key: value for key, value in record.items() if key not in ("title", "errors")}
        names = (*where, *(str(value) for value in plain.values() if isinstance(value, str | int)))
        for key, value in record.items():
            sides = value if isinstance(value, Mapping) else {"": value}
            if key not in (*TIMES, *SPEEDS, *RATIOS):
                if isinstance(value, dict | list) and key != "conditions":
                    yield from figures(value, (*names, *([] if isinstance(value, list) else [key])))
                continue
            for side, amount in sides.items():
                group = "ratio" if key in RATIOS else "time"
                group += f" of {side}" if side else ""
                yield group, ", ".join(filter(None, (*names, key, side))), 1 / amount if key in TIMES else amount


def run(benchmark: str, side: Path, out: Path) -> dict[str, Any]:
    """The JSON of one run of a benchmark, from its result if it has run already."""
    kept, arguments = out.with_suffix(".json"), " ".join(BENCHMARKS[benchmark])
    if not kept.exists() or arguments not in json.loads(kept.read_text("utf-8"))["conditions"]["command"]:
        print(f"{benchmark} of {side}", flush=True)
        script = str(side / f"benchmarks/{benchmark}.py")
        command = [sys.executable, script, *BENCHMARKS[benchmark], "--out", str(out)]
        with out.with_suffix(".log").open("w", encoding="utf-8") as log:
            env = os.environ | {"PYTHONPATH": str(side)}
            subprocess.run(command, cwd=side, env=env, stdout=log, stderr=log, check=True)
    record: dict[str, Any] = json.loads(kept.read_text("utf-8"))
    return record


def compare(benchmark: str, base: Path, work: Path, repeats: int) -> tuple[dict[tuple[str, str], list[float]], str]:
    """For each figure of both sides, the new speed divided by that of the base in each repeat; and the commits."""
    changes: dict[tuple[str, str], list[float]] = {}
    commits = set[str]()
    for repeat in range(repeats):
        sides = {"base": base, "new": ROOT}
        records = {
            name: run(benchmark, sides[name], work / f"{benchmark}-{name}-{repeat}")
            for name in (sorted(sides) if repeat % 2 == 0 else sorted(sides, reverse=True))
        }
        commits.add(" and ".join(record["conditions"]["git"] for record in records.values()))
        measured = {
            side: {(group, name): speed for group, name, speed in figures(record)} for side, record in records.items()
        }
        if measured["base"].keys() != measured["new"].keys():
            number_of = len(measured["base"].keys() ^ measured["new"].keys())
            print(f"{benchmark}: {number_of} figures are of one side only")
        for key in measured["base"].keys() & measured["new"].keys():
            changes.setdefault(key, []).append(measured["new"][key] / measured["base"][key])
    return changes, ", ".join(sorted(commits))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="checkout of the base")
    parser.add_argument("--work", type=Path, required=True, help="folder for the results of each run")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), help="benchmarks to run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write OUT.md and OUT.json (default: print only)")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    rows, slower, facts = [], [], {}
    for benchmark in args.only:
        changes, commits = compare(benchmark, args.base.resolve(), args.work.resolve(), args.repeats)
        facts[benchmark] = {f"{group}: {name}": values for (group, name), values in changes.items()}
        for group in sorted({group for group, _ in changes}):
            of_group = {name: values for (of, name), values in changes.items() if of == group}
            medians = [statistics.median(values) for values in of_group.values()]
            quartiles = statistics.quantiles(medians, n=4) if len(medians) > 1 else medians * 3
            worse = {name: values for name, values in of_group.items() if max(values) < 1 - LIMIT}
            spread = f"{quartiles[0]:.2f} to {quartiles[2]:.2f}"
            rows.append([benchmark, commits, group, str(len(medians)), f"{quartiles[1]:.2f}", spread, str(len(worse))])
            slower += [[benchmark, name, " ".join(map(number, values))] for name, values in worse.items()]
    header = ["benchmark", "commits", "figures", "number", "median, new to base", "quartiles", "slower in every repeat"]
    text = (
        f"{args.repeats} runs of each side in turns. Above 1 the new side is faster.\n\n{markdown_table(header, rows)}"
    )
    if slower:
        text += f"\n\nSlower by more than {LIMIT:.0%} in every repeat:\n\n"
        text += markdown_table(["benchmark", "figure", "new to base, each repeat"], slower)
    publish("Speed of two checkouts", text, {"changes": facts}, device="cpu", out=args.out)


if __name__ == "__main__":
    main()
