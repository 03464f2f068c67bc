# SPDX-License-Identifier: Apache-2.0
"""Every fault with few trials, and violations that the fault tests must notice."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import checkpoints
import hostile
import pytest
import run_all
from harness import Tally, last_step, start_training
from tiny_corpus import write_tiny_corpus

from wenet_hs.model import checkpoint as ckpt

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]
PLAIN = "mutate_clips"
"""The fault whose quick form takes less than a second."""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(
            pytest.param(name, {}, marks=() if name == PLAIN else pytest.mark.slow)
            for name in run_all.FAULTS
        ),
        pytest.param("kill_recognition", {"ranks": 2}, marks=pytest.mark.slow),
    ],
)
def test_no_promise_is_violated(name: str, options: dict[str, object], tmp_path: Path) -> None:
    fault, tally = run_all.FAULTS[name], Tally(seed=5)
    figures = fault.test(tmp_path, tally, fault.quick, **{**fault.quick_options, **options})
    assert tally.violations == []
    assert tally.num_checks > 0, figures


@pytest.mark.slow
def test_a_save_that_is_not_atomic_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = ckpt.save_checkpoint

    def save_in_place(folder: Path, step: int, files: dict[str, bytes]) -> Path:
        made = save(folder.parent / "elsewhere", step, files)
        return Path(shutil.copytree(made, folder / made.name, dirs_exist_ok=True))

    monkeypatch.setattr(ckpt, "save_checkpoint", save_in_place)
    tally = Tally()
    checkpoints.kill_at_every_change(tmp_path, "save and rotate", 500, tally)
    assert any("left a damaged checkpoint" in violation for violation in tally.violations)


def test_no_source_reads_a_pickle(tmp_path: Path) -> None:
    num_files, found = hostile.scan_sources()
    assert (found, num_files > 80) == ([], True)
    unsafe = (
        "import pickle",
        "from dill import loads",
        "np.load(p)",
        "np.load(p, allow_pickle=True)",
    )
    lines = (
        *unsafe,
        "torch.load(p, weights_only=careful)",
        "np.load(p, allow_pickle=False)  # no pickle",
    )
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "unsafe.py").write_text("\n".join(lines))
    found = hostile.scan_sources(tmp_path)[1]
    assert [line.partition(".py:")[2] for line in found] == [
        f"{n}: {text}" for n, text in enumerate(lines[:-1], 1)
    ]


def test_the_note_has_a_row_per_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flood(folder: Path, tally: Tally, trials: int) -> str:
        """Nothing gets wet."""
        return f"{trials} floods"

    def fire(folder: Path, tally: Tally, trials: int) -> str:
        """Nothing burns."""
        tally.check(trials < 3, "it burns")
        return f"{trials} fires"

    faults = {"flood": run_all.Fault(flood, 9, 1, {}), "fire": run_all.Fault(fire, 9, 1, {})}
    monkeypatch.setattr(run_all, "FAULTS", faults)
    out = str(tmp_path / "faults")
    assert run_all.main(["--quick", "--out", out]) == 0
    assert run_all.main(["fire", "--trials", "3", "--out", out]) == 1
    note = (tmp_path / "faults.md").read_text("utf-8")
    assert (
        "violations in: python tests/faults/run_all.py fire --trials 3" in note
        and "- power loss" in note
    )
    rows = json.loads((tmp_path / "faults.json").read_text("utf-8"))["results"]
    assert [(row["promise"], row["exit_code"]) for row in rows] == [
        ("Nothing gets wet", 0),
        ("Nothing burns", 1),
    ]
    assert rows[1]["figure"].startswith("seed 1 · 3 fires · ") and rows[1]["figure"].endswith(
        " s · 1 violations"
    )
    assert run_all.main(["fire", "--quick", "--out", out]) == 0
    assert "violation: it burns" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_all.main(["earthquake"])


@pytest.mark.slow
def test_a_silent_rank_ends_the_run_within_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WENET_HS_RANK_TIMEOUT_S", "5")
    corpus, folder = write_tiny_corpus(tmp_path / "corpus"), tmp_path / "m"
    program = start_training(
        corpus, folder, "max_epoch=8", "save_interval=2", "num_workers=0", ranks=2
    )
    assert program.wait_until(lambda: last_step(folder) > 0 and 1 in program.rank_processes())
    rank = program.rank_processes()[1]
    os.kill(rank, signal.SIGSTOP)
    message = "another rank has not answered for 5 s"
    assert program.wait_until(lambda: message in program.log.read_text())
    time.sleep(0.1)
    os.kill(rank, signal.SIGKILL)  # torchrun would wait half a minute for its end
    assert program.wait() == 1
    lines = [line for line in program.log.read_text().splitlines() if line.startswith("rank 0: ")]
    advice = "read its message, then run the same command again to resume"
    assert lines == [f"rank 0: {message}; {advice}"]
