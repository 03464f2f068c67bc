# SPDX-License-Identifier: Apache-2.0
"""Paired bootstrap test of two systems on the same utterances (Bisani & Ney 2004).

Dimension key: C clusters (utterances, or speakers with all their utterances), R resamples.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wenet_hs.score.bootstrap import CONFIDENCE, SEED, Interval, percentile_interval, resample_rates
from wenet_hs.score.error_rate import Report, check_complete, count_of
from wenet_hs.tree.errors import DataError, list_names

MACRO = "macro average"
MICRO = "micro average"
MIN_SPEAKERS = 5
"""With fewer speakers there is no interval by speaker.

Resamples of two people, for example, give an interval that is far too narrow.
"""


@dataclass(frozen=True, slots=True)
class Significance:
    """Interval and p value of a difference."""

    interval: Interval | None
    """The middle 95 % of the resampled differences.

    None for fewer than two utterances, or fewer than MIN_SPEAKERS speakers.
    """
    p: float | None
    """Two-sided p value, as `_test_difference` computes it; None where there is no interval."""

    @property
    def is_difference(self) -> bool:
        """Whether p is below 0.05. The interval alone is too narrow where few clusters differ."""
        return self.p is not None and self.p < 1 - CONFIDENCE


@dataclass(frozen=True, slots=True)
class Difference:
    """Two error rates on the same utterances, fractions."""

    rate_a: float
    rate_b: float
    by_utterance: Significance
    by_speaker: Significance | None
    """None if the speakers are not known."""
    difference: float
    """B minus A: below 0, B is better."""

    @property
    def has_speaker_interval(self) -> bool:
        """Whether the difference has an interval over speakers."""
        return self.by_speaker is not None and self.by_speaker.interval is not None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The differences of each language with reference units and of the two averages."""

    names: tuple[str, str]
    signature: str
    differences: dict[str, Difference]
    """By language, then MACRO and MICRO."""
    num_utterances: int
    num_speakers: int | None
    num_resamples: int
    num_missing: int
    """Utterances without a hypothesis of either system: deletions for both."""
    few_speakers: tuple[str, ...]
    """Languages with fewer than MIN_SPEAKERS speakers.

    They have no interval by speaker, and that of the averages is too narrow.
    """


def compare(
    report_a: Report,
    report_b: Report,
    *,
    speakers: Mapping[str, str] | None = None,
    num_resamples: int = 10_000,
) -> Comparison:
    """The difference of two scorings of the same reference under the same rules.

    Args:
        speakers: speaker of each key. Utterances of one speaker are not independent, so the
            interval over speakers is wider and more reliable. None: there is none.
        num_resamples: of the bootstrap. Each language keeps its number of clusters in every
            resample.

    Raises DataError if the two have hypotheses for different utterances, have different references
    or rules, or if an utterance has no speaker, and ValueError for `num_resamples` below 1.
    """
    if num_resamples < 1:
        raise ValueError(f"num_resamples: must be at least 1, got {num_resamples}")
    check_comparable(report_a, report_b)
    errors = errors_by_language(report_a, report_b)
    rates = rates_by_language(errors)
    by_utterance = _resample_differences(errors, num_resamples)
    by_speaker: dict[str, Significance] = {}
    num_speakers = None
    few_speakers = list[str]()
    if speakers is not None:
        check_complete(speakers, report_a.utterances, what="speaker")
        num_speakers = len({speakers[key] for key in report_a.utterances})
        errors_of_speakers = errors_by_language(report_a, report_b, speakers)
        by_speaker = _resample_differences(errors_of_speakers, num_resamples, fewest=MIN_SPEAKERS)
        for lang, errors_C3 in errors_of_speakers.items():
            if len(errors_C3) < MIN_SPEAKERS:
                few_speakers.append(lang)
    differences = {}
    for name, (rate_a, rate_b) in rates.items():
        differences[name] = Difference(
            rate_a=rate_a,
            rate_b=rate_b,
            by_utterance=by_utterance[name],
            by_speaker=by_speaker.get(name),
            difference=rate_b - rate_a,
        )
    return Comparison(
        names=(report_a.name, report_b.name),
        signature=f"{report_a.signature}|boot:{num_resamples}|seed:{SEED}",
        differences=differences,
        num_utterances=len(report_a.utterances),
        num_speakers=num_speakers,
        num_resamples=num_resamples,
        num_missing=len(report_a.missing),
        few_speakers=tuple(few_speakers),
    )


