# SPDX-License-Identifier: Apache-2.0
"""Systems over several seeds: their trainings, and their differences from the first system in each decoding mode."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from wenet_hs.errors import DataError
from wenet_hs.score.compare import MACRO
from wenet_hs.score.error_rate import UNDEFINED, Report
from wenet_hs.score.pairing import SAME_COMPUTATION, Training, check_pair, training_of
from wenet_hs.score.seeds import SeedDifference, compare_seeds, holm, pair_reports


class ScoredTraining(Protocol):
    """The part of `ExperimentResults` that is compared."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def settings(self) -> dict[str, Any]:
        """train.yaml without its provenance."""

    @property
    def provenance(self) -> dict[str, Any]:
        """That of train.yaml."""

    @property
    def scores(self) -> Mapping[str, Report]:
        """By decoding mode."""


Seeds = dict[str, ScoredTraining]
"""By seed."""


@dataclass(frozen=True, kw_only=True)
class SystemSeeds:
    """A system in one decoding mode."""

    mode: str
    name: str
    rates: dict[str, float]
    """The macro average of each seed."""
    baseline: str
    """The first system of the mode."""
    difference: SeedDifference | None = None
    """This system minus the baseline; None for the baseline and without two pairs."""
    adjusted_p: float | None = None
    """Holm's correction over the comparisons of all systems and modes."""


def group_seeds(experiments: Sequence[ScoredTraining], mode: str) -> dict[str, Seeds]:
    """The experiments with a macro average in this mode by system, which is all settings and files but the seed.

    A system has the name of its first experiment. Experiments without a seed are single.
    """
    groups: dict[object, tuple[str, Seeds]] = {}
    used = Counter[str]()
    for found in experiments:
        if mode not in found.scores or found.scores[mode].macro.rate is None:
            continue
        seed = str(found.settings.get("seed", UNDEFINED))
        files = sorted(item for item in found.provenance.items() if str(item[0]).startswith("sha256"))
        is_tuned = "--checkpoint" in str(found.provenance.get("command", ""))
        settings = repr((found.settings | {"seed": None}, files, is_tuned))
        key = (settings, used[settings + seed]) if "seed" in found.settings else found.name
        used[settings + seed] += 1  # a second experiment with equal settings and seed is another system
        groups.setdefault(key, (found.name.removesuffix(f"-seed{seed}"), {}))[1][seed] = found
    names = Counter(name for name, _ in groups.values())
    return {name if names[name] == 1 else next(iter(of.values())).name: of for name, of in groups.values()}


def compare_systems(experiments: Sequence[ScoredTraining], modes: Iterable[str]) -> tuple[list[SystemSeeds], list[str]]:
    """The systems with several seeds in each mode, and a message for each one that cannot be compared."""
    rows, faults = list[SystemSeeds](), list[str]()
    for mode in modes:
        systems = {name: of for name, of in group_seeds(experiments, mode).items() if len(of) > 1}
        for name, of in systems.items():
            (first, baseline), difference = next(iter(systems.items())), None
            if name != first:
                try:
                    difference = _compare(baseline, of, mode)
                except DataError as error:
                    faults.append(f"{first} and {name} are not compared over seeds in {mode}: {error}")
            rates = {seed: found.scores[mode].macro.rate or 0.0 for seed, found in of.items()}
            rows.append(SystemSeeds(mode=mode, name=name, rates=rates, baseline=first, difference=difference))
    adjusted = holm([row.difference.p if row.difference else None for row in rows])
    return [replace(row, adjusted_p=p) for row, p in zip(rows, adjusted, strict=True)], faults


def _compare(baseline: Seeds, other: Seeds, mode: str) -> SeedDifference:
    seeds = [seed for seed in baseline if seed in other]
    if len(seeds) < 2:
        raise DataError(f"seeds {', '.join(baseline)} and {', '.join(other)}; train both with the same seeds")
    for seed in seeds:
        check_pair(training_facts(baseline[seed]), training_facts(other[seed]), SAME_COMPUTATION)
    reports = [[of[seed].scores[mode] for seed in seeds] for of in (baseline, other)]
    return compare_seeds(pair_reports(*reports, seeds=seeds)).differences[MACRO]


def training_facts(found: ScoredTraining) -> Training:
    """What two paired trainings must have in common."""
    return training_of(found.name, found.settings, found.provenance)
