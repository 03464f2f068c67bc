# SPDX-License-Identifier: Apache-2.0
"""The start of a training: the experiment folder, refused changes, data lists, devices, frozen and
compiled modules.
"""

import errno
import json
import logging
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lock_holder import holder
from pydantic import BaseModel
from small_models import small_batch, small_config, small_model
from thread_ranks import run_on_ranks
from tiny_corpus import (
    TinyCorpus,
    cut_back,
    metrics,
    newest,
    outcome,
    weights_of,
    write_tiny_corpus,
)

from wenet_hs.base.files import file_sha256
from wenet_hs.compute.devices import find_device, processor_name
from wenet_hs.compute.distributed import World
from wenet_hs.config.encoders import PretrainedConf
from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.config.section import settings_free_on_resume
from wenet_hs.data import features
from wenet_hs.manifest.data_list import Utterance, read_data_list, write_data_list
from wenet_hs.model.experiment import load_experiment
from wenet_hs.runs.record import FirstWeights, read_run
from wenet_hs.text.units import UnitTable
from wenet_hs.train import model_folder
from wenet_hs.train.optim import build_optimizer, freeze
from wenet_hs.train.speech import compile_layers, open_output_caches
from wenet_hs.train.speech_steps import run_epoch
from wenet_hs.train.state import TrainState, read_checkpoint_progress
from wenet_hs.tree import Tree
from wenet_hs.tree.errors import CheckpointError, ConfigError, DataError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
ONE_STEP = "max_minutes=1e-9"
PATHS = {"tokenizer_conf.symbol_table_path", "cmvn_conf.cmvn_file", "head_conf.tree"}


