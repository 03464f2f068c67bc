# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning: start with the weights of a trained model that may have other units, trees and
heads.

Units are matched by their text, a side of a tree's decision by its shared units, which are those of
both tables.

Dimension key: V new units, R rows of a new parameter.
"""

import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

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

_HEAD_PREFIXES = {"head_conf": ("head.", "right_head."), "ctc_conf.head_conf": ("ctc.head.",)}
"""Prefixes of a head's parameters, by the section of its settings; the heads of both decoders have
one structure.
"""
_ALL_PREFIXES = tuple(itertools.chain(*_HEAD_PREFIXES.values()))


@dataclass(frozen=True)
class RowCount:
    """The number of rows of a parameter that are taken from the trained model."""

    taken: int
    rows: int


@dataclass(frozen=True)
class FineTuneReport:
    """The weights that a model takes from another one; `fine_tune.json`."""

    checkpoint: str
    unit_table: str | None
    """The old unit table; None if there is none, and the old units are assumed to be the new ones."""
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
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    def log(self) -> None:
        """Log it in a few lines, with long lists shortened."""

        def listed(names: Sequence[str]) -> str:
            return list_names(names, most=20) or "none"

        logger.info("weights from %s; new: %s", self.checkpoint, listed(self.parameters_new))
        if self.parameters_dropped:
            logger.info("dropped: %s", listed(self.parameters_dropped))
        if self.unit_table is None:
            logger.warning(
                "%s: no unit table next to it; its units are assumed to be the same",
                self.checkpoint,
            )
        else:
            new, dropped = (
                listed([*map(repr, units)]) for units in (self.units_new, self.units_dropped)
            )
            logger.info(
                "units of %s: %d kept; new: %s; dropped: %s",
                self.unit_table,
                self.units_kept,
                new,
                dropped,
            )
        parts = [
            f"{name} {count.taken} of {count.rows} rows"
            for name, count in self.parameters_in_part.items()
        ]
        logger.info("parameters: %d taken; in part: %s", self.parameters_taken, listed(parts))


class UnitMap(NamedTuple):
    """The old id of each new unit, (V,) each, -1 for a new unit.

    No old id comes twice in `outputs`.
    """

    inputs: Ints
    """For the decoder's embedding. Its inputs contain <sos>, but not <eos>."""
    outputs: Ints
    """For the heads. Their targets contain <eos>, but not <sos>."""


class RowMapping(NamedTuple):
    """The old row that each row of a new parameter takes."""

    name: str
    """The name of the old parameter inside its head."""
    source: Ints
    """(R,) old rows, -1 where the new row keeps its random values."""
    is_flipped: NDArray[np.bool_] | None = None
    """(R,) whether the row changes its sign, because left and right are swapped.

    None: no row does.
    """


def load_base_weights(model: AsrModel, base: "BaseModel", units: UnitTable) -> FineTuneReport:
    """Copy the matching weights of a trained model.

    Encoder and decoder layers must be equal, but one of the models may have no decoder. Parameters
    of units are matched by unit symbol, those of tree nodes by the units below them. All others
    keep the values of `model`.

    `model`: freshly built, over `units`.

    Raises: CheckpointError, DataError or ConfigError if the weights and the files next to them do
    not belong together, or are of another encoder or decoder.
    """
    same_ids = np.arange(len(units))
    unit_map = UnitMap(same_ids, same_ids) if base.table is None else match_units(base.table, units)
    if base.table is None and base.num_units != len(units):
        found = f"made for {base.num_units} units, here are {len(units)}, and its unit table is not next to it"
        raise CheckpointError(base.where, found, f"put its units.txt into {base.files.folder}")
    own = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    have_decoders = model.decoder is not None and has_decoder(base.state)
    mapped = _ALL_PREFIXES if have_decoders else (*_ALL_PREFIXES, "decoder.")
    state = {name: value for name, value in base.state.items() if not name.startswith(mapped)}
    _check_encoder(own, state, base.where)
    counts: dict[str, RowCount] = {}
    mappings = _map_parameters(model, base, unit_map)
    for name, value in own.items():
        if name in mappings:
            state[name], counts[name] = mix_rows(
                value, base.state[mappings[name].name], mappings[name]
            )
        elif name.startswith(mapped):
            state[name], counts[name] = value, RowCount(0, len(value))
    statistics = (
        {"encoder.global_cmvn.mean", "encoder.global_cmvn.istd"} & own.keys() & base.state.keys()
    )
    pairs = [(own[name], base.state[name].to(own[name].dtype)) for name in statistics]
    if any(
        ours.shape == theirs.shape and not torch.allclose(ours, theirs, 1e-4, 1e-5)
        for ours, theirs in pairs
    ):
        found = (
            "features are normalised with its own statistics, not with those of cmvn_conf.cmvn_file"
        )
        logger.warning("%s: %s: its encoder was trained on them", base.where, found)
    load_weights(model, state, base.where)
    if isinstance(model.encoder, PretrainedEncoder):
        check_same_outputs(model.encoder.description, base.files.folder / "encoder.json")
    return _report(base, units, unit_map, counts, own)


