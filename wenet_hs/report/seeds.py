# SPDX-License-Identifier: Apache-2.0
"""Systems over several seeds and their differences from a baseline, on a page and in the tables of a study."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wenet_hs.score.error_rate import count_of
from wenet_hs.score.seeds import SeedDifference, holm


@dataclass(frozen=True, kw_only=True)
class SystemSeeds:
    """A system in one decoding mode."""

    mode: str
    name: str
    rates: dict[str, float]
    """The macro average of each seed."""
    baseline: str
    """On the page the first system of the mode."""
    difference: SeedDifference | None = None
    """This system minus the baseline; None for the baseline and without two pairs."""
    adjusted_p: float | None = None
    """Holm's correction over the comparisons of all systems and modes."""


def correct_p(systems: Sequence[SystemSeeds]) -> list[SystemSeeds]:
    """The systems with `adjusted_p`."""
    adjusted = holm([system.difference.p if system.difference else None for system in systems])
    return [replace(system, adjusted_p=p) for system, p in zip(systems, adjusted, strict=True)]


def count_tests(systems: Sequence[SystemSeeds]) -> str:
    """The number of p values that Holm's correction counts."""
    return count_of(sum(system.adjusted_p is not None for system in systems), "comparison")
