# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs shards`, and training on its tars: the same bits as on the list."""

from pathlib import Path

import pytest
from command_line import Capsys, error_line
from tiny_corpus import TinyCorpus, cut_back, outcome, write_tiny_corpus

from wenet_hs.bin import cmvn, shards
from wenet_hs.bin.main import run_command
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.manifest import read_data_list, write_data_list


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TinyCorpus:
    return write_tiny_corpus(tmp_path_factory.mktemp("corpus"), num_train=7)


def pack(data_list: Path, out: Path, num: int = 3) -> Path:
    arguments = ["--data_list", str(data_list), "--out", str(out), "--num_utts_per_shard", str(num)]
    assert run_command(shards, arguments) == 0
    return out / "data.list"


@pytest.mark.slow
def test_training_on_shards_is_training_on_the_list(corpus: TinyCorpus, tmp_path: Path) -> None:
    flags = {
        "train_data": (pack(corpus.train_data, tmp_path / "train"),),
        "cv_data": pack(corpus.cv_data, tmp_path / "cv"),
        "data_type": "shard",
    }
    short = ("max_epoch=1", "save_interval=null")
    raw = outcome(corpus.train(tmp_path / "raw", *short))
    assert outcome(corpus.train(tmp_path / "shard", *short, **flags)) == raw
    assert outcome(corpus.train(tmp_path / "raw", *short, **flags)) == raw, "a run resumes with the other format"


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 4])
def test_a_run_with_weights_noise_and_reverberation_resumes_bit_for_bit(
    corpus: TinyCorpus, tmp_path: Path, step: int
) -> None:
    utterances = read_data_list(corpus.train_data)
    write_data_list(tmp_path / "a.list", utterances[:4])
    write_data_list(tmp_path / "b.list", utterances[4:])
    (tmp_path / "clips").write_text("".join(f"{utterance.wav}\n" for utterance in utterances))
    settings = [f"dataset_conf.{name}_conf={{list: {tmp_path}/clips, prob: 0.7}}" for name in ("noise", "reverb")]
    settings.append("dataset_conf.sampling={weights: [1, 3]}")
    flags = {"train_data": (tmp_path / "a.list", tmp_path / "b.list")}
    whole = corpus.train(tmp_path / "whole", *settings, **flags)
    cut = cut_back(whole, tmp_path / "cut", step)
    assert outcome(corpus.train(cut, *settings, **flags)) == outcome(whole)
    assert outcome(corpus.train(tmp_path / "plain", **flags)) != outcome(whole)


def test_statistics_of_shards_are_those_of_the_list(corpus: TinyCorpus, tmp_path: Path, capsys: Capsys) -> None:
    train = pack(corpus.train_data, tmp_path / "train")
    assert capsys.readouterr().out.startswith(f"{train}: 3 shards, 7 utterances, ")
    common = ["--config", str(corpus.config), "--num_workers", "0"]
    out = ["--data_list", str(train), "--data_type", "shard", "--out", str(tmp_path / "cmvn")]
    assert run_command(cmvn, [*common, *out]) == 0
    assert (tmp_path / "cmvn").read_bytes() == (corpus.folder / "global_cmvn").read_bytes()


def test_a_wrong_flag_is_one_line(corpus: TinyCorpus, tmp_path: Path, capsys: Capsys) -> None:
    arguments = ["--data_list", str(corpus.train_data), "--out", str(tmp_path), "--num_utts_per_shard", "0"]
    assert error_line(run_command(shards, arguments), capsys) == "--num_utts_per_shard 0: must be at least 1"
    code = run_command(shards, ["--data_list", str(tmp_path / "none"), "--out", str(tmp_path)])
    assert error_line(code, capsys).startswith(f"{tmp_path}/none: cannot be read (No such file or directory)")
    with pytest.raises(DataError, match="train.list:1: not the path of a tar; a list of utterances is read with --dat"):
        corpus.train(tmp_path / "m", data_type="shard")


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        (".sampling={temperature: 0}", "dataset_conf.sampling.temperature: must be greater than 0, got 0"),
        (".sampling={by: speaker}", "dataset_conf.sampling.by: must be one of lang, got 'speaker'"),
        (".sampling={weights: [1, 0]}", r"dataset_conf.sampling.weights\[1\]: must be greater than 0, got 0"),
        (".sampling={weights: [1, 2]}", "dataset_conf.sampling.weights: 2 weights for 1 lists in --train_d"),
        (".noise_conf={prob: 1}", "dataset_conf.noise_conf.list: "),
        (".reverb_conf={list: n, prob: 2}", "dataset_conf.reverb_conf.prob: must be "),
    ],
)
def test_a_wrong_setting_is_one_line(corpus: TinyCorpus, tmp_path: Path, setting: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault) as caught:
        corpus.train(tmp_path / "m", f"dataset_conf{setting}")
    assert "\n" not in str(caught.value)
