# SPDX-License-Identifier: Apache-2.0
"""Which folder belongs to weights, and what is read there."""

from pathlib import Path

import pytest
from model_folders import TABLE, write_model_folder

from wenet_hs.config.load import load_config
from wenet_hs.model.checkpoint import MANIFEST
from wenet_hs.model.experiment import find_folder_of_weights, load_experiment, read_files_of_weights


def make_checkpoint(model_dir: Path, name: str = "step-00000002") -> Path:
    folder = model_dir / "checkpoints" / name
    folder.mkdir(parents=True)
    (folder / "model.pt").write_bytes((model_dir / "final.pt").read_bytes())
    return folder


def test_the_home_of_weights_is_their_folder_and_of_a_checkpoint_the_one_above(
    tmp_path: Path,
) -> None:
    folder = write_model_folder(tmp_path / "exp")
    checkpoint = make_checkpoint(folder)
    for weights in (folder, folder / "final.pt", checkpoint, checkpoint / "model.pt"):
        assert find_folder_of_weights(weights) == folder
    other_name = make_checkpoint(folder, "best")
    assert find_folder_of_weights(other_name) == other_name
    (other_name / MANIFEST).touch()
    assert find_folder_of_weights(other_name) == folder
    TABLE.write(other_name / "words.txt")
    assert find_folder_of_weights(other_name) == other_name


def test_only_the_files_that_are_there_are_read(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "exp")
    files = read_files_of_weights(folder)
    assert (files.folder, files.table_path, files.table) == (folder, folder / "units.txt", TABLE)
    assert files.config == load_config(folder / "train.yaml")
    (folder / "units.txt").rename(folder / "words.txt")
    assert read_files_of_weights(folder).table_path == folder / "words.txt"
    (folder / "train.yaml").unlink()
    assert read_files_of_weights(folder).config is None
    (folder / "words.txt").unlink()
    nothing = read_files_of_weights(folder)
    assert (nothing.config, nothing.table_path, nothing.table) == (None, None, None)


def test_weights_of_the_folder_itself_need_no_second_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model_folder(tmp_path / "exp")
    checkpoint = make_checkpoint(folder)
    reads = list[Path]()
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (reads.append(path), read_bytes(path))[1])
    load_experiment(folder, checkpoint=checkpoint)
    assert reads.count(folder / "train.yaml") == 1
