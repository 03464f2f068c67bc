# SPDX-License-Identifier: Apache-2.0
"""The lines that a comparison prints, and whether it failed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from differences import SET_SUFFIX, FileDifference, LineChange, describe_change
from reasons import Reason


@dataclass(frozen=True)
class ComparisonReport:
    """What is printed about the differences of all cases."""

    lines: tuple[str, ...]
    num_without_reason: int
    """Differences without an entry in reasons.yaml."""


def make_report(
    differences: Sequence[FileDifference], reasons: Sequence[Reason], cases: Sequence[str]
) -> ComparisonReport:
    """Lines without a reason first, one per file, or one per line of a set; then those on purpose.

    Entries of reasons.yaml that explain nothing are named last, if one of their cases was compared.
    """
    unexplained: list[str] = []
    explained: list[str] = []
    used: set[Reason] = set()
    for difference in differences:
        without_reason: list[LineChange] = []
        num_of_reason: Counter[Reason] = Counter()
        for change in difference.changes:
            reason = _find_reason(reasons, difference, change)
            if reason is None:
                without_reason.append(change)
            else:
                num_of_reason[reason] += 1
        unexplained += _describe(difference, without_reason)
        for reason, count in num_of_reason.items():
            used.add(reason)
            where = f"{difference.case}: {difference.file}: {count} line(s)"
            explained.append(f"on purpose: {reason.reason} ({where})")
    unused = [reason for reason in reasons if reason not in used and _is_about(reason, cases)]
    warnings = [f"warning: unused entry of reasons.yaml: {reason}" for reason in unused]
    return ComparisonReport((*unexplained, *explained, *warnings), len(unexplained))


def _find_reason(
    reasons: Sequence[Reason],
    difference: FileDifference,
    change: LineChange,
) -> Reason | None:
    for reason in reasons:
        if reason.explains(difference, change):
            return reason
    return None


def _describe(difference: FileDifference, changes: Sequence[LineChange]) -> list[str]:
    """A line per change of a set; otherwise one line: the first change, and how many more."""
    if not changes:
        return []
    if difference.file.endswith(SET_SUFFIX):
        return [describe_change(difference, change) for change in changes]
    first = describe_change(difference, changes[0])
    if len(changes) == 1:
        return [first]
    return [f"{first}; {len(changes) - 1} more line(s) differ"]


def _is_about(reason: Reason, cases: Sequence[str]) -> bool:
    return any(fnmatchcase(case, reason.case) for case in cases)
