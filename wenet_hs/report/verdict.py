# SPDX-License-Identifier: Apache-2.0
"""The verdict of a report in sentences: the better system in the shown mode, the error rate, the worst language."""

from collections.abc import Iterator, Mapping
from statistics import NormalDist, fmean

from wenet_hs.report.collect import ExperimentResults, ReportData, group_seeds
from wenet_hs.score.bootstrap import CONFIDENCE, Interval
from wenet_hs.score.compare import MACRO, Difference, choose_test
from wenet_hs.score.error_rate import count_of, format_interval, percent
from wenet_hs.score.seeds import MIN_SEEDS, POWER, correct_p, count_tests
from wenet_hs.score.tables import format_p, format_points, format_signed

METRIC_NAMES = {"cer": "character error rate", "wer": "word error rate", "per": "phone error rate"}
_END = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
DETECTABLE = (_END + NormalDist().inv_cdf(POWER)) / (2 * _END)
"""Detectable difference of two single trainings, as a share of the width of its interval: a test finds it with
probability POWER. The bootstrap distribution is taken as normal."""
Groups = Mapping[str, Mapping[str, ExperimentResults]]
"""Experiments by system and seed."""
Rivals = Mapping[int, Mapping[str, Difference]]
"""The paired differences from the first experiment, by the index of the other one."""
Sentence = tuple[str, str]
"""The statement, and its numbers; one of the two can be empty."""


def write_verdict(data: ReportData, rivals: Rivals) -> list[Sentence]:
    """The sentences at the top of a page with scores."""
    assert data.mode is not None
    groups, report = group_seeds(data.experiments, data.mode), data.shown[0][2]
    if not groups:
        return [("No verdict: the references have no units.", "")]
    metric, num_languages = report.rules.metric, report.macro.num_languages
    rate = f"{METRIC_NAMES[metric]} ({metric.upper()})"
    over = f"mean of {num_languages} languages" if num_languages > 1 else count_of(len(report.utterances), "utterance")
    found = [*_compare_systems(data), *_compare_trainings(data, rivals, groups)]
    if len(groups) == 1:
        found = [_describe_system(*next(iter(groups.items())), data.mode, rate)]
    elif not found:
        found = [("No verdict: the systems are not compared, see error rates.", "")]
    return [*found, ("", f"All rates: {rate} in {data.mode}, {over}."), *_worst_languages(groups, data.mode)]


def _compare_systems(data: ReportData) -> Iterator[Sentence]:
    """A sentence for each system with several seeds but the first one. p is corrected for these sentences."""
    systems = correct_p([of for of in data.systems if of.mode == data.mode])
    correction = f" with Holm's correction for {count_tests(systems)}" if len(systems) > 2 else ""
    for of in systems:
        if (found := of.difference) is None:
            continue
        scope, method = f"over {len(found.differences)} seeds", f"p = {format_p(of.adjusted_p)}{correction}"
        if len(found.differences) < MIN_SEEDS:
            method = f"each seed {', '.join(map(format_points, found.differences))}; a test needs {MIN_SEEDS} seeds"
        rates = fmean(found.rates_b), fmean(found.rates_a)
        yield _compare((of.name, of.baseline), rates, found.interval, of.adjusted_p, found.detectable, scope, method)


def _compare_trainings(data: ReportData, rivals: Rivals, groups: Groups) -> Iterator[Sentence]:
    """A sentence for each pair of the first training and another one, of which one has no other seeds."""
    single = {found.name for of in groups.values() if len(of) == 1 for found in of.values()}
    for index, of in rivals.items():
        names = data.experiments[index].name, data.shown[0][1].name
        if single.isdisjoint(names):
            continue
        unit, test = choose_test(of)
        detectable = DETECTABLE * (test.interval.high - test.interval.low) if test.interval else None
        scope, method = "in one training each", f"p = {format_p(test.p)} over {unit}, other seeds can differ"
        rates = of[MACRO].rate_b, of[MACRO].rate_a
        yield _compare(names, rates, test.interval, test.p, detectable, scope, method)


def _compare(
    names: tuple[str, str],
    rates: tuple[float, float],
    interval: Interval | None,
    p: float | None,
    detectable: float | None,
    scope: str,
    method: str,
) -> Sentence:
    """Which system is better by how much, or how large a detected difference would have been.

    `interval`, `p`, `detectable`: of the first rate minus the second one, a fraction.
    """
    gap = rates[0] - rates[1]
    each = ", ".join(f"{name} {percent(rate)} %" for name, rate in zip(names, rates, strict=True))
    size = f"{format_points(gap)} points" + (f" {format_signed(interval)}" if interval else "")
    numbers = f"{each}; {' − '.join(names)} {size}; {method}."
    if p is None or interval is None:
        return f"No verdict on {' and '.join(names)}: there is no test {scope}.", numbers
    if p < 1 - CONFIDENCE:
        better, worse = names if gap < 0 else names[::-1]
        ends = Interval(-interval.high, -interval.low) if gap < 0 else interval
        return (
            f"{better} is better than {worse} by {percent(abs(gap))} points {format_interval(ends)} {scope}.",
            numbers,
        )
    power = f"{percent(detectable)} points would have been, with a probability of {100 * POWER:g} %"
    head = f"No difference between {' and '.join(names)} was detected {scope}"
    return f"{head}; {power if detectable else 'their errors are equal'}.", numbers


def _describe_system(name: str, seeds: Mapping[str, ExperimentResults], mode: str, rate: str) -> Sentence:
    macros = [found.scores[mode].macro for found in seeds.values()]
    text = f"The {rate} of {name} is {percent(fmean(macro.rate or 0.0 for macro in macros))} %"
    if len(macros) == 1:
        return f"{text} {format_interval(macros[0].interval)}.", "In brackets: 95 % interval over utterances."
    each = ", ".join(f"{seed}: {percent(macro.rate)}" for seed, macro in zip(seeds, macros, strict=True))
    return f"{text}, the mean of {len(macros)} seeds.", f"Each seed: {each}."


def _worst_languages(groups: Groups, mode: str) -> Iterator[Sentence]:
    """The language with the highest rate of each system, on average over its seeds."""
    worst: dict[str, list[str]] = {}
    for name, seeds in groups.items():
        scores = [found.scores[mode].languages for found in seeds.values()]
        rates = {lang: fmean(of[lang].rate or 0.0 for of in scores) for lang in scores[0]}
        if len(rates) > 1:
            lang = max(rates, key=rates.__getitem__)
            worst.setdefault(lang, []).append(f"{name} {percent(rates[lang])} %")
    if worst:
        each = "; ".join(f"{lang} ({', '.join(of)})" for lang, of in worst.items())
        yield f"Worst language: {each}.", ""