def compare_macro(
    report_a: Report, report_b: Report, speakers: Mapping[str, str | None]
) -> tuple[Difference, str, Significance]:
    """The difference of the macro averages, what was resampled for its test, and the test.

    Args:
        speakers: speaker of each key, where it is known. Speakers are resampled only if those of
            all utterances are known.

    Raises DataError if the reports cannot be compared: see `check_comparable`.
    """
    known_speakers = {key: speaker for key, speaker in speakers.items() if speaker}
    are_all_known = known_speakers.keys() >= report_a.utterances.keys()
    comparison = compare(report_a, report_b, speakers=known_speakers if are_all_known else None)
    sampled, test = choose_test(comparison.differences)
    return comparison.differences[MACRO], sampled, test


def choose_test(differences: Mapping[str, Difference]) -> tuple[str, Significance]:
    """What was resampled for the test of the macro average, and this test.

    "speakers" if each language and average has an interval over speakers, otherwise "utterances":
    where a language has few speakers, the average's interval over speakers is too narrow.
    """
    macro = differences[MACRO]
    have_speaker_intervals = all(each.has_speaker_interval for each in differences.values())
    if macro.by_speaker is not None and have_speaker_intervals:
        return "speakers", macro.by_speaker
    return "utterances", macro.by_utterance


# ---- checks


def check_references(report_a: Report, report_b: Report) -> None:
    """Raise DataError if the two scorings have other utterances, references, languages or rules."""
    if report_a.rules != report_b.rules or _references(report_a) != _references(report_b):
        found = "different references or rules"
        raise DataError("the two scorings", found, "score both again with the same --ref")


def _references(report: Report) -> dict[str, tuple[str, str]]:
    """Language and reference of each key."""
    return {key: (utterance.lang, utterance.ref) for key, utterance in report.utterances.items()}


def check_comparable(report_a: Report, report_b: Report) -> None:
    """Check that two scorings can be compared utterance by utterance.

    Raises DataError if `check_references` does, or if only one of the two has a hypothesis for an
    utterance.
    """
    check_references(report_a, report_b)
    missing_in_one = set(report_a.missing) ^ set(report_b.missing)  # in A or in B, not in both
    if not missing_in_one:
        return
    incomplete = []
    for name, report in (("A", report_a), ("B", report_b)):
        if missing_in_one & set(report.missing):
            incomplete.append(f"{name} ({report.name})")
    utterances = f"{count_of(len(missing_in_one), 'utterance')} that the other decoded"
    found = f"no hypothesis for {utterances} ({list_names(sorted(missing_in_one))})"
    to_do = "a paired comparison needs the same utterances, decode the rest first"
    raise DataError(" and ".join(incomplete), found, to_do)


# ---- rates and resamples


def errors_by_language(
    report_a: Report, report_b: Report, speakers: Mapping[str, str] | None = None
) -> dict[str, NDArray[np.int64]]:
    """Errors of A, errors of B and reference units of the clusters of each language, (C, 3).

    A cluster is an utterance; with `speakers`, the speaker of each key, it is all utterances of a
    speaker. Clusters are in the order of their first keys. Languages are sorted; those without
    reference units are left out.
    """
    clusters_by_language: dict[str, dict[str, NDArray[np.int64]]] = {}
    for key, utterance in sorted(report_a.utterances.items()):
        counts_a = utterance.counts
        counts_b = report_b.utterances[key].counts
        errors_3 = np.array((counts_a.errors, counts_b.errors, counts_a.num_units))
        cluster_name = speakers[key] if speakers else key
        clusters = clusters_by_language.setdefault(utterance.lang, {})
        if cluster_name in clusters:
            clusters[cluster_name] += errors_3
        else:
            clusters[cluster_name] = errors_3
    errors = {}
    for lang, clusters in sorted(clusters_by_language.items()):
        errors_C3 = np.stack([*clusters.values()])
        has_units = errors_C3[:, 2].any()
        if has_units:
            errors[lang] = errors_C3
    return errors


