# SPDX-License-Identifier: Apache-2.0
"""Simulated words with phones: labels, spelling, words, recording conditions, and the corpus."""

import json
import os
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from prepared import parse_prepare

from wenet_hs.corpus import espeak, phones, recording, synthetic
from wenet_hs.corpus.espeak_ipa import PhoneSpelling, split_label
from wenet_hs.corpus.phones import read_words
from wenet_hs.manifest.data_list import Utterance, read_data_list, write_data_list
from wenet_hs.tree.errors import ConfigError, DataError

REAL = ["a q̠ a", "q̠ ɡ t s", "t͡ʃ aː", "t̠ ɕ k k", "ĩ n u"]


@pytest.mark.parametrize(
    ("lang", "label", "expected"),
    [
        ("en", "tʃ_ˈaɪ_n_dʒ", "t͡ʃ a i n d͡ʒ"),
        ("en-us", "b_ˈɔːɹ_d_ɚ", "b ɔː ɹ d ə˞"),
        ("zh", "ts._ˈu2_ ɕ_ˈiɜ_", "ʈ͡ʂ u ɕ i"),
        ("zh", "s.h_onɡ5_i.5", "ʂʰ o ŋ ɨ"),
        ("ru", "v_ˈy_rʲʲ", "v ɨ rʲ"),
        ("is", "b_r#_ɛː", "b r̥ ɛː"),
        ("it", "ˈo_ss_a_dzː_o", "o sː a d͡zː o"),
        ("hi", "c_ˈaː_r._ʌ", "t͡ʃ aː ɽ ʌ"),
        ("om", "tʃ`_a", "t͡ʃʼ a"),
        ("cs", "__d_e", "d ɛ"),
        ("gn", "ĩ_õ4", "ĩ õ"),
    ],
)
def test_labels_become_ipa(lang: str, label: str, expected: str) -> None:
    phones_ipa = split_label(label, lang)
    assert PhoneSpelling([]).spell(phones_ipa) == expected


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("(en)_b_iː_(el)", "another language: espeak-ng reads"),
        ("a_q_1", "unknown phone: '1'"),
        ("X_a", "unknown phone"),
    ],
)
def test_labels_without_known_phones_are_refused(label: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("(", r"\(")):
        split_label(label, "el")


def test_phones_are_spelled_as_the_corpus_spells_them() -> None:
    spelling = PhoneSpelling(REAL)
    label = "ɡ_aː_uː_tʃʰ_ts_tɕ_kː_tː_ĩː_nʲ_θː_ɐ"
    # q̠ is more frequent; signs that the corpus lacks are dropped; a new phone keeps its letter.
    assert spelling.spell(split_label(label, "en")) == "q̠ aː u t͡ʃ t s t̠ ɕ k k t ĩ n θ a"


@pytest.mark.slow
def test_words_are_frequent_or_made_up_of_letters_that_the_voice_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words, is_made_up = read_words("es-419", espeak.voice_name("es-419"), seed=0)
    assert len(words) == 5000 and {"casa", "por"} < set(words) and not is_made_up
    voice, scripts = espeak.voice_name("ka"), phones._list_scripts()
    assert sum(map(len, scripts)) > 1500
    monkeypatch.setattr(
        phones, "_list_scripts", lambda: [s for s in scripts if {"x", "ა", "क"} & {*s}]
    )  # faster
    words, is_made_up = read_words("ka", voice, seed=0)
    assert is_made_up and len(words) > 3000
    assert all("\u10d0" <= letter <= "\u10ff" for word in words for letter in word), (
        "Georgian letters"
    )
    for label in espeak.phonemize(words[:200], voice=voice):
        assert 2 <= len(split_label(label, "ka")) <= 7
    assert read_words("kok", espeak.voice_name("kok"), seed=0) == ([], True), (
        "this voice reads no alphabet"
    )
    monkeypatch.setitem(sys.modules, "wordfreq", None)
    with pytest.raises(
        DataError, match=r"wordfreq: not installed; run `pip install 'wenet_hs\[phones\]'`"
    ):
        read_words("es", espeak.voice_name("es"), seed=0)


def test_a_label_is_what_the_voice_says() -> None:
    """A variant has the label of its voice, and a text with more phones lasts longer."""
    texts = ["casa", "casas", "la casa", "ferrocarril"]
    labels = espeak.phonemize(texts, voice=espeak.voice_name("es"))
    assert labels[0] == "k_ˈa_s_a"
    assert labels == espeak.phonemize(texts, voice=espeak.voice_name("es", "f2"))
    durations = [len(espeak.speak(text, voice=espeak.voice_name("es"))) for text in texts]
    assert durations == sorted(durations)


