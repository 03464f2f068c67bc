# SPDX-License-Identifier: Apache-2.0
"""The progress of a recipe's trainings: the steps that run, the time that is left of all, what each
states once.
"""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_runs import overfits, write_progress_of

from wenet_hs.bin import progress
from wenet_hs.runs import record as records
from wenet_hs.runs.progress import (
    ExperimentProgress,
    ShownTraining,
    describe_progress,
    estimate_seconds_left,
    find_model_folders,
    read_progress,
    read_trainings,
    write_progress,
)
from wenet_hs.runs.record import End, Resources, RunRecord, RunState, Start, write_run
from wenet_hs.tree.errors import ConfigError, DataError

RESOURCES = Resources(checkpoint_bytes=20_000_000, kept_bytes=100_000_000, free_bytes=7_000_000_000)


def shown(
    folder: Path,
    step: int,
    planned: int,
    *,
    state: RunState = "running",
    elapsed_min: float = 0.0,
    **values: float,
) -> ShownTraining:
    record = write_progress_of(folder, step, planned, **values)
    return ShownTraining(folder.name, record, state, 60 * elapsed_min)


def minutes_of_all(trainings: list[ShownTraining], *, jobs: int, total: int) -> float | None:
    seconds = estimate_seconds_left(trainings, jobs=jobs, num_trainings=total)
    return None if seconds is None else seconds / 60


