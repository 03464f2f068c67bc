# SPDX-License-Identifier: Apache-2.0
"""benchmarks/measure_seed_spread.py: quantiles of a worked example, and the file of the package has
today's results.
"""

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
    return importlib.import_module("measure_seed_spread")


def test_quantiles_of_all_pairs(script: ModuleType) -> None:
    """A system of four seeds has six pairs, and the weight of one of two seeds."""
    spread = script.spread_of([(9.0, 9.0), (10.0, 10.0, 10.0, 10.0), (9.0, 11.0)])
    assert (spread.num_systems, spread.num_pairs) == (3, 8)
    assert (spread.median, spread.highest_tenth) == (0.0, 0.2), (
        "a third of the weight has the difference 2 / 10"
    )
    assert (spread.lowest_rate, spread.highest_rate) == (9.0, 11.0)


def test_the_file_of_the_package_has_the_results_of_today(script: ModuleType) -> None:
    paths = sorted(ROOT.glob(script.RESULTS))
    assert paths
    stored = json.loads((ROOT / "wenet_hs/report" / package.FILE).read_text("utf-8"))["spreads"]
    assert stored == script.to_json(script.measure_spreads(paths)), (
        "run benchmarks/measure_seed_spread.py as its example says"
    )


def test_trainings_that_are_decoded_again_do_not_count(script: ModuleType) -> None:
    folders = [
        ROOT / "examples/ucla/s0/results" / name for name in ("table3_inventory", "table3_encoder")
    ]
    paths = [path for folder in folders for path in folder.glob("softmax-*seed*.json")]
    assert len(script.read_systems(paths)["per", "joint"]) == 2, "the two systems of table3_encoder"
    assert {
        path.name for path in ROOT.glob("examples/*/s0/results/*")
    } > script.LEFT_OUT_TABLES.keys()


def test_a_system_with_two_trainings_does_not_count(script: ModuleType) -> None:
    paths = sorted(ROOT.glob("examples/ucla/s0/results/table3/softmax-seed[12].json"))
    assert len(paths) == 2 and script.read_systems(paths) == {}
