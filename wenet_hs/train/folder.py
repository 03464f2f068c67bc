# SPDX-License-Identifier: Apache-2.0
"""The experiment folder. It is complete from the start, so it can be moved and decoded on another machine."""

import hashlib
import itertools
import json
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from wenet_hs.build import SHA256_OF, TREE_FILES
from wenet_hs.config.load import config_changes, dump_config, load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.errors import ConfigError
from wenet_hs.files import write_atomic

Section = TypeVar("Section", bound=BaseModel)

FREE_TO_CHANGE = frozenset(
    {
        *("max_epoch", "max_minutes", "log_interval", "save_interval", "keep_checkpoints", "num_workers"),
        *("keep_best", "keep_best_by"),
        *("early_stopping.metric", "early_stopping.patience", "early_stopping.min_delta"),
        *("dataset_conf.max_bad_clips", "encoder_conf.gradient_checkpointing", "decoder_conf.gradient_checkpointing"),
    }
)
"""Settings that a resumed run may change: they do not change what a step computes."""


def prepare_folder(
    model_dir: Path, config: ExperimentConfig, *, config_dir: Path, resuming: bool, writes: bool = True
) -> tuple[ExperimentConfig, dict[str, str]]:
    """Copy units, trees, CMVN and BPE model into `model_dir` and write `train.yaml`.

    Args:
        config_dir: the folder of the config. The base names in the `train.yaml` of an experiment refer to it.
        resuming: whether the folder's own config and files must be equal to these.
        writes: whether this rank writes the folder; other ranks neither write nor compare it.

    Returns: the config with base names, and SHA-256 of each copied file by name, and of the settings as `config`.
    Raises: ConfigError if `resuming` and the config or one of these files differs from that of the run to resume.
    """
    config, sources = _with_folder_names(config, config_dir)
    contents = {name: _read(source) for name, source in sources.items()}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    hashes = {**sums, "config": _config_sha256(config)}
    if not writes:
        return config, hashes
    if resuming:
        _refuse_changes(model_dir, config, sources, contents)
    for name, content in contents.items():
        if sources[name].resolve() != (model_dir / name).resolve():
            write_atomic(model_dir / name, content)
    of_files = {f"{SHA256_OF}{name}": sha256 for name, sha256 in sums.items()}
    dump_config(config, model_dir / "train.yaml", provenance={**_provenance(), **of_files})
    return config, hashes


def _with_folder_names(config: ExperimentConfig, config_dir: Path) -> tuple[ExperimentConfig, dict[str, Path]]:
    """The config with the file names of an experiment folder, and the source of the file of each name."""
    if config.tokenizer_conf.symbol_table_path is None:
        raise ConfigError("tokenizer_conf.symbol_table_path: not set; name the units.txt that `wenet-hs units` made")
    sources: dict[str, Path] = {}

    def renamed(section: Section, **names: str) -> Section:
        changes = {}
        for setting, name in names.items():
            path = getattr(section, setting, None)
            if path is not None:
                changes[setting], sources[name] = name, _locate(Path(path), config_dir)
        return section.model_copy(update=changes)

    changes: dict[str, object] = {
        "tokenizer_conf": renamed(config.tokenizer_conf, symbol_table_path="units.txt", bpe_path="bpe.model")
    }
    if config.cmvn is not None:
        changes["cmvn_conf"] = renamed(config.cmvn_conf, cmvn_file="global_cmvn")
    changes["head_conf"] = renamed(config.head_conf, tree=TREE_FILES["head_conf"])
    ctc_head = renamed(config.ctc_conf.head_conf, tree=TREE_FILES["ctc_conf.head_conf"])
    changes["ctc_conf"] = config.ctc_conf.model_copy(update={"head_conf": ctc_head})
    return config.model_copy(update=changes), sources


def _locate(path: Path, config_dir: Path) -> Path:
    """A base name that is not in the working folder refers to the folder of the config; other paths are unchanged."""
    is_base_name = path.name == str(path)
    return config_dir / path if is_base_name and not path.exists() and (config_dir / path).exists() else path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); check the path in the config") from error


def _refuse_changes(
    model_dir: Path, config: ExperimentConfig, sources: dict[str, Path], contents: dict[str, bytes]
) -> None:
    faults = [
        f"{model_dir / 'train.yaml'}: {key} was {old!r}, is now {new!r}"
        for key, old, new in config_changes(load_config(model_dir / "train.yaml"), config)
        if key not in FREE_TO_CHANGE
    ]
    for name, content in contents.items():
        if not (model_dir / name).is_file():
            faults.append(f"{model_dir / name}: is missing")
        elif (found := (model_dir / name).read_bytes()) != content:
            pairs = enumerate(itertools.zip_longest(found.split(b"\n"), content.split(b"\n")), start=1)
            number = next(number for number, (line, other) in pairs if line != other)
            faults.append(f"{model_dir / name}: differs from {sources[name]} (line {number} is the first)")
    if faults:
        advice = "; a resumed run must be the same: restore it, or use another --model_dir"
        raise ConfigError("\n".join(fault + advice for fault in faults))


def _config_sha256(config: ExperimentConfig) -> str:
    """SHA-256 of the settings that a resumed run may not change. Settings at their defaults are not in it: a later
    release may have more of them."""
    changes = config_changes(ExperimentConfig(), config)
    fixed = {key: value for key, _, value in changes if key not in FREE_TO_CHANGE}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def _provenance() -> dict[str, str]:
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "git": _git_hash(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        **{name: version(name) for name in ("wenet_hs", "torch", "torchaudio")},
    }


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
