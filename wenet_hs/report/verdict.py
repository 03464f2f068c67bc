# SPDX-License-Identifier: Apache-2.0
"""The verdict of a report in sentences: what the trainings show about the systems, and what they do
not show.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from wenet_hs.report.seed_spread import SeedSpread, measured_spread
from wenet_hs.results.experiment import ExperimentResults
from wenet_hs.results.report_data import ReportData
from wenet_hs.results.systems import group_seeds
from wenet_hs.score.bootstrap import CONFIDENCE, Interval
from wenet_hs.score.compare import MACRO, Difference, choose_test
from wenet_hs.score.error_rate import count_of, format_interval, percent
from wenet_hs.score.seeds import (
    MIN_SEEDS,
    POWER,
    SeedDifference,
    SystemSeeds,
    correct_p,
    count_tests,
)
from wenet_hs.score.tables import format_p, format_points, format_signed

METRIC_NAMES = {"cer": "character error rate", "wer": "word error rate", "per": "phone error rate"}
_END = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
DETECTABLE_SHARE_OF_WIDTH = (_END + NormalDist().inv_cdf(POWER)) / (2 * _END)
"""Detectable difference of two single trainings, as a share of the width of its interval: a test
finds it with probability POWER. The bootstrap distribution is taken as normal.
"""
Groups = Mapping[str, Mapping[str, ExperimentResults]]
"""Experiments by system and seed."""
Rivals = Mapping[int, Mapping[str, Difference]]
"""The paired differences from the first experiment, by the index of the other one."""


@dataclass(frozen=True)
class Sentence:
    """A statement and its numbers; one of the two can be empty."""

    statement: str = ""
    numbers: str = ""


def write_verdict(data: ReportData, rivals: Rivals) -> list[Sentence]:
    """The sentences at the top of a page with scores."""
    assert data.mode is not None
    groups = group_seeds(data.experiments, data.mode)
    report = data.shown[0].report
    if not groups:
        return [Sentence("No verdict: the references have no units.")]
    metric = report.rules.metric
    rate_name = f"{METRIC_NAMES[metric]} ({metric.upper()})"
    if len(groups) == 1:
        (name, seeds), *_ = groups.items()
        sentences = [_describe_system(name, seeds, data.mode, rate_name)]
    else:
        sentences = [*_compare_systems(data), *_compare_trainings(data, rivals, groups, metric)]
    if not sentences:
        sentences = [Sentence("No verdict: the systems are not compared, see error rates.")]
    num_languages = report.macro.num_languages
    is_over_languages = num_languages > 1
    over = (
        f"mean of {num_languages} languages"
        if is_over_languages
        else count_of(len(report.utterances), "utterance")
    )
    sentences.append(Sentence(numbers=f"All rates: {rate_name} in {data.mode}, {over}."))
    return [*sentences, *_worst_languages(groups, data.mode)]


# ---- systems with several seeds


def _compare_systems(data: ReportData) -> Iterator[Sentence]:
    """A sentence for each system with several seeds but the first one. p is corrected for these
    sentences.
    """
    systems = correct_p([system for system in data.systems if system.mode == data.mode])
    correction = f" with Holm's correction for {count_tests(systems)}" if len(systems) > 2 else ""
    for system in systems:
        if system.difference is None:
            continue
        if len(system.difference.differences) < MIN_SEEDS:
            yield _describe_few_seeds(system, system.difference)
        else:
            yield _describe_test_over_seeds(system, system.difference, correction)


def _describe_few_seeds(system: SystemSeeds, difference: SeedDifference) -> Sentence:
    """Whether all seeds agree which system has fewer errors. Too few seeds for a test."""
    gaps = difference.differences
    num_seeds = len(gaps)
    is_lower = all(gap < 0 for gap in gaps)
    is_higher = all(gap > 0 for gap in gaps)
    if is_lower or is_higher:
        better, worse = (
            (system.name, system.baseline) if is_lower else (system.baseline, system.name)
        )
        chance = f"Two equal systems show this in 1 of {2 ** (num_seeds - 1)} cases."
        shown = f"{better} has fewer errors than {worse} with each of {num_seeds} seeds. {chance}"
    else:
        shown = f"Neither {system.name} nor {system.baseline} has fewer errors with each of {num_seeds} seeds."
    each = ", ".join(map(format_points, gaps))
    return Sentence(
        f"{shown} A test needs {MIN_SEEDS} seeds.",
        f"{_format_rates(system, difference)} points, each seed {each}.",
    )


def _describe_test_over_seeds(
    system: SystemSeeds, difference: SeedDifference, correction: str
) -> Sentence:
    """Which system is better by how much, or how large a detected difference would have been.

    The test is over seeds, for these utterances; the interval is over seeds and utterances. So the
    test can find a difference that other utterances may not show.
    """
    names = (system.name, system.baseline)
    numbers = _format_rates(system, difference)
    num_seeds = len(difference.differences)
    if system.adjusted_p is None or difference.interval is None:
        statement = f"No verdict on {' and '.join(names)}: there is no test over {num_seeds} seeds."
        return Sentence(statement, f"{numbers} points.")
    numbers += f" points {format_signed(difference.interval)}; p = {format_p(system.adjusted_p)}{correction}."
    if system.adjusted_p >= 1 - CONFIDENCE:
        head = f"No difference between {' and '.join(names)} was detected over {num_seeds} seeds"
        return Sentence(f"{head}; {_describe_power(difference.detectable)}", numbers)
    better, worse = names if difference.mean < 0 else names[::-1]
    gain = _format_gain(difference.mean, difference.interval)
    statement = f"{better} is better than {worse} by {gain} over {num_seeds} seeds."
    contains_zero = difference.interval.low <= 0 <= difference.interval.high
    if contains_zero:
        statement += " This holds for these utterances; on others the difference can be zero."
    return Sentence(statement, numbers)


def _format_rates(system: SystemSeeds, difference: SeedDifference) -> str:
    """`b 6.25 %, a 8.54 %; b − a -2.29`, the means over the seeds."""
    rate = fmean(difference.rates_b)
    baseline_rate = fmean(difference.rates_a)
    rates = f"{system.name} {percent(rate)} %, {system.baseline} {percent(baseline_rate)} %"
    return f"{rates}; {system.name} − {system.baseline} {format_points(difference.mean)}"


# ---- systems with one training


def _compare_trainings(
    data: ReportData, rivals: Rivals, groups: Groups, metric: str
) -> Iterator[Sentence]:
    """A sentence for each pair of the first training and another one, of which one has no other
    seeds.

    Before them stands a sentence on what one training cannot show.
    """
    assert data.mode is not None
    first = data.shown[0].experiment.name
    single = names_without_other_seeds(groups)
    pairs = {index: (data.experiments[index].name, first) for index in rivals}
    single_pairs = {index: names for index, names in pairs.items() if not single.isdisjoint(names)}
    if single_pairs:
        yield describe_single_trainings(metric, data.mode)
    for index, names in single_pairs.items():
        yield _describe_pair(names, rivals[index], data.mode, metric)


def names_without_other_seeds(groups: Groups) -> set[str]:
    """The experiments whose system has one training."""
    single = [seeds for seeds in groups.values() if len(seeds) == 1]
    return {experiment.name for seeds in single for experiment in seeds.values()}


def describe_single_trainings(metric: str, mode: str) -> Sentence:
    """What one training per system cannot show, and how far seeds differed in the studies of this
    project.
    """
    statement = "One training per system decides nothing between systems: another seed can change the order."
    to_do = f"Train {MIN_SEEDS} seeds of each."
    spread = measured_spread(metric, mode)
    if spread is None:
        return Sentence(statement, to_do)
    numbers = (
        f"Trainings that differ only in the seed differ by more than {spread.median:.1%} of their rate in half of the "
        f"pairs, {spread.highest_tenth:.1%} in one of ten ({spread.num_systems} systems of ours). {to_do}"
    )
    return Sentence(statement, numbers)


def _describe_pair(
    names: tuple[str, str], differences: Mapping[str, Difference], mode: str, metric: str
) -> Sentence:
    """What the test set shows about two trainings: its interval is over utterances or speakers, not
    over seeds.

    `differences`: of the second one (A) and the first one (B), by language and on average.
    """
    macro = differences[MACRO]
    gap = macro.rate_b - macro.rate_a
    sampled, test = choose_test(differences)
    rates = f"{names[0]} {percent(macro.rate_b)} %, {names[1]} {percent(macro.rate_a)} %"
    numbers = f"{rates}; {' − '.join(names)} {format_points(gap)} points"
    if test.p is None or test.interval is None:
        statement = (
            f"No statement on {' and '.join(names)}: the test set is too small for an interval."
        )
        return Sentence(statement, f"{numbers}.")
    numbers += f" {format_signed(test.interval)}; p = {format_p(test.p)}, both over {sampled} only."
    if test.p < 1 - CONFIDENCE:
        better, worse = names if gap < 0 else names[::-1]
        gain = _format_gain(gap, test.interval)
        beside_seeds = _compare_with_spread(
            gap, (macro.rate_a, macro.rate_b), measured_spread(metric, mode)
        )
        return Sentence(
            f"Of these two trainings, {better} has fewer errors than {worse}, by {gain}.",
            f"{numbers}{beside_seeds}",
        )
    width = test.interval.high - test.interval.low
    head = f"Between these trainings of {' and '.join(names)} no difference was detected"
    return Sentence(f"{head}; {_describe_power(DETECTABLE_SHARE_OF_WIDTH * width)}", numbers)


def _compare_with_spread(gap: float, rates: tuple[float, float], spread: SeedSpread | None) -> str:
    """How large a difference is beside those of other seeds; empty where these were not measured."""
    if spread is None:
        return ""
    share = abs(gap) / fmean(rates)
    if share > spread.highest_tenth:
        return " Nine of ten pairs of seeds differ by less."
    if share > spread.median:
        return " More than one in ten pairs of seeds differ by as much."
    return " More than half of the pairs of seeds differ by as much."


# ---- shared sentences


def _format_gain(gap: float, interval: Interval) -> str:
    """`2.42 points [1.90, 2.94]`: a difference and its interval without sign.

    `gap`, `interval`: fractions.
    """
    if gap < 0:
        interval = Interval(-interval.high, -interval.low)
    return f"{percent(abs(gap))} points {format_interval(interval)}"


def _describe_power(detectable: float | None) -> str:
    """How large a difference would have been detected.

    None or 0: the errors are equal, so there is no such number.
    """
    if not detectable:
        return "their errors are equal."
    probability = f"with a probability of {100 * POWER:g} %"
    return f"a true difference of {percent(detectable)} points would have been, {probability}."


def _describe_system(
    name: str, seeds: Mapping[str, ExperimentResults], mode: str, rate_name: str
) -> Sentence:
    """The rate of the only system: of its one training with an interval, or the mean of its seeds."""
    macros = [experiment.scores[mode].macro for experiment in seeds.values()]
    mean = fmean(macro.rate or 0.0 for macro in macros)
    text = f"The {rate_name} of {name} is {percent(mean)} %"
    if len(macros) == 1:
        statement = f"{text} {format_interval(macros[0].interval)}."
        return Sentence(statement, "In brackets: 95 % interval over utterances.")
    each = ", ".join(
        f"{seed}: {percent(macro.rate)}" for seed, macro in zip(seeds, macros, strict=True)
    )
    return Sentence(f"{text}, the mean of {len(macros)} seeds.", f"Each seed: {each}.")


def _worst_languages(groups: Groups, mode: str) -> Iterator[Sentence]:
    """The language with the highest rate of each system, on average over its seeds."""
    systems_by_language: dict[str, list[str]] = {}
    for name, seeds in groups.items():
        rates = _mean_rates([*seeds.values()], mode)
        if len(rates) > 1:
            worst = max(rates, key=rates.__getitem__)
            systems_by_language.setdefault(worst, []).append(f"{name} {percent(rates[worst])} %")
    if systems_by_language:
        each = "; ".join(
            f"{lang} ({', '.join(systems)})" for lang, systems in systems_by_language.items()
        )
        yield Sentence(f"Worst language: {each}.")


def _mean_rates(trainings: Sequence[ExperimentResults], mode: str) -> dict[str, float]:
    """The rate of each language, the mean over the trainings.

    A language without reference units has 0.
    """
    scores = [training.scores[mode].languages for training in trainings]
    return {lang: fmean(of_seed[lang].rate or 0.0 for of_seed in scores) for lang in scores[0]}
