# SPDX-License-Identifier: Apache-2.0
"""The verdict of a report in sentences: the better system in the shown mode, the error rate, the worst language."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist, fmean

from wenet_hs.report.collect import ExperimentResults, ReportData, group_seeds
from wenet_hs.score.bootstrap import CONFIDENCE, Interval
from wenet_hs.score.compare import MACRO, Difference
from wenet_hs.score.error_rate import count_of, format_interval, percent
from wenet_hs.score.seeds import MIN_SEEDS, POWER, SystemSeeds, correct_p, count_tests
from wenet_hs.score.tables import format_p, format_points, format_signed

METRIC_NAMES = {"cer": "character error rate", "wer": "word error rate", "per": "phone error rate"}
_END = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
DETECTABLE = (_END + NormalDist().inv_cdf(POWER)) / (2 * _END)
"""The difference that a test of one training finds with probability POWER, as a share of its interval's width. The
bootstrap is taken for normally distributed."""
Groups = Mapping[str, Mapping[str, ExperimentResults]]
"""Experiments by system and seed."""
Rivals = Mapping[int, Mapping[str, Difference]]
"""The paired differences from the first experiment, by the index of the other one."""
Sentence = tuple[str, str]
"""The statement, and its numbers; one of the two can be empty."""


@dataclass(frozen=True, kw_only=True)
class _Test:
    """The difference of two systems, as fractions, and its test."""

    names: tuple[str, str]
    rates: tuple[float, float]
    interval: Interval | None
    """Of the first rate minus the second one."""
    p: float | None
    detectable: float | None
    method: str

    def sentence(self) -> Sentence:
        """Which system is better by how much, or how large a detected difference would have been."""
        gap = self.rates[0] - self.rates[1]
        each = ", ".join(f"{name} {percent(rate)} %" for name, rate in zip(self.names, self.rates, strict=True))
        size = f"{format_points(gap)} points" + (f" {format_signed(self.interval)}" if self.interval else "")
        numbers = f"{each}; {' − '.join(self.names)} {size}; {self.method}."
        if self.p is None or self.interval is None:
            return f"No verdict on {' and '.join(self.names)}: there is no test of the difference.", numbers
        if self.p < 1 - CONFIDENCE:
            better, worse = self.names if gap < 0 else self.names[::-1]
            low, high = (-self.interval.high, -self.interval.low) if gap < 0 else self.interval
            size = f"{percent(abs(gap))} points {format_interval(Interval(low, high))}"
            return f"{better} is better than {worse} by {size}.", numbers
        power = f"{percent(self.detectable)} points would have been, with a probability of {100 * POWER:g} %"
        head = f"No difference between {' and '.join(self.names)} was detected"
        return f"{head}; {power if self.detectable else 'their errors are equal'}.", numbers


def write_verdict(data: ReportData, rivals: Rivals) -> list[Sentence]:
    """The sentences at the top of a page with scores."""
    assert data.mode is not None
    groups, report = group_seeds(data.experiments, data.mode), data.shown[0][2]
    metric, num_languages = report.rules.metric, report.macro.num_languages
    rate = f"{METRIC_NAMES[metric]} ({metric.upper()})"
    over = f"mean of {num_languages} languages" if num_languages > 1 else count_of(len(report.utterances), "utterance")
    found = [*_compare_systems(data), *_compare_trainings(data, rivals, groups)]
    if not groups:
        found = [("No verdict: the references have no units.", "")]
    elif len(groups) == 1:
        found = [_describe_system(*next(iter(groups.items())), data.mode, rate)]
    return [*found, ("", f"All rates: {rate} in {data.mode}, {over}."), *_worst_languages(groups, data.mode)]


def _compare_systems(data: ReportData) -> Iterator[Sentence]:
    """A sentence for each system with several seeds but the first one. p is corrected for these sentences."""
    systems = correct_p([of for of in data.systems if of.mode == data.mode])
    for of in systems:
        if of.name != of.baseline:
            yield _compare_seeds(of, f" with Holm's correction for {count_tests(systems)}" if len(systems) > 2 else "")


def _compare_seeds(of: SystemSeeds, correction: str) -> Sentence:
    found = of.difference
    if found is None:
        return f"{of.name} and {of.baseline} are not compared, see error rates.", ""
    number = len(found.differences)
    method = f"{number} seeds, p = {format_p(of.adjusted_p)}{correction}"
    if number < MIN_SEEDS:
        method = f"each seed {', '.join(map(format_points, found.differences))}; a test needs {MIN_SEEDS} seeds"
    return _Test(
        names=(of.name, of.baseline),
        rates=(fmean(found.rates_b), fmean(found.rates_a)),
        interval=found.interval,
        p=of.adjusted_p,
        detectable=found.detectable,
        method=method,
    ).sentence()


def _compare_trainings(data: ReportData, rivals: Rivals, groups: Groups) -> Iterator[Sentence]:
    """A sentence for each training without other seeds but the first one."""
    baseline = data.shown[0][1].name
    single = [found.name for of in groups.values() if len(of) == 1 for found in of.values()]
    for index, experiment, _ in data.shown[1:]:
        if experiment.name in single and index in rivals:
            yield _compare_pair(experiment.name, baseline, rivals[index])
        elif experiment.name in single:
            yield f"{experiment.name} and {baseline} are not compared, see error rates.", ""


def _compare_pair(name: str, baseline: str, differences: Mapping[str, Difference]) -> Sentence:
    found, unit = differences[MACRO], "utterances"
    chosen = found.by_utterance
    # With few speakers in a language the averages' interval over speakers is too narrow.
    if found.by_speaker and all(of.has_speaker_interval for of in differences.values()):
        chosen, unit = found.by_speaker, "speakers"
    return _Test(
        names=(name, baseline),
        rates=(found.rate_b, found.rate_a),
        interval=chosen.interval,
        p=chosen.p,
        detectable=DETECTABLE * (chosen.interval.high - chosen.interval.low) if chosen.interval else None,
        method=f"p = {format_p(chosen.p)} over {unit} of one training each, other seeds can differ",
    ).sentence()


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
