# SPDX-License-Identifier: Apache-2.0
"""Alignments of minimal edit distance between two lists of units, and the counts that come of them."""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest

from rapidfuzz.distance import Levenshtein


@dataclass(slots=True)  # frozen would take as long again for each of the utterances of a test set
class ErrorCounts:
    """Errors against a reference; the counts of several utterances add up with `+` and `sum(…, ErrorCounts())`.

    A value like a number: nobody changes one.
    """

    num_units: int = 0
    """N: units of the reference."""
    substitutions: int = 0
    deletions: int = 0
    """Units of the reference that the hypothesis lacks."""
    insertions: int = 0
    """Units of the hypothesis that the reference lacks; counted even where the reference is empty."""

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
        """Errors over reference units, a fraction that may pass 1; None where there is no reference unit."""
        return self.errors / self.num_units if self.num_units else None


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of an alignment: equal or substituted where both sides are there, else a deletion or an insertion."""

    ref: str | None
    """The reference's unit; None for an insertion."""
    hyp: str | None
    """The hypothesis's unit; None for a deletion."""

    @property
    def kind(self) -> str:
        """C (correct), S, D or I."""
        if self.ref is None:
            return "I"
        if self.hyp is None:
            return "D"
        return "C" if self.ref == self.hyp else "S"


@dataclass(frozen=True, slots=True)
class EditAlignment:
    """A shortest way from the reference to the hypothesis; of several, always the same one."""

    operations: tuple[Operation, ...]

    @property
    def counts(self) -> ErrorCounts:
        """N, S, D and I of this alignment."""
        kinds = [operation.kind for operation in self.operations]
        return ErrorCounts(len(kinds) - kinds.count("I"), kinds.count("S"), kinds.count("D"), kinds.count("I"))


def align(ref: Sequence[str], hyp: Sequence[str]) -> EditAlignment:
    """Align two lists of units at minimal edit distance (substitution, deletion and insertion cost one each)."""
    return EditAlignment(tuple(Operation(*pair) for refs, hyps in spans(ref, hyp) for pair in zip_longest(refs, hyps)))


Span = tuple[Sequence[str], Sequence[str]]


def spans(ref: Sequence[str], hyp: Sequence[str]) -> Iterator[Span]:
    """The alignment in runs: as many units on both sides (all equal, or all substituted), or none on one side."""
    for code in Levenshtein.opcodes(*_as_ids(ref, hyp)):
        yield ref[code.src_start : code.src_end], hyp[code.dest_start : code.dest_end]


def count_errors(ref: Sequence[str], hyp: Sequence[str]) -> ErrorCounts:
    """The counts of `align(ref, hyp)`, without the pairs. Quickest where both are a `str`, each character a unit."""
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


def _as_ids(ref: Sequence[str], hyp: Sequence[str]) -> tuple[Sequence[Hashable], Sequence[Hashable]]:
    """Small integers for units: rapidfuzz compares hashes, and those of strings of several characters could collide."""
    if isinstance(ref, str) and isinstance(hyp, str):
        return ref, hyp
    id_of = defaultdict[str, int](count().__next__).__getitem__
    return list(map(id_of, ref)), list(map(id_of, hyp))