def rates_by_language(errors: Mapping[str, NDArray[np.int64]]) -> dict[str, tuple[float, float]]:
    """The rates of A and of B for each language, then for MACRO and for MICRO.

    `errors`: as from `errors_by_language`. Raises DataError if there are no reference units.
    """
    if not any(errors_C3[:, 2].any() for errors_C3 in errors.values()):
        raise DataError("the reference", "contains no units", "there is nothing to compare")
    sums = {lang: errors_C3.sum(axis=0) for lang, errors_C3 in errors.items()}
    total_3 = np.sum(list(sums.values()), axis=0)
    # Arrays of two rates, of A and of B: the errors of both are divided by the same units.
    rates = {lang: sums_3[:2] / sums_3[2] for lang, sums_3 in sums.items()}
    macro_rates = np.mean(list(rates.values()), axis=0)
    micro_rates = total_3[:2] / total_3[2]
    rates[MACRO] = macro_rates
    rates[MICRO] = micro_rates
    return {name: (float(rate_a), float(rate_b)) for name, (rate_a, rate_b) in rates.items()}


def _resample_differences(
    errors: Mapping[str, NDArray[np.int64]], num_resamples: int, *, fewest: int = 2
) -> dict[str, Significance]:
    """The significance of each language's difference, then of MACRO and of MICRO.

    Both systems have the same clusters in each resample.

    Args:
        errors: of clusters, as from `errors_by_language`.
        fewest: the smallest number of clusters for a test. A language with fewer has none. The
            averages have none if all languages together have fewer, or if each has only one.
    """
    differences = {lang: difference_and_units(errors_C3) for lang, errors_C3 in errors.items()}
    resampled = resample_rates(differences, num_resamples)
    num_differing: dict[str, int] = {}  # clusters with more errors of one system
    for lang, differences_C2 in differences.items():
        num_differing[lang] = int(np.count_nonzero(differences_C2[:, 0]))
    num_clusters = {lang: len(errors_C3) for lang, errors_C3 in errors.items()}
    significance = {}
    for lang in errors:
        significance[lang] = _test_difference(
            resampled.each[lang], num_differing[lang], too_few=num_clusters[lang] < fewest
        )
    num_all_clusters = sum(num_clusters.values())
    num_all_differing = sum(num_differing.values())
    has_one_each = max(num_clusters.values()) < 2  # then all resamples are equal
    too_few = num_all_clusters < fewest or has_one_each
    significance[MACRO] = _test_difference(resampled.macro_R, num_all_differing, too_few=too_few)
    significance[MICRO] = _test_difference(resampled.micro_R, num_all_differing, too_few=too_few)
    return significance


def difference_and_units(errors_C3: NDArray[np.int64]) -> NDArray[np.int64]:
    """Errors of B minus errors of A, and reference units, (C, 2), from (C, 3)."""
    errors_a_C, errors_b_C, units_C = errors_C3.T
    return np.column_stack((errors_b_C - errors_a_C, units_C))


def _test_difference(
    differences_R: NDArray[np.float64], num_differing: int, *, too_few: bool
) -> Significance:
    """The interval and the p value of a difference from its resamples.

    p is twice the share of resamples whose difference is 0 or has the other sign. One is added to
    both counts, because R resamples cannot show a p below 1 / R (Davison & Hinkley 1997, section
    4.2). p is at most 1, and at least 2^(1 - n) for n clusters that differ: the smallest p of a
    sign test.

    Args:
        differences_R: of the rates; NaN where a resample has no reference units.
        num_differing: the number of clusters that differ.
        too_few: there are too few clusters for a test.

    The result has no interval and no p if there are too few clusters, or if all differences are
    NaN.
    """
    known_R = differences_R[~np.isnan(differences_R)]
    if too_few or not len(known_R):
        return Significance(interval=None, p=None)
    num_not_above_0 = int((known_R <= 0).sum())
    num_not_below_0 = int((known_R >= 0).sum())
    one_sided_p = (1 + min(num_not_above_0, num_not_below_0)) / (1 + len(known_R))
    smallest_p = 2.0 ** (1 - num_differing)
    p = min(1.0, max(2 * one_sided_p, smallest_p))
    return Significance(interval=percentile_interval(known_R), p=p)
