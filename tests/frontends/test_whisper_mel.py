# SPDX-License-Identifier: Apache-2.0
"""Whisper's features: those of transformers, the same in a batch, and windows of 30 s with silence
at their end.
"""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wenet_hs.frontends import WhisperMel
from wenet_hs.tree.errors import ConfigError


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return 0.1 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("bins", "silence_s"), [(80, 0.4), (128, 2.0)])
def test_features_are_those_of_transformers(bins: int, silence_s: float) -> None:
    """A clip that Whisper fills to 30 s, up to the end of our silence; and a longer one, window by
    window.
    """
    transformers = pytest.importorskip(
        "transformers", reason="transformers, the reference, is not installed"
    )
    theirs = transformers.WhisperFeatureExtractor(feature_size=bins)
    ours = WhisperMel(bins, silence_s=silence_s)
    window = (3000 - ours.silence_frames) * 160
    tone = (
        torch.sin(torch.arange(window + 5000) * 0.3) * torch.linspace(0, 1, window + 5000) ** 4
    )  # a long soft begin
    for wave in (noise(1), noise(160), noise(23456), 1e-4 * noise(8000), torch.zeros(640), tone):
        parts = [
            theirs(part.numpy(), sampling_rate=16000)["input_features"][0].T
            for part in wave.split(window)
        ]
        lengths = [ours.length(len(part)) for part in wave.split(window)]
        expected = np.concatenate(
            [part[:length] for part, length in zip(parts, lengths, strict=True)]
        )
        np.testing.assert_allclose(ours.compute(wave).numpy(), expected, atol=1e-4, rtol=0)


@settings(max_examples=40, deadline=None)
@example(num_samples=474_400, silence_s=0.35)  # 18 frames: 2,982 × 160 = 477,120
@example(num_samples=477_120, silence_s=0.36)
@example(num_samples=477_121, silence_s=0.36)
@given(num_samples=st.integers(0, 2_000_000), silence_s=st.floats(0.2, 29))
def test_frames_of_audio_and_of_silence(num_samples: int, silence_s: float) -> None:
    mel = WhisperMel(silence_s=silence_s)
    total, audio = mel.length(num_samples), -(-num_samples // 320) * 2
    windows = -(-audio // (3000 - mel.silence_frames))
    assert (
        total == audio + windows * mel.silence_frames and total % 2 == 0 and total <= 3000 * windows
    )
    assert mel.silence_frames % 2 == 0 and abs(mel.silence_frames / 100 - silence_s) <= 0.01 + 1e-9
    assert mel.audio_frames(total) == audio
    assert mel.length(np.array([num_samples, 0])).tolist() == [total, 0]
    assert (
        mel.audio_frames(np.array([total, 0])).tolist()
        == mel.audio_frames(torch.tensor([total, 0])).tolist()
    )
    assert mel.audio_frames(torch.tensor([total, 0])).tolist() == [audio, 0]
    assert mel.count_frames(np.array([num_samples / 16000])).tolist() == [total]


@settings(max_examples=10, deadline=None)
@example(lengths=[16_000, 16_001, 0], silence_s=29.0, seed=0)  # windows of 1 s
@example(lengths=[80_000, 1, 35_000], silence_s=29.0, seed=1)
@given(
    lengths=st.lists(st.integers(0, 40_000), min_size=1, max_size=3),
    silence_s=st.sampled_from((0.2, 0.4, 28.5)),
    seed=st.integers(0, 2**31),
)
def test_padding_changes_no_frame(lengths: list[int], silence_s: float, seed: int) -> None:
    """Rows that differ in loudness, one of them silent; the number of frames is known before."""
    mel = WhisperMel(silence_s=silence_s)
    waves = [
        noise(length, seed=seed + row) * 10.0 ** -(3 * row) for row, length in enumerate(lengths)
    ]
    waves.append(torch.zeros(max(lengths)))
    rows = mel.compute(torch.nn.utils.rnn.pad_sequence(waves, batch_first=True))
    assert rows.shape == (len(waves), mel.length(max(lengths)), mel.width)
    for wave, row in zip(waves, rows, strict=True):
        alone = mel.compute(wave)
        assert alone.shape == (mel.length(len(wave)), 80)
        torch.testing.assert_close(row[: len(alone)], alone, atol=1e-4, rtol=0)


def test_a_frame_is_centred_at_its_time() -> None:
    """A click is loudest in the frame that stands for its time: half a hop before and after its
    centre.
    """
    mel = WhisperMel()
    assert (mel.frame_s, mel.offset_s, mel.span_s(1), mel.span_s(2)) == pytest.approx(
        (0.01, -0.005, 0.0, 0.01)
    )
    for sample in (0, 1974, 3279, 3281):
        wave = torch.zeros(8000)
        wave[sample] = 1.0
        loudest = int(mel.compute(wave).sum(-1).argmax())
        assert loudest * mel.frame_s <= sample / 16000 - mel.offset_s <= (loudest + 1) * mel.frame_s


def test_features_are_float32_under_autocast() -> None:
    wave, mel = noise(8000), WhisperMel()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(mel.compute(wave), mel.compute(wave.clone()))
        under = mel.compute(wave)
    assert torch.equal(under, mel.compute(wave))


@pytest.mark.parametrize("silence_s", [0.19, 29.5, float("nan")])
def test_silence_out_of_range_is_refused(silence_s: float) -> None:
    with pytest.raises(ConfigError, match=r"silence_s: \S+ s; use 0.2 to 29 s"):
        WhisperMel(silence_s=silence_s)