def noisy_speech(seed: int) -> recording.Floats:
    """Half a second of loud low noise between silences with a soft high noise."""
    draw = np.random.default_rng(seed)
    low = np.where(np.arange(257) < 64, 1.0, 1e-6)
    speech = np.pad(0.1 * recording.make_coloured_noise(low, 8000, draw), 4000)
    return speech + 0.001 * recording.make_coloured_noise(1.0 - low, 16000, draw)


def test_spectrum_and_noise_floor_of_recordings_are_measured_and_copied() -> None:
    real = recording.measure_recording([noisy_speech(seed) for seed in range(5)])
    assert real.speech_F.mean() == pytest.approx(1.0, abs=0.05)
    assert real.speech_F[:50].min() > 100 * real.speech_F[80:].max()
    assert 10 * np.log10(real.noise_F.mean()) == pytest.approx(
        -36.0, abs=2.0
    )  # 0.25 and 0.75 of the bins
    assert real.noise_F[80:].min() > 10 * real.noise_F[:50].max()
    draw = np.random.default_rng(1)
    white = draw.standard_normal(32000)
    copied = recording.measure_recording(
        [recording.match_spectrum(white, np.ones(257), real.speech_F)]
    )
    difference_db = 10 * np.log10(copied.speech_F[:55] / real.speech_F[:55])
    assert np.abs(difference_db).max() < 2.0 and copied.speech_F[80:].max() < 0.01
    assert real.name != copied.name == replace(copied).name


