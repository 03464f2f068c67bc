# SPDX-License-Identifier: Apache-2.0
"""From the settings of a head and its tree to the head: any head with any tree, one `case` a head."""

from collections.abc import Sequence
from pathlib import Path

import torch

from wenet_hs.config.schema import (
    AdaptiveHeadConf,
    ClassHeadConf,
    ExperimentConfig,
    HeadConf,
    HSoftmaxHeadConf,
    SoftmaxHeadConf,
)
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.heads.adaptive import AdaptiveHead
from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.classes import ClassHead
from wenet_hs.heads.hsoftmax import HSoftmaxHead
from wenet_hs.heads.search import has_triton
from wenet_hs.heads.softmax import SoftmaxHead
from wenet_hs.tree import Tree
from wenet_hs.tree.nary import NaryTree, load_tree

AnyTree = Tree | NaryTree

TREE_FILES = {"head_conf": "tree.json", "ctc_conf.head_conf": "ctc_tree.json"}
"""The trees of an experiment folder, by the section that names them: the decoder's and the CTC branch's."""


def head_confs(config: ExperimentConfig) -> dict[str, HeadConf]:
    """The settings of the decoder's head and of the CTC branch's, by their dotted section."""
    return {"head_conf": config.head_conf, "ctc_conf.head_conf": config.ctc_conf.head_conf}


def tree_paths(config: ExperimentConfig) -> dict[str, str]:
    """The trees that a configuration names: section → path."""
    return {section: conf.tree for section, conf in head_confs(config).items() if not isinstance(conf, SoftmaxHeadConf)}


def check_routes(config: ExperimentConfig, device: torch.device) -> None:
    """Raise ConfigError where a head is to compute its costs or to search by kernels that this device does not have."""
    for section, conf in head_confs(config).items():
        if isinstance(conf, HSoftmaxHeadConf | ClassHeadConf) and conf.search == "best_first":
            is_tree = isinstance(conf, HSoftmaxHeadConf)
            if device.type != "cpu" and not (is_tree and device.type == "cuda" and has_triton()):
                other = "dense" if is_tree else "all"
                raise ConfigError(f"{section}.search: best_first does not run on {device.type}; use auto or {other}")
        if isinstance(conf, HSoftmaxHeadConf) and conf.route in ("path", "nodes") and device.type != "cpu":
            raise ConfigError(
                f"{section}.route: {conf.route} runs on a CPU alone, here is {device.type}; use auto or "
                f"torch-{conf.route}"
            )


def read_tree(path: Path, units: Sequence[str]) -> AnyTree:
    """The tree in a file. Raises DataError if it is damaged or not over these units."""
    tree = load_tree(path)
    check_tree(tree, len(units), units, str(path))
    return tree


def build_head(
    conf: HeadConf,
    dim: int,
    num_units: int,
    *,
    tree: AnyTree | None = None,
    units: Sequence[str] | None = None,
    section: str = "head_conf",
) -> OutputHead:
    """A head with fresh weights.

    Args:
        tree: for every head but the softmax; binary or of classes, the head makes of it what it needs.
        units: of the unit table, so that a tree of other units is refused; without them only its size is compared.
        section: where `conf` stands, for error messages.
    Raises: DataError where the tree is of other units, ConfigError where a setting does not fit it.
    """
    if isinstance(conf, SoftmaxHeadConf):
        return SoftmaxHead(dim, num_units)
    if tree is None:
        raise ValueError(f"{section}: this head is built with a tree")
    check_tree(tree, num_units, units, conf.tree)
    match conf:
        case HSoftmaxHeadConf(bias=bias, sparse_grad=sparse_grad, route=route, search=search):
            binary = tree.binary() if isinstance(tree, NaryTree) else tree
            return HSoftmaxHead(dim, binary, bias, sparse_grad=sparse_grad, route=route, search=search)
        case ClassHeadConf(sparse_grad=sparse_grad, route=route, search=search):
            classes = _classes(tree, conf, section)
            return ClassHead(dim, classes, sparse_grad=sparse_grad, route=route, search=search)
        case AdaptiveHeadConf(cutoffs=cutoffs, div_value=div_value):
            if cutoffs is not None and cutoffs[-1] >= num_units:
                raise ConfigError(
                    f"{section}.cutoffs: the last is {cutoffs[-1]}, but there are {num_units} units; it must be below "
                    "their number"
                )
            return AdaptiveHead(dim, tree.frequencies, cutoffs, div_value)


def _classes(tree: AnyTree, conf: ClassHeadConf, section: str) -> NaryTree:
    if isinstance(tree, Tree):
        return NaryTree.from_binary(tree, conf.num_classes)
    if conf.num_classes is not None:
        raise ConfigError(
            f"{section}.num_classes: {conf.tree} has its classes already; remove it, or name a binary tree"
        )
    return tree


def check_tree(tree: AnyTree, num_units: int, units: Sequence[str] | None, path: str) -> None:
    """The leaf of unit i must be unit i of the table. Raises DataError naming the first difference."""
    remedy = "build the tree again from this unit table with `wenet-hs tree build`"
    if tree.num_units != num_units:
        raise DataError(f"{path}: a tree over {tree.num_units} units, but the unit table has {num_units}; {remedy}")
    for unit_id, (leaf, unit) in enumerate(zip(tree.units, units or tree.units, strict=True)):
        if leaf != unit:
            raise DataError(
                f"{path}: leaf {unit_id} is {leaf!r}, but unit {unit_id} of the table is {unit!r}; {remedy}"
            )
