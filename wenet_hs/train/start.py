# SPDX-License-Identifier: Apache-2.0
"""What the options of a training name: config, lists, first weights, checkpoint to resume.

Each is read here, once. Later functions get what was read, and no options.
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
    """Whether the batch size of the config is that of all ranks together."""
    resume: str = "auto"
    """auto, never, or the path of a checkpoint."""
    checkpoint: Path | None = None
    """The trained model whose weights a new training starts with."""
    device: str = "auto"
    data_type: DataType = "raw"


@dataclass(frozen=True, kw_only=True)
class ListPaths:
    """The lists of a training: data lists, or texts for a language model."""

    train: tuple[Path, ...]
    valid: Path
    data_type: DataType = "raw"
    """The form of the data lists; it has no meaning for texts."""


@dataclass(frozen=True, kw_only=True)
class BasePath:
    """The place of the trained model that `--checkpoint` names."""

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
    """The settings of the file, with those of the flags in their place."""
    lists: ListPaths
    base: BasePath | None
    """The trained model to start from; None: random weights, or those of a pretrained encoder."""
    resume: str
    """auto, never, or the path of a checkpoint; see `find_earlier_training`."""


@dataclass(frozen=True, kw_only=True)
class EarlierTraining(Generic[Config]):
    """The training in the model folder that is resumed."""

    checkpoint: Path
    """The folder of the checkpoint to resume from."""
    config_file: Path
    """The train.yaml of the model folder."""
    config: Config
    """The settings in that file."""


def find_base(checkpoint: Path | None) -> BasePath | None:
    """The trained model that `--checkpoint` names; None without the flag.

    A packed model is unpacked, and one on Hugging Face is downloaded. This may last longer than the
    ranks wait for each other in a collective: call it before they join the process group.
    Raises CheckpointError or ConfigError if there is no such model.
    """
    if checkpoint is None:
        return None
    return BasePath(path=resolve_model(checkpoint), name=str(checkpoint))


def read_request(
    options: TrainOptions, base: BasePath | None, num_ranks: int, kind: type[Config]
) -> TrainingRequest[Config]:
    """Read the config, and collect what else the options ask for.

    Args:
        base: the model of `--checkpoint`, found by `find_base`.
        num_ranks: the number of ranks among which `--divide_batch` divides a batch.
        kind: the class of the config.
    Raises: ConfigError with each fault in the config and in the settings of the flags.
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
    """The config of the file, with the settings of the flags in their place.

    With `--divide_batch` and several ranks the batch size is divided by their number: the config
    then states the batches of one rank, and a resumed run must have the same ones.
    Raises ConfigError with each fault in the config and in the settings of the flags.
    """
    file_settings = read_yaml(options.config)
    overrides = [*_cmvn_overrides(options, file_settings), *options.override_config]
    config = make_config(file_settings, overrides, kind)
    if not (options.divide_batch and num_ranks > 1):
        return config
    assert isinstance(config, ExperimentConfig)  # only `train` has this flag, `lm train` has not
    batch_setting = divide_batch(config.dataset_conf.batch_conf, num_ranks)  # `key=value`
    return make_config(file_settings, [*overrides, batch_setting], kind)


def _cmvn_overrides(options: TrainOptions, file_settings: Settings) -> list[str]:
    """The settings that `--cmvn` sets, as overrides of the config; none without the flag.

    A pretrained encoder does not use the statistics: then there are none either, and a line of the
    log says so.
    """
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
    """The training to resume, as `--resume` says; None: a new one begins.

    Every rank must call it. Rank 0 chooses the checkpoint for all. It removes incomplete files of a
    killed run from the folder, and with `auto` it renames damaged checkpoints.

    Args:
        resume: auto, never, or the path of a checkpoint.
        kind: the class of the config in the train.yaml of the folder.
    Raises: CheckpointError if a model would be overwritten, or the named checkpoint is not one of
        the folder or is damaged; ConfigError if that train.yaml cannot be read.
    """
    name: str | None = None
    # Rank 0 reads whole checkpoints here, which may last longer than a collective may.
    with world.first_before_others():
        if world.is_first:
            _remove_incomplete_files(model_dir)
            checkpoint = choose_checkpoint(model_dir, resume)
            name = None if checkpoint is None else checkpoint.name
    name_of_first_rank = world.all_gather(name)[0]
    if name_of_first_rank is None:
        return None
    config_file = model_dir / "train.yaml"
    return EarlierTraining(
        checkpoint=model_dir / "checkpoints" / name_of_first_rank,
        config_file=config_file,
        config=load_config(config_file, (), kind),
    )


def _remove_incomplete_files(model_dir: Path) -> None:
    """Remove the checkpoints and the final.pt that a killed run was writing."""
    remove_incomplete(model_dir / "checkpoints")
    for path in model_dir.glob(".final.pt.*.tmp"):
        path.unlink()


def choose_checkpoint(model_dir: Path, resume: str) -> Path | None:
    """The checkpoint to resume from; None if the folder has none, so that a new training begins.

    Args:
        resume: `auto` for the newest intact checkpoint; damaged ones that are newer are renamed.
            `never` for a new training; or the path of one of the folder's checkpoints.
    Raises: CheckpointError if a new training would overwrite a model, or the named checkpoint is
        damaged or not one of the folder.
    """
    checkpoints = model_dir / "checkpoints"
    if resume not in ("auto", "never"):
        return _find_named_checkpoint(checkpoints, Path(resume))
    if resume == "never" and list_checkpoints(checkpoints):
        found = "holds checkpoints and --resume is never"
        raise CheckpointError(checkpoints, found, "use another --model_dir or remove it")
    newest = newest_intact(checkpoints)  # renames damaged ones
    final = model_dir / "final.pt"
    if newest is None and final.exists():
        found = "a model without checkpoints, so it cannot be resumed"
        raise CheckpointError(final, found, "use another --model_dir")
    return newest


def _find_named_checkpoint(checkpoints: Path, path: Path) -> Path:
    """The intact checkpoint in the folder `checkpoints` that `--resume PATH` names.

    Raises CheckpointError if it is not one of this folder, or is damaged.
    """
    paths_of_folder = [checkpoint.resolve() for checkpoint in list_checkpoints(checkpoints)]
    if path.resolve() not in paths_of_folder:
        found = f"not auto, never or one of {checkpoints}/step-*"
        raise CheckpointError(
            f"--resume {path}", found, "to start from its weights use --checkpoint"
        )
    # A damaged one is refused now, before the training renames the checkpoints after it.
    check_intact(path)
    read_frozen(path)
    return checkpoints / path.name
