# SPDX-License-Identifier: Apache-2.0
import errno
import io
import os
import random
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_corpus import read_checkpoint

from wenet_hs.model import checkpoint as ckpt
from wenet_hs.tree.errors import CheckpointError

FILES = {"model.pt": b"weights" * 100, "state.json": b'{"progress": {}}'}


def save(folder: Path, step: int) -> Path:
    return ckpt.save_checkpoint(folder, step, FILES)


def test_saved_checkpoints_read_back_and_are_listed_by_step(tmp_path: Path) -> None:
    for step in (200, 30, 1000):
        assert read_checkpoint(save(tmp_path, step)) == FILES
    path = ckpt.save_checkpoint(tmp_path, 30, {"model.pt": b"newer"})
    assert read_checkpoint(path) == {"model.pt": b"newer"}
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "step-00000030",
        "step-00000200",
        "step-00001000",
    ]
    (tmp_path / ".step-00002000.tmp").mkdir()
    (tmp_path / "step-00003000.bad").mkdir()
    assert [ckpt.step_of(path) for path in ckpt.list_checkpoints(tmp_path)] == [30, 200, 1000]
    assert ckpt.list_checkpoints(tmp_path / "nowhere") == []
    with pytest.raises(
        CheckpointError,
        match=r"step-9: manifest.json cannot be read \(No such file or directory\); u",
    ):
        read_checkpoint(tmp_path / "step-9")


def test_files_manifest_and_folder_are_on_the_disk_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state after a power cut depends on this order; the parent folder comes last."""
    calls, rename = [], os.rename

    def record_rename(old: Path, new: Path) -> None:
        calls.append(f"rename {old.name} to {new.name}")
        rename(old, new)

    monkeypatch.setattr(
        os, "fsync", lambda fd: calls.append(f"sync {Path(f'/proc/self/fd/{fd}').resolve().name}")
    )
    monkeypatch.setattr(os, "rename", record_rename)
    save(tmp_path / "checkpoints", 7)
    assert calls == [
        *("sync model.pt", "sync state.json", "sync manifest.json", "sync .step-00000007.tmp"),
        *("rename .step-00000007.tmp to step-00000007", "sync checkpoints"),
    ]


def test_only_incomplete_folders_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    path, kept = save(tmp_path, 7), {"step-00000007", "step-00000005.bad", "step-00000006.old"}
    for name in (".step-00000008.tmp", ".step-00000003.deleted", ".step-00000007.replaced", *kept):
        (tmp_path / name).mkdir(exist_ok=True)
    ckpt.remove_incomplete(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == kept
    path.rename(
        tmp_path / ".step-00000007.replaced"
    )  # killed between the two renames of a save of the same step
    ckpt.remove_incomplete(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == kept
    assert read_checkpoint(path) == FILES


@pytest.mark.parametrize("name", [*FILES, ckpt.MANIFEST])
def test_flipped_bits_truncated_and_missing_files_are_detected(tmp_path: Path, name: str) -> None:
    rng, path = random.Random(1), save(tmp_path, 1)
    original = (path / name).read_bytes()
    for _ in range(60):
        damaged = bytearray(original)
        damaged[rng.randrange(len(original))] ^= 1 << rng.randrange(8)
        (path / name).write_bytes(damaged)
        if (
            ckpt.verification_error(path) is None
        ):  # a flip in white space of the manifest changes no sum
            assert name == ckpt.MANIFEST and read_checkpoint(path) == FILES
    (path / name).write_bytes(original[: len(original) // 2])
    assert ckpt.verification_error(path) is not None
    (path / name).unlink()
    with pytest.raises(
        CheckpointError, match=f"{name} cannot be read .*; use an earlier checkpoint"
    ):
        read_checkpoint(path)


def test_a_checkpoint_of_another_format_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (save(tmp_path, 1000) / ckpt.MANIFEST).write_text(
        '{"format": "wenet_hs.checkpoint/9", "files": {}}'
    )
    assert ckpt.newest_intact(tmp_path) is None
    message = "manifest.json is of format 'wenet_hs.checkpoint/9', expected 'wenet_hs.checkpoint/1'; no older one is in"
    assert message in caplog.text


def pt_file(content: object) -> bytes:
    torch.save(content, file := io.BytesIO())
    return file.getvalue()


def test_pt_files_with_other_content_are_refused(tmp_path: Path) -> None:
    for content, message in (
        (b"no zip", "cannot be read (.*)"),
        (pt_file({"call": os.getcwd}), "cannot be read (.*)"),
        (pt_file([1, 2]), "is no dict of names"),
        (pt_file({3: 1}), "is no dict of names"),
    ):
        (tmp_path / "model.pt").write_bytes(content)
        with pytest.raises(
            CheckpointError, match=f"model.pt: {message}; use an earlier checkpoint$"
        ):
            ckpt.load_dict(tmp_path / "model.pt")


def test_tensors_are_written_as_a_stream_with_the_bytes_of_torch_save(tmp_path: Path) -> None:
    weights = {"w": torch.arange(5e6), "nested": {"moments": [torch.ones(3, 2)], "step": 7}}
    tracemalloc.start()
    try:
        path = ckpt.save_checkpoint(tmp_path, 1, {"model.pt": weights})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ckpt.count_bytes(weights) == 20_000_024 and peak < 2e6, "no copy of a tensor in memory"
    assert read_checkpoint(path)["model.pt"] == pt_file(weights)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("written", [0, 1000, 30_000, 40_000])
def test_a_disk_that_fills_within_a_tensor_is_a_full_disk(tmp_path: Path, written: int) -> None:
    """torch may report an error of its own instead."""

    class SmallDisk(io.BytesIO):
        def write(self, data: Any) -> int:
            if self.tell() + len(data) > written:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    with pytest.raises(OSError, match="No space left"):
        ckpt.write_hashed(SmallDisk(), {"w": torch.zeros(10_000), "x": torch.zeros(3)})


def test_a_full_disk_keeps_the_earlier_checkpoints_and_names_an_intact_one(tmp_path: Path) -> None:
    first = save(tmp_path / "m", 1)

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for owner, name, function in (
        (ckpt, "write_hashed", fail),
        (os, "fsync", fail),
        (
            ckpt.shutil,
            "disk_usage",
            lambda _: SimpleNamespace(free=10),
        ),  # detected before anything is written
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, function)
            with pytest.raises(
                CheckpointError,
                match="disk full .*need 0.0 MB.*last good checkpoint: step-00000001",
            ):
                save(tmp_path / "m", 2)
        assert list(first.parent.iterdir()) == [first]
        assert read_checkpoint(first) == FILES
    (save(tmp_path / "m", 2) / "model.pt").write_bytes(b"damaged since")
    message = "x: disk full while writing .*; last good checkpoint: step-00000001; free some"
    with (
        pytest.raises(CheckpointError, match=message),
        ckpt.report_full_disk(tmp_path / "new" / "x", first.parent),
    ):
        fail()
    with (
        pytest.raises(OSError, match="Input/output error"),
        ckpt.report_full_disk(tmp_path / "x", first.parent),
    ):
        raise OSError(errno.EIO, "Input/output error")
    (tmp_path / "file").write_text("")
    with pytest.raises(
        CheckpointError,
        match=r"step-00000001: cannot be written \(File exists\); check the folder$",
    ):
        save(tmp_path / "file", 1)


def test_memory_that_tensors_share_is_counted_once() -> None:
    weight = torch.zeros(1000)
    assert (
        ckpt.count_bytes({"embed": weight, "head": [weight, weight[:10]], "state": b"1234"}) == 4004
    )
