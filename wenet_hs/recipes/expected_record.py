# SPDX-License-Identifier: Apache-2.0
"""The expected time of a training as JSON, which `wenet-hs plan --only_time --json` writes."""

import json
from pathlib import Path

from pydantic import Field, ValidationError

from wenet_hs.base.files import read_json
from wenet_hs.config.section import Count, CountOrZero, Section
from wenet_hs.recipes.record_faults import describe_first_fault
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

FORMAT = "wenet_hs.expected_time/1"
TO_DO = "measure the time again"
"""What the user can do about a file that cannot be read."""


class PartRecord(Section):
    """A part of a training."""

    steps: Count
    """The planned number; `max_minutes` may end the part before."""
    seconds: float
    """The expected time, at most the limit by `max_minutes`."""


class OutputsRecord(Section):
    """What is computed once before the training: the outputs of a frozen encoder."""

    seconds: float
    bytes: CountOrZero
    """On disk."""
    folder: str


class ExpectedRecord(Section):
    """The content of the file."""

    format: str
    hours: float
    """Of training speech."""
    size: str
    """The name of a size; with a pretrained encoder the name of the config instead."""
    parts: tuple[PartRecord, ...] = Field(strict=False)
    """The first part of the training, if there is one, and the second."""
    outputs: OutputsRecord | None
    """null: no outputs are computed before."""
    checkpoint_bytes: CountOrZero
    """Disk of the checkpoints that are kept, at most."""
    has_time_limit: bool
    """Whether `max_minutes` may end a part before its last step."""
    machine: str
    """The processor, with the number of threads."""
    sentence: str
    """All this as one sentence for the user."""


def write_expected(path: Path, record: ExpectedRecord) -> None:
    """Write the file atomically."""
    content = json.dumps(record.model_dump(mode="json"), ensure_ascii=False, indent=1)
    write_atomic(path, f"{content}\n")


def read_expected(path: Path) -> ExpectedRecord:
    """The content of the file. Raises DataError if it is damaged or of another version."""
    content = read_json(path, TO_DO)
    written_format = content.get("format") if isinstance(content, dict) else None
    if written_format != FORMAT:
        raise DataError(path, f"has the format {written_format!r}, not {FORMAT!r}", TO_DO)
    try:
        return ExpectedRecord.model_validate(content)
    except ValidationError as error:
        raise DataError(path, f"damaged ({describe_first_fault(error)})", TO_DO) from error
