# SPDX-License-Identifier: Apache-2.0
"""benchmarks/seed_calibration.py on results files with known variances: what it measures, its note,
its messages.
"""

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from command_line import Capsys, error_line

from wenet_hs.bin.main import run_command
from wenet_hs.results.results_file import ModeResults, Results
from wenet_hs.results.results_file import write_results as save

TRUE = {"training": 0.03, "training_language": 0.05, "residual": 0.6, "system_utterance": 0.15}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("seed_calibration")


def write_results(folder: Path, *, num_seeds: int, systems: str = "abc", keys: str = "k") -> Path:
    """Results with the TRUE variances, which rounding to whole errors increases a little."""
    rng = np.random.default_rng(3)
    folder.mkdir(exist_ok=True)
    units = {lang: rng.integers(4, 12, 60) for lang in ("xx", "yy", "zz")}
    rates = {lang: rng.normal(1.0, 0.1, 60) for lang in units}
    for system in systems:
        effects = {lang: rng.normal(0, TRUE["system_utterance"], 60) for lang in units}
        for seed in range(num_seeds):
            shift, utterances = rng.normal(0, TRUE["training"]), {}
            for lang, num in units.items():
                rate = (
                    rates[lang] + effects[lang] + shift + rng.normal(0, TRUE["training_language"])
                )
                errors = (
                    num * rate + np.sqrt(num) * rng.normal(0, TRUE["residual"], 60) + rng.random(60)
                )
                utterances[lang] = [int(max(0, one)) for one in errors]
            found = {"errors": utterances, "kinds": {}, "feature_errors": None, "bands": {}}
            modes = {"joint": ModeResults(signature="", keys=keys, **found)}
            cost = {"steps": 1, "train_hours": None, "train_seconds": 1.0}
            of_units = {lang: [*map(int, num)] for lang, num in units.items()}
            save(Results(system=system, seed=seed, units=of_units, modes=modes, **cost), folder)
    return folder


def test_the_variances_are_measured(script: ModuleType, tmp_path: Path) -> None:
    folder = write_results(tmp_path, num_seeds=12)
    systems, units = script.read_errors([folder], "joint")
    found = script.measure(systems, units)
    for name, value in TRUE.items():
        assert getattr(found, name) == pytest.approx(
            value, rel=0.35 if "training" in name else 0.15
        ), name
    assert found.macro == pytest.approx((0.03**2 + 0.05**2 / 3) ** 0.5, rel=0.3)
    assert script.measure(systems[:1], units).system_utterance is None


def test_the_note_has_both_nulls(script: ModuleType, tmp_path: Path, capsys: Capsys) -> None:
    folder = write_results(tmp_path / "r", num_seeds=3)
    line = f"{folder} --mode joint --experiments 60 --num_resamples 100 --out {tmp_path / 'note'}"
    assert run_command(script, line.split()) == 0
    assert (
        "9 trainings of 3 systems, joint, 3 languages, 180 utterances." in capsys.readouterr().out
    )
    facts = json.loads((tmp_path / "note.json").read_text())
    equal, uneven = facts["nulls"].values()
    assert equal["p_below_005"] < 0.12 and equal["coverage"] > 0.9 and uneven["coverage"] > 0.9
    assert 0 < equal["width"] < uneven["width"] and facts["detectable"] > 0
    assert "Target: p < 0.05 in at most 7%" in (tmp_path / "note.md").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "{0}/a-seed0.json",
            "a-seed0.json: no scores of attention; it has joint: choose one with --mode",
        ),
        (
            "{0}/a-seed0.json {0}/b-seed0.json --mode joint",
            "one seed per system; give two or more seeds of at least",
        ),
        ("{0} {1} --mode joint", "different test sets; score all on one list"),
        ("{0} --seeds 4", "--seeds 4: must be at least 5"),
    ],
)
def test_a_fault_is_one_line(
    script: ModuleType, options: str, message: str, tmp_path: Path, capsys: Capsys
) -> None:
    folders = (
        write_results(tmp_path / "r", num_seeds=2),
        write_results(tmp_path / "o", num_seeds=1, systems="d", keys="l"),
    )
    assert message in error_line(run_command(script, options.format(*folders).split()), capsys)
