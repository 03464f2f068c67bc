# SPDX-License-Identifier: Apache-2.0
"""benchmarks/seed_spread.py: quantiles of a worked example, and the file of the package is that of today's results."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from wenet_hs.report import seed_spread as package

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("seed_spread")


def test_quantiles_of_all_pairs(script: ModuleType) -> None:
    spread = script.spread_of([(10.0, 11.0, 14.0), (50.0, 50.0, 52.0)])  # differences 1, 4, 3 and 0, 2, 2
    assert (spread.num_systems, spread.num_pairs, spread.median) == (2, 6, 2.0)
    assert spread.highest_tenth == 3.5  # halfway between the two largest of six


def test_the_file_of_the_package_has_the_results_of_today(script: ModuleType) -> None:
    paths = sorted(ROOT.glob(script.RESULTS))
    assert paths
    stored = json.loads((ROOT / "wenet_hs/report" / package.FILE).read_text("utf-8"))["spreads"]
    assert stored == script.to_json(script.measure_spreads(paths)), "run benchmarks/seed_spread.py as its example says"


def test_a_system_with_two_trainings_does_not_count(script: ModuleType) -> None:
    paths = sorted(ROOT.glob("examples/ucla/s0/results/table3/softmax-seed[12].json"))
    assert len(paths) == 2 and script.read_systems(paths) == {}
