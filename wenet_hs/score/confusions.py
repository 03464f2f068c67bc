# SPDX-License-Identifier: Apache-2.0
"""Confusions between units: the most frequent substitutions, deletions and insertions, and how units are displayed."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from wenet_hs.score.edit_distance import align
from wenet_hs.score.error_rate import ScoredUtterance
from wenet_hs.score.units import Rules


@dataclass(frozen=True, slots=True)
class Confusion:
    """One pair of units and its frequency."""

    ref: str | None
    """None: an insertion."""
    hyp: str | None
    """None: a deletion."""
    count: int
    share: float
    """Fraction of all errors."""
    of_unit: float | None
    """Fraction of the unit's occurrences in the reference; None for an insertion."""


@dataclass(frozen=True, slots=True)
class Confusions:
    """The most frequent confusions of each kind, by falling count, then by units."""

    num_errors: int
    substitutions: tuple[Confusion, ...]
    deletions: tuple[Confusion, ...]
    insertions: tuple[Confusion, ...]


@dataclass(frozen=True, slots=True)
class ConfusionReport:
    """Confusions of all utterances and of each language."""

    most: int
    """The requested number per kind."""
    overall: Confusions
    languages: dict[str, Confusions]


@dataclass(frozen=True, slots=True)
class _Tally:
    """Counts of wrong pairs, and of units in the reference."""

    pairs: Counter[tuple[str | None, str | None]] = field(default_factory=Counter)
    units: Counter[str] = field(default_factory=Counter)

    def most_common(self, most: int) -> Confusions:
        num_errors = sum(self.pairs.values())
        kinds: dict[str, list[Confusion]] = {"S": [], "D": [], "I": []}
        by_frequency = sorted(self.pairs.items(), key=lambda item: (-item[1], item[0][0] or "", item[0][1] or ""))
        for (ref, hyp), number in by_frequency:
            kind = kinds["I" if ref is None else "D" if hyp is None else "S"]
            if len(kind) < most:
                of_unit = None if ref is None else number / self.units[ref]
                kind.append(Confusion(ref, hyp, number, number / num_errors, of_unit))
        return Confusions(num_errors, *map(tuple, kinds.values()))


def count_confusions(utterances: Iterable[ScoredUtterance], rules: Rules, most: int) -> ConfusionReport:
    """The `most` frequent confusions of each kind, over all utterances and per language.

    The counts are from the same alignments that `score --align` shows. Raises ValueError if `most` is below 1.
    """
    if most < 1:
        raise ValueError(f"most is {most}, must be at least 1")
    overall, tallies = _Tally(), dict[str, _Tally]()
    for utterance in utterances:
        ref, hyp = utterance.split(rules)
        operations = align(ref, hyp) if utterance.counts.errors else ()
        wrong = [(found.ref, found.hyp) for found in operations if found.ref != found.hyp]
        for tally in (overall, tallies.setdefault(utterance.lang, _Tally())):
            tally.units.update(ref)
            tally.pairs.update(wrong)
    languages = {lang: tally.most_common(most) for lang, tally in sorted(tallies.items())}
    return ConfusionReport(most, overall.most_common(most), languages)


def script_of(unit: str) -> str:
    """The script of a letter: the first word of its Unicode name; empty for other characters."""
    return unicodedata.name(unit[0], "").partition(" ")[0].capitalize() if unit[0].isalpha() else ""


@lru_cache(maxsize=2**14)
def show_unit(unit: str) -> str:
    """A visible form of a unit: ▁ for a space, ◌ before a mark without its letter, the code points of controls."""
    if unit == " ":
        return "▁"
    if all(unicodedata.category(character) in ("Cc", "Cf") for character in unit):
        return " ".join(f"U+{ord(character):04X}" for character in unit)
    return f"◌{unit}" if unicodedata.category(unit[0]).startswith("M") else unit


def show_pair(pair: Confusion, *, gap: str, name_scripts: bool) -> list[str]:
    """Both units as `show_unit`, `gap` for none, and their scripts if two scripts are confused: they may look alike."""
    units = [gap if unit is None else show_unit(unit) for unit in (pair.ref, pair.hyp)]
    scripts = [script_of(unit) for unit in (pair.ref, pair.hyp) if unit is not None]
    if name_scripts and len(set(scripts)) == 2 and all(scripts):
        return [f"{unit} ({script})" for unit, script in zip(units, scripts, strict=True)]
    return units
