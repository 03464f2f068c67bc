# SPDX-License-Identifier: Apache-2.0
"""Code lengths of a tree against the entropy of its units, in bits.

Dimension key: V units.
"""

import numpy as np
from numpy.typing import NDArray


def probabilities(frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
    """(V,) the frequencies divided by their sum; uniform when all of them are zero."""
    largest = frequencies.max()
    if largest == 0:
        return np.full(len(frequencies), 1.0 / len(frequencies))
    scaled = frequencies / largest  # subnormal counts would otherwise lose their digits in the division
    return np.asarray(scaled / scaled.sum())


def mean_code_length(frequencies: NDArray[np.float64], depths: NDArray[np.int64]) -> float:
    """Bits a unit: the code lengths `depths` (V,) weighted by the probabilities that the frequencies (V,) give."""
    return float(probabilities(frequencies) @ depths)


def entropy(frequencies: NDArray[np.float64]) -> float:
    """Bits a unit of the distribution that the frequencies (V,) describe."""
    p = probabilities(frequencies)
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum()) + 0.0  # + 0.0: no "-0.0" for a single unit