def test_a_second_run_in_one_folder_is_refused_until_the_first_is_killed(
    tiny_corpus: TinyCorpus, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    with holder(folder) as process:
        message = "m: another training writes here .process 17 on elsewhere.; wait for it or use another --model_dir$"
        with pytest.raises(CheckpointError, match=message):
            tiny_corpus.train(folder)
        assert [path.name for path in folder.iterdir()] == [".lock"]
        process.kill()
        process.wait()
        (folder / ".final.pt.868d2ee9.tmp").write_text("of a killed run")
        assert (tiny_corpus.train(folder, ONE_STEP) / "final.pt").exists()
    assert not [*folder.glob(".final.pt*")]
    assert (folder / ".lock").read_text() == f"process {os.getpid()} on {platform.node()}\n"


def test_folders_that_cannot_be_written_and_units_that_are_not_named(
    tiny_corpus: TinyCorpus, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        CheckpointError,
        match=r"file/m: cannot be written \(Not a directory\); use another --model_d",
    ):
        tiny_corpus.train(tmp_path / "file" / "m")
    with pytest.raises(
        ConfigError, match="tokenizer_conf.symbol_table_path: not set; name the units.txt that"
    ):
        tiny_corpus.train(tmp_path / "m", "tokenizer_conf.symbol_table_path=null")


def test_the_folder_is_complete_and_can_be_moved(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained_tree: Path
) -> None:
    names = {path.name for path in trained_tree.iterdir()}
    assert names >= {
        "train.yaml",
        "units.txt",
        "tree.json",
        "global_cmvn",
        "checkpoints",
        "final.pt",
        "metrics.jsonl",
    }
    assert names >= {"train_rejected.tsv", "cv_rejected.tsv"}
    assert len([name for name in names if name.startswith("events.out.tfevents.")]) == 1
    moved = shutil.copytree(trained_tree, tmp_path / "été x")
    experiment = load_experiment(moved)
    assert experiment.tokenizer.table.units[3:] == ("a", "b", "c", "d", "e")
    last = load_experiment(moved, checkpoint=newest(moved)).model.state_dict()
    for name, value in experiment.model.state_dict().items():
        assert torch.equal(value, weights_of(moved)[name]), name
        assert torch.equal(value, last[name]), "final.pt has the last weights"
    text = (moved / "train.yaml").read_text()
    config = load_config(moved / "train.yaml")
    assert str(tiny_corpus.folder) not in text
    assert "src_attention_dropout_rate" in text, "defaults are written too"
    assert set(type(config).model_fields) == set(yaml.safe_load(text))
    assert (config.head, config.seed, config.max_epoch) == ("hsoftmax", 1, 2)
    assert (config.tokenizer_conf.symbol_table_path, config.cmvn_conf.cmvn_file) == (
        "units.txt",
        "global_cmvn",
    )
    settings = {"tree": "tree.json", "bias": False, "sparse_grad": False}
    assert config.head_conf.model_dump() == settings
    files = ("units.txt", "tree.json", "global_cmvn")
    record = read_run(moved)
    assert record is not None
    assert {name: file_sha256(moved / name) for name in files} == record.files
    assert record.lists.train_sums == [file_sha256(tiny_corpus.train_data)]
    assert record.first_weights == FirstWeights(kind="random")
    assert set(record.last_start.packages) == {"wenet_hs", "torch"}
    assert torch.__version__.startswith(record.torch_versions[0])
    again = tiny_corpus.train(tmp_path / "m", ONE_STEP, config=moved / "train.yaml")
    assert [(again / name).read_bytes() for name in files] == [
        (moved / name).read_bytes() for name in files
    ]


def fault_lines(
    corpus: TinyCorpus, model_dir: Path, *overrides: str, head: str = "softmax"
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        corpus.train(model_dir, *overrides, head=head)
    advice = "; a resumed run must be the same: "
    lines = str(caught.value).splitlines()
    assert all(line.endswith(", or use another --model_dir") for line in lines)
    return [line.partition(advice)[0] for line in lines]


def test_changed_settings_and_files_are_refused_with_one_line_per_difference(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, trained_tree: Path
) -> None:
    copy, other = (
        cut_back(trained_tree, tmp_path / "m", 3),
        shutil.copytree(tiny_corpus.folder, tmp_path / "other"),
    )
    before = {
        path.name: path.read_bytes()
        for path in copy.iterdir()
        if path.is_file() and path.name != ".lock"
    }
    units, cmvn, tree = (other / name for name in ("units.txt", "global_cmvn", "tree.json"))
    table = UnitTable.read(units)
    Tree.huffman(range(len(table)), units=table.units).save(tree)
    units.write_text(
        units.read_text().replace("a 3", "x 3").replace("b 4", "a 4").replace("x 3", "b 3")
    )
    cmvn.write_text(cmvn.read_text().replace('"frame_num": ', '"frame_num": 1'))
    files = (
        f"tokenizer_conf.symbol_table_path={units}",
        f"head_conf.tree={tree}",
        f"cmvn_conf.cmvn_file={cmvn}",
    )
    settings = (
        "optim_conf.lr=0.1",
        "dataset_conf.batch_conf.batch_size=4",
        "seed=2",
        "max_epoch=9",
    )
    assert fault_lines(tiny_corpus, copy, *files, *settings, head="hsoftmax") == [
        f"{copy / 'train.yaml'}: optim_conf.lr was 0.005, is now 0.1",
        f"{copy / 'train.yaml'}: seed was 1, is now 2",
        f"{copy / 'train.yaml'}: dataset_conf.batch_conf.batch_size was 3, is now 4",
        f"{copy / 'units.txt'}: differs from {units} (line 4 is the first)",
        f"{copy / 'global_cmvn'}: differs from {cmvn} (line 1 is the first)",
        f"{copy / 'tree.json'}: differs from {tree} (line 4 is the first)",
    ]
    assert {name: (copy / name).read_bytes() for name in before} == before
    head = f"{copy / 'train.yaml'}: head was 'hsoftmax', is now 'softmax'"
    assert fault_lines(tiny_corpus, copy) == [head], "the overrides were left out"
    assert fault_lines(tiny_corpus, copy, "cmvn_conf.cmvn_file=data/none", "seed=2") == [
        head,
        f"{copy / 'train.yaml'}: seed was 1, is now 2",
    ]
    (copy / "tree.json").unlink()
    assert fault_lines(tiny_corpus, copy, head="hsoftmax") == [f"{copy / 'tree.json'}: is missing"]
    plain = cut_back(trained, tmp_path / "no_tree", 1)
    change = f"{plain / 'train.yaml'}: head was 'softmax', is now 'hsoftmax'"
    assert fault_lines(tiny_corpus, plain, f"head_conf.tree={tree}", head="hsoftmax") == [change]
    cosine = (
        "scheduler=warmup_cosine",
        "scheduler_conf.warmup_steps=1",
        "max_epoch=1",
        "save_interval=4",
    )
    whole = tiny_corpus.train(tmp_path / "whole", *cosine, "max_minutes=60")
    (fault,) = fault_lines(
        tiny_corpus, cut_back(whole, tmp_path / "cosine", 4), *cosine, "max_minutes=61"
    )
    assert fault == f"{tmp_path}/cosine/train.yaml: max_minutes was 60.0, is now 61.0"


def changed_settings(config: BaseModel, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key, override with another value) of each setting that is not null and names no file."""
    for key, value in config.model_dump(mode="json").items():
        if isinstance(section := getattr(config, key), BaseModel):
            yield from changed_settings(section, f"{prefix}{key}.")
        elif isinstance(value, dict):  # learning rates by part
            yield key, f"{prefix}{key}={{encoder: 0.5}}"
        elif value is not None and prefix + key not in PATHS:
            other: Any = [*value, 3] if isinstance(value, list) else "another"
            if isinstance(value, bool | int | float):
                other = (
                    not value
                    if isinstance(value, bool)
                    else value / 2 + 0.125
                    if isinstance(value, float)
                    else value + 1
                )
            yield key, f"{prefix}{key}={json.dumps(other)}"


@pytest.mark.slow
def test_each_setting_is_named_if_a_resume_would_change_it(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained_tree: Path
) -> None:
    copy = cut_back(trained_tree, tmp_path / "m", 4)
    config = load_config(copy / "train.yaml")
    free = settings_free_on_resume(config)
    settings = [
        (key, override)
        for key, override in changed_settings(config)
        if override.partition("=")[0] not in free
    ]
    assert len(settings) > 80
    before = (copy / "metrics.jsonl").read_bytes()
    for key, override in settings:
        with pytest.raises((ConfigError, DataError), match=key):
            tiny_corpus.train(copy, override, head="hsoftmax")
    assert (copy / "metrics.jsonl").read_bytes() == before


def test_a_first_run_describes_its_folder_before_it_reads_the_lists(
    tiny_corpus: TinyCorpus, tmp_path: Path
) -> None:
    with pytest.raises(DataError):
        tiny_corpus.train(tmp_path / "m", cv_data=tmp_path / "none.list")
    record = read_run(tmp_path / "m")
    assert record is not None and record.lists.train_sums


def test_settings_that_do_not_change_a_step_may_change(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path
) -> None:
    copy = cut_back(trained, tmp_path / "m", 3)
    free = (
        *(
            "max_epoch=1",
            "max_minutes=60",
            "log_interval=2",
            "save_interval=3",
            "keep_checkpoints=2",
            "num_workers=0",
        ),
        *(
            "keep_best=1",
            "keep_best_by=accuracy",
            "early_stopping.metric=accuracy",
            "early_stopping.patience=9",
        ),
        *(
            "early_stopping.min_delta=0.01",
            "dataset_conf.max_bad_clips=0.5",
            "dataset_conf.max_unknown_units=0.5",
        ),
        *("encoder_conf.gradient_checkpointing=true", "decoder_conf.gradient_checkpointing=true"),
        "keep_checkpoints_gb=1",
    )
    tiny_corpus.train(copy, *free)
    config = load_config(copy / "train.yaml")
    assert {override.split("=")[0] for override in free} == settings_free_on_resume(config)
    assert config.max_epoch == 1
    assert outcome(copy)["step"] == 4


@pytest.mark.slow
def test_a_resumed_run_names_all_processors_and_numbers_of_ranks(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def processors(folder: Path) -> list[str]:
        record = read_run(folder)
        assert record is not None
        return record.processors

    processor = processor_name(torch.device("cpu"))
    assert processors(trained) == [processor]
    copy = trained
    for number, (name, expected) in enumerate(
        ((("B9", ["B9"])), ("C1", ["B9", "C1"]), ("B9", ["B9", "C1"]))
    ):
        monkeypatch.setattr(
            "wenet_hs.train.training.processor_name", lambda device, name=name: name
        )
        copy = cut_back(copy, tmp_path / str(number), 3)
        tiny_corpus.train(copy)
        assert processors(copy) == [processor, *expected]
    copy = cut_back(copy, tmp_path / "without_record", 3)
    (copy / "run.json").unlink()  # as its message for a damaged file says
    tiny_corpus.train(copy)
    assert processors(copy) == ["unknown", "B9"]


def test_changed_lists_are_refused_and_moved_audio_in_two_lists_is_the_same(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path
) -> None:
    copy, shorter = cut_back(trained, tmp_path / "m", 7), tmp_path / "a.list"
    write_data_list(shorter, read_data_list(tiny_corpus.train_data)[1:])
    flags: tuple[dict[str, Any], ...] = ({"train_data": (shorter,)}, {"cv_data": shorter})
    described = (copy / "train.yaml").read_bytes()
    for given, what in zip(flags, ("training", "validation"), strict=True):
        with pytest.raises(
            CheckpointError,
            match=f"step-00000007: was trained with another {what} list; use another",
        ):
            tiny_corpus.train(copy, **given)
        assert (copy / "train.yaml").read_bytes() == described, (
            "the model is still of the first lists"
        )
    clips = shutil.copytree(tiny_corpus.folder / "clips", tmp_path / "clips")
    moved = [
        replace(u, wav=str(clips / Path(u.wav).name))
        for u in read_data_list(tiny_corpus.train_data)
    ]
    write_data_list(tmp_path / "a.list", moved[:4])
    write_data_list(tmp_path / "b.list", moved[4:])
    tiny_corpus.train(copy, train_data=(tmp_path / "a.list", tmp_path / "b.list"))
    assert outcome(copy) == outcome(trained)


def relist(path: Path, *more: Utterance, keep: int = 99) -> None:
    write_data_list(path, [*read_data_list(path)[:keep], *more])


def test_rejected_utterances_are_listed_and_unknown_units_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus, folder = write_tiny_corpus(tmp_path / "corpus"), tmp_path / "m"
    first = read_data_list(corpus.train_data)[0]
    texts = {"empty": "", "long": "abcde" * 9, "foreign": "zya"}
    short = replace(first, key="short", duration=0.02)
    relist(corpus.train_data, *(replace(first, key=key, txt=text) for key, text in texts.items()))
    relist(corpus.cv_data, short)
    with caplog.at_level(logging.INFO):
        corpus.train(folder, ONE_STEP)
    empty, long = (folder / "train_rejected.tsv").read_text().splitlines()
    assert empty == "empty\tempty transcript" and long.startswith(
        "long\tfewer frames than labels: "
    )
    assert (folder / "cv_rejected.tsv").read_text().startswith("short\ttoo short for the encoder")
    listed = "2 of 13 utterances are not used: empty transcript 1, fewer frames than labels 1; see"
    assert f"--train_data: {listed} {folder / 'train_rejected.tsv'}" in caplog.text
    assert (
        "--cv_data: 1 of 4 utterances are not used: too short for the encoder 1; see" in caplog.text
    )
    assert (
        "--train_data: 2 units of transcripts are not in units.txt and become <unk>: 'z' 1, 'y' 1"
        in caplog.text
    )
    for name, path in (("cv", corpus.cv_data), ("train", corpus.train_data)):
        relist(path, *(replace(short, key=f"u{i}") for i in range(3)), keep=0)
        message = f"^--{name}_data: none of its 3 utterances can be used: too short.* 3; see .*{name}_rejected.tsv$"
        with pytest.raises(DataError, match=message):
            corpus.train(tmp_path / name)
        assert len((tmp_path / name / f"{name}_rejected.tsv").read_text().splitlines()) == 3


def test_a_table_of_other_data_is_refused_and_units_of_other_toolkits_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    first, second, *others = read_data_list(corpus.train_data)
    units = corpus.folder / "units.txt"
    size = len(UnitTable.read(units))
    with units.open("a") as file:
        file.write(f"<noise> {size}\n<pad> {size + 1}\n")
    write_data_list(corpus.train_data, [replace(first, txt=f"{first.txt}<noise>"), second, *others])
    with caplog.at_level(logging.INFO):
        corpus.train(tmp_path / "m", ONE_STEP)
    assert "become <unk>" not in caplog.text
    assert (
        "units.txt: units in no transcript: <pad>; a unit with a special meaning must be <blank>, <unk>,"
        in caplog.text
    )
    write_data_list(
        corpus.train_data, [replace(one, txt=one.txt.upper()) for one in (first, second)] + others
    )
    message = r"^--train_data: \d+ of \d+ units are not in units.txt \('.*\); give the table of these data, or raise "
    with pytest.raises(DataError, match=message + "dataset_conf.max_unknown_units, now 0.1$"):
        corpus.train(tmp_path / "n", ONE_STEP)
    corpus.train(tmp_path / "n", ONE_STEP, "dataset_conf.max_unknown_units=1")


def test_units_tree_and_config_of_different_tokenizers_are_refused(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    tree = Tree.load(corpus.folder / "tree.json")
    replace(tree, options={"tokenizer": "phone"}).save(corpus.folder / "tree.json")
    message = "tree.json: built with --tokenizer phone, but the config has tokenizer: char; set the same one in both"
    with pytest.raises(DataError, match=message):
        corpus.train(tmp_path / "m", head="hsoftmax")
    for tokenizer, unit, what in (
        ("char", "tʃ", "has several letters, .*; set tokenizer: phone or word"),
        ("phone", "▁", "is the space of characters, .* --kind phone"),
    ):
        UnitTable.from_units(["a", unit]).write(corpus.folder / "units.txt")
        with pytest.raises(ConfigError, match=f"units.txt: unit '{unit}' {what}"):
            corpus.train(tmp_path / tokenizer, f"tokenizer={tokenizer}")


def quarantined_keys(folder: Path) -> list[str]:
    return [line.split("\t")[0] for line in (folder / "quarantine.tsv").read_text().splitlines()]


@pytest.mark.slow
def test_a_training_with_bad_clips_resumes_with_the_same_bits(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    clips = [tmp_path / "corpus" / "clips" / f"{key}.wav" for key in ("train3", "cv1")]
    contents = [clip.read_bytes() for clip in clips]
    for clip in clips:
        clip.write_bytes(b"")
    short = clips[0].with_name("train4.wav")
    short.write_bytes(short.read_bytes()[:-32])  # 1 or 2 ms
    shape = ("max_epoch=1", "save_interval=2")
    whole = corpus.train(tmp_path / "whole", "dataset_conf.max_bad_clips=0.4", *shape)
    assert quarantined_keys(whole)[0] == "key" and sorted(quarantined_keys(whole)[1:]) == [
        "cv1",
        "train3",
    ]
    assert [(record["kind"], record["bad_clips"]) for record in metrics(whole)[-2:]] == [
        ("train", 1),
        ("valid", 1),
    ]
    progress = read_checkpoint_progress(whole / "checkpoints" / "step-00000004")
    assert (progress.bad_clips, progress.incomplete_clips, progress.clips_drawn) == (1, 1, 10)
    resumed = cut_back(whole, tmp_path / "resumed", 2)
    corpus.train(resumed, "dataset_conf.max_bad_clips=0.5", *shape)
    assert outcome(resumed) == outcome(whole)
    assert sorted(quarantined_keys(resumed)) == sorted(quarantined_keys(whole))
    for clip, content in zip(
        clips, contents, strict=True
    ):  # restored: what was bad before the resume ends no run
        clip.write_bytes(content)
    corpus.train(cut_back(whole, tmp_path / "mended", 2), "dataset_conf.max_bad_clips=0", *shape)


@pytest.mark.parametrize(("clip", "count"), [("train3", "1 of 10"), ("cv0", "1 of 3")])
def test_training_ends_above_the_allowed_share_of_bad_clips(
    tmp_path: Path, clip: str, count: str
) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    (tmp_path / "corpus" / "clips" / f"{clip}.wav").write_bytes(b"")
    with pytest.raises(
        DataError,
        match=rf"quarantine\.tsv: {count} clips cannot be read, more than the share 0\.02",
    ):
        corpus.train(
            tmp_path / "m", "dataset_conf.max_bad_clips=0.02", "save_interval=100", "max_epoch=1"
        )
    assert quarantined_keys(tmp_path / "m") == ["key", clip]


def test_features_computed_on_the_device_are_equal_up_to_rounding(
    tiny_corpus: TinyCorpus, tmp_path: Path
) -> None:
    plain = ("max_epoch=1", "save_interval=4", "dataset_conf.fbank_conf.dither=0")
    worker = tiny_corpus.train(tmp_path / "worker", *plain)
    device = tiny_corpus.train(tmp_path / "device", *plain, "dataset_conf.features_on=device")
    losses = [[record["loss"] for record in metrics(folder)] for folder in (worker, device)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


def test_devices() -> None:
    for device, message in (
        ("meta", "not supported; use cpu, cuda or cuda:N$"),
        ("cuda:99", "there are \\d+ CUDA devices here; use another one or --device cpu$"),
    ):
        with pytest.raises(ConfigError, match=f"^--device {device}: {message}"):
            find_device(device)


def test_frozen_parameters_do_not_change(
    tiny_corpus: TinyCorpus, trained: Path, tmp_path: Path
) -> None:
    names = ["encoder.embed", "encoder.encoders.0", "ctc.head.output.bias"]
    folder = tiny_corpus.train(
        tmp_path / "m", f"freeze={json.dumps(names)}", ONE_STEP, checkpoint=trained
    )
    before, after = weights_of(trained), weights_of(folder)
    unchanged = {name for name in before if torch.equal(before[name], after[name])}
    assert unchanged == {
        name for name in before if name.startswith((*names, "encoder.global_cmvn"))
    }
    assert any(name.endswith("running_mean") for name in unchanged)
    optimizer = torch.load(newest(folder) / "optimizer.pt", weights_only=True)
    buffers = ("global_cmvn", "running_", "num_batches_tracked")
    trained_names = [
        name
        for name in before
        if name not in unchanged and not any(part in name for part in buffers)
    ]
    assert len(optimizer["state"]) == len(trained_names)
    with pytest.raises(
        ConfigError, match=r"yaml: freeze was \['encoder.embed', .* is now \['decoder'\]; a resumed"
    ):
        tiny_corpus.train(folder, "freeze=[decoder]", "max_epoch=2")


def test_freeze_without_a_checkpoint_warns(
    tiny_corpus: TinyCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With sparse gradients everything but the head may be frozen; then the dense optimizer has no
    parameters.
    """
    sparse = ("head_conf.sparse_grad=true",)
    sparse += ("model_conf.lsm_weight=0", ONE_STEP)
    folder = tiny_corpus.train(
        tmp_path / "m", "freeze=[encoder, decoder, ctc]", *sparse, head="hsoftmax"
    )
    assert (
        "freeze without --checkpoint: frozen parameters keep their random initial values"
        in caplog.text
    )
    optimizer = torch.load(newest(folder) / "optimizer.pt", weights_only=True)
    assert (len(optimizer["dense"]["state"]), len(optimizer["sparse"]["state"])) == (0, 1)


def test_a_frozen_module_computes_the_same_as_before(caplog: pytest.LogCaptureFixture) -> None:
    """It has no dropout and no batch statistics, while the rest trains; `encoders.1` is not
    `encoders.10`.
    """
    layers = {
        "encoder_conf": {
            "num_blocks": 11,
            "output_size": 8,
            "attention_heads": 1,
            "linear_units": 4,
        }
    }
    model = small_model(**layers)
    names = ("encoder.embed", "encoder.encoders.1", "encoder.encoders.0.norm_ff.weight")
    with caplog.at_level(logging.INFO):
        freeze(model, names, where="a.yaml")
    assert f"frozen: {', '.join(names)}: " in caplog.text
    model.train()
    modes = {name: module.training for name, module in model.named_modules()}
    assert not any(
        training for name, training in modes.items() if f"{name}.".startswith("encoder.encoders.1.")
    )
    assert (
        modes["encoder.encoders.10.conv_module.norm"]
        and modes["encoder.encoders.0"]
        and modes["decoder"]
    )
    frozen = [f"{name}." for name, value in model.named_parameters() if not value.requires_grad]
    assert frozen and all(
        name.startswith(tuple(f"{beginning}." for beginning in names)) for name in frozen
    )
    batch = small_batch([40], [3])
    first, again = (model.encoder.embed(batch.features)[0] for _ in range(2))
    assert torch.equal(first, again) and not first.requires_grad
    model(batch).total.backward()
    assert all((value.grad is None) != value.requires_grad for value in model.parameters())


def test_wrong_names_to_freeze() -> None:
    config, model = small_config(model_conf={"ctc_only_steps": 5}), small_model()
    for names, message in (
        (
            ["encoder.embd"],
            "'encoder.embd' is no parameter and no module with parameters; did you mean encoder.embed ",
        ),
        (["qqq"], "'qqq' is no .*; did you mean encoder or decoder or head or ctc"),
        (["encoder.global_cmvn"], "'encoder.global_cmvn' is no parameter"),
        (
            ["encoder", "decoder", "head", "ctc"],
            "names every parameter, so nothing is trained; remove a name$",
        ),
    ):
        with pytest.raises(ConfigError, match=f"^a.yaml: freeze: {message}"):
            freeze(model, names, where="a.yaml")
    freeze(model, ["encoder", "ctc"], where="a.yaml")
    state = TrainState(model, build_optimizer(model, config), torch.device("cpu"))
    message = "^step 1: no parameter that freeze leaves to train has a part in the loss at CTC weight 1; remove a name"
    with pytest.raises(ConfigError, match=message):
        next(run_epoch(state, [small_batch([40], [3])], config))


def test_every_layer_is_compiled_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[torch.nn.Module, Any]] = []
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, **options: asked.append((self, options))
    )
    model = small_model()
    compile_layers(model)
    assert asked == [
        (layer, {"dynamic": True}) for layer in (*model.encoder.encoders, *model.decoder.decoders)
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler has its own
def test_compiled_layers_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "torch._inductor.config.compile_threads", 1
    )  # no processes that import torch
    off = {"dropout_rate": 0.0, "positional_dropout_rate": 0.0, "num_blocks": 1}
    sections = {"encoder_conf": off, "decoder_conf": off}
    plain, fast = small_model(seed=2, **sections).train(), small_model(seed=2, **sections).train()
    compile_layers(fast)
    for frames, labels in (([60, 41], [9, 2]), ([80, 33, 50], [5, 2, 7])):
        totals = [model(small_batch(frames, labels)).total for model in (plain, fast)]
        for total in totals:
            total.backward()
        assert totals[1].item() == pytest.approx(totals[0].item(), rel=1e-5)
    for (name, parameter), other in zip(plain.named_parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-3, atol=1e-4, msg=name)
    torch.testing.assert_close(plain.state_dict(), fast.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_resumed_run_keeps_the_dtype_that_auto_chose(
    tiny_corpus: TinyCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folder, "has_native_bf16", lambda device: False)
    folder = tiny_corpus.train(tmp_path / "m", "dtype=auto", "save_interval=1", ONE_STEP)
    monkeypatch.setattr(model_folder, "has_native_bf16", lambda device: True)
    monkeypatch.setattr(model_folder, "MIN_WIDTH_FOR_BF16", 16)
    tiny_corpus.train(folder, "dtype=auto", "save_interval=1", "max_epoch=1")
    assert load_config(folder / "train.yaml").dtype == "fp32"
    other = tiny_corpus.train(tmp_path / "other", "dtype=auto", ONE_STEP)
    assert load_config(other / "train.yaml").dtype == "bf16"


def test_two_trainings_that_start_together_reserve_a_cache_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved, reserve = list[Path](), features._reserve

    def slow(path: Path, *options: Any) -> None:
        reserved.append(path)
        time.sleep(0.05)
        reserve(path, *options)

    def make_cache(path: Path, setting: str) -> None:
        features.FeatureCache(path, np.array([[3]]), 2)

    monkeypatch.setattr(features, "_reserve", slow)
    conf = PretrainedConf(path="", freeze="all", cache=str(tmp_path / "cache"))
    encoder = SimpleNamespace(
        conf=conf,
        description=SimpleNamespace(to_json=str),
        pretrained=torch.nn.Module(),
        device=torch.device("cpu"),
    )
    sets = [SimpleNamespace(cache_in=make_cache, cache_key=lambda: "key")]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: open_output_caches(sets, encoder, World()), range(2)))  # type: ignore[arg-type]
    assert reserved == [*(tmp_path / "cache").glob("*-key.bin")]


