# SPDX-License-Identifier: Apache-2.0
"""The folder of a trained model: its layout, loading it, and the checks of its files.

    train.yaml  units.txt  [bpe.model]  [tree.json  ctc_tree.json]  [global_cmvn]  [encoder.json]
    checkpoints/  final.pt  metrics.jsonl

It is complete: it can be moved to another machine and decoded there.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from wenet_hs.base.files import file_sha256, refuse_lfs_pointer
from wenet_hs.config.encoders import PretrainedConf
from wenet_hs.config.heads import AdaptiveHeadConf, HeadConf, TreeHeadConf
from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig, TrainingConfig
from wenet_hs.frontends.base import Frontend
from wenet_hs.frontends.build import build_frontend
from wenet_hs.heads.gpu import is_gpu
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.build import AnyTree, Cmvn, build_model, state_cmvn
from wenet_hs.model.checkpoint import MANIFEST, load_weights, weights_path
from wenet_hs.model.encoders.description import (
    EncoderDescription,
    read_description,
    refuse_other_form,
)
from wenet_hs.model.encoders.kinds import differences
from wenet_hs.model.encoders.other_forms import hub_name_of
from wenet_hs.model.foreign_weights import check_num_units, read_model_weights
from wenet_hs.model.packed import WEIGHTS, resolve_model, unpacked_models
from wenet_hs.runs.curves import is_model_overfitted
from wenet_hs.runs.record import RUN_FILE, RunRecord, read_run
from wenet_hs.text.tokenizer import Tokenizer, make_tokenizer
from wenet_hs.text.units import UnitTable, check_special
from wenet_hs.tree.errors import CheckpointError, ConfigError, DataError, list_names, one_line
from wenet_hs.tree.tree import load_tree

logger = logging.getLogger(__name__)

TREE_FILES = {"head_conf": "tree.json", "ctc_conf.head_conf": "ctc_tree.json"}
"""Section of a config that names a tree → the file of the tree in an experiment folder."""

_TABLES = ("units.txt", "lang_char.txt", "words.txt")
"""Names that a unit table may have; WeNet's recipes use the last two."""


def head_confs(config: TrainingConfig) -> dict[str, HeadConf]:
    """Dotted section → its settings, for the head, and that of CTC in the config of a recogniser."""
    confs: dict[str, HeadConf] = {"head_conf": config.head_conf}
    if isinstance(config, ExperimentConfig):
        confs["ctc_conf.head_conf"] = config.ctc_conf.head_conf
    return confs


def head_names(config: TrainingConfig) -> dict[str, str]:
    """Dotted section of `head_confs` → the name of the head."""
    names = {"head_conf": config.head}
    if isinstance(config, ExperimentConfig):
        names["ctc_conf.head_conf"] = config.ctc_conf.head
    return names


def tree_paths(config: TrainingConfig) -> dict[str, str]:
    """Dotted section → path of the tree, for the heads of a config that are built from a tree."""
    return {
        section: conf.tree
        for section, conf in head_confs(config).items()
        if isinstance(conf, TreeHeadConf)
    }


@dataclass(frozen=True)
class Experiment:
    """A trained model with its config and tokenizer."""

    config: ExperimentConfig
    tokenizer: Tokenizer
    model: AsrModel
    """In evaluation mode."""
    model_dir: Path
    run: RunRecord = RunRecord()
    """The options and data of its training; without any fact if they are not recorded."""
    is_overfitted: bool = False
    """Whether it is overfitted by the curves of its training. Its confidences are too high then."""

    @property
    def frontend(self) -> Frontend:
        """What computes the input of the model's encoder."""
        return self.model.encoder.own_frontend or build_frontend(self.config.dataset_conf)


