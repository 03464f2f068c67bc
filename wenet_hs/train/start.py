# SPDX-License-Identifier: Apache-2.0
"""What the options of a training name: the config, the lists, the model and the checkpoint to start
from.

Each is read once. The functions that follow get what they need, and no options.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from wenet_hs.compute.distributed import World
from wenet_hs.config.load import Config, load_config, make_config, written_setting
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.config.yaml_file import Settings, read_yaml
from wenet_hs.data.divided_batch import divide_batch
from wenet_hs.data.shards import DataType
from wenet_hs.model.checkpoint import (
    check_intact,
    list_checkpoints,
    newest_intact,
    read_frozen,
    remove_incomplete,
)
from wenet_hs.model.packed import resolve_model
from wenet_hs.tree.errors import CheckpointError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of `wenet-hs train` and `wenet-hs lm train`, as they are written."""

    config: Path
    train_data: Sequence[Path]
    """Data lists; for a language model texts."""
    cv_data: Path
    model_dir: Path
    override_config: Sequence[str] = ()
    cmvn: str | None = None
    """The file of the feature statistics, which a pretrained encoder does not use."""
    divide_batch: bool = False
    resume: str = "auto"
    """auto, never, or the path of a checkpoint."""
    checkpoint: Path | None = None
    device: str = "auto"
    data_type: DataType = "raw"


@dataclass(frozen=True, kw_only=True)
class ListPaths:
    """The lists of a training: data lists, or texts for a language model."""

    train: tuple[Path, ...]
    valid: Path
    data_type: DataType = "raw"
    """Of data lists."""


@dataclass(frozen=True, kw_only=True)
class BasePath:
    """Where the trained model is that `--checkpoint` names."""

    path: Path
    """A file or folder on this machine."""
    name: str
    """As it was written, such as `hf://user/name`."""


@dataclass(frozen=True, kw_only=True)
class TrainingRequest(Generic[Config]):
    """What a training is asked to do."""

    model_dir: Path
    config_file: Path
    """The file that the user names, for errors and for files that are named relative to it."""
    config: Config
    """With all settings of the flags."""
    lists: ListPaths
    base: BasePath | None
    resume: str
    """auto, never, or the path of a checkpoint; see `find_earlier_training`."""


@dataclass(frozen=True, kw_only=True)
class EarlierTraining(Generic[Config]):
    """The training in the model folder that is resumed."""

    checkpoint: Path
    config_file: Path
    config: Config


def find_base(checkpoint: Path | None) -> BasePath | None:
    """The trained model that `--checkpoint` names, unpacked or downloaded if necessary; None
    without the flag.

    This may last longer than ranks wait for each other: call it before they do.
    Raises CheckpointError or ConfigError as `resolve_model` does.
    """
    if checkpoint is None:
        return None
    return BasePath(path=resolve_model(checkpoint), name=str(checkpoint))


def read_request(
    options: TrainOptions, base: BasePath | None, num_ranks: int, kind: type[Config]
) -> TrainingRequest[Config]:
    """Read the config, and sort the options.

    Args:
        kind: of the config.
        num_ranks: by which `--divide_batch` divides.
    Raises: ConfigError for each fault in the config and in the settings of the flags.
    """
    return TrainingRequest(
        model_dir=options.model_dir,
        config_file=options.config,
        config=read_config(options, num_ranks, kind),
        lists=ListPaths(
            train=tuple(options.train_data),
            valid=options.cv_data,
            data_type=options.data_type,
        ),
        base=base,
        resume=options.resume,
    )


def read_config(options: TrainOptions, num_ranks: int, kind: type[Config]) -> Config:
    """The config with all settings of the flags. Its file is read once.

    With `--divide_batch` the batches are those of one rank, which a resumed run must have again.
    """
    file_settings = read_yaml(options.config)
    overrides = [*_cmvn_overrides(options, file_settings), *options.override_config]
    config = make_config(file_settings, overrides, kind)
    if not (options.divide_batch and num_ranks > 1):
        return config
    assert isinstance(config, ExperimentConfig)
    of_rank = divide_batch(config.dataset_conf.batch_conf, num_ranks)
    return make_config(file_settings, [*overrides, of_rank], kind)


def _cmvn_overrides(options: TrainOptions, file_settings: Settings) -> list[str]:
    """The settings of `--cmvn`: none with a pretrained encoder, which a line of the log states."""
    if options.cmvn is None:
        return []
    if written_setting(file_settings, options.override_config, "encoder") == "pretrained":
        reason = "not used, a pretrained encoder normalizes its input itself"
        logger.info("--cmvn %s: %s", options.cmvn, reason)
        return []
    return ["cmvn=global_cmvn", f"cmvn_conf.cmvn_file={options.cmvn}"]


def find_earlier_training(
    model_dir: Path, resume: str, world: World, kind: type[Config]
) -> EarlierTraining[Config] | None:
    """The training to resume, by `--resume`; None: a new one begins. Every rank must call it.

    Rank 0 removes what a killed run left incomplete in the folder, and renames damaged checkpoints.

    Raises: CheckpointError if a model would be overwritten, or the named checkpoint is not one of
        the folder or is damaged; ConfigError if the train.yaml of the training to resume cannot be
        read.
    """
    checkpoint = None
    with (
        world.first_before_others()
    ):  # that reads whole checkpoints, maybe for longer than a collective may last
        if world.is_first:
            _remove_leftovers(model_dir)
            checkpoint = choose_checkpoint(model_dir, resume)
    name = world.all_gather(None if checkpoint is None else checkpoint.name)[0]
    if name is None:
        return None
    config_file = model_dir / "train.yaml"
    return EarlierTraining(
        checkpoint=model_dir / "checkpoints" / name,
        config_file=config_file,
        config=load_config(config_file, (), kind),
    )


def _remove_leftovers(model_dir: Path) -> None:
    """Remove what a killed run has not completed."""
    remove_incomplete(model_dir / "checkpoints")
    for path in model_dir.glob(".final.pt.*.tmp"):
        path.unlink()


def choose_checkpoint(model_dir: Path, resume: str) -> Path | None:
    """The checkpoint to resume from, by `--resume`; None if there is none.

    With `auto` damaged checkpoints are renamed.
    Raises CheckpointError if a model would be overwritten, or the named checkpoint is not one of
    the folder or is damaged.
    """
    checkpoints = model_dir / "checkpoints"
    if resume not in ("auto", "never"):
        return _named_checkpoint(checkpoints, Path(resume))
    if resume == "never" and list_checkpoints(checkpoints):
        found = "holds checkpoints and --resume is never"
        raise CheckpointError(checkpoints, found, "use another --model_dir or remove it")
    newest = newest_intact(checkpoints)
    final = model_dir / "final.pt"
    if newest is None and final.exists():
        found = "a model without checkpoints, so it cannot be resumed"
        raise CheckpointError(final, found, "use another --model_dir")
    return newest


def _named_checkpoint(checkpoints: Path, path: Path) -> Path:
    """The intact checkpoint of this folder that `--resume` names."""
    known = [checkpoint.resolve() for checkpoint in list_checkpoints(checkpoints)]
    if path.resolve() not in known:
        found = f"not auto, never or one of {checkpoints}/step-*"
        raise CheckpointError(
            f"--resume {path}", found, "to start from its weights use --checkpoint"
        )
    check_intact(path)  # before newer ones are set aside
    read_frozen(path)
    return checkpoints / path.name
