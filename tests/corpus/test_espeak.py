# SPDX-License-Identifier: Apache-2.0
"""espeak-ng: the same request is the same samples, every language of the paper speaks, and faults have one line."""

import builtins
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wenet_hs.corpus import espeak
from wenet_hs.errors import DataError

PAPER = {
    "ca": "Bon dia a tothom", "es": "Hola, ¿qué tal estás?", "fr": "Où est la bibliothèque ?",
    "it": "Il ragazzo corre veloce", "pt": "A lição começa amanhã", "be": "Добрай раніцы, сябры",
    "cs": "Příliš žluťoučký kůň", "pl": "Zażółć gęślą jaźń", "ru": "Сегодня утром шёл дождь",
    "uk": "Ще не вмерла Україна", "ba": "Һаумыһығыҙ, дуҫтар", "ky": "Кутман таң, достор",
    "tr": "Günaydın, çocuklar", "tt": "Хәерле көн, дуслар", "uz": "Xayrli tong, do'stlar",
}  # fmt: skip


@pytest.fixture
def fresh_caches() -> Iterator[None]:
    """A test that changes what is installed sees it, and leaves no trace."""
    espeak._find_library.cache_clear()
    espeak.catalogue.cache_clear()
    yield
    espeak._find_library.cache_clear()
    espeak.catalogue.cache_clear()


@pytest.mark.parametrize("lang", PAPER)
def test_every_language_of_the_paper_speaks(lang: str) -> None:
    samples = espeak.speak(PAPER[lang], lang=lang)
    assert samples.dtype == np.float32 and samples.ndim == 1
    assert 0.5 * espeak.SAMPLE_RATE < len(samples) < 4 * espeak.SAMPLE_RATE
    assert 0.1 < np.abs(samples).max() <= 1.0


def test_the_order_of_requests_changes_nothing() -> None:
    """Flutter, wave phase, breath and random numbers of one sentence must not reach the next."""
    settings: list[dict[str, Any]] = [
        {"lang": "es", "variant": None},
        {"lang": "es", "variant": "f2", "rate_wpm": 150},  # echo and breath
        {"lang": "it", "variant": "m1", "pitch": 30},  # flutter and roughness
        {"lang": "ru", "variant": "f5", "pitch_range": 80},
        {"lang": "tr", "variant": "klatt5"},  # uses rand() of the C library
        {"lang": "pt", "variant": "klatt6", "rate_wpm": 200},
    ]
    first = [espeak.speak(PAPER[setting["lang"]], **setting) for setting in settings]
    for seed in range(3):
        order = list(range(len(settings)))
        random.Random(seed).shuffle(order)
        for number in order:
            again = espeak.speak(PAPER[settings[number]["lang"]], **settings[number])
            np.testing.assert_array_equal(again, first[number])


def test_rate_pitch_and_variant_are_heard() -> None:
    text = PAPER["es"]
    assert len(espeak.speak(text, lang="es", rate_wpm=120)) > 1.3 * len(espeak.speak(text, lang="es", rate_wpm=220))
    plain = espeak.speak(text, lang="es")
    for changed in ({"pitch": 80}, {"pitch_range": 0}, {"variant": "f1"}):
        other = espeak.speak(text, lang="es", **changed)
        assert len(other) != len(plain) or not np.array_equal(other, plain)


def test_catalogue() -> None:
    known = espeak.catalogue()
    assert known.version.startswith("1.")
    assert known.languages["es"] == "roa/es" and known.languages["ba"] == "trk/ba"
    assert {"m1", "m8", "f1", "f5", "whisper"} <= set(known.variants)
    assert espeak.voice_name("es", "f2") == "roa/es+f2"


def test_an_unknown_language_names_similar_ones() -> None:
    with pytest.raises(DataError, match=r"^espeak-ng 1\.\S+: it has no language 'sv-SE'; it has sv "):
        espeak.speak("hej", lang="sv-SE")
    with pytest.raises(DataError, match=r"no language '!!'; it has af am "):
        espeak.speak("hej", lang="!!")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"variant": "nobody"}, "no variant 'nobody'; it has Alex"),
        ({"rate_wpm": 20}, "rate 20 "),
        ({"pitch": 100}, "pitch 100"),
        ({"pitch_range": -1}, "range -1"),
        ({"text": "a\0b"}, "NUL"),
    ],
)
def test_wrong_calls(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        espeak.speak(**({"text": "hola", "lang": "es"} | wrong))


@pytest.mark.usefixtures("fresh_caches")
def test_missing_extra_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "espeakng_loader":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match=r"^espeak-ng: not installed; run `pip install 'wenet_hs\[synthetic\]'`$"):
        espeak.speak("hola", lang="es")


@pytest.mark.usefixtures("fresh_caches")
def test_a_long_path_to_the_data_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The library cuts paths at 160 bytes and then reads whatever espeak-ng the machine may have."""
    import espeakng_loader

    expected = espeak.speak("hola", lang="es")
    long_path = tmp_path / ("x" * 180)
    long_path.symlink_to(espeakng_loader.get_data_path(), target_is_directory=True)
    monkeypatch.setattr(espeakng_loader, "get_data_path", lambda: str(long_path))
    espeak._find_library.cache_clear()
    espeak.catalogue.cache_clear()
    np.testing.assert_array_equal(espeak.speak("hola", lang="es"), expected)
    assert len(os.fsencode(espeak._find_library()[1])) < 160


@pytest.mark.usefixtures("fresh_caches")
def test_missing_data_are_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import espeakng_loader

    monkeypatch.setattr(espeakng_loader, "get_data_path", lambda: str(tmp_path))
    espeak._find_library.cache_clear()
    with pytest.raises(DataError, match="espeak-ng cannot read its data there; reinstall with `pip install"):
        espeak.speak("hola", lang="es")
    capfd.readouterr()  # the library complains on stderr too


def test_a_library_that_is_already_loaded_is_refused() -> None:
    """Its state would change the speech."""
    espeak.catalogue()
    with espeak._load_engine():
        espeak._LOCK.release()  # otherwise the second engine would wait for the first one
        try:
            with pytest.raises(DataError, match="already loaded in this process"):
                espeak.speak("hola", lang="es")
        finally:
            espeak._LOCK.acquire()
    assert len(espeak.speak("hola", lang="es"))
