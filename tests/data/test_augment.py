# SPDX-License-Identifier: Apache-2.0
"""SpecAugment masks within its limits, speed changes length and pitch, noise has its SNR, reverberation its length."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.config.dataset import DatasetConf, FbankConf, NoiseConf, ReverbConf, SpecAugConf
from wenet_hs.data.augment import Distortions, add_noise, apply_masks, draw_masks, reverberate, speed_perturb
from wenet_hs.data.dataset import SpeechDataset
from wenet_hs.errors import DataError
from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable


def features(num_frames: int, num_bins: int = 80) -> torch.Tensor:
    return torch.randn(num_frames, num_bins, generator=torch.Generator().manual_seed(0)) + 10


def spec_augment(features: torch.Tensor, conf: SpecAugConf, generator: torch.Generator) -> torch.Tensor:
    return apply_masks(features, draw_masks(*features.shape, conf, generator))


def masked(num_frames: int, conf: SpecAugConf, seed: int, num_bins: int = 80) -> tuple[torch.Tensor, torch.Tensor]:
    """The frames and the bins that are hidden."""
    before = features(num_frames, num_bins)
    after = spec_augment(before, conf, torch.Generator().manual_seed(seed))
    changed = after != before
    return changed.all(dim=1), changed.all(dim=0)


@settings(max_examples=30, deadline=None)
@given(
    num_frames=st.integers(2, 400),
    num_t_mask=st.integers(0, 4),
    num_f_mask=st.integers(0, 3),
    max_t=st.integers(0, 100),
    max_f=st.integers(0, 20),
    seed=st.integers(0, 2**32),
)
def test_no_more_is_hidden_than_allowed(
    num_frames: int, num_t_mask: int, num_f_mask: int, max_t: int, max_f: int, seed: int
) -> None:
    conf = SpecAugConf(num_t_mask=num_t_mask, num_f_mask=num_f_mask, max_t=max_t, max_f=max_f)
    before = features(num_frames)
    after = spec_augment(before, conf, torch.Generator().manual_seed(seed))
    hidden = after != before
    expected = before.mean(0, keepdim=True).expand_as(before)
    masked = after == expected  # by chance also a value that is its mean, so that `hidden` alone would miss it
    frames, bins = masked.all(dim=1) & hidden.any(dim=1), masked.all(dim=0) & hidden.any(dim=0)
    assert int(frames.sum()) <= min(num_t_mask * max_t, num_frames // 2)
    assert int(bins.sum()) <= num_f_mask * max_f
    assert torch.equal(after[hidden], expected[hidden])
    outside = hidden[~frames][:, ~bins]
    assert not outside.any()


def test_widths_are_uniform_up_to_the_maximum() -> None:
    conf = SpecAugConf(num_t_mask=1, num_f_mask=1, max_t=50, max_f=10)
    frames, bins = zip(*(masked(200, conf, seed) for seed in range(300)), strict=True)
    widths_t = np.array([int(mask.sum()) for mask in frames])
    widths_f = np.array([int(mask.sum()) for mask in bins])
    assert (widths_t.min(), widths_t.max()) == (0, 50)
    assert (widths_f.min(), widths_f.max()) == (0, 10)
    assert widths_t.mean() == pytest.approx(25, abs=3)
    assert widths_f.mean() == pytest.approx(5, abs=0.7)
    assert torch.stack(frames).any(dim=0).all(), "each frame is masked at times"
    assert torch.stack(bins).any(dim=0).all()


def test_same_generator_same_masks_and_the_input_stays() -> None:
    before = features(100)
    kept = before.clone()
    state = torch.get_rng_state()
    first, second = (spec_augment(before, SpecAugConf(), torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, before)
    assert torch.equal(before, kept)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("num_frames", [0, 1, 3])
def test_the_shortest_utterances_keep_their_frames(num_frames: int) -> None:
    before = features(num_frames)
    conf = SpecAugConf(num_f_mask=0)
    assert torch.equal(spec_augment(before, conf, torch.Generator().manual_seed(0)), before)


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
@pytest.mark.parametrize("num_samples", [1, 7, 1601, 48000])
def test_speed_divides_the_length(factor: float, num_samples: int) -> None:
    assert len(speed_perturb(torch.ones(num_samples), factor)) == round(num_samples / factor)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_speed_moves_the_pitch(factor: float) -> None:
    tone = torch.sin(2 * torch.pi * 1000 * torch.arange(16000) / 16000)
    spectrum = torch.fft.rfft(speed_perturb(tone, factor)[:8000]).abs()
    assert int(spectrum.argmax()) * 2 == pytest.approx(1000 * factor, abs=2)


# Noise and reverberation

RATE = 16000


def noise_of(num: int, seed: int = 0) -> torch.Tensor:
    return 0.1 * torch.randn(num, generator=torch.Generator().manual_seed(seed))


def generator(what: str, seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed + len(what))


def write(folder: Path, **clips: np.ndarray) -> str:
    """A list of clips."""
    for name, samples in clips.items():
        soundfile.write(folder / f"{name}.wav", samples, RATE, subtype="FLOAT")
    (folder / "list").write_text("".join(f"{folder}/{name}.wav\n\n" for name in clips))
    return str(folder / "list")


def power(wave: torch.Tensor) -> float:
    return float(wave.double().square().mean())


@pytest.mark.parametrize("snr_db", [-5.0, 0.0, 12.5, 40.0])
def test_the_snr_is_the_one_asked_for(snr_db: float) -> None:
    speech, noise = noise_of(8000), 3 * noise_of(8000, 1)
    added = add_noise(speech, noise, snr_db) - speech
    assert 10 * np.log10(power(speech) / power(added)) == pytest.approx(snr_db, abs=0.01)
    assert torch.allclose(added / added.norm(), noise / noise.norm(), atol=1e-4)
    assert not add_noise(torch.zeros(10), noise[:10], snr_db).any()


@pytest.mark.parametrize("seconds", [0.05, 0.5, 3.0])
def test_a_noise_of_any_length_fits_at_an_snr_in_the_range(tmp_path: Path, seconds: float) -> None:
    clips = write(tmp_path, n=noise_of(round(seconds * RATE), 2).numpy())
    conf = DatasetConf(noise_conf=NoiseConf(list=clips, prob=1.0, snr_db=(3.0, 9.0)))
    distortions, speech = Distortions(conf), noise_of(8000)
    found = []
    for seed in range(20):
        noisy = distortions.apply(speech, lambda what, seed=seed: generator(what, seed))  # type: ignore[misc]
        assert noisy.shape == speech.shape
        found.append(10 * np.log10(power(speech) / power(noisy - speech)))
    assert 2.99 < min(found) < 5.0
    assert 7.0 < max(found) < 9.01


def test_a_pause_in_a_noise_is_no_silence(tmp_path: Path) -> None:
    pause = np.zeros(10 * RATE, np.float32)
    pause[5 * RATE : 5 * RATE + 100] = 0.3
    conf = DatasetConf(noise_conf=NoiseConf(list=write(tmp_path, p=pause), prob=1.0, snr_db=(5.0, 5.0)))
    speech = noise_of(8000)
    for seed in range(5):
        added = Distortions(conf).apply(speech, lambda what, seed=seed: generator(what, seed)) - speech  # type: ignore[misc]
        assert 10 * np.log10(power(speech) / power(added)) == pytest.approx(5.0, abs=0.01)


def test_a_room_keeps_length_place_and_loudness() -> None:
    speech = torch.zeros(4000)
    speech[1000], speech[2500] = 0.5, -0.25
    response = torch.zeros(900)
    response[300], response[310], response[800] = 1.0, 0.5, 0.2  # 300 samples before the direct sound
    wet = reverberate(speech, response)
    assert wet.shape == speech.shape
    assert int(wet.abs().argmax()) == 1000
    assert float(wet[1010] / wet[1000]) == pytest.approx(0.5, abs=1e-6)
    assert float(wet[1500] / wet[1000]) == pytest.approx(0.2, abs=1e-6)
    assert float(wet[2500] / wet[1000]) == pytest.approx(-0.5, abs=1e-6)
    assert power(wet) == pytest.approx(power(speech), rel=1e-6)
    late = reverberate(noise_of(500), noise_of(4000, 3))
    assert late.shape == (500,)
    assert not reverberate(torch.zeros(50), response).any()


def test_a_room_is_the_convolution() -> None:
    speech, response = noise_of(700), noise_of(90, 1)
    peak = int(response.abs().argmax())
    expected = np.convolve(speech.double(), response.double())[peak : peak + 700]
    wet = reverberate(speech, response).double().numpy()
    assert np.allclose(wet / np.linalg.norm(wet), expected / np.linalg.norm(expected), atol=1e-7)
    alone = torch.zeros(64)
    alone[20] = -0.3
    assert torch.allclose(reverberate(speech, alone), -speech, atol=1e-6)


# In a dataset


@pytest.fixture
def utterances(tmp_path: Path) -> list[Utterance]:
    made = []
    for i in range(5):
        soundfile.write(tmp_path / f"u{i}.wav", noise_of(8000 + 900 * i, i).numpy(), RATE)
        duration = (8000 + 900 * i) / RATE
        made.append(Utterance(key=f"u{i}", wav=str(tmp_path / f"u{i}.wav"), txt="a", duration=duration))
    return made


def dataset(utterances: list[Utterance], conf: DatasetConf, *, training: bool = True) -> SpeechDataset:
    tokenizer = make_tokenizer("char", UnitTable.from_units("a"))
    return SpeechDataset(utterances, tokenizer, conf, training=training, seed=0)


def test_examples_depend_on_seed_epoch_and_utterance_alone(utterances: list[Utterance], tmp_path: Path) -> None:
    clips = write(tmp_path, n=noise_of(RATE, 8).numpy(), r=noise_of(900, 9).numpy())
    plain = DatasetConf(spec_aug=False, speed_perturb=True, fbank_conf=FbankConf(num_mel_bins=23))
    conf = plain.model_copy(update={"noise_conf": NoiseConf(list=clips), "reverb_conf": ReverbConf(list=clips)})
    data, clean = dataset(utterances, conf), dataset(utterances, plain)
    seen = [data.item(i, epoch) for epoch in range(3) for i in range(5)]
    again = dataset(utterances, conf)
    backwards = [again.item(i, epoch) for epoch in reversed(range(3)) for i in reversed(range(5))]
    changed = 0
    for left, right, item in zip(seen, reversed(backwards), range(15), strict=True):
        assert torch.equal(left.features, right.features)
        untouched = clean.item(item % 5, item // 5).features
        assert untouched.shape == left.features.shape
        changed += not torch.equal(left.features, untouched)
    assert 5 < changed < 15


def test_off_by_default_and_in_validation(utterances: list[Utterance], tmp_path: Path) -> None:
    assert DatasetConf().noise_conf is None
    assert DatasetConf().reverb_conf is None
    conf = DatasetConf(noise_conf=NoiseConf(list=str(tmp_path / "none"), prob=1.0))
    data = dataset(utterances, conf, training=False)
    assert torch.equal(data.item(0, 0).features, dataset(utterances, DatasetConf(), training=False).item(0, 0).features)


# Faults


def test_a_list_without_recordings(tmp_path: Path, utterances: list[Utterance]) -> None:
    (tmp_path / "empty").write_text("\n")
    for name, fault in (
        ("empty", "empty: no recordings in it; write one path per line"),
        ("none", r"none: cannot be read \(No such file or directory\); check the path"),
    ):
        conf = DatasetConf(noise_conf=NoiseConf(list=str(tmp_path / name)))
        with pytest.raises(DataError, match=f"{fault}$"):
            dataset(utterances, conf)


@pytest.mark.parametrize("seconds", [0.1, 2.0])
def test_a_silent_recording_is_named_with_its_line(tmp_path: Path, seconds: float) -> None:
    clips = write(tmp_path, s=np.full(round(seconds * RATE), 1e-5))
    noise = Distortions(DatasetConf(noise_conf=NoiseConf(list=clips, prob=1.0)))
    with pytest.raises(DataError, match=rf"^{clips}:1: {tmp_path}/s.wav: silent, so no SNR can be set; take it out of"):
        noise.apply(noise_of(8000), generator)
    room = Distortions(DatasetConf(reverb_conf=ReverbConf(list=clips, prob=1.0)))
    with pytest.raises(DataError, match=rf"^{clips}:1: {tmp_path}/s.wav: silent, no impulse response; take it out of"):
        room.apply(noise_of(8000), generator)


def test_a_recording_that_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("\n/none.wav\n")
    for conf in (
        DatasetConf(noise_conf=NoiseConf(list=str(tmp_path / "list"), prob=1.0)),
        DatasetConf(reverb_conf=ReverbConf(list=str(tmp_path / "list"), prob=1.0)),
    ):
        with pytest.raises(DataError) as caught:
            Distortions(conf).apply(noise_of(100), generator)
        message = f"{tmp_path}/list:2: /none.wav: missing; restore the file, or leave it out"
        assert str(caught.value) == message
