# SPDX-License-Identifier: Apache-2.0
"""Error rates by minutes of training speech, from our own results, and the least that they cover."""

import math
from typing import NamedTuple


class Result(NamedTuple):
    """One of the results of examples/own/s0/RESULTS.md: a training from scratch, attention
    rescoring.
    """

    minutes: float
    """Speech of the training set."""
    cer: float
    """Character error rate in %."""
    speech: str
    is_real: bool = False


RESULTS = (
    Result(10, 3.77, "simulated Uzbek"),
    Result(18, 7.11, "simulated field recordings in Spanish"),
    Result(47, 35.99, "real speech in Mboshi", is_real=True),
    Result(60, 0.67, "simulated Uzbek"),
    Result(300, 0.41, "simulated Uzbek"),
)
MIN_MINUTES = min(result.minutes for result in RESULTS)
"""With less training speech nothing was measured, so check and recipe stop, unless told otherwise."""


def describe_results(hours: float) -> str:
    """The nearest result with simulated speech, and the nearest one with real speech, in one line.

    Nearest is the result whose minutes have the smallest ratio to `hours` of training speech.
    """
    minutes = 60 * hours
    descriptions = list[str]()
    for is_real in (False, True):
        results = [result for result in RESULTS if result.is_real == is_real]
        nearest = min(results, key=lambda result: _distance(result.minutes, minutes))
        descriptions.append(
            f"{nearest.cer:.1f} % with {nearest.minutes:g} minutes of {nearest.speech}"
        )
    measured = "; ".join(descriptions)
    return (
        f"{minutes:.1f} minutes of training speech; character error rates that we measured: "
        f"{measured}; nothing else was measured (examples/own/s0/RESULTS.md)"
    )


def _distance(minutes: float, other_minutes: float) -> float:
    """How far two amounts of speech are apart: the logarithm of their ratio, 0 for equal ones.

    The second amount may be 0. It counts as at least 0.1 minutes, because 0 has no ratio.
    """
    return abs(math.log(minutes / max(other_minutes, 0.1)))


def find_too_little(hours: float, min_minutes: float) -> str:
    """One line if there is less training speech than `min_minutes`, else the empty string."""
    minutes = 60 * hours
    if round(minutes, 1) >= min_minutes:
        return ""
    found = f"{minutes:.1f} minutes of training speech are less than --min_minutes {min_minutes:g}"
    why = f"the least in our results is {MIN_MINUTES:g}; with a few minutes a model memorizes its sentences"
    return f"{found} ({why}); add transcribed speech, or give --min_minutes 0"
