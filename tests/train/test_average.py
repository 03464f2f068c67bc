# SPDX-License-Identifier: Apache-2.0
"""Checkpoints kept, early stopping, averages of checkpoints and final.pt, worked out by hand."""

import hashlib
import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import small_config
from tiny_corpus import TinyCorpus, cut_back, metrics, outcome, weights_of
from torch import Tensor

from wenet_hs.bin import average as command
from wenet_hs.bin.main import run_command
from wenet_hs.config.optim import EarlyStoppingConf, Metric
from wenet_hs.model.checkpoint import (
    list_checkpoints,
    rotate,
    save_checkpoint,
    step_of,
    write_final,
)
from wenet_hs.model.experiment import load_experiment
from wenet_hs.train.average import (
    average_weights,
    checkpoints_to_keep,
    choose_checkpoints,
    is_out_of_patience,
    read_validations,
)
from wenet_hs.tree.errors import CheckpointError


def save(
    model_dir: Path,
    step: int,
    facts: dict[str, float] | None = None,
    units: str = "a",
    interim: bool = False,
    **w: Tensor,
) -> Path:
    """A checkpoint of these weights; `facts` are the metrics of the last validation, at this step
    if they name none.
    """
    validations = [] if facts is None else [{"step": step, **facts}]
    progress = {"step": step, "interim": interim, "validations": validations}
    state = json.dumps({"progress": progress, "fingerprint": {"units.txt": units}}).encode()
    return save_checkpoint(model_dir / "checkpoints", step, {"model.pt": w, "state.json": state})


def kept(model_dir: Path, **settings: Any) -> list[int]:
    return sorted(
        map(step_of, checkpoints_to_keep(model_dir / "checkpoints", small_config(**settings)))
    )


def test_the_newest_and_the_best_by_each_metric_are_kept(tmp_path: Path) -> None:
    values = ((5.0, 0.7), (1.0, 0.2), (2.0, 0.9), (4.0, 0.1), (3.0, 0.3))
    for step, (loss, accuracy) in enumerate(values, 1):
        save(tmp_path, step, facts={"loss": loss, "accuracy": accuracy})
    assert kept(tmp_path, keep_checkpoints=1) == [2, 5]
    assert kept(tmp_path, keep_checkpoints=1, keep_best=0) == [5]
    assert kept(tmp_path, keep_checkpoints=2, keep_best=1) == [2, 4, 5]
    assert kept(tmp_path, keep_checkpoints=1, keep_best=2, keep_best_by="accuracy") == [1, 3, 5]
    assert kept(
        tmp_path, keep_checkpoints=1, keep_best=0, early_stopping={"metric": "accuracy"}
    ) == [3, 5]
    assert kept(tmp_path / "nowhere") == []


def test_checkpoints_beyond_a_total_size_are_not_kept_the_best_and_the_newest_last(
    tmp_path: Path,
) -> None:
    for step, loss in enumerate((5.0, 1.0, 2.0, 4.0, 3.0), 1):
        newest = save(tmp_path, step, facts={"loss": loss, "accuracy": loss}, w=torch.zeros(1000))
    size_gb = (sum(file.stat().st_size for file in newest.iterdir()) + 50) / 1e9
    settings = {"keep_checkpoints": 4, "keep_best": 2}
    for number, steps in enumerate(([5], [5], [2, 5], [2, 3, 5], [2, 3, 4, 5], [2, 3, 4, 5])):
        assert kept(tmp_path, keep_checkpoints_gb=max(1e-9, number * size_gb), **settings) == steps
    assert kept(tmp_path, keep_checkpoints_gb=1e-9, early_stopping={"metric": "accuracy"}) == [
        1,
        5,
    ], "final.pt is 1"
    assert kept(tmp_path / "nowhere", keep_checkpoints_gb=1.0) == []


def test_checkpoints_without_a_measurement_are_not_among_the_best(tmp_path: Path) -> None:
    save(tmp_path, 1, facts={"loss": 2.0})
    save(tmp_path, 2, facts={"loss": 0.5, "step": 1})
    (save(tmp_path, 3, facts={"loss": 1.0}) / "state.json").write_bytes(b"\x00")
    save(tmp_path, 4)
    assert kept(tmp_path, keep_checkpoints=1) == [1, 4]
    assert kept(tmp_path, keep_checkpoints=2) == [1, 3, 4]


