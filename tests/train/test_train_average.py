# SPDX-License-Identifier: Apache-2.0
"""Averages of checkpoints, worked out by hand, and final.pt."""

import hashlib
import io
import json
import logging
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_corpus import weights_of

from wenet_hs.bin import average as command
from wenet_hs.bin.command import run_command
from wenet_hs.build import load_experiment
from wenet_hs.checkpoint import list_checkpoints, save_checkpoint
from wenet_hs.errors import CheckpointError
from wenet_hs.train.average import average_weights, choose_checkpoints, write_final


def save(
    model_dir: Path,
    step: int,
    *,
    cv_loss: float | None = None,
    facts: dict[str, float] | None = None,
    fingerprint: dict[str, str] | None = None,
    interim: bool = False,
    **weights: torch.Tensor,
) -> Path:
    """A checkpoint of these weights, whose validation measured `facts`, or the loss `cv_loss`."""
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    facts = {"loss": cv_loss} if facts is None and cv_loss is not None else facts
    progress: dict[str, object] = {"step": step, "interim": interim}
    progress["validations"] = [] if facts is None else [{"step": step, **facts}]
    state = json.dumps({"progress": progress, "fingerprint": fingerprint or {}}).encode()
    return save_checkpoint(model_dir / "checkpoints", step, {"model.pt": buffer.getvalue(), "state.json": state})


def vector(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def test_the_mean_by_hand(tmp_path: Path) -> None:
    values = ((1.0, -2.0, 1.0, 10), (4.0, 0.0, 2.0, 20), (1.0, 8.0, 6.0, 35))
    paths = [
        save(tmp_path, step, w=vector(one, two), half=vector(half, dtype=torch.bfloat16), n=torch.tensor(count))
        for step, (one, two, half, count) in enumerate(values, 1)
    ]
    mean = average_weights(paths)
    assert (mean["w"].tolist(), mean["w"].dtype) == ([2.0, 2.0], torch.float32)
    assert (mean["half"].tolist(), mean["half"].dtype) == ([3.0], torch.bfloat16)
    assert (mean["n"].item(), mean["n"].dtype) == (35, torch.int64), "a counter is not averaged"
    assert average_weights(paths[:1])["w"].tolist() == [1.0, -2.0]
    paths = [save(tmp_path / "m", step, w=vector(value)) for step, value in enumerate((1e8, 1.0, -1e8, 3.0))]
    assert average_weights(paths)["w"].item() == 1.0, "float32 would lose the 1"


def test_the_best_or_the_newest_checkpoints_are_chosen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    losses = {10: 3.0, 20: 1.0, 30: None, 40: 2.0, 50: 4.0}
    paths = {step: save(tmp_path, step, cv_loss=loss, w=vector(step)) for step, loss in losses.items()}
    assert choose_checkpoints(tmp_path, 2, "last") == [paths[40], paths[50]]
    assert set(choose_checkpoints(tmp_path, 2, "cv_loss")) == {paths[20], paths[40]}
    assert choose_checkpoints(tmp_path, 3, "loss") == choose_checkpoints(tmp_path, 3, "cv_loss")
    with pytest.raises(CheckpointError, match="checkpoints: no checkpoint whose validation measured accuracy; use --"):
        choose_checkpoints(tmp_path, 2, "accuracy")
    (paths[50] / "model.pt").write_bytes(b"x")
    with caplog.at_level(logging.WARNING):
        assert len(choose_checkpoints(tmp_path, 5, "cv_loss")) == 3
    assert f"checkpoint {paths[50]}: sha256 of model.pt differs from the manifest; not averaged" in caplog.text
    assert f"{tmp_path}: 3 checkpoints to average, 5 were asked for" in caplog.text
    assert paths[50].is_dir(), "averaging only reads"


def test_checkpoints_written_for_a_signal_are_not_among_the_last(tmp_path: Path) -> None:
    paths = [save(tmp_path, step, interim=step in (1, 3), w=vector(step)) for step in (1, 2, 3, 4)]
    assert choose_checkpoints(tmp_path, 2, "last") == [paths[1], paths[3]]
    only = save(tmp_path / "only", 7, interim=True, w=vector(7))
    assert choose_checkpoints(tmp_path / "only", 1, "last") == [only], "better than none"


def test_checkpoints_that_cannot_be_averaged(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="checkpoints: no intact checkpoint to average; run `wenet-hs train` fir"):
        choose_checkpoints(tmp_path, 1, "last")
    units = {"units.txt": "a", "tree.json": "t"}
    first = save(tmp_path, 1, fingerprint=units, w=vector(1.0, 2.0))
    other_model = "is of another model than .*step-00000001; average one model's checkpoints only$"
    for step, fingerprint, weights, message in (
        (2, units, {"w": vector(1.0)}, other_model),
        (3, units, {"v": vector(1.0, 2.0)}, other_model),
        (4, units, {"w": vector(1, 2), "b": vector(1)}, other_model),
        (5, {**units, "units.txt": "b"}, {"w": vector(1, 2)}, "was trained with another units.txt than .*step-0000000"),
        (6, units, {"w": vector(1, math.nan)}, "w holds values that are not finite; leave this checkpoint out$"),
        (7, units, {"w": vector(1, math.inf)}, "w holds values that are not finite; leave this checkpoint out$"),
    ):
        path = save(tmp_path, step, fingerprint=fingerprint, **weights)
        with pytest.raises(CheckpointError, match=f"{path.name}: {message}"):
            average_weights([first, path])


def test_a_full_disk_keeps_the_old_final_pt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save(tmp_path, 4, w=vector(1.0))
    write_final(tmp_path / "final.pt", {"w": vector(1.0)}, [source], by="last")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    message = (
        r"final.pt: disk full while writing \(No space left on device; need 0.0 MB, .*last good .*: step-00000004;"
    )
    with pytest.raises(CheckpointError, match=message):
        write_final(tmp_path / "final.pt", {"w": vector(2.0)}, [source], by="last")
    assert weights_of(tmp_path)["w"].item() == 1.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "final.json", "final.pt"]


