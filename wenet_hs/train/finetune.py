# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning: the first weights of a model from a trained model with other units, trees or heads.

`read_base_model` reads the trained model, and `load_base_weights` copies what fits of its weights.
Units are matched by their text. A node of a tree takes the weights of the old node that divides
the shared units alike; the shared units are those of both tables.

Dimension key: V new units, R rows of a new parameter.
"""

import itertools
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.config.heads import HeadConf, HSoftmaxHeadConf, SoftmaxHeadConf, TreeHeadConf
from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.hsoftmax import HSoftmaxHead
from wenet_hs.heads.softmax import SoftmaxHead
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.build import AnyTree, build_head
from wenet_hs.model.checkpoint import (
    MANIFEST,
    check_weights,
    load_weights,
    verification_error,
    weights_path,
)
from wenet_hs.model.encoders.kinds import check_same_outputs
from wenet_hs.model.encoders.pretrained import PretrainedEncoder
from wenet_hs.model.experiment import (
    TREE_FILES,
    FilesOfWeights,
    check_files,
    check_old_convention,
    check_tree,
    find_folder_of_weights,
    head_confs,
    head_names,
    read_files_of_weights,
)
from wenet_hs.model.foreign_weights import (
    ModelWeights,
    check_num_units,
    find_num_units,
    has_decoder,
    is_binary_tree,
    is_softmax,
    read_model_weights,
)
from wenet_hs.runs.record import read_run
from wenet_hs.text.units import UnitTable, check_special
from wenet_hs.tree.errors import CheckpointError, list_names
from wenet_hs.tree.tree import Tree, load_tree

logger = logging.getLogger(__name__)

Ints = NDArray[np.int64]

UNMATCHED = -1
"""In place of an old unit or row: the trained model has none that corresponds to the new one."""
NO_SHARED_UNIT = 0
"""The key of a node of a tree below which there are no shared units."""
_HEAD_PREFIXES = {"head_conf": ("head.", "right_head."), "ctc_conf.head_conf": ("ctc.head.",)}
"""Prefixes of a head's parameters, by the section of its settings.

