# SPDX-License-Identifier: Apache-2.0
"""The settings of the heads.

A new head needs one class here, with its name in `HEADS` and `HeadConf`.

A head of an installed package has a class of settings too (docs/design/0024-extensions.md).
"""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationInfo, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from wenet_hs.base.extensions import is_known_name
from wenet_hs.config.extensions import make_name_validator, settings_class
from wenet_hs.config.section import Conflict, Count, Section, read_section


class SoftmaxHeadConf(Section):
    """`head: softmax`: a softmax over all units. It has no settings."""


class TreeHeadConf(Section):
    """A head that is built from a tree over the units."""

    tree: str
    """Path of the tree.json that `wenet-hs tree build` wrote for the same units. hsoftmax makes a
    class tree binary, class cuts a binary tree into classes, and adaptive reads only the
    frequencies.
    """


class HSoftmaxHeadConf(TreeHeadConf):
    """`head: hsoftmax`: a binary tree over the units with a logistic decision at each inner node."""

    bias: bool = False
    """Whether each inner node has a bias besides its vector."""
    sparse_grad: bool = False
    """Whether a step updates only the vectors on the paths of its targets; for very many units,
    with `optim: adam`.
    """


class ClassHeadConf(TreeHeadConf):
    """`head: class`: a tree of classes over the units with a softmax at each inner node."""

    num_classes: Count | None = None
    """Number of classes that the top of a binary tree is cut into; null: the square root of the
    number of units.
    """
    sparse_grad: bool = False
    """Whether a step updates only the vectors of the nodes on the paths of its targets; with
    `optim: adam`.
    """


class AdaptiveHeadConf(TreeHeadConf):
    """`head: adaptive`: PyTorch's adaptive softmax.

    Frequent units come first, rarer ones in narrower clusters.
    """

    cutoffs: list[Count] | None = None
    """Ranks at which the clusters begin; null: where 1/2, 3/4 and 7/8 of all occurrences are
    reached.
    """
    div_value: Annotated[float, Field(ge=1)] = 4.0
    """Factor by which each cluster is narrower than the one before; lowered if the last one would
    have no width.
    """

    def conflicts(self) -> Iterator[Conflict]:
        """Cutoffs that do not ascend."""
        if self.cutoffs is None:
            return
        is_ascending = self.cutoffs == sorted(set(self.cutoffs))
        if not self.cutoffs or not is_ascending:
            yield "cutoffs", f"must be one or more ascending numbers, got {self.cutoffs}"


HEADS: dict[str, type[Section]] = {
    "softmax": SoftmaxHeadConf,
    "hsoftmax": HSoftmaxHeadConf,
    "class": ClassHeadConf,
    "adaptive": AdaptiveHeadConf,
}
HeadKind = Annotated[
    str,
    BeforeValidator(make_name_validator("head", HEADS)),
    WithJsonSchema({"type": "string", "enum": [*HEADS]}),
]
"""A name of HEADS, or a head of an installed package."""
HeadConf = (
    SoftmaxHeadConf
    | HSoftmaxHeadConf
    | ClassHeadConf
    | AdaptiveHeadConf
    | SkipJsonSchema[SerializeAsAny[Section]]  # of a package
)


def head_settings(head: str) -> type[Section]:
    """The class of the settings of a head.

    Raises ConfigError if it is not ours and no installed package declares it, or if what the
    package declares is no class of settings.
    """
    return settings_class("head", HEADS, head)


def has_tree(head: str) -> bool:
    """Whether a head is built from a tree. Raises ConfigError as `head_settings` does."""
    return issubclass(head_settings(head), TreeHeadConf)


def is_without_tree(head: str) -> bool:
    """Whether there is a head of this name, and it has no tree. False for a wrong name.

    Raises ConfigError if the package of the head cannot be used or imported, or if what it declares
    is no class of settings.
    """
    return is_known_name("head", HEADS, head) and not has_tree(head)


def read_head(value: Any, info: ValidationInfo) -> Any:
    """A `head_conf`, read by the class that the setting `head` beside it selects.

    `value`: what the file has, or the default. `info.data`: the settings before it that are valid.
    Raises ConfigError if the package of the head cannot be used.
    """
    head = info.data.get("head")
    if head is None:  # its name is wrong
        classes = HEADS
    else:
        classes = {**HEADS, head: head_settings(head)}
    return read_section(value, head, classes)
