# SPDX-License-Identifier: Apache-2.0
"""The verdict of a report in sentences.

It says what the trainings show about the systems, and what they do not show. A system is all
settings and files of a training but the seed.
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
_MAX_P = 1 - CONFIDENCE
"""A difference with a smaller p is called a difference."""
_INTERVAL_END = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
"""The end of an interval with CONFIDENCE around 0, in standard errors: 1.96."""
DETECTABLE_SHARE_OF_WIDTH = (_INTERVAL_END + NormalDist().inv_cdf(POWER)) / (2 * _INTERVAL_END)
"""Detectable difference of two single trainings, as a share of the width of its interval: a test
finds it with probability POWER. The bootstrap distribution is taken as normal.
"""
Groups = Mapping[str, Mapping[str, ExperimentResults]]
"""Experiments by system and seed."""
Rivals = Mapping[int, Mapping[str, Difference]]
"""The paired differences from the first experiment (A) by the index of the other one (B).

Each has those of the languages, then of the averages.
"""


@dataclass(frozen=True)
class Sentence:
    """A statement and its numbers; one of the two can be empty."""

    statement: str = ""
    numbers: str = ""


def write_verdict(data: ReportData, rivals: Rivals) -> list[Sentence]:
    """The sentences at the top of a page with scores.

    First comes what is known about the systems. If they are not compared, a sentence says that
    there is no verdict. The next one says of which metric, mode and average all rates are, and the
    last one names the worst language of each system. If the references have no units, there is only
    a sentence that says so.

    `rivals`: the differences of the other trainings from the first one, by their index in
    `data.experiments`.
    """
    assert data.mode is not None
    groups = group_seeds(data.experiments, data.mode)
    report = data.shown[0].report
    if not groups:
        return [Sentence("No verdict: the references have no units.")]
    metric = report.rules.metric
    rate_name = f"{METRIC_NAMES[metric]} ({metric.upper()})"
    if len(groups) == 1:
        name, seeds = next(iter(groups.items()))
        sentences = [_describe_system(name, seeds, data.mode, rate_name)]
    else:
        sentences = [*_compare_systems(data), *_compare_trainings(data, rivals, groups, metric)]
    if not sentences:
        sentences = [Sentence("No verdict: the systems are not compared, see error rates.")]
    if report.macro.num_languages > 1:
        averaged = f"mean of {report.macro.num_languages} languages"
    else:
        averaged = count_of(len(report.utterances), "utterance")
    sentences.append(Sentence(numbers=f"All rates: {rate_name} in {data.mode}, {averaged}."))
    sentences += _worst_languages(groups, data.mode)
    return sentences


# ---- one system


def _describe_system(
    name: str, seeds: Mapping[str, ExperimentResults], mode: str, rate_name: str
) -> Sentence:
    """The rate of the only system: of its one training with an interval, or the mean of its seeds.

    Args:
        seeds: its trainings by seed.
        rate_name: the name of the metric in the sentence.
    """
    macros = {seed: experiment.scores[mode].macro for seed, experiment in seeds.items()}
    # `or 0.0` is for the type checker: `group_seeds` leaves out experiments without a rate.
    mean = fmean(macro.rate or 0.0 for macro in macros.values())
    text = f"The {rate_name} of {name} is {percent(mean)} %"
    if len(macros) == 1:
        macro = next(iter(macros.values()))
        statement = f"{text} {format_interval(macro.interval)}."
        return Sentence(statement, "In brackets: 95 % interval over utterances.")
    seed_rates = ", ".join(f"{seed}: {percent(macro.rate)}" for seed, macro in macros.items())
    return Sentence(f"{text}, the mean of {len(macros)} seeds.", f"Each seed: {seed_rates}.")


# ---- systems with several seeds


def _compare_systems(data: ReportData) -> Iterator[Sentence]:
    """A sentence for each system with several seeds except the first one.

    p is corrected for these sentences. A system without two seeds in common with the first one is
    left out.
    """
    systems = correct_p([system for system in data.systems if system.mode == data.mode])
    correction = ""
    if len(systems) > 2:  # more than one comparison, as the first system has none
        correction = f" with Holm's correction for {count_tests(systems)}"
    for system in systems:
        if system.difference is None:
            continue
        if len(system.difference.differences) < MIN_SEEDS:
            yield _describe_few_seeds(system, system.difference)
        else:
            yield _describe_test_over_seeds(system, system.difference, correction)


def _describe_few_seeds(system: SystemSeeds, difference: SeedDifference) -> Sentence:
    """Whether all seeds agree which system has fewer errors, and the difference of each seed.

    It is for systems with too few seeds for a test.
    """
    gaps = difference.differences  # below 0: this system is better than the baseline
    num_seeds = len(gaps)
    do_all_agree = all(gap < 0 for gap in gaps) or all(gap > 0 for gap in gaps)
    if do_all_agree:
        better, worse = _rank(system.name, system.baseline, gaps[0])
        # By chance, each seed after the first one agrees with it in half of the cases.
        chance = f"Two equal systems show this in 1 of {2 ** (num_seeds - 1)} cases."
        statement = (
            f"{better} has fewer errors than {worse} with each of {num_seeds} seeds. {chance}"
        )
    else:
        neither = f"Neither {system.name} nor {system.baseline}"
        statement = f"{neither} has fewer errors with each of {num_seeds} seeds."
    seed_gaps = ", ".join(map(format_points, gaps))
    return Sentence(
        f"{statement} A test needs {MIN_SEEDS} seeds.",
        f"{_format_rates(system, difference)} points, each seed {seed_gaps}.",
    )


def _describe_test_over_seeds(
    system: SystemSeeds, difference: SeedDifference, correction: str
) -> Sentence:
    """What the test over seeds shows about a system and its baseline.

    - A difference: which of the two is better, and by how much. The test is for these utterances,
      but the interval is over seeds and utterances. If the interval contains 0, the sentence says
      that other utterances may not show the difference.
    - No difference: how large a difference must be to be detected.
    - No test: a sentence that says so.

    `correction`: the note on the correction of p; empty if it is not corrected.
    """
    numbers = _format_rates(system, difference)
    num_seeds = len(difference.differences)
    both = f"{system.name} and {system.baseline}"
    if system.adjusted_p is None or difference.interval is None:
        statement = f"No verdict on {both}: there is no test over {num_seeds} seeds."
        return Sentence(statement, f"{numbers} points.")
    p = format_p(system.adjusted_p)
    numbers += f" points {format_signed(difference.interval)}; p = {p}{correction}."
    if system.adjusted_p >= _MAX_P:
        statement = f"No difference between {both} was detected over {num_seeds} seeds"
        return Sentence(f"{statement}; {_describe_power(difference.detectable)}", numbers)
    better, worse = _rank(system.name, system.baseline, difference.mean)
    gain = _format_gain(difference.mean, difference.interval)
    statement = f"{better} is better than {worse} by {gain} over {num_seeds} seeds."
    contains_zero = difference.interval.low <= 0 <= difference.interval.high
    if contains_zero:
        statement += " This holds for these utterances; on others the difference can be zero."
    return Sentence(statement, numbers)


def _format_rates(system: SystemSeeds, difference: SeedDifference) -> str:
    """`b 6.25 %, a 8.54 %; b − a -2.29`, the means over the seeds.

    b is the system, a its baseline.
    """
    rate = percent(fmean(difference.rates_b))
    baseline_rate = percent(fmean(difference.rates_a))
    rates = f"{system.name} {rate} %, {system.baseline} {baseline_rate} %"
    return f"{rates}; {system.name} − {system.baseline} {format_points(difference.mean)}"


# ---- systems with one training


def _compare_trainings(
    data: ReportData, rivals: Rivals, groups: Groups, metric: str
) -> Iterator[Sentence]:
    """Sentences that compare the first training with others on the test set.

    A pair is compared if the system of one of the two has a single training. Two systems with
    several seeds each are compared in `_compare_systems` instead. Before the pairs stands a
    sentence on what one training cannot show; without a pair there is no sentence.

    Args:
        rivals: the differences from the first training, by index of the other one.
        groups: trainings by system and seed.
    """
    assert data.mode is not None
    first = data.shown[0].experiment.name
    single = names_without_other_seeds(groups)
    spread = measured_spread(metric, data.mode)
    sentences = list[Sentence]()
    for index, differences in rivals.items():
        name = data.experiments[index].name
        if first in single or name in single:
            sentences.append(_describe_pair(name, first, differences, spread))
    if sentences:
        yield describe_single_trainings(metric, data.mode)
    yield from sentences


def names_without_other_seeds(groups: Groups) -> set[str]:
    """The experiments whose system has one training."""
    names = set[str]()
    for seeds in groups.values():
        if len(seeds) == 1:
            names |= {experiment.name for experiment in seeds.values()}
    return names


def describe_single_trainings(metric: str, mode: str) -> Sentence:
    """What one training per system cannot show.

    Its numbers say how far seeds differed in the studies of this project, if that was measured.
    """
    statement = (
        "One training per system decides nothing between systems: "
        "another seed can change the order."
    )
    to_do = f"Train {MIN_SEEDS} seeds of each."
    spread = measured_spread(metric, mode)
    if spread is None:
        return Sentence(statement, to_do)
    numbers = (
        "Trainings that differ only in the seed differ by more than "
        f"{spread.median:.1%} of their rate in half of the pairs, "
        f"{spread.highest_tenth:.1%} in one of ten ({spread.num_systems} systems of ours). {to_do}"
    )
    return Sentence(statement, numbers)


def _describe_pair(
    name: str, first: str, differences: Mapping[str, Difference], spread: SeedSpread | None
) -> Sentence:
    """What the test set shows about a training and the first one, named `name` and `first`.

    If the test finds a difference, the sentence says which training has fewer errors and by how
    much; if not, how large a difference must be to be detected; without a test, that the test set
    is too small. The interval is over utterances or speakers, not over seeds.

    Args:
        differences: of the first training (A) and this one (B), by language and on average.
        spread: how far seeds differ, for comparison; None if that was not measured.
    """
    macro = differences[MACRO]
    gap = macro.rate_b - macro.rate_a
    resampled, test = choose_test(differences)  # "speakers" or "utterances"
    both = f"{name} and {first}"
    rates = f"{name} {percent(macro.rate_b)} %, {first} {percent(macro.rate_a)} %"
    numbers = f"{rates}; {name} − {first} {format_points(gap)} points"
    if test.p is None or test.interval is None:
        statement = f"No statement on {both}: the test set is too small for an interval."
        return Sentence(statement, f"{numbers}.")
    p = format_p(test.p)
    numbers += f" {format_signed(test.interval)}; p = {p}, both over {resampled} only."
    if test.p >= _MAX_P:
        width = test.interval.high - test.interval.low
        power = _describe_power(DETECTABLE_SHARE_OF_WIDTH * width)
        statement = f"Between these trainings of {both} no difference was detected"
        return Sentence(f"{statement}; {power}", numbers)
    better, worse = _rank(name, first, gap)
    gain = _format_gain(gap, test.interval)
    statement = f"Of these two trainings, {better} has fewer errors than {worse}, by {gain}."
    numbers += _compare_with_spread(gap, (macro.rate_a, macro.rate_b), spread)
    return Sentence(statement, numbers)


def _compare_with_spread(gap: float, rates: tuple[float, float], spread: SeedSpread | None) -> str:
    """How a difference compares with those of other seeds; empty where these were not measured.

    Args:
        gap: the difference of the two rates, a fraction with any sign.
        rates: of the two trainings, fractions.
    """
    if spread is None:
        return ""
    share = abs(gap) / fmean(rates)
    if share > spread.highest_tenth:
        return " Nine of ten pairs of seeds differ by less."
    if share > spread.median:
        return " More than one in ten pairs of seeds differ by as much."
    return " More than half of the pairs of seeds differ by as much."


# ---- shared sentences


def _rank(name: str, baseline: str, gap: float) -> tuple[str, str]:
    """The better one of the two, then the worse one.

    `gap`: the rate of `name` minus that of `baseline`, so below 0 `name` is better.
    """
    return (name, baseline) if gap < 0 else (baseline, name)


def _format_gain(gap: float, interval: Interval) -> str:
    """`2.42 points [1.90, 2.94]`: a difference and its interval without sign.

    `gap`, `interval`: fractions. If the gap is negative, the interval is mirrored too.
    """
    if gap < 0:
        interval = Interval(-interval.high, -interval.low)
    return f"{percent(abs(gap))} points {format_interval(interval)}"


def _describe_power(detectable: float | None) -> str:
    """How large a difference would have been detected, as the end of a sentence.

    The sentence begins with `no difference was detected;`.

    `detectable`: a fraction. None or 0: the errors are equal, so there is no such number.
    """
    if not detectable:
        return "their errors are equal."
    probability = f"with a probability of {100 * POWER:g} %"
    return f"a true difference of {percent(detectable)} points would have been, {probability}."


def _worst_languages(groups: Groups, mode: str) -> Iterator[Sentence]:
    """A sentence with the language of each system that has the highest rate, the mean of its seeds.

    There is none if each system has one language. `groups`: trainings by system and seed.
    """
    rates_by_language: dict[str, list[str]] = {}  # worst language → `SYSTEM 12.34 %`
    for name, seeds in groups.items():
        rates = _mean_rates([*seeds.values()], mode)
        if len(rates) > 1:
            worst = max(rates, key=rates.__getitem__)
            rates_by_language.setdefault(worst, []).append(f"{name} {percent(rates[worst])} %")
    if rates_by_language:
        langs = [f"{lang} ({', '.join(texts)})" for lang, texts in rates_by_language.items()]
        yield Sentence(f"Worst language: {'; '.join(langs)}.")


def _mean_rates(trainings: Sequence[ExperimentResults], mode: str) -> dict[str, float]:
    """The rate of each language, the mean over the trainings.

    A language without reference units has 0.
    """
    scores = [training.scores[mode].languages for training in trainings]
    means = dict[str, float]()
    for lang in scores[0]:
        means[lang] = fmean(by_language[lang].rate or 0.0 for by_language in scores)
    return means
