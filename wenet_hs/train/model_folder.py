# SPDX-License-Identifier: Apache-2.0
"""The experiment folder that a training writes: its files, its config, what a resumed run may
change.
"""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

import torch

from wenet_hs.compute.devices import has_native_bf16, has_native_fp16
from wenet_hs.config.encoders import PretrainedConf, UpperConf
from wenet_hs.config.load import AnySection, Config, config_changes, flatten
from wenet_hs.config.schema import ExperimentConfig, TrainingConfig
from wenet_hs.heads.gpu import is_gpu
from wenet_hs.model.encoders.description import read_description
from wenet_hs.model.experiment import TREE_FILES
from wenet_hs.runs.record import (
    RunRecord,
)
from wenet_hs.text.units import UnitTable
from wenet_hs.train.start import EarlierTraining, TrainingRequest
from wenet_hs.train.start_record import SAME_RUN, Hardware, make_start_record
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError

Change = tuple[str, Any, Any]
"""A dotted setting, its value before and its value now."""
CMVN_FILE = "cmvn_conf.cmvn_file"
FOLDER_NAMES = {
    "tokenizer_conf.symbol_table_path": "units.txt",
    "tokenizer_conf.bpe_path": "bpe.model",
    "encoder_conf.path": "encoder.json",
    CMVN_FILE: "global_cmvn",
    **{f"{section}.tree": name for section, name in TREE_FILES.items()},
}
"""The settings that name files, with the names that the files get in an experiment folder."""
FREE_TO_CHANGE = frozenset(
    {
        "max_epoch",
        "max_minutes",
        "log_interval",
        "save_interval",
        "keep_checkpoints",
        "keep_checkpoints_gb",
        "keep_best",
        "keep_best_by",
        "num_workers",
        "early_stopping.metric",
        "early_stopping.patience",
        "early_stopping.min_delta",
        "dataset_conf.max_bad_clips",
        "dataset_conf.max_unknown_units",
        "encoder_conf.gradient_checkpointing",
        "encoder_conf.upper.gradient_checkpointing",
        "decoder_conf.gradient_checkpointing",
    }
)
"""Settings that a resumed run may change: they do not change what a step computes. (What ends the
schedule of `warmup_cosine` does, see `_ends_of_schedule`.)"""
OUTPUT_CACHE = "encoder_conf.cache"
"""A resumed run may name another folder, but not begin or end to use one: a cache rounds to
float16.
"""
MIN_WIDTH_FOR_BF16 = 256
"""On a CPU narrower encoders gain up to 1.2× from bf16 (AMD) or train at 0.7× the speed (Intel with
AMX): oneDNN compiles bf16 kernels for each new length (benchmarks/notes/training_speed_cpu.md).
"""


def resolve_auto(
    config: Config,
    device: torch.device,
    *,
    where: Path,
    earlier: EarlierTraining[Config] | None = None,
) -> Config:
    """The config with `auto` replaced in `matmul_precision` and `dtype`, which train.yaml then
    records.

    `auto` is high on a GPU, else highest; and bf16 where the device multiplies it natively; on a
    CPU only from MIN_WIDTH_FOR_BF16 on.

    Args:
        where: the file of the config, for errors.
        earlier: the training that is resumed, whose config has the values of before.

    Raises ConfigError for fp16 where the device would emulate it.
    """
    if config.matmul_precision == "auto":
        precision = "high" if is_gpu(device) else "highest"
        if earlier is not None:
            precision = earlier.config.matmul_precision
        config = config.model_copy(update={"matmul_precision": precision})
    if not isinstance(config, ExperimentConfig):
        return config
    dtype = config.dtype
    stated_in = where
    if dtype == "auto" and earlier is not None:
        assert isinstance(earlier.config, ExperimentConfig)
        dtype = earlier.config.dtype
        stated_in = earlier.config_file
    elif dtype == "auto":
        dtype = "bf16" if _gains_from_bf16(config, device) else "fp32"
    if dtype == "fp16" and not has_native_fp16(device):
        found = "dtype: fp16 is emulated by this processor, some 50 times slower than fp32"
        to_do = "use --device cuda, or bf16 or fp32 in a new --model_dir"
        raise ConfigError(stated_in, found, to_do)
    return config.model_copy(update={"dtype": dtype})


