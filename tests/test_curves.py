# SPDX-License-Identifier: Apache-2.0
"""The curves of a training: the losses of each validation, and the rule for over-fitting."""

import json
from pathlib import Path

import pytest

from wenet_hs.curves import is_overfitted, losses_by_validation, read_curves

ROOT = Path(__file__).parents[1]


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
    steps = [{"kind": "train", "step": step, "loss": 9.0, "loss_ctc": float(step)} for step in (1, 2, 3)]
    validations = [{"kind": "valid", "step": step, "loss": 9.0, "loss_ctc": 10.0 * step} for step in (2, 3, 4)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in (*steps, *validations)) + '{"kind": "tr')
    assert losses_by_validation(read_curves(path)) == ([1.5, 3.0], [20.0, 30.0])
    without_ctc = {kind: [one | {"loss_ctc": 0.0} for one in rows] for kind, rows in read_curves(path).items()}
    assert losses_by_validation(without_ctc) == ([9.0, 9.0], [9.0, 9.0])
    assert losses_by_validation(read_curves(tmp_path / "none")) == ([], [])


def test_one_published_training_ends_over_fitted_the_one_with_the_least_real_speech() -> None:
    found, num = set(), 0
    for path in sorted(ROOT.glob("examples/*/s0/results/**/*.json")):
        record = json.loads(path.read_text("utf-8"))
        for part in filter(None, (record, record.get("first"))):
            points = [one for one in part.get("curve", []) if "loss_ctc" in one and "train_ctc" in one]
            train, valid = ([one[name] for one in points] for name in ("train_ctc", "loss_ctc"))
            num += len(points) > 1
            if is_overfitted(train, valid):
                found.add(path.name)
    assert num > 300 and found == {"softmax-0.25-seed1.json"}
