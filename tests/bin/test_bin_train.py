# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs train` and `shards`: what they print, their flags, tars instead of lists, and one line
per user error.
"""

import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Capsys, error_line
from pretrained_folders import write_folder
from tiny_corpus import TinyCorpus, cut_back, outcome, write_tiny_corpus

from wenet_hs.bin import cmvn, shards
from wenet_hs.bin import train as command
from wenet_hs.bin.main import run_command
from wenet_hs.config.load import load_config
from wenet_hs.manifest.data_list import read_data_list, write_data_list
from wenet_hs.runs.record import read_run
from wenet_hs.text.units import UnitTable
from wenet_hs.train.start import TrainOptions
from wenet_hs.tree import Tree
from wenet_hs.tree.errors import ConfigError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TinyCorpus:
    return write_tiny_corpus(tmp_path_factory.mktemp("tiny"))


@pytest.mark.slow
def test_it_trains_with_its_flags_and_prints_the_path_of_the_model(
    corpus: TinyCorpus, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/wenet-hs", "train", "--config", "a b.yaml"])
    first = tmp_path / "first"
    assert run_command(command, corpus.arguments(first, "max_epoch=1")) == 0
    assert capsys.readouterr().out == f"{first / 'final.pt'}: trained\n"
    record = read_run(first)
    assert record is not None
    assert record.last_start.command == ("wenet-hs", "train", "--config", "a b.yaml")
    more = [
        "--checkpoint",
        str(first / "final.pt"),
        "--resume",
        "never",
        "--override_config",
        "max_epoch=1",
        "seed=3",
    ]
    arguments = [*corpus.arguments(tmp_path / "m"), *more, "--override_config", "accum_grad=2"]
    assert run_command(command, arguments) == 0
    assert outcome(tmp_path / "m")["step"] == 2
    assert run_command(command, arguments) == 2
    assert "--resume is never" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--cv_data none", "none: cannot be read (No such file or directory)"),
        ("--device cuda:77", "--device cuda:77: "),
        (
            "--data_type shard",
            "train.list:1: not the path of a tar; a list of utterances is read with --data_type raw",
        ),
        (
            "tokenizer_conf.symbol_table_path=no.txt",
            "no.txt: cannot be read (No such file or directory); check the",
        ),
        (
            "tokenizer_conf.symbol_table_path=gap.txt",
            "gap.txt:3: id 3 in a table of 3 units; ids must be 0 to 2, and 2",
        ),
        (
            "cmvn_conf.cmvn_file=none",
            "none: cannot be read (No such file or directory); check the path in the config",
        ),
        (
            "dtype=fp16",
            "tiny.yaml: dtype: fp16 is emulated by this processor, some 50 times slower than fp32; use",
        ),
        ("optim_conf.lrr=1", "optim_conf.lrr: unknown key; did you mean `lr`?"),
        ("output_dim=99", "output_dim: 99, expected 8"),
        (
            "dataset_conf.fbank_conf.num_mel_bins=6",
            "num_mel_bins: input_layer: conv2d needs at least 7, got 6",
        ),
        (
            "dataset_conf.sampling.weights=[1,2]",
            "dataset_conf.sampling.weights: 2 weights for 1 lists in --train_d",
        ),
        (
            "head=hsoftmax head_conf.tree=tree.json",
            "tree.json: leaf 7 is 'x', but unit 7 of the table is 'e'; build",
        ),
    ],
)
def test_a_wrong_flag_or_setting_is_one_line(
    corpus: TinyCorpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capsys,
    flags: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    other = UnitTable.from_units("abcdx")
    Tree.huffman(range(len(other)), units=other.units).save("tree.json")
    Path("gap.txt").write_text("<blank> 0\na 1\nb 3\n")
    given = flags if flags.startswith("--") else f"--override_config {flags}"
    found = error_line(
        run_command(command, [*corpus.arguments(tmp_path / "m"), *given.split()]), capsys
    )
    assert message in found
    assert "--device" not in flags or not Path("m").exists()


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_unreadable_clip(tmp_path: Path, capsys: Capsys, num_workers: int) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    clip = corpus.folder / "clips" / "train4.wav"
    clip.write_bytes(b"RIFF")
    strict = ("dataset_conf.max_bad_clips=0", f"num_workers={num_workers}")
    found = error_line(run_command(command, corpus.arguments(tmp_path / "m", *strict)), capsys)
    assert "utterance train4" in found and str(clip) in found


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 4])
def test_a_run_with_weights_noise_and_reverberation_resumes_bit_for_bit(
    corpus: TinyCorpus, tmp_path: Path, step: int
) -> None:
    utterances = read_data_list(corpus.train_data)
    write_data_list(tmp_path / "a.list", utterances[:4])
    write_data_list(tmp_path / "b.list", utterances[4:])
    (tmp_path / "clips").write_text("".join(f"{utterance.wav}\n" for utterance in utterances))
    settings = [
        f"dataset_conf.{name}_conf={{list: {tmp_path}/clips, prob: 0.7}}"
        for name in ("noise", "reverb")
    ]
    settings.append("dataset_conf.sampling={weights: [1, 3]}")
    flags = {"train_data": (tmp_path / "a.list", tmp_path / "b.list")}
    whole = corpus.train(tmp_path / "whole", *settings, **flags)
    cut = cut_back(whole, tmp_path / "cut", step)
    assert outcome(corpus.train(cut, *settings, **flags)) == outcome(whole)
    assert outcome(corpus.train(tmp_path / "plain", **flags)) != outcome(whole)


# ---- shards


def pack(data_list: Path, out: Path, num: int = 3) -> int:
    line = ["--data_list", str(data_list), "--out", str(out), "--num_utts_per_shard", str(num)]
    return run_command(shards, line)


@pytest.mark.slow
def test_training_on_shards_is_training_on_the_list(corpus: TinyCorpus, tmp_path: Path) -> None:
    assert pack(corpus.train_data, tmp_path / "train") == pack(corpus.cv_data, tmp_path / "cv") == 0
    lists = {
        "train_data": (tmp_path / "train" / "data.list",),
        "cv_data": tmp_path / "cv" / "data.list",
    }
    short = ("max_epoch=1", "save_interval=null")
    raw = outcome(corpus.train(tmp_path / "raw", *short))
    assert outcome(corpus.train(tmp_path / "shard", *short, data_type="shard", **lists)) == raw
    resumed = corpus.train(tmp_path / "raw", *short, data_type="shard", **lists)
    assert outcome(resumed) == raw, "a run resumes with the other format"


def test_statistics_of_shards_are_those_of_the_list(
    corpus: TinyCorpus, tmp_path: Path, capsys: Capsys
) -> None:
    train = tmp_path / "train" / "data.list"
    assert pack(corpus.train_data, train.parent) == 0
    assert capsys.readouterr().out.startswith(f"{train}: 4 shards, 10 utterances, ")
    common = ["--config", str(corpus.config), "--num_workers", "0"]
    out = ["--data_list", str(train), "--data_type", "shard", "--out", str(tmp_path / "cmvn")]
    assert run_command(cmvn, [*common, *out]) == 0
    assert (tmp_path / "cmvn").read_bytes() == (corpus.folder / "global_cmvn").read_bytes()
    found = error_line(pack(corpus.train_data, tmp_path, num=0), capsys)
    assert found == "--num_utts_per_shard 0: must be at least 1"
    found = error_line(pack(tmp_path / "none", tmp_path), capsys)
    assert found.startswith(f"{tmp_path}/none: cannot be read (No such file or directory)")


def test_statistics_have_no_effect_with_a_pretrained_encoder(
    corpus: TinyCorpus,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: Capsys,
) -> None:
    pytest.importorskip("transformers")
    encoder = write_folder(tmp_path / "e", "wav2vec2")
    settings = ["encoder=pretrained", f"encoder_conf={{path: {encoder}, freeze: all}}"]
    settings += ["cmvn=null", "dataset_conf.fbank_conf=null", "dataset_conf.spec_aug=false"]
    settings += ["max_epoch=1"]
    arguments = corpus.arguments(tmp_path / "m", *settings)
    with caplog.at_level(logging.INFO):
        assert run_command(command, [*arguments, "--cmvn", "none"]) == 0
    expected = "--cmvn none: not used, a pretrained encoder normalizes its input itself"
    assert expected in caplog.messages
    assert load_config(tmp_path / "m" / "train.yaml").cmvn is None
    in_yaml = [*corpus.arguments(tmp_path / "n", *settings, "cmvn=global_cmvn"), "--cmvn", "none"]
    capsys.readouterr()
    line = error_line(run_command(command, in_yaml), capsys)
    assert "cmvn: the encoder computes its own input and its normalization; remove it" in line


def test_the_flags_are_the_options_of_the_training(
    corpus: TinyCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[TrainOptions]()
    monkeypatch.setattr(command, "train", started.append)
    flags = [
        "--cmvn",
        "c.json",
        "--divide_batch",
        "--checkpoint",
        "base",
        "--resume",
        "never",
        "--seed",
        "7",
    ]
    assert run_command(command, [*corpus.arguments(Path("m"), "grad_clip=1"), *flags]) == 0
    assert run_command(command, corpus.arguments(Path("m"))) == 0
    expected = TrainOptions(
        config=corpus.config,
        train_data=[corpus.train_data],
        cv_data=corpus.cv_data,
        model_dir=Path("m"),
        override_config=["seed=7", "grad_clip=1"],
        cmvn="c.json",
        divide_batch=True,
        resume="never",
        checkpoint=Path("base"),
        device="cpu",
    )
    without_flags = replace(
        expected,
        override_config=[],
        cmvn=None,
        divide_batch=False,
        resume="auto",
        checkpoint=None,
    )
    assert started == [expected, without_flags]


def test_a_resumed_training_has_the_batches_of_the_ranks_before(
    corpus: TinyCorpus, tmp_path: Path
) -> None:
    """The flag --divide_batch: tests/train/test_start.py."""
    settings = [
        "dataset_conf.batch_conf={batch_type: dynamic, max_frames_in_batch: 600}",
        "max_epoch=1",
    ]
    name = "dataset_conf.batch_conf.max_frames_in_batch"
    corpus.train(tmp_path / "m", *settings, f"{name}=300")
    refused = f"{name} was 300, is now 200; a resumed run must be the same"
    with pytest.raises(ConfigError, match=refused):
        corpus.train(tmp_path / "m", *settings, f"{name}=200")
