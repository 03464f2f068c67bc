# SPDX-License-Identifier: Apache-2.0
"""Studies over seeds: a table of results files by system and seed, its columns and comparisons.

A table is a folder of results files (see `wenet_hs.results.results_file`) with a `table.yaml`,
whose settings are those of `TableSpec`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from wenet_hs.base.files import read_json
from wenet_hs.config.yaml_file import read_yaml
from wenet_hs.results.modes import sort_modes
from wenet_hs.results.pairing import check_pair
from wenet_hs.results.results_file import Results, read_results
from wenet_hs.score.compare import MACRO
from wenet_hs.score.seeds import Errors, SystemSeeds, compare_seeds, correct_p
from wenet_hs.tree.errors import ConfigError, DataError, list_names

SPEC = "table.yaml"
"""The file in the folder of a table that has its settings."""
_TEXTS = "texts.json"
"""The file in the folder of a table that has the counts of the texts of language models, which
`lm count` wrote."""


class ChartSpec(BaseModel):
    """A chart of the macro average in the first mode."""

    model_config = ConfigDict(extra="forbid")

    x: str
    """Name of the horizontal axis."""
    lines: dict[str, dict[float, str]]
    """Name of a line → value on the horizontal axis → system."""


class TableSpec(BaseModel):
    """The settings of a table, in its `table.yaml`."""

    model_config = ConfigDict(extra="forbid")

    title: str
    text: str = ""
    """Markdown before the numbers: the command, the data, what the paper has."""
    systems: dict[str, str] = {}
    """System → its name in the table, in the order of the rows. The first one is the baseline.
    Default: all that have results, under their own names."""
    modes: list[str] = []
    """Decoding modes; the per-language rates are those of the first one. Default: all that the
    results have."""
    comparisons: list[tuple[str, str]] | None = None
    """Pairs A, B of systems. Default: the first system with each other one."""
    chart: ChartSpec | None = None
    also: list[str] = []
    """Other folders, relative to this one, whose results of these systems belong to the table
    too."""
    paper: dict[str, tuple[float, float]] = {}
    """System of language models → perplexities on valid and test in the paper."""


class StudyRow(NamedTuple):
    """The trainings of one system that are scored in one mode."""

    mode: str
    label: str
    """The name of the system in the table."""
    results: Sequence[Results]
    """Of the common seeds."""


@dataclass(frozen=True)
class StudyTable:
    """The results of one table."""

    folder: Path
    spec: TableSpec
    results: Mapping[str, Mapping[int, Results]]
    """By system, in the order of the rows, and seed."""
    texts: Sequence[Mapping[str, Any]] = ()
    """For language models: of each text its name under `text`, and its counts by their names."""

    @property
    def trainings(self) -> list[Results]:
        """All results, system by system."""
        trainings = list[Results]()
        for results_by_seed in self.results.values():
            trainings += results_by_seed.values()
        return trainings

    @property
    def columns(self) -> list[str]:
        """The names of the columns: decoding modes, or the perplexities of language models.

        They are keys of `Results.numbers`.
        """
        if self.spec.modes:
            return self.spec.modes
        perplexities = dict[str, None]()  # a set that keeps the order
        for training in self.trainings:
            perplexities |= dict.fromkeys(training.scores)
        return list(perplexities)

    @property
    def common_seeds(self) -> list[int]:
        """The seeds that all systems with results have, ascending.

        Means over different seeds cannot be compared. At least one system has results, as
        `read_table` makes sure.
        """
        seeds_of_systems = [
            set(results_by_seed) for results_by_seed in self.results.values() if results_by_seed
        ]
        return sorted(set[int].intersection(*seeds_of_systems))

    @property
    def common(self) -> dict[str, list[Results]]:
        """The results of the common seeds, in their order, of each system that has results."""
        seeds = self.common_seeds
        common = dict[str, list[Results]]()
        for system, results_by_seed in self.results.items():
            if results_by_seed:
                common[system] = [results_by_seed[seed] for seed in seeds]
        return common

    @property
    def rows(self) -> Iterator[StudyRow]:
        """The systems with results of common seeds in each mode, mode by mode."""
        common = self.common
        for mode in self.spec.modes:
            for system, trainings in common.items():
                scored = [training for training in trainings if mode in training.modes]
                if scored:
                    label = self.spec.systems[system]
                    yield StudyRow(mode=mode, label=label, results=scored)


# ---- reading a table


def read_table(folder: Path, published: Path | None = None) -> StudyTable:
    """Read and check the results files of a table.

    Args:
        folder: of the table.
        published: the folder of published tables. If `folder` has no `table.yaml`, the one of the
            published table with the same name applies. Without that one too, all settings have
            their defaults.
    Raises:
        ConfigError: `table.yaml` is wrong.
        DataError: a file is damaged, there are no results, `table.yaml` does not name a system, or
            results of one system are on different test sets or were decoded with different options.
    """
    name = folder.resolve().name
    spec_path = folder / SPEC
    if not spec_path.is_file() and published is not None:
        spec_path = published / name / SPEC
    own_results = _read_folder(folder)
    spec = _with_defaults(_read_spec(spec_path, title=name), own_results)
    all_results = [*own_results, *_read_other_folders(folder, spec)]
    if not all_results:
        to_do = "run a recipe with --results, or leave this table out"
        raise DataError(folder, "no results files", to_do)
    _refuse_unnamed_systems(folder, own_results, spec, spec_path)
    table = StudyTable(
        folder=folder,
        spec=spec,
        results=_group_by_system(all_results, spec),
        texts=_read_texts(folder),
    )
    _check_one_test_set_per_system(table)
    _check_one_decoding(folder, all_results)
    return table


def _with_defaults(spec: TableSpec, own_results: Sequence[Results]) -> TableSpec:
    """The settings of a table, with all systems and modes of its results where it names none."""
    systems = sorted({results.system for results in own_results})
    modes = set[str]()
    for results in own_results:
        modes |= results.modes.keys()
    return spec.model_copy(
        update={
            "systems": spec.systems or {system: system for system in systems},
            "modes": spec.modes or sort_modes(modes),
        }
    )


def _refuse_unnamed_systems(
    folder: Path, own_results: Sequence[Results], spec: TableSpec, spec_path: Path
) -> None:
    """Raise DataError if the folder has results of systems that the settings do not name."""
    systems = sorted({results.system for results in own_results})
    unnamed = [system for system in systems if system not in spec.systems]
    if unnamed:
        fault = f"results of {list_names(unnamed)}, which {spec_path} does not name"
        raise DataError(folder, fault, "add them to `systems`")


def _read_spec(path: Path, title: str) -> TableSpec:
    """The settings in a `table.yaml`; without this file only a title.

    Raises ConfigError with the first fault if they are wrong.
    """
    values = read_yaml(path).values if path.is_file() else {"title": title}
    try:
        return TableSpec.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        setting = ".".join(map(str, fault["loc"]))
        raise ConfigError(f"{path}: {setting}", fault["msg"]) from error


def _read_folder(folder: Path) -> list[Results]:
    """All results files of a folder, by name. Raises DataError if one is damaged."""
    return [read_results(path) for path in sorted(folder.glob("*-seed*.json"))]


def _read_other_folders(folder: Path, spec: TableSpec) -> list[Results]:
    """The results of the systems of a table in the other folders that `also` names."""
    results = list[Results]()
    for other in spec.also:
        for training in _read_folder(folder / other):
            if training.system in spec.systems:
                results.append(training)
    return results


def _read_texts(folder: Path) -> list[dict[str, Any]]:
    """The counts of the texts; empty without their file. Raises DataError if it is damaged."""
    path = folder / _TEXTS
    texts: list[dict[str, Any]] = []
    if path.is_file():
        texts = read_json(path, "run `wenet-hs lm count` again")
    return texts


def _group_by_system(
    trainings: Sequence[Results], spec: TableSpec
) -> dict[str, dict[int, Results]]:
    """The trainings by system, in the order of the table, and by rising seed."""
    results: dict[str, dict[int, Results]] = {system: {} for system in spec.systems}
    for training in sorted(trainings, key=lambda training: training.seed):
        results[training.system][training.seed] = training
    return results


def _check_one_test_set_per_system(table: StudyTable) -> None:
    """Raise DataError if two trainings of one system have different test sets in a mode."""
    for results_by_seed in table.results.values():
        for mode in table.spec.modes:
            scored = [training for training in results_by_seed.values() if mode in training.modes]
            _check_test_sets(scored, mode)


def _check_test_sets(trainings: Sequence[Results], mode: str) -> None:
    """Raise DataError if the trainings have different test sets in a mode that all have.

    It names one training per test set.
    """
    # `keys` of a mode is a hash of the test set.
    name_by_test_set = {training.modes[mode].keys: training.name for training in trainings}
    if len(name_by_test_set) > 1:
        fault = f"{' and '.join(name_by_test_set.values())} have different test sets"
        raise DataError(mode, fault, "score them on one list")


def _check_one_decoding(folder: Path, trainings: Sequence[Results]) -> None:
    """Raise DataError, with two of the trainings, if they were decoded with different options."""
    name_by_options = {str(training.decoding): training.name for training in trainings}
    if len(name_by_options) > 1:
        first, second, *_ = name_by_options.values()
        fault = f"{first} and {second} were decoded with different options"
        raise DataError(folder, fault, "decode with equal ones")


# ---- comparisons


def compare_study(table: StudyTable) -> list[SystemSeeds]:
    """All comparisons of a table, mode by mode. p is corrected for their number.

    Two systems without a common seed in a mode are not compared in it.

    Raises DataError for trainings that are no pair, see `check_pair`.
    """
    baseline, *others = table.spec.systems
    pairs = table.spec.comparisons
    if pairs is None:
        pairs = [(baseline, other) for other in others]
    compared = list[SystemSeeds]()
    for mode in table.spec.modes:
        for a, b in pairs:
            comparison = _compare_systems(table, a, b, mode)
            if comparison is not None:
                compared.append(comparison)
    return correct_p(compared)


def _compare_systems(table: StudyTable, a: str, b: str, mode: str) -> SystemSeeds | None:
    """Compare system B with system A in one mode, over their common seeds; None if there is none.

    The result has the macro average of B for each seed, and B minus A.
    """
    trainings_a = _scored_trainings(table, a, mode)
    trainings_b = _scored_trainings(table, b, mode)
    errors_by_seed = {
        str(seed): _pair_errors(trainings_a[seed], trainings_b[seed], mode)
        for seed in trainings_a
        if seed in trainings_b
    }
    if not errors_by_seed:
        return None
    difference = compare_seeds(errors_by_seed).differences[MACRO]
    rates_b = dict(zip(errors_by_seed, difference.rates_b, strict=True))
    return SystemSeeds(mode=mode, name=b, rates=rates_b, baseline=a, difference=difference)


def _scored_trainings(table: StudyTable, system: str, mode: str) -> dict[int, Results]:
    """The trainings of a system that are scored in a mode, by seed; empty without results."""
    trainings = table.results.get(system, {})
    return {seed: training for seed, training in trainings.items() if mode in training.modes}


def _pair_errors(a: Results, b: Results, mode: str) -> Errors:
    """The counts of two trainings with one seed, as `compare_seeds` needs them.

    By language, a row per utterance: errors of A, errors of B, and units. Languages without units
    are left out.

    Raises DataError if the two are no pair, or have different test sets.
    """
    check_pair(a.training, b.training)
    _check_test_sets([a, b], mode)
    errors_a = a.modes[mode].errors
    errors_b = b.modes[mode].errors
    errors = dict[str, NDArray[np.int64]]()
    for lang, units in sorted(a.units.items()):
        if any(units):
            errors[lang] = np.column_stack((errors_a[lang], errors_b[lang], units))
    return errors
