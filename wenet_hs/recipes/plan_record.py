# SPDX-License-Identifier: Apache-2.0
"""plan.json: the inputs of a plan, what was decided, and the sum of plan.yaml as it was written."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from wenet_hs.base.files import file_sha256, read_json
from wenet_hs.config.section import Count, CountOrZero, Section
from wenet_hs.recipes.plan import Draft, PlanOptions
from wenet_hs.tree.errors import DataError

FORMAT = "wenet_hs.plan/1"
_ANY_FORMAT = re.compile(r"wenet_hs\.plan/[0-9]+")


class PlanInputs(Section):
    """What a plan was made from. An option that was not given is null."""

    data: str
    """The folder of the lists, relative to that of the plan."""
    hours: float
    """Hours of training speech."""
    size: str
    base: str | None
    """The folder of `--base`, relative to that of the plan."""
    encoder: str | None
    """The folder of `--encoder`, relative to that of the plan."""
    base_steps: CountOrZero | None
    config: str
    """The YAML of `--config`."""
    config_sha256: str
    """Of the YAML that was chosen."""
    unit: str | None
    overrides: tuple[str, ...] = Field(strict=False)


class PlanDecisions(Section):
    """What was decided."""

    config: str
    """The YAML that was chosen."""
    size: str
    first_steps: CountOrZero
    steps: Count


class PlanRecord(Section):
    """The content of plan.json."""

    format: str
    inputs: PlanInputs
    decisions: PlanDecisions
    expected_time: str
    """The sentence about it."""
    plan_sha256: str
    """Of plan.yaml as it was written."""


@dataclass(frozen=True, kw_only=True)
class InputChange:
    """An input that is not that of the plan."""

    now: str
    """As the user gives it."""
    before: str
    """As the plan was made with it."""
    repeat: str
    """What keeps the plan."""
    keeps_begun_plan: bool = False
    """Whether a plan of trainings that have begun stays: it has every setting itself."""


def make_record(
    options: PlanOptions,
    draft: Draft,
    *,
    expected_time: str,
    plan_sha256: str,
) -> PlanRecord:
    """The record of a plan."""
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
    """The inputs of a plan, as they are recorded."""
    return PlanInputs(
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
    """A path as seen from a folder, so that both may be moved; a name of the hub as it is."""
    if path is None:
        return None
    if str(path).startswith("hf:"):
        return str(path)
    return os.path.relpath(path.absolute(), folder.absolute())


def read_plan_record(path: Path) -> PlanRecord:
    """The content of plan.json.

    Raises DataError if it is damaged, is no such file, or was written by a newer version.
    """
    to_do = f"remove {path.with_suffix('.yaml')} to plan again"
    content = read_json(path, to_do)
    format_ = content.get("format") if isinstance(content, dict) else None
    is_other_version = format_ != FORMAT and _ANY_FORMAT.fullmatch(str(format_))
    if is_other_version:
        found = f"has the format {format_} of a newer version"
        raise DataError(path, found, f"update wenet_hs, or {to_do}")
    try:
        return PlanRecord.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "content"
        raise DataError(path, f"damaged ({key}: {first['msg']})", to_do) from error


def record_text(record: PlanRecord) -> str:
    """The text of plan.json."""
    return json.dumps(record.model_dump(mode="json"), ensure_ascii=False, indent=2) + "\n"


def first_change(before: PlanInputs, now: PlanInputs, plan: Path) -> InputChange | None:
    """The first input that differs, those of `--override_config` last; None if all are equal.

    A config at another path with the same content is equal.
    """
    return next(_changes(before, now, plan), None)


def _changes(before: PlanInputs, now: PlanInputs, plan: Path) -> Iterator[InputChange]:
    if before.hours != now.hours:
        yield InputChange(
            now=f"{now.hours} hours of training speech",
            before=f"{before.hours} hours",
            repeat="restore the lists",
        )
    for name in ("data", "size", "base", "encoder", "base_steps"):
        if getattr(before, name) != getattr(now, name):
            yield _option_change(name, getattr(before, name), getattr(now, name), plan)
    if before.config_sha256 != now.config_sha256:
        yield _config_change(before, now)
    if before.unit != now.unit:
        yield _option_change("unit", before.unit, now.unit, plan)
    if before.overrides != now.overrides:
        yield InputChange(
            now=_option("override_config", " ".join(now.overrides)),
            before=_option("override_config", " ".join(before.overrides)),
            repeat=_repeat("override_config", " ".join(before.overrides)),
            keeps_begun_plan=True,
        )


def _config_change(before: PlanInputs, now: PlanInputs) -> InputChange:
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
    if name in ("base", "encoder"):  # relative to the folder of the plan
        before = None if before is None else _seen_from_here(str(before), plan.parent)
        now = None if now is None else _seen_from_here(str(now), plan.parent)
    return InputChange(
        now=_option(name, now),
        before=_option(name, before),
        repeat=_repeat(name, before),
    )


def _seen_from_here(path: str, folder: Path) -> str:
    return path if path.startswith("hf:") else os.path.normpath(folder / path)


def _option(name: str, value: object) -> str:
    """An option as it is written on the command line."""
    is_absent = value is None or value == ""
    return f"no --{name}" if is_absent else f"--{name} {value}"


def _repeat(name: str, value: object) -> str:
    is_absent = value is None or value == ""
    return f"leave out --{name}" if is_absent else f"repeat --{name} {value}"
