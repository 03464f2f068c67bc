# SPDX-License-Identifier: Apache-2.0
"""The experiment folder: complete from the start, so that it can be moved and decoded elsewhere; one run at a time."""

import fcntl
import hashlib
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from wenet_hs.config.load import config_changes, dump_config, load_config
from wenet_hs.config.schema import ExperimentConfig, HSoftmaxHeadConf
from wenet_hs.errors import CheckpointError, ConfigError
from wenet_hs.files import write_atomic

logger = logging.getLogger(__name__)

FREE_TO_CHANGE = frozenset(
    {"max_epoch", "max_minutes", "log_interval", "save_interval", "keep_checkpoints", "num_workers", "provenance"}
)
"""Keys of a config that a resumed run may change: they do not alter what a step computes."""


@contextmanager
def locked(model_dir: Path) -> Iterator[None]:
    """Hold the folder for this process. Raises CheckpointError if another run is writing there."""
    model_dir.mkdir(parents=True, exist_ok=True)
    with (model_dir / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"{model_dir}: another training writes here; wait for it or use another folder"
            ) from error
        yield


def prepare_folder(model_dir: Path, config: ExperimentConfig, *, resuming: bool) -> ExperimentConfig:
    """Copy units, tree, CMVN and BPE model into `model_dir`, write `train.yaml`, and return the config with base names.

    Raises ConfigError if `resuming` and the config or one of these files is not that of the run to be resumed.
    """
    sources = _sources(config)
    config = _with_base_names(config)
    if resuming:
        _refuse_changes(model_dir, config, sources)
    for name, source in sources.items():
        if source.resolve() != (model_dir / name).resolve():
            write_atomic(model_dir / name, _read(source))
    dump_config(config, model_dir / "train.yaml", provenance=_provenance())
    return config


def _sources(config: ExperimentConfig) -> dict[str, Path]:
    """The files that the config names, by the name each gets in the experiment folder."""
    sources: dict[str, Path] = {}
    table = config.tokenizer_conf.symbol_table_path
    if table is None:
        raise ConfigError("tokenizer_conf.symbol_table_path: not set; name the units.txt that `wenet-hs units` made")
    sources["units.txt"] = Path(table)
    if config.tokenizer_conf.bpe_path is not None:
        sources["bpe.model"] = Path(config.tokenizer_conf.bpe_path)
    if config.cmvn is not None:
        if config.cmvn_conf.cmvn_file is None:
            raise ConfigError(
                "cmvn_conf.cmvn_file: not set; name the file that `wenet-hs cmvn` made, or set cmvn: null"
            )
        sources["global_cmvn"] = Path(config.cmvn_conf.cmvn_file)
    if isinstance(config.head_conf, HSoftmaxHeadConf):
        sources["tree.json"] = Path(config.head_conf.tree)
    return sources


def _with_base_names(config: ExperimentConfig) -> ExperimentConfig:
    bpe = None if config.tokenizer_conf.bpe_path is None else "bpe.model"
    tokenizer = config.tokenizer_conf.model_copy(update={"symbol_table_path": "units.txt", "bpe_path": bpe})
    changes: dict[str, object] = {"tokenizer_conf": tokenizer}
    if config.cmvn is not None:
        changes["cmvn_conf"] = config.cmvn_conf.model_copy(update={"cmvn_file": "global_cmvn"})
    if isinstance(config.head_conf, HSoftmaxHeadConf):
        changes["head_conf"] = config.head_conf.model_copy(update={"tree": "tree.json"})
    return config.model_copy(update=changes)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); check the path in the config") from error


def _refuse_changes(model_dir: Path, config: ExperimentConfig, sources: dict[str, Path]) -> None:
    faults = [
        f"{model_dir / 'train.yaml'}: {key} was {old!r}, is now {new!r}"
        for key, old, new in config_changes(load_config(model_dir / "train.yaml"), config)
        if key.split(".")[0] not in FREE_TO_CHANGE
    ]
    for name, source in sources.items():
        if not (model_dir / name).is_file() or (model_dir / name).read_bytes() != _read(source):
            faults.append(f"{model_dir / name}: differs from {source}")
    if faults:
        advice = "; a resumed run must be the same: restore the setting, or use another --model_dir"
        raise ConfigError("\n".join(fault + advice for fault in faults))


def _provenance() -> dict[str, str]:
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "git": _git_hash(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        **{name: version(name) for name in ("wenet_hs", "torch", "torchaudio")},
    }


def _git_hash() -> str:
    """The commit of the source tree, with "-dirty" if it was changed; "unknown" for an installed package."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
