# SPDX-License-Identifier: Apache-2.0
"""The experiment folder: complete from the start, so that it can be moved and decoded elsewhere."""

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

from wenet_hs.build import SHA256_OF, TREE_FILES, tree_paths
from wenet_hs.config.load import config_changes, dump_config, load_config
from wenet_hs.config.schema import ExperimentConfig, SoftmaxHeadConf
from wenet_hs.errors import ConfigError
from wenet_hs.files import write_atomic

FREE_TO_CHANGE = frozenset(
    {
        *("max_epoch", "max_minutes", "log_interval", "save_interval", "keep_checkpoints", "num_workers"),
        *("keep_best", "keep_best_by"),
        *("early_stopping.metric", "early_stopping.patience", "early_stopping.min_delta"),
        *("dataset_conf.max_bad_clips", "encoder_conf.gradient_checkpointing", "decoder_conf.gradient_checkpointing"),
    }
)
"""Keys of a config that a resumed run may change: they do not alter what a step computes."""


def prepare_folder(
    model_dir: Path, config: ExperimentConfig, *, config_dir: Path, resuming: bool, writes: bool = True
) -> tuple[ExperimentConfig, dict[str, str]]:
    """Copy units, trees, CMVN and BPE model into `model_dir` and write `train.yaml`.

    Args:
        config_dir: the folder of the config, where the base names in the `train.yaml` of an experiment are at home.
        resuming: whether the folder's own config and files must be equal to these.
        writes: whether this rank has the folder in its hands; without, it is neither written nor compared.

    Returns: the config with base names, and the SHA-256 of each copied file by its name.
    Raises: ConfigError if `resuming` and the config or one of these files is not that of the run to be resumed.
    """
    sources = {name: _located(path, config_dir) for name, path in _sources(config).items()}
    contents = {name: _read(source) for name, source in sources.items()}
    config = _with_base_names(config)
    files = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    if not writes:
        return config, files
    if resuming:
        _refuse_changes(model_dir, config, sources, contents)
    for name, content in contents.items():
        if sources[name].resolve() != (model_dir / name).resolve():
            write_atomic(model_dir / name, content)
    sums = {f"{SHA256_OF}{name}": sha256 for name, sha256 in files.items()}
    dump_config(config, model_dir / "train.yaml", provenance={**_provenance(), **sums})
    return config, files


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
        assert config.cmvn_conf.cmvn_file is not None  # the schema asks for it
        sources["global_cmvn"] = Path(config.cmvn_conf.cmvn_file)
    return sources | {TREE_FILES[section]: Path(path) for section, path in tree_paths(config).items()}


def _located(path: Path, config_dir: Path) -> Path:
    """A base name that is not in the working folder is one beside the config; any other path is what it says."""
    is_base_name = path.name == str(path)
    return config_dir / path if is_base_name and not path.exists() and (config_dir / path).exists() else path


def _with_base_names(config: ExperimentConfig) -> ExperimentConfig:
    bpe = None if config.tokenizer_conf.bpe_path is None else "bpe.model"
    tokenizer = config.tokenizer_conf.model_copy(update={"symbol_table_path": "units.txt", "bpe_path": bpe})
    changes: dict[str, object] = {"tokenizer_conf": tokenizer}
    if config.cmvn is not None:
        changes["cmvn_conf"] = config.cmvn_conf.model_copy(update={"cmvn_file": "global_cmvn"})
    if not isinstance(config.head_conf, SoftmaxHeadConf):
        changes["head_conf"] = config.head_conf.model_copy(update={"tree": TREE_FILES["head_conf"]})
    ctc_head = config.ctc_conf.head_conf
    if not isinstance(ctc_head, SoftmaxHeadConf):
        ctc_head = ctc_head.model_copy(update={"tree": TREE_FILES["ctc_conf.head_conf"]})
        changes["ctc_conf"] = config.ctc_conf.model_copy(update={"head_conf": ctc_head})
    return config.model_copy(update=changes)


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
        elif (model_dir / name).read_bytes() != content:
            where = _first_difference((model_dir / name).read_bytes(), content)
            faults.append(f"{model_dir / name}: differs from {sources[name]}{where}")
    if faults:
        advice = "; a resumed run must be the same: restore it, or use another --model_dir"
        raise ConfigError("\n".join(fault + advice for fault in faults))


def _first_difference(ours: bytes, theirs: bytes) -> str:
    """The first line in which two files differ, for a message; what is not text shows as escapes."""
    pairs = itertools.zip_longest(ours.split(b"\n"), theirs.split(b"\n"))
    number, line, other = next((n, a, b) for n, (a, b) in enumerate(pairs, start=1) if a != b)
    shown = [
        "is missing" if text is None else f"is {text[:40].decode('utf-8', 'backslashreplace')!r}"
        for text in (line, other)
    ]
    return f" (line {number} {shown[0]}, there it {shown[1]})"


def config_sha256(config: ExperimentConfig) -> str:
    """Of the settings that a resumed run may not change, but for those at their defaults: a later release has more."""
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
    if not (source_tree / ".git").exists():  # or git would name whatever repository the environment stands in
        return "unknown"
    command = ["git", "-C", str(source_tree), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
