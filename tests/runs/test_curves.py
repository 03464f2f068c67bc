# SPDX-License-Identifier: Apache-2.0
"""The curves of a training: the losses of each validation, and the rule for over-fitting."""

import json
import time
from pathlib import Path

import pytest

from wenet_hs.runs.curves import (
    ctc_take_off,
    is_model_overfitted,
    is_overfitted,
    losses_by_validation,
    read_curves,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("train", "valid", "expected"),
    [
        ([2.0, 1.0, 0.5], [2.0, 1.5, 1.9], True),
        ([2.0, 1.0, 0.5], [2.0, 1.5, 1.8], False),
        ([2.0, 1.0, 0.5], [2.0, 1.5, 1.4], False),
        ([2.0, 0.5, 0.9], [2.0, 1.5, 1.9], False),
        ([2.0, 1.0, 0.96], [2.0, 1.5, 1.9], False),
        ([0.1], [3.0], False),
        ([], [], False),
    ],
)
def test_over_fitting_is_a_validation_loss_above_its_minimum_and_a_training_loss_that_falls(
    train: list[float], valid: list[float], expected: bool
) -> None:
    assert is_overfitted(train, valid) is expected


def test_each_validation_has_the_mean_training_loss_since_the_last_one(tmp_path: Path) -> None:
    steps = [
        {"kind": "train", "step": step, "loss": 9.0, "loss_ctc": float(step)} for step in (1, 2, 3)
    ]
    validations = [
        {"kind": "valid", "step": step, "loss": 9.0, "loss_ctc": 10.0 * step} for step in (2, 3, 4)
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "".join(json.dumps(record) + "\n" for record in (*steps, *validations)) + '{"kind": "tr'
    )
    assert losses_by_validation(read_curves(path)) == ([1.5, 3.0], [20.0, 30.0])
    without_ctc = {
        kind: [one | {"loss_ctc": 0.0} for one in rows] for kind, rows in read_curves(path).items()
    }
    assert losses_by_validation(without_ctc) == ([9.0, 9.0], [9.0, 9.0])
    assert losses_by_validation(read_curves(tmp_path / "none")) == ([], [])


def test_a_long_training_costs_little_at_each_validation() -> None:
    rows = [{"step": float(step), "loss": 1.0} for step in range(20_000)]
    began = time.perf_counter()
    train, valid = losses_by_validation({"train": rows, "valid": rows[1::4]})
    assert len(train) == len(valid) == 5_000 and time.perf_counter() - began < 1, (
        "one pass, not one per validation"
    )


def test_a_model_is_over_fitted_at_the_checkpoints_of_its_weights(tmp_path: Path) -> None:
    records = [
        {"kind": kind, "step": step, "loss": value}
        for step, train, valid in ((10, 2.0, 2.0), (20, 1.0, 1.5), (30, 0.5, 2.5))
        for kind, value in (("train", train), ("valid", valid))
    ]
    weights = tmp_path / "final.pt"
    assert not is_model_overfitted(tmp_path, weights), "no records: a folder of WeNet"
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records)
    )
    assert is_model_overfitted(tmp_path, weights)
    assert [
        is_model_overfitted(tmp_path, tmp_path / "checkpoints" / f"step-{n}") for n in (20, 30)
    ] == [False, True]
    for steps, expected in (([10, 20], False), ([20, 30], True), ([], True)):
        (tmp_path / "final.json").write_text(
            json.dumps({"checkpoints": [{"step": step} for step in steps]})
        )
        assert is_model_overfitted(tmp_path, weights) is expected
    (tmp_path / "final.json").unlink()
    (tmp_path / "metrics.jsonl").write_text("damaged\n{}\n")
    assert not is_model_overfitted(tmp_path, weights)


def test_the_distance_of_ctc_from_its_plateau() -> None:
    valid = [
        {"step": 4.0, "plateau_ctc": 3.0, "loss_ctc": 2.5},
        {"step": 5.0, "plateau_ctc": 3.0, "loss_ctc": 2.0},
    ]
    train = [{"step": 2.0, "loss_ctc": 2.25}, {"step": 3.0, "loss_ctc": 1.25}]
    assert ctc_take_off({"valid": valid[:1]}) == 0.5
    assert ctc_take_off({"train": train, "valid": valid[:1]}) == 1.25, (
        "the mean of the two records is 1.75"
    )
    assert ctc_take_off({"train": train[:1], "valid": valid}) == 1.0, (
        "no record between the validations"
    )
    assert ctc_take_off({"valid": [{"step": 4.0, "loss_ctc": 2.5}]}) is None
    assert ctc_take_off({}) is None
