# SPDX-License-Identifier: Apache-2.0
"""Whether one system is better than another on the same utterances: the paired bootstrap (Bisani & Ney 2004).

Dimension key: C clusters (utterances, or speakers with all of theirs), R resamples.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from wenet_hs.errors import DataError
from wenet_hs.score.bootstrap import CONFIDENCE, SEED, Interval, draw_sums, percentile_interval
from wenet_hs.score.error_rate import Report, count_of, name_some
from wenet_hs.score.table import UNDEFINED, columns, percent

FORMAT = "wenet_hs.compare/1"
MACRO, MICRO = "macro average", "micro average"
MIN_SPEAKERS = 5
"""Fewer are no sample of people: draws of two give mixtures of the same two, and an interval that is far too narrow."""


@dataclass(frozen=True, slots=True)
class Significance:
    """How sure a difference is."""

    interval: Interval | None
    """The middle 95 % of the resampled differences; None where fewer than two utterances, or fewer than MIN_SPEAKERS
    speakers, leave too little to resample."""
    p: float | None
    """Two-sided: twice the share of resamples whose difference is 0 or of the other sign, one resample added to both
    counts, for R resamples cannot show a p below 1 / R (Davison & Hinkley 1997, section 4.2). At most 1, and at least
    2^(1 - n) where n clusters differ at all: what a sign test could show. Resampling two speakers proves nothing."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two error rates on the same utterances, fractions."""

    rate_a: float
    rate_b: float
    by_utterance: Significance
    by_speaker: Significance | None
    """None where the speakers are not known."""

    @property
    def difference(self) -> float:
        """B minus A: below 0, B is better."""
        return self.rate_b - self.rate_a


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A line for each language with reference units, and the two averages."""

    names: tuple[str, str]
    signature: str
    differences: dict[str, Difference]
    """By language, then MACRO and MICRO."""
    num_utterances: int
    num_speakers: int | None
    num_resamples: int
    num_missing: int
    """Utterances that neither system decoded: deletions for both."""
    few_speakers: tuple[str, ...]
    """Languages with fewer than MIN_SPEAKERS speakers: none by speaker, and the averages' intervals are too narrow."""


def compare(
    report_a: Report,
    report_b: Report,
    *,
    speakers: Mapping[str, str] | None = None,
    num_resamples: int = 10_000,
    seed: int = SEED,
) -> Comparison:
    """The difference of two scorings of one reference under the same rules.

    Args:
        speakers: of each key. Utterances of a speaker are not independent, so their interval is the wider, honest one.
        num_resamples: of the bootstrap. Each language keeps its number of clusters in every resample.

    Raises DataError where the two have no hypothesis for the same utterances, or were not scored alike, or an utterance
    has no speaker.
    """
    if num_resamples < 1:
        raise ValueError(f"num_resamples is {num_resamples}, must be at least 1")
    _check_alike(report_a, report_b)
    facts = _facts(report_a, report_b)
    by_utterance = _resampled(_clusters(facts, {key: key for key in report_a.utterances}), num_resamples, seed)
    of_speakers = None if speakers is None else _clusters(facts, _known(speakers, report_a))
    by_speaker = None if of_speakers is None else _resampled(of_speakers, num_resamples, seed, fewest=MIN_SPEAKERS)
    differences = {
        name: Difference(rate_a, rate_b, by_utterance[name], None if by_speaker is None else by_speaker[name])
        for name, (rate_a, rate_b) in _rates(facts).items()
    }
    return Comparison(
        names=(report_a.name, report_b.name),
        signature=f"{report_a.signature}|boot:{num_resamples}|seed:{seed}",
        differences=differences,
        num_utterances=len(report_a.utterances),
        num_speakers=None if speakers is None else len({speakers[key] for key in report_a.utterances}),
        num_resamples=num_resamples,
        num_missing=len(report_a.missing),
        few_speakers=tuple(lang for lang, of in (of_speakers or {}).items() if len(of) < MIN_SPEAKERS),
    )


def _check_alike(report_a: Report, report_b: Report) -> None:
    refs_a, refs_b = (
        {key: (found.lang, found.ref) for key, found in report.utterances.items()} for report in (report_a, report_b)
    )
    if report_a.rules != report_b.rules or refs_a != refs_b:
        raise DataError("the two scorings: not of the same reference and rules; score both again alike")
    only = set(report_a.missing) ^ set(report_b.missing)
    if only:
        lacking = [name for name, report in (("A", report_a), ("B", report_b)) if only & set(report.missing)]
        raise DataError(
            f"{' and '.join(lacking)}: no hypothesis for {count_of(len(only), 'utterance')} that the other decoded "
            f"({name_some(sorted(only))}); a paired comparison needs the same utterances, decode the rest first"
        )


def _known(speakers: Mapping[str, str], report: Report) -> Mapping[str, str]:
    unknown = sorted(report.utterances.keys() - speakers.keys())
    if unknown:
        raise DataError(
            f"the speakers: {count_of(len(unknown), 'utterance')} without one ({name_some(unknown)}); compare without "
            "speakers, or complete the data.list"
        )
    return speakers


_Facts = dict[str, dict[str, tuple[int, int, int]]]
"""By language and key: errors of A, errors of B, reference units."""


def _facts(report_a: Report, report_b: Report) -> _Facts:
    facts: _Facts = {}
    for key, a in sorted(report_a.utterances.items()):
        b = report_b.utterances[key]
        facts.setdefault(a.lang, {})[key] = (a.counts.errors, b.counts.errors, a.counts.num_units)
    with_units = {lang: of_key for lang, of_key in sorted(facts.items()) if sum(fact[2] for fact in of_key.values())}
    if not with_units:
        raise DataError("the reference: no units in it; there is nothing to compare")
    return with_units


