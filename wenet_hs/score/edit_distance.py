# SPDX-License-Identifier: Apache-2.0
"""Alignment of two lists of units at minimal edit distance, and its error counts."""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest

from rapidfuzz.distance import Levenshtein


@dataclass(slots=True)  # not frozen: creating a frozen object takes twice the time
class ErrorCounts:
    """Errors against a reference.

    Counts of several utterances add up with `+` and `sum(…, ErrorCounts())`.

    Treat it as immutable.
    """

    num_units: int = 0
    """N: units of the reference."""
    substitutions: int = 0
    deletions: int = 0
    """Units of the reference that are absent from the hypothesis."""
    insertions: int = 0
    """Units of the hypothesis that are absent from the reference; also counted if the reference is
    empty.
    """

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        return ErrorCounts(
            self.num_units + other.num_units,
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
        )

    @property
    def errors(self) -> int:
        """S + D + I."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float | None:
        """Errors divided by reference units, a fraction that can exceed 1; None without reference
        units.
        """
        return self.errors / self.num_units if self.num_units else None


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of an alignment: a match, a substitution, a deletion or an insertion."""

    ref: str | None
    """The unit of the reference; None for an insertion."""
    hyp: str | None
    """The unit of the hypothesis; None for a deletion."""

    @property
    def kind(self) -> str:
        """C (correct), S, D or I."""
        if self.ref is None:
            return "I"
        if self.hyp is None:
            return "D"
        return "C" if self.ref == self.hyp else "S"


def align(ref: Sequence[str], hyp: Sequence[str]) -> list[Operation]:
    """Align two lists of units at minimal edit distance (substitution, deletion and insertion cost
    one each).

    Of several shortest alignments the result is always the same one.
    """
    return [
        Operation(*pair) for refs, hyps in align_runs(ref, hyp) for pair in zip_longest(refs, hyps)
    ]


Run = tuple[Sequence[str], Sequence[str]]


def align_runs(ref: Sequence[str], hyp: Sequence[str]) -> Iterator[Run]:
    """The alignment in runs: equally many units on both sides (all equal or all substituted), or
    none on one side.
    """
    for code in Levenshtein.opcodes(*_as_ids(ref, hyp)):
        # Lists: one side may be a `str` and the other a list, and the caller compares them.
        yield list(ref[code.src_start : code.src_end]), list(hyp[code.dest_start : code.dest_end])


def count_errors(ref: Sequence[str], hyp: Sequence[str]) -> ErrorCounts:
    """Count the errors of `align(ref, hyp)` without creating operations. Fastest for two `str`."""
    num_units = len(ref)
    if ref == hyp:
        return ErrorCounts(num_units)
    operations = Levenshtein.editops(*_as_ids(ref, hyp)).as_list()
    insertions = 0
    for operation in operations:
        if operation[0] == "insert":
            insertions += 1
    deletions = num_units - len(hyp) + insertions
    return ErrorCounts(num_units, len(operations) - insertions - deletions, deletions, insertions)


def _as_ids(
    ref: Sequence[str], hyp: Sequence[str]
) -> tuple[Sequence[Hashable], Sequence[Hashable]]:
    """Integer ids of the units: rapidfuzz compares hashes, and hashes of longer strings could
    collide.
    """
    if isinstance(ref, str) and isinstance(hyp, str):
        return ref, hyp
    id_of = defaultdict[str, int](count().__next__).__getitem__
    return list(map(id_of, ref)), list(map(id_of, hyp))
