# SPDX-License-Identifier: Apache-2.0
"""Which utterances can be trained on, and why the others cannot."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wenet_hs.config.dataset import FilterConf

FRAMES_PER_SECOND = 100  # filter_conf counts in frames of 10 ms, whatever the frame shift, as WeNet does


def ctc_frames_needed(ids: Sequence[int]) -> int:
    """The fewest encoder frames that CTC can align with a label: one a unit, and a blank between equal neighbours."""
    return len(ids) + sum(left == right for left, right in pairwise(ids))


def reason_to_reject(ids: Sequence[int], duration_s: float, num_encoder_frames: int, conf: FilterConf) -> str | None:
    """Why an utterance is left out of training, or None if it is good.

    Args:
        ids: the transcript's unit ids.
        num_encoder_frames: how many frames the encoder makes of it; CTC needs one a unit and one a repeat.
        conf: WeNet's limits; lengths in frames of 10 ms, ratios in units a frame.
    """
    frames = duration_s * FRAMES_PER_SECOND
    if not ids:
        return "empty transcript"
    if frames < conf.min_length:
        return f"too short: {duration_s:.3f} s, filter_conf.min_length is {conf.min_length} frames of 10 ms"
    if frames > conf.max_length:
        return f"too long: {duration_s:.1f} s, filter_conf.max_length is {conf.max_length} frames of 10 ms"
    if len(ids) < conf.token_min_length:
        return f"too few units: {len(ids)}, filter_conf.token_min_length is {conf.token_min_length}"
    if len(ids) > conf.token_max_length:
        return f"too many units: {len(ids)}, filter_conf.token_max_length is {conf.token_max_length}"
    if num_encoder_frames < max(1, ctc_frames_needed(ids)):
        return f"fewer frames than labels: {num_encoder_frames} encoder frames, CTC needs {ctc_frames_needed(ids)}"
    ratio = len(ids) / frames
    if ratio < conf.min_output_input_ratio:
        return f"too few units for its length: {ratio:.4f} a frame, at least {conf.min_output_input_ratio:g} wanted"
    if ratio > conf.max_output_input_ratio:
        return f"too many units for its length: {ratio:.4f} a frame, at most {conf.max_output_input_ratio:g} wanted"
    return None


def usable(
    num_units: NDArray[np.int32],
    frames_needed: NDArray[np.int32],
    durations: NDArray[np.float64],
    num_encoder_frames: NDArray[np.int64],
    conf: FilterConf,
) -> NDArray[np.bool_]:
    """Where `reason_to_reject` gives None, for many utterances at once. All arrays: (N,)."""
    frames = durations * FRAMES_PER_SECOND
    good = (num_units > 0) & (frames >= conf.min_length) & (frames <= conf.max_length)
    good &= (num_units >= conf.token_min_length) & (num_units <= conf.token_max_length)
    good &= num_encoder_frames >= np.maximum(1, frames_needed)
    ratios = np.divide(num_units, frames, out=np.zeros(len(frames)), where=frames > 0)
    return good & (ratios >= conf.min_output_input_ratio) & (ratios <= conf.max_output_input_ratio)