def _check_encoder(own: Mapping[str, Tensor], state: Mapping[str, Tensor], where: str) -> None:
    """Raise CheckpointError if the weights are of another encoder.

    The heads are compared after it: then they have one width, that of the encoder's output.
    """
    own_encoder = {name: value for name, value in own.items() if name.startswith("encoder.")}
    encoder = {name: value for name, value in state.items() if name.startswith("encoder.")}
    check_weights(own_encoder, encoder, where)


def _report(
    base: "BaseModel",
    units: UnitTable,
    unit_map: UnitMap,
    counts: Mapping[str, RowCount],
    own: Mapping[str, Tensor],
) -> FineTuneReport:
    """What was taken.

    Args:
        counts: rows of the parameters of heads and embeddings, in all and taken; all others are
            taken whole.
        own: the parameters of the new model.
    """
    is_kept = (unit_map.inputs >= 0) | (unit_map.outputs >= 0)
    kept_ids = {*unit_map.inputs.tolist(), *unit_map.outputs.tolist()}
    old_units = units.units if base.table is None else base.table.units
    table_path = base.files.table_path
    incomplete = {name: count for name, count in counts.items() if count.taken < count.rows}
    in_part = {name: count for name, count in incomplete.items() if count.taken > 0}
    return FineTuneReport(
        checkpoint=base.where,
        unit_table=None if table_path is None else str(table_path),
        units_kept=int(is_kept.sum()),
        units_new=[unit for unit, kept in zip(units.units, is_kept, strict=True) if not kept],
        units_dropped=[unit for unit_id, unit in enumerate(old_units) if unit_id not in kept_ids],
        parameters_taken=len(own) - len(incomplete),
        parameters_in_part=in_part,
        parameters_new=[name for name in incomplete if name not in in_part],
        parameters_dropped=[name for name in base.state if name not in own],
    )


def _map_parameters(model: AsrModel, base: "BaseModel", unit_map: UnitMap) -> dict[str, RowMapping]:
    """The row mappings of heads and embeddings, by the names of the parameters of `model`."""
    same_units = base.num_units == model.num_units and bool(
        (np.stack(unit_map) == np.arange(model.num_units)).all()
    )
    names = model.state_dict().keys()
    found = {
        name: RowMapping(name, unit_map.inputs)
        for name in names
        if name.startswith("decoder.") and name.endswith(".embed.0.weight")
    }
    for section, prefixes in _HEAD_PREFIXES.items():
        new = model.head if section == "head_conf" else model.ctc.head
        old = None if new is None else base.head(section, new, same_units=same_units)
        of_head = {} if old is None or new is None else map_head(old, new, unit_map.outputs)
        for prefix, (name, mapping) in itertools.product(prefixes, of_head.items()):
            found[prefix + name] = mapping._replace(name=prefix + mapping.name)
    return {
        name: mapping
        for name, mapping in found.items()
        if name in names and mapping.name in base.state
    }


