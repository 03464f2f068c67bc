# SPDX-License-Identifier: Apache-2.0
"""What so many minutes of training speech can give, by our own results, and the least that they
cover.
"""

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
    """The results with the most similar amount of simulated speech and of real speech, in one line."""
    shown = []
    for is_real in (False, True):
        results = [result for result in RESULTS if result.is_real == is_real]
        nearest = min(
            results, key=lambda result: abs(math.log(result.minutes / max(60 * hours, 0.1)))
        )
        shown.append(f"{nearest.cer:.1f} % with {nearest.minutes:g} minutes of {nearest.speech}")
    measured = (
        f"character error rates that we measured: {'; '.join(shown)}; nothing else was measured"
    )
    return f"{60 * hours:.1f} minutes of training speech; {measured} (examples/own/s0/RESULTS.md)"


def find_too_little(hours: float, min_minutes: float) -> str:
    """One line if there is less training speech than `min_minutes`, else the empty string."""
    if round(60 * hours, 1) >= min_minutes:
        return ""
    found = (
        f"{60 * hours:.1f} minutes of training speech are less than --min_minutes {min_minutes:g}"
    )
    why = f"the least in our results is {MIN_MINUTES:g}; with a few minutes a model memorizes its sentences"
    return f"{found} ({why}); add transcribed speech, or give --min_minutes 0"
