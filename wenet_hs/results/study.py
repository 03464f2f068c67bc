# SPDX-License-Identifier: Apache-2.0
"""Studies over seeds: the results files of a table by system and seed, its columns and comparisons.

A table is a folder of results files (see `wenet_hs.results.results_file`) with a `table.yaml`,
whose settings are those of `TableSpec`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
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
_TEXTS = "texts.json"
"""What the texts of language models contain, in the folder of a table: written by `lm count`."""


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
    """Pairs A, B of systems; default: the first system with each other one."""
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
    """Of language models the counts of each text by name, and below `text` its name."""

    @property
    def trainings(self) -> list[Results]:
        return [training for seeds in self.results.values() for training in seeds.values()]

    @property
    def columns(self) -> list[str]:
        """The decoding modes; of language models the names of their perplexities. See
        `Results.numbers`."""
        perplexities = dict.fromkeys(
            name for training in self.trainings for name in training.scores
        )
        return self.spec.modes or [*perplexities]

    @property
    def common_seeds(self) -> list[int]:
        """The seeds that all systems with results have: means over other seeds are not
        comparable."""
        seeds = [{*of_system} for of_system in self.results.values() if of_system]
        return sorted(set[int].intersection(*seeds))

    @property
    def common(self) -> dict[str, list[Results]]:
        """The results of the common seeds of each system that has results."""
        seeds = self.common_seeds
        return {
            system: [of_system[seed] for seed in seeds]
            for system, of_system in self.results.items()
            if of_system
        }

    @property
    def rows(self) -> Iterator[StudyRow]:
        """The systems with results in each mode, mode by mode."""
        for mode in self.spec.modes:
            for system, trainings in self.common.items():
                scored = [training for training in trainings if mode in training.modes]
                if scored:
                    yield StudyRow(mode, self.spec.systems[system], scored)


# ---- reading a table


def read_table(folder: Path, published: Path | None = None) -> StudyTable:
    """Read a table's folder. Without a `table.yaml` it is that of the folder of this name in
    `published`, if any.

    Raises ConfigError for a wrong `table.yaml`, DataError for a damaged file, a system that
    `table.yaml` does not name, results of one system on different test sets, or results that were
    decoded with different options.
    """
    spec_path = folder / SPEC
    if not spec_path.is_file() and published is not None:
        spec_path = published / folder.resolve().name / SPEC
    spec = _read_spec(spec_path, title=folder.resolve().name)
    own_results = _read_folder(folder)
    own_systems = sorted({results.system for results in own_results})
    own_modes = sort_modes({mode for results in own_results for mode in results.modes})
    spec = spec.model_copy(
        update={
            "systems": spec.systems or {system: system for system in own_systems},
            "modes": spec.modes or own_modes,
        }
    )
    all_results = [*own_results, *_read_other_folders(folder, spec)]
    if not all_results:
        raise DataError(
            folder, "no results files", "run a recipe with --results, or leave this table out"
        )
    unknown = [system for system in own_systems if system not in spec.systems]
    if unknown:
        what = f"results of {list_names(unknown)}, which {spec_path} does not name"
        raise DataError(folder, what, "add them to `systems`")
    table = StudyTable(folder, spec, _group_by_system(all_results, spec), _read_texts(folder))
    _check_one_test_set_per_system(table)
    _check_one_decoding(folder, all_results)
    return table


def _read_spec(path: Path, title: str) -> TableSpec:
    """The settings in a `table.yaml`; only a title without this file. Raises ConfigError if they
    are wrong."""
    values = read_yaml(path).values if path.is_file() else {"title": title}
    try:
        return TableSpec.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        setting = ".".join(map(str, fault["loc"]))
        raise ConfigError(f"{path}: {setting}", fault["msg"]) from error


def _read_folder(folder: Path) -> list[Results]:
    return [read_results(path) for path in sorted(folder.glob("*-seed*.json"))]


def _read_other_folders(folder: Path, spec: TableSpec) -> list[Results]:
    """The results of the systems of a table in the folders `also`."""
    results = list[Results]()
    for other in spec.also:
        results += [
            training for training in _read_folder(folder / other) if training.system in spec.systems
        ]
    return results


def _read_texts(folder: Path) -> list[dict[str, Any]]:
    """The counts of the texts; empty without their file. Raises DataError if it is damaged."""
    path = folder / _TEXTS
    texts: list[dict[str, Any]] = (
        read_json(path, "run `wenet-hs lm count` again") if path.is_file() else []
    )
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
    for of_system in table.results.values():
        for mode in table.spec.modes:
            _check_test_sets(
                [training for training in of_system.values() if mode in training.modes], mode
            )


def _check_test_sets(trainings: Sequence[Results], mode: str) -> None:
    """Raise DataError if the trainings have different test sets in a mode that all have."""
    names = {training.modes[mode].keys: training.name for training in trainings}
    if len(names) > 1:
        raise DataError(
            mode,
            f"{' and '.join(names.values())} have different test sets",
            "score them on one list",
        )


def _check_one_decoding(folder: Path, trainings: Sequence[Results]) -> None:
    """Raise DataError if two trainings were decoded with different options."""
    names = {str(training.decoding): training.name for training in trainings}
    if len(names) > 1:
        first, second, *_ = names.values()
        found = f"{first} and {second} were decoded with different options"
        raise DataError(folder, found, "decode with equal ones")


# ---- comparisons


def compare_study(table: StudyTable) -> list[SystemSeeds]:
    """All comparisons of a table, the macro average of their common seeds, mode by mode.

    Raises DataError for trainings that are no pair, see `check_pair`.
    """
    baseline, *others = table.spec.systems
    pairs = table.spec.comparisons
    if pairs is None:
        pairs = [(baseline, other) for other in others]
    compared = list[SystemSeeds]()
    for mode in table.spec.modes:
        for a, b in pairs:
            trainings_a = _scored_trainings(table, a, mode)
            trainings_b = _scored_trainings(table, b, mode)
            seeds = [seed for seed in trainings_a if seed in trainings_b]
            errors = {
                str(seed): _pair_errors(trainings_a[seed], trainings_b[seed], mode)
                for seed in seeds
            }
            if errors:
                difference = compare_seeds(errors).differences[MACRO]
                rates = dict(zip(errors, difference.rates_b, strict=True))
                compared.append(
                    SystemSeeds(mode=mode, name=b, rates=rates, baseline=a, difference=difference)
                )
    return correct_p(compared)


def _scored_trainings(table: StudyTable, system: str, mode: str) -> dict[int, Results]:
    """The trainings of a system that are scored in a mode, by seed; empty for a system without
    results."""
    trainings = table.results.get(system, {})
    return {seed: training for seed, training in trainings.items() if mode in training.modes}


def _pair_errors(a: Results, b: Results, mode: str) -> Errors:
    """Per language the errors of both and the units of each utterance, without languages that have
    no units.

    Raises DataError if the two are no pair, or have different test sets.
    """
    check_pair(a.training, b.training)
    _check_test_sets([a, b], mode)
    errors_a = a.modes[mode].errors
    errors_b = b.modes[mode].errors
    return {
        lang: np.column_stack((errors_a[lang], errors_b[lang], units))
        for lang, units in sorted(a.units.items())
        if any(units)
    }
