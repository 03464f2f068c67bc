# SPDX-License-Identifier: Apache-2.0
"""The command in the README.md of each kind of export runs and finds the texts of PyTorch.

Dimension key: N samples, T frames, F features.
"""

import argparse
import json
import logging
import os
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from model_folders import noise, write_model_folder
from pretrained_models import write_pretrained
from shared_exports import Shared, shared_folder

import wenet_hs
from wenet_hs.export.checks import check_model
from wenet_hs.export.clips import read_comparison_clips
from wenet_hs.export.job import export_model
from wenet_hs.export.options import ExportOptions
from wenet_hs.export.readme import make_readme
from wenet_hs.frontends.fbank import Fbank
from wenet_hs.frontends.whisper_mel import WhisperMel
from wenet_hs.manifest.data_list import Utterance, read_data_list, write_data_list
from wenet_hs.model.experiment import load_experiment
from wenet_hs.tree.errors import ConfigError, DataError

onnxruntime = pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[2]
DECODE_WAV = ROOT / "examples/runtime/decode_wav.py"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return shared_folder(tmp_path_factory)


def readme_commands(folder: Path) -> list[list[str]]:
    """The arguments of each command in the README.md of an export."""
    lines = (folder / "README.md").read_text("utf-8").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("    ")]


def run_readme(folder: Path, clip: str) -> str:
    """What the command of an export prints, run where its README says, on a clip."""
    (command,) = readme_commands(folder)
    folder_of_command = folder
    if command[0] == "python":
        folder_of_command = ROOT  # as the command says
        command = [sys.executable, *command[1:]]
    places = {"THIS_FOLDER": str(folder), "clip.wav": clip}
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if shutil.which(command[0], path=environment["PATH"]) is None:
        pytest.skip(f"{command[0]} is not installed: pip install sherpa-onnx-bin")
    done = subprocess.run(
        [places.get(argument, argument) for argument in command],
        cwd=folder_of_command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def sherpa_text(printed: str) -> str:
    """The text in the result that a program of sherpa-onnx prints as JSON."""
    (result,) = (
        json.loads(line)
        for line in printed.splitlines()
        if line.startswith("{") and '"text"' in line
    )
    return str(result["text"]).strip()


def shown_text(text: str) -> str:
    """A text of sherpa-onnx, which also shows the units that this package leaves out or replaces."""
    return text.replace("<sos/eos>", "").replace("<unk>", "⁇").strip()


def decode_wav_text(printed: str) -> str:
    (line,) = printed.splitlines()
    return line.split("\t")[1]


# ---- models of features


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "runtime", "streaming", "program"),
    [
        ("whole", "sherpa", False, "sherpa-onnx-offline"),
        ("stream", "sherpa", True, "sherpa-onnx"),
        ("whole", "onnxruntime", False, "python"),
        ("stream", "onnxruntime", True, "python"),
    ],
)
def test_commands_of_models_of_features(
    shared: Shared, model: str, runtime: str, streaming: bool, program: str
) -> None:
    export = shared.export(model, runtime, streaming=streaming)
    assert [command[0] for command in readme_commands(export)] == [program]
    read_text = decode_wav_text if program == "python" else sherpa_text
    clips = read_data_list(shared.clips)[2:5]
    texts = [read_text(run_readme(export, clip.wav)) for clip in clips]
    assert texts == [clip.txt for clip in clips]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["whole", "stream"])
def test_the_command_of_wenets_runtime(shared: Shared, model: str) -> None:
    """Its program is not run: its flags are read as in its `params.h` and `decoder_main.cc`, and
    then its calls.
    """
    from wenet_runtime import WenetRuntime

    export = shared.export(model, "wenet", streaming=model == "stream")
    ((program, *arguments),) = readme_commands(export)
    flags = argparse.ArgumentParser()
    for name in ("onnx_dir", "unit_path", "wav_path"):
        flags.add_argument(f"--{name}", required=True)
    for name in ("language_type", "num_bins", "sample_rate", "chunk_size", "num_left_chunks"):
        flags.add_argument(f"--{name}", type=int)
    given = flags.parse_args(arguments)
    assert program == "decoder_main" and (export / given.unit_path).is_file()
    runtime = WenetRuntime(export / given.onnx_dir)
    assert (given.chunk_size, given.num_left_chunks) == (
        runtime.conf["chunk_size"],
        runtime.conf["left_chunks"],
    )
    profile = "sherpa" if model == "stream" else "wenet"  # of the training
    frontend = Fbank(given.sample_rate, num_mel_bins=given.num_bins, profile=profile)
    clip = read_data_list(shared.clips)[2]
    wave_N, rate = soundfile.read(clip.wav, dtype="float32")
    assert rate == given.sample_rate
    best_T = runtime.forward(frontend.compute(torch.from_numpy(wave_N)).numpy()).argmax(1)
    units = [
        line.rsplit(" ", 1)[0]
        for line in (export / given.unit_path).read_text("utf-8").splitlines()
    ]
    kept = [
        units[unit]
        for unit in torch.unique_consecutive(torch.from_numpy(best_T)).tolist()
        if unit != 0
    ]
    assert "".join(kept).replace("▁", " ") == clip.txt


