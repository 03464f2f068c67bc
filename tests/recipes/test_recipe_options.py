# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs check-options` with the options of a recipe: their values, and its folders."""

from pathlib import Path

import pytest

from wenet_hs.bin import check_options, keep_options
from wenet_hs.bin.main import run_command

MINI = Path(__file__).parents[2] / "conf/mini.yaml"
Capture = pytest.CaptureFixture[str]


def options(data: Path, **others: str) -> list[str]:
    """Of a recipe with two options beside the shared ones."""
    values = {"stage": "0", "stop_stage": "8", "langs": "es", "hours": "1", "data": str(data)}
    values |= {"exp": str(data.with_name("exp"))} | others
    words = [f"{name}={value}" for name, value in values.items()]
    return ["--recipe_dir", str(data.parent), "--values", *words]


def check(data: Path, **others: str) -> int:
    names = ["--data_options", "langs", "hours", "--exp_options", "data"]
    line = ["--config", str(MINI), "--program", "./run.sh", *names, *options(data, **others)]
    return run_command(check_options, line)


def keep(folder: str, names: str, data: Path, **others: str) -> None:
    line = ["--folder", str(data.with_name(folder)), "--options", *names.split()]
    assert run_command(keep_options, [*line, *options(data, **others)]) == 0


def to_do(flag: str) -> str:
    return f"repeat this, give another {flag}, or remove the folder"


def test_values_are_checked(tmp_path: Path, capsys: Capture) -> None:
    assert check(tmp_path / "data", nproc="2") == 0
    assert check(tmp_path / "data", nproc="0") == 2
    assert check(tmp_path / "data", stage="9") == 2
    line = ["--config", str(MINI), "--program", "./run.sh", "--head", "x"]
    assert run_command(check_options, line) == 2
    assert run_command(check_options, ["--config", "none.yaml", "--program", "./run.sh"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        "./run.sh: --nproc 0: must be a whole number from 1 on",
        "./run.sh: --stage 9: must be from 0 to 8",
    ]
    assert lines[2].startswith("./run.sh: --head x: must be one of softmax, ")
    assert lines[3].startswith("none.yaml: ") and len(lines) == 4


def test_folders_are_those_of_the_same_options(tmp_path: Path, capsys: Capture) -> None:
    data = tmp_path / "data"
    keep("data", "langs hours", data)
    keep("exp", "data", data)
    assert check(data) == 0
    assert check(data, hours="2") == 2
    (tmp_path / "other").mkdir()
    assert check(tmp_path / "other", exp=str(tmp_path / "exp")) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"./run.sh: --hours 2: {data} was made with --hours 1; {to_do('--data')}",
        f"./run.sh: --data other: {tmp_path}/exp was made with --data data; {to_do('--exp')}",
    ]


def test_an_unknown_name_is_a_mistake_of_the_recipe(tmp_path: Path, capsys: Capture) -> None:
    line = ["--config", str(MINI), "--data_options", "size", *options(tmp_path / "data")]
    assert run_command(check_options, line) == 2
    assert capsys.readouterr().err == "--values: size: has no value; add size=VALUE\n"