def test_a_checkpoint_written_for_a_signal_counts_only_as_the_newest(tmp_path: Path) -> None:
    paths = {step: save(tmp_path, step, interim=step in (2, 4)) for step in (1, 2, 3, 4)}
    assert kept(tmp_path, keep_checkpoints=2) == [1, 3, 4]
    assert choose_checkpoints(tmp_path, 2, "last") == [paths[1], paths[3]]
    only = save(tmp_path / "only", 7, interim=True)
    assert choose_checkpoints(tmp_path / "only", 1, "last") == [only], "better than none"


def test_nothing_is_deleted_if_the_newest_one_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [save(tmp_path, step) for step in (1, 2, 3)]
    (paths[2] / "state.json").write_bytes(b"lost by the disk")
    rotate(tmp_path / "checkpoints", {paths[2]})
    assert list_checkpoints(tmp_path / "checkpoints") == paths
    assert (
        f"checkpoint {paths[2]}: sha256 of state.json differs from the manifest; no earlier one is"
        in caplog.text
    )


def test_two_validations_without_improvement_end_training() -> None:
    cases: tuple[tuple[list[float | None], Metric, float, bool], ...] = (
        ([], "loss", 0.0, False),
        ([3.0, 2.0, 2.5, 2.0], "loss", 0.0, True),
        ([3.0, 2.0, 2.5, 1.9], "loss", 0.0, False),
        ([3.0, 2.95, 2.91], "loss", 0.1, True),
        ([3.0, 2.95, 2.85], "loss", 0.1, False),
        ([0.5, 0.4, 0.3], "accuracy", 0.0, True),
        ([None, 2.0, None], "loss", 0.0, False),  # a first value is better than none
        ([2.0, None, None], "loss", 0.0, True),
    )
    for values, metric, min_delta, expected in cases:
        facts = [{} if value is None else {metric: value} for value in values]
        conf = EarlyStoppingConf(metric=metric, patience=2, min_delta=min_delta)
        assert is_out_of_patience(facts, conf) == expected, values
        assert not is_out_of_patience(facts, None)


