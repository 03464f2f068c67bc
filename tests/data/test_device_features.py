# SPDX-License-Identifier: Apache-2.0
"""Features of a batch on the device are those of the worker, whatever is random and whatever is hidden."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from pydantic import ValidationError

from wenet_hs.config.dataset import BatchConf, DatasetConf, FbankConf
from wenet_hs.data.dataset import SpeechDataset, batches, with_features
from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable

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
    with pytest.raises(ValidationError, match="features_on: device computes features anew; set cache_features: false"):
        DatasetConf(features_on="device", cache_features=True)
    with pytest.raises(ValidationError, match="features_on: device has no dither; set fbank_conf.dither: 0, or worker"):
        DatasetConf(features_on="device", fbank_conf=FbankConf(dither=1.0))
