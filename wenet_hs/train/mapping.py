# SPDX-License-Identifier: Apache-2.0
"""Which row of a trained model's parameters each row of a new model's takes, where their unit tables or trees differ.

Units are matched by their text. What stands for a set of units (a decision of a tree, a class, a cluster) is matched by
the units of both tables in it, the shared ones.

Dimension key: V new units, R rows of a new parameter.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wenet_hs.heads.adaptive import AdaptiveHead
from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.class_softmax import ClassHead
from wenet_hs.heads.hsoftmax import HSoftmaxHead
from wenet_hs.heads.softmax import SoftmaxHead
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import Tree
from wenet_hs.tree.nary import NaryTree

Ints = NDArray[np.int64]
Key = tuple[int, int]
"""Stands for a set of shared units: sums of random numbers, so that two sets have one with a chance of 2^-128."""
_NOTHING: Key = (0, 0)


class UnitMap(NamedTuple):
    """The old id of each new unit, (V,) each, -1 where it is new; no old id comes twice in `outputs`."""

    inputs: Ints
    """For what reads units: the decoder's embedding. It reads <sos> alone of the two ends."""
    outputs: Ints
    """For what scores units: the heads. They score <eos> alone of the two ends."""

    @property
    def is_identity(self) -> bool:
        """Whether every unit keeps its id; there may have been more."""
        own = np.arange(len(self.inputs))
        return bool((self.inputs == own).all() and (self.outputs == own).all())


class Rows(NamedTuple):
    """For each row of a new parameter the old row that it takes."""

    name: str
    """The old parameter's name inside the head."""
    source: Ints
    """(R,) old rows, -1 where the new row stays as it was drawn."""
    is_flipped: NDArray[np.bool_] | None = None
    """(R,) whether the row changes its sign: a decision whose left and right are swapped. None: nowhere."""


def match_units(old: UnitTable, new: UnitTable) -> UnitMap:
    """Units by their text (NFC), special ones by what they are for.

    Where one table has <sos/eos> and the other two units, an embedding of a begin or end is that of the same one, or of
    the one unit that was both; a score of <sos> is new where none was apart, for a second <eos> would share its chance.
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


def map_head(old: OutputHead, new: OutputHead, outputs: Ints) -> dict[str, Rows]:
    """The rows of a head's parameters by their names inside the head; none where the heads are of two kinds.

    Softmax: a unit's row. Tree: a node's vector from the old node that splits the shared units in the same way, the
    sign flipped if its left is the other's right; both sides must have some. Classes: a child's row from the old child
    with the same shared units, where they are not all its parent has. Adaptive softmax: a unit's row if it was in the
    first softmax already; a cluster's words and projection from the old cluster of the same width that has most of its
    shared units, and its entry in the first softmax if it is the one with the same shared units.
    """
    match old, new:
        case SoftmaxHead(), SoftmaxHead():
            return _same_rows(new, outputs)
        case HSoftmaxHead(tree=theirs), HSoftmaxHead(tree=ours):
            return _same_rows(new, *_nodes(theirs, ours, outputs))
        case ClassHead(), ClassHead():
            return _same_rows(new, _edges(_tree_of(old), _tree_of(new), outputs))
        case AdaptiveHead(), AdaptiveHead():
            return _adaptive(old, new, outputs)
    return {}


def _same_rows(head: OutputHead, source: Ints, is_flipped: NDArray[np.bool_] | None = None) -> dict[str, Rows]:
    return {name: Rows(name, source, is_flipped) for name, _ in head.named_parameters()}


def _keys(tree: Tree | NaryTree, codes: NDArray[np.uint64]) -> list[Key]:
    """Of each node, for codes (V, 2) of its units: the set of the shared ones below it."""
    first, second = (tree.sum_leaves(codes[:, column]) for column in range(2))
    return list(zip(first.tolist(), second.tolist(), strict=True))


def _codes(outputs: Ints, num_old: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Random numbers for the shared units, 0 for the others: of the old table, and of the new one."""
    is_shared = outputs >= 0
    new = np.random.default_rng(0).integers(1, 2**64 - 1, size=(len(outputs), 2), dtype=np.uint64)
    new[~is_shared] = 0
    old = np.zeros((num_old, 2), dtype=np.uint64)
    old[outputs[is_shared]] = new[is_shared]
    return old, new


