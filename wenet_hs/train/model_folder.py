# SPDX-License-Identifier: Apache-2.0
"""The model folder at the start of a training: its files, and what a resumed run may change."""

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
from wenet_hs.config.load import AnySection, Config, SettingChange, config_changes, flatten
from wenet_hs.config.schema import ExperimentConfig, TrainingConfig
from wenet_hs.config.section import settings_free_on_resume
from wenet_hs.heads.gpu import is_gpu
from wenet_hs.model.encoders.description import read_description
from wenet_hs.model.experiment import TREE_FILES
from wenet_hs.runs.record import RunRecord
from wenet_hs.text.units import UnitTable
from wenet_hs.train.start import EarlierTraining, TrainingRequest
from wenet_hs.train.start_record import SAME_RUN, Hardware, make_start_record
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError

CMVN_FILE = "cmvn_conf.cmvn_file"
FOLDER_NAMES = {
    "tokenizer_conf.symbol_table_path": "units.txt",
    "tokenizer_conf.bpe_path": "bpe.model",
    "encoder_conf.path": "encoder.json",
    CMVN_FILE: "global_cmvn",
    **{f"{section}.tree": name for section, name in TREE_FILES.items()},
}
"""The settings that name files, with the names that the files get in a model folder."""
OUTPUT_CACHE = "encoder_conf.cache"
"""The folder of the outputs of a frozen encoder.

A resumed run may name another folder. It may not begin or end to use one, because the outputs in
it are rounded to float16.
"""
MIN_WIDTH_FOR_BF16 = 256
"""The narrowest encoder that `dtype: auto` trains in bf16 on a CPU.

oneDNN compiles bf16 kernels for each new length. Below this width that costs more than bf16 gains:
from 1.2× faster (AMD) to 0.7× the speed (Intel with AMX), benchmarks/notes/training_speed_cpu.md.
"""


def resolve_auto(
    config: Config,
    device: torch.device,
    *,
    where: Path,
    earlier: EarlierTraining[Config] | None = None,
) -> Config:
    """The config with `auto` replaced in `matmul_precision` and `dtype`, as train.yaml records it.

    A resumed training gets the values of the earlier one. In a new one `matmul_precision` becomes
    high on a GPU, else highest. `dtype` becomes bf16 where that is faster, else fp32. The config of
    a language model has no `dtype`.

    Args:
        where: the file of the config, for errors.
        earlier: the training that is resumed; None: a new one begins.
    Raises: ConfigError if the dtype is fp16 and the device would emulate it.
    """
    if config.matmul_precision == "auto":
        if earlier is not None:
            precision = earlier.config.matmul_precision
        else:
            precision = "high" if is_gpu(device) else "highest"
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
        dtype = "bf16" if _is_bf16_faster(config, device) else "fp32"
    if dtype == "fp16" and not has_native_fp16(device):
        found = "dtype: fp16 is emulated by this processor, some 50 times slower than fp32"
        to_do = "use --device cuda, or bf16 or fp32 in a new --model_dir"
        raise ConfigError(stated_in, found, to_do)
    return config.model_copy(update={"dtype": dtype})


def _is_bf16_faster(config: ExperimentConfig, device: torch.device) -> bool:
    """Whether bf16 makes the training faster on this device.

    The device must multiply bf16 natively. On a CPU the encoder must also be wide enough.
    """
    if not has_native_bf16(device):
        return False
    conf = config.encoder_conf
    # All pretrained encoders that exist are wider.
    is_wide = isinstance(conf, PretrainedConf) or conf.output_size >= MIN_WIDTH_FOR_BF16
    return is_wide or is_gpu(device)


@dataclass(frozen=True, kw_only=True)
class PreparedFolder(Generic[Config]):
    """The files of a model folder at the start of a training."""

    path: Path
    config_file: Path
    """The file that the user names, for errors."""
    config: Config
    """Its settings that name files have the names of the files in the folder."""
    hashes: dict[str, str]
    """SHA-256 of each copied file by its name; `config`: of the settings that must not change."""
    encoder_folder: Path | None
    """The folder of the pretrained encoder that the user's config names; None without such one."""
    record: RunRecord | None
    """The run record, with this start as its last one; None on a rank that does not write."""


@dataclass(frozen=True, kw_only=True)
class _CopiedFile:
    """A file that is copied into the model folder."""

    name: str
    """Its name in the model folder."""
    source: Path
    """The file that the user's config names."""
    content: bytes

    @property
    def sha256(self) -> str:
        """SHA-256 of the content, in hexadecimal digits."""
        return hashlib.sha256(self.content).hexdigest()


