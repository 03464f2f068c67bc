# SPDX-License-Identifier: Apache-2.0
"""The settings of the optimizer, of the learning rate and of early stopping."""

from typing import Literal

from pydantic import Field

from wenet_hs.config.section import (
    BelowOne,
    Count,
    CountOrZero,
    FreeOnResume,
    Positive,
    PositiveOrZero,
    Section,
)

Metric = Literal["loss", "loss_att", "loss_ctc", "accuracy", "bits_per_unit"]
"""What a validation measures.

The highest `accuracy` is the best one; of the others the lowest is.
"""


class OptimConf(Section):
    """The optimizer.

    The defaults are those of PyTorch; with `optim: adamw` that of `weight_decay` is 0.01.
    """

    lr: Positive = 1e-3
    """Learning rate; with a schedule, the rate at the end of the warm-up."""
    lr_of: dict[str, Positive] = Field(default_factory=dict)
    """Learning rates of parts, by the prefixes of their parameters as in `freeze`, the longest one
    counts: `{encoder: 1.0e-5}`. `lr` is that of all others; the schedule multiplies each.
    """
    betas: tuple[BelowOne, BelowOne] = Field(default=(0.9, 0.999), strict=False)
    """Decay rates of the running means of the gradient and of its square."""
    eps: Positive = 1e-8
    """Added to the root of the mean square."""
    weight_decay: PositiveOrZero = 0.0
    """Weight decay; of `optim: adamw` relative to the learning rate."""


class SchedulerConf(Section):
    """The learning rate schedule. It changes the rate at each optimizer step."""

    warmup_steps: CountOrZero = 25000
    """Optimizer steps in which the rate rises."""
    total_steps: Count | None = None
    """Optimizer step at which the rate reaches 0 and training ends; for `warmup_cosine` only.

    With `max_minutes` the rate reaches 0 at whichever comes first; null: at `max_minutes`.
    """


class EarlyStoppingConf(Section):
    """When training ends because validation no longer improves."""

    metric: FreeOnResume[Metric] = "loss"
    """The metric that must improve."""
    patience: FreeOnResume[Count] = 10
    """Number of validations in a row without improvement after which training ends."""
    min_delta: FreeOnResume[PositiveOrZero] = 0.0
    """Smallest difference to the best value so far that counts as an improvement."""