The heads of both decoders have one structure.
"""
_ALL_HEAD_PREFIXES = tuple(itertools.chain(*_HEAD_PREFIXES.values()))


@dataclass(frozen=True)
class RowCount:
    """The number of rows of a parameter that are taken from the trained model."""

    taken: int
    rows: int
    """All rows of the parameter."""


@dataclass(frozen=True)
class FineTuneReport:
    """The weights that a model takes from another one; `fine_tune.json`."""

    checkpoint: str
    unit_table: str | None
    """The old unit table; None: there is none, and the old units are assumed to be the new ones."""
    units_kept: int
    units_new: list[str] = field(default_factory=list)
    units_dropped: list[str] = field(default_factory=list)
    parameters_taken: int = 0
    """Number of parameters and buffers taken completely."""
    parameters_in_part: dict[str, RowCount] = field(default_factory=dict)
    parameters_new: list[str] = field(default_factory=list)
    parameters_dropped: list[str] = field(default_factory=list)
    """Those of the trained model's heads and decoder that this model does not have."""

    def to_json(self) -> str:
        """The content of `fine_tune.json`."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    def log(self) -> None:
        """Log the report in a few lines, with long lists shortened.

        It is a warning if the trained model has no unit table.
        """
        new_parameters = _shorten_list(self.parameters_new)
        logger.info("weights from %s; new: %s", self.checkpoint, new_parameters)
        if self.parameters_dropped:
            logger.info("dropped: %s", _shorten_list(self.parameters_dropped))
        if self.unit_table is None:
            message = "%s: no unit table next to it; its units are assumed to be the same"
            logger.warning(message, self.checkpoint)
        else:
            new_units = _shorten_list([repr(unit) for unit in self.units_new])
            dropped_units = _shorten_list([repr(unit) for unit in self.units_dropped])
            message = "units of %s: %d kept; new: %s; dropped: %s"
            logger.info(message, self.unit_table, self.units_kept, new_units, dropped_units)
        in_part = [
            f"{name} {count.taken} of {count.rows} rows"
            for name, count in self.parameters_in_part.items()
        ]
        message = "parameters: %d taken; in part: %s"
        logger.info(message, self.parameters_taken, _shorten_list(in_part))


def _shorten_list(names: Sequence[str]) -> str:
    """Names as a text with at most 20 of them; `none` without any."""
    return list_names(names, most=20) or "none"


# ---- the trained model


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """A trained model: its weights, which are on the CPU, and the files next to them."""

    weights: ModelWeights
    files: FilesOfWeights
    trees: Mapping[str, AnyTree]
    """The trees of the heads, by the section of the head's settings."""

    @property
    def where(self) -> str:
        """The file or checkpoint folder of the weights, for messages."""
        return self.weights.where

    @property
    def state(self) -> Mapping[str, Tensor]:
        """The weights by our names."""
        return self.weights.state

    @property
    def table(self) -> UnitTable | None:
        """The unit table next to the weights; None if there is none."""
        return self.files.table

    @property
    def num_units(self) -> int:
        """The number of units: of the unit table, or else by the shape of the weights.

        Raises CheckpointError if neither tells it.
        """
        if self.table is not None:
            return len(self.table)
        num_units = find_num_units(self.state)
        if num_units is None:
            found = "its number of units is not known, and its unit table is not next to it"
            raise CheckpointError(self.where, found, f"put its units.txt into {self.files.folder}")
        return num_units

    def rebuild_head(
        self, section: str, new_head: OutputHead, *, same_units: bool
    ) -> OutputHead | None:
        """A head with the structure of the trained model's head, but without its weights.

        The structure is known if the settings of the head are known, and its tree if it has one.
        Without a train.yaml, only a softmax and a binary tree are recognized, by their parameters.
        If the structure is not known, but no tree is there and units and shapes are equal, the head
        is assumed to be like `new_head`, which is returned then. A warning is logged.

        Args:
            section: the section of the head's settings.
            new_head: this head of the new model.
            same_units: whether old and new units are the same, in the same order.
        Returns: None if the structure is unknown, or the trained model has no decoder and so not
            this head.
        Raises: CheckpointError if the train.yaml or the tree next to the weights does not belong to
            them.
        """
        if section == "head_conf" and not has_decoder(self.state):
            return None
        prefix = _HEAD_PREFIXES[section][0]
        shapes = {
            name.removeprefix(prefix): value.shape
            for name, value in self.state.items()
            if name.startswith(prefix)
        }
        conf = self._find_head_conf(section, shapes)
        tree = self.trees.get(section)
        is_tree_missing = tree is None and isinstance(conf, TreeHeadConf)
        if conf is None or is_tree_missing:
            is_assumed = tree is None and same_units and _head_shapes(new_head) == shapes
            self._warn_of_unknown_head(
                section, has_settings=conf is not None, is_assumed=is_assumed
            )
            return new_head if is_assumed else None
        name = "" if self.files.config is None else head_names(self.files.config)[section]
        # Its random weights are not used, so they must not change what is drawn later.
        with torch.random.fork_rng(devices=[]):
            head = build_head(
                conf,
                new_head.dim,
                self.num_units,
                tree,
                name=name,
                section=section,
            )
        if _head_shapes(head) != shapes:
            described = f"that {self.files.folder / 'train.yaml'} and the tree next to it describe"
            found = f"its {prefix}* are not those of the {type(head).__name__} {described}"
            raise CheckpointError(self.where, found, "put the weights and their own files together")
        return head

    def _warn_of_unknown_head(self, section: str, *, has_settings: bool, is_assumed: bool) -> None:
        """Warn that the settings or the tree of a head are not known.

        Args:
            has_settings: True if only the tree is not known. A warning is then logged only if
                something is assumed.
            is_assumed: whether the head is assumed to be like that of the new model.
        """
        if not has_settings:
            outcome = "nothing of it is taken"
            if is_assumed:
                outcome = "it is assumed to be that of the new model"
            message = "%s: no train.yaml next to %s; its head is not recognized: %s"
            logger.warning(message, section, self.where, outcome)
        elif is_assumed:
            message = "%s: no tree of it next to %s; the tree of the new model is assumed"
            logger.warning(message, section, self.where)

    def _find_head_conf(self, section: str, shapes: Mapping[str, torch.Size]) -> HeadConf | None:
        """The settings of a head, from the train.yaml, or else from the names of its parameters.

        `shapes`: the shapes of its parameters, by their names in the head.
        None without a train.yaml if the names are of no softmax and no binary tree.
        """
        # The train.yaml of the paper's original implementation does not name its tree head.
        is_original_tree = section == "head_conf" and self.weights.original_tree is not None
        if self.files.config is not None and not is_original_tree:
            return head_confs(self.files.config)[section]
        if is_binary_tree(shapes.keys()):
            return HSoftmaxHeadConf(tree=TREE_FILES[section], bias="inner_vector.bias" in shapes)
        has_tree = section in self.trees
        # A head of classes has parameters of the same names, but a tree, or another number of rows.
        if is_softmax(shapes.keys()) and not has_tree:
            has_row_per_unit = shapes["output.weight"][0] == self.num_units
            return SoftmaxHeadConf() if has_row_per_unit else None
        return None


