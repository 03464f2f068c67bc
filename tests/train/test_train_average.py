# SPDX-License-Identifier: Apache-2.0
"""Averaging checkpoints, worked out by hand."""

import hashlib
import io
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_corpus import TinyCorpus, weights_of

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
    paths = [
        save(tmp_path, 1, w=vector(1.0, -2.0), half=vector(1.0, dtype=torch.bfloat16), n=torch.tensor(10)),
        save(tmp_path, 2, w=vector(4.0, 0.0), half=vector(2.0, dtype=torch.bfloat16), n=torch.tensor(20)),
        save(tmp_path, 3, w=vector(1.0, 8.0), half=vector(6.0, dtype=torch.bfloat16), n=torch.tensor(35)),
    ]
    mean = average_weights(paths)
    assert mean["w"].tolist() == [2.0, 2.0]
    assert mean["w"].dtype == torch.float32
    assert mean["half"].tolist() == [3.0]
    assert mean["half"].dtype == torch.bfloat16
    assert (mean["n"].item(), mean["n"].dtype) == (35, torch.int64), "a counter is not averaged"
    assert average_weights(paths[:1])["w"].tolist() == [1.0, -2.0]


def test_the_sum_is_exact_where_float32_is_not(tmp_path: Path) -> None:
    values = [1e8, 1.0, -1e8, 3.0]
    paths = [save(tmp_path, step, w=vector(value)) for step, value in enumerate(values)]
    assert average_weights(paths)["w"].item() == 1.0


def test_the_lowest_losses_or_the_last_ones_are_chosen(tmp_path: Path) -> None:
    losses = {10: 3.0, 20: 1.0, 30: None, 40: 2.0, 50: 4.0}
    paths = {step: save(tmp_path, step, cv_loss=loss, w=vector(step)) for step, loss in losses.items()}
    assert choose_checkpoints(tmp_path, 2, "last") == [paths[40], paths[50]]
    assert set(choose_checkpoints(tmp_path, 2, "cv_loss")) == {paths[20], paths[40]}
    assert set(choose_checkpoints(tmp_path, 3, "cv_loss")) == {paths[10], paths[20], paths[40]}
    assert choose_checkpoints(tmp_path, 2, "loss") == choose_checkpoints(tmp_path, 2, "cv_loss")
    with pytest.raises(
        CheckpointError, match="checkpoints: no checkpoint whose validation measured accuracy; use --by"
    ):
        choose_checkpoints(tmp_path, 2, "accuracy")


def test_what_a_signal_had_written_is_not_one_of_the_last(tmp_path: Path) -> None:
    paths = [save(tmp_path, step, interim=step in (1, 3), w=vector(step)) for step in (1, 2, 3, 4)]
    assert choose_checkpoints(tmp_path, 2, "last") == [paths[1], paths[3]]
    only = save(tmp_path / "only", 7, interim=True, w=vector(7))
    assert choose_checkpoints(tmp_path / "only", 1, "last") == [only], "better than none"


def test_fewer_than_asked_for_are_all_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = [save(tmp_path, step, cv_loss=1.0, w=vector(1.0)) for step in (1, 2)]
    with caplog.at_level(logging.WARNING):
        assert set(choose_checkpoints(tmp_path, 5, "cv_loss")) == set(paths)
    assert f"{tmp_path}: 2 checkpoints to average, 5 were asked for" in caplog.text


def test_a_damaged_one_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = [save(tmp_path, step, cv_loss=float(step), w=vector(step)) for step in (1, 2, 3)]
    (paths[0] / "model.pt").write_bytes(b"x")
    with caplog.at_level(logging.WARNING):
        assert set(choose_checkpoints(tmp_path, 2, "cv_loss")) == set(paths[1:])
    assert f"checkpoint {paths[0]}: sha256 of model.pt differs from the manifest; not averaged" in caplog.text
    assert paths[0].is_dir(), "averaging only reads"


@pytest.mark.parametrize("by", ["last", "cv_loss"])
def test_none_is_an_error(tmp_path: Path, by: str) -> None:
    message = "checkpoints: no intact checkpoint to average; run `wenet-hs train` first$"
    with pytest.raises(CheckpointError, match=message):
        choose_checkpoints(tmp_path, 1, by)
    (save(tmp_path, 1, cv_loss=1.0, w=vector(1.0)) / "model.pt").unlink()
    with pytest.raises(CheckpointError, match=message):
        choose_checkpoints(tmp_path, 1, by)


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    first = save(tmp_path, 1, w=vector(1.0, 2.0))
    for step, other in (
        (2, {"w": vector(1.0)}),
        (3, {"v": vector(1.0, 2.0)}),
        (4, {"w": vector(1, 2), "b": vector(1)}),
    ):
        path = save(tmp_path, step, **other)
        with pytest.raises(
            CheckpointError, match=f"{path.name}: is of another model than .*{first.name}; average one mo"
        ):
            average_weights([first, path])


def test_one_trained_on_other_units_is_refused(tmp_path: Path) -> None:
    paths = [
        save(tmp_path, step, fingerprint={"units.txt": units, "tree.json": "t"}, w=vector(step))
        for step, units in ((1, "a"), (2, "a"), (3, "b"))
    ]
    assert average_weights(paths[:2])["w"].item() == 1.5
    with pytest.raises(
        CheckpointError,
        match="3: was trained with another units.txt than .*step-00000001; average one training's checkpoints only$",
    ):
        average_weights(paths)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    paths = [save(tmp_path, 1, w=vector(1.0)), save(tmp_path, 2, w=vector(value))]
    with pytest.raises(CheckpointError, match="2: w holds values that are not finite; leave this checkpoint out$"):
        average_weights(paths)


def test_a_model_on_a_full_disk_is_one_line_and_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    tiny_corpus: TinyCorpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_corpus.train(tmp_path / "m")
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
    """One bit in the midst of the weights, which torch does not notice."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_faults_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(command, ["--model_dir", str(tmp_path), "--num", "0"]) == 2
    assert capsys.readouterr().err == "--num 0: must be at least 1\n"
    assert run_command(command, ["--model_dir", str(tmp_path / "nowhere")]) == 2
    assert "no intact checkpoint to average; run `wenet-hs train` first" in capsys.readouterr().err


def test_a_kill_at_any_call_leaves_a_whole_model_and_no_wrong_word_about_it(tmp_path: Path) -> None:
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