def test_the_outputs_of_ranks_with_other_weights_are_not_mixed(tmp_path: Path) -> None:
    conf = PretrainedConf(path="", freeze="all", cache=str(tmp_path / "cache"))

    def work(world: World, names: Sequence[str]) -> Sequence[Path]:
        paths = list[Path]()
        module = torch.nn.ParameterDict(
            {name: torch.full((2,), float(world.rank)) for name in names}
        )
        encoder: Any = SimpleNamespace(
            conf=conf,
            description=SimpleNamespace(to_json=str),
            pretrained=module,
            device=torch.device("cpu"),
        )
        sets: Any = [
            SimpleNamespace(
                cache_in=lambda path, setting: paths.append(path), cache_key=lambda: "key"
            )
        ]
        open_output_caches(sets, encoder, world)
        return paths

    [[path], [other]] = run_on_ranks(lambda world: work(world, ["masked_spec_embed"]), 2)
    assert path == other, "it has no effect in a frozen encoder"
    with pytest.raises(
        ConfigError, match="weights of the pretrained encoder: rank 1 has another one than rank 0"
    ):
        run_on_ranks(lambda world: work(world, ["weight"]), 2)


def test_a_cache_in_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    encoder: Any = SimpleNamespace(
        conf=PretrainedConf(path="", freeze="all", cache=str(tmp_path / "file"))
    )
    with pytest.raises(
        DataError, match=r"file: encoder_conf.cache: cannot be made \(File exists\); name another"
    ):
        open_output_caches([], encoder, World())


