# SPDX-License-Identifier: Apache-2.0
"""The model that a fine-tuning begins with: its weights, and what stands beside them of its units and heads.

Dimension key: V units, D width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from wenet_hs.build import TREE_FILES, AnyTree, build_head, check_files, check_old_convention, head_confs
from wenet_hs.checkpoint import MANIFEST, damage
from wenet_hs.config.load import load_config
from wenet_hs.config.schema import (
    AdaptiveHeadConf,
    ClassHeadConf,
    ExperimentConfig,
    HeadConf,
    HSoftmaxHeadConf,
    SoftmaxHeadConf,
)
from wenet_hs.errors import CheckpointError
from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.class_softmax import ClassHead
from wenet_hs.interop.hsoftmax_original import is_original, saved_tree
from wenet_hs.interop.weights import (
    check_num_units,
    convert_state_dict,
    is_wenet,
    load_state,
    state_num_units,
    state_width,
)
from wenet_hs.text.units import UnitTable, check_special
from wenet_hs.tree import Tree
from wenet_hs.tree.nary import load_tree

HEAD_PREFIXES = {"head_conf": ("head.", "right_head."), "ctc_conf.head_conf": ("ctc.head.",)}
"""Which parameters are of a head, by the section of its settings; both decoders' heads have one structure."""
_TABLES = ("units.txt", "lang_char.txt", "words.txt")
"""Names of unit tables, in WeNet's recipes the latter two."""


@dataclass(frozen=True)
class BaseModel:
    """What is known of a trained model."""

    path: Path
    """The file or checkpoint folder that the weights are from."""
    state: dict[str, Tensor]
    """Its weights under our names, on the CPU."""
    home: Path
    """The folder whose other files belong to it."""
    table_path: Path | None
    table: UnitTable | None
    """Its units; None where no table stands beside it."""
    config: ExperimentConfig | None
    trees: dict[str, AnyTree]
    """By section of the head."""
    is_original: bool = False
    """Whether the decoder's head is that of the paper's original implementation, whatever the config says."""

    @property
    def num_units(self) -> int:
        """V."""
        return state_num_units(self.state, str(self.path))

    def head_shapes(self, prefix: str) -> dict[str, torch.Size]:
        """Shapes of the parameters that begin so, by the rest of their names."""
        return {name.removeprefix(prefix): value.shape for name, value in self.state.items() if name.startswith(prefix)}

    def head(self, section: str, like: OutputHead, *, same_units: bool) -> OutputHead | None:
        """A head without these weights but of the structure that they belong to; None where it cannot be known.

        Args:
            like: the new model's head, whose structure they are taken to have where nothing stands beside them, if the
                shapes fit and `same_units`. But not if they may be a softmax's: a class head of a single node has the
                same shapes and its units in another order.

        Raises: CheckpointError where the train.yaml or the tree beside the weights is not theirs.
        """
        first, *others = (self.head_shapes(prefix) for prefix in HEAD_PREFIXES[section])
        if any(shapes not in ({}, first) for shapes in others):
            raise CheckpointError(f"{self.path}: its right_head.* has other shapes than its head.*; {_WHOLE}")
        return self._head(section, first, like, same_units=same_units)

    def _head(
        self, section: str, shapes: Mapping[str, torch.Size], like: OutputHead, *, same_units: bool
    ) -> OutputHead | None:
        tree = self.trees.get(section)
        if tree is None and not self._is_softmax(section, shapes):
            is_flat = isinstance(like, ClassHead) and like.num_edges == like.num_units
            return like if same_units and not is_flat and _shapes(like) == shapes else None
        conf = self._conf(section, shapes)
        if conf is None:
            return None
        with torch.random.fork_rng(devices=[]):  # its own weights are not used
            width = state_width(self.state, str(self.path))
            units = None if self.table is None else self.table.units
            head = build_head(conf, width, self.num_units, tree=tree, units=units, section=section)
        if _shapes(head) == shapes:
            return head
        if self.config is None:
            return None
        raise CheckpointError(
            f"{self.path}: its {HEAD_PREFIXES[section][0]}* are not those of the {type(head).__name__} that "
            f"{self.home / 'train.yaml'} and the tree beside it describe; put the weights and their own files together"
        )

    def _is_softmax(self, section: str, shapes: Mapping[str, torch.Size]) -> bool:
        if self.config is not None:
            return isinstance(head_confs(self.config)[section], SoftmaxHeadConf)
        return "output.weight" in shapes and shapes["output.weight"][0] == self.num_units

    def _conf(self, section: str, shapes: Mapping[str, torch.Size]) -> HeadConf | None:
        """The settings of a head, from its train.yaml, or as far as names of parameters and the tree tell them."""
        tree, path = self.trees.get(section), TREE_FILES[section]
        if self.config is not None and not (self.is_original and section == "head_conf"):
            return head_confs(self.config)[section]
        if "inner_vector.weight" in shapes:
            return HSoftmaxHeadConf(tree=path, bias="inner_vector.bias" in shapes)
        if "adaptive.head.weight" in shapes:
            return AdaptiveHeadConf(tree=path)
        if isinstance(tree, Tree):  # how many of its branches are classes stands in the train.yaml alone
            return None
        return SoftmaxHeadConf() if tree is None else ClassHeadConf(tree=path)