@pytest.fixture
def are_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each model folder were locked by its training."""
    monkeypatch.setattr(records, "lock_holder", lambda _: 1)


def test_a_line_has_the_steps_that_run_and_the_time_of_all_trainings(tmp_path: Path) -> None:
    base = shown(tmp_path / "base", 1000, 3000, minutes_left=10.0, elapsed_min=5.0)
    assert describe_progress(base) == "base: step 1000 of 3000 | loss 0.431 | 10 min left"
    assert minutes_of_all([base], jobs=1, total=3) == pytest.approx(10 + 2 * 15)
    assert minutes_of_all([base], jobs=2, total=3) == pytest.approx((10 + 2 * 15) / 2), (
        "side by side"
    )
    of_all = progress.lines_of([base], 60 * 40.0, 3)
    assert of_all == [
        "base: step 1000 of 3000 | loss 0.431 | 10 min left; all 3 trainings: about 40 min"
    ]
    assert progress.lines_of([base], 60 * 10.0, 1) == [
        "base: step 1000 of 3000 | loss 0.431 | 10 min left"
    ]


def test_a_limit_of_time_is_named_and_a_training_that_has_not_begun_takes_as_long(
    tmp_path: Path,
) -> None:
    base = shown(tmp_path / "base", 400, 3000, minutes_left=0.2, max_minutes=3.0, elapsed_min=2.8)
    assert describe_progress(base) == "base: step 400 of at most 3000 | loss 0.431 | 0 min left"
    assert minutes_of_all([base], jobs=1, total=2) == pytest.approx(0.2 + 3.0)


def test_a_training_that_is_over_has_no_line_and_one_without_a_time_no_promise(
    tmp_path: Path,
) -> None:
    base = shown(tmp_path / "base", 3000, 3000, state="trained")
    head = shown(tmp_path / "softmax", 20, 2000)
    assert progress.lines_of([base, head], None, 2) == ["softmax: step 20 of 2000 | loss 0.431"]
    assert minutes_of_all([base, head], jobs=1, total=2) is None
    head = shown(tmp_path / "softmax", 1000, 2000, minutes_left=4.0, elapsed_min=4.0)
    assert minutes_of_all([base, head], jobs=1, total=2) == pytest.approx(4.0)
    assert describe_progress(ShownTraining("new", RunRecord(), "running", 0.0)) is None


def test_a_loss_that_is_not_finite_is_nan(tmp_path: Path) -> None:
    record = write_progress_of(tmp_path, 5, 10)
    assert record.progress is not None
    diverged = record.progress.model_copy(update={"losses": {"loss": None}})
    training = ShownTraining("m", record.model_copy(update={"progress": diverged}), "running", 0.0)
    assert describe_progress(training) == "m: step 5 of 10 | loss nan"


def test_damaged_records_are_not_shown_and_old_ones_are_not_recent(
    tmp_path: Path, are_running: None
) -> None:
    write_progress_of(tmp_path / "softmax", 1, 2)
    write_progress_of(tmp_path / "old", 1, 2)
    os.utime(tmp_path / "old/run.json", (1, 1))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/run.json").write_text("{")
    folders = [tmp_path / name for name in ("softmax", "old", "damaged", "not begun")]
    trainings = read_trainings(folders, since=2.0)
    assert [(training.name, training.is_recent) for training in trainings] == [
        (f"{tmp_path.name}/softmax", True),
        (f"{tmp_path.name}/old", False),
    ]
    assert all(training.is_running for training in trainings)
    assert 0 <= trainings[0].seconds_elapsed < 60


def test_trainings_that_had_ended_before_do_not_count_as_waiting(tmp_path: Path) -> None:
    """A study of five trainings goes on after a kill: four have ended, one runs."""
    one = shown(tmp_path / "five", 500, 1000, minutes_left=60.0, elapsed_min=60.0)
    trained = [
        replace(shown(tmp_path / name, 9, 9, state="trained"), is_recent=False)
        for name in ("one", "two", "three")
    ]
    killed = replace(shown(tmp_path / "four", 5, 9, state="killed"), is_recent=False)
    assert minutes_of_all([one, *trained], jobs=1, total=4) == pytest.approx(60)
    assert minutes_of_all([one, *trained, killed], jobs=1, total=5) == pytest.approx(60 + 120), (
        "it will be resumed"
    )
    failed = shown(tmp_path / "four", 5, 9, state="failed")
    assert minutes_of_all([one, *trained, failed], jobs=1, total=5) == pytest.approx(60), (
        "in this run"
    )


def test_folders_of_experiments_and_of_models(tmp_path: Path) -> None:
    write_progress_of(tmp_path / "exp/b", 1, 2)
    write_progress_of(tmp_path / "exp/a", 1, 2)
    assert find_model_folders(tmp_path / "exp") == [tmp_path / "exp/a", tmp_path / "exp/b"]
    assert find_model_folders(tmp_path / "exp/a") == [tmp_path / "exp/a"]
    assert find_model_folders(tmp_path / "exp/new") == [tmp_path / "exp/new"], (
        "one that has not begun"
    )


def run_until(reads: list[None], number: int) -> None:
    """End the command at this call of `sleep`."""
    reads.append(None)
    if len(reads) == number:
        raise SystemExit


def run_command(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str) -> None:
    """Run the command until its `sleep` ends it."""
    monkeypatch.setattr(progress.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit):
        progress.run(parse(folder, *options))


def parse(folder: Path, *options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    progress.add_arguments(parser)
    return parser.parse_args([str(folder), *options])


def test_a_file_gets_a_line_per_minute(
    tmp_path: Path,
    are_running: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_progress_of(tmp_path / "exp/softmax", 1000, 2000, minutes_left=4.0)
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        if clock[0] > 130:
            raise SystemExit

    monkeypatch.setattr(progress.time, "sleep", sleep)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    run_command(monkeypatch, tmp_path / "exp/softmax")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("exp/softmax: step 1000 of 2000 | loss 0.431 | 4 min left")


def test_each_statement_and_each_kind_of_warning_is_printed_once_with_the_name(
    tmp_path: Path,
    are_running: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "exp"
    reads = list[None]()

    def sleep(seconds: float) -> None:
        is_later = len(reads) >= 2
        write_progress_of(
            folder / "softmax",
            50,
            300,
            resources=RESOURCES,
            first_seconds_per_step=1.0 if is_later else None,
            warnings=(overfits(40), overfits(50)) if is_later else (),
        )
        run_until(reads, 4)

    monkeypatch.setattr(progress.time, "sleep", sleep)
    run_command(monkeypatch, folder / "softmax")
    lines = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "exp/softmax: resources: disk: checkpoints at most 0.10 GB (0.02 GB each), free 7.00 GB",
        "exp/softmax: duration without validations: 1 s per step | 1.0 min per epoch (60 steps) | 0.08 h in all (300)",
        "exp/softmax: WARNING step 40: the model over-fits",
    ]


def test_a_training_that_ended_before_it_was_read_has_its_statements_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    end = End(state="trained", time="2026-11-28T10:00:00Z")
    write_progress_of(tmp_path / "exp/softmax", 2, 2, warnings=(overfits(2),), end=end)
    monkeypatch.setattr(progress.time, "sleep", lambda _: sys.exit())
    run_command(monkeypatch, tmp_path / "exp")
    assert capsys.readouterr().out.endswith(" exp/softmax: WARNING step 2: the model over-fits\n")


def test_the_time_of_all_is_a_file_while_the_command_runs(
    tmp_path: Path, are_running: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "exp"
    write_progress_of(folder / "softmax", 1000, 2000, minutes_left=4.0)
    seen = list[ExperimentProgress | None]()

    def sleep(seconds: float) -> None:
        seen.append(read_progress(folder))
        if len(seen) == 2:
            raise SystemExit

    monkeypatch.setattr(progress.time, "sleep", sleep)
    run_command(monkeypatch, folder)
    assert seen == [None, ExperimentProgress(num_trainings=1, seconds_left=240.0)]
    assert read_progress(folder) is None


def test_a_progress_file_that_nothing_renews_is_not_read(tmp_path: Path) -> None:
    progress_of_all = ExperimentProgress(num_trainings=2, seconds_left=1.0)
    write_progress(tmp_path, progress_of_all)
    assert read_progress(tmp_path) == progress_of_all
    os.utime(tmp_path / "progress.json", (1, 1))
    assert read_progress(tmp_path) is None, "its process was killed"


@pytest.mark.parametrize(("old", "new"), [("/1", "/2"), ("}", ""), ("2", "many")])
def test_a_damaged_progress_file_is_one_line(tmp_path: Path, old: str, new: str) -> None:
    write_progress(tmp_path, ExperimentProgress(num_trainings=2, seconds_left=None))
    path = tmp_path / "progress.json"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(
        DataError, match=r"progress.json: is damaged, or of a newer version; remove it$"
    ):
        read_progress(tmp_path)


def test_numbers_below_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--jobs"):
        progress.run(parse(tmp_path, "--jobs", "0"))


def test_an_old_record_without_a_time_has_no_elapsed_time(tmp_path: Path) -> None:
    write_run(tmp_path / "m", RunRecord(starts=(Start(),)))
    (training,) = read_trainings([tmp_path / "m"], since=0.0)
    assert (training.state, training.seconds_elapsed) == ("unknown", 0.0)
