# SPDX-License-Identifier: Apache-2.0
"""Early stopping: patience, metrics, and the same end after a resume."""

import json
import logging
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from small_models import small_config
from tiny_corpus import TinyCorpus, cut_back, metrics, outcome, weights_of

from wenet_hs.checkpoint import list_checkpoints
from wenet_hs.config.schema import EarlyStoppingConf, Metric
from wenet_hs.train.average import is_out_of_patience


def stops(values: list[float | None], metric: Metric = "loss", *, patience: int = 2, min_delta: float = 0.0) -> bool:
    facts = [{"step": step} if value is None else {"step": step, metric: value} for step, value in enumerate(values)]
    return is_out_of_patience(facts, EarlyStoppingConf(metric=metric, patience=patience, min_delta=min_delta))


def test_patience_worked_out_by_hand() -> None:
    assert not is_out_of_patience([{"step": 1, "loss": 9.0}] * 50, None)
    assert not stops([])
    assert not stops([3.0, 2.0, 2.5])
    assert stops([3.0, 2.0, 2.5, 2.0])
    assert not stops([3.0, 2.0, 2.5, 1.9])
    assert stops([3.0, 2.95, 2.91], min_delta=0.1)
    assert not stops([3.0, 2.95, 2.85], min_delta=0.1)
    assert stops([0.5, 0.4, 0.3], "accuracy")
    assert not stops([0.3, 0.4, 0.5], "accuracy")
    assert stops([2.0, None, None])
    assert not stops([None, 2.0, None]), "a first value is better than none"
    assert stops([None, None])


def test_a_metric_that_is_never_measured_is_refused() -> None:
    for share, metric in ((1.0, "accuracy"), (1.0, "loss_att"), (0.0, "loss_ctc")):
        conf = {"model_conf": {"ctc_weight": share}}
        with pytest.raises(ValidationError, match=f"keep_best_by: {metric} is not measured at ctc_weight {share:g}"):
            small_config(**conf, keep_best_by=metric)
        with pytest.raises(ValidationError, match="early_stopping.metric: .* is not measured .*; use loss"):
            small_config(**conf, early_stopping={"metric": metric})
    small_config(model_conf={"ctc_weight": 1.0}, keep_best_by="loss_ctc", early_stopping={"metric": "loss"})
    ramp = {"ctc_weight": 1.0, "ctc_weight_final": 0.3, "ctc_weight_steps": 5}
    small_config(model_conf=ramp, early_stopping={"metric": "accuracy"})


def test_early_stopping_ends_with_the_best_checkpoint(
    tiny_corpus: TinyCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    early = ("early_stopping.patience=2", "early_stopping.min_delta=0.05", "optim_conf.lr=0.05", "keep_checkpoints=2")
    with caplog.at_level(logging.INFO):
        whole = tiny_corpus.train(tmp_path / "whole", *early, "max_epoch=20", "keep_best=0")
    losses = {record["step"]: record["loss"] for record in metrics(whole) if record["kind"] == "valid"}
    last, best = max(losses), min(losses, key=lambda step: losses[step])
    assert last < 80
    name = f"step-{best:08d}"
    assert [path.name for path in list_checkpoints(whole / "checkpoints")][0] == name, "kept for this"
    facts = json.loads((whole / "final.json").read_text())
    assert (facts["by"], [entry["name"] for entry in facts["checkpoints"]]) == ("loss", [name])
    weights = torch.load(whole / "checkpoints" / name / "model.pt", weights_only=True)
    assert all(torch.equal(value, weights[key]) for key, value in weights_of(whole).items())
    assert "validation brought nothing better by loss for 2 validations" in caplog.text
    assert f"{whole / 'final.pt'} is {name}, the best by loss" in caplog.text
    caplog.clear()
    copy = cut_back(whole, tmp_path / "m", last - 1)
    tiny_corpus.train(copy, *early, "max_epoch=20", "keep_best=0")
    assert outcome(copy) == outcome(whole)
