# SPDX-License-Identifier: Apache-2.0
"""What is removed before a model is published: paths, commands, machines and times."""

import re
from collections.abc import Mapping
from pathlib import PureWindowsPath
from typing import Any

from wenet_hs.runs.record import DataFile, DataLists, RunProgress, RunRecord, Start

PRIVATE_PATH = re.compile(
    r"""
    (?<![\w/.])             # not inside of a URL or of a path that is not absolute
    (?:
        file:/+[\w.-]
      | ~(?:[A-Za-z_]\w*)?/\w          # home folders: ~/a, ~jane/a
      | \.\./[\w.]
      | \$\{?[A-Za-z_]\w*\}?/          # variables: $HOME/, ${HOME}/
      | /[\w.-]{2,}/[\w.-]             # two parts, so that phones such as /p/ are none
      | [A-Za-z]:\\+\w                 # C:\a
      | \\\\\w                         # \\server
    )
    [^\s"')]*
    """,
    re.VERBOSE,
)
"""A path that is absolute and has at least two parts, or begins with a home folder, a variable or
`..`; no URL, no phone between slashes.
"""
_PUBLISHED_WARNINGS = (
    "overfitted",
    "ctc_on_plateau",
    "ended_in_warmup",
    "all_in_warmup",
    "ends_before_schedule",
)
"""Codes of warnings that are published: their sentences name no path and no utterance."""
_PLACE_OF_MODEL = "_name_or_path"
"""The key where transformers writes from where it loaded a model."""


# ---- the run record


def publish_run(run: RunRecord, *, is_overfitted: bool) -> RunRecord:
    """The facts of a record that are published: versions, processors, sums, steps and warnings.

    Paths, commands, the machine and the times of the starts are left out. So is the name of the
    first weights, unless it is a name on the hub.
    """
    progress = run.progress
    steps_done = None
    if progress is not None:
        steps_done = RunProgress(step=progress.step, epoch=progress.epoch, seconds=progress.seconds)
    weights = run.first_weights
    if weights is not None:
        is_from_hub = weights.name is not None and weights.name.startswith("hf:")
        public_name = weights.name if is_from_hub else None
        weights = weights.model_copy(update={"name": public_name})
    train_lists = [DataFile(path=None, sha256=sha256) for sha256 in run.lists.train_sums]
    warnings = [warning for warning in run.warnings if warning.code in _PUBLISHED_WARNINGS]
    return RunRecord(
        model=run.model,
        starts=tuple(_publish_start(start) for start in run.starts),
        lists=DataLists(kind=run.lists.kind, train=tuple(train_lists)),
        first_weights=weights,
        encoder_sha256=run.encoder_sha256,
        head=run.head,
        ctc_head=run.ctc_head,
        trees=run.trees,
        seed=run.seed,
        steps=run.steps,
        progress=steps_done,
        warnings=tuple(warnings),
        is_overfitted=is_overfitted,
    )


def _publish_start(start: Start) -> Start:
    """Processors, ranks and versions of a start. A text that contains a path is left out."""
    processors = [kind for kind in start.processors if not PRIVATE_PATH.search(kind)]
    packages = {
        name: version
        for name, version in start.packages.items()
        if not PRIVATE_PATH.search(version)
    }
    return Start(
        step=start.step,
        processors=tuple(processors),
        ranks=start.ranks,
        python=_without_path(start.python),
        packages=packages,
        commit=_without_path(start.commit),
    )


def _without_path(text: str | None) -> str | None:
    """The text; None if it contains a private path."""
    has_path = text is not None and PRIVATE_PATH.search(text) is not None
    return None if has_path else text


# ---- settings


def without_folders(value: Any) -> Any:
    """A value of a YAML or JSON file in which each path is its last name.

    In all sections, the entry that says from where transformers loaded a model is left out.
    """
    if isinstance(value, Mapping):
        return {
            key: without_folders(entry) for key, entry in value.items() if key != _PLACE_OF_MODEL
        }
    if isinstance(value, list | tuple):
        return [without_folders(entry) for entry in value]
    if isinstance(value, str) and ("/" in value or "\\" in value):
        return PureWindowsPath(value).name  # it knows both kinds of slashes
    return value


# ---- BPE models


BPE_PATHS: Mapping[int, Any] = {2: {1: None, 2: None, 54: None}, 3: {6: None}, 5: {6: None}}
"""The fields of a sentencepiece model that are paths, for `blank_texts`.

They are input, model_prefix and seed_sentencepieces_file of its trainer_spec (2), and
normalization_rule_tsv of its normalizer_spec (3) and denormalizer_spec (5). Its tokens do not
depend on them.
"""
_VARINT = 0
_LENGTH_DELIMITED = 2  # a text or a message in the message, after its length
_NUM_BYTES = {1: 8, 5: 4}  # of numbers of fixed size, by wire type


def blank_texts(message: memoryview, fields: Mapping[int, Any]) -> None:
    """Overwrites texts of a protobuf message with `-`, in place, so that no length changes.

    sentencepiece's own protobuf classes cannot be in one process with those of transformers. So
    this reads the format: each field has a tag (its number and its wire type) and then its value.

    Args:
        fields: number of a field → None for a text that is overwritten, or the fields of the
            message in it, in the same form. Fields with other numbers are kept.
    """
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        number = tag >> 3
        wire_type = tag & 7
        if wire_type == _VARINT:
            _, position = _read_varint(message, position)
        elif wire_type == _LENGTH_DELIMITED:
            num_bytes, begin = _read_varint(message, position)
            position = begin + num_bytes
            value = message[begin:position]
            if number in fields:
                inner_fields = fields[number]
                if inner_fields is None:  # a text
                    value[:] = b"-" * num_bytes
                else:  # a message
                    blank_texts(value, inner_fields)
        else:
            position += _NUM_BYTES[wire_type]


def _read_varint(message: memoryview, begin: int) -> tuple[int, int]:
    """The integer of variable length that begins at a byte, and the position after it.

    It has 7 bits per byte, the lowest first. All its bytes but the last one have their highest bit
    set: 300 is the bytes 172 and 2.

    Raises ValueError if the message ends before it.
    """
    value = 0
    for index, byte in enumerate(message[begin:]):
        value += (byte & 127) << (7 * index)
        is_last = byte < 128
        if is_last:
            return value, begin + index + 1
    raise ValueError(f"protobuf: no end of the integer at byte {begin}")