# ---- pretrained encoders


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "runtime"),
    [
        ("xls-r", "sherpa"),
        ("xls-r", "onnxruntime"),
        ("whisper", "onnxruntime"),
        ("w2v-bert-relative", "onnxruntime"),
    ],
)
def test_commands_of_pretrained_encoders(kind: str, runtime: Any, tmp_path: Path) -> None:
    folder = write_pretrained(tmp_path / "exp", kind)
    export_model(ExportOptions(model_dir=str(folder), out=tmp_path / "out", runtime=runtime))
    recognizer = wenet_hs.load_model(folder)
    different = set()
    for seed in range(3):
        clip = tmp_path / f"clip{seed}.wav"
        soundfile.write(clip, noise(1.3 + seed, seed=seed), 16000, subtype="PCM_16")
        printed = run_readme(tmp_path / "out", str(clip))
        text = (
            decode_wav_text(printed)
            if runtime == "onnxruntime"
            else shown_text(sherpa_text(printed))
        )
        assert text == recognizer.transcribe(clip, mode="ctc_greedy_search").text
        different.add(text)
    assert len(different) == 3


@pytest.mark.slow
def test_whisper_and_clips_over_30_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, clips = write_pretrained(tmp_path / "exp", "whisper"), []
    for seconds in (2.0, 31.0, 29.6):
        path = tmp_path / f"{seconds}.wav"
        soundfile.write(path, noise(seconds), 16000, subtype="PCM_16")
        clips.append(Utterance(key=path.stem, wav=str(path), txt="a", duration=seconds))
    write_data_list(tmp_path / "all.list", clips)
    write_data_list(tmp_path / "long.list", clips[1:2])
    options = ExportOptions(
        model_dir=str(folder), out=tmp_path / "out", test_data=tmp_path / "all.list"
    )
    with caplog.at_level(logging.WARNING):
        (line,) = export_model(options)
    assert line.endswith(" on 2 clips")
    assert (
        "all.list: 1 of 3 clips are not compared: this encoder reads at most 29.6 s when it is exported"
        in caplog.text
    )
    expected = "long.list: no clip of at most 29.6 s, the longest that this encoder reads when it is exported; give a"
    with pytest.raises(DataError, match=expected):
        export_model(
            ExportOptions(
                model_dir=str(folder), out=tmp_path / "new", test_data=tmp_path / "long.list"
            )
        )
    command = [sys.executable, str(DECODE_WAV), str(tmp_path / "out"), clips[1].wav]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert (
        done.stderr
        == f"{clips[1].wav}: 31.0 s, but this model reads at most 29.6 s; cut it at pauses\n"
    )
    assert decode_wav_text(run_readme(tmp_path / "out", clips[2].wav))


# ---- without an export


def test_clips_of_any_length_for_other_models(tmp_path: Path) -> None:
    write_model_folder(tmp_path / "exp")
    soundfile.write(tmp_path / "long.wav", noise(40.0), 16000)
    write_data_list(
        tmp_path / "long.list", [Utterance(key="l", wav=str(tmp_path / "long.wav"), txt="a")]
    )
    options = ExportOptions(model_dir="exp", out=Path("out"), test_data=tmp_path / "long.list")
    clips = read_comparison_clips(load_experiment(tmp_path / "exp"), options)
    assert [clip.key for clip in clips.utterances] == ["l"] and len(clips.features[0]) == 3998


@pytest.mark.parametrize("silence_s", [0.4, 1.0])
def test_whispers_features_in_numpy(silence_s: float) -> None:
    whisper_mel = runpy.run_path(str(DECODE_WAV))["whisper_mel"]
    frontend = WhisperMel(80, silence_s=silence_s)
    for num_samples in (400, 16000, 33333):
        wave_N = noise(num_samples / 16000, seed=num_samples)
        features_TF = whisper_mel(wave_N.astype(np.float64), 80, frontend.silence_frames)
        expected_TF = frontend.compute(torch.from_numpy(wave_N)).numpy()
        np.testing.assert_allclose(features_TF, expected_TF, atol=1e-4)


def test_features_that_no_program_computes(tmp_path: Path) -> None:
    """Then the README names no command, and a runtime with fixed windows is refused."""
    fbank = {"num_mel_bins": 20, "frame_length": 32.0}
    write_model_folder(tmp_path / "windows", dataset_conf={"fbank_conf": fbank})
    nothing = "No program of wenet_hs or of the runtimes computes these features; docs/export.md describes the inputs."
    windows = load_experiment(tmp_path / "windows")
    assert nothing in make_readme(windows, "onnxruntime", None, [])
    expected = "--for wenet: it computes features of 25 ms every 10 ms; this model has 32, 10; train with these, or use"
    with pytest.raises(ConfigError, match=expected):
        check_model(windows, ExportOptions(model_dir="windows", out=Path("out"), runtime="wenet"))
    check_model(
        windows, ExportOptions(model_dir="windows", out=Path("out"), runtime="onnxruntime")
    )  # as it says