def load_experiment(
    model_dir: Path | str,
    *,
    checkpoint: Path | str | None = None,
    device: torch.device | str = "cpu",
) -> Experiment:
    """Loads an experiment folder, ours or WeNet's (`train.yaml final.pt units.txt`), or a packed
    model.

    On a GPU, convolutions of the whole process are computed without TF32 from then on.

    Args:
        model_dir: a folder, which may have been moved; a ZIP or `hf://user/name` of a packed model.
        checkpoint: weights instead of `final.pt`: a file, a checkpoint folder, or a packed model.

    Raises CheckpointError, DataError or ConfigError with the file that is missing, damaged or of
        another model.
    """
    if is_gpu(torch.device(device)):
        # By default torch rounds the factors of convolutions to TF32, but not those of matrices.
        torch.backends.cudnn.allow_tf32 = False
    model_dir = resolve_model(model_dir)
    refuse_other_model(model_dir)
    config = load_config(in_folder(model_dir, "train.yaml"), is_for_training=False)
    run = read_run(model_dir)
    table_path = find_table(model_dir, config, run)
    check_files(model_dir, run)
    table, tokenizer = read_units(config, table_path, where=str(model_dir / "train.yaml"))
    if checkpoint is None:
        path = in_folder(model_dir, weights_path(model_dir).name)
    else:
        path = resolve_model(checkpoint)
    weights = read_model_weights(path)
    if checkpoint is not None:
        check_same_model(path, config, table, model_dir)
    if weights.is_foreign:
        check_old_convention(config, table, table_path)
    check_num_units(
        weights.state,
        len(table),
        str(path),
        str(table_path),
        ctc_head=config.ctc_conf.head,
    )
    model = _build_for_weights(weights.state, config, table, model_dir)
    load_weights(model, weights.state, str(path))
    run = run or RunRecord()
    return Experiment(
        config=config,
        tokenizer=tokenizer,
        model=model.to(device).eval(),
        model_dir=model_dir,
        run=run,
        is_overfitted=run.is_overfitted or is_model_overfitted(model_dir, path),
    )


def _build_for_weights(
    state: Mapping[str, Tensor], config: ExperimentConfig, table: UnitTable, model_dir: Path
) -> AsrModel:
    """Builds a model with new weights, into which the state_dict of a model folder can be loaded.

    Raises CheckpointError if there is too little memory for the sizes in the config, and what
    `build_from_folder` raises.
    """
    try:
        return build_from_folder(config, table, model_dir, cmvn=state_cmvn(state, config))
    except RuntimeError as error:  # of torch, for want of memory
        if "memory" not in str(error):
            raise
        found = f"describes a model that cannot be built ({one_line(error)})"
        raise CheckpointError(model_dir / "train.yaml", found, "check its sizes") from error


def read_units(
    config: TrainingConfig, table_path: Path, *, where: str
) -> tuple[UnitTable, Tokenizer]:
    """Reads the unit table of an experiment folder, with its tokenizer.

    Args:
        table_path: the file of the table. A BPE model is in the same folder.
        where: the file of the config, for error messages.

    Raises DataError or ConfigError if the table is damaged, or is not the one the config was
        written for; CheckpointError if the BPE model that the config names is missing.
    """
    table = UnitTable.read(table_path)
    check_special(table, config.tokenizer_conf.special_tokens, f"{where}: tokenizer_conf")
    bpe_path = config.tokenizer_conf.bpe_path
    bpe_model = None
    if bpe_path is not None:
        bpe_model = in_folder(table_path.parent, bpe_path, made_by=config.trained_by)
    return table, make_tokenizer(config.tokenizer, table, bpe_model)


def build_from_folder(
    config: ExperimentConfig, table: UnitTable, folder: Path, *, cmvn: Cmvn | None = None
) -> AsrModel:
    """Builds a model with new weights over the units of `table`.

    The trees that the config names and the description of a pretrained encoder are read from
    `folder`. `cmvn`: the statistics of the features, or None.

    Raises what `build_model`, `load_trees` and `read_description` raise.
    """
    trees = load_trees(config, table, folder)
    return build_model(
        config,
        len(table),
        table.special,
        tree=trees.get("head_conf"),
        ctc_tree=trees.get("ctc_conf.head_conf"),
        cmvn=cmvn,
        pretrained=_read_encoder(config, folder),
    )


def _read_encoder(config: ExperimentConfig, folder: Path) -> EncoderDescription | None:
    """The description of a pretrained encoder in a model folder; None for other encoders.

    Raises what `read_description` raises.
    """
    conf = config.encoder_conf
    if not isinstance(conf, PretrainedConf):
        return None
    return read_description(in_folder(folder, conf.path))


