# SPDX-License-Identifier: Apache-2.0
"""How far two trainings of one system differ if only their seeds differ.

It was measured in the studies of this project.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

FILE = "seed_spread.json"
"""Written by `python benchmarks/measure_seed_spread.py`, from the results files of the recipes."""


@dataclass(frozen=True, kw_only=True)
class SeedSpread:
    """Differences of the error rate between two trainings of one system.

    They are shares of the mean rate of the two. Error rates of trainings are seldom normally
    distributed, so these are quantiles of the real pairs.
    """

    num_systems: int
    num_pairs: int
    lowest_rate: float
    """Of all systems, in %."""
    highest_rate: float
    """Of all systems, in %."""
    median: float
    """Half of the pairs differ by more than this share of their rate."""
    highest_tenth: float
    """One pair in ten differs by more than this share of its rate."""


def measured_spread(metric: str, mode: str) -> SeedSpread | None:
    """The spread of a metric (`cer`, `per`) in a decoding mode; None where it was not measured."""
    return _read_all().get(metric, {}).get(mode)


@cache
def _read_all() -> dict[str, dict[str, SeedSpread]]:
    """The spreads in FILE by metric and decoding mode. The file is read once per process."""
    text = files("wenet_hs.report").joinpath(FILE).read_text("utf-8")
    spreads = dict[str, dict[str, SeedSpread]]()
    for metric, by_mode in json.loads(text)["spreads"].items():
        spreads[metric] = {mode: SeedSpread(**values) for mode, values in by_mode.items()}
    return spreads
