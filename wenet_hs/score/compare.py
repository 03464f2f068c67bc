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

MACRO, MICRO = "macro average", "micro average"
MIN_SPEAKERS = 5
"""With fewer speakers there is no interval by speaker: resamples of two people give an interval far
too narrow.
"""


@dataclass(frozen=True, slots=True)
class Significance:
    """Interval and p value of a difference."""

    interval: Interval | None
    """The middle 95 % of the resampled differences; None for fewer than two utterances or
    MIN_SPEAKERS speakers.
    """
    p: float | None
    """Two-sided: twice the share of resamples whose difference is 0 or has the other sign, with one
    resample added to both counts, because R resamples cannot show a p below 1 / R (Davison &
    Hinkley 1997, section 4.2). At most 1, and at least 2^(1 - n) if n clusters differ at all, which
    is the smallest p of a sign test.
    """

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

    They have no interval by speaker, and the averages' intervals are too narrow.
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
            interval over speakers is wider and more reliable.
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
    by_utterance = _resample(errors, num_resamples)
    of_speakers: dict[str, NDArray[np.int64]] = {}
    by_speaker: dict[str, Significance] = {}
    if speakers is not None:
        check_complete(speakers, report_a.utterances, what="speaker")
        of_speakers = errors_by_language(report_a, report_b, speakers)
        by_speaker = _resample(of_speakers, num_resamples, fewest=MIN_SPEAKERS)
    return Comparison(
        names=(report_a.name, report_b.name),
        signature=f"{report_a.signature}|boot:{num_resamples}|seed:{SEED}",
        differences={
            name: Difference(
                rate_a, rate_b, by_utterance[name], by_speaker.get(name), rate_b - rate_a
            )
            for name, (rate_a, rate_b) in rates.items()
        },
        num_utterances=len(report_a.utterances),
        num_speakers=None
        if speakers is None
        else len({speakers[key] for key in report_a.utterances}),
        num_resamples=num_resamples,
        num_missing=len(report_a.missing),
        few_speakers=tuple(
            lang for lang, errors_C3 in of_speakers.items() if len(errors_C3) < MIN_SPEAKERS
        ),
    )


def choose_test(differences: Mapping[str, Difference]) -> tuple[str, Significance]:
    """The significance of the macro average, and what was resampled for it.

    Speakers where all are known; utterances where a language has few of them, because the average's
    interval over speakers is then too narrow.
    """
    by_speaker = differences[MACRO].by_speaker
    if by_speaker and all(one.has_speaker_interval for one in differences.values()):
        return "speakers", by_speaker
    return "utterances", differences[MACRO].by_utterance


def compare_macro(
    report_a: Report, report_b: Report, speakers: Mapping[str, str | None]
) -> tuple[Difference, str, Significance]:
    """The difference of the macro averages, what was resampled for its test, and the test.

    `speakers`: by key. They are resampled if those of all utterances are known.
    """
    known = {key: name for key in report_a.utterances if (name := speakers.get(key))}
    is_known = len(known) == len(report_a.utterances)
    differences = compare(report_a, report_b, speakers=known if is_known else None).differences
    return differences[MACRO], *choose_test(differences)


def check_references(report_a: Report, report_b: Report) -> None:
    """Raise DataError if the two scorings have other utterances, references, languages or rules."""
    refs_a, refs_b = (
        {key: (found.lang, found.ref) for key, found in report.utterances.items()}
        for report in (report_a, report_b)
    )
    if report_a.rules != report_b.rules or refs_a != refs_b:
        raise DataError(
            "the two scorings",
            "different references or rules",
            "score both again with the same --ref",
        )


