# SPDX-License-Identifier: Apache-2.0
"""Alignment of two lists of units at minimal edit distance, and its error counts."""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest

from rapidfuzz.distance import Levenshtein


@dataclass(slots=True)  # not frozen: creating a frozen object takes twice the time
class ErrorCounts:
    """Errors of a hypothesis against a reference; treat it as immutable.

    Counts of several utterances add up with `+` and `sum(…, ErrorCounts())`.
    """

    num_units: int = 0
    """N: units of the reference."""
    substitutions: int = 0
    deletions: int = 0
    """Units of the reference that are absent from the hypothesis."""
    insertions: int = 0
    """Units of the hypothesis that are absent from the reference.

    They are also counted if the reference is empty.
    """

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        """The counts of both."""
        return ErrorCounts(
            num_units=self.num_units + other.num_units,
            substitutions=self.substitutions + other.substitutions,
            deletions=self.deletions + other.deletions,
            insertions=self.insertions + other.insertions,
        )

    @property
    def errors(self) -> int:
        """S + D + I."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float | None:
        """Errors divided by reference units, which can exceed 1; None without reference units."""
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
    """The operations of an alignment of two lists of units at minimal edit distance.

    A substitution, a deletion and an insertion cost one each. Of several alignments with the same
    cost the result is always the same one.
    """
    operations = list[Operation]()
    for refs, hyps in align_runs(ref, hyp):
        for ref_unit, hyp_unit in zip_longest(refs, hyps):  # None where one side has no units
            operations.append(Operation(ref_unit, hyp_unit))
    return operations


Run = tuple[Sequence[str], Sequence[str]]
"""Consecutive units of the reference, and the units of the hypothesis that they are aligned to."""


def align_runs(ref: Sequence[str], hyp: Sequence[str]) -> Iterator[Run]:
    """The alignment of `align` in runs of the same operation.

    A run has equally many units on both sides, which are all equal or all substituted; or it has
    units on one side only, which are deleted or inserted.
    """
    for code in Levenshtein.opcodes(*_to_comparable(ref, hyp)):
        # Lists: one side may be a `str` and the other a list, and the caller compares them.
        refs = list(ref[code.src_start : code.src_end])
        hyps = list(hyp[code.dest_start : code.dest_end])
        yield refs, hyps


def count_errors(ref: Sequence[str], hyp: Sequence[str]) -> ErrorCounts:
    """Count the errors of `align(ref, hyp)` without creating operations.

    It is fastest if both are a `str`, in which every character is one unit.
    """
    num_units = len(ref)
    if ref == hyp:
        return ErrorCounts(num_units)
    operations = Levenshtein.editops(*_to_comparable(ref, hyp)).as_list()
    insertions = 0
    for operation in operations:
        if operation[0] == "insert":
            insertions += 1
    # This follows from: len(hyp) = num_units - deletions + insertions.
    deletions = num_units - len(hyp) + insertions
    return ErrorCounts(
        num_units=num_units,
        substitutions=len(operations) - insertions - deletions,
        deletions=deletions,
        insertions=insertions,
    )


def _to_comparable(
    ref: Sequence[str], hyp: Sequence[str]
) -> tuple[Sequence[Hashable], Sequence[Hashable]]:
    """Both sides as rapidfuzz compares them exactly: two `str`, or two lists of integer ids.

    Equal units have the same id. rapidfuzz compares units by their hashes, and the hashes of longer
    strings could collide.
    """
    if isinstance(ref, str) and isinstance(hyp, str):
        return ref, hyp
    ids = defaultdict[str, int](count().__next__)  # a new unit gets the next number: 0, 1, 2 …
    ref_ids = list(map(ids.__getitem__, ref))
    hyp_ids = list(map(ids.__getitem__, hyp))
    return ref_ids, hyp_ids
