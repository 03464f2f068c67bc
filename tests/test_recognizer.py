# SPDX-License-Identifier: Apache-2.0
"""Speech to text from Python: all kinds of input give the same text, and wrong input is an error."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile
import torch
from model_folders import HSOFTMAX, TABLE, noise, write_model_folder

import wenet_hs.recognizer
from wenet_hs.decode import MODES, DecodeOptions
from wenet_hs.model.modes import modes_reading
from wenet_hs.recognizer import Recognizer, load_model
from wenet_hs.tree.errors import CheckpointError, ConfigError, DataError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("models") / "softmax")


@pytest.fixture(scope="module")
def recognizer(folder: Path) -> Recognizer:
    return load_model(folder, options=DecodeOptions(beam_size=4))


@pytest.fixture(scope="module")
def clip(folder: Path) -> Path:
    soundfile.write(folder / "clip.wav", noise(0.8), 16000, subtype="FLOAT")
    return folder / "clip.wav"


def test_every_kind_of_input_gives_the_same_text(recognizer: Recognizer, clip: Path) -> None:
    expected = recognizer.transcribe(clip, mode="ctc_greedy_search")
    wave = noise(0.8)
    read_only = np.frombuffer(wave.tobytes(), dtype=np.float32)
    arrays = (
        wave.astype(np.float64),
        torch.from_numpy(wave)[None],
        np.stack([wave, wave]),
        read_only,
    )
    for source in (clip.read_bytes(), *((array, 16000.0) for array in arrays)):
        found = recognizer.transcribe(source, mode="ctc_greedy_search")
        assert found.text == expected.text
        assert found.score == pytest.approx(expected.score, abs=1e-3)
        assert found.duration == pytest.approx(0.8)


def test_integers_channels_and_other_rates(recognizer: Recognizer, tmp_path: Path) -> None:
    integers = (noise(0.8) * 32767).astype(np.int16)
    soundfile.write(tmp_path / "16bit.wav", integers, 16000)
    score = recognizer.transcribe(tmp_path / "16bit.wav").score
    for samples in (integers, integers.astype(np.int32) << 16):
        assert recognizer.transcribe((samples, 16000)).score == pytest.approx(score, abs=1e-3)
    left, right = noise(0.8, seed=1), noise(0.8, seed=2)
    stereo = recognizer.transcribe((np.stack([left, right]), 16000))
    assert stereo == recognizer.transcribe(((left + right) / 2, 16000))
    soundfile.write(tmp_path / "44k.wav", noise(0.8, rate=44100), 44100, subtype="FLOAT")
    resampled = recognizer.transcribe((noise(0.8, rate=44100), 44100))
    assert resampled.duration == pytest.approx(0.8, abs=1e-3)
    assert resampled.text == recognizer.transcribe(tmp_path / "44k.wav").text


def test_too_little_memory_is_one_line(
    recognizer: Recognizer, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        wenet_hs.recognizer,
        "decode_pieces",
        Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory.")),
    )
    line = rf"^out of memory with a batch of 1, the longest of 0.8 s \({clip} at 0.0 s\); lower --max_segment_s$"
    for transcribe in (recognizer.transcribe, recognizer.transcribe_recording):
        with pytest.raises(ConfigError, match=line):
            transcribe(clip)


@pytest.mark.parametrize("mode", MODES)
def test_fields_of_a_transcript(recognizer: Recognizer, clip: Path, mode: str) -> None:
    found = recognizer.transcribe(clip, mode=mode)
    assert (found.text, found.score) == (found.nbest[0].text, found.nbest[0].score)
    assert len(found.nbest) == 1 if MODES[mode].is_greedy else 2 <= len(found.nbest) <= 4
    for alternative in found.nbest:
        shown = [
            {"▁": " ", "<unk>": "⁇", "<blank>": "", "<sos/eos>": ""}.get(unit, unit)
            for unit in alternative.units
        ]
        assert alternative.text == "".join(shown)
        assert set(alternative.units) <= set(TABLE.units)
    if found.units is not None:
        assert tuple(unit.text for unit in found.units) == found.nbest[0].units
        times = [second for unit in found.units for second in (unit.start, unit.end)]
        assert times == sorted(times)
        assert all(0 < second < 0.8 for second in times)
    # A mode without CTC may write more units than there are frames.
    assert found.units is not None or "ctc" not in MODES[mode].branches
    text, facts = str(found).split("\n")
    units = "without times" if found.units is None else len(found.units)
    assert text == found.text
    assert facts == f"0.80 s, score {found.score:.2f}, n-best {len(found.nbest)}, units {units}"


def test_warnings_about_silence_and_about_audio_too_short_for_the_encoder(
    recognizer: Recognizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recognizer.transcribe((noise(0.5), 16000))
    assert not caplog.text
    soundfile.write(tmp_path / "silent.wav", np.full(8000, 0.25), 16000)
    recognizer.transcribe(tmp_path / "silent.wav")
    assert (
        f"{tmp_path / 'silent.wav'}: no speech was found in 0.500 s; its text is empty"
        in caplog.text
    )
    found = recognizer.transcribe((noise(0.05), 16000))
    assert (found.text, len(found.nbest), found.units) == ("", 1, None)
    assert "the audio: no speech was found in 0.050 s; its text is empty" in caplog.text
    soundfile.write(tmp_path / "short.wav", noise(0.5), 16000)
    recognizer.transcribe_recording(tmp_path / "short.wav", spans=[(0.1, 0.15)])
    assert (
        f"{tmp_path / 'short.wav'}: 0.050 s is too short for the encoder: its text is empty"
        in caplog.text
    )
    with pytest.raises(
        DataError,
        match=r"short\.wav: a segment from 0\.6 to 1 s has no audio in the 0\.50 s; correct",
    ):
        recognizer.transcribe_recording(tmp_path / "short.wav", spans=[(0.0, 0.5), (0.6, 1.0)])


def test_the_length_of_a_clip_that_is_too_short_is_not_that_of_a_silent_one(
    recognizer: Recognizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    soundfile.write(
        tmp_path / "a.wav", np.concatenate((noise(0.5), np.zeros(8000, np.float32))), 16000
    )
    recognizer.transcribe_recording(tmp_path / "a.wav", spans=[(0.1, 0.15), (0.8, 0.82)])
    assert (
        "a.wav: 0.050 s is too short for the encoder" in caplog.text
        and "0.020 s" not in caplog.text
    )


def test_no_segment_is_longer_than_the_encoder_reads_as_one_whole(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    recognizer, path = load_model(folder), tmp_path / "a.wav"
    soundfile.write(path, noise(11.0), 16000, subtype="FLOAT")
    spans, mode = [(0.5, 11.0)], "ctc_greedy_search"
    expected = recognizer.transcribe(path, mode=mode, max_segment_s=4)
    of_spans = recognizer.transcribe_recording(path, mode=mode, max_segment_s=4, spans=spans)
    experiment = recognizer._experiment
    monkeypatch.setattr(experiment.model.encoder, "longest_s", 3.0)  # the shortest segment is 4 s
    monkeypatch.setattr(experiment.frontend, "window_s", 4.0)  # of all models with these features
    assert (
        recognizer.transcribe(path, mode=mode)
        == expected
        != recognizer.transcribe(path, mode=mode, max_segment_s=0)
    )
    assert recognizer.transcribe_recording(path, mode=mode, spans=spans) == of_spans
    (line,) = caplog.messages
    assert line.startswith(
        f"{path}: the encoder cuts clips longer than 4 s in the middle of words: 1 of 1; with --max"
    )


@pytest.mark.parametrize("kind", ["zeros", "offset", "dither", "click", "speech"])
@pytest.mark.parametrize("rate", [16000, 44100])
def test_a_recording_without_speech_has_no_text_whether_it_is_cut_or_not(
    recognizer: Recognizer, tmp_path: Path, kind: str, rate: int
) -> None:
    samples = np.zeros(2 * rate, np.float32)
    samples += {
        "offset": 0.25,
        "dither": 4e-5 * np.random.default_rng(0).uniform(-1, 1, 2 * rate),
    }.get(kind, 0.0)
    samples[rate : rate + 100] += 0.5 if kind == "click" else 0.0
    if kind == "speech":
        samples[rate // 2 : rate // 2 + rate] = np.resize(noise(1.0), rate)
    path = tmp_path / "a.wav"
    soundfile.write(path, samples, rate, subtype="FLOAT")
    found, segments = recognizer.transcribe(path), recognizer.transcribe_recording(path).segments
    assert (bool(found.text), len(segments)) == ((True, 1) if kind == "speech" else (False, 0))
    assert found.text == found.nbest[0].text
    given = recognizer.transcribe_recording(path, spans=[(0.0, 0.4), (0.5, 1.5)]).segments
    if kind != "offset" or rate == 16000:  # a constant has edges after resampling
        assert [bool(one.text) for one in given] == [False, kind in ("speech", "click")]


def test_options_of_another_mode_are_an_error_or_one_warning(
    folder: Path, clip: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "lm.arpa"
    path.write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n-1\ta\n-1\t</s>\n\n\\end\\\n", "utf-8")
    recognizer = load_model(folder, options=DecodeOptions(lm_weight=0.1), lm=path)
    with pytest.raises(
        ConfigError, match=r"ctc_greedy_search: uses no language model; add ctc_prefix_beam_search"
    ):
        recognizer.transcribe(clip, mode="ctc_greedy_search")
    caplog.clear()
    recognizer = load_model(folder, options=DecodeOptions(beam_size=2, finished_list=True))
    for _ in range(2):
        recognizer.transcribe(clip, mode="ctc_greedy_search")
    (warning,) = caplog.messages
    readers = ", ".join(modes_reading("finished_list"))
    assert warning == f"finished_list: read only by {readers}, no effect on ctc_greedy_search"


def test_folders_of_both_heads_and_of_wenet(
    recognizer: Recognizer, clip: Path, tmp_path: Path
) -> None:
    wenet = load_model(
        write_model_folder(tmp_path / "wenet", wenet=True), options=DecodeOptions(beam_size=4)
    )
    assert wenet.transcribe(clip).text == recognizer.transcribe(clip).text
    tree = load_model(write_model_folder(tmp_path / "hsoftmax", **HSOFTMAX))
    assert tree.transcribe(clip, mode="attention").nbest


def test_load_model_is_at_the_top_of_the_package(folder: Path, clip: Path) -> None:
    options = wenet_hs.DecodeOptions(beam_size=4)
    assert all(hasattr(wenet_hs, name) for name in wenet_hs.__all__)
    assert set(wenet_hs.__all__) <= set(dir(wenet_hs))
    recognizer = wenet_hs.load_model(str(folder), checkpoint=folder / "final.pt", options=options)
    assert isinstance(recognizer.transcribe(clip), wenet_hs.Transcript)
    with pytest.raises(AttributeError, match="module 'wenet_hs' has no attribute 'load_modle'"):
        _ = wenet_hs.load_modle
    assert importlib.metadata.version("wenet_hs") == wenet_hs.__version__


def test_importing_the_package_does_not_import_torch() -> None:
    program = "import sys, wenet_hs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


SECOND = np.zeros(16000, np.float32)
WRONG_AUDIO: list[tuple[Any, str]] = [
    (b"", "audio of 0 bytes: empty"),
    (
        (SECOND[:0], 16000),
        r"waveform: shape \(0,\), expected \(samples,\) or \(channels, samples\)",
    ),
    ((SECOND[None, None], 16000), r"waveform: shape \(1, 1, 16000\), expected \(samples,\)"),
    (
        (SECOND[:, None], 16000),
        r"waveform: 16000 channels; expected \(channels, samples\), transpose it",
    ),
    (
        (SECOND.astype(int), 16000),
        "waveform: torch.int64; expected floats, or integers of 16 or 32 bits",
    ),
    ((SECOND + 3000, 16000), r"waveform: a peak of 3000; floats must be finite and in \[-1, 1\]"),
    ((SECOND * np.nan, 16000), "waveform: a peak of nan; floats must be finite"),
    ((SECOND, 0), "sample rate 0: must be above 0 Hz"),
    ((SECOND, "16000"), r"audio: a tuple of \(ndarray, str\), expected \(waveform, sample_rate\)"),
    (
        (SECOND,),
        r"audio: a tuple of \(ndarray\), expected \(waveform, sample_rate\), the rate a number",
    ),
]


@pytest.mark.parametrize(("source", "message"), WRONG_AUDIO)
def test_wrong_audio(recognizer: Recognizer, source: Any, message: str) -> None:
    with pytest.raises((DataError, ValueError), match=message):
        recognizer.transcribe(source)


def test_wrong_files_modes_and_devices(
    folder: Path, recognizer: Recognizer, clip: Path, tmp_path: Path
) -> None:
    (tmp_path / "page.wav").write_text("<html>")
    for name, fault in (
        ("gone.wav", "missing; restore the file"),
        ("page.wav", "not audio that can be read"),
    ):
        with pytest.raises(DataError, match=f"{name}: {fault}"):
            recognizer.transcribe(tmp_path / name)
    with pytest.raises(
        CheckpointError,
        match=r"nowhere: no such file or folder; give the --model_dir of a training",
    ):
        load_model(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"mode 'rover': must be one of ctc_greedy_search, "):
        recognizer.transcribe(clip, mode="rover")
    with pytest.raises(
        ConfigError, match=r"--device abacus: not a device; use cpu, cuda or cuda:N"
    ):
        load_model(folder, "abacus")
