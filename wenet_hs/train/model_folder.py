# SPDX-License-Identifier: Apache-2.0
"""The experiment folder that a training writes: its files, its config, and what a resumed run may change of them."""

import hashlib
import itertools
import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic

import torch
from pydantic import BaseModel

from wenet_hs.base.files import file_sha256
from wenet_hs.compute.devices import has_native_bf16, has_native_fp16
from wenet_hs.config.encoders import PretrainedConf, UpperConf
from wenet_hs.config.load import Config, config_changes, flatten
from wenet_hs.config.schema import ExperimentConfig, TrainingConfig
from wenet_hs.heads.gpu import is_gpu
from wenet_hs.model.checkpoint import hash_weights
from wenet_hs.model.encoders.description import read_description
from wenet_hs.model.encoders.weights import hash_pretrained
from wenet_hs.model.experiment import TREE_FILES
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
from wenet_hs.text.units import UnitTable
from wenet_hs.train.start import BasePath, EarlierTraining, ListPaths, TrainingRequest
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError

logger = logging.getLogger(__name__)

FOLDER_NAMES = {
    **{"tokenizer_conf.symbol_table_path": "units.txt", "tokenizer_conf.bpe_path": "bpe.model"},
    "encoder_conf.path": "encoder.json",
    **{"cmvn_conf.cmvn_file": "global_cmvn", **{f"{section}.tree": name for section, name in TREE_FILES.items()}},
}
"""The settings that name files, with the names that the files get in an experiment folder."""
_CHECKPOINTING = "gradient_checkpointing"
FREE_TO_CHANGE = frozenset(
    (
        *("max_epoch", "max_minutes", "log_interval", "save_interval", "keep_checkpoints", "num_workers"),
        *("keep_checkpoints_gb", "keep_best", "keep_best_by"),
        *("early_stopping.metric", "early_stopping.patience", "early_stopping.min_delta"),
        *("dataset_conf.max_bad_clips", "dataset_conf.max_unknown_units"),
        *(f"encoder_conf.{_CHECKPOINTING}", f"decoder_conf.{_CHECKPOINTING}"),
        f"encoder_conf.upper.{_CHECKPOINTING}",
    )
)
"""Settings that a resumed run may change: they do not change what a step computes. (What ends the
schedule of `warmup_cosine` does, see `_may_change`.)"""
OUTPUT_CACHE = "encoder_conf.cache"
"""A resumed run may name another folder, but not begin or end to use one: a cache rounds to float16."""
_SAME_RUN = "a resumed run must be the same: give the earlier one again, or use another --model_dir"
MIN_WIDTH_FOR_BF16 = 256
"""On a CPU narrower encoders gain up to 1.2× from bf16 (AMD) or train at 0.7× the speed (Intel with AMX): oneDNN
compiles bf16 kernels for each new length (benchmarks/notes/training_speed_cpu.md)."""


