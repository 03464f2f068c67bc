# SPDX-License-Identifier: Apache-2.0
"""Row mapping between the parameters of two models with different unit tables or trees.

Units are matched by their text. A set of units (a side of a tree's decision, a class, a cluster) is matched by its
shared units, which are those of both tables.

Dimension key: V new units, R rows of a new parameter, E edges of a new tree.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wenet_hs.heads.adaptive import AdaptiveHead
from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.class_softmax import ClassHead
from wenet_hs.heads.hsoftmax import HSoftmaxHead
from wenet_hs.heads.softmax import SoftmaxHead
from wenet_hs.text.units import UnitTable
from wenet_hs.tree.tree import NaryTree, Tree

Ints = NDArray[np.int64]


class UnitMap(NamedTuple):
    """The old id of each new unit, (V,) each, -1 for a new unit. No old id comes twice in `outputs`."""

    inputs: Ints
    """For the decoder's embedding. Its inputs contain <sos>, but not <eos>."""
    outputs: Ints
    """For the heads. Their targets contain <eos>, but not <sos>."""

    @property
    def is_identity(self) -> bool:
        """Whether every unit keeps its id; the old table may have more units."""
        ids = np.arange(len(self.inputs))
        return bool((self.inputs == ids).all() and (self.outputs == ids).all())


class RowMapping(NamedTuple):
    """The old row that each row of a new parameter takes."""

    name: str
    """The name of the old parameter inside its head."""
    source: Ints
    """(R,) old rows, -1 where the new row keeps its random values."""
    is_flipped: NDArray[np.bool_] | None = None
    """(R,) whether the row changes its sign, because left and right are swapped. None: no row does."""


def match_units(old: UnitTable, new: UnitTable) -> UnitMap:
    """Match units by text (NFC), and special units by their role.

    One table may have <sos/eos> and the other <sos> and <eos>. In the embedding both <sos> and <eos> then correspond to
    <sos/eos>. In a head <eos> corresponds to <sos/eos>, and <sos> is new: two copies would share the probability.
    """
    ids = [old.id_of(unit) for unit in new.units]
    known = [-1 if i in new.special_ids or found in old.special_ids else found for i, found in enumerate(ids)]
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
    """The row mappings of a head's parameters, by their names in the head; none for heads of different classes."""
    is_flipped = None
    match old, new:
        case AdaptiveHead(), AdaptiveHead():
            return _map_adaptive(old, new, outputs)
        case SoftmaxHead(), SoftmaxHead():
            source = outputs
        case HSoftmaxHead(tree=old_tree), HSoftmaxHead(tree=new_tree):
            source, is_flipped = _map_nodes(old_tree, new_tree, outputs)
        case ClassHead(), ClassHead():
            source = _map_edges(_class_tree(old), _class_tree(new), outputs)
        case _:
            return {}
    return {name: RowMapping(name, source, is_flipped) for name, _ in new.named_parameters()}


def _map_nodes(old: Tree, new: Tree, outputs: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """(V-1,) the old node that splits the shared units like each new node, and whether left and right are swapped.

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


def _map_edges(old: NaryTree, new: NaryTree, outputs: Ints) -> Ints:
    """(E,) the old child with the same shared units as each new child.

    A child with all shared units of its parent is not mapped: then at most one child has a given set.
    """
    keys = []
    for tree, nodes in zip((old, new), _shared_unit_keys(old, new, outputs), strict=True):
        children = nodes[tree.children]
        keys.append(np.where(children == nodes[tree.edge_nodes], 0, children).tolist())
    edges = {key: edge for edge, key in enumerate(keys[0]) if key}
    return np.array([edges.get(key, -1) for key in keys[1]], dtype=np.int64)


def _shared_unit_keys(old: Tree | NaryTree, new: Tree | NaryTree, outputs: Ints) -> list[NDArray[np.uint64]]:
    """A key of the shared units below each node, of the old tree and of the new one; 0 where there are none.

    It is a sum of random numbers, so two different sets have equal keys with a probability of 2^-64.
    """
    is_shared = outputs >= 0
    new_codes = np.random.default_rng(0).integers(1, 2**64 - 1, size=len(outputs), dtype=np.uint64)
    new_codes[~is_shared] = 0
    old_codes = np.zeros(old.num_units, dtype=np.uint64)
    old_codes[outputs[is_shared]] = new_codes[is_shared]
    return [old.sum_leaves(old_codes), new.sum_leaves(new_codes)]


def _class_tree(head: ClassHead) -> NaryTree:
    names = tuple(map(str, range(head.num_units)))
    return NaryTree("classes", names, head.tree.children, np.ones(head.num_units), offsets=head.tree.offsets)


def _map_adaptive(old: AdaptiveHead, new: AdaptiveHead, outputs: Ints) -> dict[str, RowMapping]:
    """Row mappings of an adaptive softmax.

    In the first softmax a unit takes its old row if it was there before, and a cluster that of the old cluster with the
    same shared units. A cluster takes its words and projection from the old cluster that has most of its shared units,
    if that has the same width.
    """
    if old.adaptive is None or new.adaptive is None:
        return {}
    old_bounds, new_bounds = [*old.cutoffs, old.num_units], [*new.cutoffs, new.num_units]
    # By rank in the new head: the old rank of the unit, and its old cluster (-1: first softmax, -2: new unit).
    sources = outputs[new.ranked_units.cpu().numpy()]
    ranks = np.where(sources >= 0, old.rank_of_unit.cpu().numpy()[sources], -1)
    clusters = np.where(ranks >= 0, np.searchsorted(old_bounds[:-1], ranks, side="right") - 1, -2)
    num_shared = np.bincount(clusters[clusters >= 0], minlength=len(old_bounds) - 1)
    first = np.where(clusters == -1, ranks, -1)[: new_bounds[0]].tolist()
    mappings: dict[str, RowMapping] = {}
    for index, (start, end) in enumerate(zip(new_bounds[:-1], new_bounds[1:], strict=True)):
        here = clusters[start:end]
        counts = np.bincount(here[here >= 0], minlength=len(num_shared))
        best = int(counts.argmax()) if counts.any() else -1
        is_same = best >= 0 and counts[best] == num_shared[best] == (here != -2).sum()
        first.append(old_bounds[0] + best if is_same else -1)
        ours, theirs = f"adaptive.tail.{index}", f"adaptive.tail.{best}"
        width = len(new.get_parameter(f"{ours}.0.weight"))
        if best >= 0 and len(old.get_parameter(f"{theirs}.0.weight")) == width:
            words = np.where(here == best, ranks[start:end] - old_bounds[best], -1)
            mappings[f"{ours}.0.weight"] = RowMapping(f"{theirs}.0.weight", np.arange(width))
            mappings[f"{ours}.1.weight"] = RowMapping(f"{theirs}.1.weight", words)
    return {"adaptive.head.weight": RowMapping("adaptive.head.weight", np.array(first, dtype=np.int64)), **mappings}