def _head_shapes(head: OutputHead) -> dict[str, torch.Size]:
    """The shape of each parameter and buffer of a head, by its name in the head."""
    return {name: value.shape for name, value in head.state_dict().items()}


def read_base_model(checkpoint: Path) -> BaseModel:
    """Read the model of `--checkpoint` with the files next to its weights.

    Args:
        checkpoint: a file of weights, a checkpoint folder, or a model folder, ours or WeNet's.
    Raises: CheckpointError, DataError or ConfigError if the weights or the files next to them are
        damaged or do not belong together.
    """
    path = _find_weights(checkpoint)
    weights = read_model_weights(path)
    files = read_files_of_weights(find_folder_of_weights(path))
    _check_files_of(weights, files)
    trees = _read_trees(weights, files)
    return BaseModel(weights=weights, files=files, trees=trees)


def _find_weights(checkpoint: Path) -> Path:
    """The file or checkpoint folder of the weights that `--checkpoint` names.

    Of a model folder these are its final weights. Other paths are returned as they are.
    Raises CheckpointError for a damaged checkpoint and for a folder in Hugging Face's layout.
    """
    folder = checkpoint.parent if checkpoint.name == "model.pt" else checkpoint
    is_checkpoint = (folder / MANIFEST).exists() and not (folder / "final.pt").exists()
    if is_checkpoint:
        fault = verification_error(folder)
        if fault is not None:
            raise CheckpointError(f"--checkpoint {checkpoint}", fault, "use another checkpoint")
    has_model_config = (checkpoint / "train.yaml").is_file()
    if (checkpoint / "config.json").is_file() and not has_model_config:
        found = "is a folder in Hugging Face's layout"
        to_do = (
            "set encoder_conf.path to it, "
            "or convert a model that was fine-tuned with CTC by `wenet-hs import`"
        )
        raise CheckpointError(f"--checkpoint {checkpoint}", found, to_do)
    is_folder_of_weights = checkpoint.is_dir() and (checkpoint / "model.pt").exists()
    if is_checkpoint or is_folder_of_weights or not checkpoint.is_dir():
        return checkpoint
    return weights_path(checkpoint)


