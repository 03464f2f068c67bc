# SPDX-License-Identifier: Apache-2.0
"""What the options of a training become: one config, read once, and the checkpoint to resume from."""

import logging
from pathlib import Path

import pytest
from tiny_corpus import TinyCorpus

from wenet_hs.config.load import config_changes, load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.train.start import (
    BasePath,
    TrainOptions,
    choose_checkpoint,
    find_base,
    read_config,
    read_request,
)
from wenet_hs.tree.errors import CheckpointError, ConfigError

DYNAMIC = "dataset_conf.batch_conf={batch_type: dynamic, max_frames_in_batch: 600}"
PRETRAINED = [
    "encoder=pretrained",
    "encoder_conf={path: e, freeze: all}",
    "dataset_conf={spec_aug: false}",
]


def options_of(
    corpus: TinyCorpus, *overrides: str, cmvn: str | None = None, divide_batch: bool = False
) -> TrainOptions:
    return TrainOptions(
        config=corpus.config,
        train_data=[corpus.train_data],
        cv_data=corpus.cv_data,
        model_dir=Path("m"),
        override_config=overrides,
        cmvn=cmvn,
        divide_batch=divide_batch,
    )


def frames_in_batch(config: ExperimentConfig) -> int:
    return config.dataset_conf.batch_conf.max_frames_in_batch


def test_the_settings_of_the_flags_are_in_the_config(tiny_corpus: TinyCorpus) -> None:
    """`--override_config` counts before `--cmvn`."""
    plain = read_config(options_of(tiny_corpus), 1, ExperimentConfig)
    assert plain == load_config(tiny_corpus.config)
    changed = read_config(options_of(tiny_corpus, "seed=9", cmvn="c.json"), 1, ExperimentConfig)
    changes = {key: new for key, _, new in config_changes(plain, changed)}
    assert changes == {"seed": 9, "cmvn_conf.cmvn_file": "c.json"}
    of_user = read_config(
        options_of(tiny_corpus, "cmvn_conf.cmvn_file=d", cmvn="c.json"), 1, ExperimentConfig
    )
    assert of_user.cmvn_conf.cmvn_file == "d"
    without = read_config(options_of(tiny_corpus, "cmvn=null", cmvn="c.json"), 1, ExperimentConfig)
    assert without.cmvn is None


def test_the_statistics_of_a_pretrained_encoder_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "a.yaml"
    config.write_text("encoder: conformer\n")
    options = TrainOptions(
        config=config,
        train_data=[],
        cv_data=Path("cv"),
        model_dir=Path("m"),
        override_config=PRETRAINED,
        cmvn="c.json",
    )
    with caplog.at_level(logging.INFO):
        assert read_config(options, 1, ExperimentConfig).cmvn is None
    assert caplog.messages == [
        "--cmvn c.json: not used, a pretrained encoder normalizes its input itself"
    ]


def test_a_batch_is_divided_by_the_ranks(tiny_corpus: TinyCorpus, yaml_reads: list[Path]) -> None:
    divided = options_of(tiny_corpus, DYNAMIC, divide_batch=True)
    assert (
        frames_in_batch(read_config(options_of(tiny_corpus, DYNAMIC), 2, ExperimentConfig)) == 600
    )
    assert frames_in_batch(read_config(divided, 1, ExperimentConfig)) == 600
    yaml_reads.clear()
    assert frames_in_batch(read_config(divided, 2, ExperimentConfig)) == 300
    assert yaml_reads == [tiny_corpus.config]
    with pytest.raises(
        ConfigError,
        match="^--divide_batch: .*: 600 cannot be divided by 601 ranks; raise it, or use",
    ):
        read_config(divided, 601, ExperimentConfig)


def test_a_request_has_the_base_as_it_was_written(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    base = find_base(tmp_path / "base")
    assert base == BasePath(path=tmp_path / "base", name=str(tmp_path / "base"))
    request = read_request(options_of(tiny_corpus), base, 1, ExperimentConfig)
    assert (request.base, request.resume) == (base, "auto")
    assert request.lists.train == (tiny_corpus.train_data,)
    assert find_base(None) is None


def test_a_checkpoint_to_resume_is_one_of_the_folder(trained: Path, tmp_path: Path) -> None:
    newest = sorted((trained / "checkpoints").glob("step-*"))[-1]
    assert choose_checkpoint(trained, "auto") == newest
    assert choose_checkpoint(trained, str(newest)) == newest
    assert choose_checkpoint(tmp_path, "never") is None
    with pytest.raises(
        CheckpointError, match="^--resume .*: not auto, never or one of .*/checkpoints/step-"
    ):
        choose_checkpoint(tmp_path, str(newest))
    with pytest.raises(
        CheckpointError, match="holds checkpoints and --resume is never; use another --model_dir or"
    ):
        choose_checkpoint(trained, "never")
    (tmp_path / "final.pt").touch()
    with pytest.raises(
        CheckpointError, match="a model without checkpoints, so it cannot be resumed; use another"
    ):
        choose_checkpoint(tmp_path, "auto")


def test_a_training_reads_each_config_once(
    tiny_corpus: TinyCorpus, tmp_path: Path, yaml_reads: list[Path]
) -> None:
    folder = tmp_path / "m"
    settings = ("max_epoch=1", "save_interval=null")
    tiny_corpus.train(folder, *settings)
    assert yaml_reads == [tiny_corpus.config]
    yaml_reads.clear()
    tiny_corpus.train(folder, *settings, "max_epoch=2")
    assert yaml_reads == [tiny_corpus.config, folder / "train.yaml"]
    yaml_reads.clear()
    tiny_corpus.train(tmp_path / "tuned", *settings, checkpoint=folder)
    assert yaml_reads == [tiny_corpus.config, folder / "train.yaml"]
