# SPDX-License-Identifier: Apache-2.0
"""From the flags to all that training needs: the model and its optimizer, the data, the weights to begin with."""

import itertools
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from wenet_hs.build import build_model, initialize_from
from wenet_hs.build_heads import TREE_FILES, check_routes, read_tree, tree_paths
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.cmvn import read_cmvn
from wenet_hs.data.dataset import SpeechDataset
from wenet_hs.data.listing import DataType, UtteranceTable, open_lists
from wenet_hs.errors import CheckpointError, DataError
from wenet_hs.files import write_atomic
from wenet_hs.model import AsrModel
from wenet_hs.text.tokenize import Tokenizer, make_tokenizer
from wenet_hs.text.units import UnitTable, check_special
from wenet_hs.train.checkpoint import MANIFEST, damage, list_checkpoints, newest_good, set_newer_aside
from wenet_hs.train.optim import build_optimizer
from wenet_hs.train.state import TrainState, progress_of

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


def load_parts(
    config: ExperimentConfig, options: TrainOptions, files: Mapping[str, str], device: torch.device
) -> Parts:
    """A fresh model, its optimizer and the data, from the experiment folder that `config` belongs to.

    Args:
        config: with base names.
        files: SHA-256 of the files in the folder, by name.
    """
    check_routes(config, device)
    model_dir = options.model_dir
    table = UnitTable.read(model_dir / "units.txt")
    special = {str(name): unit_id for name, unit_id in (config.tokenizer_conf.special_tokens or {}).items()}
    check_special(table, special, f"{options.config}: tokenizer_conf")
    tokenizer = make_tokenizer(config.tokenizer, table, model_dir / "bpe.model" if "bpe.model" in files else None)
    torch.manual_seed(config.seed)
    trees = {section: read_tree(model_dir / TREE_FILES[section], table.units) for section in tree_paths(config)}
    model = build_model(
        config,
        len(table),
        table.special,
        tree=trees.get("head_conf"),
        ctc_tree=trees.get("ctc_conf.head_conf"),
        units=table.units,
        cmvn=read_cmvn(model_dir / "global_cmvn") if config.cmvn else None,
    ).to(device)
    train_list = open_lists(options.train_data, options.data_type)
    valid_list = open_lists((options.cv_data,), options.data_type, flag="--cv_data")
    train_set = _dataset(train_list, tokenizer, config, model, training=True)
    valid_set = _dataset(valid_list, tokenizer, config, model, training=False)
    _account(train_set, "--train_data", model_dir / "train_rejected.tsv")
    _account(valid_set, "--cv_data", model_dir / "cv_rejected.tsv")
    fingerprint = {**files, "training list": train_list.digest, "validation list": valid_list.digest}
    return Parts(
        TrainState(model, build_optimizer(model, config), device, fingerprint=fingerprint), train_set, valid_set, table
    )


def take_weights(model: AsrModel, checkpoint: Path, units: UnitTable) -> None:
    """Begin with the weights of `--checkpoint`: a file, a checkpoint folder, or a model folder, ours or WeNet's.

    Raises CheckpointError if they are damaged, of another model or of other units.
    """
    path = checkpoint
    if (checkpoint / MANIFEST).exists():
        fault = damage(checkpoint)
        if fault is not None:
            raise CheckpointError(f"--checkpoint {checkpoint}: {fault}; use another checkpoint")
    elif checkpoint.is_dir():
        path = checkpoint / "final.pt"
    _refuse_other_units(path, units)
    new = initialize_from(model, path)
    logger.info("weights from %s; new: %s", path, ", ".join(new) or "none")


def _refuse_other_units(checkpoint: Path, units: UnitTable) -> None:
    """Weights of as many units in another order would load, and be wrong: compare with the table beside them."""
    folder = checkpoint.absolute().parents[1 if checkpoint.is_dir() else 0]
    if not (folder / "units.txt").is_file():
        return
    theirs = UnitTable.read(folder / "units.txt")
    for unit_id, (their, our) in enumerate(itertools.zip_longest(theirs.units, units.units)):
        if their != our:
            raise CheckpointError(
                f"--checkpoint {checkpoint}: trained with other units ({folder / 'units.txt'}: {len(theirs)}, here "
                f"{len(units)}; first difference: {unit_id} is {their!r}, here {our!r}); use the same units.txt"
            )


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