_WHOLE = "take another checkpoint of this model"


def _shapes(head: OutputHead) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in head.state_dict().items()}


def read_base_model(checkpoint: Path) -> BaseModel:
    """The model of `--checkpoint`: a file, a checkpoint folder, or a model folder; ours or WeNet's.

    Raises: CheckpointError, DataError or ConfigError where a file is damaged or belongs to another model.
    """
    path = _weights_path(checkpoint)
    raw = load_state(path)
    home, table_path, config = _surroundings(path)
    table = None if table_path is None else UnitTable.read(table_path)
    state = convert_state_dict(raw) if is_wenet(raw) else raw
    num_units = state_num_units(state, str(path))
    for name, value in state.items():
        if name.startswith("decoder.") and name.endswith(".embed.0.weight") and len(value) != num_units:
            raise CheckpointError(f"{path}: {name} is of {len(value)} units, the first of {num_units}; {_WHOLE}")
    if config is not None:
        check_files(home, config)
    if table is not None and table_path is not None:
        check_num_units(state, len(table), str(path), str(table_path))
        if config is not None:
            special = {str(name): unit_id for name, unit_id in (config.tokenizer_conf.special_tokens or {}).items()}
            check_special(table, special, f"{home / 'train.yaml'}: tokenizer_conf")
            if is_wenet(raw):
                check_old_convention(config, table, table_path)
    return BaseModel(path, state, home, table_path, table, config, _trees(raw, home, table, config), is_original(raw))


def _weights_path(checkpoint: Path) -> Path:
    if (checkpoint / MANIFEST).exists():
        fault = damage(checkpoint)
        if fault is not None:
            raise CheckpointError(f"--checkpoint {checkpoint}: {fault}; use another checkpoint")
        return checkpoint
    return checkpoint / "final.pt" if checkpoint.is_dir() and not (checkpoint / "model.pt").exists() else checkpoint


def _surroundings(path: Path) -> tuple[Path, Path | None, ExperimentConfig | None]:
    """The folder that weights are at home in, its unit table and its config.

    It is their own, or, if this is a checkpoint folder or a folder of such, the nearest above it with a unit table.
    """
    start = (path if path.is_dir() else path.parent).absolute()
    folders = [start]
    if start.name.startswith("step-") or (start / MANIFEST).exists():
        folders += start.parents[:2]
    elif start.name == "checkpoints":
        folders += start.parents[:1]
    for folder in folders:
        config = load_config(folder / "train.yaml") if (folder / "train.yaml").is_file() else None
        named = None if config is None else config.tokenizer_conf.symbol_table_path
        for name in (*([] if named is None else [Path(named).name]), *_TABLES):
            if (folder / name).is_file():
                return folder, folder / name, config
        if config is not None:
            return folder, None, config
    return start, None, None


def _trees(
    raw: Mapping[str, Tensor], home: Path, table: UnitTable | None, config: ExperimentConfig | None
) -> dict[str, AnyTree]:
    """The trees of the heads: the original tree head's from its own weights, the others from the files in `home`."""
    trees: dict[str, AnyTree] = {}
    for section, conf in _conf_or_none(config).items():
        name = TREE_FILES[section] if conf is None else Path(getattr(conf, "tree", "")).name
        if name and (home / name).is_file():
            trees[section] = load_tree(home / name)
    if is_original(raw):
        tree = saved_tree(raw)
        trees["head_conf"] = tree if table is None else replace(tree, units=table.units)
    return trees


def _conf_or_none(config: ExperimentConfig | None) -> Mapping[str, HeadConf | None]:
    return dict.fromkeys(TREE_FILES) if config is None else head_confs(config)
