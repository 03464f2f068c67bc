# SPDX-License-Identifier: Apache-2.0
"""Studies over seeds: the results files of a table by system and seed, its columns and comparisons.

A table is a folder of results files (see `wenet_hs.results.results_file`) with a `table.yaml`,
whose settings are those of `TableSpec`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from wenet_hs.config.yaml_file import read_yaml
from wenet_hs.results.modes import sort_modes
from wenet_hs.results.pairing import check_pair
from wenet_hs.results.results_file import Results, read_results
from wenet_hs.score.compare import MACRO
from wenet_hs.score.seeds import Errors, SystemSeeds, compare_seeds, correct_p
from wenet_hs.tree.errors import ConfigError, DataError, list_names

SPEC = "table.yaml"


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
    """System → its name in the table, in the order of the rows. The first one is the baseline. Default: all that have
    results, under their own names."""
    modes: list[str] = []
    """Decoding modes; the per-language rates are those of the first one. Default: all that the results have."""
    comparisons: list[tuple[str, str]] | None = None
    """Pairs A, B of systems; default: the first system with each other one."""
    chart: ChartSpec | None = None
    also: list[str] = []
    """Other folders, relative to this one, whose results of these systems belong to the table too."""
    paper: dict[str, tuple[float, float]] = {}
    """System of language models → perplexities on valid and test in the paper."""


@dataclass(frozen=True)
class StudyTable:
    """The results of one table."""

    folder: Path
    spec: TableSpec
    results: dict[str, dict[int, Results]]
    """By system, in the order of the rows, and seed."""

    @property
    def trainings(self) -> list[Results]:
        return [one for of_system in self.results.values() for one in of_system.values()]

    @property
    def columns(self) -> list[str]:
        """The decoding modes; of language models the names of their perplexities. See `Results.numbers`."""
        return self.spec.modes or [*dict.fromkeys(name for one in self.trainings for name in one.scores)]

    @property
    def common_seeds(self) -> list[int]:
        """The seeds that all systems with results have: means over other seeds are not comparable."""
        return sorted(set[int].intersection(*({*of} for of in self.results.values() if of)))

    @property
    def common(self) -> dict[str, list[Results]]:
        """The results of the common seeds of each system that has results."""
        return {system: [of[seed] for seed in self.common_seeds] for system, of in self.results.items() if of}

    @property
    def rows(self) -> Iterator[tuple[str, str, list[Results]]]:
        """Mode, name and results of the common seeds of each system that has results in this mode."""
        for mode, (system, results) in product(self.spec.modes, self.common.items()):
            if found := [one for one in results if mode in one.modes]:
                yield mode, self.spec.systems[system], found


def read_table(folder: Path, published: Path | None = None) -> StudyTable:
    """Read a table's folder. Without a `table.yaml` it is that of the folder of this name in `published`, if any.

    Raises ConfigError for a wrong `table.yaml`, DataError for a damaged file, a system that `table.yaml` does not name,
    results of one system on different test sets, or results that were decoded with different options.
    """
    path = folder / SPEC
    if not path.is_file() and published is not None:
        path = published / folder.resolve().name / SPEC
    try:
        values = read_yaml(path).values if path.is_file() else {"title": folder.resolve().name}
        spec = TableSpec.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, fault['loc']))}", fault["msg"]) from error
    found = [read_results(file) for file in sorted(folder.glob("*-seed*.json"))]
    names = sorted({one.system for one in found})
    spec.systems = spec.systems or {name: name for name in names}
    spec.modes = spec.modes or sort_modes({mode for one in found for mode in one.modes})
    others = (read_results(file) for other in spec.also for file in sorted((folder / other).glob("*-seed*.json")))
    found += [one for one in others if one.system in spec.systems]
    if not found:
        raise DataError(folder, "no results files", "run a recipe with --results, or leave this table out")
    if unknown := [name for name in names if name not in spec.systems]:
        found_there = f"results of {list_names(unknown)}, which {path} does not name"
        raise DataError(folder, found_there, "add them to `systems`")
    results: dict[str, dict[int, Results]] = {system: {} for system in spec.systems}
    for one in sorted(found, key=lambda one: one.seed):
        results[one.system][one.seed] = one
    for of_system, mode in product(results.values(), spec.modes):
        _check_test_sets([one for one in of_system.values() if mode in one.modes], mode)
    decodings = {str(one.decoding): one.name for one in found}
    if len(decodings) > 1:
        both = " and ".join([*decodings.values()][:2])
        raise DataError(folder, f"{both} were decoded with different options", "decode with equal ones")
    return StudyTable(folder, spec, results)


def _check_test_sets(results: Sequence[Results], mode: str) -> None:
    tests = {one.modes[mode].keys: one.name for one in results}
    if len(tests) > 1:
        names = " and ".join(tests.values())
        raise DataError(mode, f"{names} have different test sets", "score them on one list")


def compare_study(table: StudyTable) -> list[SystemSeeds]:
    """All comparisons of a table, the macro average of their common seeds.

    Raises DataError for trainings that are no pair, see `check_pair`.
    """
    first, *others = table.spec.systems
    pairs = product([first], others) if table.spec.comparisons is None else table.spec.comparisons
    found = []
    for mode, (a, b) in product(table.spec.modes, [*pairs]):
        of_a, of_b = (
            {seed: one for seed, one in table.results.get(system, {}).items() if mode in one.modes} for system in (a, b)
        )
        errors = {str(seed): _pair_errors(of_a[seed], of_b[seed], mode) for seed in of_a if seed in of_b}
        if errors:
            difference = compare_seeds(errors).differences[MACRO]
            rates = dict(zip(errors, difference.rates_b, strict=True))
            found.append(SystemSeeds(mode=mode, name=b, rates=rates, baseline=a, difference=difference))
    return correct_p(found)


def _pair_errors(a: Results, b: Results, mode: str) -> Errors:
    check_pair(a.training, b.training)
    _check_test_sets([a, b], mode)
    return {
        lang: np.column_stack((a.modes[mode].errors[lang], b.modes[mode].errors[lang], units))
        for lang, units in sorted(a.units.items())
        if any(units)
    }