def _gains_from_bf16(config: ExperimentConfig, device: torch.device) -> bool:
    """Whether bf16 is faster on this device, for an encoder of this width."""
    conf = config.encoder_conf
    is_wide = isinstance(conf, PretrainedConf) or conf.output_size >= MIN_WIDTH_FOR_BF16
    return has_native_bf16(device) and (is_wide or is_gpu(device))


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
        contents = {name: _read_source(name, source) for name, source in sources.items()}
    except OSError as error:
        if earlier is not None:  # an override that was left out may have named the file
            _refuse_changed_settings(earlier, config)
        found = f"cannot be read ({error.strerror})"
        raise ConfigError(error.filename, found, "check the path in the config") from error
    # A fault is reported with the user's path, before anything is written.
    UnitTable.read(sources["units.txt"])
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
        _refuse_changes(earlier, folder, sources, contents)
    record = make_start_record(
        request,
        config,
        files=sums,
        encoder_folder=folder.encoder_folder,
        hardware=hardware,
        is_resumed=earlier is not None,
    )
    for name, content in contents.items():
        if sources[name].resolve() != (model_dir / name).resolve():
            write_atomic(model_dir / name, content)
    return replace(folder, record=record)


def _read_source(name: str, source: Path) -> bytes:
    """The content of a file of the model folder. `name`: its name there."""
    if name == "encoder.json":
        return read_description(source).to_json().encode()
    return source.read_bytes()


def _with_folder_names(config: Config, where: Path) -> tuple[Config, dict[str, Path]]:
    """The config with the file names of an experiment folder, and the source of each file.

    A base name that is not in the working folder refers to the folder of the config, `where`.
    """
    if config.tokenizer_conf.symbol_table_path is None:
        found = "tokenizer_conf.symbol_table_path: not set"
        raise ConfigError(where, found, "name the units.txt that `wenet-hs units` made")
    sources: dict[str, Path] = {}
    for setting, name in FOLDER_NAMES.items():
        named = _named_file(config, setting)
        if named is not None:
            sources[name] = _source_of(named, where.parent)
            config = _with_setting(config, setting.split("."), name)
    return config, sources


def _named_file(config: TrainingConfig, setting: str) -> str | None:
    """The file that a dotted setting names.

    None if this config has no such setting, or does not use it.
    """
    if setting == CMVN_FILE and isinstance(config, ExperimentConfig) and config.cmvn is None:
        return None
    value: Any = config
    for key in setting.split("."):
        value = getattr(value, key, None)
    return None if value is None else str(value)


def _source_of(named: str, config_folder: Path) -> Path:
    """The path of a file that a config names."""
    path = Path(named)
    beside_config = config_folder / named
    is_base_name = path.name == str(path)
    if is_base_name and not path.exists() and beside_config.exists():
        return beside_config
    return path


def _with_setting(section: AnySection, keys: Sequence[str], value: str) -> AnySection:
    """The section with another value of the setting with these keys, one per level."""
    key, *inner_keys = keys
    changed: Any = value
    if inner_keys:
        changed = _with_setting(getattr(section, key), inner_keys, value)
    return section.model_copy(update={key: changed})


# ---- what a resumed run may change


def _refuse_changes(
    earlier: EarlierTraining[Config],
    folder: PreparedFolder[Config],
    sources: Mapping[str, Path],
    contents: Mapping[str, bytes],
) -> None:
    """Raise ConfigError with each setting and file that differs from those of the earlier training."""
    changes = config_changes(earlier.config, folder.config)
    faults = _changed_settings(earlier, changes, folder.config)
    other_kinds = _sections_of_other_kinds(changes)
    section_of_tree = {name: f"{section}." for section, name in TREE_FILES.items()}
    for name, content in contents.items():
        is_of_other_kind = section_of_tree.get(name, "").startswith(other_kinds)
        if not is_of_other_kind:
            faults += _changed_file(folder.path / name, sources[name], content)
    _raise_faults(faults)