def _nodes(old: Tree, new: Tree, outputs: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """(V-1,) the old node of each new one, and whether left and right are swapped."""
    old_codes, new_codes = _codes(outputs, old.num_units)
    splits = {split: node for node, split in enumerate(_splits(old, old_codes)) if _NOTHING not in split}
    source = np.full(len(new.children), -1, dtype=np.int64)
    is_flipped = np.zeros(len(new.children), dtype=np.bool_)
    for node, (left, right) in enumerate(_splits(new, new_codes)):
        if (left, right) in splits:
            source[node] = splits[left, right]
        elif (right, left) in splits:
            source[node], is_flipped[node] = splits[right, left], True
    return source, is_flipped


def _splits(tree: Tree, codes: NDArray[np.uint64]) -> Iterator[tuple[Key, Key]]:
    """The shared units left and right of each inner node."""
    keys = _keys(tree, codes)
    for left, right in tree.children.tolist():
        yield keys[left], keys[right]


def _tree_of(head: ClassHead) -> NaryTree:
    names = tuple(map(str, range(head.num_units)))
    return NaryTree("classes", names, head.edges.offsets, head.edges.children, np.ones(head.num_units))


def _edges(old: NaryTree, new: NaryTree, outputs: Ints) -> Ints:
    """(E,) the old child of each new one. A set of shared units is at most once less than all its parent has."""
    old_codes, new_codes = _codes(outputs, old.num_units)
    found = {child: edge for edge, child in enumerate(_choices(old, old_codes)) if child is not None}
    source = [-1 if child is None else found.get(child, -1) for child in _choices(new, new_codes)]
    return np.array(source, dtype=np.int64)


def _choices(tree: NaryTree, codes: NDArray[np.uint64]) -> Iterator[Key | None]:
    """The shared units of each child; None where there are none, or its parent has no others."""
    keys = _keys(tree, codes)
    for parent, child in zip(tree.edge_nodes.tolist(), tree.children.tolist(), strict=True):
        yield None if keys[child] in (_NOTHING, keys[parent]) else keys[child]


def _adaptive(old: AdaptiveHead, new: AdaptiveHead, outputs: Ints) -> dict[str, Rows]:
    if old.adaptive is None or new.adaptive is None:
        return {}
    old_bounds, new_bounds = [*old.cutoffs, old.num_units], [*new.cutoffs, new.num_units]
    # By rank in the new head: the unit's old rank and old cluster, -1 in the first softmax, -2 where it is new.
    sources = outputs[new.ranked_units.cpu().numpy()]
    ranks = np.where(sources >= 0, old.rank_of_unit.cpu().numpy()[sources], -1)
    clusters = np.where(ranks >= 0, np.searchsorted(old_bounds[:-1], ranks, side="right") - 1, -2)
    shared = np.bincount(clusters[clusters >= 0], minlength=len(old_bounds) - 1)
    first = np.where(clusters == -1, ranks, -1)[: new_bounds[0]].tolist()
    rows: dict[str, Rows] = {}
    for index, (start, end) in enumerate(zip(new_bounds[:-1], new_bounds[1:], strict=True)):
        here = clusters[start:end]
        counts = np.bincount(here[here >= 0], minlength=len(shared))
        best = int(counts.argmax()) if counts.any() else -1
        is_same = best >= 0 and counts[best] == shared[best] == (here != -2).sum()
        first.append(old_bounds[0] + best if is_same else -1)
        rows |= _cluster(old, new, (index, best), np.where(here == best, ranks[start:end] - old_bounds[best], -1))
    return {"adaptive.head.weight": Rows("adaptive.head.weight", np.array(first, dtype=np.int64)), **rows}


def _cluster(old: AdaptiveHead, new: AdaptiveHead, pair: tuple[int, int], words: Ints) -> dict[str, Rows]:
    """A new cluster's projection and words (their rows in the old cluster), where both are of one width."""
    ours, theirs = (f"adaptive.tail.{index}" for index in pair)
    width = len(new.get_parameter(f"{ours}.0.weight"))
    if pair[1] < 0 or len(old.get_parameter(f"{theirs}.0.weight")) != width:
        return {}
    return {
        f"{ours}.0.weight": Rows(f"{theirs}.0.weight", np.arange(width)),
        f"{ours}.1.weight": Rows(f"{theirs}.1.weight", words),
    }
