# SPDX-License-Identifier: Apache-2.0
"""The settings of the heads. A new head needs one class here, with its name in `HeadKind`, `HeadConf` and `HEADS`."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo

from wenet_hs.config.section import Count, Section, read_section


class SoftmaxHeadConf(Section):
    """`head: softmax` has no settings."""


class TreeHeadConf(Section):
    """A head that is built from a tree over the units."""

    tree: str
    """Path of the tree.json that `wenet-hs tree build` wrote for the same units. hsoftmax makes a class tree binary,
    class cuts a binary tree into classes, and adaptive reads only the frequencies."""


class HSoftmaxHeadConf(TreeHeadConf):
    """`head: hsoftmax`: a binary tree over the units with a logistic decision at each inner node."""

    bias: bool = False
    """Whether each inner node has a bias besides its vector."""
    sparse_grad: bool = False
    """Whether a step updates only the vectors on the paths of its targets; for very many units, with `optim: adam`."""


class ClassHeadConf(TreeHeadConf):
    """`head: class`: a tree of classes over the units with a softmax at each inner node."""

    num_classes: Count | None = None
    """Number of classes that the top of a binary tree is cut into; null: the square root of the number of units."""
    sparse_grad: bool = False
    """Whether a step updates only the vectors of the nodes on the paths of its targets; with `optim: adam`."""


class AdaptiveHeadConf(TreeHeadConf):
    """`head: adaptive`: PyTorch's adaptive softmax. Frequent units come first, rarer ones in narrower clusters."""

    cutoffs: list[Count] | None = None
    """Ranks at which the clusters begin; null: where 1/2, 3/4 and 7/8 of all occurrences are reached."""
    div_value: Annotated[float, Field(ge=1)] = 4.0
    """Factor by which each cluster is narrower than the one before; lowered if the last one would have no width."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        if self.cutoffs is not None and (not self.cutoffs or self.cutoffs != sorted(set(self.cutoffs))):
            yield "cutoffs", f"must be one or more ascending numbers, got {self.cutoffs}"


HeadKind = Literal["softmax", "hsoftmax", "class", "adaptive"]
HeadConf = SoftmaxHeadConf | HSoftmaxHeadConf | ClassHeadConf | AdaptiveHeadConf

REMOVED = {
    "route": ("auto", "path", "nodes", "torch-path", "torch-nodes", "all"),
    "search": ("auto", "torch", "best_first", "dense", "all"),
}
"""Settings of a head that folders of before 2026-11-26 have, with their values: how it computes, not what. They are
dropped."""
HEADS: dict[str, type[Section]] = {
    "softmax": SoftmaxHeadConf,
    "hsoftmax": HSoftmaxHeadConf,
    "class": ClassHeadConf,
    "adaptive": AdaptiveHeadConf,
}


def read_head(value: Any, info: ValidationInfo) -> Any:
    """A `head_conf`, read by the class that the `head` beside it selects."""
    return read_section(value, info.data.get("head"), HEADS)
