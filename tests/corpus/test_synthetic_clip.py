# SPDX-License-Identifier: Apache-2.0
"""Simulated clips: what they sound like, and files that are made once."""

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import soundfile

from wenet_hs.corpus import espeak
from wenet_hs.corpus.synthetic_clip import (
    SAMPLE_RATE,
    ClipMaker,
    ClipRequest,
    clip_name,
    make_noise,
    render,
)

REQUEST = ClipRequest(
    lang="es",
    sentence="Hola, buenos días.",
    voice="f2",
    rate_wpm=170,
    pitch=50,
    pitch_range=50,
    lead_s=0.1,
    trail_s=0.12,
    peak_db=-6.0,
    noise="white",
    snr_db=30.0,
    noise_seed=7,
)


@pytest.mark.parametrize("kind", ["white", "pink"])
@pytest.mark.parametrize("num_samples", [1, 2047, 2048, 16007])
def test_noise_has_unit_energy_and_its_seed(kind: Literal["white", "pink"], num_samples: int) -> None:
    noise = make_noise(kind, num_samples, seed=1)
    assert noise.shape == (num_samples,) and noise.dtype == np.float32
    assert np.sqrt(np.mean(np.square(noise))) == pytest.approx(1.0, rel=1e-4)
    np.testing.assert_array_equal(noise, make_noise(kind, num_samples, seed=1))
    assert not np.array_equal(noise, make_noise(kind, num_samples, seed=2)) or num_samples == 1


def test_pink_noise_has_equal_energy_in_each_octave_and_white_noise_twice_as_much_in_the_next() -> None:
    for kind, ratio in (("white", 2.0), ("pink", 1.0)):
        power = np.abs(np.fft.rfft(make_noise(kind, 2**17, seed=3))) ** 2  # type: ignore[arg-type]
        octaves = np.array([power[2**k : 2 ** (k + 1)].sum() for k in range(9, 16)])
        np.testing.assert_allclose(octaves[1:] / octaves[:-1], ratio, rtol=0.15)


def test_the_silence_around_the_speech_is_as_asked() -> None:
    samples = render(replace(REQUEST, snr_db=90.0))
    assert samples is not None and samples.dtype == np.float32
    audible = np.flatnonzero(np.abs(samples) > 0.005 * np.abs(samples).max())
    assert audible[0] / SAMPLE_RATE == pytest.approx(REQUEST.lead_s, abs=0.02)
    assert (len(samples) - audible[-1]) / SAMPLE_RATE == pytest.approx(REQUEST.trail_s, abs=0.02)


@pytest.mark.parametrize("peak_db", [-15.0, -1.0])
@pytest.mark.parametrize("snr_db", [5.0, 40.0])
def test_level_and_noise_are_as_asked(peak_db: float, snr_db: float) -> None:
    samples = render(replace(REQUEST, peak_db=peak_db, snr_db=snr_db))
    assert samples is not None
    assert np.abs(samples).max() == pytest.approx(10 ** (peak_db / 20), rel=1e-4)
    lead = samples[: round(0.09 * SAMPLE_RATE)]
    speech = samples[round(0.1 * SAMPLE_RATE) : -round(0.12 * SAMPLE_RATE)]
    noise_energy = np.square(lead).mean()
    assert 10 * np.log10(np.square(speech).mean() / noise_energy - 1) == pytest.approx(snr_db, abs=1.5)


def test_the_same_request_is_the_same_samples() -> None:
    first, other = render(REQUEST), render(replace(REQUEST, voice="m3", lang="it"))
    assert first is not None and other is not None
    np.testing.assert_array_equal(first, render(REQUEST))
    assert len(first) != len(other)


def test_a_shorter_vocal_tract_is_faster_and_higher() -> None:
    quiet = replace(REQUEST, lead_s=0.0, trail_s=0.0, snr_db=60.0)
    plain, shorter = render(quiet), render(replace(quiet, tract=1.25))
    assert plain is not None and shorter is not None
    assert len(plain) / len(shorter) == pytest.approx(1.25, rel=1e-3)
    centroids = []
    for samples in (plain, shorter):
        power = np.square(np.abs(np.fft.rfft(samples)))
        centroids.append((power * np.fft.rfftfreq(len(samples), 1 / SAMPLE_RATE)).sum() / power.sum())
    assert centroids[1] / centroids[0] == pytest.approx(1.25, rel=0.05)


def test_every_field_of_a_request_is_in_the_name() -> None:
    changes = {"lang": "it", "sentence": "Hola", "voice": "f3", "noise": "pink"}
    names = {clip_name(REQUEST, "flac")}
    for field in fields(ClipRequest):
        value = changes.get(field.name) or getattr(REQUEST, field.name) + 1
        names.add(clip_name(replace(REQUEST, **{field.name: value}), "flac"))
    assert len(names) == len(fields(ClipRequest)) + 1
    assert clip_name(REQUEST, "mp3").startswith("simulated_") and clip_name(REQUEST, "mp3").endswith(".mp3")


@pytest.mark.parametrize(("audio_format", "tolerance"), [("flac", 1 / 32000), ("wav", 1 / 32000), ("mp3", None)])
def test_each_format_can_be_read(tmp_path: Path, audio_format: str, tolerance: float | None) -> None:
    clip = ClipMaker(tmp_path, audio_format)(REQUEST)
    path = tmp_path / "es" / "clips" / clip.name
    samples, rate = soundfile.read(path, dtype="float32")
    expected = render(REQUEST)
    assert rate == SAMPLE_RATE and samples.ndim == 1 and expected is not None
    assert clip.duration_s == pytest.approx(len(samples) / rate, abs=1e-6)
    if tolerance:
        np.testing.assert_allclose(samples, expected, atol=tolerance)
    assert clip.duration_s == pytest.approx(len(expected) / rate, abs=0.2)


def test_a_clip_is_spoken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = ClipMaker(tmp_path)
    first = maker(REQUEST)
    path = tmp_path / "es" / "clips" / first.name
    content = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(espeak, "speak", lambda *_, **__: pytest.fail("spoken again"))
        assert maker(REQUEST) == first
    for damage in (b"", content[:20]):
        path.write_bytes(damage)  # what a power cut may leave
        assert maker(REQUEST) == first and path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_silence_is_a_reason_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(espeak, "speak", lambda *_, **__: np.zeros(1000, np.float32))
    clip = ClipMaker(tmp_path)(REQUEST)
    assert clip.duration_s is None and clip.reason == "silent: espeak-ng gives no sound for it"
    assert not (tmp_path / "es").exists()


def test_workers_change_nothing(tmp_path: Path) -> None:
    requests = [replace(REQUEST, noise_seed=seed, voice=voice) for seed in range(3) for voice in ("f1", "m2")]
    here = list(ClipMaker(tmp_path / "here").make(requests, "speak"))
    there = list(ClipMaker(tmp_path / "there", num_workers=2).make(requests, "speak"))
    assert here == there
    for clip in here:
        path = Path("es", "clips", clip.name)
        assert (tmp_path / "here" / path).read_bytes() == (tmp_path / "there" / path).read_bytes()


def kill_process(*_: object, **__: object) -> np.ndarray:
    os.kill(os.getpid(), 9)
    raise AssertionError


def test_a_sentence_that_kills_espeak_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(espeak, "speak", kill_process)  # forked workers see it
    (clip,) = ClipMaker(tmp_path, num_workers=1).make([REQUEST], "speak")
    assert clip.duration_s is None and clip.reason == "crash: espeak-ng ended its process on this sentence"
