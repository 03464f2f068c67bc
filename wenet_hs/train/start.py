# SPDX-License-Identifier: Apache-2.0
"""From the flags to all that training needs: the checkpoint to go on from, a fresh model, its optimizer, the data."""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from wenet_hs.build import build_from_folder, check_routes, read_units
from wenet_hs.checkpoint import damage, list_checkpoints, newest_good, set_newer_aside
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.cmvn import read_cmvn
from wenet_hs.data.dataset import SpeechDataset
from wenet_hs.data.shards import DataType, open_lists
from wenet_hs.data.table import UtteranceTable
from wenet_hs.distributed import World
from wenet_hs.errors import CheckpointError, DataError
from wenet_hs.files import write_atomic
from wenet_hs.model import AsrModel
from wenet_hs.text.tokenizer import Tokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.train.compiled import compile_layers
from wenet_hs.train.folder import config_sha256
from wenet_hs.train.freeze import check_reached, freeze
from wenet_hs.train.optim import build_optimizer
from wenet_hs.train.precision import Precision
from wenet_hs.train.state import CONFIG, TrainState, progress_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The flags of `wenet-hs train`."""

    config: Path
    train_data: tuple[Path, ...]
    cv_data: Path
    model_dir: Path
    overrides: tuple[str, ...] = ()
    resume: str = "auto"
    checkpoint: Path | None = None
    device: str = "auto"
    data_type: DataType = "raw"


@dataclass(frozen=True)
class Parts:
    """What a session works with."""

    state: TrainState
    train_set: SpeechDataset
    valid_set: SpeechDataset
    units: UnitTable


def find_resume(options: TrainOptions) -> Path | None:
    """The checkpoint to go on from, by `--resume`; None starts anew. Raises CheckpointError if that costs a model."""
    folder = options.model_dir / "checkpoints"
    if options.resume not in ("auto", "never"):
        return _named_checkpoint(Path(options.resume), folder)
    if options.resume == "never" and list_checkpoints(folder):
        raise CheckpointError(
            f"{folder}: holds checkpoints and --resume is never; use another --model_dir or remove it"
        )
    newest = newest_good(folder)
    if newest is None and (options.model_dir / "final.pt").exists():
        final = options.model_dir / "final.pt"
        raise CheckpointError(f"{final}: a model is here, but no checkpoint to go on from; use another --model_dir")
    return newest


def _named_checkpoint(path: Path, folder: Path) -> Path:
    if not path.is_dir():
        raise CheckpointError(f"--resume {path}: no such folder; use auto, never, or one of {folder}/step-*")
    if path.resolve() not in [checkpoint.resolve() for checkpoint in list_checkpoints(folder)]:
        raise CheckpointError(
            f"--resume {path}: is not one of {folder}/step-*; to start anew from its weights use --checkpoint"
        )
    fault = damage(path)
    if fault is not None:
        raise CheckpointError(f"--resume {path}: {fault}; use an earlier checkpoint")
    progress_of(path)
    set_newer_aside(folder / path.name)
    return folder / path.name


def load_parts(config: ExperimentConfig, options: TrainOptions, files: Mapping[str, str], world: World) -> Parts:
    """A fresh model, frozen where the config says, its optimizer and the data, from the folder of `config`.

    Args:
        config: with base names.
        files: SHA-256 of the files in the folder, by name.
        world: the ranks that train together; the first one writes and says what is left out of the lists.
    """
    model_dir, device = options.model_dir, world.device
    check_routes(config, device)
    table, tokenizer = read_units(config, model_dir / "units.txt", where=str(options.config))
    torch.manual_seed(config.seed)
    cmvn = read_cmvn(model_dir / "global_cmvn") if config.cmvn else None
    model = build_from_folder(config, table, model_dir, cmvn=cmvn)
    freeze(model, config.freeze, where=str(options.config))
    check_reached(model, config.model_conf, where=str(options.config))
    model = model.to(device)
    if config.compile:
        compile_layers(model, device, where=options.config)
    train_list = open_lists(options.train_data, options.data_type)
    valid_list = open_lists((options.cv_data,), options.data_type, flag="--cv_data")
    train_set = _dataset(train_list, tokenizer, config, model, training=True)
    valid_set = _dataset(valid_list, tokenizer, config, model, training=False)
    if world.is_first:
        _account(train_set, "--train_data", model_dir / "train_rejected.tsv")
        _account(valid_set, "--cv_data", model_dir / "cv_rejected.tsv")
    lists = {"training list": train_list.digest, "validation list": valid_list.digest}
    fingerprint = {**files, **lists, CONFIG: config_sha256(config)}
    state = TrainState(
        model,
        build_optimizer(model, config),
        device,
        fingerprint=fingerprint,
        precision=Precision(config.dtype, device),
        world=world,
        seed=config.seed,
    )
    return Parts(state, train_set, valid_set, table)


def _dataset(
    utterances: UtteranceTable, tokenizer: Tokenizer, config: ExperimentConfig, model: AsrModel, *, training: bool
) -> SpeechDataset:
    return SpeechDataset(
        utterances,
        tokenizer,
        config.dataset_conf,
        training=training,
        seed=config.seed,
        subsampled_length=model.encoder.subsampled_length,
    )


def _account(dataset: SpeechDataset, flag: str, path: Path) -> None:
    """Say what is not used, and which units are unknown; nothing is left out in silence.

    Raises DataError if nothing is left.
    """
    total = len(dataset) + len(dataset.rejected)
    write_atomic(path, "".join(f"{key}\t{reason}\n" for key, reason in dataset.rejected))
    reasons = Counter(reason.split(":")[0] for _, reason in dataset.rejected)
    listed = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    if not len(dataset):
        raise DataError(f"{flag}: none of its {total} utterances can be used: {listed}; see {path}")
    if dataset.rejected:
        logger.warning(
            "%s: %d of %d utterances are left out: %s; see %s", flag, len(dataset.rejected), total, listed, path
        )
    else:
        logger.info("%s: all %d utterances are used", flag, total)
    if dataset.unknown:
        often = ", ".join(f"{unit!r} {count}" for unit, count in dataset.unknown.most_common(5))
        num = dataset.unknown.total()
        logger.warning("%s: %d times a unit is not in units.txt and stands as <unk>: %s", flag, num, often)
