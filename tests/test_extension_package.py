# SPDX-License-Identifier: Apache-2.0
"""A head, a frontend and a mode of an installed package from training to a packed model, and
without the package.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from command_line import Capsys, error_line
from sample_extension import importable, install_sample
from tiny_corpus import write_tiny_corpus

from wenet_hs.bin import check_options, cmvn, export, pack, recognize, report, score, transcribe
from wenet_hs.bin import train as train_command
from wenet_hs.bin.main import run_command
from wenet_hs.config.heads import HEADS
from wenet_hs.model.experiment import load_experiment
from wenet_hs.runs.record import read_run

SETTINGS = (
    *(
        "head_conf.scale=8",
        "dataset_conf.frontend=spectrum",
        "dataset_conf.frontend_conf.window=80",
    ),
    *("dataset_conf.fbank_conf=null", "max_epoch=1", "dataset_conf.batch_conf.batch_size=5"),
)
ABSENCE = "which is not installed; run `pip install wenet-hs-sample` if you trust it"


def call(module: ModuleType, *words: object) -> int:
    return run_command(module, [*map(str, words)])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sample package, which a test installs with `importable`."""
    return install_sample(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def folder(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """EXP, trained for two steps with a head and a frontend of the package, EXP/test, and the
    packed model p.zip.
    """
    folder = tmp_path_factory.mktemp("extension")
    corpus = write_tiny_corpus(folder)
    settings = ("--override_config", *SETTINGS)
    with importable(site):
        statistics = (
            "--data_list",
            corpus.train_data,
            "--config",
            corpus.config,
            "--out",
            folder / "global_cmvn",
        )
        assert call(cmvn, *statistics, "--num_workers", 0, *settings) == 0
        arguments = corpus.arguments(folder / "exp", *SETTINGS)
        flags = ("--head", "cosine", "--tree", folder / "tree.json", "--ctc_head", "cosine")
        assert call(train_command, *arguments, *flags) == 0
        modes = ("--modes", "confident", "auto")
        test = ("--test_data", corpus.cv_data, "--result_dir", folder / "exp/test")
        assert call(recognize, "--model_dir", folder / "exp", *test, *modes, "--device", "cpu") == 0
        assert call(pack, "--model_dir", folder / "exp", "--out", folder / "p.zip") == 0
    yield folder


def test_the_model_has_what_the_package_brings(site: Path, folder: Path) -> None:
    with importable(site):
        experiment = load_experiment(folder / "p.zip")
        head, ctc_head = experiment.model.head, experiment.model.ctc.head
        assert head is not None
        assert {type(head).__name__, type(ctc_head).__name__} == {"CosineHead"}
        assert (head.scale, ctc_head.scale) == (8.0, 16.0)
        assert type(experiment.frontend).__name__ == "Spectrum"
        assert experiment.model.encoder.global_cmvn.mean.shape == (40,)


def test_the_package_is_recorded(folder: Path) -> None:
    run = read_run(folder / "exp")
    assert run is not None
    assert run.last_start.packages["wenet-hs-sample"] == "1.2"
    assert (run.head, run.ctc_head) == ("cosine", "cosine")
    assert run.progress is not None and run.progress.step == 2


def test_the_mode_of_the_package_has_decoded(site: Path, folder: Path, capsys: Capsys) -> None:
    modes = {path.parent.name for path in (folder / "exp/test").glob("*/text")}
    assert modes == {
        "confident",
        "ctc_greedy_search",
        "ctc_prefix_beam_search",
        "attention_rescoring",
        "joint",
    }
    (clip, *_) = sorted((folder / "clips").glob("cv*.wav"))
    with importable(site):
        assert call(transcribe, "--model_dir", folder / "p.zip", "--mode", "confident", clip) == 0
    assert str(clip) in capsys.readouterr().out


def test_the_package_is_in_the_record_of_a_recognition(folder: Path) -> None:
    versions = json.loads((folder / "exp/test/rtf.json").read_text("utf-8"))["versions"]
    assert versions["wenet-hs-sample"] == "1.2" and set(versions) == {
        "torch",
        "wenet_hs",
        "wenet-hs-sample",
    }


def test_the_card_of_the_model_names_the_package(site: Path, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "exp", tmp_path / "exp")
    with importable(site):
        assert (
            call(
                score,
                "--ref",
                folder / "cv.list",
                "--hyp",
                tmp_path / "exp/test",
                "--metric",
                "cer",
            )
            == 0
        )
        assert call(pack, "--model_dir", tmp_path / "exp", "--out", tmp_path / "card.md") == 0
        card = (tmp_path / "card.md").read_text("utf-8")
    assert (
        "\n    pip install wenet-hs-sample    # head cosine, frontend spectrum, mode confident\n"
        in card
    )
    assert (
        "has numbers only. Code of the packages above runs; install them only if you trust them.\n"
        in card
    )
    assert "\n- wenet-hs-sample: 1.2\n" in card


def test_a_recipe_can_name_the_head_and_the_mode(site: Path, folder: Path, capsys: Capsys) -> None:
    options = (
        "--config",
        folder / "tiny.yaml",
        "--head",
        "cosine",
        "hsoftmax",
        "--tree",
        "huffman",
    )
    with importable(site):
        assert (
            call(check_options, *options, "--modes", "confident", "auto", "--ctc_head", "cosine")
            == 0
        )
        error = error_line(call(check_options, *options, "--modes", "confidant"), capsys)
        assert error.endswith("attention_rescoring, joint, auto, confident")
    error = error_line(call(check_options, *options), capsys)
    assert error == f"--head cosine: must be one of {', '.join(HEADS)}"


@pytest.mark.parametrize("model", ["exp", "p.zip"])
def test_without_the_package_each_command_names_it(
    folder: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """One line per name of the package; nothing of it is loaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path, clip = folder / model, next((folder / "clips").glob("cv*.wav"))
    commands = {
        transcribe: ("--model_dir", path, clip),
        recognize: (
            "--model_dir",
            path,
            "--test_data",
            folder / "cv.list",
            "--result_dir",
            tmp_path / "test",
        ),
        export: ("--model_dir", path, "--out", tmp_path / "onnx", "--for", "onnxruntime"),
        pack: ("--model_dir", path, "--out", tmp_path / "again.zip"),
    }
    for command, words in commands.items():
        assert call(command, *words) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 2, lines
        for line, name in zip(lines, ("head cosine", "frontend spectrum"), strict=True):
            where, _, found = line.partition(": ")
            assert where.endswith("/train.yaml")
            assert found == f"needs the {name} of the package wenet-hs-sample 1.2, {ABSENCE}"
    assert "wenet_hs_sample" not in sys.modules


def test_without_the_package_a_training_does_not_resume_and_a_report_is_written(
    folder: Path, tmp_path: Path, capsys: Capsys
) -> None:
    shutil.copytree(folder / "exp", tmp_path / "exp")
    arguments = [
        "--config",
        tmp_path / "exp/train.yaml",
        "--model_dir",
        tmp_path / "exp",
        "--device",
        "cpu",
    ]
    lists = ["--train_data", folder / "train.list", "--cv_data", folder / "cv.list"]
    assert call(train_command, *arguments, *lists) == 2
    assert capsys.readouterr().err.count(ABSENCE) == 2
    assert call(report, "--exp", tmp_path / "exp", "--out", tmp_path / "report.html") == 0
    assert "cosine" in (tmp_path / "report.html").read_text("utf-8")