def test_settings_of_a_pretrained_encoder_at_their_defaults_are_not_in_the_hash() -> None:
    """A later release may have more of them."""
    encoder_conf = {"path": "e", "freeze": "all", "cache": "c"}
    settings = {
        "encoder": "pretrained",
        "encoder_conf": encoder_conf,
        "dataset_conf": {"spec_aug": False},
    }
    fixed = model_folder._fixed_settings(ExperimentConfig.model_validate(settings))
    of_encoder = {key for key in fixed if key.startswith("encoder_conf.")}
    assert of_encoder == {"encoder_conf.path", "encoder_conf.freeze", "encoder_conf.cache"}


def test_settings_of_upper_layers_at_their_defaults_are_not_in_the_hash() -> None:
    """A later release may have more of them."""
    conf = {"encoder": "pretrained", "dataset_conf": {"spec_aug": False}}
    one, other = (
        ExperimentConfig.model_validate(conf | {"encoder_conf": {"path": "", "upper": upper}})
        for upper in (
            {"num_blocks": 3},
            {"num_blocks": 3, "mask_time": 0.0, "gradient_checkpointing": True},
        )
    )
    fixed = model_folder._fixed_settings(one)
    assert [key for key in fixed if ".upper." in key] == ["encoder_conf.upper.num_blocks"]
    assert fixed == model_folder._fixed_settings(other)


def test_a_cache_leaves_no_file_and_a_finished_training_makes_none(
    tiny_corpus: TinyCorpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cached = ("dataset_conf.cache_features=true", "max_epoch=1", "save_interval=4")
    with caplog.at_level(logging.INFO):
        folder = tiny_corpus.train(tmp_path / "m", *cached)
    assert caplog.text.count("MB for features") == 2, "of the training and the validation list"
    found = {
        path.name for path in tmp_path.iterdir() if not path.name.startswith("torchinductor")
    }  # of torch's compiler
    assert found == {"m"}

    def full(*args: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    tiny_corpus.train(folder, *cached)
    with pytest.raises(
        DataError, match=r"cannot reserve .* MB \(No space left on device\); free disk space, name"
    ):
        tiny_corpus.train(tmp_path / "other", *cached)
    assert not list(tmp_path.glob("wenet_hs*"))
