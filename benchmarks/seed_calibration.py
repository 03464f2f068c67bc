# SPDX-License-Identifier: Apache-2.0
"""Calibration of `wenet_hs.score.seeds`: how often does it find a difference where there is none?

The variances are measured: the trainings of each system over seeds give the variance of training
(of all languages together, and of each language) and of the residual (training × utterance);
several systems give that of system × utterance. Then null experiments are drawn: utterances with
replacement from the real ones, new trainings of two equal systems with these variances, error
counts. In the second null, each utterance favours one of the systems by chance: over all utterances
the systems are equal, but not on the drawn ones.

Example: python benchmarks/seed_calibration.py examples/ucla/s0/results/table3 --out benchmarks/notes/seed_calibration
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from paired import publish

from wenet_hs.bin.main import check_at_least, main_of
from wenet_hs.results.results_file import Results, read_results
from wenet_hs.score.compare import MACRO
from wenet_hs.score.seeds import MIN_SEEDS, POWER, Errors, compare_seeds, detectable_difference
from wenet_hs.score.tables import markdown_table
from wenet_hs.tree.errors import ConfigError, DataError

Floats = NDArray[np.float64]
TARGET = 0.07


@dataclass(frozen=True)
class Variances:
    """Standard deviations of the error rate, fractions."""

    training: float
    """Of the seed, on all languages together."""
    training_language: float
    """Of the seed, on each language."""
    utterance: float
    """Of an utterance's rate, within a language."""
    residual: float
    """Of training × utterance, for one reference unit: an utterance of n units has this divided by
    sqrt(n).
    """
    system_utterance: float | None
    """Of system × utterance; None for one system."""
    macro: float
    """Of the macro average over seeds, as observed: within a system, pooled over the systems."""


def read_errors(
    paths: Sequence[Path], mode: str
) -> tuple[list[dict[str, Floats]], dict[str, Floats]]:
    """Errors (S, C) by language of each system, and the reference units (C,) by language.

    Raises DataError for results without the mode or on different test sets, ConfigError if no
        system has two seeds.
    """
    systems: dict[str, dict[int, Results]] = {}
    files = [
        file
        for path in paths
        for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])
    ]
    for path in files:
        one = read_results(path)
        if mode not in one.modes:
            raise DataError(
                f"{path}: no scores of {mode}; it has {', '.join(one.modes)}: choose one with --mode"
            )
        systems.setdefault(one.system, {})[one.seed] = one
    found = [one.modes[mode] for of in systems.values() for one in of.values()]
    if len({one.keys for one in found}) > 1:
        raise DataError(f"{paths[0]} and others: different test sets; score all on one list")
    if all(len(of) < 2 for of in systems.values()):
        raise ConfigError(
            f"{paths[0]} and others: one seed per system; give two or more seeds of at least one system"
        )
    units_of = next(one for of in systems.values() for one in of.values()).units
    first = {lang: np.array(of_lang) for lang, of_lang in units_of.items()}
    keep = {
        lang: units_C > 0 for lang, units_C in first.items() if (units_C > 0).sum() > 1
    }  # the others have no rate
    errors = []
    for of in systems.values():
        counts = {
            lang: np.array([one.modes[mode].errors[lang] for one in of.values()]) for lang in keep
        }
        errors.append({lang: of_lang[:, keep[lang]] for lang, of_lang in counts.items()})
    units = {lang: first[lang][kept_C].astype(float) for lang, kept_C in keep.items()}
    return errors, units