def _check_files_of(weights: ModelWeights, files: FilesOfWeights) -> None:
    """Check that the files next to the weights belong to them; without files nothing is checked.

    Raises CheckpointError or DataError if a file changed since the training, or is of another
        model; ConfigError if the train.yaml has other ids of special units than the unit table.
    """
    if files.config is not None:
        check_files(files.folder, read_run(files.folder))
    if files.table is None or files.table_path is None:
        return
    check_num_units(
        weights.state,
        len(files.table),
        weights.where,
        str(files.table_path),
        ctc_head=None if files.config is None else files.config.ctc_conf.head,
    )
    if files.config is None:
        return
    special_tokens = files.config.tokenizer_conf.special_tokens
    check_special(files.table, special_tokens, f"{files.folder / 'train.yaml'}: tokenizer_conf")
    if weights.is_foreign:
        check_old_convention(files.config, files.table, files.table_path)


def _read_trees(weights: ModelWeights, files: FilesOfWeights) -> dict[str, AnyTree]:
    """The trees of the trained model's heads, by the sections of their settings.

    They are read from the files that the train.yaml names, or else from those with the usual names.
    A head without a tree, or whose file is missing, is left out. A checkpoint of the paper's
    original implementation has the tree of its decoder in itself.

    Raises DataError if a tree is damaged, or is not over the units of the table.
    """
    trees: dict[str, AnyTree] = {}
    original_tree = weights.original_tree
    if original_tree is not None:
        if files.table is not None:
            original_tree = replace(original_tree, units=files.table.units)
        trees["head_conf"] = original_tree
    for section, usual_name in TREE_FILES.items():
        name = usual_name
        if files.config is not None:
            conf = head_confs(files.config)[section]
            name = Path(getattr(conf, "tree", "")).name  # empty for a head without a tree
        path = files.folder / name
        if section in trees or not name or not path.is_file():
            continue
        trees[section] = load_tree(path)
        if files.table is not None:
            check_tree(trees[section], files.table.units, path)
    return trees


# ---- its weights in a new model


@dataclass(frozen=True, kw_only=True)
class UnitMap:
    """The old id of each new unit, (V,) each; UNMATCHED for a new unit."""

    inputs: Ints
    """For the decoder's embedding. Its inputs contain <sos>, but not <eos>."""
    outputs: Ints
    """For the heads. Their targets contain <eos>, but not <sos>. No old id is there twice."""


@dataclass(frozen=True, kw_only=True)
class RowMapping:
    """The old row that each row of a new parameter takes."""

    old_name: str
    """The name of the old parameter, in its head or in the model."""
    source: Ints
    """(R,) old rows; UNMATCHED where the new row keeps its random values."""
    is_flipped: NDArray[np.bool_] | None = None
    """(R,) whether the row changes its sign, because left and right are swapped.

    None: no row does.
    """


def load_base_weights(model: AsrModel, base: BaseModel, units: UnitTable) -> FineTuneReport:
    """Copy the weights of a trained model that fit into a new one; return which these are.

    Encoder and decoder layers must be equal, but one of the models may have no decoder. Rows that
    belong to a unit are matched by its text, those of a node of a tree by the units below it. All
    other parameters of heads and embeddings keep the values of `model`.

    Warns if the features of the trained model were normalized with other statistics.

    Args:
        model: freshly built.
        base: the trained model.
        units: the unit table of `model`.
    Raises: CheckpointError, DataError or ConfigError if the weights and the files next to them do
        not belong together, or are of another encoder or decoder.
    """
    unit_map = _map_units(base, units)
    new_values = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    # Parameters with these prefixes are taken by rows, if at all. All others are taken whole.
    prefixes = _ALL_HEAD_PREFIXES
    have_both_decoders = model.decoder is not None and has_decoder(base.state)
    if not have_both_decoders:
        prefixes = (*prefixes, "decoder.")
    state = {name: value for name, value in base.state.items() if not name.startswith(prefixes)}
    _check_encoder(new_values, state, base.where)
    mappings = _map_parameters(model, base, unit_map)
    counts: dict[str, RowCount] = {}
    for name, value in new_values.items():
        mapping = mappings.get(name)
        if mapping is not None:
            old_value = base.state[mapping.old_name]
            state[name], counts[name] = mix_rows(value, old_value, mapping)
        elif name.startswith(prefixes):  # nothing corresponds to it: it keeps its values
            state[name] = value
            counts[name] = RowCount(taken=0, rows=len(value))
    _warn_of_other_statistics(new_values, base)
    load_weights(model, state, base.where)
    if isinstance(model.encoder, PretrainedEncoder):
        check_same_outputs(model.encoder.description, base.files.folder / "encoder.json")
    return _make_report(base, units, unit_map, counts, new_values)


