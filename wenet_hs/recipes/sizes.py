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
"""The `--size` that is chosen by the hours of training speech."""
SIZES_FILE = "own_sizes.yaml"
NO_LIMIT = math.inf
"""The limit of the last row of sizes or of steps, which is for any number of hours."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A size of model and training."""

    name: str
    below_hours: float
    """It is for fewer hours of training speech than this; NO_LIMIT: for any number of hours."""
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
    """It is for fewer hours of training speech than this; NO_LIMIT: for any number of hours."""
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
        """The size of this name; for `auto` the first one whose limit is above `hours`.

        `hours`: of training speech.
        Raises ConfigError if there is no size of this name.
        """
        self.check_name(name)
        if name == AUTO:
            return next(size for size in self.sizes if hours < size.below_hours)
        return next(size for size in self.sizes if size.name == name)

    def choose_encoder_steps(self, config: Path, hours: float, *, named_config: Path) -> int:
        """The number of optimizer steps of a training with a pretrained encoder.

        Args:
            config: the YAML of the training. Only its name counts.
            hours: of training speech.
            named_config: the YAML that `--config` names, for the error. `config` may have been
                chosen by the encoder instead.
        Raises: ConfigError if the table has no steps for the config.
        """
        rows = self.steps_by_config.get(config.name)
        if rows is None:
            missing = f"conf/{SIZES_FILE} has no steps for {config.name}"
            raise ConfigError(f"--config {named_config}", missing, "add a line")
        return next(row.steps for row in rows if hours < row.below_hours)


def read_size_table(path: Path | None = None) -> SizeTable:
    """The table of a file; None: of conf/own_sizes.yaml of wenet_hs.

    Raises ConfigError with the line of each fault: an unknown key, no size, a size with the name
    `auto`, a config without steps, limits that do not increase.
    """
    content = load_section(path or conf_file(SIZES_FILE), _SizesFile)
    sizes = [_make_size(name, section) for name, section in content.sizes.items()]
    steps_by_config = {
        name: tuple(map(_make_steps, sections)) for name, sections in content.encoder_steps.items()
    }
    return SizeTable(
        sizes=tuple(sizes),
        adapted=_format_settings(content.adapted),
        steps_by_config=steps_by_config,
    )


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
        """The key and the text of each fault of the file as a whole.

        These are: no size, a size with the name `auto`, a config without steps, and limits in a
        wrong order.
        """
        if not self.sizes:
            yield "sizes", "there is no size; add one"
        if AUTO in self.sizes:
            yield f"sizes.{AUTO}", "is the choice by hours; use another name"
        limits_of_sizes = [section.below_hours for section in self.sizes.values()]
        for name, fault in zip(self.sizes, _limit_faults(limits_of_sizes), strict=True):
            if fault:
                yield f"sizes.{name}.below_hours", fault
        for name, sections in self.encoder_steps.items():
            if not sections:
                yield f"encoder_steps.{name}", "there are no steps; add some, or remove it"
            for fault in _limit_faults([section.below_hours for section in sections]):
                if fault:
                    yield f"encoder_steps.{name}", f"below_hours {fault}"


def _limit_faults(limits: Sequence[float | None]) -> list[str]:
    """For each limit of hours the text of its fault; an empty text if it is right.

    Each limit must be above the one before. The last one must be None, which is no limit and above
    all numbers.
    """
    if not limits:
        return []
    faults = [""]  # nothing is before the first limit
    for before, limit in pairwise(map(_as_hours, limits)):
        fault = f"must be above that of the one before, {_limit_text(before)}"
        faults.append("" if limit > before else fault)
    last = limits[-1]
    if last is not None and not faults[-1]:
        faults[-1] = f"is {last:g} in the last one; set null, which serves any hours"
    return faults


def _as_hours(limit: float | None) -> float:
    """A limit of the file as a number; null in the file is no limit."""
    return NO_LIMIT if limit is None else limit


def _limit_text(hours: float) -> str:
    """A limit as it is written in the file."""
    return "null" if hours == NO_LIMIT else f"{hours:g}"


def _make_size(name: str, section: _SizeSection) -> Size:
    return Size(
        name=name,
        below_hours=_as_hours(section.below_hours),
        first_steps=section.first_steps,
        steps=section.steps,
        settings=_format_settings(section.settings),
    )


def _make_steps(section: _StepsSection) -> StepsOfHours:
    return StepsOfHours(below_hours=_as_hours(section.below_hours), steps=section.steps)


def _format_settings(settings: Mapping[str, SettingValue]) -> tuple[str, ...]:
    """The settings as `key=value`, in which `--override_config` reads the value as YAML."""
    return tuple(f"{key}={_format_value(value)}" for key, value in settings.items())


def _format_value(value: SettingValue) -> str:
    """A value as YAML: JSON is YAML, and text is written as it is."""
    return value if isinstance(value, str) else json.dumps(value)