@pytest.mark.slow
def test_early_stopping_ends_with_the_best_checkpoint_also_after_a_resume(
    tiny_corpus: TinyCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = (
        "early_stopping.patience=2",
        "optim_conf.lr=0.5",
        "scheduler_conf.warmup_steps=1",
        "max_epoch=20",
    )
    settings += ("early_stopping.min_delta=0.05", "keep_checkpoints=1", "keep_best=0")
    with caplog.at_level(logging.INFO):
        whole = tiny_corpus.train(tmp_path / "whole", *settings)
    losses = {
        record["step"]: record["loss"] for record in metrics(whole) if record["kind"] == "valid"
    }
    last, best = max(losses), min(losses, key=lambda step: losses[step])
    assert last < 80
    assert [step_of(path) for path in list_checkpoints(whole / "checkpoints")] == sorted(
        {best, last}
    )
    name = f"step-{best:08d}"
    facts = json.loads((whole / "final.json").read_text())
    assert (facts["by"], [entry["name"] for entry in facts["checkpoints"]]) == ("loss", [name])
    weights = torch.load(whole / "checkpoints" / name / "model.pt", weights_only=True)
    assert all(torch.equal(value, weights[key]) for key, value in weights_of(whole).items())
    assert "no better loss in the last 2 validations" in caplog.text
    assert f"{whole / 'final.pt'} is {name}, the best by loss" in caplog.text
    copy = cut_back(whole, tmp_path / "m", last - 1)
    tiny_corpus.train(copy, *settings)
    assert outcome(copy) == outcome(whole)


def test_the_mean_by_hand(tmp_path: Path) -> None:
    values = (([1.0, -2.0], 1.0, 10), ([4.0, 0.0], 2.0, 20), ([1.0, 8.0], 6.0, 35))
    paths = [
        save(
            tmp_path,
            step,
            w=torch.tensor(w),
            half=torch.tensor(half, dtype=torch.bfloat16),
            n=torch.tensor(count),
        )
        for step, (w, half, count) in enumerate(values, 1)
    ]
    mean = average_weights(paths)
    assert (mean["w"].tolist(), mean["w"].dtype) == ([2.0, 2.0], torch.float32)
    assert (mean["half"].item(), mean["half"].dtype) == (3.0, torch.bfloat16)
    assert (mean["n"].item(), mean["n"].dtype) == (35, torch.int64), "a counter is not averaged"
    paths = [
        save(tmp_path / "m", step, w=torch.tensor(value))
        for step, value in enumerate((1e8, 1.0, -1e8, 3.0))
    ]
    assert average_weights(paths)["w"].item() == 1.0, "float32 would lose the 1"


def test_the_best_or_the_newest_checkpoints_are_chosen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    losses = {10: 3.0, 20: 1.0, 30: None, 40: 2.0, 50: 4.0}
    paths = {
        step: save(tmp_path, step, facts=None if v is None else {"loss": v})
        for step, v in losses.items()
    }
    assert choose_checkpoints(tmp_path, 2, "last") == [paths[40], paths[50]]
    assert set(choose_checkpoints(tmp_path, 2, "cv_loss")) == {paths[20], paths[40]}
    assert choose_checkpoints(tmp_path, 3, "loss") == choose_checkpoints(tmp_path, 3, "cv_loss")
    with pytest.raises(
        CheckpointError,
        match="checkpoints: no checkpoint whose validation measured accuracy; use --",
    ):
        choose_checkpoints(tmp_path, 2, "accuracy")
    (paths[50] / "model.pt").write_bytes(b"x")
    assert len(choose_checkpoints(tmp_path, 5, "cv_loss")) == 3
    assert (
        f"checkpoint {paths[50]}: sha256 of model.pt differs from the manifest; not averaged"
        in caplog.text
    )
    assert f"{tmp_path}: checkpoints to average: 3 instead of 5" in caplog.text
    assert paths[50].is_dir(), "averaging only reads"


def test_checkpoints_that_cannot_be_averaged(tmp_path: Path) -> None:
    first = save(tmp_path, 1, w=torch.tensor(1.0))
    for step, units, weight, message in (
        (
            2,
            "b",
            1.0,
            "was trained with another units.txt than .*0001; average one training's checkpoints only$",
        ),
        (3, "a", math.inf, "w holds values that are not finite; leave this checkpoint out$"),
    ):
        other = save(tmp_path, step, units=units, w=torch.tensor(weight))
        with pytest.raises(CheckpointError, match=f"step-0000000{step}: {message}"):
            average_weights([first, other])


def test_the_command_writes_a_model_that_decodes(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(trained, tmp_path / "m")
    assert run_command(command, ["--model_dir", str(folder), "--num", "3", "--by", "last"]) == 0
    names = "step-00000006, step-00000007, step-00000008"
    assert capsys.readouterr().out == f"{folder / 'final.pt'}: average of {names}\n"
    paths = list_checkpoints(folder / "checkpoints")[-3:]
    name = "ctc.head.output.weight"
    assert torch.equal(weights_of(folder)[name], average_weights(paths)[name])
    assert not torch.equal(weights_of(folder)[name], weights_of(trained)[name])
    facts = json.loads((folder / "final.json").read_text())
    assert (facts["file"], facts["by"]) == ("final.pt", "last")
    assert facts["sha256"] == hashlib.sha256((folder / "final.pt").read_bytes()).hexdigest()
    assert [entry["step"] for entry in facts["checkpoints"]] == [6, 7, 8]
    assert facts["checkpoints"][0]["validation"].keys() >= {"loss", "accuracy", "bits_per_unit"}
    load_experiment(folder)
    for path, checkpoint, message in (
        (
            folder / "final.pt",
            None,
            "final.pt: differs from its SHA-256 in final.json; copy or create it again, or re",
        ),
        (
            paths[0] / "model.pt",
            paths[0],
            "00006/model.pt: differs from its SHA-256 in manifest.json; copy or create",
        ),
    ):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1  # torch does not detect it
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=message):
            load_experiment(folder, checkpoint=checkpoint)
    for flags, message in (
        (["--num", "0"], "--num 0: must be at least 1\n"),
        ([], "no intact checkpoint to average; run `wenet-hs train` first"),
    ):
        assert run_command(command, ["--model_dir", str(tmp_path), *flags]) == 2
        assert message in capsys.readouterr().err


def test_checkpoints_of_wenet_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "epoch_0.pt").touch()
    assert run_command(command, ["--model_dir", str(tmp_path), "--num", "2"]) == 2
    assert (
        "has checkpoints of WeNet, which are not averaged here; average them by WeNet"
        in capsys.readouterr().err
    )


def test_a_full_disk_keeps_the_old_final_pt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save(tmp_path, 4, w=torch.tensor(1.0))
    write_final(
        tmp_path / "final.pt", {"w": torch.tensor(1.0)}, read_validations([source]), by="last"
    )

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    message = r"final.pt: disk full while writing \(No space left on device; need 0.0 MB, .*last good .*: step-00000004"
    with pytest.raises(CheckpointError, match=message):
        write_final(
            tmp_path / "final.pt", {"w": torch.tensor(2.0)}, read_validations([source]), by="last"
        )
    assert weights_of(tmp_path)["w"].item() == 1.0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoints",
        "final.json",
        "final.pt",
    ]
