# SPDX-License-Identifier: Apache-2.0
"""How far do two trainings of one system differ if only their seeds differ?

Every pair of seeds of a system with three seeds or more is counted, in each decoding mode, over the results files of
all recipes. The differences are absolute, in percentage points of the macro average. A system whose results stand in
several tables counts once. The verdict of a report quotes these numbers where it has one training per system.

Example: python benchmarks/seed_spread.py --out benchmarks/notes/seed_spread \\
             --package_data wenet_hs/report/seed_spread.json
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

import numpy as np
from paired import body_of, publish

from wenet_hs.files import write_atomic
from wenet_hs.report.results import read_results
from wenet_hs.report.seed_spread import SeedSpread
from wenet_hs.score.compare import MACRO
from wenet_hs.score.rules import metric_of_signature
from wenet_hs.score.tables import markdown_table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = "examples/*/s0/results/*/*-seed*.json"
MIN_TRAININGS = 3

SystemRates = tuple[float, ...]
"""The error rates of one system in one mode, in %, in the order of its seeds."""
Condition = tuple[str, str]
"""Metric and decoding mode."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package_data", type=Path, help="the JSON file that the package reads")
    parser.add_argument("--out", type=Path, help="write OUT.md and OUT.json (default: print only)")
    args = parser.parse_args()
    spreads = measure_spreads(sorted(ROOT.glob(RESULTS)))
    facts = {"spreads": to_json(spreads)}
    if args.package_data:
        write_atomic(args.package_data, json.dumps(facts, indent=1) + "\n")
    text = f"{body_of(__doc__)}\n\n{format_spreads(spreads)}"
    publish("Spread between seeds", text, facts, device="cpu", out=args.out)


def measure_spreads(paths: Iterable[Path]) -> dict[Condition, SeedSpread]:
    """The spread by metric and decoding mode, from the results files of single trainings."""
    return {condition: spread_of(systems) for condition, systems in sorted(read_systems(paths).items())}


def read_systems(paths: Iterable[Path]) -> dict[Condition, set[SystemRates]]:
    """The rates of each system with enough trainings; equal rates in two tables are of one system."""
    rates: dict[tuple[Condition, Path, str], dict[int, float]] = defaultdict(dict)
    for path in paths:
        results = read_results(path)
        for mode, scores in results.modes.items():
            condition = (metric_of_signature(scores.signature), mode)
            rates[condition, path.parent, results.system][results.seed] = 100 * results.rates(mode)[MACRO]
    systems: dict[Condition, set[SystemRates]] = defaultdict(set)
    for (condition, _, _), by_seed in rates.items():
        if len(by_seed) >= MIN_TRAININGS:
            systems[condition].add(tuple(rate for _, rate in sorted(by_seed.items())))
    return systems


def spread_of(systems: Iterable[SystemRates]) -> SeedSpread:
    """Quantiles of the absolute differences over all pairs of seeds of each system."""
    systems = list(systems)
    differences = [abs(a - b) for rates in systems for a, b in combinations(rates, 2)]
    median, highest_tenth = np.quantile(differences, (0.5, 0.9))
    return SeedSpread(
        num_systems=len(systems),
        num_pairs=len(differences),
        median=round(float(median), 2),
        highest_tenth=round(float(highest_tenth), 2),
    )


def to_json(spreads: Mapping[Condition, SeedSpread]) -> dict[str, dict[str, object]]:
    """By metric, then by mode."""
    record: dict[str, dict[str, object]] = defaultdict(dict)
    for (metric, mode), spread in spreads.items():
        record[metric][mode] = asdict(spread)
    return record


def format_spreads(spreads: Mapping[Condition, SeedSpread]) -> str:
    header = ["metric", "mode", "systems", "pairs", "half differ by more than", "one in ten differs by more than"]
    rows = [
        [
            metric.upper(),
            mode,
            str(spread.num_systems),
            str(spread.num_pairs),
            f"{spread.median:.2f}",
            f"{spread.highest_tenth:.2f}",
        ]
        for (metric, mode), spread in spreads.items()
    ]
    return markdown_table(header, rows)


if __name__ == "__main__":
    main()
