# SPDX-License-Identifier: Apache-2.0
"""The edit distance as in textbooks: the reference for faster implementations."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Unit = TypeVar("Unit")


def edit_distance(
    ref: Sequence[Unit], hyp: Sequence[Unit], cost: Callable[[Unit, Unit], float] = lambda a, b: float(a != b)
) -> float:
    """The recursion, one row at a time; `cost` is the cost of a substitution, deletions and insertions cost 1."""
    row = [float(j) for j in range(len(hyp) + 1)]
    for i, unit in enumerate(ref, start=1):
        above, row = row, [float(i)]
        for j, other in enumerate(hyp, start=1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + cost(unit, other)))
    return row[-1]
