# SPDX-License-Identifier: Apache-2.0
"""Choice of the tiers whose annotations become utterances.

The user names tiers by patterns. Without names the only independent tier with annotations is taken.
`check_choice` refuses a choice by which the same speech would be used twice, or no speech at all.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path

from wenet_hs.annotation.tiers import AnnotationFile, Tier
from wenet_hs.corpus.code_tiers import describe_identifiers
from wenet_hs.corpus.tier_facts import describe_tiers, find_ancestors, find_parents, find_root
from wenet_hs.text.normalize import normalize_spelling
from wenet_hs.tree.errors import DataError, list_names

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TierSelection:
    """The tiers that the user wants, by patterns in which `*` stands for any characters.

    A tier has to fit one pattern of each kind. Where there is no pattern, every value fits.
    """

    names: Sequence[str] = ()
    """Values of --tier."""
    types: Sequence[str] = ()
    """Values of --tier_type: linguistic types of ELAN."""
    participants: Sequence[str] = ()
    """Values of --participant."""

    @property
    def is_by_name(self) -> bool:
        """Whether the user named tiers or types; otherwise only independent tiers are wanted."""
        return bool(self.names or self.types)

    def is_wanted(self, tier: Tier) -> bool:
        """Whether a tier has intervals (not points of time) and fits a pattern of each kind.

        Where the user gave no pattern, every name, type or participant fits. A tier that depends on
        another one is wanted only if the user named tiers or types.
        """
        if not tier.is_interval:
            return False
        if tier.parent and not self.is_by_name:
            return False
        return (
            _fits(tier.name, self.names)
            and _fits(tier.kind, self.types)
            and _fits(tier.participant, self.participants)
        )

    def find_wanted(self, file: AnnotationFile) -> dict[str, Tier]:
        """Name → tier, of the wanted tiers of a file. Of tiers with the same name the last one."""
        return {tier.name: tier for tier in file.tiers if self.is_wanted(tier)}

    def list_flags(self) -> str:
        """The patterns with their flags, such as `--tier text --participant Ana`; may be empty."""
        patterns_by_flag = {
            "--tier": self.names,
            "--tier_type": self.types,
            "--participant": self.participants,
        }
        flags = [
            f"{flag} {' '.join(patterns)}"
            for flag, patterns in patterns_by_flag.items()
            if patterns
        ]
        return " ".join(flags)

    def find_unknown(self, tiers: Collection[Tier]) -> list[str]:
        """The patterns that no tier fits, with their flags, such as `--tier 'text@*'`."""
        names = {tier.name for tier in tiers}
        types = {tier.kind for tier in tiers}
        participants = {tier.participant for tier in tiers}
        unknown = [f"--tier '{pattern}'" for pattern in _find_unfit(self.names, names)]
        unknown += [f"--tier_type '{pattern}'" for pattern in _find_unfit(self.types, types)]
        unknown += [
            f"--participant '{pattern}'" for pattern in _find_unfit(self.participants, participants)
        ]
        return unknown


def _fits(value: str, patterns: Sequence[str]) -> bool:
    """Whether a value fits one of the patterns, or there are no patterns."""
    return not patterns or any(fits_pattern(value, pattern) for pattern in patterns)


def _find_unfit(patterns: Sequence[str], values: Collection[str]) -> list[str]:
    """The patterns that none of the values fits."""
    unfit = list[str]()
    for pattern in patterns:
        if not any(fits_pattern(value, pattern) for value in values):
            unfit.append(pattern)
    return unfit


def fits_pattern(value: str, pattern: str) -> bool:
    """Whether a value is equal to a pattern, or fits it with any characters in place of `*`.

    Names may have other signs of patterns, so equality is tested too: `text[1]` as a pattern fits
    only `text1`. The pattern gets the form of Unicode that names of tiers have, because some
    keyboards write `é` as two characters.
    """
    normalized = normalize_spelling(pattern)
    return value == normalized or fnmatchcase(value, normalized)


# ---- checks of the choice


def check_choice(files: Sequence[AnnotationFile], selection: TierSelection, corpus: Path) -> None:
    """Refuse a selection of tiers that does not give each piece of speech once, with its text.

    Raises DataError for the first of the cases below. If the user named tiers that seem to have
    numbers or names of sentences, there is only a warning. `corpus`: the place that an error names
    if it is not about one file.
    """
    _refuse_unknown_patterns(files, selection, corpus)
    for file in files:
        _refuse_dependent_tiers(file, selection)
        _refuse_alternative_tiers(file, selection)
    _refuse_several_tiers(files, selection)
    _refuse_identifiers(files, selection)


def _refuse_unknown_patterns(
    files: Sequence[AnnotationFile], selection: TierSelection, corpus: Path
) -> None:
    """Raise DataError for patterns that no tier of any file fits, perhaps after a typing error."""
    tiers = [tier for file in files for tier in file.tiers]
    unknown = selection.find_unknown(tiers)
    if unknown:
        raise DataError(
            corpus,
            f"no file has a tier of {', '.join(unknown)}",
            f"there are: {describe_tiers(files)}",
        )


def _refuse_dependent_tiers(file: AnnotationFile, selection: TierSelection) -> None:
    """Raise DataError if a wanted tier depends on another wanted tier: both have the same speech.

    Example: --tier "text words", where the words are below the text.
    """
    wanted = selection.find_wanted(file)
    parents = find_parents(file)
    for name in wanted:
        for ancestor in find_ancestors(name, parents):
            if ancestor in wanted:
                raise DataError(
                    file.path,
                    f"tier '{name}' depends on tier '{ancestor}', so they have the same speech",
                    "name one of them with --tier",
                )


def _refuse_alternative_tiers(file: AnnotationFile, selection: TierSelection) -> None:
    """Raise DataError if two wanted tiers below one tier have annotations with the same times.

    Example: the tiers `orthography` and `translation` of one participant, both below `sentences`.
    """
    parents = find_parents(file)
    for first, second in combinations(selection.find_wanted(file).values(), 2):
        if first.participant != second.participant:
            continue
        if find_root(first.name, parents) != find_root(second.name, parents):
            continue
        if _has_equal_times(first, second):
            raise DataError(
                file.path,
                f"tiers '{first.name}' and '{second.name}' depend on one tier and have the same speech",
                "name one of them with --tier",
            )


def _has_equal_times(first: Tier, second: Tier) -> bool:
    """Whether an annotation of one tier begins and ends with one of the other tier."""
    times_of_first = {(begin, end) for begin, end, _ in first.spans}
    times_of_second = {(begin, end) for begin, end, _ in second.spans}
    return bool(times_of_first & times_of_second)


def _refuse_several_tiers(files: Sequence[AnnotationFile], selection: TierSelection) -> None:
    """Raise DataError if no tier is named, and several independent tiers have annotations.

    If the user named participants, each of them may have one tier.
    """
    if selection.is_by_name:
        return
    names_by_participant = defaultdict[str, set[str]](set)
    for file in files:
        for tier in selection.find_wanted(file).values():
            # Without --participant, all tiers are compared as if they were of one person.
            participant = tier.participant if selection.participants else ""
            names = names_by_participant[participant]
            if tier.spans:
                names.add(tier.name)
    for names in names_by_participant.values():
        if len(names) > 1:
            quoted = list_names([f"'{name}'" for name in sorted(names)])
            raise DataError(
                f"{len(names)} independent tiers have annotations: {quoted}",
                to_do=f"name one or several with --tier; there are: {describe_tiers(files)}",
            )


def _refuse_identifiers(files: Sequence[AnnotationFile], selection: TierSelection) -> None:
    """Refuse tiers that number or name the sentences, if the text is in tiers below them.

    Raises DataError if the user named no tier. Otherwise the same line is logged as a warning.
    """
    fault = describe_identifiers(files, selection.is_wanted)
    if fault is None:
        return
    if not selection.is_by_name:
        raise DataError(fault)
    logger.warning("%s", fault)
