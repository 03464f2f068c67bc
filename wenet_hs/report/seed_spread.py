# SPDX-License-Identifier: Apache-2.0
"""How far two trainings of one system differ if only their seeds differ, measured in the studies of
this project.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

FILE = "seed_spread.json"
"""Written by `python benchmarks/measure_seed_spread.py`, from the results files of the recipes."""


@dataclass(frozen=True, kw_only=True)
class SeedSpread:
    """Differences of the error rate between two trainings of one system, as shares of their mean
    rate.

    Error rates of trainings are seldom normally distributed, so these are quantiles of the real
    pairs.
    """

    num_systems: int
    num_pairs: int
    lowest_rate: float
    """Of all systems, in %."""
    highest_rate: float
    median: float
    """Half of the pairs differ by more than this share of their rate."""
    highest_tenth: float
    """One pair in ten differs by more than this share of its rate."""


@cache
def _read_all() -> dict[str, dict[str, SeedSpread]]:
    """By metric and decoding mode."""
    text = files("wenet_hs.report").joinpath(FILE).read_text("utf-8")
    by_metric = json.loads(text)["spreads"]
    return {
        metric: {mode: SeedSpread(**record) for mode, record in by_mode.items()}
        for metric, by_mode in by_metric.items()
    }


def measured_spread(metric: str, mode: str) -> SeedSpread | None:
    """The spread of a metric (`cer`, `per`) in a decoding mode; None where it was not measured."""
    return _read_all().get(metric, {}).get(mode)
