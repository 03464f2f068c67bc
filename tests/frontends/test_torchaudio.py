# SPDX-License-Identifier: Apache-2.0
"""The log-Mel features are the bits of torchaudio's, dither included."""

from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.frontends import Fbank

kaldi = pytest.importorskip(
    "torchaudio.compliance.kaldi", reason="torchaudio, the reference, is not installed"
)

RATES = (8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000)
FRAMES_MS = ((25.0, 10.0), (20.0, 5.0), (32.5, 12.5), (10.0, 10.0), (5.0, 20.0))


@settings(max_examples=80, deadline=None)
@given(
    rate=st.sampled_from(RATES),
    bins=st.sampled_from((4, 7, 20, 23, 40, 64, 80, 128)),
    frames_ms=st.sampled_from(FRAMES_MS),
    dither=st.sampled_from((0.0, 0.1, 1.0)),
    added=st.one_of(st.integers(0, 3), st.integers(4, 30_000)),
    scale=st.sampled_from((0.0, 1e-6, 0.1, 1.0)),
    profile=st.sampled_from(("wenet", "sherpa")),
    seed=st.integers(0, 2**31),
)
def test_features_are_the_bits_of_torchaudio(
    rate: int,
    bins: int,
    frames_ms: tuple[float, float],
    dither: float,
    added: int,
    scale: float,
    profile: Literal["wenet", "sherpa"],
    seed: int,
) -> None:
    """From the shortest waveform that has a frame; the same random numbers are drawn in the same
    order.
    """
    length_ms, shift_ms = frames_ms if profile == "wenet" else (25.0, 10.0)
    lengths = {"frame_length_ms": length_ms, "frame_shift_ms": shift_ms}
    ours = Fbank(rate, num_mel_bins=bins, dither=dither, profile=profile, **lengths)
    waveform = scale * torch.randn(
        int(rate * length_ms * 0.001) + added, generator=torch.Generator().manual_seed(seed)
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        theirs = kaldi.fbank(
            waveform[None] * 32768,
            num_mel_bins=bins,
            frame_length=length_ms,
            frame_shift=shift_ms,
            dither=dither,
            energy_floor=0.0,
            sample_frequency=float(rate),
            snip_edges=profile == "wenet",
            high_freq=0.0 if profile == "wenet" else -400.0,
        )
    assert torch.equal(ours.compute(waveform, torch.Generator().manual_seed(seed)), theirs)
