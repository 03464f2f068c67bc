# SPDX-License-Identifier: Apache-2.0
"""A scoring in the layout of WeNet's compute-wer.py and compute-cer.py, for scripts that read it; our numbers."""

import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice

from wenet_hs.score.edit_distance import ErrorCounts, Span, spans
from wenet_hs.score.error_rate import Report
from wenet_hs.score.table import aligned_cells, both_units

_RULE = "=" * 75
_SCRIPTS = {
    "DIGIT": "Number",
    "CJK UNIFIED IDEOGRAPH": "Mandarin",
    "CJK COMPATIBILITY IDEOGRAPH": "Mandarin",
    "LATIN CAPITAL LETTER": "English",
    "LATIN SMALL LETTER": "English",
    "HIRAGANA LETTER": "Japanese",
}
_OTHER = "Other"


@dataclass(frozen=True, kw_only=True)
class WenetLayout:
    """What WeNet's switches say of the output."""

    verbose: int = 1
    """0: the overall line alone; 1: every utterance and the clusters too; above: with the key beside each line."""
    most: int = sys.maxsize
    """Units in a line (`--maxw`)."""
    padding: str = " "
    """What fills up the narrower of two units (`--padding-symbol`)."""
    clusters: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Units by the name of their cluster (`--cluster`), each with a line of its own."""


def format_wenet(report: Report, layout: WenetLayout | None = None) -> str:
    """Each utterance, the overall line, and a line for each script and cluster. An undefined rate is 0.00.

    A substitution and a deletion belong to the cluster of the reference's unit, an insertion to that of its own.
    """
    layout = layout or WenetLayout()
    overall = f"Overall -> {_counts(report.micro.counts)}"
    if not layout.verbose:
        return f"{overall}\n\n"
    lines, tally = [], _Tally()
    for key, utterance in report.utterances.items():
        runs = list(spans(*both_units(utterance, report.rules)))
        tally.add(runs)
        lines += ["", f"utt: {key}", f"WER: {_counts(utterance.counts)}", *_pairs(key, runs, layout)]
    lines += [_RULE, "", overall, *_cluster_lines(tally.counts(), layout), "", _RULE]
    return "\n".join(lines) + "\n"


def _pairs(key: str, runs: Sequence[Span], layout: WenetLayout) -> Iterator[str]:
    """The aligned units, so many a line, and an empty line behind each pair."""
    names = [f"{name}({key})" if layout.verbose > 1 else name for name in ("lab", "rec")]
    both = [iter(cells) for cells in aligned_cells(runs, gap="", padding=layout.padding)]
    first = True
    while (parts := [list(islice(cells, layout.most)) for cells in both])[0] or first:
        yield from (f"{name}: {' '.join(part)}".rstrip() for name, part in zip(names, parts, strict=True))
        yield ""
        first = False


def _cluster_lines(tallies: Mapping[str, ErrorCounts], layout: WenetLayout) -> Iterator[str]:
    found: dict[str, ErrorCounts] = {}
    for unit, counts in tallies.items():
        name = script_cluster(unit)
        found[name] = found.get(name, ErrorCounts()) + counts
    own = [
        (name, sum((tallies.get(unit, ErrorCounts()) for unit in sorted(units)), ErrorCounts()))
        for name, units in layout.clusters.items()
    ]
    for name, counts in [*found.items(), *own]:
        yield f"{name} -> {_counts(counts)}"


class _Tally:
    """The counts of each unit."""

    def __init__(self) -> None:
        self._correct, self._substituted, self._deleted, self._inserted = (list[str]() for _ in range(4))

    def add(self, runs: Sequence[Span]) -> None:
        for refs, hyps in runs:
            if refs == hyps:
                self._correct += refs
            elif not refs:
                self._inserted += hyps
            elif hyps:
                self._substituted += refs
            else:
                self._deleted += refs

    def counts(self) -> dict[str, ErrorCounts]:
        correct, substituted, deleted, inserted = map(
            Counter, (self._correct, self._substituted, self._deleted, self._inserted)
        )
        return {
            unit: ErrorCounts(
                correct[unit] + substituted[unit] + deleted[unit], substituted[unit], deleted[unit], inserted[unit]
            )
            for unit in dict.fromkeys([*correct, *substituted, *deleted, *inserted])
        }


@lru_cache(maxsize=2**14)
def script_cluster(unit: str) -> str:
    """WeNet's name for the script of a unit: English is any Latin, and what is mixed or has no name here is Other."""
    names = set()
    for character in unit:
        name = unicodedata.name(character, "")
        if unicodedata.category(character)[0] in "MPS":
            continue  # a mark is its letter's, a sign inside a word is the word's
        names.add(next((cluster for start, cluster in _SCRIPTS.items() if name.startswith(start)), _OTHER))
    return names.pop() if len(names) == 1 else _OTHER


def _counts(counts: ErrorCounts) -> str:
    correct = counts.num_units - counts.substitutions - counts.deletions
    numbers = f"N={counts.num_units} C={correct} S={counts.substitutions} D={counts.deletions} I={counts.insertions}"
    return f"{100 * (counts.rate or 0.0):4.2f} % {numbers}"
