# SPDX-License-Identifier: Apache-2.0
"""Builds the objects of a training from its config and flags: model, optimizer, data sets."""

import difflib
import importlib.util
import itertools
import logging
import os
import shlex
import shutil
import sysconfig
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from wenet_hs.build import build_from_folder, check_routes, read_units
from wenet_hs.config.schema import ExperimentConfig, ModelConf
from wenet_hs.data.cmvn import read_cmvn
from wenet_hs.data.dataset import SpeechDataset
from wenet_hs.data.shards import DataType, open_lists
from wenet_hs.data.table import UtteranceTable
from wenet_hs.devices import has_native_bf16, has_native_fp16
from wenet_hs.distributed import World
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.files import write_atomic
from wenet_hs.model import AsrModel
from wenet_hs.nn.conformer import ConformerLayer, TransformerEncoderLayer
from wenet_hs.nn.transformer import TransformerDecoderLayer
from wenet_hs.text.tokenizer import Tokenizer, check_units
from wenet_hs.text.units import UnitTable
from wenet_hs.train.optim import Precision, build_optimizer
from wenet_hs.train.state import TrainState

logger = logging.getLogger(__name__)

COMPILED_LAYERS = (ConformerLayer, TransformerEncoderLayer, TransformerDecoderLayer)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The flags of `wenet-hs train`."""

    config: Path
    train_data: Sequence[Path]
    cv_data: Path
    model_dir: Path
    override_config: Sequence[str] = ()
    resume: str = "auto"
    checkpoint: Path | None = None
    device: str = "auto"
    data_type: DataType = "raw"


@dataclass(frozen=True)
class Parts:
    """The objects of a training."""

    state: TrainState
    train_set: SpeechDataset
    valid_set: SpeechDataset
    units: UnitTable


def load_parts(config: ExperimentConfig, options: TrainOptions, hashes: Mapping[str, str], world: World) -> Parts:
    """Build a fresh model, frozen and compiled as the config says, its optimizer and the data sets.

    Args:
        config: with base names, which refer to `options.model_dir`.
        hashes: SHA-256 of the settings and of the files in the folder, by name.
        world: the ranks that train together; rank 0 reports the utterances that are not used.
    """
    model_dir, device, where = options.model_dir, world.device, str(options.config)
    check_routes(config, device)
    table, tokenizer = read_units(config, model_dir / "units.txt", where=where)
    check_units(config.tokenizer, table, config.tokenizer_conf.symbol_table_path or "units.txt")
    torch.manual_seed(config.seed)
    cmvn = read_cmvn(model_dir / "global_cmvn") if config.cmvn else None
    model = build_from_folder(config, table, model_dir, cmvn=cmvn)
    freeze(model, config.freeze, where=where)
    check_losses_reach_parameters(model, config.model_conf, where=where)
    model = model.to(device)
    if config.compile:
        compile_layers(model, device, where=where)
    train_list = open_lists(options.train_data, options.data_type)
    valid_list = open_lists((options.cv_data,), options.data_type, flag="--cv_data")
    train_set = _dataset(train_list, tokenizer, config, model, training=True)
    valid_set = _dataset(valid_list, tokenizer, config, model, training=False)
    if world.is_first:
        _report_rejected(train_set, "--train_data", model_dir / "train_rejected.tsv")
        _report_rejected(valid_set, "--cv_data", model_dir / "cv_rejected.tsv")
    fingerprint = {**hashes, "training list": train_list.digest, "validation list": valid_list.digest}
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


def resolve_dtype(config: ExperimentConfig, device: torch.device, *, where: Path) -> ExperimentConfig:
    """The config with `dtype: auto` replaced. It is then written to train.yaml, so a resumed run computes alike.

    Raises ConfigError for fp16 where the device would emulate it. `where`: the file of the config.
    """
    if config.dtype == "fp16" and not has_native_fp16(device):
        raise ConfigError(
            f"{where}: dtype: fp16 is emulated by this processor, some 50 times slower than fp32; use bf16 or fp32, or "
            "--device cuda"
        )
    if config.dtype != "auto":
        return config
    return config.model_copy(update={"dtype": "bf16" if has_native_bf16(device) else "fp32"})


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


def _report_rejected(dataset: SpeechDataset, flag: str, path: Path) -> None:
    """Write the utterances that are not used to `path`, and log their number and the unknown units.

    Raises DataError if no utterance is left.
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
        logger.warning(
            "%s: %d units of transcripts are not in units.txt and are replaced by <unk>: %s", flag, num, often
        )