def prepare_folder(
    request: TrainingRequest[Config],
    earlier: EarlierTraining[Config] | None,
    hardware: Hardware | None,
) -> PreparedFolder[Config]:
    """Copy units, trees, CMVN and BPE model into the model folder, and make the run record.

    The caller writes `train.yaml` and the record. With `train.yaml` the folder is complete from the
    start, so it can be moved, and used for recognition on another machine.

    Args:
        request: what to train; its config has no `auto` any more.
        earlier: the training that is resumed, whose settings and files must be the same.
        hardware: what the ranks compute on. None: this rank neither compares nor writes anything.

    Raises: ConfigError if a file cannot be read, or a resumed run has other settings or files;
        DataError for a damaged unit table.
    """
    model_dir = request.model_dir
    config, sources = _with_folder_names(request.config, request.config_file)
    try:
        files = [_read_file(name, source) for name, source in sources.items()]
    except OSError as error:
        if earlier is not None:
            # The file may have been named by an override that this command lacks: say so instead.
            _refuse_changed_settings(earlier, config)
        found = f"cannot be read ({error.strerror})"
        raise ConfigError(error.filename, found, "check the path in the config") from error
    # A fault in the unit table is reported now, with the user's path, before anything is written.
    UnitTable.read(sources["units.txt"])
    sha256_of_files = {file.name: file.sha256 for file in files}
    folder = PreparedFolder(
        path=model_dir,
        config_file=request.config_file,
        config=config,
        hashes={**sha256_of_files, "config": _hash_settings(_fixed_settings(config))},
        encoder_folder=sources.get("encoder.json"),
        record=None,
    )
    if hardware is None:
        return folder
    if earlier is not None:
        _refuse_changes(earlier, folder, files)
    record = make_start_record(
        request,
        config,
        files=sha256_of_files,
        encoder_folder=folder.encoder_folder,
        hardware=hardware,
        is_resumed=earlier is not None,
    )
    for file in files:
        target = model_dir / file.name
        if file.source.resolve() != target.resolve():
            write_atomic(target, file.content)
    return replace(folder, record=record)


def _with_folder_names(config: Config, where: Path) -> tuple[Config, dict[str, Path]]:
    """The config with the file names of a model folder, and the source of each file by that name.

    `where`: the file of the config.
    Raises ConfigError if it names no unit table.
    """
    if config.tokenizer_conf.symbol_table_path is None:
        found = "tokenizer_conf.symbol_table_path: not set"
        raise ConfigError(where, found, "name the units.txt that `wenet-hs units` made")
    sources: dict[str, Path] = {}
    for setting, name in FOLDER_NAMES.items():
        named_file = _named_file(config, setting)
        if named_file is not None:
            sources[name] = _find_source(named_file, where.parent)
            config = _with_setting(config, setting.split("."), name)
    return config, sources


def _named_file(config: TrainingConfig, setting: str) -> str | None:
    """The file that a dotted setting names.

    None if this config has no such setting, leaves it out, or does not use the file: that of
    `cmvn_conf.cmvn_file` is used only if `cmvn` is set.
    """
    if setting == CMVN_FILE and isinstance(config, ExperimentConfig) and config.cmvn is None:
        return None
    value: Any = config
    for key in setting.split("."):
        value = getattr(value, key, None)
    return None if value is None else str(value)


def _find_source(named_file: str, config_folder: Path) -> Path:
    """The path of a file that a config names.

    A base name, such as `units.txt`, is looked for in the working folder, then in the folder of the
    config. The path is returned also if there is no such file.
    """
    path = Path(named_file)
    beside_config = config_folder / named_file
    is_base_name = path.name == str(path)
    if is_base_name and not path.exists() and beside_config.exists():
        return beside_config
    return path


def _with_setting(section: AnySection, keys: Sequence[str], value: str) -> AnySection:
    """A copy of a section in which one setting has another value.

    `keys`: one key per level, such as `["tokenizer_conf", "bpe_path"]`.
    """
    key, *inner_keys = keys
    changed: Any = value
    if inner_keys:
        changed = _with_setting(getattr(section, key), inner_keys, value)
    return section.model_copy(update={key: changed})


def _read_file(name: str, source: Path) -> _CopiedFile:
    """Read a file for the model folder; of a pretrained encoder its description as JSON.

    Raises OSError if it cannot be read.
    """
    if name == "encoder.json":
        content = read_description(source).to_json().encode()
    else:
        content = source.read_bytes()
    return _CopiedFile(name=name, source=source, content=content)


# ---- what a resumed run may change


def _refuse_changes(
    earlier: EarlierTraining[Config],
    folder: PreparedFolder[Config],
    files: Sequence[_CopiedFile],
) -> None:
    """Raise ConfigError with all settings and files that differ from the earlier training."""
    changes = config_changes(earlier.config, folder.config)
    faults = _setting_faults(earlier, changes, folder.config)
    # Another kind of head has another tree. The fault of the setting `head` is message enough.
    uncompared_sections = _sections_of_other_kinds(changes)
    section_of_tree = {name: f"{section}." for section, name in TREE_FILES.items()}
    for file in files:
        section = section_of_tree.get(file.name, "")  # empty: not a tree
        if not section.startswith(uncompared_sections):
            faults += _file_faults(folder.path / file.name, file)
    _raise_faults(faults)