def _rates(facts: _Facts) -> dict[str, tuple[float, float]]:
    sums = {lang: np.sum(list(of_key.values()), axis=0) for lang, of_key in facts.items()}
    rates = {lang: (float(s[0] / s[2]), float(s[1] / s[2])) for lang, s in sums.items()}
    total = np.sum(list(sums.values()), axis=0)
    macro = np.mean(list(rates.values()), axis=0)
    micro = total[:2] / total[2]
    return {**rates, MACRO: (float(macro[0]), float(macro[1])), MICRO: (float(micro[0]), float(micro[1]))}


def _clusters(facts: _Facts, cluster_of: Mapping[str, str]) -> dict[str, NDArray[np.int64]]:
    """The facts (C, 3) of each cluster of each language; a speaker of two languages is a cluster in each."""
    found = {}
    for lang, of_key in facts.items():
        names = [cluster_of[key] for key in of_key]
        index_of = {name: index for index, name in enumerate(dict.fromkeys(names))}
        sums_C3 = np.zeros((len(index_of), 3), dtype=np.int64)
        np.add.at(sums_C3, [index_of[name] for name in names], np.array(list(of_key.values())))
        found[lang] = sums_C3
    return found


def _resampled(
    clusters: Mapping[str, NDArray[np.int64]], num_resamples: int, seed: int, *, fewest: int = 2
) -> dict[str, Significance]:
    """How sure the difference of each language and of the averages is; both systems see the same draws.

    Of fewer than `fewest` clusters (of a language; of all, for the averages) nothing is said.
    """
    sums = {lang: draw_sums(facts_C3, num_resamples, seed, lang) for lang, facts_C3 in clusters.items()}
    num_differing = {lang: int((of[:, 0] != of[:, 1]).sum()) for lang, of in clusters.items()}
    found = {
        lang: _significance(_differences(of_lang), num_differing[lang], too_few=len(clusters[lang]) < fewest)
        for lang, of_lang in sums.items()
    }
    sizes = [len(of_lang) for of_lang in clusters.values()]
    too_few = sum(sizes) < fewest or max(sizes) < 2  # one of each language is in every draw
    macro_R = np.mean([_differences(of_lang) for of_lang in sums.values()], axis=0)
    micro_R = _differences(np.sum(list(sums.values()), axis=0))
    averages = ((MACRO, macro_R), (MICRO, micro_R))
    return found | {name: _significance(of, sum(num_differing.values()), too_few=too_few) for name, of in averages}


def _differences(sums_R3: NDArray[np.int64]) -> NDArray[np.float64]:
    """B minus A of each resample (R,); NaN where no reference unit was drawn."""
    units_R = sums_R3[:, 2]
    return np.where(units_R > 0, (sums_R3[:, 1] - sums_R3[:, 0]) / np.maximum(units_R, 1), np.nan)


def _significance(differences_R: NDArray[np.float64], num_differing: int, *, too_few: bool) -> Significance:
    known = differences_R[~np.isnan(differences_R)]
    if too_few or not len(known):
        return Significance(None, None)
    tail = (1 + min(int((known <= 0).sum()), int((known >= 0).sum()))) / (1 + len(known))
    return Significance(percentile_interval(known), min(1.0, max(2 * tail, 2.0 ** (1 - num_differing))))


def format_comparison(comparison: Comparison) -> str:
    """The comparison as a plain-text table, rates and differences in %."""
    name_a, name_b = comparison.names
    header = ["language", "A %", "B %", "B - A", f"{CONFIDENCE:.0%} interval", "p"]
    speakers = comparison.num_speakers
    header += ["by speaker", "p"] if speakers is not None else []
    rows = [[lang, *_cells(difference)] for lang, difference in comparison.differences.items()]
    resampled = count_of(comparison.num_utterances, "utterance")
    resampled += "" if speakers is None else f", and of {count_of(speakers, 'speaker')}"
    lines = [f"A: {name_a}", f"B: {name_b}", comparison.signature, "", *columns([header, *rows]), ""]
    lines.append(f"paired bootstrap of {resampled}; below 0, B is better")
    if comparison.num_missing:
        lines.append(f"decoded by neither, deletions for both: {count_of(comparison.num_missing, 'utterance')}")
    if comparison.few_speakers:
        by_speaker = comparison.differences[MACRO].by_speaker
        narrow = "" if by_speaker is None or by_speaker.interval is None else ", and the averages' are too narrow"
        langs = ", ".join(comparison.few_speakers)
        lines.append(f"fewer than {MIN_SPEAKERS} speakers, so no interval by speaker{narrow}: {langs}")
    return "\n".join(lines) + "\n"


def _cells(found: Difference) -> Iterator[str]:
    yield from (percent(found.rate_a), percent(found.rate_b), f"{100 * found.difference:+.2f}")
    for significance in (found.by_utterance, found.by_speaker):
        if significance is not None:
            low_high, p = significance.interval, significance.p
            yield UNDEFINED if low_high is None else f"[{100 * low_high.low:+.2f}, {100 * low_high.high:+.2f}]"
            yield UNDEFINED if p is None else "<0.0001" if p < 0.0001 else f"{p:.4f}"


def comparison_json(comparison: Comparison) -> str:
    """The comparison as JSON text; rates are fractions."""
    record = {"format": FORMAT, **asdict(comparison)}
    record["differences"] = {
        name: {**asdict(difference), "difference": difference.difference}
        for name, difference in comparison.differences.items()
    }
    return json.dumps(record, ensure_ascii=False, indent=1) + "\n"
