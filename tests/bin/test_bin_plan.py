# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs plan`: its options, what it prints, and a plan that `train` takes."""

from pathlib import Path

import pytest
from command_line import Capsys, error_line, run_line
from recipe_projects import write_stats

from wenet_hs.bin import plan
from wenet_hs.config.load import load_config
from wenet_hs.recipes.conf_files import conf_file

OWN = conf_file("own.yaml")
SMALL = "encoder_conf.output_size=16 encoder_conf.num_blocks=4 encoder_conf.linear_units=16"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with `data`, whose lists have 0.25 hours of speech."""
    monkeypatch.chdir(tmp_path)
    write_stats(Path("data"), 0.25)


def call(options: str = "") -> int:
    line = f"--data data --config {OWN} --out exp {options} --override_config {SMALL}"
    return run_line(plan, line)


def test_a_plan_is_made_and_kept(capsys: Capsys) -> None:
    assert call("--threads 1") == 0
    size, time, path = capsys.readouterr().out.splitlines()
    assert size == "0.25 hours of training speech: size tiny, 3000 + 3000 steps"
    assert time.startswith("expected time of a training: ") and " for 3000 + 3000 steps (" in time
    assert path == "exp/plan.yaml: the config of the trainings, to read and to edit"
    assert load_config("exp/plan.yaml").encoder_conf.output_size == 16
    assert call() == 0
    assert capsys.readouterr().out == "exp/plan.yaml: kept as it was made\n"
    expected = "--size small: exp/plan.yaml was made with --size auto; give another --exp, remove "
    Path("exp/softmax").mkdir()
    Path("exp/softmax/train.yaml").touch()
    line = error_line(call("--size small"), capsys)
    assert line == f"{expected}exp/plan.yaml to plan again, or repeat --size auto"


def test_only_the_time_is_printed(capsys: Capsys) -> None:
    assert call("--only_time --base_steps 0") == 0
    size, time = capsys.readouterr().out.splitlines()
    assert size == "0.25 hours of training speech: size tiny, 0 + 3000 steps"
    assert " for 3000 steps (measured with 2 clips of 10 s on " in time
    assert not Path("exp").exists()


@pytest.mark.slow
def test_an_empty_option_is_not_given(capsys: Capsys) -> None:
    assert call("--base '' --encoder '' --base_steps '' --unit '' --size ''") == 0
    assert capsys.readouterr().out.startswith("0.25 hours of training speech: size tiny, 3000 + ")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--base_steps many", "--base_steps many: must be a whole number"),
        ("--base_steps -1", "--base_steps -1: must be a whole number"),
        ("--threads 0", "--threads 0: must be at least 1"),
        ("--base none", "none: contains no final.pt; give the folder of a trained model"),
        ("--data none", "no lists in none; run stage 0"),
        ("--base b --config c.yaml", "--config c.yaml: --base has the settings; change them with"),
        ("--base b --encoder e", "--encoder e: has a config of its own; leave out --base and"),
    ],
)
def test_wrong_options_are_one_line(options: str, expected: str, capsys: Capsys) -> None:
    assert error_line(call(options), capsys).startswith(expected)
    assert not Path("exp/plan.yaml").exists()
