# SPDX-License-Identifier: Apache-2.0
"""Systems over seeds: which experiments differ only in the seed, and how systems differ."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from wenet_hs.results.experiment import ExperimentResults
from wenet_hs.results.pairing import SAME_COMPUTATION, check_pair
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
    """Group experiments into systems: name of a system → its experiments by seed.

    - Experiments of one system have the same settings and files, except for the seed.
    - A second experiment with equal settings and seed is another system.
    - An experiment without a seed is a system of its own.
    - Experiments without a macro average in this mode are left out.

    A system has the name of its first experiment, without the seed if no other system has this
    name.
    """
    systems: dict[object, _System] = {}
    # Earlier experiments with these facts and this seed: such a repetition is another system.
    num_earlier = Counter[tuple[str, str]]()
    for experiment in experiments:
        if not _has_macro_average(experiment, mode):
            continue
        seed = str(experiment.settings.get("seed", UNDEFINED))
        facts = _facts_of_system(experiment)
        system_key: object = experiment.name  # without a seed: no other experiment has this key
        if "seed" in experiment.settings:
            system_key = (facts, num_earlier[facts, seed])
            num_earlier[facts, seed] += 1
        name_without_seed = experiment.name.removesuffix(f"-seed{seed}")
        system = systems.setdefault(system_key, _System(name_without_seed))
        system.experiments[seed] = experiment
    num_with_name = Counter(system.name for system in systems.values())
    groups = dict[str, Seeds]()
    for system in systems.values():
        first, *_ = system.experiments.values()
        name = system.name if num_with_name[system.name] == 1 else first.name
        groups[name] = system.experiments
    return groups


def _has_macro_average(experiment: ExperimentResults, mode: str) -> bool:
    """Whether an experiment is scored in a mode and a language has units."""
    return mode in experiment.scores and experiment.scores[mode].macro.rate is not None


def _facts_of_system(experiment: ExperimentResults) -> str:
    """What all experiments of one system have in common, as a text to compare.

    These are all settings but the seed, the hashes of the files, and whether the training began
    from a model. Which model it was is not compared, because each seed may have its own.
    """
    run = experiment.run
    settings = experiment.settings | {"seed": None}
    files = sorted(run.files.items())
    has_base = run.base_name is not None
    return repr((settings, files, run.lists.train_sums, run.encoder_sha256, has_base))


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
    """Compare the systems with several seeds with the first one of them, in each mode.

    Systems that cannot be compared have a message and no difference. p is corrected for the number
    of all comparisons.
    """
    compared = list[SystemSeeds]()
    faults = list[str]()
    for mode in modes:
        groups = group_seeds(experiments, mode)
        systems = {name: seeds for name, seeds in groups.items() if len(seeds) > 1}
        baseline = next(iter(systems), "")  # the first one; without systems it is not used
        for name, seeds in systems.items():
            difference = None
            if name != baseline:
                try:
                    difference = _compare_over_seeds(systems[baseline], seeds, mode)
                except DataError as error:
                    faults.append(
                        f"{baseline} and {name} are not compared over seeds in {mode}: {error}"
                    )
            rates = {
                seed: experiment.scores[mode].macro.rate or 0.0  # never None in a group
                for seed, experiment in seeds.items()
            }
            system = SystemSeeds(
                mode=mode, name=name, rates=rates, baseline=baseline, difference=difference
            )
            compared.append(system)
    return ComparedSystems(systems=correct_p(compared), faults=faults)


def _compare_over_seeds(baseline: Seeds, other: Seeds, mode: str) -> SeedDifference:
    """The difference of the macro averages over the common seeds: `other` minus the baseline.

    Raises DataError if fewer than two seeds are common, two trainings are no pair, or their
    scorings cannot be compared.
    """
    common_seeds = [seed for seed in baseline if seed in other]
    if len(common_seeds) < 2:
        where = f"seeds {', '.join(baseline)} and {', '.join(other)}"
        raise DataError(where, to_do="train both with the same seeds")
    for seed in common_seeds:
        check_pair(baseline[seed].training, other[seed].training, SAME_COMPUTATION)
    reports = {
        seed: (baseline[seed].scores[mode], other[seed].scores[mode]) for seed in common_seeds
    }
    return compare_reports(reports).differences[MACRO]
