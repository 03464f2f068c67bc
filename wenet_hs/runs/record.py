# SPDX-License-Identifier: Apache-2.0
"""The record of a training: MODEL_DIR/run.json.

`train` and `lm train` write it at the start, at each log interval, and at the end. `read_run` reads
it for everything that asks what a model was trained with, how far a training is or how it ended.
The curves are in metrics.jsonl. A resumed training takes its position from its checkpoint, never
from here.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from wenet_hs.base.files import lock_holder, read_lines
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

RUN_FILE = "run.json"
FORMAT_NAME = "wenet_hs.run"
FORMAT: Literal["wenet_hs.run/1"] = "wenet_hs.run/1"
"""Name and version of the format."""
UNKNOWN = "unknown"
"""Kind of the processors of a start that does not record them."""
_REMEDY = "copy it again, or remove it: what the training was started with is then unknown"
"""What to do with a damaged record."""

RunState = Literal["running", "trained", "stopped", "failed", "killed", "unknown"]
"""`killed`: no process writes the record any more, and it has no end.

`unknown`: the record has neither times nor an end, as that of a packed model.
"""


class _RecordPart(BaseModel):
    """A part of the record."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _check_time(text: str) -> str:
    """The text itself. Raises ValueError if it is no time in ISO 8601, or has no time zone."""
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("no time zone")
    return text


Time = Annotated[str, AfterValidator(_check_time)]
"""A time in UTC, as 2026-11-28T09:15:00Z."""


class Start(_RecordPart):
    """A start or a resume of the training."""

    time: Time | None = None
    """None if it is not recorded."""
    step: int = 0
    """Optimizer steps that were done before."""
    command: tuple[str, ...] = ()
    """The words of the command line. Empty in a model that was packed."""
    processors: tuple[str, ...] = ()
    """The kinds of processors on which the ranks compute, without repetition."""
    ranks: int | None = None
    machine: str | None = None
    """Architecture and number of cores, as `x86_64, 2 cores`."""
    python: str | None = None
    packages: Mapping[str, str] = {}
    """Versions by name: wenet_hs, torch, and transformers with a pretrained encoder."""
    commit: str | None = None
    """Of the source tree, with `-dirty` if it was changed; `unknown` for an installed package."""


class DataFile(_RecordPart):
    """A list of utterances, or a text."""

    path: str | None
    """As it was given to the command. None in a model that was packed, or if it is not recorded."""
    sha256: str | None = None
    """Of the file. None for what is no file, or if it is not recorded."""


class DataLists(_RecordPart):
    """The data of a training."""

    kind: Literal["raw", "shard", "text"] = "raw"
    """What the files contain: utterances, tars of utterances, or running text."""
    train: tuple[DataFile, ...] = ()
    valid: tuple[DataFile, ...] = ()

    @property
    def train_paths(self) -> list[str]:
        """The paths of the training lists that are recorded."""
        return [file.path for file in self.train if file.path is not None]

    @property
    def valid_paths(self) -> list[str]:
        """The paths of the validation lists that are recorded."""
        return [file.path for file in self.valid if file.path is not None]

    @property
    def train_sums(self) -> list[str]:
        """The SHA-256 of the training lists that are recorded."""
        return [file.sha256 for file in self.train if file.sha256 is not None]


class FirstWeights(_RecordPart):
    """The weights with which a training began."""

    kind: Literal["random", "checkpoint"]
    """`checkpoint`: those of another model, by --checkpoint."""
    name: str | None = None
    """--checkpoint as it was written: a path, or hf://user/name."""
    sha256: str | None = None
    """Of the weights of that model; None if it is not recorded."""


class Steps(_RecordPart):
    """How long a training is."""

    planned: int
    """The optimizer steps of the whole training."""
    per_epoch: int
    warmup: int
    """The steps in which the learning rate rises."""
    ctc_only: int = 0
    """The steps of its first part, which trains CTC only."""
    max_minutes: float | None = None
    """A limit of time, which may end the training before the planned steps."""


class ListSize(_RecordPart):
    """The utterances of a data set that are used."""

    name: Literal["training", "validation"]
    utterances: int
    hours: float


class Resources(_RecordPart):
    """What a training needs of the machine."""

    lists: tuple[ListSize, ...] = ()
    """Empty for a language model."""
    list_bytes: int = 0
    """Memory of the lists."""
    feature_bytes: int = 0
    """Memory of the features that are kept."""
    checkpoint_bytes: int
    """Size of one checkpoint on the disk."""
    kept_bytes: int
    """Size of all checkpoints that are kept, at most."""
    free_bytes: int
    """Free disk at the start."""


class RunProgress(_RecordPart):
    """How far a training is."""

    step: int
    epoch: int
    seconds: float
    """Training time so far, over all resumes."""
    losses: Mapping[str, float | None] = {}
    """Of the last step that was logged, in nats per target: loss, loss_att, loss_ctc.

    None: not finite.
    """
    dev_step: int | None = None
    """The step of the last validation."""
    dev_losses: Mapping[str, float | None] = {}
    """Of the last validation."""
    dev_error_rate: float | None = None
    """Share of wrong units of the greedy CTC search at the last validation."""
    first_seconds_per_step: float | None = None
    """The first median of this start, from which the expected duration follows."""
    seconds_per_step: float | None = None
    """Median of the last steps; None before it is known."""
    seconds_left: float | None = None
    """Without validations; None before it is known."""
    speed: float | None = None
    """In `speed_unit` since the last entry."""
    speed_unit: str = ""


