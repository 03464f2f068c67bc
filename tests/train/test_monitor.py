# SPDX-License-Identifier: Apache-2.0
"""The outputs of a run: metrics.jsonl, TensorBoard and the log have the same values."""

import io
import json
import logging
import math
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tiny_corpus import TinyCorpus, cut_back, metrics, outcome
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.config.load import load_config
from wenet_hs.config.optim import SchedulerConf
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.dataset import batches
from wenet_hs.runs.curves import read_curves
from wenet_hs.runs.record import Steps
from wenet_hs.train.monitor import PROGRESS_FIELDS, Monitor
from wenet_hs.train.optim import learning_rate
from wenet_hs.train.speech_steps import SpeechStats, validate
from wenet_hs.train.state import Progress
from wenet_hs.tree.errors import ConfigError

CPU = torch.device("cpu")
LOSSES = {"loss", "loss_att", "loss_ctc", "guide", "accuracy", "bits_per_unit"}
TIMES = {"seconds", "wait_seconds", "compute_seconds"}
TRAIN = (
    LOSSES
    | TIMES
    | {
        "grad_norm",
        "lr",
        "num_targets",
        "audio_seconds",
        "padding_share",
        "loss_scale",
        *PROGRESS_FIELDS,
    }
)
SPEED = {"audio_seconds_per_second", "wait_share", "outside_share", "peak_memory_mb"}


def stats(**facts: Any) -> SpeechStats:
    numbers: dict[str, Any] = dict.fromkeys(LOSSES | {"grad_norm", "lr"}, 0.5)
    times = {"audio_seconds": 6.0, "seconds": 2.0, "wait_seconds": 0.5, "compute_seconds": 1.25}
    return SpeechStats(
        **{**numbers, **times, "num_targets": 10, "padding_share": 0.25, "loss_scale": 1.0, **facts}
    )


def config_of(
    log_interval: int, warmup_steps: int = 0, max_minutes: float | None = None
) -> ExperimentConfig:
    schedule = SchedulerConf(warmup_steps=warmup_steps)
    return ExperimentConfig(
        log_interval=log_interval, scheduler_conf=schedule, max_minutes=max_minutes
    )


def steps_of(
    planned: int, per_epoch: int, *, warmup: int = 0, max_minutes: float | None = None
) -> Steps:
    return Steps(planned=planned, per_epoch=per_epoch, warmup=warmup, max_minutes=max_minutes)


def monitored(
    folder: Path, progress: Progress, *, log_interval: int = 1, total_steps: int = 9
) -> Monitor:
    return Monitor(
        folder, progress, config_of(log_interval), steps=steps_of(total_steps, 4), device=CPU
    )


@pytest.mark.parametrize(("warmup", "early_loss"), [(0, 2.4), (2, 2.6)])
def test_reports_a_ctc_on_its_plateau_after_a_fifth_of_the_steps_and_the_warmup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, warmup: int, early_loss: float
) -> None:
    progress = Progress()
    options: dict[str, Any] = {
        "steps": steps_of(10, 10, warmup=warmup),
        "device": CPU,
        "plateau_ctc": 3.0,
    }
    with (
        caplog.at_level(logging.INFO),
        Monitor(tmp_path, progress, config_of(1, warmup), **options) as monitor,
    ):
        for progress.step, loss_ctc in ((1, 3.0), (2, early_loss), (3, 2.6)):
            monitor.record_validation(
                dict.fromkeys(LOSSES, 0.5) | {"loss_ctc": loss_ctc, "blank_share": 0.25}
            )
    (message,) = [message for message in caplog.messages if "CTC" in message]
    assert message == (
        "step 3: CTC has not taken off: its validation loss is 2.60, that of a constant output is 3.00; "
        "blank: 25.0 % of the frames"
    )
    assert [record["plateau_ctc"] for record in records(tmp_path)] == [3.0] * 3


DOES_NOT_FALL = "{:.1f} % at the validation before: it does not fall (validations: 3)"
FINE_TUNED = "; a fine-tuned pretrained encoder often stays there for hundreds of steps"
LOWER_RATE = (
    "; train with a lower optim_conf.lr or longer scheduler_conf.warmup_steps (docs/training.md)"
)


