# SPDX-License-Identifier: Apache-2.0
"""The run record with which a training starts: command, machine, lists, weights."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from wenet_hs.base.files import file_sha256
from wenet_hs.config.encoders import PretrainedConf
from wenet_hs.config.load import Config
from wenet_hs.config.schema import ExperimentConfig, TrainingConfig
from wenet_hs.model.checkpoint import hash_weights
from wenet_hs.model.encoders.weights import hash_pretrained
from wenet_hs.runs.record import (
    RUN_FILE,
    DataFile,
    DataLists,
    FirstWeights,
    RunProgress,
    RunRecord,
    Start,
    read_run,
    utc_now,
)
from wenet_hs.train.start import BasePath, ListPaths, TrainingRequest
from wenet_hs.tree.errors import ConfigError

SAME_RUN = "a resumed run must be the same: give the earlier one again, or use another --model_dir"


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What the ranks compute on."""

    processors: tuple[str, ...]
    """The kinds of processors, without repetition."""
    ranks: int


def make_start_record(
    request: TrainingRequest[Config],
    config: Config,
    *,
    files: Mapping[str, str],
    encoder_folder: Path | None,
    hardware: Hardware,
    is_resumed: bool,
) -> RunRecord:
    """The record of this start; that of a resumed run keeps what is recorded of the starts before.

    Args:
        config: with base names, which refer to the model folder.
        files: SHA-256 of each file of the folder by name.
        encoder_folder: of the pretrained encoder, if the config names one.
    Raises: ConfigError if a resumed run names other weights to start from than the first one.
    """
    if is_resumed:
        before = read_run(request.model_dir)
        record = before or RunRecord(starts=(Start(),))
        recorded_weights = None if before is None else before.first_weights
        first_weights = _check_first_weights(request.base, recorded_weights, request.model_dir)
        encoder_sha256 = record.encoder_sha256
    else:
        record = RunRecord()
        first_weights = _describe_first_weights(request.base)
        encoder_sha256 = _encoder_sha256(config, encoder_folder, request.base)
    is_recogniser = isinstance(config, ExperimentConfig)
    return record.model_copy(
        update={
            "model": "recogniser" if is_recogniser else "language model",
            "starts": (*record.starts, _describe_start(config, hardware)),
            "lists": _describe_lists(request.lists, is_recogniser=is_recogniser),
            "first_weights": first_weights,
            "encoder_sha256": encoder_sha256,
            "files": dict(files),
            "head": config.head,
            "ctc_head": config.ctc_conf.head if isinstance(config, ExperimentConfig) else None,
            "seed": config.seed,
            "resources": None,
            "progress": _without_speed(record.progress),
            "end": None,
        }
    )


def _without_speed(progress: RunProgress | None) -> RunProgress | None:
    """The progress of the starts before, without their speed and the time that was left."""
    if progress is None:
        return None
    of_this_start = ("first_seconds_per_step", "seconds_per_step", "seconds_left", "speed")
    return progress.model_copy(update=dict.fromkeys(of_this_start))


def _describe_start(config: TrainingConfig, hardware: Hardware) -> Start:
    packages = ["wenet_hs", "torch"]
    is_pretrained = isinstance(config, ExperimentConfig) and isinstance(
        config.encoder_conf, PretrainedConf
    )
    if is_pretrained and find_spec("transformers"):
        packages.append("transformers")
    packages += [extension.package for extension in config.extensions()]
    return Start(
        time=utc_now(),
        command=(Path(sys.argv[0]).name, *sys.argv[1:]),
        processors=hardware.processors,
        ranks=hardware.ranks,
        machine=f"{platform.machine()}, {os.cpu_count()} cores",
        python=platform.python_version(),
        packages={name: version(name) for name in packages},
        commit=_git_hash(),
    )


def _describe_lists(lists: ListPaths, *, is_recogniser: bool) -> DataLists:
    return DataLists(
        kind=lists.data_type if is_recogniser else "text",
        train=tuple(map(_describe_file, lists.train)),
        valid=(_describe_file(lists.valid),),
    )


def _describe_file(path: Path) -> DataFile:
    return DataFile(path=str(path), sha256=file_sha256(path) if path.is_file() else None)


def _describe_first_weights(base: BasePath | None) -> FirstWeights:
    """The weights that a new training starts from.

    Raises CheckpointError if they cannot be read.
    """
    if base is None:
        return FirstWeights(kind="random")
    return FirstWeights(kind="checkpoint", name=base.name, sha256=hash_weights(base.path))


def _check_first_weights(
    base: BasePath | None,
    recorded: FirstWeights | None,
    model_dir: Path,
) -> FirstWeights | None:
    """The weights that the first start of a resumed training began with.

    It keeps what is recorded, which is nothing if run.json was removed, and may omit --checkpoint.
    Raises ConfigError if it names other weights.
    """
    if base is None:
        return recorded
    sha256_now = hash_weights(base.path)
    if recorded is None:
        return FirstWeights(kind="checkpoint", name=base.name)
    sha256_before = "none" if recorded.kind == "random" else recorded.sha256
    if sha256_before not in (sha256_now, None):
        change = f"was {sha256_before[:12]}, is now {sha256_now[:12]}"
        found = f"sha256 of checkpoint {change} ({base.path})"
        raise ConfigError(model_dir / RUN_FILE, found, SAME_RUN)
    return recorded.model_copy(update={"name": base.name})


def _encoder_sha256(
    config: TrainingConfig,
    encoder_folder: Path | None,
    base: BasePath | None,
) -> str | None:
    """The sum of the weights of a pretrained encoder with which a new training starts.

    None with --checkpoint, whose weights replace them.
    """
    if base is not None or not isinstance(config, ExperimentConfig):
        return None
    if not isinstance(config.encoder_conf, PretrainedConf):
        return None
    assert encoder_folder is not None  # the config names it
    return hash_pretrained(encoder_folder, config.encoder_conf.adapter)


def _git_hash() -> str:
    """The commit of the source tree, with "-dirty" if it was changed; "unknown" for an installed
    package.
    """
    source_tree = Path(__file__).parents[2]
    if not (
        source_tree / ".git"
    ).exists():  # otherwise git would describe a repository around the environment
        return "unknown"
    command = ["git", "-C", str(source_tree), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