def _map_units(base: BaseModel, units: UnitTable) -> UnitMap:
    """The old ids of the new units; without an old unit table the same ids.

    Raises CheckpointError without an old unit table if the numbers of units differ.
    """
    if base.table is not None:
        return match_units(base.table, units)
    if base.num_units != len(units):
        found = (
            f"made for {base.num_units} units, here are {len(units)}, "
            "and its unit table is not next to it"
        )
        raise CheckpointError(base.where, found, f"put its units.txt into {base.files.folder}")
    same_ids = np.arange(len(units))
    return UnitMap(inputs=same_ids, outputs=same_ids)


def match_units(old: UnitTable, new: UnitTable) -> UnitMap:
    """Match the units of two tables by text (NFC), and special units by their role.

    One table may have <sos/eos> and the other <sos> and <eos>. In the embedding both <sos> and
    <eos> then correspond to <sos/eos>. In a head <eos> corresponds to <sos/eos>, and <sos> is new:
    two copies would share the probability.
    """
    inputs = np.full(len(new.units), UNMATCHED, dtype=np.int64)
    for new_id, unit in enumerate(new.units):
        old_id = old.id_of(unit)
        is_special = new_id in new.special_ids or old_id in old.special_ids
        if old_id is not None and not is_special:
            inputs[new_id] = old_id
    inputs[new.special.blank] = old.special.blank
    if new.special.unk is not None and old.special.unk is not None:
        inputs[new.special.unk] = old.special.unk
    outputs = inputs.copy()
    if old.special.sos != old.special.eos:
        outputs[new.special.sos] = old.special.sos
    # If <sos> and <eos> have one id, the later assignment counts: the one of <eos> in a head, and
    # the one of <sos> in the embedding.
    outputs[new.special.eos] = old.special.eos
    inputs[new.special.eos] = old.special.eos
    inputs[new.special.sos] = old.special.sos
    return UnitMap(inputs=inputs, outputs=outputs)


def _check_encoder(
    new_values: Mapping[str, Tensor], old_values: Mapping[str, Tensor], where: str
) -> None:
    """Raise CheckpointError if the weights in `where` are of another encoder.

    It is checked before the heads: once the encoders are equal, all heads have inputs of one width.
    """
    check_weights(_weights_of_encoder(new_values), _weights_of_encoder(old_values), where)