@pytest.mark.parametrize(
    ("shares", "warns", "end"),
    [
        ((0.9999,), False, f"100.0 % of the frames{FINE_TUNED}"),
        (
            (1.0, 0.998),
            False,
            f"99.8 % of the frames, 100.0 % at the validation before: it falls{FINE_TUNED}",
        ),
        (
            (1.0, 1.0, 1.0),
            False,
            f"100.0 % at the validation before: it does not fall (validations: 2){FINE_TUNED}",
        ),
        (
            (1.0, 1.0, 1.0, 0.9999),
            True,
            f"blank: 100.0 % of the frames, {DOES_NOT_FALL.format(100)}{LOWER_RATE}",
        ),
        (
            (1.0, 0.99, 0.99, 0.995, 0.999),
            True,
            f"blank: 99.9 % of the frames, {DOES_NOT_FALL.format(99.5)}{LOWER_RATE}",
        ),
        ((1.0, 1.0, 1.0, 1.0, 0.999), False, f": it falls{FINE_TUNED}"),
        (
            (1.0, 0.98),
            False,
            "; blank: 98.0 % of the frames, 100.0 % at the validation before: it falls",
        ),
        (
            (0.9, 0.9, 0.9, 0.9),
            False,
            f"blank: 90.0 % of the frames, {DOES_NOT_FALL.format(90)}{LOWER_RATE}",
        ),
    ],
)
def test_only_blank_is_a_warning_once_its_share_has_not_fallen_at_three_validations(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    shares: tuple[float, ...],
    warns: bool,
    end: str,
) -> None:
    losses = dict.fromkeys(LOSSES, 0.5) | {"loss_ctc": 2.6}
    validations = [losses | {"blank_share": share} for share in shares[:-1]]
    progress = Progress(step=9, validations=validations)
    options: dict[str, Any] = {"steps": steps_of(10, 10), "device": CPU, "plateau_ctc": 3.0}
    with (
        caplog.at_level(logging.INFO),
        Monitor(tmp_path, progress, config_of(1), **options) as monitor,
    ):
        monitor.record_validation(losses | {"blank_share": shares[-1]})
    assert f" | blank {100 * shares[-1]:.1f} % | 0 s of training" in caplog.messages[0]
    report = caplog.records[1]
    assert report.getMessage().endswith(end) and (report.levelno == logging.WARNING) == warns


