# SPDX-License-Identifier: Apache-2.0
"""A disk that is full in the middle of a real training: one line, exit code 2, nothing finished is lost."""

import os
import subprocess
from pathlib import Path

import pytest
from full_disk import train_in_child
from tiny_corpus import TinyCorpus, bits, outcome, write_tiny_corpus

from wenet_hs.bin import train as command
from wenet_hs.bin.command import run_command
from wenet_hs.checkpoint import damage, list_checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TinyCorpus:
    return write_tiny_corpus(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def whole(corpus: TinyCorpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of two epochs that nothing disturbed."""
    return corpus.train(tmp_path_factory.mktemp("whole") / "m")


def test_a_full_disk_costs_a_line_and_no_bit(corpus: TinyCorpus, tmp_path: Path, whole: Path) -> None:
    """The limit falls into each kind of file: statistics, train.yaml, metrics, TensorBoard, weights, moments."""
    folder, log = corpus.train(tmp_path / "m", "max_epoch=1"), tmp_path / "log"
    before = bits(folder)
    for limit in (500, 2_000, 3_000, 20_000, 70_000, 100_000, 151_000):
        assert train_in_child(corpus.arguments(folder), log, limit=limit) == 2, log.read_text()
        (line,) = log.read_text().splitlines()
        assert ": disk full while writing (File too large; " in line, limit
        assert line.endswith("; last good checkpoint: step-00000004; make room and run the same command again"), limit
        assert bits(folder) == before, limit
        assert [path.name for path in (folder / "checkpoints").glob(".*")] == []
    assert [damage(path) for path in list_checkpoints(folder / "checkpoints")] == [None] * 4
    assert run_command(command, corpus.arguments(folder)) == 0
    assert outcome(folder) == outcome(whole)


def test_a_full_disk_at_the_first_checkpoint(corpus: TinyCorpus, tmp_path: Path, whole: Path) -> None:
    assert train_in_child(corpus.arguments(tmp_path / "m"), tmp_path / "log", limit=100_000) == 2
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.startswith(
        f"{tmp_path / 'm' / 'checkpoints' / 'step-00000001'}: disk full while writing (File too large"
    )
    assert "; no checkpoint was written before; make room" in line
    assert run_command(command, corpus.arguments(tmp_path / "m")) == 0
    assert outcome(tmp_path / "m") == outcome(whole)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
def test_a_small_disk_that_is_really_full(corpus: TinyCorpus, tmp_path: Path, whole: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode != 0:
        pytest.skip("no disk can be mounted here")
    try:
        assert train_in_child(corpus.arguments(disk / "m"), tmp_path / "log", limit=10**9) == 2
        (line,) = (tmp_path / "log").read_text().splitlines()
        assert "disk full while writing (No space left on device; need 0." in line
        good = list_checkpoints(disk / "m" / "checkpoints")
        assert f"last good checkpoint: {good[-1].name}; make room" in line
        subprocess.run(["mount", "-o", "remount,size=9m", str(disk)], check=True)
        assert run_command(command, corpus.arguments(disk / "m")) == 0
        assert outcome(disk / "m") == outcome(whole)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