def measure(systems: Sequence[Mapping[str, Floats]], units: Mapping[str, Floats]) -> Variances:
    """Estimate the components by the method of moments."""
    several = [system for system in systems if len(next(iter(system.values()))) > 1]
    squares, freedom = 0.0, 0
    for system in several:
        for lang, errors_SC in system.items():
            rest_SC = _without_main_effects(errors_SC, units[lang])
            squares += float((rest_SC**2 / units[lang]).sum())
            freedom += (len(rest_SC) - 1) * (rest_SC.shape[1] - 1)
    residual = squares / freedom
    rates = [
        np.array([e.sum(axis=1) / units[lang].sum() for lang, e in system.items()])
        for system in several
    ]  # (L, S)
    noise_L = np.array([residual / units_C.sum() for units_C in units.values()])
    of_languages, of_macro = (
        float(
            np.average(
                [variance(rates_LS) for rates_LS in rates],
                weights=[of.shape[1] - 1 for of in rates],
            )
        )
        for variance in (
            lambda r: (r.var(axis=1, ddof=1) - noise_L).mean(),
            lambda r: r.mean(axis=0).var(ddof=1),
        )
    )
    num_langs = len(units)
    clean_macro = of_macro - noise_L.mean() / num_langs  # = training + training_language / L
    training = (
        max(0.0, (num_langs * clean_macro - of_languages) / (num_langs - 1))
        if num_langs > 1
        else clean_macro
    )
    pooled = {
        lang: np.concatenate([system[lang] for system in systems]).mean(axis=0) for lang in units
    }
    utterance = np.mean([(pooled[lang] / units_C).var(ddof=1) for lang, units_C in units.items()])
    return Variances(
        training=float(np.sqrt(max(0.0, training))),
        training_language=float(np.sqrt(max(0.0, of_languages - training))),
        utterance=float(np.sqrt(utterance)),
        residual=float(np.sqrt(residual)),
        system_utterance=_measure_system_utterance(systems, units, residual)
        if len(systems) > 1
        else None,
        macro=float(np.sqrt(of_macro)),
    )


def _without_main_effects(errors_KC: Floats, units_C: Floats) -> Floats:
    """Errors minus those expected from the rates of the row and of the utterance."""
    gain_K1 = (errors_KC.sum(axis=1, keepdims=True) - errors_KC.sum(axis=1).mean()) / units_C.sum()
    return errors_KC - errors_KC.mean(axis=0) - gain_K1 * units_C


def _measure_system_utterance(
    systems: Sequence[Mapping[str, Floats]], units: Mapping[str, Floats], residual: float
) -> float:
    values = []
    for lang, units_C in units.items():
        rest_KC = (
            _without_main_effects(
                np.array([system[lang].mean(axis=0) for system in systems]), units_C
            )
            / units_C
        )
        noise = np.mean([1 / len(system[lang]) for system in systems]) * residual
        values.append((rest_KC**2).sum(axis=0) / (len(systems) - 1) - noise / units_C)
    return float(np.sqrt(max(0.0, np.concatenate(values).mean())))


def draw_null(
    rng: np.random.Generator,
    rates: Mapping[str, Floats],
    units: Mapping[str, Floats],
    found: Variances,
    num_seeds: int,
    system_utterance: float,
) -> dict[str, Errors]:
    """The error counts of two systems without a true difference, over `num_seeds` new seeds and
    drawn utterances.
    """
    shift_S2 = rng.normal(0, found.training, (num_seeds, 2))
    errors: dict[str, dict[str, NDArray[np.int64]]] = {str(seed): {} for seed in range(num_seeds)}
    for lang, units_C in units.items():
        drawn_C = rng.integers(len(units_C), size=len(units_C))
        n_C1 = units_C[drawn_C, None]
        rate_SC2 = rates[lang][drawn_C, None] + rng.normal(0, system_utterance, (1, len(n_C1), 2))
        rate_SC2 = (
            rate_SC2 + (shift_S2 + rng.normal(0, found.training_language, shift_S2.shape))[:, None]
        )
        expected_SC2 = n_C1 * rate_SC2 + np.sqrt(n_C1) * rng.normal(
            0, found.residual, rate_SC2.shape
        )
        counts_SC2 = np.floor(np.maximum(expected_SC2, 0) + rng.random(expected_SC2.shape)).astype(
            np.int64
        )
        for of_seed, counts_C2 in zip(errors.values(), counts_SC2, strict=True):
            of_seed[lang] = np.column_stack((counts_C2, n_C1.astype(np.int64)))
    return dict(errors)


