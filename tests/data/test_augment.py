# SPDX-License-Identifier: Apache-2.0
"""SpecAugment masks within its limits, speed changes length and pitch, noise has its SNR,
reverberation its length.
"""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from noise_clips import PLAIN, RATE, make_dataset, noise, write_clips

from wenet_hs.config.dataset import DatasetConf, NoiseConf, ReverbConf, SpecAugConf
from wenet_hs.data.augment import (
    Distortions,
    add_noise,
    apply_masks,
    draw_masks,
    reverberate,
    speed_perturb,
)
from wenet_hs.tree.errors import DataError


def draw(num_frames: int, conf: SpecAugConf, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    return draw_masks(num_frames, 80, conf, torch.Generator().manual_seed(seed))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 400),
    st.integers(0, 4),
    st.integers(0, 100),
    st.floats(0, 1),
    st.integers(0, 2**32),
)
def test_masks_are_within_the_limits(
    num_frames: int, num_masks: int, max_width: int, share: float, seed: int
) -> None:
    widths = {"max_t": max_width, "max_f": max_width // 5, "max_t_share": share}
    conf = SpecAugConf(num_t_mask=num_masks, num_f_mask=num_masks, **widths)
    keep_T, keep_F = draw(num_frames, conf, seed)
    assert int((~keep_T).sum()) <= min(num_masks * max_width, share * num_frames)
    assert int((~keep_F).sum()) <= num_masks * (max_width // 5)


def test_masked_values_are_the_mean_of_their_bin() -> None:
    features = noise(100 * 80).view(100, 80)
    before, state = features.clone(), torch.get_rng_state()
    keep_T, keep_F = masks = draw(100, SpecAugConf(), 5)
    after, kept = apply_masks(features, masks), keep_T[:, None] & keep_F
    assert 0 < int((~kept).sum()) < 8000
    assert torch.equal(after[kept], before[kept])
    assert torch.equal(after[~kept], before.mean(0).expand_as(before)[~kept])
    assert torch.equal(features, before) and torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, masks, draw(100, SpecAugConf(), 5)))


def test_widths_of_masks_are_uniform_up_to_the_maximum() -> None:
    conf = SpecAugConf(num_t_mask=1, num_f_mask=1, max_t=50, max_f=10)
    of_frames, of_bins = zip(*(draw(200, conf, seed) for seed in range(300)), strict=True)
    for masks, max_width in ((of_frames, 50), (of_bins, 10)):
        masked = ~torch.stack(masks)
        widths = masked.sum(1).double()
        assert (int(widths.min()), int(widths.max())) == (0, max_width)
        assert float(widths.mean()) == pytest.approx(max_width / 2, abs=0.07 * max_width)
        assert masked.any(dim=0).all(), "each frame and each bin is masked in some draw"


@pytest.mark.parametrize(("share", "widest"), [(0.5, 25), (1.0, 50)])
def test_the_largest_share_of_masked_frames_is_a_setting(share: float, widest: int) -> None:
    conf = SpecAugConf(num_t_mask=2, num_f_mask=0, max_t=50, max_t_share=share)
    masked = [int((~draw(100, conf, seed)[0]).sum()) for seed in range(200)]
    assert widest < max(masked) <= 2 * widest, "one second, two blocks"


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
def test_speed_changes_length_and_pitch(factor: float) -> None:
    for num_samples in (1, 1601):
        assert len(speed_perturb(torch.ones(num_samples), factor)) == round(num_samples / factor)
    tone = torch.sin(2 * torch.pi * 1000 * torch.arange(16000) / 16000)
    spectrum = torch.fft.rfft(speed_perturb(tone, factor)[:8000]).abs()
    assert int(spectrum.argmax()) * 2 == pytest.approx(1000 * factor, abs=2)


def write_list(folder: Path, **clips: torch.Tensor) -> str:
    """A list of recordings with empty lines."""
    for name, samples in clips.items():
        soundfile.write(folder / f"{name}.wav", samples.numpy(), RATE, subtype="FLOAT")
    (folder / "list").write_text("".join(f"{folder}/{name}.wav\n\n" for name in clips))
    return str(folder / "list")


def apply(distortions: Distortions, speech: torch.Tensor, seed: int = 0) -> torch.Tensor:
    return distortions.apply(speech, lambda what: torch.Generator().manual_seed(seed + len(what)))


def snr_db(speech: torch.Tensor, noisy: torch.Tensor) -> float:
    return 20 * float(torch.log10(speech.double().norm() / (noisy - speech).double().norm()))


@pytest.mark.parametrize("expected", [-5.0, 12.5])
def test_noise_has_the_required_snr(expected: float) -> None:
    speech, added = noise(8000), 3 * noise(8000, 1)
    noisy = add_noise(speech, added, expected)
    assert snr_db(speech, noisy) == pytest.approx(expected, abs=0.01)
    assert torch.allclose(
        (noisy - speech) / (noisy - speech).norm(), added / added.norm(), atol=1e-4
    )
    assert not add_noise(torch.zeros(10), added[:10], expected).any()


