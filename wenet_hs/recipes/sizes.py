# SPDX-License-Identifier: Apache-2.0
"""Sizes and steps of trainings by the hours of speech: the table `conf/own_sizes.yaml`."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from wenet_hs.config.load import load_section
from wenet_hs.config.section import Count, CountOrZero, Positive, Section
from wenet_hs.recipes.conf_files import conf_file
from wenet_hs.tree.errors import ConfigError

AUTO = "auto"
"""The `--size` that follows from the hours of speech."""
SIZES_FILE = "own_sizes.yaml"
NO_LIMIT = math.inf
"""The limit of the last size or number of steps, which serves any number of hours."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A size of model and training."""

    name: str
    below_hours: float
    """It serves fewer hours of training speech than this; NO_LIMIT: any number."""
    first_steps: int
    """Optimizer steps of the first part of training, by CTC only; 0: there is none."""
    steps: int
    """Optimizer steps of the second part."""
    settings: tuple[str, ...]
    """The settings of the model, as `key=value`."""


@dataclass(frozen=True, kw_only=True)
class StepsOfHours:
    """The number of optimizer steps for an amount of speech."""

    below_hours: float
    """As that of `Size`."""
    steps: int


@dataclass(frozen=True, kw_only=True)
class SizeTable:
    """The table of sizes: all that a recipe decides by the hours of training speech."""

    sizes: tuple[Size, ...]
    """By increasing limit; the last one has none."""
    adapted: tuple[str, ...]
    """The settings of a training that starts from a trained model, as `key=value`."""
    steps_by_config: Mapping[str, tuple[StepsOfHours, ...]]
    """Name of a config with a pretrained encoder → its steps, by increasing limit."""

    @property
    def names(self) -> list[str]:
        """The names that `--size` accepts."""
        return [*(size.name for size in self.sizes), AUTO]

    def check_name(self, name: str) -> None:
        """Raise ConfigError unless `--size` accepts this name."""
        if name not in self.names:
            *first, last = self.names
            raise ConfigError(f"--size {name}", f"must be {', '.join(first)} or {last}")

    def choose(self, name: str, hours: float) -> Size:
        """The size of this name; of `auto` the first one whose limit is above the hours of speech.

        Raises ConfigError if there is no size of this name.
        """
        self.check_name(name)
        if name == AUTO:
            return next(size for size in self.sizes if hours < size.below_hours)
        return next(size for size in self.sizes if size.name == name)

    def encoder_steps(self, config: Path, hours: float, *, given: Path) -> int:
        """The steps of a training with a pretrained encoder.

        Args:
            config: the YAML of the training.
            hours: of training speech.
            given: the YAML that `--config` named, for the error.
        Raises ConfigError if the table has no steps for the config.
        """
        rows = self.steps_by_config.get(config.name)
        if rows is None:
            missing = f"conf/{SIZES_FILE} has no steps for {config.name}"
            raise ConfigError(f"--config {given}", missing, "add a line")
        return next(row.steps for row in rows if hours < row.below_hours)


def read_size_table(path: Path | None = None) -> SizeTable:
    """The table of a file; None: of the file that belongs to wenet_hs.

    Raises ConfigError with the line of each fault: an unknown key, no size, limits that do not
    increase.
    """
    content = load_section(path or conf_file(SIZES_FILE), _SizesFile)
    sizes = tuple(_make_size(name, section) for name, section in content.sizes.items())
    steps = {name: tuple(map(_make_steps, rows)) for name, rows in content.encoder_steps.items()}
    return SizeTable(sizes=sizes, adapted=_as_overrides(content.adapted), steps_by_config=steps)


# ---- the form of the file

SettingValue = str | int | float | bool | list[Any] | None
"""The value of a setting."""


class _SizeSection(Section):
    below_hours: Positive | None
    first_steps: CountOrZero
    steps: Count
    settings: dict[str, SettingValue]


class _StepsSection(Section):
    below_hours: Positive | None
    steps: Count


class _SizesFile(Section):
    sizes: dict[str, _SizeSection]
    adapted: dict[str, SettingValue]
    encoder_steps: dict[str, list[_StepsSection]]

    def conflicts(self) -> Iterator[tuple[str, str]]:
        if not self.sizes:
            yield "sizes", "there is no size; add one"
        if AUTO in self.sizes:
            yield f"sizes.{AUTO}", "is the choice by hours; use another name"
        of_sizes = [section.below_hours for section in self.sizes.values()]
        for name, fault in zip(self.sizes, _limit_faults(of_sizes), strict=True):
            if fault:
                yield f"sizes.{name}.below_hours", fault
        for name, rows in self.encoder_steps.items():
            if not rows:
                yield f"encoder_steps.{name}", "there are no steps; add some, or remove it"
            faults = filter(None, _limit_faults([row.below_hours for row in rows]))
            yield from ((f"encoder_steps.{name}", f"below_hours {fault}") for fault in faults)


def _limit_faults(limits: Sequence[float | None]) -> list[str]:
    """What is wrong with each limit, an empty text if nothing is.

    Limits must increase, and the last one is null.
    """
    faults = [""] if limits else []
    for before, limit in pairwise(map(_limit, limits)):
        fault = f"must be above that of the one before, {_limit_text(before)}"
        faults.append("" if limit > before else fault)
    if limits and limits[-1] is not None and not faults[-1]:
        faults[-1] = f"is {limits[-1]:g} in the last one; set null, which serves any hours"
    return faults


def _limit(below_hours: float | None) -> float:
    return NO_LIMIT if below_hours is None else below_hours


def _limit_text(limit: float) -> str:
    return "null" if limit == NO_LIMIT else f"{limit:g}"


def _make_size(name: str, section: _SizeSection) -> Size:
    return Size(
        name=name,
        below_hours=_limit(section.below_hours),
        first_steps=section.first_steps,
        steps=section.steps,
        settings=_as_overrides(section.settings),
    )


def _make_steps(section: _StepsSection) -> StepsOfHours:
    return StepsOfHours(below_hours=_limit(section.below_hours), steps=section.steps)


def _as_overrides(settings: Mapping[str, SettingValue]) -> tuple[str, ...]:
    return tuple(f"{key}={_as_yaml(value)}" for key, value in settings.items())


def _as_yaml(value: SettingValue) -> str:
    """A value as `--override_config` reads it: JSON is YAML, and text is written as it is."""
    return value if isinstance(value, str) else json.dumps(value)
