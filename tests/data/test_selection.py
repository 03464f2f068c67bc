# SPDX-License-Identifier: Apache-2.0
"""Each reason to leave an utterance out of training, and CTC's own limit against torch's loss."""

import itertools

import pytest
import torch

from wenet_hs.config.dataset import FilterConf
from wenet_hs.data.sampling import ctc_frames_needed, reason_to_reject


def test_ctc_can_align_exactly_from_the_frames_needed_on() -> None:
    """All labels of up to 4 units out of 2 against torch: the loss is finite where the frames suffice, only there."""
    for length in range(1, 5):
        for label in itertools.product((1, 2), repeat=length):
            for frames in range(1, 9):
                loss = torch.nn.functional.ctc_loss(
                    torch.zeros(frames, 1, 3).log_softmax(-1),
                    torch.tensor([label]),
                    torch.tensor([frames]),
                    torch.tensor([length]),
                    reduction="sum",
                )
                assert bool(torch.isfinite(loss)) is (frames >= ctc_frames_needed(label)), (label, frames)


CONF = FilterConf(max_length=1000, min_length=20, token_max_length=8, token_min_length=2, min_output_input_ratio=0.005)


@pytest.mark.parametrize(
    ("ids", "duration_s", "num_encoder_frames", "reason"),
    [
        ([5, 6, 7], 1.0, 24, None),
        ([], 1.0, 24, "empty transcript"),
        ([5, 6], 0.19, 4, "too short: 0.190 s, filter_conf.min_length is 20 frames of 10 ms"),
        ([5, 6], 10.5, 260, "too long: 10.5 s, filter_conf.max_length is 1000 frames of 10 ms"),
        ([5], 1.0, 24, "too few units: 1, filter_conf.token_min_length is 2"),
        ([5, 6] * 5, 1.0, 24, "too many units: 10, filter_conf.token_max_length is 8"),
        ([5, 6, 7, 8, 9], 0.2, 4, "fewer frames than labels: 4 encoder frames, CTC needs 5"),
        ([5, 5, 5], 0.2, 4, "fewer frames than labels: 4 encoder frames, CTC needs 5"),
        ([5, 6, 5], 0.2, 4, None),
        ([5, 6], 9.0, 224, "too few units for its length: 0.0022 per frame, at least 0.005 wanted"),
    ],
)
def test_reasons(ids: list[int], duration_s: float, num_encoder_frames: int, reason: str | None) -> None:
    assert reason_to_reject(ids, duration_s, num_encoder_frames, CONF) == reason


def test_too_many_units_for_the_length() -> None:
    conf = FilterConf(max_output_input_ratio=0.1)
    reason = reason_to_reject([1, 2, 3], 0.2, 10, conf)
    assert reason == "too many units for its length: 0.1500 per frame, at most 0.1 wanted"
