# SPDX-License-Identifier: Apache-2.0
"""Systems over seeds: which experiments differ only in the seed, and how systems differ."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from wenet_hs.results.experiment import ExperimentResults
from wenet_hs.results.pairing import SAME_COMPUTATION, check_pair
from wenet_hs.runs.record import RunRecord
from wenet_hs.score.compare import MACRO
from wenet_hs.score.error_rate import UNDEFINED
from wenet_hs.score.seeds import SeedDifference, SystemSeeds, compare_reports, correct_p
from wenet_hs.tree.errors import DataError

Seeds = Mapping[str, ExperimentResults]
"""The experiments of one system by seed."""


@dataclass(frozen=True)
class _System:
    """A system while its experiments are collected."""

    name: str
    """Of its first experiment, without the seed."""
    experiments: dict[str, ExperimentResults] = field(default_factory=dict)
    """By seed."""


def group_seeds(experiments: Sequence[ExperimentResults], mode: str) -> dict[str, Seeds]:
    """The experiments with a macro average in this mode by system, which is all settings and files
    but the seed.

    A system has the name of its first experiment, without the seed if this name is of one system
    only. A second experiment with equal settings and seed is another system. Experiments without a
    seed are single.
    """
    systems: dict[object, _System] = {}
    num_equal = Counter[tuple[str, str]]()
    for experiment in experiments:
        if mode not in experiment.scores or experiment.scores[mode].macro.rate is None:
            continue
        seed = str(experiment.settings.get("seed", UNDEFINED))
        facts = _facts_of_system(experiment)
        has_seed = "seed" in experiment.settings
        key: object = (facts, num_equal[facts, seed]) if has_seed else experiment.name
        num_equal[facts, seed] += 1
        system = systems.setdefault(key, _System(experiment.name.removesuffix(f"-seed{seed}")))
        system.experiments[seed] = experiment
    num_named = Counter(system.name for system in systems.values())
    groups = dict[str, Seeds]()
    for system in systems.values():
        first, *_ = system.experiments.values()
        name = system.name if num_named[system.name] == 1 else first.name
        groups[name] = system.experiments
    return groups


def _facts_of_system(experiment: ExperimentResults) -> str:
    """All settings but the seed, and the sums of the files that all seeds of a system share."""
    settings = experiment.settings | {"seed": None}
    return repr((settings, _files_of_system(experiment.run)))


def _files_of_system(run: RunRecord) -> tuple[object, ...]:
    """The sums of what all seeds of a system share.

    Each seed may start from weights of its own, so of these only whether there are any.
    """
    has_base = run.base_name is not None
    return (sorted(run.files.items()), run.lists.train_sums, run.encoder_sha256, has_base)


@dataclass(frozen=True)
class ComparedSystems:
    """The systems with several seeds."""

    systems: Sequence[SystemSeeds] = ()
    """Each system in each mode. The difference is from the first one; p is corrected for all
    comparisons."""
    faults: Sequence[str] = ()
    """A message for each system that cannot be compared with the first one."""


def compare_systems(
    experiments: Sequence[ExperimentResults], modes: Iterable[str]
) -> ComparedSystems:
    """The systems with several seeds in each mode, compared with the first one of the mode."""
    compared = list[SystemSeeds]()
    faults = list[str]()
    for mode in modes:
        groups = group_seeds(experiments, mode)
        systems = {name: seeds for name, seeds in groups.items() if len(seeds) > 1}
        baseline = next(iter(systems), "")
        for name, seeds in systems.items():
            difference = None
            if name != baseline:
                try:
                    difference = _compare(systems[baseline], seeds, mode)
                except DataError as error:
                    faults.append(
                        f"{baseline} and {name} are not compared over seeds in {mode}: {error}"
                    )
            rates = {
                seed: experiment.scores[mode].macro.rate or 0.0
                for seed, experiment in seeds.items()
            }
            system = SystemSeeds(
                mode=mode, name=name, rates=rates, baseline=baseline, difference=difference
            )
            compared.append(system)
    return ComparedSystems(correct_p(compared), faults)


def _compare(baseline: Seeds, other: Seeds, mode: str) -> SeedDifference:
    """The difference of the macro averages over the common seeds.

    Raises DataError if fewer than two seeds are common, or two trainings are no pair.
    """
    seeds = [seed for seed in baseline if seed in other]
    if len(seeds) < 2:
        where = f"seeds {', '.join(baseline)} and {', '.join(other)}"
        raise DataError(where, to_do="train both with the same seeds")
    for seed in seeds:
        check_pair(baseline[seed].training, other[seed].training, SAME_COMPUTATION)
    pairs = {seed: (baseline[seed].scores[mode], other[seed].scores[mode]) for seed in seeds}
    return compare_reports(pairs).differences[MACRO]
