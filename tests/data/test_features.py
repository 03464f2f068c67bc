# SPDX-License-Identifier: Apache-2.0
"""Log-Mel features against Kaldi's formula, dither, and features of a batch on the device."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torchaudio.compliance import kaldi

from wenet_hs.config.dataset import BatchConf, DatasetConf, FbankConf, ResampleConf
from wenet_hs.data.dataset import SpeechDataset, batches, with_features
from wenet_hs.data.features import count_frames, fbank, num_frames, utterance_features, waveform_features
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable


def noise(num_samples: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_samples, generator=torch.Generator().manual_seed(seed)) * 0.1


def by_hand(frame: torch.Tensor, num_bins: int = 80) -> torch.Tensor:
    """Kaldi's log-Mel of one frame of 400 samples, from its documentation, in float64."""
    x = frame.double() * 32768
    x = x - x.mean()
    x = x - 0.97 * torch.cat([x[:1], x[:-1]])
    x = x * (0.5 - 0.5 * torch.cos(2 * torch.pi * torch.arange(400, dtype=torch.float64) / 399)) ** 0.85
    power = torch.fft.rfft(x, n=512).abs().square()[:256]
    mel = 1127 * torch.log(1 + torch.arange(256, dtype=torch.float64) * 16000 / 512 / 700)
    low, high = 1127 * np.log(1 + 20 / 700), 1127 * np.log(1 + 8000 / 700)
    edges = torch.linspace(low, high, num_bins + 2, dtype=torch.float64).unsqueeze(1)
    rise, fall = (mel - edges[:-2]) / (edges[1:-1] - edges[:-2]), (edges[2:] - mel) / (edges[2:] - edges[1:-1])
    return (torch.minimum(rise, fall).clamp(min=0) @ power).log()


def test_each_frame_is_kaldis_formula() -> None:
    waveform = noise(4000)
    features = fbank(waveform)
    assert features.shape == (23, 80)
    for t in (0, 7, len(features) - 1):
        torch.testing.assert_close(
            features[t].double(), by_hand(waveform[t * 160 : t * 160 + 400]), atol=2e-3, rtol=1e-4
        )


def test_no_dither_is_exactly_torchaudio() -> None:
    assert torch.isfinite(fbank(torch.zeros(1600))).all()
    waveform = noise(8000)
    expected = kaldi.fbank(waveform[None] * 32768, num_mel_bins=40, dither=0.0, energy_floor=0.0)
    assert torch.equal(fbank(waveform, num_mel_bins=40), expected)


@settings(max_examples=30, deadline=None)
@given(
    num_samples=st.integers(0, 5000),
    rate=st.sampled_from([8000, 11025, 16000]),
    length=st.sampled_from([20.0, 25.0, 32.5]),
    shift=st.sampled_from([5.0, 10.0, 12.5]),
)
def test_num_frames_is_what_fbank_makes(num_samples: int, rate: int, length: float, shift: float) -> None:
    fbank_conf = FbankConf(num_mel_bins=20, frame_length=length, frame_shift=shift)
    conf = DatasetConf(fbank_conf=fbank_conf, resample_conf=ResampleConf(resample_rate=rate))
    frames = num_frames(num_samples, conf)
    assert waveform_features(noise(num_samples), conf).shape == (frames, 20)
    assert count_frames(np.array([num_samples / rate]), conf).tolist() == [frames]


@pytest.mark.parametrize(("num_samples", "frames"), [(0, 0), (399, 0), (400, 1), (559, 1), (560, 2), (16000, 98)])
def test_num_frames_snips_edges(num_samples: int, frames: int) -> None:
    assert num_frames(num_samples, DatasetConf()) == frames