def test_a_training_loss_that_falls_while_the_validation_loss_rises_is_over_fitting_not_a_plateau(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    progress = Progress()
    options: dict[str, Any] = {"steps": steps_of(10, 10), "device": CPU, "plateau_ctc": 3.0}
    losses = ((1, 3.1, 3.0), (2, 2.0, 3.1), (3, 0.8, 3.6), (4, 0.1, 5.0))
    with (
        caplog.at_level(logging.WARNING),
        Monitor(tmp_path, progress, config_of(1), **options) as monitor,
    ):
        for progress.step, train_ctc, valid_ctc in losses:
            monitor.record_step(stats(loss_ctc=train_ctc))
            monitor.record_validation(dict.fromkeys(LOSSES, 0.5) | {"loss_ctc": valid_ctc})
    assert [record.getMessage() for record in caplog.records] == [
        "step 2: the model over-fits: training loss 2.00, validation loss 3.10 (lowest: 3.00); "
        "add training data or use a smaller model; early_stopping keeps the best checkpoint"
    ]


def test_a_damaged_record_of_an_earlier_run_does_not_end_the_training(tmp_path: Path) -> None:
    damaged = b'{"kind": "train", "st\n'
    (tmp_path / "metrics.jsonl").write_bytes(damaged)
    with monitored(tmp_path, Progress(step=1, metrics_bytes=len(damaged))) as monitor:
        monitor.record_validation(dict.fromkeys(LOSSES, 0.5))
    assert len((tmp_path / "metrics.jsonl").read_bytes().splitlines()) == 2


def test_a_constant_output_has_the_recorded_plateau_as_validation_loss(
    tiny_corpus: TinyCorpus, trained: Path
) -> None:
    config = load_config(trained / "train.yaml")
    task = tiny_corpus.task(trained)
    state, valid_set = task.state, task.valid_set
    targets, num_frames = valid_set.sample_targets(100)
    assert len(targets) == len(valid_set) == 3
    ctc = state.model.ctc
    weight, bias = ctc.head.parameters()
    torch.nn.init.zeros_(weight)
    lengths, padded = (
        torch.tensor([*map(len, targets)]),
        pad_sequence([*map(torch.tensor, targets)], batch_first=True),
    )
    memory, frames = torch.zeros(3, max(num_frames), weight.size(1)), torch.tensor(num_frames)
    optimizer = torch.optim.LBFGS([bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = ctc.loss(memory, frames, padded, lengths)
        value.backward()
        return value

    optimizer.step(loss)  # type: ignore[arg-type]
    planned = batches(valid_set, [[0, 1], [2]], 0)
    validated = validate(state.model, planned, config, torch.device("cpu")).per_target()
    plateau = records(trained, "valid")[0]["plateau_ctc"]
    assert validated["loss_ctc"] == pytest.approx(plateau, abs=1e-3) and plateau > 0.5


def records(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record for record in found if not kinds or record["kind"] in kinds]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    board = EventAccumulator(str(folder))
    board.Reload()
    return {
        tag: [(event.step, event.value) for event in board.Scalars(tag)]
        for tag in board.Tags()["scalars"]
    }


def test_metrics_contain_every_value_of_steps_and_validations(trained: Path) -> None:
    steps, validations = records(trained, "train"), records(trained, "valid")
    assert [(record["step"], record["epoch"]) for record in steps] == [
        (step, (step - 1) // 4) for step in range(1, 9)
    ]
    assert [record["step"] for record in validations] == list(range(1, 9))
    assert all(set(record) == TRAIN | SPEED | {"kind"} for record in steps)
    of_validation = {
        "kind",
        "step",
        "epoch",
        "seconds",
        "bad_clips",
        "plateau_ctc",
        "blank_share",
        "ctc_error_rate",
    }
    assert all(set(record) == LOSSES | of_validation for record in validations)
    assert all(
        0 <= record["blank_share"] <= 1 and record["ctc_error_rate"] > 0 for record in validations
    )
    for record in steps:
        seconds, wait, compute = (
            record[name] for name in ("seconds", "wait_seconds", "compute_seconds")
        )
        assert 0 < wait < seconds and 0 < compute < seconds - wait
        assert record["audio_seconds_per_second"] == pytest.approx(
            record["audio_seconds"] / seconds
        )
        assert record["wait_share"] == pytest.approx(wait / seconds)
        assert record["outside_share"] == pytest.approx(1 - compute / seconds)
        assert 0 <= record["padding_share"] < 0.5
        assert record["loss_scale"] == 1
        assert 50 < record["peak_memory_mb"] < 50_000, "of this process"
        assert record["loss"] == pytest.approx(0.3 * record["loss_ctc"] + 0.7 * record["loss_att"])
    config = load_config(trained / "train.yaml")
    assert [record["lr"] for record in steps] == [
        learning_rate(step, config) for step in range(1, 9)
    ]
    times = [record["seconds"] for record in validations]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(sum(record["seconds"] for record in steps))
    curves = read_curves(trained / "metrics.jsonl")
    assert {kind: len(rows) for kind, rows in curves.items()} == {"train": 8, "valid": 8}, (
        "the report reads them"
    )


LOSS_TAGS = {"loss", "loss_att", "loss_ctc"}
MODEL_TAGS = {"accuracy", "bits_per_unit", "grad_norm", "lr"}
SPEED_TAGS = TIMES | SPEED | {"audio_seconds", "num_targets", "padding_share"}


@pytest.mark.slow
def test_tensorboard_contains_the_same_values_also_after_a_resume(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = scalars(trained)
    names = {"loss": LOSS_TAGS, "model": MODEL_TAGS, "speed": SPEED_TAGS}
    valid = {f"loss/{name}/valid" for name in LOSS_TAGS}
    valid |= {
        f"model/{name}/valid"
        for name in ("accuracy", "bits_per_unit", "blank_share", "ctc_error_rate")
    }
    valid |= {"speed/seconds/valid"}
    assert set(found) == valid | {
        f"{group}/{name}/train" for group, of in names.items() for name in of
    }
    assert [tag.split("/")[0] for tag in sorted(found)][:6] == ["loss"] * 6, (
        "TensorBoard sorts the groups"
    )
    for tag, values in found.items():
        _, name, kind = tag.split("/")
        rows = records(trained, kind)
        assert values == [
            (record["step"], pytest.approx(record[name], rel=1e-5)) for record in rows
        ], tag
    copy = tiny_corpus.train(cut_back(trained, tmp_path / "m", 7))
    assert metrics(copy) == metrics(trained)
    assert scalars(copy)["loss/loss/valid"] == found["loss/loss/valid"], (
        "no step twice, none missing"
    )
    lost = cut_back(trained, tmp_path / "lost", 7)
    (lost / "metrics.jsonl").unlink()
    tiny_corpus.train(lost)
    assert "bytes of its earlier part are missing" in caplog.text
    assert metrics(lost) == metrics(trained)[-2:], "not filled with zeros"


@pytest.mark.slow
def test_each_rate_of_a_part_follows_the_schedule_in_every_output_and_after_a_resume(
    tiny_corpus: TinyCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ("optim_conf.lr_of={encoder: 1e-4, ctc.head.output.bias: 0.5}",)
    settings += ("max_epoch=1", "scheduler_conf.warmup_steps=2")
    with caplog.at_level(logging.INFO):
        folder = tiny_corpus.train(tmp_path / "m", *settings)
    config = load_config(folder / "train.yaml")
    assert config.optim_conf.lr_of == {"encoder": 1e-4, "ctc.head.output.bias": 0.5}
    found, steps = scalars(folder), records(folder, "train")
    for key, part in (
        ("lr", None),
        ("lr.encoder", "encoder"),
        ("lr.ctc.head.output.bias", "ctc.head.output.bias"),
    ):
        rates = [learning_rate(step, config, part=part) for step in range(1, 5)]
        assert [record[key] for record in steps] == rates and len({*rates}) == 4
        assert [value for _, value in found[f"model/{key}/train"]] == pytest.approx(rates, rel=1e-6)
    assert " | lr 2.50e-03, encoder 5.00e-05, ctc.head.output.bias 2.50e-01 | grad " in caplog.text
    for step in (1, 3):
        assert outcome(
            tiny_corpus.train(cut_back(folder, tmp_path / str(step), step), *settings)
        ) == outcome(folder)
    with pytest.raises(
        ConfigError, match="optim_conf.lr_of.encoder was 0.0001, is now 0.01; a resumed run must"
    ):
        tiny_corpus.train(folder, *settings, "optim_conf.lr_of.encoder=0.01")
    with pytest.raises(
        ConfigError, match="tiny.yaml: optim_conf.lr_of: 'encodr' is no parameter .* mean encoder"
    ):
        tiny_corpus.train(tmp_path / "wrong", "optim_conf.lr_of={encodr: 1e-4}")


def test_tensorboard_has_one_run_per_model_folder_and_shows_a_number_once_it_is_not_constant(
    tmp_path: Path,
) -> None:
    for name in ("softmax", "hsoftmax"):
        (tmp_path / "exp" / name).mkdir(parents=True)
        progress = Progress(step=1)
        with monitored(tmp_path / "exp" / name, progress) as monitor:
            monitor.record_step(stats(guide=0.0))
            progress.step, progress.bad_clips = 2, 3
            monitor.record_step(stats(guide=0.0))
    runs = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "exp")).Reload()
    assert set(runs.Runs()) == {"softmax", "hsoftmax"}
    found = scalars(tmp_path / "exp/softmax")
    assert found["model/bad_clips/train"] == [(2, 3.0)]
    assert not [
        tag for tag in found if "guide" in tag or "loss_scale" in tag or "skipped_steps" in tag
    ]


def test_log_lines_have_the_speed_since_the_last_line_and_validations(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    valid = {
        "loss": 1.5,
        "loss_att": 1.0,
        "loss_ctc": 2.0,
        "accuracy": 0.25,
        "bits_per_unit": 3.217,
    }
    progress = Progress(step=1)
    with caplog.at_level(logging.INFO), monitored(tmp_path, progress, log_interval=2) as monitor:
        monitor.record_step(stats(seconds=1.0, wait_seconds=1.0))
        progress.step = 2
        monitor.record_step(stats(seconds=3.0, wait_seconds=0.0, loss=2.25, lr=0.001))
        progress.step = 3
        monitor.record_step(stats())
        (record,) = records(
            tmp_path
        )  # both files are flushed per line: a kill loses nothing that a checkpoint counts
        assert scalars(tmp_path)["loss/loss/train"] == [(2, 2.25)]
        progress.step, progress.epoch, progress.seconds = 7, 2, 61.0
        monitor.record_validation(valid)
        assert monitor.sync() == (tmp_path / "metrics.jsonl").stat().st_size
    assert records(tmp_path)[1] == {
        "kind": "valid",
        "step": 7,
        "epoch": 2,
        "seconds": 61.0,
        **valid,
    }
    assert (record["step"], record["loss"]) == (2, 2.25)
    assert [
        record[name] for name in ("audio_seconds_per_second", "wait_share", "outside_share")
    ] == [3, 1 / 4, 3 / 8]
    assert (
        "step 2 of 9 | loss 2.250 (att 0.500 ctc 0.500) | 0.50 bits/unit | acc 50.0 %"
        in caplog.text
    )
    assert "| 3 audio s/s | wait 25 %" in caplog.text
    assert (
        "epoch 2 | step 7 | validation loss 1.500 (att 1.000 ctc 2.000) | 3.22 bits/unit"
        in caplog.text
    )
    assert caplog.text.count("step") == 2


def test_each_line_has_the_time_that_is_left_once_it_is_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    progress = Progress(step=100, seconds=60.0)  # a resumed run
    options: dict[str, Any] = {"steps": steps_of(796, 796), "device": CPU}
    with (
        caplog.at_level(logging.INFO),
        Monitor(tmp_path, progress, config_of(49), **options) as monitor,
    ):
        for progress.step in range(101, 197):
            monitor.record_step(stats(seconds=90.0 if progress.step < 110 else 3.0))
    begins = [m.partition(" | ")[0] for m in caplog.messages]
    assert begins == [
        "step 147 of 796",
        "duration without validations: 3 s per step",
        "step 196 of 796",
    ]
    assert caplog.messages[1].endswith(" | 39.8 min per epoch (796 steps) | 0.66 h in all (796)")
    assert ["left" in message for message in caplog.messages] == [False, False, True], (
        "the first steps compile"
    )
    assert caplog.messages[2].endswith("| 30.0 min left")
    options["steps"] = steps_of(796, 796, max_minutes=21)
    with (
        caplog.at_level(logging.INFO),
        Monitor(tmp_path, progress, config_of(49), **options) as monitor,
    ):
        for progress.step in range(197, 295):
            monitor.record_step(stats(seconds=3.0))
    assert caplog.messages[-1].endswith("| 20.0 min left"), "max_minutes comes first"
    assert caplog.messages[-2].endswith(" | 0.35 h in all (at most 796)")


@pytest.mark.parametrize("cache", ["false", "true"])
def test_the_first_lines_state_data_memory_and_disk(
    tiny_corpus: TinyCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture, cache: str
) -> None:
    few = (
        "max_minutes=1e-9",
        "keep_best=0",
        "keep_checkpoints=2",
        f"dataset_conf.cache_features={cache}",
    )
    with caplog.at_level(logging.INFO):
        tiny_corpus.train(tmp_path / "m", *few)
    (line,) = [message for message in caplog.messages if message.startswith("resources: ")]
    features = r", features 0\.\d\d GB that all processes share" if cache == "true" else ""
    disk = r"disk: checkpoints at most 0\.00 GB \(0\.00 GB each\), free [\d.]+ GB"
    hours = r"training 10 utterances, 0\.00 h \| validation 3 utterances, 0\.00 h"
    assert re.fullmatch(
        rf"resources: {hours} \| memory: lists 0\.\d\d GB{features} \| {disk}", line
    )
    assert caplog.messages.index(line) < next(
        i for i, m in enumerate(caplog.messages) if m.startswith("first batch")
    )


@pytest.mark.parametrize(
    ("settings", "num_kept"),
    [(("keep_checkpoints=1", "keep_best=2"), 3), ((), 4), (("keep_checkpoints_gb=0.00000002",), 1)],
)
def test_a_disk_too_small_for_the_checkpoints_is_a_warning_at_the_begin(
    tiny_corpus: TinyCorpus,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    settings: tuple[str, ...],
    num_kept: int,
) -> None:
    """Four checkpoints are written; a new one is on the disk before an old one is deleted."""
    task = tiny_corpus.task(trained)
    size = task.state.checkpoint_bytes()
    on_disk = [
        sum(file.stat().st_size for file in path.iterdir())
        for path in (trained / "checkpoints").glob("step-*")
    ]
    assert 0 < max(on_disk) - size < 150_000, (
        "a file has about 1 kB per weight more than its values"
    )
    for name, free in (
        ("enough", 1.01 * size * (num_kept + 1)),
        ("small", 0.99 * size * (num_kept + 1)),
    ):
        usage = SimpleNamespace(free=round(free))
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        with caplog.at_level(logging.INFO):
            tiny_corpus.train(tmp_path / name, "max_epoch=1", "max_minutes=1e-9", *settings)
    enough, small = (
        record for record in caplog.records if record.getMessage().startswith("resources: ")
    )
    assert (enough.levelno, small.levelno) == (logging.INFO, logging.WARNING)
    assert small.getMessage().endswith(" free 0.00 GB; free some space, or set keep_checkpoints_gb")


def test_max_epoch_before_the_end_of_the_schedule_is_a_warning_with_both_settings(
    tiny_corpus: TinyCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schedule = (
        "scheduler=warmup_cosine",
        "scheduler_conf.total_steps=12",
        "max_epoch=2",
        "save_interval=8",
    )
    with caplog.at_level(logging.INFO):
        tiny_corpus.train(tmp_path / "m", *schedule)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lines[0] == (
        "max_epoch: 2 ends this training after 8 steps, before scheduler_conf.total_steps: 12; the learning rate is "
        "still 2.5e-03 there; set max_epoch: 3 for all steps, or total_steps: 8 for a rate that falls to 0"
    )
    assert "step 8 of 8 | " in caplog.text, "the number of steps that run"
    assert "the model has 11,128 parameters" in caplog.text
    first = [message for message in caplog.messages if message.startswith("first batch after ")]
    assert len(first) == 1 and re.fullmatch(
        r".* s: utterances: [1-3], frames: \d+ to \d+, units: \d; its first key: train\d", first[0]
    )


def test_a_training_in_its_warm_up_is_a_warning_at_its_begin_and_end(
    tiny_corpus: TinyCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_corpus.train(
        tmp_path / "m", "scheduler=warmuplr", "scheduler_conf.warmup_steps=25000", "max_epoch=2"
    )
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    rate = "the learning rate only rises to 1.6e-06; lower scheduler_conf.warmup_steps"
    assert lines[0] == f"8 steps will run, all in the warm-up of 25000: {rate}"
    assert lines[-1] == (
        "training ended at step 8, in the warm-up of 25000 steps; lower scheduler_conf.warmup_steps"
    )


def test_skipped_steps_are_logged_and_metrics_stay_json(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    progress = Progress(step=4)
    with caplog.at_level(logging.INFO), monitored(tmp_path, progress) as monitor:
        monitor.record_step(stats(suspects=("clip",), loss_scale=4096.0, grad_norm=math.inf))
        assert "step 4: skipped: fp16 overflow at loss scale 4096, now halved" in caplog.text
        assert "clip" not in caplog.text
        progress.step, progress.skipped_steps = 5, 1
        monitor.record_step(stats(loss=math.nan, grad_norm=math.inf, suspects=("clip_1", "clip_2")))
    assert "step 5: skipped: loss or gradient not finite; with clip_1, clip_2" in caplog.text
    _, record = records(tmp_path)
    assert (record["loss"], record["grad_norm"], record["skipped_steps"]) == (None, None, 1)
    assert "suspects" not in record
    assert 5 not in [step for step, _ in scalars(tmp_path)["loss/loss/train"]]


def test_a_terminal_shows_a_progress_bar_below_the_log_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "__stderr__", terminal)
    handler, root = logging.StreamHandler(terminal), logging.getLogger()
    monkeypatch.setattr(root, "handlers", [*root.handlers, handler])
    with monitored(tmp_path, Progress(step=3)) as monitor:
        monitor.record_step(stats())
        logging.getLogger("elsewhere").warning("a line of the log")
    assert handler.stream is terminal
    shown = terminal.getvalue()
    assert "step 3/9 loss 0.500 | 3 audio s/s | wait 25%" in shown
    line = next(line for line in shown.splitlines() if "a line of the log" in line)
    assert "epoch 0" not in line, "a log line is never written into the bar"