def load_trees(config: TrainingConfig, table: UnitTable, folder: Path) -> dict[str, AnyTree]:
    """The trees that the config names, read from `folder`, by dotted section.

    Raises CheckpointError if a tree is missing, and DataError if it is damaged, not over the units
    of `table`, or built with another tokenizer.
    """
    trees: dict[str, AnyTree] = {}
    for section, name in tree_paths(config).items():
        path = in_folder(folder, name, made_by=config.trained_by)
        tree = load_tree(path)
        check_tree(tree, table.units, path)
        trees[section] = tree
        built_with = tree.options.get("tokenizer", config.tokenizer)  # older trees have no record
        if built_with != config.tokenizer:
            found = f"built with --tokenizer {built_with}, but the config has tokenizer: {config.tokenizer}"
            raise DataError(path, found, "set the same one in both")
    return trees


# ---- files that belong to weights


def check_same_model(
    weights: Path,
    config: ExperimentConfig,
    table: UnitTable,
    model_dir: Path,
) -> None:
    """Refuses weights of a model with other units, trees or inputs, by the files next to them.

    Weights of another model may have equal shapes. Weights in the model folder itself are not
    checked. A file next to the weights that cannot be read is no reason to refuse them: a warning
    names it, and the comparison ends there.

    Args:
        weights: the file or checkpoint folder that `--checkpoint` names.
        config, table: those of the model folder `model_dir`.

    Raises: CheckpointError if the weights are of another model, or a file next to them changed
        since their training; what `load_trees` and `read_description` raise for `model_dir`.
    """
    weights_folder = find_folder_of_weights(weights)
    if weights_folder == model_dir.absolute():
        return
    model = _ModelFacts(
        folder=model_dir,
        config=config,
        table=table,
        trees=load_trees(config, table, model_dir),
        encoder=_read_encoder(config, model_dir),
    )
    try:
        difference = _find_difference(model, weights_folder)
    except (ConfigError, DataError) as error:
        fault = f"whether these weights are of {model_dir} is not known"
        logger.warning("%s: %s (%s)", weights, fault, error)
        return
    if difference is not None:
        raise CheckpointError(weights, difference, f"give --model_dir {weights_folder}")


@dataclass(frozen=True, kw_only=True)
class _ModelFacts:
    """The facts of a model folder that are compared with the files next to other weights."""

    folder: Path
    config: ExperimentConfig
    table: UnitTable
    trees: Mapping[str, AnyTree]
    """By dotted section."""
    encoder: EncoderDescription | None
    """The description of a pretrained encoder; None for other encoders."""


def _find_difference(model: _ModelFacts, weights_folder: Path) -> str | None:
    """The first difference by which the files next to weights show that these are of another model.

    None if there is no difference, or if these files are missing.

    Raises: ConfigError or DataError if a file cannot be read; CheckpointError if a file changed
        since the training.
    """
    files = read_files_of_weights(weights_folder)
    if files.table is not None and not model.table.has_same_ids(files.table):
        return f"its units ({files.table_path}) are not those of {model.folder}"
    if files.config is None:
        return None
    check_files(weights_folder, read_run(weights_folder))
    other_tree = _find_other_tree(model, files.config, weights_folder)
    if other_tree is not None:
        return f"its tree ({other_tree}) is not that of {model.folder}"
    different = _different_inputs(model, files.config, weights_folder)
    return f"a model with {list_names(different)}" if different else None


def _find_other_tree(
    model: _ModelFacts, config: ExperimentConfig, weights_folder: Path
) -> Path | None:
    """The first tree next to weights with which a head would compute something else; or None.

    `config`: the config next to the weights. Trees that are missing are not compared.
    """
    for section, path in tree_paths(config).items():
        file = weights_folder / Path(path).name
        if section not in model.trees or not file.is_file():
            continue
        conf = head_confs(model.config)[section]
        if not _is_same_tree(conf, model.trees[section], load_tree(file)):
            return file
    return None


def _is_same_tree(conf: HeadConf, own: AnyTree, other: AnyTree) -> bool:
    """Whether a head with these settings computes the same with both trees."""
    if not own.has_same_structure(other):
        return False
    if isinstance(conf, AdaptiveHeadConf):  # its clusters follow from the frequencies
        return np.array_equal(own.frequencies, other.frequencies)
    return True


