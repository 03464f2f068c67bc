# SPDX-License-Identifier: Apache-2.0
"""Differences on purpose: `reasons.yaml`, and which of its entries explains a difference."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from differences import FileDifference, LineChange

REASONS = Path(__file__).with_name("reasons.yaml")
_KEYS = {"case", "change", "file", "line", "reason"}
_CHANGES = ("", "new", "vanished")


@dataclass(frozen=True)
class Reason:
    """An entry of reasons.yaml."""

    case: str
    """Pattern of the name of a case, with `*`."""
    file: str
    """Pattern of a path in the folder of a case, with `*`."""
    line: str
    """Regular expression that a line contains, before or now. Empty: any line."""
    reason: str
    change: str = ""
    """`new`: only lines that were not there before; `vanished`: only those that are not there now."""

    def __str__(self) -> str:
        line = f", line {self.line}" if self.line else ""
        change = f", {self.change}" if self.change else ""
        return f"case {self.case}, file {self.file}{line}{change}: {self.reason}"

    def explains(self, difference: FileDifference, change: LineChange) -> bool:
        """Whether the entry is about this line of this file."""
        if not fnmatchcase(difference.case, self.case):
            return False
        if not fnmatchcase(difference.file, self.file):
            return False
        if self.change == "new" and change.before is not None:
            return False
        if self.change == "vanished" and change.now is not None:
            return False
        lines = [line for line in (change.before, change.now) if line is not None]
        return any(re.search(self.line, line) for line in lines)


def read_reasons(path: Path = REASONS) -> list[Reason]:
    """The entries of the file. Raises SystemExit with one line if an entry is wrong."""
    entries = yaml.safe_load(path.read_text("utf-8")) or []
    if not isinstance(entries, list):
        raise SystemExit(f"{path}: must be a list of entries")
    return [_read_entry(path, number, entry) for number, entry in enumerate(entries, start=1)]


def _read_entry(path: Path, number: int, entry: Any) -> Reason:
    where = f"{path}: entry {number}"
    if not isinstance(entry, dict) or not entry.keys() <= _KEYS:
        raise SystemExit(f"{where}: the keys of an entry are {', '.join(sorted(_KEYS))}")
    for key in ("case", "reason"):
        if not entry.get(key):
            raise SystemExit(f"{where}: has no {key}")
    change = str(entry.get("change", ""))
    if change not in _CHANGES:
        raise SystemExit(f"{where}: change must be new or vanished")
    line = str(entry.get("line", ""))
    try:
        re.compile(line)
    except re.error as error:
        raise SystemExit(f"{where}: line is no regular expression: {error}") from error
    return Reason(
        case=str(entry["case"]),
        file=str(entry.get("file", "*")),
        line=line,
        reason=" ".join(str(entry["reason"]).split()),
        change=change,
    )
