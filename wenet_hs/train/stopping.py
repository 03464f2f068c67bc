# SPDX-License-Identifier: Apache-2.0
"""Early stopping: the end of a training whose validations get no better."""

from collections.abc import Mapping, Sequence

from wenet_hs.config.schema import EarlyStoppingConf
from wenet_hs.train.keep import cost_of


def out_of_patience(validations: Sequence[Mapping[str, float]], conf: EarlyStoppingConf | None) -> bool:
    """Whether the last `patience` validations, or more, brought nothing better.

    A function of the recorded validations alone, so that a resumed run stops where an unbroken one does. A value that
    was not finite is no better than any.
    """
    return conf is not None and _since_best(validations, conf) >= conf.patience


def _since_best(validations: Sequence[Mapping[str, float]], conf: EarlyStoppingConf) -> int:
    """How many validations came after the best one, or in all where none has a value."""
    best, since = None, 0
    for facts in validations:
        cost = cost_of(facts, conf.metric)
        if cost is not None and (best is None or cost < best - conf.min_delta):
            best, since = cost, 0
        else:
            since += 1
    return since
