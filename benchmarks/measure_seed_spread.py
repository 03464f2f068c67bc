# SPDX-License-Identifier: Apache-2.0
"""How far do two trainings of one system differ if only their seeds differ?

Every pair of seeds of a system with three seeds or more is counted, in each decoding mode, over the
results files of the recipes. A difference is a share of the mean rate of the two. Each system has
the same weight, however many seeds it has. Left out are systems that had not learned yet after
their few steps, and trainings that another table has too and only decodes in another way. The test
sets are small, and all phone error rates are of one corpus. The verdict of a report quotes these
numbers where it has one training per system.

Example: python benchmarks/measure_seed_spread.py --out benchmarks/notes/seed_spread \\
             --package_data wenet_hs/report/seed_spread.json
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from statistics import fmean

import numpy as np
from paired import body_of, publish

from wenet_hs.report.seed_spread import SeedSpread
from wenet_hs.results.results_file import read_results
from wenet_hs.score.compare import MACRO
from wenet_hs.score.tables import markdown_table
from wenet_hs.tree.atomic import write_atomic

ROOT = Path(__file__).resolve().parents[1]
RESULTS = "examples/*/s0/results/*/*-seed*.json"
MIN_TRAININGS = 3
LEFT_OUT_TABLES = {
    "table4_bpe": "not learned yet after its few steps",
    "table3_inventory": "the trainings of table3 and table3_pretrained, decoded with known inventories",
    "table3_inventory_placed": "the same",
    "table3_encoder_inventory": "the trainings of table3_encoder, decoded with known inventories",
}
"""Folder of a table → why it is left out."""
CHUNKS = "-chunk"
"""In the name of a system that is decoded in chunks; the same training is also decoded as a whole."""

SystemRates = tuple[float, ...]
"""The error rates of one system in one mode, in %, one per seed."""
Condition = tuple[str, str]
"""Metric and decoding mode."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    return {
        condition: spread_of(systems) for condition, systems in sorted(read_systems(paths).items())
    }


def read_systems(paths: Iterable[Path]) -> dict[Condition, list[SystemRates]]:
    """The rates of each system with enough trainings."""
    rates: dict[tuple[Condition, Path, str], dict[int, float]] = defaultdict(dict)
    for path in paths:
        if path.parent.name in LEFT_OUT_TABLES:
            continue
        results = read_results(path)
        if CHUNKS in results.system:
            continue
        for mode, scores in results.modes.items():
            condition = (metric_of_signature(scores.signature), mode)
            rates[condition, path.parent, results.system][results.seed] = (
                100 * results.rates(mode)[MACRO]
            )
    systems: dict[Condition, list[SystemRates]] = defaultdict(list)
    for (condition, _, _), by_seed in rates.items():
        if len(by_seed) >= MIN_TRAININGS:
            systems[condition].append(tuple(by_seed.values()))
    return systems


def metric_of_signature(signature: str) -> str:
    """The metric (`cer`, `wer`, `per`) that a signature of `Rules.signature` begins with."""
    name, _, _ = signature.partition("|")
    return name.lower()


def spread_of(systems: Sequence[SystemRates]) -> SeedSpread:
    """Quantiles of the relative differences over all pairs of seeds; each system has the same
    weight.
    """
    differences = list[float]()
    weights = list[float]()
    for rates in systems:
        pairs = list(combinations(rates, 2))
        for a, b in pairs:
            differences.append(abs(a - b) / fmean((a, b)))
            weights.append(1 / len(pairs))
    median, highest_tenth = np.quantile(
        differences, (0.5, 0.9), weights=weights, method="inverted_cdf"
    )
    return SeedSpread(
        num_systems=len(systems),
        num_pairs=len(differences),
        lowest_rate=round(min(map(min, systems)), 1),
        highest_rate=round(max(map(max, systems)), 1),
        median=round(float(median), 4),
        highest_tenth=round(float(highest_tenth), 4),
    )


def to_json(spreads: Mapping[Condition, SeedSpread]) -> dict[str, dict[str, object]]:
    """By metric, then by mode."""
    record: dict[str, dict[str, object]] = defaultdict(dict)
    for (metric, mode), spread in spreads.items():
        record[metric][mode] = asdict(spread)
    return record


def format_spreads(spreads: Mapping[Condition, SeedSpread]) -> str:
    header = [
        "metric",
        "mode",
        "systems",
        "pairs",
        "rates, %",
        "half differ by more than",
        "one in ten by more than",
    ]
    rows = [
        [
            metric.upper(),
            mode,
            str(spread.num_systems),
            str(spread.num_pairs),
            f"{spread.lowest_rate} to {spread.highest_rate}",
            f"{spread.median:.1%} of the rate",
            f"{spread.highest_tenth:.1%} of the rate",
        ]
        for (metric, mode), spread in spreads.items()
    ]
    return markdown_table(header, rows)


if __name__ == "__main__":
    main()
