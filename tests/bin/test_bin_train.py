# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs train`: what it prints, its flags, and one line with exit code 2 per user error."""

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Capsys, error_line
from tiny_corpus import TinyCorpus, outcome, write_tiny_corpus

from wenet_hs.bin import train as command
from wenet_hs.bin.main import run_command
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import Tree


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TinyCorpus:
    return write_tiny_corpus(tmp_path_factory.mktemp("tiny"))


def test_it_trains_with_its_flags_and_prints_the_path_of_the_model(
    corpus: TinyCorpus, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/wenet-hs", "train", "--config", "a b.yaml"])
    first = tmp_path / "first"
    assert run_command(command, corpus.arguments(first, "max_epoch=1")) == 0
    assert capsys.readouterr().out == f"{first / 'final.pt'}: trained\n"
    assert "command: wenet-hs train --config 'a b.yaml'" in (first / "train.yaml").read_text()
    more = ["--checkpoint", str(first / "final.pt"), "--resume", "never", "--override_config", "max_epoch=1", "seed=3"]
    arguments = [*corpus.arguments(tmp_path / "m"), *more, "--override_config", "accum_grad=2"]
    assert run_command(command, arguments) == 0
    assert outcome(tmp_path / "m")["step"] == 2
    assert run_command(command, arguments) == 2
    assert "--resume is never" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--train_data none", "none: cannot be read (No such file or directory)"),
        ("--cv_data none", "none: cannot be read (No such file or directory)"),
        ("--config none", "none: cannot be read (No such file or directory)"),
        ("--device cuda:77", "--device cuda:77: "),
        ("--device nonsense", "--device nonsense: "),
        ("--device meta", "--device meta: "),
        ("tokenizer_conf.symbol_table_path=no.txt", "no.txt: cannot be read (No such file or directory); check the"),
        ("cmvn_conf.cmvn_file=none", "none: cannot be read (No such file or directory); check the path in the config"),
        ("dtype=fp16", "tiny.yaml: dtype: fp16 is emulated by this processor, some 50 times slower than fp32; use"),
        ("optim_conf.lrr=1", "optim_conf.lrr: unknown key; did you mean `lr`?"),
        ("output_dim=99", "output_dim: 99, expected 8"),
        ("dataset_conf.fbank_conf.num_mel_bins=6", "num_mel_bins: input_layer: conv2d needs at least 7, got 6"),
        ("head=hsoftmax head_conf.tree=tree.json", "tree.json: leaf 7 is 'x', but unit 7 of the table is 'e'; build"),
    ],
)
def test_a_wrong_flag_or_setting_is_one_line(
    corpus: TinyCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys, flags: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    other = UnitTable.from_units("abcdx")
    Tree.huffman(range(len(other)), units=other.units).save("tree.json")
    given = flags if flags.startswith("--") else f"--override_config {flags}"
    found = error_line(run_command(command, [*corpus.arguments(tmp_path / "m"), *given.split()]), capsys)
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
def test_the_module_as_a_program(corpus: TinyCorpus, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "wenet_hs.bin.train", *corpus.arguments(tmp_path / "m", "dtype=fp16")]
    done = subprocess.run(line, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{corpus.config}: dtype: fp16")
