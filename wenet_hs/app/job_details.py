# SPDX-License-Identifier: Apache-2.0
"""What the jobs of the page are for: typed values that are kept with a job as JSON.

A project may be of somebody else, so what is read is checked.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wenet_hs.base.jobs import Job
from wenet_hs.recipes.own_options import OwnOptions, own_record, read_own_record

JsonRecord = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RecipeDetails:
    """The purpose of a job that runs stages of `wenet-hs own`, or measures a training's time."""

    options: OwnOptions
    minutes: float | None = None
    """The limit of each part of the training; None: there is none."""

    def record(self) -> JsonRecord:
        """The details as JSON, which `read_recipe_details` reads."""
        return {"own": own_record(self.options), "minutes": self.minutes}


@dataclass(frozen=True, kw_only=True)
class TranscribeDetails:
    """The purpose of a job that transcribes recordings."""

    model: Path
    files: tuple[Path, ...]
    """The recordings, or annotation files that name them."""

    def record(self) -> JsonRecord:
        """The details as JSON, which `read_transcribe_details` reads."""
        return {"model": str(self.model), "files": [str(path) for path in self.files]}


@dataclass(frozen=True, kw_only=True)
class PackDetails:
    """The purpose of a job that packs a model, or makes its card."""

    model: Path
    license: str
    data: str
    """What the training data are, in a sentence."""

    def record(self) -> JsonRecord:
        """The details as JSON, which `read_pack_details` reads."""
        return {"model": str(self.model), "license": self.license, "data": self.data}


def read_recipe_details(job: Job | None) -> RecipeDetails | None:
    """The details of a job that runs the recipe.

    None if there is no job, if it is of another kind, or if its details are damaged.
    """
    if job is None or "own" not in job.details:
        return None
    with suppress(ValueError):
        options = read_own_record(job.details["own"])
        return RecipeDetails(options=options, minutes=_read_number(job.details, "minutes"))
    return None


def read_option_names(job: Job) -> list[str]:
    """The names of all options in the details of a job, also unknown ones."""
    record = job.details.get("own")
    return list(record) if isinstance(record, dict) else []


def read_transcribe_details(job: Job | None) -> TranscribeDetails | None:
    """The details of a job that transcribes; None if there is no job, or it is of another kind."""
    if job is None:
        return None
    files = job.details.get("files")
    if not isinstance(files, list) or "model" not in job.details:
        return None
    model = Path(_read_text(job.details, "model"))
    paths = [Path(str(file)) for file in files]
    return TranscribeDetails(model=model, files=tuple(paths))


def read_pack_details(job: Job | None) -> PackDetails | None:
    """The details of a job that packs; None if there is no job, or its details name no model.

    License and data are empty if the details do not state them.
    """
    if job is None or "model" not in job.details:
        return None
    return PackDetails(
        model=Path(_read_text(job.details, "model")),
        license=_read_text(job.details, "license"),
        data=_read_text(job.details, "data"),
    )


def _read_text(details: Mapping[str, Any], name: str) -> str:
    """A value as a text; empty if it is missing."""
    return str(details.get(name, ""))


def _read_number(details: Mapping[str, Any], name: str) -> float | None:
    """A number; None for null, or if it is missing. Raises ValueError for another value."""
    value = details.get(name)
    if value is not None and not isinstance(value, int | float):
        raise ValueError(f"{name}: {value!r} is not a number")
    return value
