# SPDX-License-Identifier: Apache-2.0
"""Features of utterances, and features of a batch on the device."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from noise_clips import PLAIN, make_dataset, noise, write_clips

from wenet_hs.data.dataset import batches, with_features
from wenet_hs.data.features import FeatureCache, utterance_features
from wenet_hs.frontends import Fbank, build_frontend
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import DataError

FBANK = Fbank()


def test_an_utterance_is_resampled_and_cut_to_its_segment(tmp_path: Path) -> None:
    path = str(tmp_path / "a.wav")
    soundfile.write(path, noise(16000).numpy(), 8000)
    whole = utterance_features(Utterance(key="a", wav=path, txt="x", duration=2.0), FBANK)
    part = utterance_features(Utterance(key="a", wav=path, txt="x", start=0.5, end=1.5), FBANK)
    assert (whole.shape, part.shape) == ((198, 80), (98, 80))
    torch.testing.assert_close(
        part[5:-5], whole[55:-55], atol=0.05, rtol=0
    )  # except the resampler's edges


def test_errors_name_the_utterance_and_the_file(tmp_path: Path) -> None:
    (clip,) = write_clips(tmp_path, [1.0])
    fault = r"^utterance u0: .*0\.wav: cut off: 1\.00 s, the data list says 2\.00 s; .* prepare the data again$"
    with pytest.raises(DataError, match=fault):
        utterance_features(replace(clip, duration=2.0), FBANK)


@pytest.mark.parametrize(("training", "spec_aug"), [(True, True), (True, False), (False, True)])
def test_features_on_the_device_are_equal_to_a_thousandth(
    tmp_path: Path, training: bool, spec_aug: bool
) -> None:
    worker = PLAIN.model_copy(
        update={"speed_perturb": True, "spec_aug": spec_aug, "max_bad_clips": 0.5}
    )
    device = worker.model_copy(update={"features_on": "device"})
    utterances = write_clips(tmp_path, [0.5 + 1777 * i / 16000 for i in range(7)])
    on_worker, on_device = (
        make_dataset(utterances, conf, training=training) for conf in (worker, device)
    )
    Path(utterances[3].wav).unlink()
    plan = on_worker.plan(0)
    made = [with_features(batch, build_frontend(device)) for batch in batches(on_device, plan, 1)]
    for batch, expected in zip(made, batches(on_worker, plan, 1), strict=True):
        for name in ("keys", "num_frames", "quarantined", "num_targets", "audio_seconds"):
            assert getattr(batch, name) == getattr(expected, name)
        assert torch.equal(batch.feature_lengths, expected.feature_lengths)
        torch.testing.assert_close(batch.features, expected.features, atol=1e-3, rtol=0)
    assert with_features(made[0], build_frontend(device)) is made[0]


def test_a_slot_whose_features_are_not_those_that_were_written_is_empty(tmp_path: Path) -> None:
    path, frames = tmp_path / "cache.bin", np.array([[3], [4]])
    features = torch.arange(6.0).view(3, 2)
    FeatureCache(path, frames, 2, is_half=True).put(0, 0, features, key="a", is_incomplete=True)
    cache = FeatureCache(path, frames, 2, is_half=True)
    found = cache.get(0, 0)
    assert found is not None and torch.equal(found[0], features) and found[1]
    assert cache.get(1, 0) is None
    content = bytearray(path.read_bytes())
    content[2 * 8 + 4] ^= 1  # after two lengths and two sums
    path.write_bytes(content)
    assert FeatureCache(path, frames, 2, is_half=True).get(0, 0) is None


def test_a_file_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    path, frames = tmp_path / "cache.bin", np.array([[3], [4000]])
    FeatureCache(path, frames, 2).put(0, 0, torch.ones(3, 2), key="a", is_incomplete=False)
    size = path.stat().st_size
    os.truncate(path, 100)
    assert FeatureCache(path, frames, 2).get(0, 0) is None
    facts = path.stat()
    assert facts.st_size == size <= facts.st_blocks * 512, "the space is reserved"


def test_the_first_clip_that_is_not_kept_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = FeatureCache(tmp_path / "cache.bin", np.array([[3], [4]]), 2)
    for key, length in (("a", 4), ("b", 5), ("c", 6)):
        cache.put(1, 0, torch.ones(length, 2), key=key, is_incomplete=False)
    message = "dataset_conf.cache_features: b has 5 frames, kept are at most 4 by its listed duration; such clips are"
    assert [record.getMessage() for record in caplog.records] == [
        f"{message} computed in each epoch"
    ]