def _different_inputs(
    model: _ModelFacts, other: ExperimentConfig, weights_folder: Path
) -> list[str]:
    """The settings with which the encoder of other weights computes other outputs.

    Each as `NAME OTHER, not OWN`. For a pretrained encoder the descriptions are compared, if there
    is one next to the weights; otherwise the settings of the features, or only the frontend if that
    is another one.

    Raises DataError if the description of the other encoder cannot be read.
    """
    if model.encoder is not None:
        file = weights_folder / "encoder.json"
        if not file.is_file():
            return []
        try:
            description = read_description(file)
        except CheckpointError as error:
            # A DataError, because a CheckpointError of `_find_difference` refuses the weights.
            raise DataError(error.where, error.found, error.to_do) from error
        return differences(description, model.encoder)
    ours = model.config.dataset_conf.feature_settings()
    theirs = other.dataset_conf.feature_settings()
    if ours["frontend"] != theirs["frontend"]:
        return [f"frontend {theirs['frontend']}, not {ours['frontend']}"]
    different: list[str] = []
    for name, value in ours.items():
        if theirs.get(name) != value:
            different.append(f"{name} {theirs.get(name)}, not {value}")
    return different


@dataclass(frozen=True, kw_only=True)
class FilesOfWeights:
    """The files that belong to weights, as they were read; None for those that are missing."""

    folder: Path
    config: ExperimentConfig | None
    table_path: Path | None
    table: UnitTable | None


def find_folder_of_weights(weights: Path) -> Path:
    """The folder of the files that belong to weights, as an absolute path.

    `weights` is a file or a folder. A checkpoint is usually `MODEL/checkpoints/step-N`: three
    folders, its own one first and then the two above it, are searched for a train.yaml or a unit
    table. Without such a file, and for other weights, it is the folder of the weights.
    """
    folder = weights if weights.is_dir() else weights.parent
    folder = folder.absolute()
    is_checkpoint = folder.name.startswith("step-") or (folder / MANIFEST).exists()
    if not is_checkpoint:
        return folder
    two_above = folder.parents[:2]
    for candidate in (folder, *two_above):
        if any((candidate / name).is_file() for name in ("train.yaml", *_TABLES)):
            return candidate
    return folder


def read_files_of_weights(folder: Path) -> FilesOfWeights:
    """The config and the unit table in the folder of weights, if they are there.

    The unit table may have the name that the config has for it, or a usual name.

    Raises ConfigError or DataError if one of them is damaged.
    """
    config: ExperimentConfig | None = None
    names: tuple[str, ...] = _TABLES
    config_file = folder / "train.yaml"
    if config_file.is_file():
        config = load_config(config_file, is_for_training=False)
        named_table = config.tokenizer_conf.symbol_table_path
        if named_table is not None:
            names = (Path(named_table).name, *_TABLES)
    table_path: Path | None = None
    table: UnitTable | None = None
    for name in names:
        if (folder / name).is_file():
            table_path = folder / name
            table = UnitTable.read(table_path)
            break
    return FilesOfWeights(folder=folder, config=config, table_path=table_path, table=table)


# ---- checks of the files of a model folder


def check_files(model_dir: Path, run: RunRecord | None) -> None:
    """Raises CheckpointError if a file is not that of the training or of the packing.

    Without this check, a file with other units, but as many, would make every word wrong. The
    run record has the SHA-256 of the files. Files that it does not list, or that are missing, are
    not compared. A pointer of Git LFS in place of the weights is refused too.

    `run`: the run record of the folder; None: it has none, and no file is compared.
    """
    is_unpacked = model_dir.parent == unpacked_models()  # it is from a ZIP, in the cache
    to_do = f"delete {model_dir} and load the ZIP again" if is_unpacked else "put the old file back"
    refuse_lfs_pointer(model_dir / WEIGHTS)
    sums = {} if run is None else run.files
    for name in ("units.txt", *TREE_FILES.values(), "bpe.model", "encoder.json", WEIGHTS):
        path = model_dir / name
        if name not in sums or not path.is_file():
            continue
        if file_sha256(path) != sums[name]:
            raise CheckpointError(path, f"changed since the training (sha256 in {RUN_FILE})", to_do)


def refuse_other_model(model_dir: Path) -> None:
    """Raises CheckpointError if `model_dir` is a file of a model folder or a published model.

    Nothing is raised for a path that does not exist, or for a folder with a file of a model folder;
    what is missing there is found later.
    """
    if any((model_dir / name).is_file() for name in ("train.yaml", "units.txt", "final.pt")):
        return
    if model_dir.is_file() and (model_dir.parent / "train.yaml").is_file():
        to_do = f"give --model_dir {model_dir.parent}"
        raise CheckpointError(model_dir, "a file of a model folder", to_do)
    if not model_dir.exists():
        return
    refuse_other_form(model_dir)
    if (model_dir / "config.json").is_file():
        to_do = (
            f"`wenet-hs import --hf {model_dir} --out NEW` converts a model that was fine-tuned with CTC; "
            "another one can be the encoder of a training (docs/pretrained.md)"
        )
        raise CheckpointError(model_dir, "is a folder in Hugging Face's layout", to_do)


