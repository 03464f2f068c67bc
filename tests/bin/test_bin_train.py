# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs train` as a command: what it prints, and one line with exit code 2 for each fault of a user."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_corpus import TinyCorpus, outcome, write_tiny_corpus

from wenet_hs.bin import train as command
from wenet_hs.bin.command import run_command
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import Tree


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TinyCorpus:
    return write_tiny_corpus(tmp_path_factory.mktemp("tiny"))


def test_it_trains_and_says_where_the_model_is(
    corpus: TinyCorpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(command, corpus.arguments(tmp_path / "m", "max_epoch=1")) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'm' / 'final.pt'}: trained\n"
    assert outcome(tmp_path / "m") == outcome(corpus.train(tmp_path / "same", "max_epoch=1"))


def test_flags_reach_the_training(corpus: TinyCorpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = corpus.train(tmp_path / "first", "max_epoch=1")
    more = ["--checkpoint", str(first / "final.pt"), "--resume", "never", "--override_config", "max_epoch=1", "seed=3"]
    more += ["--override_config", "accum_grad=2"]
    assert run_command(command, [*corpus.arguments(tmp_path / "m"), *more]) == 0
    assert outcome(tmp_path / "m")["step"] == 2
    assert run_command(command, [*corpus.arguments(tmp_path / "m"), *more]) == 2
    assert "--resume is never" in capsys.readouterr().err


def fault(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    assert run_command(command, arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert "Traceback" not in error
    return error.rstrip("\n")


@pytest.mark.parametrize("flag", ["--train_data", "--cv_data", "--config"])
def test_a_missing_file_is_one_line(
    corpus: TinyCorpus, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    arguments = corpus.arguments(tmp_path / "m")
    arguments[arguments.index(flag) + 1] = str(tmp_path / "nowhere")
    found = fault(capsys, arguments)
    assert found.startswith(f"{tmp_path / 'nowhere'}: cannot be read (No such file or directory)"), found


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "tokenizer_conf.symbol_table_path=no.txt",
            "no.txt: cannot be read (No such file or directory); check the path",
        ),
        ("cmvn_conf.cmvn_file=none", "none: cannot be read (No such file or directory); check the path in the config"),
        (
            "dtype=fp16",
            "tiny.yaml: dtype: fp16 is emulated by this processor, some 50 times slower than fp32; use",
        ),
        ("optim_conf.lrr=1", "optim_conf.lrr: unknown key; did you mean `lr`?"),
        ("output_dim=99", "output_dim: 99, expected 8"),
    ],
)
def test_a_fault_in_the_config_is_one_line(
    corpus: TinyCorpus, tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, expected: str
) -> None:
    assert expected in fault(capsys, corpus.arguments(tmp_path / "m", override))


def test_a_tree_of_other_units_is_one_line(
    corpus: TinyCorpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = UnitTable.from_units("abcdx")
    Tree.huffman(range(len(other)), units=other.units).save(tmp_path / "tree.json")
    found = fault(capsys, corpus.arguments(tmp_path / "m", "head=hsoftmax", f"head_conf.tree={tmp_path / 'tree.json'}"))
    assert "tree.json: leaf 7 is 'x', but unit 7 of the table is 'e'; build the tree again" in found


@pytest.mark.parametrize("device", ["cuda:77", "nonsense"])
def test_an_absent_device_is_one_line(
    corpus: TinyCorpus, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: str
) -> None:
    assert fault(capsys, [*corpus.arguments(tmp_path / "m"), "--device", device]).startswith(f"--device {device}: ")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("size", "line"),
    [
        ("2", "WORLD_SIZE=2 without MASTER_ADDR and MASTER_PORT; start it with torchrun"),
        ("many", "WORLD_SIZE=many: must be a whole number of at least 1; set it so, or unset it"),
    ],
)
def test_a_launcher_that_says_too_little_is_one_line(
    corpus: TinyCorpus,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    size: str,
    line: str,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    assert fault(capsys, corpus.arguments(tmp_path / "m")) == line
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert run_command(command, corpus.arguments(tmp_path / "m", "max_epoch=1")) == 0


def test_an_unreadable_clip_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    clip = corpus.folder / "clips" / "train4.wav"
    clip.write_bytes(b"RIFF")
    for workers in ("0", "1"):
        strict = ("dataset_conf.max_bad_clips=0", f"num_workers={workers}")
        found = fault(capsys, corpus.arguments(tmp_path / "m", *strict))
        assert "utterance train4" in found
        assert str(clip) in found


@pytest.mark.slow
def test_as_a_program_a_fault_is_exit_code_2_without_a_traceback(corpus: TinyCorpus, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "wenet_hs.bin.train", *corpus.arguments(tmp_path / "m", "dtype=fp16")]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{corpus.config}: dtype: fp16")
    assert done.stdout == ""
    helped = subprocess.run([*line[:3], "--help"], capture_output=True, text=True)
    assert helped.returncode == 0
    assert "Example: wenet-hs train --config" in helped.stdout


def test_the_provenance_has_the_command_line(
    corpus: TinyCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/wenet-hs", "train", "--config", "a b.yaml"])
    assert run_command(command, corpus.arguments(tmp_path / "m", "max_epoch=1")) == 0
    text = (tmp_path / "m" / "train.yaml").read_text()
    assert "command: wenet-hs train --config 'a b.yaml'" in text
    assert json.loads((tmp_path / "m" / "metrics.jsonl").read_text().splitlines()[0])["step"] == 1
