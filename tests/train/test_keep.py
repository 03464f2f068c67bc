# SPDX-License-Identifier: Apache-2.0
"""The checkpoints that are kept, worked out by hand."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from small_models import small_config

from wenet_hs.checkpoint import list_checkpoints, rotate, save_checkpoint, step_of
from wenet_hs.train.average import checkpoints_to_keep


def save(folder: Path, step: int, **progress: Any) -> Path:
    record = {"progress": {"step": step, **progress}}
    return save_checkpoint(folder, step, {"state.json": json.dumps(record).encode()})


def measured(step: int, **facts: float) -> dict[str, Any]:
    return {"validations": [{"step": step, **facts}]}


def kept(folder: Path, **settings: Any) -> list[int]:
    return sorted(step_of(path) for path in checkpoints_to_keep(folder, small_config(**settings)))


def test_the_newest_and_the_best_by_each_metric(tmp_path: Path) -> None:
    values = {1: (5.0, 0.7), 2: (1.0, 0.2), 3: (2.0, 0.9), 4: (4.0, 0.1), 5: (3.0, 0.3)}
    for step, (loss, accuracy) in values.items():
        save(tmp_path, step, **measured(step, loss=loss, accuracy=accuracy))
    assert kept(tmp_path, keep_checkpoints=1) == [2, 5]
    assert kept(tmp_path, keep_checkpoints=1, keep_best=0) == [5]
    assert kept(tmp_path, keep_checkpoints=2, keep_best=1) == [2, 4, 5]
    assert kept(tmp_path, keep_checkpoints=1, keep_best=2, keep_best_by="accuracy") == [1, 3, 5]
    assert kept(tmp_path, keep_checkpoints=1, keep_best=0, early_stopping={"metric": "accuracy"}) == [3, 5]
    assert kept(tmp_path / "nowhere") == []


def test_checkpoints_without_a_measurement_are_not_among_the_best(tmp_path: Path) -> None:
    save(tmp_path, 1, **measured(1, loss=2.0))
    save(tmp_path, 2, **measured(1, loss=0.5))  # an older validation than the checkpoint
    (save(tmp_path, 3, **measured(3, loss=1.0)) / "state.json").write_bytes(b"\x00")
    save(tmp_path, 4)
    assert kept(tmp_path, keep_checkpoints=1) == [1, 4]
    assert kept(tmp_path, keep_checkpoints=2) == [1, 3, 4]


def test_a_checkpoint_written_for_a_signal_counts_only_as_the_newest(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step, interim=step in (2, 4))
    assert kept(tmp_path, keep_checkpoints=2) == [1, 3, 4]


def test_nothing_is_deleted_if_the_newest_one_is_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = [save(tmp_path, step) for step in (1, 2, 3)]
    (paths[2] / "state.json").write_bytes(b"lost by the disk")
    with caplog.at_level(logging.WARNING):
        rotate(tmp_path, {paths[2]})
    assert list_checkpoints(tmp_path) == paths
    assert f"checkpoint {paths[2]}: sha256 of state.json differs from the manifest; no earlier one is" in caplog.text
