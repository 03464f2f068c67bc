# SPDX-License-Identifier: Apache-2.0
"""The state in a checkpoint: saved, restored, refused."""

import json
import logging
from pathlib import Path

import pytest
import torch
from small_models import small_batch, small_config, small_model

from wenet_hs.checkpoint import MANIFEST, dump_dict, save_checkpoint
from wenet_hs.distributed import World
from wenet_hs.errors import CheckpointError
from wenet_hs.train.loop import run_epoch
from wenet_hs.train.optim import build_optimizer
from wenet_hs.train.state import TrainState, read_progress

BATCH = small_batch([40, 33], [5, 2])


def state_of(seed: int = 1, units: str = "a") -> TrainState:
    model = small_model(seed=seed)
    optimizer = build_optimizer(model, small_config())
    return TrainState(model, optimizer, torch.device("cpu"), fingerprint={"units.txt": units})


def steps(state: TrainState, count: int) -> list[float]:
    return [stats.loss for stats in run_epoch(state, [BATCH] * count, small_config())]


@pytest.fixture
def saved(tmp_path: Path) -> tuple[TrainState, Path]:
    """A state after three steps, and its checkpoint."""
    state = state_of()
    steps(state, 3)
    state.progress.validations.append({"step": 3, "loss": 1.5})
    return state, save_checkpoint(tmp_path, 3, state.to_files())


def test_a_restored_state_trains_with_the_same_bits(saved: tuple[TrainState, Path]) -> None:
    state, path = saved
    other = state_of(seed=9)
    torch.manual_seed(12345)
    other.restore(path)
    assert other.progress == state.progress == read_progress(path)
    assert other.to_files() == state.to_files()
    state.restore(path)  # the random state too
    expected = steps(state, 3), state.to_files()
    other.restore(path)
    found = steps(other, 3), other.to_files()
    assert found[0] == expected[0]
    for name in ("model.pt", "optimizer.pt", "rng.pt"):
        assert found[1][name] == expected[1][name], name


def test_progress_is_plain_json(saved: tuple[TrainState, Path]) -> None:
    record = json.loads((saved[1] / "state.json").read_text())
    progress = record["progress"]
    assert (progress["step"], progress["batch"], progress["skipped_steps"]) == (3, 3, 0)
    assert progress["validations"] == [{"step": 3, "loss": 1.5}]
    assert read_progress(saved[1]).measured() == progress["validations"][0]
    assert record["fingerprint"] == {"units.txt": "a"}
    assert record["environment"]["torch"] == torch.__version__
    assert record["environment"]["threads"] == str(torch.get_num_threads())


def test_other_units_and_other_models_are_refused(saved: tuple[TrainState, Path]) -> None:
    path = saved[1]
    with pytest.raises(CheckpointError, match="step-00000003: was trained with another units.txt; use another --model"):
        state_of(units="b").restore(path)
    model = small_model(encoder_conf={"num_blocks": 1})
    smaller = TrainState(model, build_optimizer(model, small_config()), torch.device("cpu"))
    with pytest.raises(CheckpointError, match=r"does not fit this training \(.*Unexpected key.*; use an earlier"):
        smaller.restore(path)


def test_damaged_and_foreign_files_are_refused(saved: tuple[TrainState, Path]) -> None:
    path = saved[1]
    files = {item.name: item.read_bytes() for item in path.iterdir() if item.name != MANIFEST}
    for step, name in ((4, "optimizer.pt"), (5, "rng.pt")):
        other = save_checkpoint(path.parent, step, {**files, name: dump_dict({"a": 1})})
        with pytest.raises(CheckpointError, match=r"does not fit this training \(.*\); use an earlier checkpoint, or"):
            state_of().restore(other)
    (path / "optimizer.pt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="sha256 of optimizer.pt differs from the manifest; use an earlier"):
        state_of().restore(path)


@pytest.mark.parametrize("text", ["", "[]", '{"progress": {"steps": 3}}', '{"progress": 3}', "\x00"])
def test_an_unreadable_progress(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match="state.json cannot be read; use an earlier checkpoint$"):
        read_progress(tmp_path)
    with pytest.raises(CheckpointError, match="state.json cannot be read"):
        read_progress(tmp_path / "nowhere")


def test_another_environment_is_reported(saved: tuple[TrainState, Path], caplog: pytest.LogCaptureFixture) -> None:
    state, path = saved
    with caplog.at_level(logging.WARNING):
        state_of().restore(path)
    assert caplog.text == ""
    files = {item.name: item.read_bytes() for item in path.iterdir() if item.name != MANIFEST}
    record = json.loads(files["state.json"])
    record["environment"] |= {"torch": "2.0.0", "threads": "64"}
    older = save_checkpoint(path.parent, 4, {**files, "state.json": json.dumps(record).encode()})
    with caplog.at_level(logging.WARNING):
        state_of().restore(older)
    now = f"torch 2.0.0 then, {torch.__version__} now; threads 64 then, {torch.get_num_threads()} now"
    assert f"{older}: {now}; the result may differ in its last bits" in caplog.text
    caplog.clear()
    second = state_of()
    second.world = World(rank=1, size=2)
    second.restore(older)
    assert caplog.text == "", "only rank 0 warns"