def in_folder(model_dir: Path, *names: str, made_by: str = "train") -> Path:
    """The first file of the folder with the base name of one of `names`.

    `made_by`: the command that writes it, for the message.

    Raises CheckpointError if there is none, or no such folder.
    """
    base_names = [Path(name).name for name in names]
    for name in base_names:
        if (model_dir / name).is_file():
            return model_dir / name
    if not model_dir.is_dir():
        raise _no_folder(model_dir)
    command = made_by
    if base_names[0] == "final.pt" and made_by == "train":
        command = "average"  # makes it of the checkpoints of a training that did not end
    to_do = f"`wenet-hs {command} --model_dir {model_dir}` writes it, or copy it from the folder of the model"
    raise CheckpointError(model_dir / base_names[0], "no such file", to_do)


def _no_folder(model_dir: Path) -> CheckpointError:
    """The error for a --model_dir that is no folder; it may be the name of a model of the Hub."""
    found = "a file" if model_dir.is_file() else "no such file or folder"
    to_do = "give the --model_dir of a training"
    hub_name = hub_name_of(model_dir)
    if hub_name is not None:
        to_do += f", or hf://{hub_name} if it is a packed model on the Hugging Face Hub"
    return CheckpointError(model_dir, found, to_do)


def find_table(model_dir: Path, config: ExperimentConfig, run: RunRecord | None) -> Path:
    """The file of the unit table of a model folder.

    A training of ours copied the table into the folder. A folder that WeNet's training wrote has
    none: its train.yaml names the table of the recipe, as a path from the folder of the recipe. It
    is read there if the command runs in that folder, and a line of the log says so. A copy in the
    model folder comes first.

    `run`: the record of a training of ours, or None.

    Raises CheckpointError if there is no table.
    """
    named = config.tokenizer_conf.symbol_table_path
    names = [Path(named).name] if named else []
    if run is not None:
        return in_folder(model_dir, *names, "units.txt")
    for name in (*names, *_TABLES):
        if (model_dir / name).is_file():
            return model_dir / name
    if named and Path(named).is_file():
        logger.info(
            "%s has no unit table; %s is used, which its train.yaml names", model_dir, named
        )
        return Path(named)
    to_do = f"copy the unit table of the recipe there, {named or 'its lang_char.txt or units.txt'}"
    raise CheckpointError(model_dir / "units.txt", "no such file", to_do)


def check_old_convention(config: ExperimentConfig, table: UnitTable, table_path: Path) -> None:
    """Raises CheckpointError if a WeNet model was trained with another <sos/eos> than its table has.

    Without `special_tokens` in its config WeNet trains with the last unit, V - 1, as <sos/eos>,
    even if that is another unit in the table.
    """
    last_unit = len(table) - 1
    if config.tokenizer_conf.special_tokens is None and table.special.eos != last_unit:
        found = f"<sos/eos> is {table.special.eos}, but WeNet trained this model with {last_unit}"
        reason = "its train.yaml has no tokenizer_conf.special_tokens"
        to_do = "use the units.txt of the model, or add special_tokens"
        raise CheckpointError(table_path, f"{found} ({reason})", to_do)


def check_tree(tree: AnyTree, units: Sequence[str], path: Path) -> None:
    """Raises DataError with the first difference if leaf i of the tree is not unit i of the table.

    `path`: the file of the tree, for the message.
    """
    to_do = "build the tree again from this unit table with `wenet-hs tree build`"
    if tree.num_units != len(units):
        found = f"a tree over {tree.num_units} units, but the unit table has {len(units)}"
        raise DataError(path, found, to_do)
    for unit_id, (leaf, unit) in enumerate(zip(tree.units, units, strict=True)):
        if leaf != unit:
            found = f"leaf {unit_id} is {leaf!r}, but unit {unit_id} of the table is {unit!r}"
            raise DataError(path, found, to_do)
