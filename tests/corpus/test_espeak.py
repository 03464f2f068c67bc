# SPDX-License-Identifier: Apache-2.0
"""espeak-ng: repeatable samples, every language of the paper, what a request sounds like, files
that are made once.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import espeakng_loader
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from wenet_hs.corpus import espeak
from wenet_hs.corpus.espeak import (
    SAMPLE_RATE,
    ClipMaker,
    ClipRequest,
    clip_name,
    make_noise,
    render_clip,
    voice_name,
)
from wenet_hs.tree.errors import DataError

PAPER = {
    "ca": "Bon dia a tothom", "es": "Hola, ¿qué tal estás?", "fr": "Où est la bibliothèque ?",
    "it": "Il ragazzo corre veloce", "pt": "A lição começa amanhã", "be": "Добрай раніцы, сябры",
    "cs": "Příliš žluťoučký kůň", "pl": "Zażółć gęślą jaźń", "ru": "Сегодня утром шёл дождь",
    "uk": "Ще не вмерла Україна", "ba": "Һаумыһығыҙ, дуҫтар", "ky": "Кутман таң, достор",
    "tr": "Günaydın, çocuklar", "tt": "Хәерле көн, дуслар", "uz": "Xayrli tong, do'stlar",
}  # fmt: skip
REQUEST = ClipRequest(
    lang="es", sentence="Hola, buenos días.", voice="f2", rate_wpm=170, pitch=50, pitch_range=50, lead_s=0.1,
    trail_s=0.12, peak_db=-6.0, noise="white", snr_db=30.0, noise_seed=7,
)  # fmt: skip


def speak(lang: str = "es", variant: str | None = None, **settings: int) -> NDArray[np.float32]:
    return espeak.speak(PAPER[lang], voice=voice_name(lang, variant), **settings)


def sound(**changes: Any) -> NDArray[np.float32]:
    samples = render_clip(replace(REQUEST, **changes))
    assert samples is not None and samples.dtype == np.float32
    return samples


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Changes what is installed: the test sees it, and later tests do not."""
    caches = espeak._find_library, espeak.installed_voices
    for cache in caches:
        cache.cache_clear()
    yield monkeypatch
    for cache in caches:
        cache.cache_clear()


def test_every_language_of_the_paper_speaks() -> None:
    for lang in PAPER:
        samples = speak(lang)
        assert 0.5 * espeak.ENGINE_RATE < len(samples) < 4 * espeak.ENGINE_RATE, lang
        assert 0.1 < np.abs(samples).max() <= 1.0, lang


def test_the_order_of_requests_changes_nothing() -> None:
    """Flutter, wave phase, breath and random numbers of one sentence must not reach the next."""
    settings: list[dict[str, Any]] = [
        {"lang": "es", "variant": "f2", "rate_wpm": 150},  # echo and breath
        {"lang": "it", "variant": "m1", "pitch": 30},  # flutter and roughness
        {"lang": "tr", "variant": "klatt5"},  # uses rand() of the C library
    ]
    first = [speak(**setting) for setting in settings]
    for number in (1, 2, 0):
        np.testing.assert_array_equal(speak(**settings[number]), first[number])


def test_rate_pitch_and_variant_are_heard() -> None:
    plain = speak()
    assert len(speak(rate_wpm=120)) > 1.3 * len(speak(rate_wpm=220))
    assert not any(
        np.array_equal(sound, plain)
        for sound in (speak(pitch=80), speak(pitch_range=0), speak("es", "f1"))
    )


def test_an_unknown_language_names_similar_ones() -> None:
    assert voice_name("es", "f2") == "roa/es+f2" and voice_name("ba") == "trk/ba"
    for lang, similar in (("sv-SE", "sv "), ("!!", "af am ")):
        with pytest.raises(
            DataError, match=rf"^espeak-ng 1\.\S+: it has no language '{lang}'; it has {similar}"
        ):
            voice_name(lang)


def test_a_missing_extra_is_named_with_its_command(loader: pytest.MonkeyPatch) -> None:
    loader.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(
        DataError, match=r"^espeak-ng: not installed; run `pip install 'wenet_hs\[synthetic\]'`$"
    ):
        speak()


