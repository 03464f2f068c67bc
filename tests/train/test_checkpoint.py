# SPDX-License-Identifier: Apache-2.0
import errno
import json
import os
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from wenet_hs import checkpoint as ckpt
from wenet_hs.errors import CheckpointError

FILES = {"model.pt": b"weights" * 100, "state.json": b'{"progress": {}}'}


def save(folder: Path, step: int) -> Path:
    return ckpt.save_checkpoint(folder, step, FILES)


def test_saved_checkpoints_read_back_and_are_listed_by_step(tmp_path: Path) -> None:
    for step in (200, 30, 1000):
        assert ckpt.read_checkpoint(save(tmp_path, step)) == FILES
    path = ckpt.save_checkpoint(tmp_path, 30, {"model.pt": b"newer"})
    assert ckpt.read_checkpoint(path) == {"model.pt": b"newer"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000030", "step-00000200", "step-00001000"]
    (tmp_path / ".step-00002000.tmp").mkdir()
    (tmp_path / "step-00003000.bad").mkdir()
    assert [ckpt.step_of(path) for path in ckpt.list_checkpoints(tmp_path)] == [30, 200, 1000]
    assert ckpt.list_checkpoints(tmp_path / "nowhere") == []
    with pytest.raises(CheckpointError, match=r"step-9: manifest.json cannot be read \(No such file or directory\); u"):
        ckpt.read_checkpoint(tmp_path / "step-9")


def test_a_checkpoint_gets_its_name_after_its_files_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state after a power cut depends on this order: files, manifest, folder, then the name, then its parent."""
    calls = []
    rename = os.rename

    def record_sync(descriptor: int) -> None:
        calls.append(f"sync {Path(f'/proc/self/fd/{descriptor}').resolve().name}")

    def record_rename(old: Path, new: Path) -> None:
        calls.append(f"rename {old.name} to {new.name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "rename", record_rename)
    save(tmp_path / "checkpoints", 7)
    assert calls == [
        *("sync model.pt", "sync state.json", "sync manifest.json", "sync .step-00000007.tmp"),
        "rename .step-00000007.tmp to step-00000007",
        "sync checkpoints",
    ]


def test_only_incomplete_folders_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    path = save(tmp_path, 7)
    for name in (
        ".step-00000008.tmp",
        ".step-00000003.deleted",
        ".step-00000007.replaced",
        "step-00000005.bad",
        "step-00000006.old",
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.pt").write_bytes(b"half")
    (tmp_path / "finished.json").write_text("{}")
    names = {"finished.json", path.name, "step-00000005.bad", "step-00000006.old"}
    ckpt.remove_incomplete(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == names
    path.rename(tmp_path / ".step-00000007.replaced")  # killed between the two renames of a save of the same step
    ckpt.remove_incomplete(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == names
    assert ckpt.read_checkpoint(path) == FILES
    ckpt.remove_incomplete(tmp_path / "nowhere")


def test_a_full_disk_is_named_with_an_intact_checkpoint_and_other_faults_by_their_own_words(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (save(tmp_path, 2) / "model.pt").write_bytes(b"damaged since")
    message = "x: disk full while writing .*; last good checkpoint: step-00000001; free some"
    with pytest.raises(CheckpointError, match=message), ckpt.report_full_disk(tmp_path / "new" / "x", tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="Input/output error"), ckpt.report_full_disk(tmp_path / "x", tmp_path):
        raise OSError(errno.EIO, "Input/output error")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"step-00000001: cannot be written \(File exists\); check the folder$"):
        save(tmp_path / "file", 1)


def sums(manifest: bytes) -> object:
    try:
        return {name: entry["sha256"] for name, entry in json.loads(manifest)["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@pytest.mark.parametrize("name", [*FILES, ckpt.MANIFEST])
def test_flipped_bits_truncated_and_missing_files_are_detected(tmp_path: Path, name: str) -> None:
    rng, path = random.Random(1), save(tmp_path, 1)
    original = (path / name).read_bytes()
    for _ in range(60):
        damaged = bytearray(original)
        damaged[rng.randrange(len(original))] ^= 1 << rng.randrange(8)
        (path / name).write_bytes(damaged)
        if name != ckpt.MANIFEST or sums(damaged) != sums(original):  # a flip in white space changes no sum
            assert ckpt.verification_error(path) is not None
    (path / name).write_bytes(original[: len(original) // 2])
    assert ckpt.verification_error(path) is not None
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} cannot be read .*; use an earlier checkpoint"):
        ckpt.read_checkpoint(path)


def test_a_damaged_newest_checkpoint_is_renamed_and_the_earlier_one_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = save(tmp_path, 1000), save(tmp_path, 1200)
    (bad / "model.pt").write_bytes(b"other")
    assert ckpt.newest_intact(tmp_path) == good
    fault = "sha256 of model.pt differs from the manifest"
    assert f"{fault}; using step-00001000 (200 steps older); kept as step-00001200.bad" in caplog.text
    assert (tmp_path / "step-00001200.bad").is_dir()
    assert ckpt.newest_intact(tmp_path) == good


def test_no_intact_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert ckpt.newest_intact(tmp_path) is None
    (save(tmp_path, 1) / ckpt.MANIFEST).write_text('{"format": "wenet_hs.checkpoint/9", "files": {}}')
    assert ckpt.newest_intact(tmp_path) is None
    message = "manifest.json is of format 'wenet_hs.checkpoint/9', expected 'wenet_hs.checkpoint/1'; no older one is in"
    assert message in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no zip", "cannot be read (.*); use an earlier checkpoint"),
        (ckpt.dump_dict({"call": os.getcwd}), "cannot be read (.*); use an earlier checkpoint"),
        (ckpt.dump_dict([1, 2]), "is no dict of names; use an earlier checkpoint"),  # type: ignore[arg-type]
        (ckpt.dump_dict({3: 1}), "is no dict of names; use an earlier checkpoint"),  # type: ignore[dict-item]
    ],
)
def test_pt_files_with_other_content_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=f"model.pt: {message}$"):
        ckpt.load_dict(content, Path("model.pt"))


def test_a_full_disk_keeps_the_earlier_checkpoints(tmp_path: Path) -> None:
    first = save(tmp_path, 1)

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for owner, name, function in (
        (Path, "write_bytes", fail),
        (os, "fsync", fail),
        (ckpt.shutil, "disk_usage", lambda _: SimpleNamespace(free=10)),  # detected before anything is written
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, function)
            with pytest.raises(CheckpointError, match="disk full .*need 0.0 MB.*last good checkpoint: step-00000001"):
                save(tmp_path, 2)
        assert list(tmp_path.iterdir()) == [first]
        assert ckpt.read_checkpoint(first) == FILES