def freeze(model: AsrModel, names: Sequence[str], *, where: str) -> None:
    """Exclude the parameters that `names` name, or whose names begin so, from training. Call it before the optimizer.

    They get no gradient and no optimizer state. A module that is named, with all its submodules, stays in evaluation
    mode: its batch normalization uses its running statistics and does not change them, and it has no dropout.

    Args:
        names: beginnings of names in the state_dict, up to a dot: `encoder.encoders.1` is not the eleventh layer.
        where: the file of the config, for error messages.

    Raises: ConfigError if no parameter has such a name, or no parameter is left to train.
    """
    if not names:
        return
    parameters = dict(model.named_parameters())
    known = list(dict.fromkeys(beginning for name in parameters for beginning in _beginnings(name)))
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=5) or [other for other in known if "." not in other]
            raise ConfigError(
                f"{where}: freeze: no parameter is called {name!r} or begins so; did you mean {' or '.join(near)}?"
            )
    frozen = {name: value for name, value in parameters.items() if any(part in names for part in _beginnings(name))}
    if len(frozen) == len(parameters):
        raise ConfigError(f"{where}: freeze: holds every parameter, so that nothing is left to train; remove a name")
    for value in frozen.values():
        value.requires_grad_(False)
    modules = {name for name, _ in model.named_modules()}
    model.frozen = tuple(name for name in names if name in modules)
    model.train(model.training)
    counts = [sum(value.numel() for value in chosen.values()) for chosen in (frozen, parameters)]
    logger.info("frozen: %s: %d of %d parameters are not trained", ", ".join(names), *counts)


def _beginnings(name: str) -> Iterable[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`."""
    return itertools.accumulate(name.split("."), lambda start, part: f"{start}.{part}")


def check_losses_reach_parameters(model: AsrModel, conf: ModelConf, *, where: str) -> None:
    """Raise ConfigError if at some step no trained parameter affects the loss: there would be no gradient."""
    final = conf.ctc_weight if conf.ctc_weight_final is None else conf.ctc_weight_final
    weights = {"ctc_weight": conf.ctc_weight, "ctc_weight_final": final}
    if conf.ctc_only_steps:
        weights["ctc_only_steps"] = 1.0
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    has_reverse = conf.reverse_weight > 0
    for key, weight in weights.items():
        used = ["encoder."]
        used += ["ctc."] if weight > 0 else []
        used += ["decoder.", "head.", *(["right_head."] if has_reverse else [])] if weight < 1 else []
        unused = () if has_reverse else ("decoder.right_decoder.",)
        if not any(name.startswith(tuple(used)) and not name.startswith(unused) for name in trained):
            raise ConfigError(
                f"{where}: freeze: nothing that is left to train has a part in the loss while model_conf.{key} makes "
                f"CTC's share {weight:g}; remove a name"
            )


def compile_layers(model: nn.Module, device: torch.device, *, where: str) -> None:
    """Compile every layer of encoder and decoder when it is first called. `where`: the file of the config.

    Layers are compiled in place, so parameters keep their names, and checkpoints do not depend on it. Layers of one
    class share their code. Lengths are dynamic. Raises ConfigError if the tools to compile with are missing.
    """
    missing = missing_tool(device)
    if missing is not None:
        raise ConfigError(f"{where}: compile: true needs {missing}; install it, or set compile: false")
    for module in model.modules():
        if isinstance(module, COMPILED_LAYERS):
            module.compile(dynamic=True)


def missing_tool(device: torch.device) -> str | None:
    """The tool that torch.compile lacks to make kernels for the device; None if nothing is missing."""
    compiler = shlex.split(os.environ.get("CXX", "g++"))[0]
    if shutil.which(compiler) is None:
        return f"a C++ compiler ({compiler} is not found)"
    if device.type == "cuda":
        return None if importlib.util.find_spec("triton") else "Triton (the package triton is not found)"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return None if header.exists() else f"Python's headers ({header} is not found)"
