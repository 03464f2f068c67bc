# SPDX-License-Identifier: Apache-2.0
"""Compares two records, prints the differences, and returns the exit code."""

from collections.abc import Sequence
from pathlib import Path

from comparison_report import make_report
from differences import FileDifference, compare_case
from reasons import REASONS, read_reasons
from records import changed_versions, check_same_processor, read_files, read_header


def compare_records(before: Path, now: Path, names: Sequence[str], reasons: Path = REASONS) -> int:
    """Print one line per difference of these cases. Returns 1 if one has no reason, otherwise 0.

    Raises SystemExit with one line if the records are of different processors.
    """
    header_before = read_header(before)
    header_now = read_header(now)
    check_same_processor(header_before, header_now, before)
    for line in changed_versions(header_before, header_now):
        print(f"warning: other versions, so that results may differ: {line}")
    differences: list[FileDifference] = []
    for name in names:
        differences += compare_case(name, read_files(before / name), read_files(now / name))
    report = make_report(differences, read_reasons(reasons), names)
    for line in report.lines:
        print(line)
    num_without_reason = report.num_without_reason
    print(f"{len(names)} cases compared; differences without a reason: {num_without_reason}")
    return 1 if num_without_reason else 0