def mix_rows(own: Tensor, theirs: Tensor, mapping: RowMapping) -> tuple[Tensor, RowCount]:
    """The mapped rows of `theirs`, and the other rows of `own`: (R, …) in the dtype of `own`.

    If the other dimensions differ, or rows are missing, it returns `theirs`, and `load_weights`
    reports the shape.
    """
    if own.shape[1:] != theirs.shape[1:] or mapping.source.max(initial=-1) >= len(theirs):
        return theirs, RowCount(0, len(own))
    source = torch.from_numpy(mapping.source)
    is_taken = source >= 0
    taken = theirs[source[is_taken]].to(own.dtype)
    if mapping.is_flipped is not None:
        is_flipped = torch.from_numpy(mapping.is_flipped)[is_taken]
        taken = torch.where(is_flipped.view(-1, *[1] * (own.dim() - 1)), -taken, taken)
    result = own.clone()
    result[is_taken] = taken
    return result, RowCount(int(is_taken.sum()), len(own))


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """A trained model: its weights, which are on the CPU, and the files next to them."""

    weights: ModelWeights
    files: FilesOfWeights
    trees: Mapping[str, AnyTree]
    """By section of the head."""

    @property
    def where(self) -> str:
        """The file or checkpoint folder of the weights."""
        return self.weights.where

    @property
    def state(self) -> Mapping[str, Tensor]:
        """The weights by our names."""
        return self.weights.state

    @property
    def table(self) -> UnitTable | None:
        return self.files.table

    @property
    def num_units(self) -> int:
        """Raises CheckpointError if neither a unit table nor the weights tell it."""
        if self.table is not None:
            return len(self.table)
        num_units = find_num_units(self.state)
        if num_units is None:
            fault = "its number of units is not known, and its unit table is not next to it"
            raise CheckpointError(self.where, fault, f"put its units.txt into {self.files.folder}")
        return num_units

    def head(self, section: str, new: OutputHead, *, same_units: bool) -> OutputHead | None:
        """A head with the structure of the trained model's head, without its weights; None if that
        is unknown, or if the trained model has no decoder, which would have this head.

        Without a train.yaml only a softmax and a binary tree head are recognized. Another head, or
        one without its tree, is assumed to have the structure of the new one, if the shapes are
        equal and `same_units`. A warning says that this is assumed, or that a head is not
        recognized.

        `new`: the head of the new model, over an encoder of the same width.

        Raises: CheckpointError if the train.yaml or the tree next to the weights does not belong to
            them.
        """
        if section == "head_conf" and not has_decoder(self.state):
            return None
        prefix = _HEAD_PREFIXES[section][0]
        shapes = {
            name.removeprefix(prefix): v.shape
            for name, v in self.state.items()
            if name.startswith(prefix)
        }
        conf = self._head_conf(section, shapes)
        tree = self.trees.get(section)
        may_be_new = tree is None and same_units and _head_shapes(new) == shapes
        if conf is None:
            to_do = (
                "it is assumed to be that of the new model"
                if may_be_new
                else "nothing of it is taken"
            )
            logger.warning(
                "%s: no train.yaml next to %s; its head is not recognized: %s",
                section,
                self.where,
                to_do,
            )
            return new if may_be_new else None
        if tree is None and isinstance(conf, TreeHeadConf):
            if not may_be_new:
                return None
            logger.warning(
                "%s: no tree of it next to %s; the tree of the new model is assumed",
                section,
                self.where,
            )
            return new
        with torch.random.fork_rng(devices=[]):  # its random weights are not used
            head = build_head(
                conf,
                new.dim,
                self.num_units,
                tree,
                name=self._head_name(section),
                section=section,
            )
        if _head_shapes(head) != shapes:
            described = f"that {self.files.folder / 'train.yaml'} and the tree next to it describe"
            found = f"its {prefix}* are not those of the {type(head).__name__} {described}"
            raise CheckpointError(self.where, found, "put the weights and their own files together")
        return head

    def _head_name(self, section: str) -> str:
        """The name of a head in the train.yaml; without that file the head is one of ours."""
        return "" if self.files.config is None else head_names(self.files.config)[section]

    def _head_conf(self, section: str, shapes: Mapping[str, torch.Size]) -> HeadConf | None:
        """The settings of a head: of the train.yaml, or else of the head that has parameters of
        these names.

        None if there is no train.yaml and the names are of no softmax and no binary tree.
        """
        is_original = section == "head_conf" and self.weights.original_tree is not None
        if self.files.config is not None and not is_original:  # the config does not name that head
            return head_confs(self.files.config)[section]
        if is_binary_tree(shapes.keys()):
            return HSoftmaxHeadConf(tree=TREE_FILES[section], bias="inner_vector.bias" in shapes)
        has_row_per_unit = (
            is_softmax(shapes.keys()) and shapes["output.weight"][0] == self.num_units
        )
        if has_row_per_unit and section not in self.trees:  # classes have the same names
            return SoftmaxHeadConf()
        return None


