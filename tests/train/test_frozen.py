# SPDX-License-Identifier: Apache-2.0
"""Checkpoints leave out frozen weights, which are in one file beside them; whatever reads a
checkpoint has them.
"""

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_corpus import TinyCorpus, cut_back, newest, outcome, weights_of

from wenet_hs.base.files import file_sha256
from wenet_hs.model.checkpoint import (
    FROZEN,
    list_checkpoints,
    newest_intact,
    read_weights,
    remove_incomplete,
)
from wenet_hs.model.experiment import load_experiment
from wenet_hs.train import state as state_module
from wenet_hs.train.average import average_weights
from wenet_hs.tree.errors import CheckpointError

SETTINGS = ("freeze=[encoder, ctc.head.output.bias]", "max_epoch=1")


@pytest.fixture(scope="module")
def frozen(
    tiny_corpus: TinyCorpus, tmp_path_factory: pytest.TempPathFactory, trained: Path
) -> Path:
    """A training of four steps with a frozen encoder that comes from --checkpoint."""
    return tiny_corpus.train(tmp_path_factory.mktemp("frozen") / "m", *SETTINGS, checkpoint=trained)


def is_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


def test_frozen_weights_are_in_one_file_and_whoever_reads_a_checkpoint_has_them(
    tiny_corpus: TinyCorpus, tmp_path: Path, frozen: Path, trained: Path
) -> None:
    base, final, checkpoints = (
        weights_of(trained),
        weights_of(frozen),
        list_checkpoints(frozen / "checkpoints"),
    )
    left_out = torch.load(frozen / "checkpoints" / FROZEN, weights_only=True)
    buffers = ("global_cmvn", "running_", "num_batches_tracked")
    names = {
        name
        for name in base
        if name.startswith("encoder.") and not any(part in name for part in buffers)
    }
    assert names and left_out.keys() == {*names, "ctc.head.output.bias"}
    assert is_equal(left_out, {name: base[name] for name in left_out})
    for path in checkpoints:
        assert (
            torch.load(path / "model.pt", weights_only=True).keys()
            == final.keys() - left_out.keys()
        )
        assert (
            read_weights(path).keys()
            == read_weights(path / "model.pt").keys()
            == final.keys()
            == base.keys()
        )
    assert len(checkpoints) == 4 and is_equal(read_weights(checkpoints[-1]), final)
    moved = shutil.copytree(frozen, tmp_path / "moved")
    loaded = load_experiment(moved, checkpoint=newest(moved)).model.state_dict()
    assert is_equal(dict(loaded), final)
    average = average_weights(checkpoints[1:])
    assert (
        is_equal({name: average[name] for name in left_out}, left_out)
        and average.keys() == final.keys()
    )
    tuned = tiny_corpus.train(
        tmp_path / "tuned", *SETTINGS, "max_minutes=1e-9", checkpoint=newest(frozen)
    )
    assert file_sha256(tuned / "checkpoints" / FROZEN) == file_sha256(
        frozen / "checkpoints" / FROZEN
    )
    shutil.rmtree(moved / "checkpoints")
    assert is_equal(dict(load_experiment(moved).model.state_dict()), final), "final.pt is complete"


def test_a_resumed_training_goes_on_with_the_same_file(
    tiny_corpus: TinyCorpus, tmp_path: Path, frozen: Path
) -> None:
    copy = cut_back(frozen, tmp_path / "m", 2)
    before = (copy / "checkpoints" / FROZEN).stat().st_mtime_ns
    assert outcome(tiny_corpus.train(copy, *SETTINGS)) == outcome(frozen)
    assert (copy / "checkpoints" / FROZEN).stat().st_mtime_ns == before


def test_a_missing_or_changed_file_is_one_line_and_costs_no_checkpoint(
    tiny_corpus: TinyCorpus, tmp_path: Path, frozen: Path
) -> None:
    copy = cut_back(frozen, tmp_path / "m", 3)
    source, path = copy / "checkpoints" / FROZEN, newest(copy)
    content, to_do = source.read_bytes(), "restore it: it holds the frozen weights of step-00000003"
    readers: list[Any] = [lambda: read_weights(path), lambda: average_weights([path])]
    readers += [
        lambda: tiny_corpus.train(copy, *SETTINGS),
        lambda: load_experiment(copy, checkpoint=path),
    ]
    for found in (
        r"cannot be read \(No such file or directory\)",
        "differs from its SHA-256 in step-00000003/state.json",
    ):
        source.unlink(missing_ok=True)
        if "differs" in found:
            source.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
        for read in readers:
            with pytest.raises(CheckpointError, match=f"^{source}: {found}; {to_do}$"):
                read()
        with pytest.raises(CheckpointError, match=found.replace("00003", "00001")):
            tiny_corpus.train(copy, *SETTINGS, resume=str(path.with_name("step-00000001")))
        assert newest_intact(path.parent) == path, "not set aside"
    source.write_bytes(content)
    assert outcome(tiny_corpus.train(copy, *SETTINGS)) == outcome(frozen)


def test_a_full_disk_and_a_kill_while_the_file_is_written_leave_nothing(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(state_module, "write_hashed", fail)
    with pytest.raises(
        CheckpointError,
        match=r"frozen.pt: disk full while writing .*need 0.0 MB.*no checkpoint was wr",
    ):
        tiny_corpus.train(tmp_path / "m", *SETTINGS, checkpoint=trained)
    assert [*(tmp_path / "m" / "checkpoints").iterdir()] == []
    (tmp_path / f".{FROZEN}.17.tmp").touch()
    remove_incomplete(tmp_path)
    assert not (tmp_path / f".{FROZEN}.17.tmp").exists()


def test_a_copy_without_its_frozen_weights_is_named_and_a_damaged_record_is_refused(
    tmp_path: Path, frozen: Path
) -> None:
    copy = shutil.copytree(frozen, tmp_path / "m")
    alone = shutil.copy(newest(copy) / "model.pt", tmp_path / "best.pt")
    with pytest.raises(
        CheckpointError,
        match="missing encoder.* for a copy of a model.pt, give its checkpoint folder, be",
    ):
        load_experiment(copy, checkpoint=Path(alone))
    (newest(copy) / "state.json").write_text("{")
    with pytest.raises(
        CheckpointError, match="state.json: cannot be read; use an earlier checkpoint"
    ):
        read_weights(newest(copy) / "model.pt")