def calibrate(nulls: Iterator[Mapping[str, Errors]], num_resamples: int) -> dict[str, float]:
    """The share of p < 0.05 and of intervals that contain 0, and the mean width of the intervals."""
    found = [
        compare_seeds(errors, num_resamples=num_resamples).differences[MACRO] for errors in nulls
    ]
    intervals = [of.interval for of in found if of.interval is not None]
    return {
        "p_below_005": float(np.mean([of.p is not None and of.p < 0.05 for of in found])),
        "coverage": float(np.mean([interval.low <= 0 <= interval.high for interval in intervals])),
        "width": float(np.mean([interval.high - interval.low for interval in intervals])),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("results", type=Path, nargs="+", help="results files, or folders with them")
    add("--mode", default="attention", help="decoding mode (default: %(default)s)")
    add("--seeds", type=int, default=5, help="seeds per null experiment (default: %(default)s)")
    add("--experiments", type=int, default=1000, help="null experiments (default: %(default)s)")
    add("--num_resamples", type=int, default=1000, help="of each interval (default: %(default)s)")
    add("--out", type=Path, help="write OUT.md and OUT.json (default: print only)")


def run(args: argparse.Namespace) -> None:
    """Measure the variances, draw the null experiments, publish."""
    check_at_least(args, MIN_SEEDS, "seeds")
    check_at_least(args, 1, "experiments", "num_resamples")
    systems, units = read_errors(args.results, args.mode)
    found = measure(systems, units)
    rates = {
        lang: np.concatenate([of[lang] for of in systems]).mean(axis=0) / of_C
        for lang, of_C in units.items()
    }
    effects = {
        "equal systems": 0.0,
        "equal over all utterances, not on each": found.system_utterance,
    }
    nulls = {}
    for name, effect in effects.items():
        rng = np.random.default_rng(0)
        if effect is not None:
            draws = (
                draw_null(rng, rates, units, found, args.seeds, effect)
                for _ in range(args.experiments)
            )
            nulls[name] = calibrate(draws, args.num_resamples)
    detectable = detectable_difference(2**0.5 * found.macro, args.seeds)
    trainings = sum(len(next(iter(of.values()))) for of in systems)
    what = f"{trainings} trainings of {len(systems)} systems, {args.mode}, {len(units)} languages"
    text = f"{what}, {sum(map(len, units.values()))} utterances. {format_note(found, nulls, detectable, args)}"
    record = {
        "variances": asdict(found),
        "nulls": nulls,
        "detectable": detectable,
        "seeds": args.seeds,
    }
    publish("Calibration of comparisons over seeds", text, record, device="cpu", out=args.out)


def format_note(
    found: Variances,
    nulls: Mapping[str, Mapping[str, float]],
    detectable: float,
    args: argparse.Namespace,
) -> str:
    """The tables of the note."""
    components = {
        name.replace("_", " × "): value
        for name, value in asdict(found).items()
        if value is not None
    }
    rows = [
        [
            name,
            *(format_share(of[key], args.experiments) for key in ("p_below_005", "coverage")),
            f"{100 * of['width']:.2f}",
        ]
        for name, of in nulls.items()
    ]
    first = nulls["equal systems"]["p_below_005"]
    parts = [
        "Standard deviations of the error rate, in points:",
        markdown_table(
            ["component", "points"],
            [[name, f"{100 * value:.2f}"] for name, value in components.items()],
        ),
        f"{args.experiments} null experiments with {args.seeds} seeds, shares in % ± standard error:",
        markdown_table(["null", "p < 0.05", "intervals with 0", "mean width, points"], rows),
        f"Target: p < 0.05 in at most {TARGET:.0%} of the experiments with equal systems: "
        f"{'reached' if first <= TARGET else 'not reached'} ({first:.1%}). The t test is about the drawn utterances: "
        "in the second null it finds differences that are real on them. The interval is about all utterances.",
        f"Two systems whose seeds vary like these, independently: {args.seeds} seeds show a difference of "
        f"{100 * detectable:.2f} points with a probability of {POWER:.0%}.",
    ]
    return "\n\n".join(parts)


def format_share(share: float, number: int) -> str:
    """A share in % with its standard error."""
    return f"{100 * share:.1f} ± {100 * (share * (1 - share) / number) ** 0.5:.1f}"


if __name__ == "__main__":
    main_of(__name__)
