# SPDX-License-Identifier: Apache-2.0
"""Frontends: numbers and times of frames, dither, batches, and that no other package has their
arithmetic.
"""

import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wenet_hs.config.dataset import DatasetConf, FbankConf, ResampleConf
from wenet_hs.frontends import Fbank, Waveform, build_frontend
from wenet_hs.frontends.stream import FbankStream
from wenet_hs.tree.errors import ConfigError

PACKAGE = Path(__file__).parents[2] / "wenet_hs"


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return 0.1 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=25, deadline=None)
@example(1720, 8000, 20, 5)
@given(
    st.integers(0, 5000),
    st.sampled_from([8000, 11025]),
    st.sampled_from([20, 32.5]),
    st.sampled_from([5, 12.5]),
)
def test_the_number_of_frames_is_known_before(
    num_samples: int, rate: int, length: float, shift: float
) -> None:
    fbank_conf = FbankConf(num_mel_bins=20, frame_length=length, frame_shift=shift)
    frontend = build_frontend(
        DatasetConf(fbank_conf=fbank_conf, resample_conf=ResampleConf(resample_rate=rate))
    )
    frames = frontend.length(num_samples)
    assert frontend.compute(noise(num_samples)).shape == (frames, 20) == (frames, frontend.width)
    assert frontend.count_frames(np.array([num_samples / rate])).tolist() == [frames]
    assert frames == 0 or frontend.span_s(frames) - 1e-9 <= num_samples / rate < frontend.span_s(
        frames + 1
    )
    assert Waveform(rate).count_frames(np.array([num_samples / rate])).tolist() == [num_samples]


def test_only_whole_windows_give_frames() -> None:
    assert [Fbank().length(n) for n in (0, 399, 400, 559, 560)] == [0, 0, 1, 1, 2]
    assert Fbank().length(np.array([399, 560])).tolist() == [0, 2]
    assert [Fbank().compute(noise(*shape)).shape for shape in ((399,), (2, 399))] == [
        (0, 80),
        (2, 0, 80),
    ]
    assert torch.isfinite(Fbank().compute(torch.zeros(1600))).all()


def test_a_frame_stands_for_the_middle_of_its_window() -> None:
    """A click is loudest in the frame that stands for its time."""
    fbank = Fbank()
    assert (fbank.frame_s, fbank.offset_s, fbank.span_s(1)) == pytest.approx((0.010, 0.0075, 0.025))
    for time_s in (0.1, 0.1234, 0.2051):
        waveform = torch.zeros(8000)
        waveform[round(time_s * 16000)] = 1.0
        loudest = int(fbank.compute(waveform).sum(-1).argmax())
        assert loudest * fbank.frame_s <= time_s - fbank.offset_s <= (loudest + 1) * fbank.frame_s
    wave = Waveform(16000)
    assert (wave.frame_s, wave.offset_s, wave.span_s(400)) == pytest.approx((1 / 16000, 0.0, 0.025))
    assert wave.compute(waveform) is waveform


@pytest.mark.parametrize("profile", ["wenet", "sherpa"])
@settings(max_examples=40, deadline=None)
@given(num_samples=st.integers(0, 3000), cuts=st.lists(st.integers(0, 3000), max_size=5))
def test_a_stream_has_the_frames_of_the_whole(
    profile: Literal["wenet", "sherpa"], num_samples: int, cuts: list[int]
) -> None:
    frontend, wave = Fbank(profile=profile), noise(num_samples)
    stream, ends = (
        FbankStream(frontend),
        [*sorted(min(cut, num_samples) for cut in cuts), num_samples],
    )
    parts = [stream.advance(wave[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    found = torch.cat([*parts, stream.finish()])
    assert len(found) == frontend.length(num_samples)
    torch.testing.assert_close(found, frontend.compute(wave), atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_samples", [400, 1234, 16000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch_has_the_features_of_its_utterances_also_under_autocast(
    num_samples: int, dtype: torch.dtype
) -> None:
    waves, fbank = noise(3, num_samples), Fbank(num_mel_bins=23)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        of_batch = fbank.compute(waves)
    assert of_batch.dtype == torch.float32
    torch.testing.assert_close(
        of_batch, torch.stack([fbank.compute(wave) for wave in waves]), atol=1e-4, rtol=0
    )


def test_dither_uses_only_its_generator() -> None:
    waveform, state, fbank = noise(4000), torch.get_rng_state(), Fbank(dither=1.0)
    first, again, other = (
        fbank.compute(waveform, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again) and not torch.equal(first, other)
    torch.testing.assert_close(first, fbank.compute(waveform), atol=0.1, rtol=0)
    assert torch.equal(fbank.compute(waveform), Fbank().compute(waveform))


def test_impossible_settings_are_refused() -> None:
    for fbank_conf, message in (
        (
            FbankConf(frame_length=0.1),
            "fbank_conf: frame_length 0.1 ms or .* is under two samples at 16000 Hz; use",
        ),
        (
            FbankConf(frame_shift=0.1),
            "or frame_shift 0.1 ms is under two samples at 16000 Hz; use more",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            build_frontend(DatasetConf(fbank_conf=fbank_conf))


def test_no_other_package_has_arithmetic_of_frames() -> None:
    """Only config/, which defines the settings, names them too; other projects have such a key.

    No torchaudio.
    """
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name, text = path.relative_to(PACKAGE).as_posix(), path.read_text("utf-8")
        assert not re.search(r"^\s*(from|import) torchaudio", text, re.MULTILINE), name
        if re.search(
            'fbank_conf|frame_length|frame_shift|num_mel_bins(?!")|frame_samples|snip', text
        ):
            found[name] = name.partition("/")[0]
    assert set(found.values()) == {"config", "frontends"}, found