def resolve_auto(
    config: Config,
    device: torch.device,
    *,
    where: Path,
    earlier: EarlierTraining[Config] | None = None,
) -> Config:
    """The config with `auto` replaced in `matmul_precision` and `dtype`, which train.yaml then records.

    `auto` is high on a GPU, else highest; and bf16 where the device multiplies it natively; on a CPU only from
    MIN_WIDTH_FOR_BF16 on.

    Args:
        where: the file of the config, for errors.
        earlier: the training that is resumed, whose config has the values of before.

    Raises ConfigError for fp16 where the device would emulate it.
    """
    if config.matmul_precision == "auto":
        chosen = "high" if is_gpu(device) else "highest"
        if earlier is not None:
            chosen = earlier.config.matmul_precision
        config = config.model_copy(update={"matmul_precision": chosen})
    if not isinstance(config, ExperimentConfig):
        return config
    dtype = config.dtype
    stated_in = where
    if dtype == "auto" and earlier is not None and isinstance(earlier.config, ExperimentConfig):
        dtype = earlier.config.dtype
        stated_in = earlier.config_file
    elif dtype == "auto":
        conf = config.encoder_conf
        is_wide = isinstance(conf, PretrainedConf) or conf.output_size >= MIN_WIDTH_FOR_BF16
        gains_from_bf16 = has_native_bf16(device) and (is_wide or is_gpu(device))
        dtype = "bf16" if gains_from_bf16 else "fp32"
    if dtype == "fp16" and not has_native_fp16(device):
        found = "dtype: fp16 is emulated by this processor, some 50 times slower than fp32"
        raise ConfigError(stated_in, found, "use --device cuda, or bf16 or fp32 in a new --model_dir")
    return config.model_copy(update={"dtype": dtype})


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What the ranks compute on."""

    processors: tuple[str, ...]
    """The kinds of processors, without repetition."""
    ranks: int


@dataclass(frozen=True, kw_only=True)
class PreparedFolder(Generic[Config]):
    """The files of a model folder at the start of a training."""

    path: Path
    config_file: Path
    """The file that the user names, for errors."""
    config: Config
    """With base names, which refer to the folder."""
    hashes: dict[str, str]
    """SHA-256 of each copied file by name, and of the settings as `config`."""
    encoder_folder: Path | None
    """Of the pretrained encoder that the config of the user names."""
    record: RunRecord | None
    """With this start as its last one; None on a rank that does not write."""


def prepare_folder(
    request: TrainingRequest[Config],
    earlier: EarlierTraining[Config] | None,
    hardware: Hardware | None,
) -> PreparedFolder[Config]:
    """Copy units, trees, CMVN and BPE model into the model folder.

    With `train.yaml` the folder is complete from the start, so it can be moved and decoded on
    another machine.

    Args:
        request: its config without `auto`.
        earlier: the training that is resumed, whose config and files must be equal to these.
        hardware: of the ranks. None: this rank neither writes nor compares the folder.

    Raises: ConfigError if a resumed run has another config or file than before.
    """
    model_dir = request.model_dir
    config, sources = _with_folder_names(request.config, request.config_file)
    try:
        contents = {
            name: read_description(source).to_json().encode() if name == "encoder.json" else source.read_bytes()
            for name, source in sources.items()
        }
    except OSError as error:
        if earlier is not None:  # an override that was left out may have named the file
            _refuse_changes(earlier, model_dir, config, {}, {})
        found = f"cannot be read ({error.strerror})"
        raise ConfigError(error.filename, found, "check the path in the config") from error
    UnitTable.read(sources["units.txt"])  # a fault is reported with the user's path, before anything is written
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    hashes = {**sums, "config": _hash_settings(_fixed_settings(config))}
    folder = PreparedFolder(
        path=model_dir,
        config_file=request.config_file,
        config=config,
        hashes=hashes,
        encoder_folder=sources.get("encoder.json"),
        record=None,
    )
    if hardware is None:
        return folder
    if earlier is not None:
        _refuse_changes(earlier, model_dir, config, sources, contents)
    record = _make_record(request, folder, sums, hardware, is_resumed=earlier is not None)
    for name, content in contents.items():
        if sources[name].resolve() != (model_dir / name).resolve():
            write_atomic(model_dir / name, content)
    return replace(folder, record=record)


# ---- what the training is started with


def _make_record(
    request: TrainingRequest[Config],
    folder: PreparedFolder[Config],
    sums: Mapping[str, str],
    hardware: Hardware,
    *,
    is_resumed: bool,
) -> RunRecord:
    """The record of this start; that of a resumed run keeps what is recorded of the starts before.

    Raises ConfigError if a resumed run names other weights to start from than the first one.
    """
    config = folder.config
    before = read_run(folder.path) if is_resumed else None
    record = before or RunRecord(starts=(Start(),) if is_resumed else ())
    is_recogniser = isinstance(config, ExperimentConfig)
    return record.model_copy(
        update={
            "model": "recogniser" if is_recogniser else "language model",
            "starts": (*record.starts, _describe_start(config, hardware)),
            "lists": _describe_lists(request.lists, is_recogniser=is_recogniser),
            "first_weights": _first_weights(request.base, before, folder.path, is_resumed=is_resumed),
            "encoder_sha256": record.encoder_sha256 if is_resumed else _encoder_sha256(folder, request.base),
            "files": dict(sums),
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
    is_pretrained = isinstance(config, ExperimentConfig) and isinstance(config.encoder_conf, PretrainedConf)
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


def _first_weights(
    base: BasePath | None,
    before: RunRecord | None,
    model_dir: Path,
    *,
    is_resumed: bool,
) -> FirstWeights | None:
    """The weights that the training starts from, or of a resumed one: that it started from.

    A resumed run keeps what is recorded, which is nothing if run.json was removed, and may omit
    --checkpoint. Raises ConfigError if it names other weights.
    """
    if not is_resumed:
        if base is None:
            return FirstWeights(kind="random")
        return FirstWeights(kind="checkpoint", name=base.name, sha256=hash_weights(base.path))
    recorded = None if before is None else before.first_weights
    if base is None:
        return recorded
    sha256_now = hash_weights(base.path)
    if recorded is None:
        return FirstWeights(kind="checkpoint", name=base.name)
    sha256_before = "none" if recorded.kind == "random" else recorded.sha256
    if sha256_before not in (sha256_now, None):
        found = f"sha256 of checkpoint was {sha256_before[:12]}, is now {sha256_now[:12]} ({base.path})"
        raise ConfigError(model_dir / RUN_FILE, found, _SAME_RUN)
    return recorded.model_copy(update={"name": base.name})


def _encoder_sha256(folder: PreparedFolder[Config], base: BasePath | None) -> str | None:
    """The sum of the weights of a pretrained encoder with which a new training starts.

    None with --checkpoint, whose weights replace them.
    """
    if base is not None or not isinstance(folder.config, ExperimentConfig):
        return None
    conf = folder.config.encoder_conf
    if not isinstance(conf, PretrainedConf):
        return None
    assert folder.encoder_folder is not None  # the config names it
    return hash_pretrained(folder.encoder_folder, conf.adapter)


def _with_folder_names(config: Config, where: Path) -> tuple[Config, dict[str, Path]]:
    """The config with the file names of an experiment folder, and the source of the file of each name.

    A base name that is not in the working folder refers to the folder of the config, `where`.
    """
    if config.tokenizer_conf.symbol_table_path is None:
        found = "tokenizer_conf.symbol_table_path: not set"
        raise ConfigError(where, found, "name the units.txt that `wenet-hs units` made")
    sources: dict[str, Path] = {}
    for setting, name in FOLDER_NAMES.items():
        *parents, key = setting.split(".")
        if parents[0] not in type(config).model_fields:
            continue
        sections: list[BaseModel] = list(itertools.accumulate(parents, getattr, initial=config))
        value = getattr(sections[-1], key, None)
        if value is None or (key == "cmvn_file" and isinstance(config, ExperimentConfig) and config.cmvn is None):
            continue
        path, beside = Path(value), where.parent / value
        sources[name] = beside if path.name == str(path) and not path.exists() and beside.exists() else path
        changed: Any = name
        for section, changed_key in zip(sections[::-1], (key, *parents[::-1]), strict=True):
            changed = section.model_copy(update={changed_key: changed})
        config = changed
    return config, sources


def _refuse_changes(
    earlier: EarlierTraining[Config],
    model_dir: Path,
    config: Config,
    sources: Mapping[str, Path],
    contents: Mapping[str, bytes],
) -> None:
    """Raise ConfigError with each setting and file that differs; a section whose kind differs is not compared."""
    changes = config_changes(earlier.config, config)
    kinds = tuple(f"{key}_conf." for key, _, _ in changes)
    faults = [
        f"{earlier.config_file}: {key} was {old!r}, is now {new!r}"
        for key, old, new in changes
        if not _may_change(key, config) and not key.startswith(kinds) and not (key == OUTPUT_CACHE and old and new)
    ]
    of_other_kinds = {name for section, name in TREE_FILES.items() if f"{section}.".startswith(kinds)}
    for name, content in contents.items():
        if name in of_other_kinds:
            continue
        if not (model_dir / name).is_file():
            faults.append(f"{model_dir / name}: is missing")
        elif (found := (model_dir / name).read_bytes()) != content:
            pairs = enumerate(itertools.zip_longest(found.split(b"\n"), content.split(b"\n")), start=1)
            number = next(number for number, (line, other) in pairs if line != other)
            faults.append(f"{model_dir / name}: differs from {sources[name]} (line {number} is the first)")
    if faults:
        raise ConfigError("\n".join(f"{fault}; {_SAME_RUN}" for fault in faults))


def _fixed_settings(config: TrainingConfig) -> dict[str, Any]:
    """What a resumed run must share, without settings at their defaults: a later release may have more of them."""
    changes, of_encoder = config_changes(type(config)(), config), dict[str, Any]()
    changes = [one for one in changes if one[0] != "matmul_precision" or one[2] != "highest"]  # what `auto` is on a CPU
    if isinstance(config, ExperimentConfig) and isinstance(config.encoder_conf, PretrainedConf):
        upper = config.encoder_conf.upper and UpperConf()
        of_encoder = flatten({"encoder_conf": PretrainedConf(path="", upper=upper).model_dump(mode="json")})
        changes = [one for one in changes if not one[0].startswith("encoder_conf.") or one[2] != of_encoder.get(one[0])]
    return {key: key == OUTPUT_CACHE or value for key, _, value in changes if not _may_change(key, config)}


def _hash_settings(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _may_change(setting: str, config: TrainingConfig) -> bool:
    ends = ["max_minutes"] if config.scheduler == "warmup_cosine" else []
    if ends and config.has_equal_epochs and config.scheduler_conf.total_steps is None and config.max_minutes is None:
        ends.append("max_epoch")
    return setting in FREE_TO_CHANGE and setting not in ends


def _git_hash() -> str:
    """The commit of the source tree, with "-dirty" if it was changed; "unknown" for an installed package."""
    source_tree = Path(__file__).parents[2]
    if not (source_tree / ".git").exists():  # otherwise git would describe a repository around the environment
        return "unknown"
    command = ["git", "-C", str(source_tree), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