def _refuse_changed_settings(earlier: EarlierTraining[Config], config: Config) -> None:
    """Raise ConfigError with all settings that differ from the earlier training."""
    changes = config_changes(earlier.config, config)
    _raise_faults(_setting_faults(earlier, changes, config))


def _raise_faults(faults: Sequence[str]) -> None:
    """Raise ConfigError with one line per fault; do nothing if there is none."""
    if faults:
        raise ConfigError("\n".join(f"{fault}; {SAME_RUN}" for fault in faults))


def _sections_of_other_kinds(changes: Sequence[SettingChange]) -> tuple[str, ...]:
    """The prefixes of settings that are not compared, such as `head_conf.` if `head` has changed.

    Settings of two different heads have nothing in common. For a changed setting without a section,
    such as `seed`, the prefix is `seed_conf.`, which no setting has.
    """
    return tuple(f"{change.key}_conf." for change in changes)


def _setting_faults(
    earlier: EarlierTraining[Config],
    changes: Sequence[SettingChange],
    config: Config,
) -> list[str]:
    """One message per setting that differs and must not.

    `changes`: all settings that differ between the earlier training and `config`.
    """
    changeable = _changeable_settings(earlier.config, config)
    uncompared_sections = _sections_of_other_kinds(changes)
    faults = list[str]()
    for key, old, new in changes:
        has_other_folder = key == OUTPUT_CACHE and old is not None and new is not None
        if key in changeable or key.startswith(uncompared_sections) or has_other_folder:
            continue
        faults.append(f"{earlier.config_file}: {key} was {old!r}, is now {new!r}")
    return faults


def _file_faults(path: Path, file: _CopiedFile) -> list[str]:
    """The message if `path` in the model folder is missing or differs from `file`; else none."""
    if not path.is_file():
        return [f"{path}: is missing"]
    content_before = path.read_bytes()
    if content_before == file.content:
        return []
    line_pairs = itertools.zip_longest(content_before.split(b"\n"), file.content.split(b"\n"))
    first = next(number for number, (old, new) in enumerate(line_pairs, start=1) if old != new)
    return [f"{path}: differs from {file.source} (line {first} is the first)"]


def _changeable_settings(earlier: TrainingConfig, config: TrainingConfig) -> set[str]:
    """The settings, by dotted key, in which a resumed run may differ from the earlier one.

    These are the settings that the schema marks as free, without those that end the schedule: a
    learning rate that falls to 0 at another step is different in every step before.
    """
    free = settings_free_on_resume(earlier) | settings_free_on_resume(config)
    return free - _ends_of_schedule(config)


def _ends_of_schedule(config: TrainingConfig) -> set[str]:
    """The settings marked as free that set the step at which the learning rate reaches 0.

    With `warmuplr` it never does.
    """
    if config.scheduler != "warmup_cosine":
        return set()
    has_other_end = config.scheduler_conf.total_steps is not None or config.max_minutes is not None
    if config.has_equal_epochs and not has_other_end:
        # The schedule ends at the last step of `max_epoch` then. `max_minutes` would be another end.
        return {"max_minutes", "max_epoch"}
    return {"max_minutes"}


def _fixed_settings(config: TrainingConfig) -> dict[str, Any]:
    """The settings that a resumed run must share, by dotted key; their hash is in each checkpoint.

    Those at their defaults are left out: a later release may have more settings. Of the folder of
    an output cache only counts that there is one.
    """
    defaults = type(config)()
    changeable = _changeable_settings(defaults, config)
    # `defaults` has a conformer. The settings of a pretrained encoder have other defaults.
    defaults_of_pretrained = _defaults_of_pretrained(config)
    fixed: dict[str, Any] = {}
    for key, _, value in config_changes(defaults, config):
        is_default = key == "matmul_precision" and value == "highest"  # `auto` becomes it on a CPU
        if defaults_of_pretrained is not None and key.startswith("encoder_conf."):
            is_default = value == defaults_of_pretrained.get(key)
        if not is_default and key not in changeable:
            fixed[key] = True if key == OUTPUT_CACHE else value
    return fixed


def _defaults_of_pretrained(config: TrainingConfig) -> dict[str, Any] | None:
    """The defaults of a pretrained encoder, by dotted key; None for another kind of encoder."""
    if not isinstance(config, ExperimentConfig):
        return None
    if not isinstance(config.encoder_conf, PretrainedConf):
        return None
    upper = None if config.encoder_conf.upper is None else UpperConf()
    conf = PretrainedConf(path="", upper=upper)
    return flatten({"encoder_conf": conf.model_dump(mode="json")})


def _hash_settings(settings: Mapping[str, Any]) -> str:
    """SHA-256 of settings, in whatever order they are."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