def test_a_long_path_to_the_data_works(loader: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The library cuts paths at 160 bytes and then reads whatever espeak-ng the machine may have."""
    long_path = tmp_path / ("x" * 180)
    long_path.symlink_to(espeakng_loader.get_data_path(), target_is_directory=True)
    loader.setattr(espeakng_loader, "get_data_path", lambda: str(long_path))
    assert len(speak()) and len(os.fsencode(espeak._find_library()[1])) < 160


def test_missing_data_are_a_fault(loader: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loader.setattr(espeakng_loader, "get_data_path", lambda: str(tmp_path))
    with pytest.raises(
        DataError, match="espeak-ng cannot read its data there; reinstall with `pip install"
    ):
        speak()


def test_a_library_that_is_already_loaded_is_refused() -> None:
    """Its state would change the speech."""
    espeak.installed_voices()
    with espeak._load_engine():
        espeak._LOCK.release()  # otherwise the second engine would wait for the first one
        try:
            with pytest.raises(DataError, match="already loaded in this process"):
                speak()
        finally:
            espeak._LOCK.acquire()
    assert len(speak())


@pytest.mark.parametrize(("kind", "ratio"), [("white", 2.0), ("pink", 1.0)])
def test_noise_has_unit_energy_its_seed_and_its_colour(
    kind: Literal["white", "pink"], ratio: float
) -> None:
    for num_samples in (1, 2**17):
        noise = make_noise(kind, num_samples, seed=3)
        assert noise.shape == (num_samples,) and noise.dtype == np.float32
        assert np.sqrt(np.mean(np.square(noise))) == pytest.approx(1.0, rel=1e-4)
    np.testing.assert_array_equal(noise, make_noise(kind, num_samples, seed=3))
    assert not np.array_equal(noise, make_noise(kind, num_samples, seed=2))
    power = np.abs(np.fft.rfft(noise)) ** 2
    octaves = np.array([power[2**k : 2 ** (k + 1)].sum() for k in range(9, 16)])
    np.testing.assert_allclose(
        octaves[1:] / octaves[:-1], ratio, rtol=0.15
    )  # energy of an octave over the one below


@pytest.mark.parametrize(("peak_db", "snr_db"), [(-15.0, 5.0), (-1.0, 40.0)])
def test_silence_level_and_noise_are_as_requested(peak_db: float, snr_db: float) -> None:
    samples = sound(peak_db=peak_db, snr_db=snr_db)
    assert np.abs(samples).max() == pytest.approx(10 ** (peak_db / 20), rel=1e-4)
    lead = samples[: round(0.09 * SAMPLE_RATE)]
    speech = samples[round(0.1 * SAMPLE_RATE) : -round(0.12 * SAMPLE_RATE)]
    assert 10 * np.log10(np.square(speech).mean() / np.square(lead).mean() - 1) == pytest.approx(
        snr_db, abs=1.5
    )
    clean = sound(snr_db=90.0)
    audible = np.flatnonzero(np.abs(clean) > 0.005 * np.abs(clean).max())
    assert audible[0] / SAMPLE_RATE == pytest.approx(REQUEST.lead_s, abs=0.02)
    assert (len(clean) - audible[-1]) / SAMPLE_RATE == pytest.approx(REQUEST.trail_s, abs=0.02)


def test_a_shorter_vocal_tract_is_faster_and_higher() -> None:
    plain, short = (
        sound(lead_s=0.0, trail_s=0.0, snr_db=60.0, tract=tract) for tract in (1.0, 1.25)
    )
    assert len(plain) / len(short) == pytest.approx(1.25, rel=1e-3)
    powers = [np.square(np.abs(np.fft.rfft(samples, len(plain)))) for samples in (plain, short)]
    low, high = (float(power @ np.arange(len(power)) / power.sum()) for power in powers)
    assert high / low == pytest.approx(1.25, rel=0.05)


def test_every_field_of_a_request_is_in_the_name() -> None:
    changes: dict[str, Any] = {field.name: 2.5 for field in fields(ClipRequest)}
    changes |= {"lang": "it", "sentence": "Hola", "voice": "f3", "noise": "pink"}
    names = {clip_name(replace(REQUEST, **{name: value}), "mp3") for name, value in changes.items()}
    assert len(names | {clip_name(REQUEST, "mp3")}) == len(changes) + 1
    assert all(name.startswith("simulated_") and name.endswith(".mp3") for name in names)


@pytest.mark.parametrize("audio_format", ["flac", "wav", "mp3"])
def test_each_format_can_be_read(tmp_path: Path, audio_format: str) -> None:
    clip = ClipMaker(tmp_path, audio_format)(REQUEST)
    samples, rate = soundfile.read(tmp_path / "es" / "clips" / clip.name, dtype="float32")
    expected = sound()
    assert (rate, samples.ndim, clip.duration_s) == (SAMPLE_RATE, 1, len(samples) / rate)
    assert np.corrcoef(samples[: len(expected)], expected[: len(samples)])[0, 1] > 0.99


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


def test_an_unspeakable_sentence_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sound_of, num_workers, reason in (
        (lambda *_, **__: np.zeros(1000, np.float32), 0, "silent: espeak-ng gives no sound for it"),
        (
            lambda *_, **__: os.kill(os.getpid(), 9),
            1,
            "crash: espeak-ng ended its process on this sentence",
        ),
    ):
        monkeypatch.setattr(espeak, "speak", sound_of)  # forked workers see it
        (clip,) = ClipMaker(tmp_path, num_workers=num_workers).make([REQUEST], "speak")
        assert (clip.duration_s, clip.reason) == (None, reason)
    assert not (tmp_path / "es").exists()
