# SPDX-License-Identifier: Apache-2.0
"""What the batches of one optimizer step are on all ranks together, told before the first of them is computed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from wenet_hs.data.batching import Batch
from wenet_hs.distributed import World
from wenet_hs.train.guard import suspects


@dataclass(frozen=True)
class WindowSum:
    """Sums over the micro batches of all ranks."""

    num_batches: int
    num_targets: int
    num_drawn: int
    num_bad: int
    num_frames: int
    """Feature frames of utterances."""
    num_computed: int
    """Feature frames with their padding."""
    audio_seconds: float

    @classmethod
    def of(cls, window: Sequence[Batch], world: World) -> "WindowSum":
        """All ranks have to ask, each with its own batches."""
        mine = (
            len(window),
            sum(batch.num_targets for batch in window),
            sum(batch.num_drawn for batch in window),
            sum(len(batch.quarantined) for batch in window),
            sum(batch.num_frames for batch in window),
            sum(batch.features.size(0) * batch.features.size(1) for batch in window),
            sum(batch.audio_seconds for batch in window),
        )
        *counts, audio_seconds = world.sum(mine)
        batches, targets, drawn, bad, frames, computed = map(int, counts)
        return cls(batches, targets, drawn, bad, frames, computed, audio_seconds)

    @property
    def padding_share(self) -> float:
        """Of the feature frames that are computed, how many stand behind the end of an utterance."""
        return 1 - self.num_frames / self.num_computed


def suspects_of_all(window: Sequence[Batch], totals: Sequence[float], world: World) -> tuple[str, ...]:
    """`guard.suspects` of the ranks that may be the cause. All ranks have to ask.

    Those whose features are not finite, if there are any: batch normalisation spreads what they hold over all ranks.
    Otherwise those whose losses are not finite, or else all.
    """
    features_are_finite = all(bool(torch.isfinite(batch.features).all()) for batch in window)
    level = 2 if not features_are_finite else 0 if all(map(math.isfinite, totals)) else 1
    found = world.all_gather((level, suspects(window, totals)))
    worst = max(level for level, _ in found)
    return tuple(key for level, keys in found if level == worst for key in keys)