def _head_shapes(head: OutputHead) -> dict[str, torch.Size]:
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

    Raises CheckpointError for a damaged checkpoint and for a folder in Hugging Face's layout.
    """
    path = checkpoint
    folder = checkpoint.parent if checkpoint.name == "model.pt" else checkpoint
    is_checkpoint = (folder / MANIFEST).exists() and not (folder / "final.pt").exists()
    if is_checkpoint:
        fault = verification_error(folder)
        if fault is not None:
            raise CheckpointError(f"--checkpoint {checkpoint}", fault, "use another checkpoint")
    elif checkpoint.is_dir() and not (checkpoint / "model.pt").exists():
        path = weights_path(checkpoint)
    if (checkpoint / "config.json").is_file() and not (checkpoint / "train.yaml").is_file():
        to_do = "set encoder_conf.path to it, or convert a model that was fine-tuned with CTC by `wenet-hs import`"
        raise CheckpointError(
            f"--checkpoint {checkpoint}", "is a folder in Hugging Face's layout", to_do
        )
    return path


def _check_files_of(weights: ModelWeights, files: FilesOfWeights) -> None:
    """Raise CheckpointError or DataError if the files changed, or belong to other weights."""
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
    """The trees of the heads, by their sections: from files, or that in an original checkpoint.

    Raises DataError if a tree is damaged or not over the units of the table.
    """
    trees: dict[str, AnyTree] = {}
    for section, default_name in TREE_FILES.items():
        name = default_name
        if files.config is not None:
            name = Path(getattr(head_confs(files.config)[section], "tree", "")).name
        has_own_tree = section == "head_conf" and weights.original_tree is not None
        if has_own_tree or not name or not (files.folder / name).is_file():
            continue
        trees[section] = load_tree(files.folder / name)
        if files.table is not None:
            check_tree(trees[section], files.table.units, files.folder / name)
    tree = weights.original_tree
    if tree is not None:
        trees["head_conf"] = tree if files.table is None else replace(tree, units=files.table.units)
    return trees


def match_units(old: UnitTable, new: UnitTable) -> UnitMap:
    """Match units by text (NFC), and special units by their role.

    One table may have <sos/eos> and the other <sos> and <eos>. In the embedding both <sos> and
    <eos> then correspond to <sos/eos>. In a head <eos> corresponds to <sos/eos>, and <sos> is new:
    two copies would share the probability.
    """
    ids = [old.id_of(unit) for unit in new.units]
    known = [
        -1 if i in new.special_ids or found in old.special_ids else found
        for i, found in enumerate(ids)
    ]
    inputs = np.array([-1 if found is None else found for found in known], dtype=np.int64)
    inputs[new.special.blank] = old.special.blank
    if new.special.unk is not None and old.special.unk is not None:
        inputs[new.special.unk] = old.special.unk
    outputs = inputs.copy()
    if old.special.sos != old.special.eos:
        outputs[new.special.sos] = old.special.sos
    outputs[new.special.eos] = old.special.eos
    inputs[new.special.eos] = old.special.eos
    inputs[new.special.sos] = old.special.sos
    return UnitMap(inputs, outputs)


def map_head(old: OutputHead, new: OutputHead, outputs: Ints) -> dict[str, RowMapping]:
    """The row mappings of a head's parameters, by their names in the head; none for heads of
    different classes.

    The rows of other heads than softmax and binary trees are taken only if the units and their
    structure are equal.
    """
    is_flipped = None
    match old, new:
        case SoftmaxHead(), SoftmaxHead():
            source = outputs
        case HSoftmaxHead(tree=old_tree), HSoftmaxHead(tree=new_tree):
            source, is_flipped = _map_nodes(old_tree, new_tree, outputs)
        case _ if type(old) is type(new) and _are_equal(old, new, outputs):
            return {
                name: RowMapping(name, np.arange(len(rows)))
                for name, rows in new.named_parameters()
            }
        case _:
            return {}
    return {name: RowMapping(name, source, is_flipped) for name, _ in new.named_parameters()}


def _are_equal(old: OutputHead, new: OutputHead, outputs: Ints) -> bool:
    """Whether units, shapes and tables of two heads of one class are equal."""
    same_units = old.num_units == new.num_units and bool((outputs == np.arange(len(outputs))).all())
    tables = ({name: table.tolist() for name, table in head.named_buffers()} for head in (old, new))
    return same_units and _head_shapes(old) == _head_shapes(new) and next(tables) == next(tables)


def _map_nodes(old: Tree, new: Tree, outputs: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """(V-1,) the old node that splits the shared units like each new node, and whether left and
    right are swapped.

    Both sides must have shared units.
    """
    old_keys, new_keys = _shared_unit_keys(old, new, outputs)
    old_splits = enumerate(old_keys[old.children].tolist())
    splits = {(left, right): node for node, (left, right) in old_splits if left and right}
    source = np.full(len(new.children), -1, dtype=np.int64)
    is_flipped = np.zeros(len(new.children), dtype=np.bool_)
    for node, (left, right) in enumerate(new_keys[new.children].tolist()):
        if (left, right) in splits:
            source[node] = splits[left, right]
        elif (right, left) in splits:
            source[node], is_flipped[node] = splits[right, left], True
    return source, is_flipped


def _shared_unit_keys(old: Tree, new: Tree, outputs: Ints) -> list[NDArray[np.uint64]]:
    """A key of the shared units below each node, of the old tree and of the new one; 0 where there
    are none.

    It is a sum of random numbers, so two different sets have equal keys with a probability of
    2^-64.
    """
    is_shared = outputs >= 0
    new_codes = np.random.default_rng(0).integers(1, 2**64 - 1, size=len(outputs), dtype=np.uint64)
    new_codes[~is_shared] = 0
    old_codes = np.zeros(old.num_units, dtype=np.uint64)
    old_codes[outputs[is_shared]] = new_codes[is_shared]
    return [old.sum_leaves(old_codes), new.sum_leaves(new_codes)]
