# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs export` on wrong inputs: one line that says what to do, and no folder.

What it writes, and its warnings.
"""

import logging
import resource
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Capsys, error_line, run_line
from model_folders import write_clip, write_model_folder
from shared_exports import shared_folder

from wenet_hs.bin import export
from wenet_hs.export import job
from wenet_hs.export.checks import warn_about_differences
from wenet_hs.export.onnx_files import OnnxFile
from wenet_hs.export.options import ExportOptions
from wenet_hs.manifest.data_list import write_data_list
from wenet_hs.model.experiment import load_experiment
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
STREAMING: dict[str, Any] = {"encoder_conf": {"causal": True, "use_dynamic_chunk": True}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(line: str, capsys: Capsys) -> str:
    """The line of an export that is refused and writes nothing."""
    before = sorted(Path.cwd().rglob("*"))
    message = error_line(run_line(export, f"--model_dir exp --out out {line}"), capsys)
    assert sorted(Path.cwd().rglob("*")) == before
    return message


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--chunk 8", "--chunk 8: only with --streaming; add it, or leave this out"),
        ("--left 8", "--left 8: only with --streaming; add it, or leave this out"),
        (
            "--streaming --chunk 0",
            "--chunk 0: must be at least 1; the runtimes keep caches of a fixed size",
        ),
        (
            "--streaming --left 0",
            "--left 0: must be at least 1; the runtimes keep caches of a fixed size",
        ),
        (
            "--streaming --left -1",
            "--left -1: must be at least 1; the runtimes keep caches of a fixed size",
        ),
        ("--max_int8_loss 2", "--max_int8_loss 2: must be from 0 to 1"),
        ("--quantize int8", "--quantize int8: its loss is measured on speech; give --test_data"),
        (
            "--quantize int8 --test_data data.list --for wenet",
            "--quantize int8: WeNet's runtime has fixed names of files; use --for onnxruntime or sherpa",
        ),
    ],
)
def test_flags_that_do_not_fit(flags: str, expected: str, folder: Path, capsys: Capsys) -> None:
    assert refused(flags, capsys) == expected


def test_models_that_the_runtime_cannot_run(folder: Path, capsys: Capsys) -> None:
    write_model_folder(folder / "exp")
    settings = "encoder_conf.causal and encoder_conf.use_dynamic_chunk: true (docs/streaming.md)"
    assert refused("--streaming", capsys) == (
        f"--streaming: this model's encoder reads whole utterances; leave it out, or train with {settings}"
    )
    assert refused("--for sherpa", capsys) == (
        "--for sherpa: it computes features of 16000 Hz, 80 bins, 25 ms every 10 ms; this model has 16000, 20, 25, 10; "
        "train with these"
    )
    write_model_folder(folder / "attention", model_conf={"ctc_weight": 0.0})
    assert refused("--for sherpa --model_dir attention", capsys) == (
        "--for sherpa: every runtime searches with CTC, and this model was trained without it; train it with "
        "model_conf.ctc_weight above 0"
    )
    write_model_folder(folder / "ctc", decoder="none", decoder_conf=None, model_conf=None)
    assert refused("--for wenet --model_dir ctc", capsys) == (
        "--for wenet: WeNet's runtime loads a decoder, and this model has none; use --for sherpa"
    )
    write_model_folder(folder / "static", encoder_conf={"causal": True, "static_chunk_size": 4})
    assert refused("--streaming --chunk 16 --model_dir static", capsys) == (
        "--chunk 16: this model was trained with chunks of 4; use that size"
    )


def test_folders_and_lists(folder: Path, capsys: Capsys) -> None:
    write_model_folder(folder / "exp")
    (folder / "out").mkdir()
    (folder / "out/model.onnx").touch()
    assert refused("", capsys) == "out: is not an empty folder; name another one, or delete it"
    assert refused("--out exp/units.txt", capsys).startswith(
        "exp/units.txt: is not an empty folder"
    )
    (folder / "out/model.onnx").unlink()
    write_data_list("data.list", [write_clip(folder / "short.wav", 0.05)])
    assert refused("--test_data data.list", capsys) == (
        "data.list: no clip is long enough for the model; give a list of longer speech"
    )
    assert refused("--model_dir nowhere", capsys).startswith("nowhere: no such file or folder")


def test_extra_that_is_not_installed(
    folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    expected = "wenet-hs export: onnxruntime is not installed; pip install 'wenet_hs[export]'"
    assert refused("", capsys) == expected


# ---- warnings


def warnings(
    folder: Path, caplog: pytest.LogCaptureFixture, units: str = "▁abcdefg", **flags: Any
) -> list[str]:
    """The messages for a model of 80 bins with the profile `sherpa`."""
    experiment = load_experiment(folder / "exp")
    experiment = replace(experiment, tokenizer=make_tokenizer("char", UnitTable.from_units(units)))
    caplog.clear()
    warn_about_differences(experiment, ExportOptions(model_dir="exp", out=Path("out"), **flags))
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_features_of_another_profile_are_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model_folder(
        folder / "exp",
        dataset_conf={"fbank_conf": {"num_mel_bins": 20, "profile": "sherpa"}},
        **STREAMING,
    )
    assert warnings(folder, caplog) == []
    assert warnings(folder, caplog, runtime="sherpa", streaming=True) == []
    (offline,) = warnings(folder, caplog, runtime="sherpa")
    assert "with dither (slot wenet_ctc)" in offline
    (wenet,) = warnings(folder, caplog, runtime="wenet")
    expected = (
        "features: trained with the profile {}, and this runtime computes those of {}: more errors"
    )
    assert wenet == expected.format("sherpa", "wenet")
    write_model_folder(
        folder / "other/exp", dataset_conf={"fbank_conf": {"num_mel_bins": 20}}, **STREAMING
    )
    assert warnings(folder / "other", caplog, runtime="wenet", streaming=True) == []
    assert warnings(folder / "other", caplog, runtime="sherpa") == []
    (stream,) = warnings(folder / "other", caplog, runtime="sherpa", streaming=True)
    assert stream == expected.format("wenet", "sherpa")
    (alphabet,) = warnings(folder / "other", caplog, units="ƙabcdefg", runtime="sherpa")
    assert (
        alphabet
        == "units: sherpa-onnx takes an alphabet whose highest byte is 0xC6 for bytes: wrong texts"
    )


# ---- exports that begin and then fail


SMALL: dict[str, Any] = {
    "encoder_conf": {"num_blocks": 1},
    "decoder": "none",
    "decoder_conf": None,
    "model_conf": None,
}


@pytest.mark.slow
def test_a_file_that_differs_is_not_written(
    folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model_folder(folder / "exp", **SMALL)
    monkeypatch.setattr(job, "TOLERANCE", 0.0)
    assert refused("", capsys).startswith("exp: onnxruntime differs from PyTorch by ")


@pytest.mark.slow
@pytest.mark.parametrize("output", [1, 2])
def test_lengths_and_memory_of_a_file_are_compared_too(
    folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, output: int
) -> None:
    """Also with one clip: it is then padded to another one, which is its first half."""
    write_model_folder(folder / "exp", encoder_conf={"num_blocks": 1})
    run = OnnxFile.run

    def wrong(file: OnnxFile, *inputs: Any) -> list[torch.Tensor]:
        outputs = list(run(file, *inputs))
        if len(inputs) == 2 and len(inputs[0]) == 2:
            outputs[output] = outputs[output] + 1
        return outputs

    monkeypatch.setattr(OnnxFile, "run", wrong)
    assert refused("", capsys).startswith("exp: onnxruntime differs from PyTorch by ")


@pytest.mark.slow
def test_a_full_disk(folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model_folder(folder / "exp", **SMALL)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        code = run_line(export, "--model_dir exp --out out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    line = error_line(code, capsys)
    assert line.endswith("model.onnx: File too large; check the path, its permissions and the disk")
    assert not (folder / "out").exists() and [path.name for path in folder.iterdir()] == ["exp"]


@pytest.mark.slow
def test_8_bit_weights_that_lose_too_much(
    tmp_path_factory: pytest.TempPathFactory,
    folder: Path,
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = shared_folder(tmp_path_factory)

    def damage(path: Path) -> Path:
        """Weights of 0 in the last normalization: the same unit in each frame."""
        proto, quantized = onnx.load(path), path.with_suffix(".int8.onnx")
        (weight,) = (
            one for one in proto.graph.initializer if one.name == "encoder.after_norm.weight"
        )
        weight.raw_data = bytes(len(weight.raw_data))
        onnx.save(proto, quantized)
        return quantized

    monkeypatch.setattr(job, "quantize", damage)
    flags = f"--model_dir {shared.model('whole')} --test_data {shared.clips} --for sherpa --quantize int8"
    message = refused(flags, capsys)
    assert (
        " of the units of fp32, more than 5.0%; leave out --quantize, or raise --max_int8_loss"
        in message
    )


@pytest.mark.slow
def test_what_is_written_and_printed(folder: Path, capsys: Capsys) -> None:
    write_model_folder(folder / "exp", **SMALL)
    (folder / "out").mkdir()  # an empty folder may be given
    assert run_line(export, "--model_dir exp --out out") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("onnxruntime differs from PyTorch by at most ") and printed[
        0
    ].endswith(" on noise")
    assert printed[-1].startswith("out: model.onnx ") and len(printed) == 2
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        "README.md",
        "model.onnx",
        "tokens.txt",
    ]
    assert (folder / "out/tokens.txt").read_text("utf-8") == (folder / "exp/units.txt").read_text(
        "utf-8"
    )
    assert printed[0] in (folder / "out/README.md").read_text("utf-8")