def _weights_of_encoder(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the encoder among those of a model."""
    return {name: value for name, value in values.items() if name.startswith("encoder.")}


def _warn_of_other_statistics(new_values: Mapping[str, Tensor], base: BaseModel) -> None:
    """Warn if the trained model normalizes features with other statistics than the config names.

    The features are normalized with those of the trained model, whose encoder learned from them.
    """
    for name in ("encoder.global_cmvn.mean", "encoder.global_cmvn.istd"):
        if name not in new_values or name not in base.state:
            continue
        new_value = new_values[name]
        old_value = base.state[name].to(new_value.dtype)
        # Other shapes are an error, which the loading of the weights reports.
        if new_value.shape != old_value.shape:
            continue
        if not torch.allclose(new_value, old_value, rtol=1e-4, atol=1e-5):
            message = (
                "%s: features are normalised with its own statistics, "
                "not with those of cmvn_conf.cmvn_file: its encoder was trained on them"
            )
            logger.warning(message, base.where)
            return


def _map_parameters(model: AsrModel, base: BaseModel, unit_map: UnitMap) -> dict[str, RowMapping]:
    """The row mappings of heads and embeddings, by the names of the parameters of `model`.

    Parameters that only one of the two models has are left out.
    """
    new_names = model.state_dict().keys()
    mappings: dict[str, RowMapping] = {}
    for name in new_names:
        if name.startswith("decoder.") and name.endswith(".embed.0.weight"):
            mappings[name] = RowMapping(old_name=name, source=unit_map.inputs)
    same_units = base.num_units == model.num_units and _are_same_ids(unit_map)
    new_heads = {"head_conf": model.head, "ctc_conf.head_conf": model.ctc.head}
    for section, prefixes in _HEAD_PREFIXES.items():
        new_head = new_heads[section]
        if new_head is None:
            continue
        old_head = base.rebuild_head(section, new_head, same_units=same_units)
        if old_head is None:
            continue
        head_mappings = map_head(old_head, new_head, unit_map.outputs)
        for prefix in prefixes:
            for name, mapping in head_mappings.items():
                full_old_name = prefix + mapping.old_name
                mappings[prefix + name] = replace(mapping, old_name=full_old_name)
    return {
        name: mapping
        for name, mapping in mappings.items()
        if name in new_names and mapping.old_name in base.state
    }


def _are_same_ids(unit_map: UnitMap) -> bool:
    """Whether each new unit has the id of its old unit."""
    ids = np.arange(len(unit_map.inputs))
    return np.array_equal(unit_map.inputs, ids) and np.array_equal(unit_map.outputs, ids)


def map_head(old: OutputHead, new: OutputHead, outputs: Ints) -> dict[str, RowMapping]:
    """The row mappings of a head's parameters, by their names in the head.

    The rows of a softmax are matched by units, those of a binary tree by nodes. Those of another
    head are taken only if units and structure are equal. There are none for heads of different
    classes.

    `outputs`: (V,) the old id of each new unit, see `UnitMap`.
    """
    is_flipped = None
    match old, new:
        case SoftmaxHead(), SoftmaxHead():
            source = outputs
        case HSoftmaxHead(tree=old_tree), HSoftmaxHead(tree=new_tree):
            source, is_flipped = _map_nodes(old_tree, new_tree, outputs)
        case _ if type(old) is type(new) and _are_equal(old, new, outputs):
            return {
                name: RowMapping(old_name=name, source=np.arange(len(rows)))
                for name, rows in new.named_parameters()
            }
        case _:
            return {}
    return {
        name: RowMapping(old_name=name, source=source, is_flipped=is_flipped)
        for name, _ in new.named_parameters()
    }


def _are_equal(old: OutputHead, new: OutputHead, outputs: Ints) -> bool:
    """Whether units, shapes and tables of two heads of one class are equal.

    `outputs`: (V,) the old id of each new unit.
    """
    if old.num_units != new.num_units or not np.array_equal(outputs, np.arange(len(outputs))):
        return False
    if _head_shapes(old) != _head_shapes(new):
        return False
    old_tables = {name: table.tolist() for name, table in old.named_buffers()}
    new_tables = {name: table.tolist() for name, table in new.named_buffers()}
    return old_tables == new_tables


def _map_nodes(old: Tree, new: Tree, outputs: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Match the inner nodes of two binary trees by how they divide the shared units.

    Only nodes with shared units on both sides are matched.

    `outputs`: (V,) the old id of each new unit.
    Returns: (V-1,) the old node of each new inner node, or UNMATCHED; and (V-1,) whether left and
        right are swapped.
    """
    old_keys, new_keys = _shared_unit_keys(old, new, outputs)
    old_node_of: dict[tuple[int, int], int] = {}  # by the keys of the left and the right side
    for node, (left, right) in enumerate(old_keys[old.children].tolist()):
        if left != NO_SHARED_UNIT and right != NO_SHARED_UNIT:
            old_node_of[left, right] = node
    source = np.full(len(new.children), UNMATCHED, dtype=np.int64)
    is_flipped = np.zeros(len(new.children), dtype=np.bool_)
    for node, (left, right) in enumerate(new_keys[new.children].tolist()):
        if (left, right) in old_node_of:
            source[node] = old_node_of[left, right]
        elif (right, left) in old_node_of:
            source[node] = old_node_of[right, left]
            is_flipped[node] = True
    return source, is_flipped


def _shared_unit_keys(
    old: Tree, new: Tree, outputs: Ints
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """A key per node of the old tree, and per node of the new tree, for the shared units below it.

    Nodes with the same shared units below them have the same key, in both trees. Each shared unit
    has a random number, and a key is the sum of these numbers modulo 2^64. So two different sets of
    units have equal keys with a probability of 2^-64. The key is NO_SHARED_UNIT for a node without
    shared units.

    `outputs`: (V,) the old id of each new unit.
    """
    is_shared = outputs != UNMATCHED
    new_codes = np.random.default_rng(0).integers(1, 2**64 - 1, size=len(outputs), dtype=np.uint64)
    new_codes[~is_shared] = 0
    old_codes = np.zeros(old.num_units, dtype=np.uint64)
    old_codes[outputs[is_shared]] = new_codes[is_shared]
    return old.sum_leaves(old_codes), new.sum_leaves(new_codes)


def mix_rows(new_value: Tensor, old_value: Tensor, mapping: RowMapping) -> tuple[Tensor, RowCount]:
    """The new parameter with the old rows that `mapping` names, and how many these are.

    Other rows keep their values. The shape (R, …) and the dtype are those of `new_value`.
    If old rows have another shape, or one that the mapping names is missing, `old_value` is
    returned as it is: `load_weights` then reports its shape.
    """
    num_rows = len(new_value)
    last_source = mapping.source.max(initial=UNMATCHED)  # UNMATCHED without any row
    is_row_missing = last_source >= len(old_value)
    if new_value.shape[1:] != old_value.shape[1:] or is_row_missing:
        return old_value, RowCount(taken=0, rows=num_rows)
    source = torch.from_numpy(mapping.source)
    is_taken = source != UNMATCHED
    taken = old_value[source[is_taken]].to(new_value.dtype)
    if mapping.is_flipped is not None:
        is_flipped = torch.from_numpy(mapping.is_flipped)[is_taken]
        # The shape (number of taken rows, 1, …): one sign per row.
        inner_ones = [1] * (new_value.dim() - 1)
        taken = torch.where(is_flipped.view(-1, *inner_ones), -taken, taken)
    mixed = new_value.clone()
    mixed[is_taken] = taken
    return mixed, RowCount(taken=int(is_taken.sum()), rows=num_rows)


def _make_report(
    base: BaseModel,
    units: UnitTable,
    unit_map: UnitMap,
    counts: Mapping[str, RowCount],
    new_names: Collection[str],
) -> FineTuneReport:
    """The report of what a model took from `base`.

    Args:
        units: the unit table of the model.
        counts: the rows that were taken of each parameter of heads and embeddings; all other
            parameters were taken whole.
        new_names: the names of all parameters of the model.
    """
    is_kept = (unit_map.inputs != UNMATCHED) | (unit_map.outputs != UNMATCHED)
    kept_old_ids = {*unit_map.inputs.tolist(), *unit_map.outputs.tolist()}
    old_units = units.units if base.table is None else base.table.units
    table_path = base.files.table_path
    incomplete = {name: count for name, count in counts.items() if count.taken < count.rows}
    in_part = {name: count for name, count in incomplete.items() if count.taken > 0}
    return FineTuneReport(
        checkpoint=base.where,
        unit_table=None if table_path is None else str(table_path),
        units_kept=int(is_kept.sum()),
        units_new=[unit for unit, kept in zip(units.units, is_kept, strict=True) if not kept],
        units_dropped=[unit for old_id, unit in enumerate(old_units) if old_id not in kept_old_ids],
        parameters_taken=len(new_names) - len(incomplete),
        parameters_in_part=in_part,
        parameters_new=[name for name in incomplete if name not in in_part],
        parameters_dropped=[name for name in base.state if name not in new_names],
    )
