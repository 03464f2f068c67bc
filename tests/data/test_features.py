# SPDX-License-Identifier: Apache-2.0
"""Log-Mel features against Kaldi's formula, dither, and features of a batch on the device."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from noise_clips import PLAIN, make_dataset, noise, write_clips
from torchaudio.compliance import kaldi

from wenet_hs.config.dataset import DatasetConf, FbankConf, ResampleConf
from wenet_hs.data.dataset import batches, with_features
from wenet_hs.data.features import count_frames, num_frames, utterance_features, waveform_features
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.manifest import Utterance

CONF = DatasetConf()


def test_features_without_dither_equal_torchaudio() -> None:
    waveform = noise(8000)
    expected = kaldi.fbank(waveform[None] * 32768, num_mel_bins=80, dither=0.0, energy_floor=0.0)
    assert torch.equal(waveform_features(waveform, CONF), expected)
    assert [num_frames(n, CONF) for n in (399, 400, 559, 560)] == [0, 1, 1, 2], "only whole windows"
    assert torch.isfinite(waveform_features(torch.zeros(1600), CONF)).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 5000), st.sampled_from([8000, 11025]), st.sampled_from([20, 32.5]), st.sampled_from([5, 12.5]))
def test_the_number_of_frames_is_known_before(num_samples: int, rate: int, length: float, shift: float) -> None:
    fbank_conf = FbankConf(num_mel_bins=20, frame_length=length, frame_shift=shift)
    conf = DatasetConf(fbank_conf=fbank_conf, resample_conf=ResampleConf(resample_rate=rate))
    frames = num_frames(num_samples, conf)
    assert waveform_features(noise(num_samples), conf).shape == (frames, 20)
    assert count_frames(np.array([num_samples / rate]), conf).tolist() == [frames]


def test_dither_uses_only_its_generator() -> None:
    waveform, state = noise(4000), torch.get_rng_state()
    generators = (torch.Generator().manual_seed(seed) for seed in (1, 1, 2))
    first, again, other = (waveform_features(waveform, CONF, dither=1.0, generator=one) for one in generators)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again) and not torch.equal(first, other)
    torch.testing.assert_close(first, waveform_features(waveform, CONF), atol=0.1, rtol=0)
    with pytest.raises(ValueError, match="dither needs a generator"):
        waveform_features(waveform, CONF, dither=1.0)


def test_dither_has_kaldis_distribution() -> None:
    silence = torch.zeros(16000 * 10)
    ours = waveform_features(silence, CONF, dither=1.0, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        theirs = kaldi.fbank(silence[None], num_mel_bins=80, dither=1.0, energy_floor=0.0)
    torch.testing.assert_close(ours.mean(0), theirs.mean(0), atol=0.25, rtol=0)
    torch.testing.assert_close(ours.std(0), theirs.std(0), atol=0.25, rtol=0)
    centred = ours - ours.mean(0)
    assert abs(float((centred[1:] * centred[:-1]).mean() / centred.square().mean())) < 0.02


def test_impossible_settings_are_refused() -> None:
    for fbank_conf, message in (
        (FbankConf(frame_length=0.1), "fbank_conf: frame_length 0.1 ms or .* is under two samples at 16000 Hz; use"),
        (FbankConf(frame_shift=0.1), "or frame_shift 0.1 ms is under two samples at 16000 Hz; use more"),
    ):
        with pytest.raises(ConfigError, match=message):
            waveform_features(noise(1000), DatasetConf(fbank_conf=fbank_conf))


def test_an_utterance_is_resampled_and_cut_to_its_segment(tmp_path: Path) -> None:
    path = str(tmp_path / "a.wav")
    soundfile.write(path, noise(16000).numpy(), 8000)
    whole = utterance_features(Utterance(key="a", wav=path, txt="x", duration=2.0), CONF)
    part = utterance_features(Utterance(key="a", wav=path, txt="x", start=0.5, end=1.5), CONF)
    assert (whole.shape, part.shape) == ((198, 80), (98, 80))
    torch.testing.assert_close(part[5:-5], whole[55:-55], atol=0.05, rtol=0)  # except the resampler's edges


def test_errors_name_the_utterance_and_the_file(tmp_path: Path) -> None:
    (clip,) = write_clips(tmp_path, [1.0])
    fault = r"^utterance u0: .*0\.wav: cut off: 1\.00 s, the data list says 2\.00 s; .* prepare the data again$"
    with pytest.raises(DataError, match=fault):
        utterance_features(replace(clip, duration=2.0), CONF)


@pytest.mark.parametrize(("training", "spec_aug"), [(True, True), (True, False), (False, True)])
def test_features_on_the_device_are_equal_to_a_thousandth(tmp_path: Path, training: bool, spec_aug: bool) -> None:
    worker = PLAIN.model_copy(update={"speed_perturb": True, "spec_aug": spec_aug, "max_bad_clips": 0.5})
    device = worker.model_copy(update={"features_on": "device"})
    utterances = write_clips(tmp_path, [0.5 + 1777 * i / 16000 for i in range(7)])
    on_worker, on_device = (make_dataset(utterances, conf, training=training) for conf in (worker, device))
    Path(utterances[3].wav).unlink()
    plan = on_worker.plan(0)
    made = [with_features(batch, device) for batch in batches(on_device, plan, 1)]
    for batch, expected in zip(made, batches(on_worker, plan, 1), strict=True):
        for name in ("keys", "num_frames", "quarantined", "num_targets", "audio_seconds"):
            assert getattr(batch, name) == getattr(expected, name)
        assert torch.equal(batch.feature_lengths, expected.feature_lengths)
        torch.testing.assert_close(batch.features, expected.features, atol=1e-3, rtol=0)
    assert with_features(made[0], device) is made[0]
