# SPDX-License-Identifier: Apache-2.0
"""plan.json, the record of a plan: its inputs, what was decided, and the checksum of plan.yaml.

`make_record` makes it, `read_plan_record` reads it, and `first_change` finds an input that has
changed since.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from wenet_hs.base.files import file_sha256, read_json
from wenet_hs.config.section import Count, CountOrZero, Section
from wenet_hs.recipes.folder_options import HUB
from wenet_hs.recipes.plan import Draft, PlanOptions
from wenet_hs.recipes.record_faults import describe_first_fault
from wenet_hs.tree.errors import DataError

FORMAT = "wenet_hs.plan/1"
_FORMAT_OF_ANY_VERSION = re.compile(r"wenet_hs\.plan/[0-9]+")


class PlanInputs(Section):
    """The inputs from which a plan was made. An option that was not given is null."""

    data: str
    """The folder of the lists, relative to that of the plan."""
    hours: float
    """Hours of training speech."""
    size: str
    """As `--size` names it; it may be `auto`."""
    base: str | None
    """The folder of `--base`, relative to that of the plan."""
    encoder: str | None
    """The folder of `--encoder`, relative to that of the plan."""
    base_steps: CountOrZero | None
    config: str
    """The YAML of `--config`."""
    config_sha256: str
    """The checksum of the YAML that was chosen, which `--config` names or not."""
    unit: str | None
    overrides: tuple[str, ...] = Field(strict=False)


class PlanDecisions(Section):
    """What was decided for the trainings of a plan."""

    config: str
    """The YAML that was chosen."""
    size: str
    """The name of a size; with a pretrained encoder the name of the config instead."""
    first_steps: CountOrZero
    """Steps of the first part of training; 0: there is none."""
    steps: Count
    """Steps of the second part, or of the whole training."""


class PlanRecord(Section):
    """The content of plan.json."""

    format: str
    inputs: PlanInputs
    decisions: PlanDecisions
    expected_time: str
    """The sentence about the expected time."""
    plan_sha256: str
    """The checksum of plan.yaml as it was written."""


@dataclass(frozen=True, kw_only=True)
class InputChange:
    """An input of a plan that has changed, in parts of a message to the user."""

    now: str
    """The input as it is now, such as `--size tiny`."""
    before: str
    """The input with which the plan was made."""
    repeat: str
    """What the user can do to keep the plan, such as `repeat --size small`."""
    keeps_begun_plan: bool = False
    """Whether the plan is kept if a training has begun. It has every setting itself."""


def make_record(
    options: PlanOptions,
    draft: Draft,
    *,
    expected_time: str,
    plan_sha256: str,
) -> PlanRecord:
    """The record of a plan.

    Args:
        options: of `wenet-hs plan`.
        draft: what was decided by them.
        expected_time: the sentence about it.
        plan_sha256: the checksum of plan.yaml as it is written.
    """
    decisions = PlanDecisions(
        config=str(draft.choice.path),
        size=draft.decisions.size,
        first_steps=draft.decisions.first_steps,
        steps=draft.decisions.steps,
    )
    return PlanRecord(
        format=FORMAT,
        inputs=make_inputs(options, draft),
        decisions=decisions,
        expected_time=expected_time,
        plan_sha256=plan_sha256,
    )


def make_inputs(options: PlanOptions, draft: Draft) -> PlanInputs:
    """The inputs of a plan as they are recorded: its options, the hours and the YAML.

    Folders are relative to that of the plan, so that a project may be moved as a whole.
    """
    return PlanInputs(
        # Without `relative_path`, because the lists are always in a folder.
        data=os.path.relpath(options.data.absolute(), options.out.absolute()),
        hours=draft.hours,
        size=options.size,
        base=relative_path(options.base, options.out),
        encoder=relative_path(options.encoder, options.out),
        base_steps=options.base_steps,
        config=str(options.config),
        config_sha256=file_sha256(draft.choice.path),
        unit=options.unit,
        overrides=tuple(options.overrides),
    )


def relative_path(path: Path | None, folder: Path) -> str | None:
    """A path as seen from a folder, so that both may be moved together.

    A name of a model on the hub stays as it is. None if there is no path.
    """
    if path is None:
        return None
    if str(path).startswith(HUB):
        return str(path)
    return os.path.relpath(path.absolute(), folder.absolute())


def read_plan_record(path: Path) -> PlanRecord:
    """The content of plan.json.

    Raises DataError if it is damaged, is no such file, or was written by a newer version.
    """
    to_do = f"remove {path.with_suffix('.yaml')} to plan again"
    content = read_json(path, to_do)
    format_name = str(content.get("format")) if isinstance(content, dict) else ""
    if format_name != FORMAT and _FORMAT_OF_ANY_VERSION.fullmatch(format_name):
        fault = f"has the format {format_name} of a newer version"
        raise DataError(path, fault, f"update wenet_hs, or {to_do}")
    try:
        return PlanRecord.model_validate(content)
    except ValidationError as error:
        raise DataError(path, f"damaged ({describe_first_fault(error)})", to_do) from error


def record_text(record: PlanRecord) -> str:
    """The text of plan.json."""
    return json.dumps(record.model_dump(mode="json"), ensure_ascii=False, indent=2) + "\n"


# ---- changed inputs


def first_change(before: PlanInputs, now: PlanInputs, plan: Path) -> InputChange | None:
    """The first input that has changed; None if all are equal.

    A config at another path with the same content is equal.

    Args:
        before: the inputs with which the plan was made.
        now: the inputs that the user gives now.
        plan: the path of plan.yaml; recorded folders are relative to its folder.
    """
    return next(_changes(before, now, plan), None)


def _changes(before: PlanInputs, now: PlanInputs, plan: Path) -> Iterator[InputChange]:
    """Each input that has changed, as `first_change` describes it.

    The settings of `--override_config` are the last, because they may keep the plan: any other
    change comes before them, and decides.
    """
    if before.hours != now.hours:
        yield InputChange(
            now=f"{now.hours} hours of training speech",
            before=f"{before.hours} hours",
            repeat="restore the lists",
        )
    for name in ("data", "size", "base", "encoder", "base_steps"):
        value_before = getattr(before, name)
        value_now = getattr(now, name)
        if value_before != value_now:
            yield _option_change(name, value_before, value_now, plan)
    if before.config_sha256 != now.config_sha256:  # an equal copy at another path is no change
        yield _config_change(before, now)
    if before.unit != now.unit:
        yield _option_change("unit", before.unit, now.unit, plan)
    if before.overrides != now.overrides:
        overrides_before = " ".join(before.overrides)
        overrides_now = " ".join(now.overrides)
        yield InputChange(
            now=_describe_option("override_config", overrides_now),
            before=_describe_option("override_config", overrides_before),
            repeat=_how_to_repeat("override_config", overrides_before),
            keeps_begun_plan=True,
        )


def _config_change(before: PlanInputs, now: PlanInputs) -> InputChange:
    """The change of the YAML: `--config` names another one, or the content of the same one is new.

    New content of the same YAML keeps a plan whose trainings have begun.
    """
    if before.config != now.config:
        return InputChange(
            now=f"--config {now.config}",
            before=f"--config {before.config}",
            repeat=f"repeat --config {before.config}",
        )
    return InputChange(
        now=f"--config {now.config} with SHA-256 {now.config_sha256[:12]}",
        before=f"that of {before.config_sha256[:12]}",
        repeat="restore it",
        keeps_begun_plan=True,
    )


def _option_change(name: str, before: object, now: object, plan: Path) -> InputChange:
    """The change of the option `name`; a value None is an option that is not given.

    The recorded folders of `--base` and `--encoder` are relative to the folder of `plan`. They are
    shown as paths from the working folder.
    """
    if name in ("base", "encoder"):
        before = None if before is None else _path_from_here(str(before), plan.parent)
        now = None if now is None else _path_from_here(str(now), plan.parent)
    return InputChange(
        now=_describe_option(name, now),
        before=_describe_option(name, before),
        repeat=_how_to_repeat(name, before),
    )


def _path_from_here(path: str, folder: Path) -> str:
    """A path that is relative to a folder, from the working folder; a name of the hub as it is."""
    return path if path.startswith(HUB) else os.path.normpath(folder / path)


def _describe_option(name: str, value: object) -> str:
    """An option as the user gives it, or that it is not given: `--size tiny`, `no --base`."""
    return f"--{name} {value}" if _is_given(value) else f"no --{name}"


def _how_to_repeat(name: str, value: object) -> str:
    """How to give an option as before: `repeat --size tiny`, `leave out --base`."""
    return f"repeat --{name} {value}" if _is_given(value) else f"leave out --{name}"


def _is_given(value: object) -> bool:
    """Whether an option with this value was given; the number 0 is a given value."""
    return value is not None and value != ""