# The command


def test_the_command_writes_a_model_that_decodes(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(trained, folder)
    last = weights_of(folder)
    assert run_command(command, ["--model_dir", str(folder), "--num", "3", "--by", "last"]) == 0
    names = "step-00000006, step-00000007, step-00000008"
    assert capsys.readouterr().out == f"{folder / 'final.pt'}: average of {names}\n"
    paths = list_checkpoints(folder / "checkpoints")[-3:]
    states = [torch.load(path / "model.pt", weights_only=True) for path in paths]
    name = "ctc.head.output.weight"
    expected = (sum(state[name].double() for state in states) / 3).float()
    assert torch.equal(weights_of(folder)[name], expected)
    facts = json.loads((folder / "final.json").read_text())
    assert (facts["file"], facts["by"]) == ("final.pt", "last")
    assert facts["sha256"] == hashlib.sha256((folder / "final.pt").read_bytes()).hexdigest()
    assert [entry["step"] for entry in facts["checkpoints"]] == [6, 7, 8]
    assert facts["checkpoints"][0]["validation"].keys() >= {"loss", "accuracy", "bits_per_unit"}
    assert not torch.equal(weights_of(folder)[name], last[name])
    load_experiment(folder)
    flip(folder / "final.pt")
    message = "final.pt: differs from its SHA-256 in final.json; copy or create it again, or remove final.json if"
    with pytest.raises(CheckpointError, match=message):
        load_experiment(folder)
    flip(paths[0] / "model.pt")
    with pytest.raises(
        CheckpointError, match="step-00000006/model.pt: differs from its SHA-256 in manifest.json; copy"
    ):
        load_experiment(folder, checkpoint=paths[0])


def flip(path: Path) -> None:
    """Flip a bit of the weights, which torch does not detect."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_faults_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(command, ["--model_dir", str(tmp_path), "--num", "0"]) == 2
    assert capsys.readouterr().err == "--num 0: must be at least 1\n"
    assert run_command(command, ["--model_dir", str(tmp_path / "nowhere")]) == 2
    assert "no intact checkpoint to average; run `wenet-hs train` first" in capsys.readouterr().err


def test_a_kill_at_any_call_leaves_a_complete_final_pt(tmp_path: Path) -> None:
    source = save(tmp_path, 4, w=vector(1.0))
    contents = []
    for value in (1.0, 2.0):
        write_final(tmp_path / "final.pt", {"w": vector(value)}, [source], by="last")
        contents.append((tmp_path / "final.pt").read_bytes())
    calls = 0
    while _killed_at(calls, lambda: write_final(tmp_path / "final.pt", {"w": vector(1.0)}, [source], by="last")):
        content, beside = (tmp_path / "final.pt").read_bytes(), tmp_path / "final.json"
        assert content in contents
        if beside.exists():
            assert json.loads(beside.read_text())["sha256"] == hashlib.sha256(content).hexdigest()
        write_final(tmp_path / "final.pt", {"w": vector(2.0)}, [source], by="last")
        calls += 1
    assert calls >= 8, "two files to fsync and to rename, their folder, and a file to unlink"


def _killed_at(call: int, work: Callable[[], None]) -> bool:
    """Run it in a process that ends at its call number `call` to the disk; whether it had so many."""
    pid = os.fork()
    if pid == 0:
        left = [call]

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def count(*args: Any, **kwargs: Any) -> Any:
                if left[0] == 0:
                    os._exit(9)
                left[0] -= 1
                return function(*args, **kwargs)

            return count

        for name in ("fsync", "replace", "rename", "unlink"):
            setattr(os, name, counted(getattr(os, name)))
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