def check_comparable(report_a: Report, report_b: Report) -> None:
    """`check_references`; also raise DataError if only one of the two has a hypothesis for an
    utterance.
    """
    check_references(report_a, report_b)
    only_one = set(report_a.missing) ^ set(report_b.missing)
    if only_one:
        named = {"A": report_a, "B": report_b}.items()
        where = " and ".join(
            f"{name} ({one.name})" for name, one in named if only_one & set(one.missing)
        )
        lacking = f"{count_of(len(only_one), 'utterance')} that the other decoded ({list_names(sorted(only_one))})"
        to_do = "a paired comparison needs the same utterances, decode the rest first"
        raise DataError(where, f"no hypothesis for {lacking}", to_do)


def errors_by_language(
    report_a: Report, report_b: Report, speakers: Mapping[str, str] | None = None
) -> dict[str, NDArray[np.int64]]:
    """Errors of A, errors of B and reference units (C, 3) of the clusters of each language with
    reference units.

    A cluster is an utterance, or a speaker's utterances; clusters are in the order of their first
    keys.
    """
    sums: dict[str, dict[str, NDArray[np.int64]]] = {}
    for key, found in sorted(report_a.utterances.items()):
        row_3 = np.array(
            (found.counts.errors, report_b.utterances[key].counts.errors, found.counts.num_units)
        )
        of_language, cluster = sums.setdefault(found.lang, {}), speakers[key] if speakers else key
        of_language[cluster] = of_language.get(cluster, 0) + row_3
    errors = {lang: np.stack([*of_language.values()]) for lang, of_language in sorted(sums.items())}
    return {lang: errors_C3 for lang, errors_C3 in errors.items() if errors_C3[:, 2].any()}


def rates_by_language(errors: Mapping[str, NDArray[np.int64]]) -> dict[str, tuple[float, float]]:
    """The rates of A and B of each language and of the averages.

    Raises DataError if there are no reference units.
    """
    if not any(errors_C3[:, 2].any() for errors_C3 in errors.values()):
        raise DataError("the reference", "contains no units", "there is nothing to compare")
    sums = {lang: errors_C3.sum(axis=0) for lang, errors_C3 in errors.items()}
    rates = {lang: sums_3[:2] / sums_3[2] for lang, sums_3 in sums.items()}
    total_3 = np.sum(list(sums.values()), axis=0)
    averages = {MACRO: np.mean(list(rates.values()), axis=0), MICRO: total_3[:2] / total_3[2]}
    return {name: (float(a), float(b)) for name, (a, b) in (rates | averages).items()}


def _resample(
    clusters: Mapping[str, NDArray[np.int64]], num_resamples: int, *, fewest: int = 2
) -> dict[str, Significance]:
    """The significance of each language's difference and of the averages; both systems see the same
    draws.

    A language with fewer than `fewest` clusters has none; neither have the averages with fewer in
    all languages.
    """
    gaps = {
        lang: np.column_stack((sums_C3[:, 1] - sums_C3[:, 0], sums_C3[:, 2]))
        for lang, sums_C3 in clusters.items()
    }
    differences, macro_R, micro_R = resample_rates(gaps, num_resamples)
    num_differing = {lang: int(np.count_nonzero(gaps_C2[:, 0])) for lang, gaps_C2 in gaps.items()}
    found = {
        lang: _significance(differences[lang], num_differing[lang], too_few=len(gaps_C2) < fewest)
        for lang, gaps_C2 in gaps.items()
    }
    sizes = [len(gaps_C2) for gaps_C2 in gaps.values()]
    too_few = (
        sum(sizes) < fewest or max(sizes) < 2
    )  # with one cluster per language all resamples are equal
    for name, differences_R in ((MACRO, macro_R), (MICRO, micro_R)):
        found[name] = _significance(differences_R, sum(num_differing.values()), too_few=too_few)
    return found


def _significance(
    differences_R: NDArray[np.float64], num_differing: int, *, too_few: bool
) -> Significance:
    known = differences_R[~np.isnan(differences_R)]
    if too_few or not len(known):
        return Significance(None, None)
    tail = (1 + min(int((known <= 0).sum()), int((known >= 0).sum()))) / (1 + len(known))
    return Significance(
        percentile_interval(known), min(1.0, max(2 * tail, 2.0 ** (1 - num_differing)))
    )
