# SPDX-License-Identifier: Apache-2.0
"""The plan of a simulated corpus: a pure function of the seed, with voices that sound like people."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wenet_hs.corpus import espeak
from wenet_hs.corpus.synthetic_plan import VOICES, SpeechPlan, choose_voices
from wenet_hs.errors import ConfigError

SENTENCES = tuple(f"frase número {number}" for number in range(7))


def make_plan(seed: int = 1, num_test: int = 2, snr: tuple[float, float] = (15, 40)) -> SpeechPlan:
    train, test = choose_voices(num_test, seed=seed)
    return SpeechPlan(seed=seed, train_voices=train, test_voices=test, noise_snr_db=snr)


@given(num_test=st.integers(1, len(VOICES) - 1), seed=st.integers(0, 999))
def test_held_out_voices_are_not_in_training(num_test: int, seed: int) -> None:
    train, test = choose_voices(num_test, seed=seed)
    assert len(test) == num_test and set(train).isdisjoint(test) and {*train, *test} == set(VOICES)
    assert (train, test) == choose_voices(num_test, seed=seed)


def test_two_held_out_voices_are_a_woman_and_a_man_and_the_seed_decides() -> None:
    pairs = {choose_voices(2, seed=seed)[1] for seed in range(20)}
    assert len(pairs) > 5
    assert all({VOICES[voice] for voice in pair} == {"male", "female"} for pair in pairs)


@pytest.mark.parametrize("num_test", [0, len(VOICES)])
def test_some_voices_must_stay_on_both_sides(num_test: int) -> None:
    with pytest.raises(ConfigError, match=rf"^--test_voices: {num_test} of {len(VOICES)} voices; give 1 to"):
        choose_voices(num_test, seed=1)


def test_training_goes_round_all_sentences_with_another_voice_each_time() -> None:
    plan = make_plan()
    num_turns = len(plan.train_voices)
    requests = list(islice(plan.training_requests("es", SENTENCES), num_turns * len(SENTENCES)))
    for turn in range(num_turns):
        in_turn = requests[turn * len(SENTENCES) : (turn + 1) * len(SENTENCES)]
        assert tuple(request.sentence for request in in_turn) == SENTENCES
    for sentence in SENTENCES:
        assert {r.voice for r in requests if r.sentence == sentence} == set(plan.train_voices)
    assert len({(r.rate_wpm, r.pitch, r.pitch_range, r.snr_db, r.noise_seed) for r in requests}) == len(requests)


def test_held_out_sentences_are_spoken_once_or_as_often_as_asked() -> None:
    plan = make_plan()
    once = plan.held_out_requests("es", SENTENCES)
    assert tuple(request.sentence for request in once) == SENTENCES
    assert {request.voice for request in once} == set(plan.test_voices)
    twice = plan.held_out_requests("es", SENTENCES, repeats=2)
    assert twice[: len(once)] == once and len(twice) == 2 * len(once)
    assert all(first.voice != second.voice for first, second in zip(twice, twice[len(once) :], strict=False))


@given(seed=st.integers(0, 999), low=st.floats(-5, 30), width=st.floats(0, 30))
def test_what_is_drawn_is_in_range(seed: int, low: float, width: float) -> None:
    for request in make_plan(seed, snr=(low, low + width)).held_out_requests("es", SENTENCES):
        assert 140 <= request.rate_wpm <= 200 and 30 <= request.pitch <= 70 and 30 <= request.pitch_range <= 70
        assert 0.05 <= request.lead_s <= 0.15 and 0.05 <= request.trail_s <= 0.15
        assert -15 <= request.peak_db <= -1 and low - 0.01 <= request.snr_db <= low + width + 0.01


def test_a_request_depends_on_the_sentence_and_not_on_its_place() -> None:
    forwards = make_plan().held_out_requests("es", SENTENCES)
    backwards = make_plan().held_out_requests("es", SENTENCES[::-1])
    assert forwards == backwards[::-1]
    assert forwards != make_plan(seed=2).held_out_requests("es", SENTENCES)
    assert {request.noise_seed for request in forwards}.isdisjoint(
        request.noise_seed for request in make_plan().held_out_requests("it", SENTENCES)
    )


def periodicity(samples: np.ndarray) -> float:
    """Share of loud 40 ms frames that repeat at a pitch of 70 to 400 Hz: the voiced ones."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, 882)[::441]
    energy = np.square(frames).mean(1)
    loud = frames[energy > 0.01 * energy.max()]
    spectrum = np.abs(np.fft.rfft(loud - loud.mean(1, keepdims=True), 2048)) ** 2
    correlation = np.fft.irfft(spectrum)
    return float((correlation[:, 55:315].max(1) > 0.5 * correlation[:, 0]).mean())


@pytest.mark.parametrize("voice", VOICES)
def test_every_voice_is_a_voice(voice: str) -> None:
    """Not a whisper (no pitch), not a croak, not clipped, not much slower or faster than espeak-ng's own."""
    for lang, text in (("es", "Regalamos otra información"), ("ru", "Сегодня утром мы пошли в лес")):
        plain = espeak.speak(text, lang=lang)
        samples = espeak.speak(text, lang=lang, variant=voice)
        assert 0.5 < len(samples) / len(plain) < 2.0
        assert np.abs(samples).max() > 0.2 and (np.abs(samples) > 0.999).mean() < 1e-3
        assert 0.03 < np.sqrt(np.square(samples).mean()) < 0.3
        assert periodicity(samples) > 0.35


def test_whispers_and_croaks_fail_that_test() -> None:
    for voice in ("whisper", "whisperf", "croak", "Demonic"):
        assert periodicity(espeak.speak("Regalamos otra información", lang="es", variant=voice)) < 0.35