def test_dither_is_the_generators_and_leaves_the_global_state_alone() -> None:
    waveform = noise(4000)
    before = torch.get_rng_state()
    first, again, other = (
        fbank(waveform, dither=1.0, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == fbank(waveform).shape
    torch.testing.assert_close(first, fbank(waveform), atol=0.1, rtol=0)  # a step of 16 bits is little beside speech


def test_dither_has_kaldis_distribution() -> None:
    """Of silence nothing is left but the noise: its mean and spread, and frames that share samples but not noise."""
    silence = torch.zeros(16000 * 10)
    ours = fbank(silence, dither=1.0, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        theirs = kaldi.fbank(silence[None], num_mel_bins=80, dither=1.0, energy_floor=0.0)
    torch.testing.assert_close(ours.mean(0), theirs.mean(0), atol=0.25, rtol=0)
    torch.testing.assert_close(ours.std(0), theirs.std(0), atol=0.25, rtol=0)
    centred = ours - ours.mean(0)
    neighbours = (centred[1:] * centred[:-1]).mean() / centred.square().mean()
    assert abs(float(neighbours)) < 0.02


def test_faults_of_the_settings() -> None:
    with pytest.raises(ValueError, match="dither needs a generator"):
        fbank(noise(1000), dither=1.0)
    with pytest.raises(ConfigError, match=r"fbank_conf.num_mel_bins: at least 4 Mel bins are needed, got 2"):
        fbank(noise(1000), num_mel_bins=2)
    with pytest.raises(ConfigError, match=r"fbank_conf: a frame of 0.1 ms is under two samples at 16000 Hz"):
        fbank(noise(1000), frame_length_ms=0.1)


# Features of an utterance


def test_an_utterance_is_read_resampled_and_cut_to_its_segment(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, noise(16000).numpy(), 8000)
    conf = DatasetConf(fbank_conf=FbankConf(num_mel_bins=23), resample_conf=ResampleConf(resample_rate=16000))
    whole = utterance_features(Utterance(key="a", wav=str(path), txt="x", duration=2.0), conf)
    assert whole.shape == (198, 23)
    part = utterance_features(Utterance(key="a", wav=str(path), txt="x", start=0.5, end=1.5), conf)
    assert part.shape == (98, 23)
    torch.testing.assert_close(part[5:-5], whole[55:-55], atol=0.05, rtol=0)  # the resampler's edges apart


def test_faults_name_the_utterance_and_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^utterance k7: .*none\.wav: missing; "):
        utterance_features(Utterance(key="k7", wav=str(tmp_path / "none.wav"), txt="x"), DatasetConf())
    path = tmp_path / "a.wav"
    soundfile.write(path, noise(16000).numpy(), 16000)
    with pytest.raises(
        DataError, match=r"k7: .*a\.wav: cut off: 1\.00 s, the data list says 2\.00 s; .* prepare the data"
    ):
        utterance_features(Utterance(key="k7", wav=str(path), txt="x", duration=2.0), DatasetConf())
    with pytest.raises(
        DataError, match=r"k7: .*a\.wav: a segment from 0.2 to 99 s .* 1\.00 s; correct start and end in"
    ):
        utterance_features(Utterance(key="k7", wav=str(path), txt="x", start=0.2, end=99), DatasetConf())


# Features of a batch on the device

WORKER = DatasetConf(
    speed_perturb=True, fbank_conf=FbankConf(num_mel_bins=23), batch_conf=BatchConf(batch_size=3), max_bad_clips=0.5
)
DEVICE = WORKER.model_copy(update={"features_on": "device"})


@pytest.mark.parametrize("training", [True, False])
def test_the_same_features_to_a_thousandth(tmp_path: Path, training: bool) -> None:
    rng, utterances = np.random.default_rng(0), []
    for number in range(7):
        path = tmp_path / f"{number}.wav"
        soundfile.write(path, 0.1 * rng.normal(size=8000 + 1777 * number), 16000)
        utterances.append(Utterance(key=str(number), wav=str(path), txt="a", duration=0.5 + 1777 * number / 16000))
    tokenizer = make_tokenizer("char", UnitTable.from_units(("a",)))
    one, other = (SpeechDataset(utterances, tokenizer, conf, training=training, seed=0) for conf in (WORKER, DEVICE))
    Path(utterances[3].wav).unlink()
    plan = one.plan(0)
    made = [with_features(batch, DEVICE) for batch in batches(other, plan, 1)]
    for batch, reference in zip(made, batches(one, plan, 1), strict=True):
        assert batch.wave_masks is None
        assert (batch.keys, batch.num_frames, batch.quarantined, batch.num_targets, batch.audio_seconds) == (
            *(reference.keys, reference.num_frames, reference.quarantined),
            *(reference.num_targets, reference.audio_seconds),
        )
        assert torch.equal(batch.feature_lengths, reference.feature_lengths)
        torch.testing.assert_close(batch.features, reference.features, atol=1e-3, rtol=0)
    assert with_features(made[0], DEVICE) is made[0]
    again = [with_features(batch, DEVICE) for batch in batches(other, plan, 1, start=1)]
    assert all(left.features.equal(right.features) for left, right in zip(again, made[1:], strict=True))


def test_neither_cache_nor_dither() -> None:
    with pytest.raises(ValidationError, match="features_on: device does not keep features; set cache_features: false"):
        DatasetConf(features_on="device", cache_features=True)
    with pytest.raises(ValidationError, match="features_on: device has no dither; set fbank_conf.dither: 0, or worker"):
        DatasetConf(features_on="device", fbank_conf=FbankConf(dither=1.0))
