# SPDX-License-Identifier: Apache-2.0
"""The run record at the start of a training: command, machine, data lists, first weights."""

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
"""The end of a message about a setting, file or checkpoint that differs from the earlier run."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What all ranks of a training compute on."""

    processors: tuple[str, ...]
    """The kinds of processors, without repetition."""
    ranks: int
    """The number of ranks."""


def make_start_record(
    request: TrainingRequest[Config],
    config: Config,
    *,
    files: Mapping[str, str],
    encoder_folder: Path | None,
    hardware: Hardware,
    is_resumed: bool,
) -> RunRecord:
    """The content of run.json at this start, which the caller writes.

    The record of a resumed run keeps the earlier starts, the first weights and the warnings. This
    start is added as the last one, and what is true of this run only begins anew.

    Args:
        config: the settings of the training; names of files refer to the model folder.
        files: SHA-256 of each file of the model folder, by its name there.
        encoder_folder: the folder of the pretrained encoder, if the config names one.
    Raises: ConfigError if a resumed run names other weights to start from than the first run;
        CheckpointError if the weights cannot be read.
    """
    if is_resumed:
        recorded = read_run(request.model_dir)
        # run.json may have been removed: then one start is assumed of which nothing is known.
        earlier = recorded or RunRecord(starts=(Start(),))
        recorded_weights = None if recorded is None else recorded.first_weights
        first_weights = _check_first_weights(request.base, recorded_weights, request.model_dir)
        encoder_sha256 = earlier.encoder_sha256
    else:
        earlier = RunRecord()
        first_weights = _describe_first_weights(request.base)
        encoder_sha256 = _encoder_sha256(config, encoder_folder, request.base)
    is_recogniser = isinstance(config, ExperimentConfig)
    return earlier.model_copy(
        update={
            "model": "recogniser" if is_recogniser else "language model",
            "starts": (*earlier.starts, _describe_start(config, hardware)),
            "lists": _describe_lists(request.lists, is_recogniser=is_recogniser),
            "first_weights": first_weights,
            "encoder_sha256": encoder_sha256,
            "files": dict(files),
            "head": config.head,
            "ctc_head": config.ctc_conf.head if isinstance(config, ExperimentConfig) else None,
            "seed": config.seed,
            "resources": None,  # the training measures them once its data are open
            "progress": _without_speed(earlier.progress),
            "end": None,
        }
    )


def _without_speed(progress: RunProgress | None) -> RunProgress | None:
    """The progress without its speed and the time that was left, which are of an earlier start."""
    if progress is None:
        return None
    fields_of_a_start = ("first_seconds_per_step", "seconds_per_step", "seconds_left", "speed")
    return progress.model_copy(update=dict.fromkeys(fields_of_a_start))  # each becomes None


def _describe_start(config: TrainingConfig, hardware: Hardware) -> Start:
    """The time, command, machine and versions of this start.

    The versions are of the packages on which its results depend, also those of extensions.
    """
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
    """The lists of a training with their hashes; those of a language model are texts."""
    return DataLists(
        kind=lists.data_type if is_recogniser else "text",
        train=tuple(map(_describe_file, lists.train)),
        valid=(_describe_file(lists.valid),),
    )


def _describe_file(path: Path) -> DataFile:
    """The path and hash of a list; without a hash if it is not a regular file."""
    return DataFile(path=str(path), sha256=file_sha256(path) if path.is_file() else None)


def _describe_first_weights(base: BasePath | None) -> FirstWeights:
    """The weights that a new training starts with: those of `base`; None: random ones.

    Raises CheckpointError if the weights of `base` cannot be read.
    """
    if base is None:
        return FirstWeights(kind="random")
    return FirstWeights(kind="checkpoint", name=base.name, sha256=hash_weights(base.path))


def _check_first_weights(
    base: BasePath | None,
    recorded: FirstWeights | None,
    model_dir: Path,
) -> FirstWeights | None:
    """The weights that the first start of a resumed training began with; None: not known.

    Args:
        base: the model of `--checkpoint`, which a resumed run may omit.
        recorded: what run.json says of the first weights; None if run.json was removed.
    Raises: ConfigError if `--checkpoint` names other weights than the recorded ones;
        CheckpointError if its weights cannot be read.
    """
    if base is None:
        return recorded
    sha256_now = hash_weights(base.path)
    if recorded is None:
        return FirstWeights(kind="checkpoint", name=base.name)
    # Random weights have no SHA-256: the text "none" differs from each. None: it is not known.
    sha256_before = "none" if recorded.kind == "random" else recorded.sha256
    if sha256_before is not None and sha256_before != sha256_now:
        change = f"was {sha256_before[:12]}, is now {sha256_now[:12]}"
        found = f"sha256 of checkpoint {change} ({base.path})"
        raise ConfigError(model_dir / RUN_FILE, found, SAME_RUN)
    return recorded.model_copy(update={"name": base.name})


def _encoder_sha256(
    config: TrainingConfig,
    encoder_folder: Path | None,
    base: BasePath | None,
) -> str | None:
    """SHA-256 of the weights of the pretrained encoder with which a new training starts.

    None if the encoder is of another kind, and with `--checkpoint`, whose weights replace them.
    """
    if base is not None or not isinstance(config, ExperimentConfig):
        return None
    if not isinstance(config.encoder_conf, PretrainedConf):
        return None
    assert encoder_folder is not None  # the config names it
    return hash_pretrained(encoder_folder, config.encoder_conf.adapter)


def _git_hash() -> str:
    """The git commit of the source tree, with "-dirty" at its end if files were changed.

    It is "unknown" for an installed package, and if git is missing or fails.
    """
    source_tree = Path(__file__).parents[2]
    # An installed package may be inside a repository of the user, which git would describe.
    if not (source_tree / ".git").exists():
        return "unknown"
    # `--exclude *` leaves out tags, so that the answer is the hash of the commit.
    command = ["git", "-C", str(source_tree), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return completed.stdout.strip()
