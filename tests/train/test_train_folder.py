# SPDX-License-Identifier: Apache-2.0
"""The experiment folder: complete, one run at a time, and the same run on every resume."""

import logging
import os
import platform
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from lock_holder import holder
from tiny_corpus import TinyCorpus, cut_back, outcome, weights_of

from wenet_hs.build import load_experiment
from wenet_hs.checkpoint import list_checkpoints
from wenet_hs.config.load import load_config
from wenet_hs.errors import CheckpointError, ConfigError, DataError
from wenet_hs.manifest import read_data_list, write_data_list
from wenet_hs.text.units import UnitTable
from wenet_hs.train.setup import FREE_TO_CHANGE
from wenet_hs.tree import Tree


def test_a_second_run_in_one_folder_is_refused(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    with holder(tmp_path / "m"):
        message = "m: another training writes here .process 17 on elsewhere.; wait for it or use another --model_dir$"
        with pytest.raises(CheckpointError, match=message):
            tiny_corpus.train(tmp_path / "m")
        assert [path.name for path in (tmp_path / "m").iterdir()] == [".lock"]


def test_a_killed_run_releases_its_lock_while_its_workers_are_alive(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    with holder(tmp_path / "m") as process:
        process.kill()
        process.wait()
        assert (tiny_corpus.train(tmp_path / "m", "max_epoch=1") / "final.pt").exists()
    assert (tmp_path / "m" / ".lock").read_text() == f"process {os.getpid()} on {platform.node()}\n"


def test_a_folder_that_cannot_be_created(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        CheckpointError, match=r"file/m: cannot be written \(Not a directory\); use another --model_dir"
    ):
        tiny_corpus.train(tmp_path / "file" / "m")


# What is in it


def test_the_folder_is_complete_and_can_be_moved(tiny_corpus: TinyCorpus, tmp_path: Path, trained_tree: Path) -> None:
    names = {path.name for path in trained_tree.iterdir()}
    assert names >= {"train.yaml", "units.txt", "tree.json", "global_cmvn", "checkpoints", "final.pt", "metrics.jsonl"}
    assert names >= {"tensorboard", "train_rejected.tsv", "cv_rejected.tsv"}
    assert str(tiny_corpus.folder) not in (trained_tree / "train.yaml").read_text()
    moved = tmp_path / "été x"
    shutil.copytree(trained_tree, moved)
    experiment = load_experiment(moved)
    assert experiment.tokenizer.table.units[3:] == ("a", "b", "c", "d", "e")
    for name, value in experiment.model.state_dict().items():
        assert torch.equal(value, weights_of(moved)[name]), name
    for checkpoint in list_checkpoints(moved / "checkpoints")[-2:]:
        load_experiment(moved, checkpoint=checkpoint)
    newest = list_checkpoints(moved / "checkpoints")[-1]
    last = load_experiment(moved, checkpoint=newest).model.state_dict()
    assert all(torch.equal(value, last[name]) for name, value in weights_of(moved).items()), "final.pt is the last one"

    lines = (moved / "units.txt").read_text("utf-8").splitlines()
    swapped = [lines[-1].split()[0], lines[-2].split()[0]]  # as many units, and every word would be wrong
    lines[-2:] = [f"{unit} {line.split()[1]}" for unit, line in zip(swapped, lines[-2:], strict=True)]
    (moved / "units.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    with pytest.raises(CheckpointError, match=r"units.txt: changed since the training .*; put the old file back$"):
        load_experiment(moved)


def test_train_yaml_contains_every_setting_and_its_provenance(trained_tree: Path) -> None:
    text = (trained_tree / "train.yaml").read_text()
    config = load_config(trained_tree / "train.yaml")
    assert (config.head, config.seed, config.max_epoch) == ("hsoftmax", 1, 2)
    assert config.tokenizer_conf.symbol_table_path == "units.txt"
    assert config.cmvn_conf.cmvn_file == "global_cmvn"
    settings = {"tree": "tree.json", "bias": False, "sparse_grad": False, "route": "auto", "search": "auto"}
    assert config.head_conf.model_dump() == settings
    sums = {f"sha256 of {name}" for name in ("units.txt", "tree.json", "global_cmvn")}
    assert {"command", "git", "python", "machine", "wenet_hs", "torch", "torchaudio", *sums} == set(config.provenance)
    assert torch.__version__.startswith(config.provenance["torch"])
    assert "src_attention_dropout_rate" in text, "defaults are written too"
    assert set(yaml.safe_load(text)) == set(type(config).model_fields)


# Resumed: the same run


def changed(corpus: TinyCorpus, model_dir: Path, *overrides: str, head: str = "softmax") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        corpus.train(model_dir, *overrides, head=head)
    return str(caught.value).splitlines()


def test_a_changed_config_is_refused_with_one_line_per_difference(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path
) -> None:
    copy = cut_back(trained, tmp_path / "m", 3)
    before = {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()}
    advice = "; a resumed run must be the same: restore it, or use another --model_dir"
    yaml_path = copy / "train.yaml"
    overrides = ("optim_conf.lr=0.1", "dataset_conf.batch_conf.batch_size=4", "seed=2", "max_epoch=9")
    assert changed(tiny_corpus, copy, *overrides) == [
        f"{yaml_path}: dataset_conf.batch_conf.batch_size was 3, is now 4{advice}",
        f"{yaml_path}: optim_conf.lr was 0.005, is now 0.1{advice}",
        f"{yaml_path}: seed was 1, is now 2{advice}",
    ]
    assert changed(tiny_corpus, copy, head="hsoftmax") == [
        f"{yaml_path}: head was 'softmax', is now 'hsoftmax'{advice}",
        f"{yaml_path}: head_conf.tree was None, is now 'tree.json'{advice}",
        f"{yaml_path}: head_conf.bias was None, is now False{advice}",
        f"{yaml_path}: head_conf.sparse_grad was None, is now False{advice}",
        f"{yaml_path}: head_conf.route was None, is now 'auto'{advice}",
        f"{yaml_path}: head_conf.search was None, is now 'auto'{advice}",
        f"{copy / 'tree.json'}: is missing{advice}",
    ]
    after = {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file() and path.name != ".lock"}
    assert after == {name: content for name, content in before.items() if name != ".lock"}, "no file changed"


def test_settings_that_do_not_change_a_step_may_change(tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path) -> None:
    copy = cut_back(trained, tmp_path / "m", 3)
    free = (
        *("max_epoch=1", "max_minutes=60", "log_interval=2", "save_interval=3", "keep_checkpoints=2", "num_workers=0"),
        *("keep_best=1", "keep_best_by=accuracy", "early_stopping.metric=accuracy", "early_stopping.patience=9"),
        *("early_stopping.min_delta=0.01", "dataset_conf.max_bad_clips=0.5"),
        *("encoder_conf.gradient_checkpointing=true", "decoder_conf.gradient_checkpointing=true"),
    )
    assert {override.split("=")[0] for override in free} == FREE_TO_CHANGE
    tiny_corpus.train(copy, *free)
    assert load_config(copy / "train.yaml").max_epoch == 1
    assert outcome(copy)["step"] == 4


@pytest.mark.parametrize(
    ("name", "setting", "line"),
    [
        ("units.txt", "tokenizer_conf.symbol_table_path", 4),
        ("tree.json", "head_conf.tree", 4),
        ("global_cmvn", "cmvn_conf.cmvn_file", 1),
    ],
)
def test_changed_files_are_refused(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained_tree: Path, name: str, setting: str, line: int
) -> None:
    copy, other = cut_back(trained_tree, tmp_path / "m", 5), tmp_path / name
    text = (tiny_corpus.folder / name).read_text()
    if name == "tree.json":
        table = UnitTable.read(tiny_corpus.folder / "units.txt")
        Tree.huffman(range(len(table)), units=table.units).save(other)
    else:
        text = text.replace("a 3", "x 3").replace("b 4", "a 4").replace("x 3", "b 3")
        other.write_text(text.replace('"frame_num": ', '"frame_num": 1'))
    advice = "a resumed run must be the same: restore it, or use another --model_dir"
    (fault,) = changed(tiny_corpus, copy, f"{setting}={other}", head="hsoftmax")
    assert fault == f"{copy / name}: differs from {other} (line {line} is the first); {advice}"


@pytest.mark.parametrize(("flag", "what"), [("train_data", "training list"), ("cv_data", "validation list")])
def test_changed_lists_are_refused(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, flag: str, what: str
) -> None:
    copy = cut_back(trained, tmp_path / "m", 4)
    write_data_list(tmp_path / "a.list", read_data_list(getattr(tiny_corpus, flag))[1:])
    message = f"step-00000004: was trained with another {what}; use another --model_dir to start anew"
    with pytest.raises(CheckpointError, match=message):
        tiny_corpus.train(copy, **{flag: (tmp_path / "a.list",) if flag == "train_data" else tmp_path / "a.list"})


def test_moved_audio_in_two_lists_is_the_same_training_set(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path
) -> None:
    copy = cut_back(trained, tmp_path / "m", 6)
    shutil.copytree(tiny_corpus.folder / "clips", tmp_path / "clips")
    utterances = [
        replace(utterance, wav=str(tmp_path / "clips" / Path(utterance.wav).name))
        for utterance in read_data_list(tiny_corpus.train_data)
    ]
    write_data_list(tmp_path / "a.list", utterances[:4])
    write_data_list(tmp_path / "b.list", utterances[4:])
    tiny_corpus.train(copy, train_data=(tmp_path / "a.list", tmp_path / "b.list"))
    assert outcome(copy) == outcome(trained)
    with pytest.raises(DataError, match="^--train_data: utterance 'train0' is in more than one list; give each a u"):
        tiny_corpus.train(tmp_path / "n", train_data=(tmp_path / "a.list", tmp_path / "a.list"))


def test_the_train_yaml_of_an_experiment_is_a_config(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained_tree: Path
) -> None:
    """Its base names refer to its folder, whatever the working folder is."""
    folder = tiny_corpus.train(tmp_path / "m", "max_minutes=1e-9", config=trained_tree / "train.yaml")
    for name in ("units.txt", "tree.json", "global_cmvn"):
        assert (folder / name).read_bytes() == (trained_tree / name).read_bytes()


def test_a_missing_file_is_named(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"nowhere/units.txt: cannot be read \(No such file or directory\); check the"
    ):
        tiny_corpus.train(tmp_path / "m", "tokenizer_conf.symbol_table_path=nowhere/units.txt")
    with pytest.raises(ConfigError, match="tokenizer_conf.symbol_table_path: not set; name the units.txt that"):
        tiny_corpus.train(tmp_path / "m", "tokenizer_conf.symbol_table_path=null")


def test_a_lost_metrics_file_is_reported_and_not_filled_with_zeros(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = cut_back(trained, tmp_path / "m", 5)
    (copy / "metrics.jsonl").unlink()
    with caplog.at_level(logging.WARNING):
        tiny_corpus.train(copy)
    assert "bytes of its earlier part are missing" in caplog.text
    assert outcome(copy)["metrics"] == outcome(trained)["metrics"][-6:]