def test_rooms_and_hum() -> None:
    draw = np.random.default_rng(1)
    click = np.zeros(16000)
    click[100] = 1.0
    energies = {}
    for decay_s in (0.1, 0.5):
        wet = recording.add_room(click, decay_s, 6.0, draw)
        assert (
            len(wet) == 16000
            and np.square(wet).sum() == pytest.approx(1.0)
            and np.abs(wet[:100]).max() < 1e-9
        )
        energies[decay_s] = np.square(wet[100 + 1600 :]).sum()
        assert np.square(wet[101:]).sum() / np.square(wet[100]) == pytest.approx(10**-0.6, rel=0.05)
    assert energies[0.1] < 1e-4 < energies[0.5]
    hum = recording.make_hum(16000, 50, draw)
    spectrum = np.square(np.abs(np.fft.rfft(hum)))
    assert np.square(hum).mean() == pytest.approx(1.0) and spectrum[
        50:251:50
    ].sum() == pytest.approx(spectrum.sum())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of real speech, and a corpus simulated from it."""
    folder = tmp_path_factory.mktemp("phones")
    real = []
    for number, txt in enumerate(REAL):
        soundfile.write(folder / f"{number}.wav", noisy_speech(number), 16000)
        real.append(
            Utterance(key=f"xx-{number}", wav=str(folder / f"{number}.wav"), txt=txt, lang="xx")
        )
    write_data_list(folder / "real.list", real)
    prepare(folder)
    return folder


def prepare(folder: Path, more: str = "--num_workers 2") -> dict[str, Any]:
    line = f"synthetic --unit phone --hours 0.006 --langs 'it en-us' --exclude_langs 'sem pt' --out {folder / 'out'}"
    return synthetic.prepare(parse_prepare(f"{line} --match_list {folder / 'real.list'} {more}"))


@pytest.mark.slow
def test_the_corpus_has_simulated_keys_and_phones(folder: Path) -> None:
    out = folder / "out"
    stats = json.loads((out / "stats.json").read_text("utf-8"))
    lists = {name: read_data_list(out / name / "data.list") for name in ("train", "dev")}
    clips = lists["train"] + lists["dev"]
    assert not (out / "test").exists() and stats["simulated"] is True and len(lists["dev"]) >= 1
    assert not {u.txt for u in lists["train"]} & {u.txt for u in lists["dev"]}
    assert all(
        u.key == f"{u.lang}_{Path(u.wav).stem}" and f"{u.lang}_simulated_" in u.key for u in clips
    )
    for lang in ("it", "en-us"):
        assert 0.003 <= sum(u.duration or 0.0 for u in clips if u.lang == lang) / 3600 < 0.004
    assert "ɡ" not in {phone for u in clips for phone in u.txt.split()}, (
        "the real list has q̠ more often"
    )
    assert stats["voices_not_used"]["pt-br"] == "excluded by --exclude_langs pt"
    assert stats["voices_not_used"]["mt"] == "excluded by --exclude_langs sem"
    assert stats["voices_not_used"]["yue"].startswith("its labels are not IPA")
    (name,) = stats["recordings"]
    assert name.startswith("xx-")
    for utterance in clips:
        wave, rate = soundfile.read(utterance.wav, dtype="float32")
        assert rate == 16000 and len(wave) / rate == pytest.approx(utterance.duration)
    simulated = recording.measure_recording([soundfile.read(u.wav)[0] for u in clips])
    assert simulated.speech_F[:50].mean() > 50 * simulated.speech_F[80:].mean(), (
        "low, like the real speech"
    )


@pytest.mark.slow
def test_workers_change_nothing_and_old_clips_are_removed(folder: Path) -> None:
    out = folder / "out"
    expected = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    clips = sorted(path for path in expected if path.suffix == ".flac")
    for path in clips[::3]:
        path.unlink()
    (out / "corpus" / "it" / "clips" / "simulated_0.flac").write_bytes(b"x")
    prepare(folder, "--num_workers 1")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == expected


def test_requests_vary_and_depend_on_the_seed() -> None:
    plan = phones.VoicePlan("es", {"casa": list("kasa"), "perro": list("pero")})
    recordings = {"": recording.Recording(np.ones(257), np.full(257, 1e-3), (-15.0, -1.0))}
    draws = {
        seed: list(islice(phones.draw_words(plan, recordings, seed=seed), 400)) for seed in (0, 1)
    }
    assert draws[0] != draws[1] and len({request.noise_seed for request in draws[0]}) == 400
    assert [request.sentence for request in draws[0][:4]] == ["casa", "perro", "casa", "perro"]
    assert {request.voice for request in draws[0]} == set(espeak.VOICES)
    assert min(r.tract for r in draws[0]) < 0.88 and max(r.tract for r in draws[0]) > 1.16
    assert min(r.snr_db for r in draws[0]) == pytest.approx(24, abs=0.1)
    renderer = phones.PhoneRenderer(recordings, np.ones(257))
    for request in draws[0][:6]:
        wave = renderer(request)
        assert wave is not None and 20 * np.log10(np.abs(wave).max()) == pytest.approx(
            request.peak_db, abs=0.01
        )
        np.testing.assert_array_equal(wave, renderer(request))


def test_a_voice_that_ends_its_process_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse_prepare("synthetic --unit phone --hours 0.01 --out x --num_workers 1")
    monkeypatch.setattr(phones, "plan_voice", crash_unless_spanish)
    voices = phones.ChosenVoices(chosen=["es", "it"], unused={})
    plans, unused = phones._plan_voices(options, voices)
    assert [plan.lang for plan in plans] == ["es"] and unused == {
        "it": "only 0 words with labels, 0 without"
    }
    with pytest.raises(ConfigError, match="--langs it: no voice can be used"):
        phones._plan_voices(options, phones.ChosenVoices(chosen=["it"], unused={}))


def crash_unless_spanish(lang: str, *, num_texts: int, seed: int) -> phones.VoicePlan:
    if lang != "es":
        os._exit(1)
    return phones.VoicePlan(lang, {f"w{number}": ["a"] for number in range(num_texts)})


def test_hours_are_shared_by_languages_then_by_accents() -> None:
    shares = phones.split_hours(["en", "en-us", "es", "fr"], 3.0)
    assert shares == {"en": 0.5, "en-us": 0.5, "es": 1.0, "fr": 1.0}
    langs, _ = phones.choose_langs((), ())
    assert {"en", "es-mx", "nb"} <= set(langs) and not {"en-gb", "es-419", "no"} & set(langs), (
        "one code per voice"
    )
    assert phones.choose_langs(("es",), ())[0] == ["es", "es-mx"], "with its accents"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--unit phone --test_voices 3",
            "--test_voices: has no effect with --unit phone; leave it out",
        ),
        (
            "--unit phone --sentences x",
            "--sentences: has no effect with --unit phone; leave it out",
        ),
        (
            "--langs es --exclude_langs pt",
            "--exclude_langs: has no effect with --unit char; leave it out",
        ),
        (
            "--unit phone --exclude_langs 'pt xy'",
            "--exclude_langs xy: no voice or family of espeak-ng; the voices are",
        ),
        (
            "--unit phone --langs 'es qq'",
            "--langs qq: no voice or family of espeak-ng; the voices are af am an",
        ),
        ("--unit phone --langs pt --exclude_langs pt", "--langs pt: no voice is left"),
        ("--unit phone --hours 0", "--hours 0: must be above 0"),
        (
            "--langs es",
            "--sentences: required with --unit char; name the folder with one <lang>.txt per language",
        ),
    ],
)
def test_wrong_options_are_one_line(options: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        synthetic.prepare(parse_prepare(f"synthetic --out {tmp_path} {options}"))
    assert str(caught.value).startswith(message)