LONG_PAUSES = torch.zeros(160_000).index_fill(0, torch.arange(80_000, 80_100), 0.3)


@pytest.mark.parametrize(
    "recording", [noise(800, 2), noise(48_000, 2), LONG_PAUSES], ids=["short", "long", "pauses"]
)
def test_noise_of_any_length_without_its_pauses(tmp_path: Path, recording: torch.Tensor) -> None:
    conf = NoiseConf(list=write_list(tmp_path, n=recording), prob=1.0, snr_db=(3.0, 9.0))
    distortions, speech = Distortions(DatasetConf(noise_conf=conf)), noise(8000)
    found = [snr_db(speech, apply(distortions, speech, seed)) for seed in range(20)]
    assert 2.99 < min(found) < 5.0 and 7.0 < max(found) < 9.01


def test_reverberation_keeps_length_position_and_power() -> None:
    speech = torch.zeros(4000)
    speech[1000], speech[2500] = 0.5, -0.25
    response = torch.zeros(900)
    response[300], response[310], response[800] = (
        1.0,
        0.5,
        0.2,
    )  # 300 samples before the direct sound
    wet = reverberate(speech, response)
    assert wet.shape == speech.shape
    assert int(wet.abs().argmax()) == 1000
    assert (wet[[1010, 1500, 2500]] / wet[1000]).tolist() == pytest.approx(
        [0.5, 0.2, -0.5], abs=1e-6
    )  # convolution
    assert float(wet.norm()) == pytest.approx(float(speech.norm()), rel=1e-6)
    assert reverberate(noise(500), noise(4000, 3)).shape == (500,)
    assert not reverberate(torch.zeros(50), response).any()


def test_distortions_depend_only_on_seed_epoch_and_utterance(tmp_path: Path) -> None:
    utterances = write_clips(tmp_path, [0.5 + 0.06 * i for i in range(5)])
    clips = write_list(tmp_path, n=noise(RATE, 8), r=noise(900, 9))
    conf = PLAIN.model_copy(
        update={"noise_conf": NoiseConf(list=clips), "reverb_conf": ReverbConf(list=clips)}
    )
    data, again, clean = (make_dataset(utterances, each) for each in (conf, conf, PLAIN))
    items = [(index, epoch) for epoch in range(3) for index in range(5)]
    backwards = {item: again.make_example(*item).features for item in reversed(items)}
    num_changed = 0
    for item in items:
        features, undistorted = (
            data.make_example(*item).features,
            clean.make_example(*item).features,
        )
        assert torch.equal(features, backwards[item])
        assert features.shape == undistorted.shape
        num_changed += not torch.equal(features, undistorted)
    assert 5 < num_changed < 15
    none = PLAIN.model_copy(update={"noise_conf": NoiseConf(list=str(tmp_path / "none"), prob=1.0)})
    data, clean = (make_dataset(utterances, each, training=False) for each in (none, PLAIN))
    assert torch.equal(data.make_example(0, 0).features, clean.make_example(0, 0).features), (
        "validation has no distortions"
    )


def test_a_list_without_recordings_is_refused(tmp_path: Path) -> None:
    for content, fault in (
        (None, r"list: cannot be read \(No such file or directory\); check the path"),
        ("\n", "list: contains no recordings; write one path per line"),
        (
            'a.wav\n{"key": "a"}\n',
            "list:2: not the path of a recording; write only the path, without JSON",
        ),
    ):
        if content is not None:
            (tmp_path / "list").write_text(content)
        with pytest.raises(DataError, match=fault):
            make_dataset([], DatasetConf(noise_conf=NoiseConf(list=str(tmp_path / "list"))))


@pytest.mark.parametrize("seconds", [0.1, 2.0, None])
def test_an_unusable_recording_is_named_with_its_line(
    tmp_path: Path, seconds: float | None
) -> None:
    clips, faults = tmp_path / "list", ("missing; restore the file, or leave it out",) * 2
    clips.write_text(f"\n{tmp_path}/s.wav\n")
    if seconds is not None:
        faults = (
            "silent, so no SNR can be set; take it out of",
            "silent, no impulse response; take it out of",
        )
        soundfile.write(
            tmp_path / "s.wav", np.full(round(seconds * RATE), 1e-5), RATE, subtype="FLOAT"
        )
    noises, rooms = NoiseConf(list=str(clips), prob=1.0), ReverbConf(list=str(clips), prob=1.0)
    for conf, fault in zip(
        (DatasetConf(noise_conf=noises), DatasetConf(reverb_conf=rooms)), faults, strict=True
    ):
        with pytest.raises(DataError, match=rf"^{clips}:2: {tmp_path}/s.wav: {fault}"):
            apply(Distortions(conf), noise(8000))
