# SPDX-License-Identifier: Apache-2.0
"""The progress of a recipe's trainings: the steps that run, and the time that is left of all."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def load_tool() -> Any:
    spec = importlib.util.spec_from_file_location("progress", ROOT / "tools" / "progress.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["progress"] = module
    spec.loader.exec_module(module)
    return module


def write_log(folder: Path, name: str, step: int, total: str, minutes: str = "", end: str = "") -> Path:
    """A log as `wenet-hs train` writes it."""
    line = (
        f"12:00:00 INFO step {step} of {total} | loss 0.431 (att 0.000 ctc 0.410) | lr 1.00e-03 | wait 1 %{minutes}\n"
    )
    path = folder / f"{name}.log"
    path.write_text(f"12:00:00 INFO first batch\n{line}{end}")
    return path


def test_a_line_has_the_steps_that_run_and_the_time_of_all_trainings(tmp_path: Path) -> None:
    tool = load_tool()
    base = tool.read_log(write_log(tmp_path, "base", 1000, "3000", " | 10.0 min left"), 5.0)
    expected = f"{tmp_path.name}/base: step 1000 of 3000 | loss 0.431 | 10 min left"
    assert tool.lines_of([base], 1, 3) == [f"{expected}; all 3 trainings: about 40 min"]
    assert tool.lines_of([base], 2, 3) == [f"{expected}; all 3 trainings: about 20 min"], "side by side"
    assert tool.lines_of([base], 1, 1) == [expected]


def test_a_limit_of_time_is_named_and_a_training_that_has_not_begun_takes_as_long(tmp_path: Path) -> None:
    tool = load_tool()
    base = tool.read_log(write_log(tmp_path, "base", 400, "at most 3000", " | 0.2 min left"), 2.8)
    [line] = tool.lines_of([base], 1, 2)
    assert "step 400 of at most 3000" in line and line.endswith("0 min left; all 2 trainings: about 3 min")


def test_a_training_that_is_over_has_no_line_and_one_without_a_time_no_promise(tmp_path: Path) -> None:
    tool = load_tool()
    base = tool.read_log(write_log(tmp_path, "base", 3000, "3000", end=f"{tmp_path}/base/final.pt: trained\n"), 9.0)
    head = tool.read_log(write_log(tmp_path, "softmax", 20, "2000"), 0.1)
    assert tool.lines_of([base, head], 1, 2) == [f"{tmp_path.name}/softmax: step 20 of 2000 | loss 0.431"]
    head = tool.read_log(write_log(tmp_path, "softmax", 1000, "2000", " | 4.0 min left"), 4.0)
    assert tool.lines_of([base, head], 1, 2)[0].endswith("all 2 trainings: about 4 min")


def test_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    tool = load_tool()
    path = write_log(tmp_path, "softmax", 20, "2000")
    with path.open("a", encoding="utf-8") as log:
        log.write("x" * 2 * tool.END_BYTES + "\n12:00:00 INFO step 40 of 2000 | loss 0.3 (att …\n")
    assert tool.read_log(path, 0.0).step == 40


def test_a_log_gets_a_line_per_minute_and_logs_of_before_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool, clock = load_tool(), [0.0]
    (tmp_path / "exp").mkdir()
    write_log(tmp_path / "exp", "softmax", 1000, "2000", " | 4.0 min left")
    old = write_log(tmp_path / "exp", "old", 1000, "2000", " | 4.0 min left")
    tool.os.utime(old, (1, 1))

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        if clock[0] > 130:
            raise SystemExit

    monkeypatch.setattr(tool.time, "sleep", sleep)
    monkeypatch.setattr(tool.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(tool.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["progress.py", str(tmp_path / "exp")])
    with pytest.raises(SystemExit):
        tool.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].endswith("exp/softmax: step 1000 of 2000 | loss 0.431 | 4 min left")


def test_resources_and_duration_are_printed_once_per_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool, folder, num_reads = load_tool(), tmp_path / "exp", 0
    folder.mkdir()
    resources = "resources: training 9 utterances, 0.01 h | disk: checkpoints at most 0.10 GB"
    duration = "duration without validations: 1 s per step | 1.0 min per epoch (60 steps) | 0.1 h in all (300)"

    def sleep(seconds: float) -> None:
        nonlocal num_reads
        num_reads += 1
        for name in ("softmax", "class"):
            end = f"12:00:05 INFO {duration}\n" + 900 * ("x" * 99 + "\n") if num_reads > 2 or name == "class" else ""
            write_log(folder, name, 50, "300", end=f"12:00:01 WARNING {resources}\n{end}")
        if num_reads == 4:
            raise SystemExit

    monkeypatch.setattr(tool.time, "sleep", sleep)
    monkeypatch.setattr(tool.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["progress.py", str(folder)])
    with pytest.raises(SystemExit):
        tool.main()
    lines = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    expected = [f"exp/class: {resources}", f"exp/class: {duration}", f"exp/softmax: {resources}"]
    assert lines == [*expected, f"exp/softmax: {duration}"]
    monkeypatch.setattr(tool.time, "sleep", lambda _: sys.exit())
    with pytest.raises(SystemExit):
        tool.main()
    assert len(capsys.readouterr().out.splitlines()) == 4, "also of trainings that ended before they were read"
