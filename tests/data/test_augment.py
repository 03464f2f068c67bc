# SPDX-License-Identifier: Apache-2.0
"""SpecAugment hides what it may and nothing else; speed changes length and pitch by its factor."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.config.dataset import SpecAugConf
from wenet_hs.data.augment import apply_masks, draw_masks, speed_perturb


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


@settings(max_examples=60, deadline=None)
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
    frames, bins = zip(*(masked(300, conf, seed) for seed in range(600)), strict=True)
    widths_t = np.array([int(mask.sum()) for mask in frames])
    widths_f = np.array([int(mask.sum()) for mask in bins])
    assert (widths_t.min(), widths_t.max()) == (0, 50)
    assert (widths_f.min(), widths_f.max()) == (0, 10)
    assert widths_t.mean() == pytest.approx(25, abs=2)
    assert widths_f.mean() == pytest.approx(5, abs=0.5)


def test_every_place_is_hidden_at_times() -> None:
    conf = SpecAugConf(num_t_mask=2, num_f_mask=2, max_t=50, max_f=10)
    frames, bins = zip(*(masked(200, conf, seed) for seed in range(600)), strict=True)
    assert torch.stack(frames).any(dim=0).all()
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


def test_speed_of_one_changes_nothing() -> None:
    waveform = torch.randn(100, generator=torch.Generator().manual_seed(0))
    assert speed_perturb(waveform, 1.0) is waveform