class RunWarning(_RecordPart):
    """Something that the training warned of."""

    code: str
    """What it is, for programs: `overfitted`, `ctc_on_plateau`, …; `general` for any other."""
    step: int
    text: str
    """The sentence of the log."""


class End(_RecordPart):
    """How a training ended."""

    state: Literal["trained", "stopped", "failed"]
    text: str = ""
    """The error, or what stopped it."""
    time: Time


class RunRecord(_RecordPart):
    """The record of one training."""

    format: Literal["wenet_hs.run/1"] = FORMAT
    model: Literal["recogniser", "language model"] = "recogniser"
    starts: tuple[Start, ...] = ()
    """The start, then one entry per resume."""
    lists: DataLists = DataLists()
    first_weights: FirstWeights | None = None
    """None if it is not recorded."""
    encoder_sha256: str | None = None
    """Of the weights of the pretrained encoder with which the training began."""
    files: Mapping[str, str] = {}
    """SHA-256 of the files of the model folder that belong to the model, by name."""
    head: str | None = None
    """Kind of the output layer of the decoder, or of the language model."""
    ctc_head: str | None = None
    trees: Mapping[str, str] = {}
    """Kind of each tree by its file in the model folder."""
    seed: int | None = None
    steps: Steps | None = None
    resources: Resources | None = None
    progress: RunProgress | None = None
    warnings: tuple[RunWarning, ...] = ()
    is_overfitted: bool = False
    """Of a packed model, which has no curves: whether its training had over-fitted."""
    end: End | None = None
    """None while it runs, and after it was killed."""

    @property
    def last_start(self) -> Start:
        """The last start or resume; one without facts if none is recorded."""
        return self.starts[-1] if self.starts else Start()

    @property
    def processors(self) -> list[str]:
        """The kinds of processors of all starts, without repetition; empty if none is recorded.

        A start that does not record them has the kind `unknown`, if other starts do. An example is
        a training whose run.json was removed before a resume.
        """
        kinds = list[str]()
        for start in self.starts:
            kinds += start.processors or (UNKNOWN,)
        different_kinds = list(dict.fromkeys(kinds))
        return [] if different_kinds == [UNKNOWN] else different_kinds

    @property
    def rank_numbers(self) -> list[int]:
        """The numbers of ranks of all starts, without repetition."""
        numbers = [start.ranks for start in self.starts if start.ranks is not None]
        return list(dict.fromkeys(numbers))

    @property
    def torch_versions(self) -> list[str]:
        """The versions of torch of all starts, without repetition."""
        versions = [start.packages["torch"] for start in self.starts if "torch" in start.packages]
        return list(dict.fromkeys(versions))

    @property
    def base_name(self) -> str | None:
        """--checkpoint as it was written; None if the training began without it, or is unknown."""
        return None if self.first_weights is None else self.first_weights.name

    def state(self, model_dir: Path) -> RunState:
        """The state of the training in this folder.

        It is running if a process has the lock of the folder, and otherwise as its end is recorded.
        Without an end it was killed, or is unknown if no time of a start is recorded either. The
        process that trains there must not call it, because that would release its own lock.
        """
        if lock_holder(model_dir) is not None:
            return "running"
        if self.end is not None:
            return self.end.state
        return "unknown" if self.last_start.time is None else "killed"


def utc_now() -> str:
    """The time in UTC, to the second, as the record has it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_run(model_dir: Path, record: RunRecord) -> None:
    """Writes run.json, whole or not at all; bytes that are not UTF-8 are written as escapes."""
    text = json.dumps(record.model_dump(mode="json"), ensure_ascii=False, indent=1)
    write_atomic(model_dir / RUN_FILE, text.encode("utf-8", "backslashreplace") + b"\n")


def read_run(model_dir: Path) -> RunRecord | None:
    """The record of a model folder; None if the folder has no run.json, as after WeNet's training.

    Raises DataError if run.json is damaged or of another version.
    """
    path = model_dir / RUN_FILE
    if not path.is_file():
        return None
    return parse_run(path, "\n".join(read_lines(path)))


def parse_run(path: Path, text: str) -> RunRecord:
    """The record in a text.

    Raises DataError, with `path`, if the text is no JSON, is of a newer version, has no format, or
        has a part that does not fit (the first one is named).
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(path, f"damaged ({error})", _REMEDY) from error
    format_found = values.get("format") if isinstance(values, dict) else None
    if format_found is None:
        raise DataError(path, "no record of a training (it has no format)", _REMEDY)
    if _is_other_version(format_found):
        found = f"has the format {format_found}; this version of wenet_hs reads {FORMAT}"
        raise DataError(path, found, "install a newer version of wenet_hs")
    try:
        return RunRecord.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"])) or "content"
        found = f"no record of a training ({key}: {fault['msg']})"
        raise DataError(path, found, _REMEDY) from error


def _is_other_version(format_found: object) -> bool:
    """Whether this is the format of a record, but in another version: `wenet_hs.run/2`."""
    is_record = isinstance(format_found, str) and format_found.startswith(f"{FORMAT_NAME}/")
    return is_record and format_found != FORMAT