def _refuse_changed_settings(earlier: EarlierTraining[Config], config: Config) -> None:
    """Raise ConfigError with each setting that differs from those of the earlier training."""
    _raise_faults(_changed_settings(earlier, config_changes(earlier.config, config), config))


def _raise_faults(faults: Sequence[str]) -> None:
    if faults:
        raise ConfigError("\n".join(f"{fault}; {SAME_RUN}" for fault in faults))


def _sections_of_other_kinds(changes: Sequence[Change]) -> tuple[str, ...]:
    """The prefixes of the settings that are not compared, as the kind of their section differs.

    Such as `head_conf.` if `head` differs.
    """
    return tuple(f"{key}_conf." for key, _, _ in changes)


def _changed_settings(
    earlier: EarlierTraining[Config],
    changes: Sequence[Change],
    config: Config,
) -> list[str]:
    """A fault per setting that differs and may not."""
    other_kinds = _sections_of_other_kinds(changes)
    faults = list[str]()
    for key, old, new in changes:
        is_other_cache = key == OUTPUT_CACHE and old and new
        if _may_change(key, config) or key.startswith(other_kinds) or is_other_cache:
            continue
        faults.append(f"{earlier.config_file}: {key} was {old!r}, is now {new!r}")
    return faults


def _changed_file(path: Path, source: Path, content: bytes) -> list[str]:
    """The fault of a file of the folder that is missing or differs; empty if there is none."""
    if not path.is_file():
        return [f"{path}: is missing"]
    before = path.read_bytes()
    if before == content:
        return []
    pairs = itertools.zip_longest(before.split(b"\n"), content.split(b"\n"))
    number = next(number for number, (old, new) in enumerate(pairs, start=1) if old != new)
    return [f"{path}: differs from {source} (line {number} is the first)"]


def _fixed_settings(config: TrainingConfig) -> dict[str, Any]:
    """What a resumed run must share, without settings at their defaults.

    A later release may have more settings.
    """
    encoder_defaults = _defaults_of_pretrained(config)
    fixed: dict[str, Any] = {}
    for key, _, value in config_changes(type(config)(), config):
        is_default = key == "matmul_precision" and value == "highest"  # what `auto` is on a CPU
        if encoder_defaults is not None and key.startswith("encoder_conf."):
            is_default = value == encoder_defaults.get(key)
        if not is_default and not _may_change(key, config):
            fixed[key] = True if key == OUTPUT_CACHE else value
    return fixed


def _defaults_of_pretrained(config: TrainingConfig) -> dict[str, Any] | None:
    """The defaults of a pretrained encoder by dotted setting; None without such an encoder."""
    if not isinstance(config, ExperimentConfig):
        return None
    if not isinstance(config.encoder_conf, PretrainedConf):
        return None
    upper = None if config.encoder_conf.upper is None else UpperConf()
    conf = PretrainedConf(path="", upper=upper)
    return flatten({"encoder_conf": conf.model_dump(mode="json")})


def _hash_settings(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _may_change(setting: str, config: TrainingConfig) -> bool:
    """Whether a resumed run may change a setting.

    It then changes no step, and not the end of the schedule.
    """
    return setting in FREE_TO_CHANGE and setting not in _ends_of_schedule(config)


def _ends_of_schedule(config: TrainingConfig) -> tuple[str, ...]:
    """The settings of FREE_TO_CHANGE at which the learning rate reaches 0."""
    if config.scheduler != "warmup_cosine":
        return ()
    has_other_end = config.scheduler_conf.total_steps is not None or config.max_minutes is not None
    if config.has_equal_epochs and not has_other_end:
        return ("max_minutes", "max_epoch")
    return ("max_minutes",)
