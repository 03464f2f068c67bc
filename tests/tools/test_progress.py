# SPDX-License-Identifier: Apache-2.0
"""The progress of a recipe's trainings: the steps that run, and the time that is left of all parts."""

import importlib.util
import math
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


def write_log(folder: Path, name: str, step: int, total: int, minutes: str = "", end: str = "") -> str:
    """A log as `wenet-hs train` writes it; returns the folder of the training."""
    line = (
        f"12:00:00 INFO step {step} of {total} | loss 0.431 (att 0.000 ctc 0.410) | lr 1.00e-03 | wait 1 %{minutes}\n"
    )
    (folder / f"{name}.log").write_text(f"12:00:00 INFO first batch\n{line}{end}")
    return str(folder / name)


def shown(folder: str) -> str:
    return "/".join(Path(folder).parts[-2:])


def test_a_line_has_the_steps_that_run_and_the_time_of_all_parts(tmp_path: Path) -> None:
    tool = load_tool()
    base = write_log(tmp_path, "base", 1000, 3000, " | 10.0 min left")
    heads = [str(tmp_path / "softmax"), str(tmp_path / "hsoftmax")]
    phases = [[tool.read_part(base, 9000)], [tool.read_part(name, 2000) for name in heads]]
    expected = f"{shown(base)}: step 1000 of 3000 | loss 0.431 | 10 min left; all 3 trainings: about"
    assert tool.lines_of(phases, 1) == [f"{expected} 30 min"]
    assert tool.lines_of(phases, 2) == [f"{expected} 20 min"], "two heads side by side"
    assert tool.lines_of(phases[:1], 1) == [f"{shown(base)}: step 1000 of 3000 | loss 0.431 | 10 min left"]


def test_a_part_that_has_not_begun_takes_its_max_minutes(tmp_path: Path) -> None:
    tool = load_tool()
    base = write_log(tmp_path, "base", 400, 3000, " | 0.2 min left")  # the limit of time ends it, not its steps
    phases = [[tool.read_part(base, 3000, 3.0)], [tool.read_part(str(tmp_path / "softmax"), 3000, 3.0)]]
    assert tool.lines_of(phases, 1)[0].endswith("0 min left; all 2 trainings: about 3 min")


def test_a_part_that_is_over_has_no_line_and_one_without_a_time_no_promise(tmp_path: Path) -> None:
    tool = load_tool()
    base = write_log(tmp_path, "base", 3000, 3000, end=f"{tmp_path}/base/final.pt: trained\n")
    head = write_log(tmp_path, "softmax", 20, 2000)
    phases = [[tool.read_part(base, 3000)], [tool.read_part(head, 2000)]]
    assert tool.lines_of(phases, 1) == [f"{shown(head)}: step 20 of 2000 | loss 0.431"]
    write_log(tmp_path, "softmax", 1000, 2000, " | 4.0 min left")
    assert tool.lines_of([phases[0], [tool.read_part(head, 2000)]], 1)[0].endswith("all 2 trainings: about 4 min")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", (2400, math.inf)),
        ("save_interval=250 scheduler_conf.total_steps=3000 max_minutes=3", (3000, 3.0)),
        ('scheduler_conf={"warmup_steps":400,"total_steps":4800}', (4800, math.inf)),
        ("scheduler_conf.total_steps=3000 scheduler_conf.total_steps=800", (800, math.inf)),
        ("max_minutes=3 max_minutes=null", (2400, math.inf)),
        ("max_minute=3", (0, math.inf)),
    ],
)
def test_the_planned_end_is_that_of_the_last_setting_or_the_yaml(settings: str, expected: tuple[int, float]) -> None:
    tool = load_tool()
    assert tool.planned_end(ROOT / "conf" / "own.yaml", settings) == expected


def test_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    tool = load_tool()
    head = write_log(tmp_path, "softmax", 20, 2000)
    with Path(f"{head}.log").open("a", encoding="utf-8") as log:
        log.write("x" * 2 * tool.END_BYTES + "\n12:00:00 INFO step 40 of 2000 | loss 0.3 (att …\n")
    assert tool.read_part(head, 2000).step == 40


def test_a_log_gets_a_line_per_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool, clock = load_tool(), [0.0]
    head = write_log(tmp_path, "softmax", 1000, 2000, " | 4.0 min left")

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        if clock[0] > 130:
            raise SystemExit

    monkeypatch.setattr(tool.time, "sleep", sleep)
    monkeypatch.setattr(tool.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(tool.signal, "signal", lambda *_: None)
    monkeypatch.setattr(tool.logging, "disable", lambda: None)
    monkeypatch.setattr(sys, "argv", ["progress.py", "--config", "none.yaml", "--second", head])
    with pytest.raises(SystemExit):
        tool.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].endswith(f"{shown(head)}: step 1000 of 2000 | loss 0.431 | 4 min left")
