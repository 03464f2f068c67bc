# SPDX-License-Identifier: Apache-2.0
"""Tree folders and tree heads of the paper's original implementation, and trees known by the paths
of their leaves.

A folder has `tree_struct` (JSON, each node inside its parent), `tree_info`, and the units' paths as
`path_index.npy` (inner nodes from the root), `path_sign.npy` (1 left, -1 right, 0 after the end)
and `path_bias.npy` (0 left, else 1), so that the probability of a decision is sign·σ(z) + bias. Its
inner nodes are numbered in preorder, ours breadth first; σ(z) is the probability of the left child
in both. `tokenid` is the id of the unit.

Dimension key: V units (leaves), N = V-1 inner nodes, P longest path, D width.
"""

import io
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import CheckpointError, DataError, one_line
from wenet_hs.tree.huffman import NO_ROWS, breadth_first_order, number_breadth_first
from wenet_hs.tree.text_file import read_utf8
from wenet_hs.tree.tree import Tree

STRUCT, INFO = "tree_struct", "tree_info"
PATHS = ("path_index.npy", "path_sign.npy", "path_bias.npy")
VECTORS = "hsoftmax.inner_vector.weight"
"""(N, D) in a checkpoint, rows in preorder."""
_BUFFERS = "hsoftmax.path_"
_OTHER = "take another checkpoint of this model"


class RenumberedTree(NamedTuple):
    """A tree in our numbering, and their number of each of our inner nodes: `our_vectors =
    their_vectors[rows]`.
    """

    children: NDArray[np.int64]
    """(N, 2) in the numbering of `Tree`."""
    rows: NDArray[np.int64]
    """(N,)."""


def tree_from_paths(nodes: NDArray[np.integer], turns: NDArray[np.integer]) -> RenumberedTree:
    """The tree whose leaves have these paths from the root.

    Args:
        nodes: (V, P) their inner nodes 0…V-2 on the path; any number where `turns` is 0.
        turns: (V, P) the turn at each: +1 left, -1 right, 0 padding after the end.
    Raises ValueError: one line with the first unit or node where the paths are not those of one
        tree.
    """
    num_units, is_step = len(nodes), turns != 0
    if num_units == 1 and not is_step.any():
        return RenumberedTree(NO_ROWS, np.zeros(0, dtype=np.int64))
    has_gap = (is_step[:, 1:] & ~is_step[:, :-1]).any(1)
    is_outside = (is_step & ((nodes < 0) | (nodes >= num_units - 1))).any(1)
    if (is_wrong := has_gap | is_outside | ~is_step.any(1)).any():
        where = f"the path of unit {np.argmax(is_wrong)}"
        raise ValueError(
            f"{where} is empty, has a gap, or has an inner node that is not 0…{num_units - 2}"
        )
    units, _ = np.nonzero(is_step)
    here = nodes[is_step].astype(np.int64)
    is_first = np.append(True, units[1:] != units[:-1])
    is_last = np.append(is_first[1:], True)
    slots, children = (
        2 * here + (turns[is_step] < 0),
        np.where(is_last, units, num_units + np.append(here[1:], 0)),
    )
    pairs, root = np.full(2 * (num_units - 1), -1, dtype=np.int64), int(here[0])
    pairs[slots] = children
    if (is_wrong := (pairs[slots] != children) | (is_first & (here != root))).any():
        raise ValueError(
            f"the path of unit {units[np.argmax(is_wrong)]} contradicts that of another unit"
        )
    if (pairs < 0).any():
        raise ValueError(
            f"inner node {np.argmin(pairs) // 2} has only one child in the paths of all units"
        )
    # Every path begins at the root and each child is the same in all paths, so every node is a
    # child exactly once.
    rows = pairs.reshape(-1, 2)
    return RenumberedTree(number_breadth_first(rows, root), breadth_first_order(rows, root))


# ---- folders


def read_original_tree(folder: Path | str, units: Sequence[str]) -> Tree:
    """The tree of a folder's `tree_struct` over our units: `tokenid` i is unit i.

    Raises DataError, one line with the file's name, if it is damaged or has other units.
    """
    path = Path(folder) / STRUCT
    try:
        children, frequencies = _struct_tree(json.loads(read_utf8(path)), len(units))
        options = {"source": "hsoftmax original", "folder": str(folder)}
        return Tree("original", tuple(units), children, frequencies, options)
    except RecursionError as error:
        raise DataError(
            path, "nested too deeply", "a tree of counts has less than a hundred levels"
        ) from error
    except ValueError as error:
        raise DataError(
            path, one_line(error), "copy the folder again from where it was made"
        ) from error


def write_original_tree(tree: Tree, folder: Path | str) -> None:
    """Write the files of a tree folder; other files in the folder stay.

    Raises DataError if the tree is too deep for the tables of paths, or to be nested.
    """
    folder = Path(folder)
    numbers = _preorder(tree)
    try:
        nodes, turns = tree.paths()
        struct = json.dumps(_struct(tree, numbers))
    except (ValueError, RecursionError) as error:
        found = (
            f"a tree of {tree.depth} levels cannot be written"
            if isinstance(error, RecursionError)
            else str(error)
        )
        raise DataError(folder, found, "the original's format has no other form of it") from error
    write_atomic(folder / STRUCT, struct + "\n")
    write_atomic(
        folder / INFO, json.dumps({"depth": tree.depth + 1, "leaf_cnt": tree.num_units}, indent=1)
    )
    # (V, P+1): the last column is padding, because they count the levels with the leaves.
    sign = np.pad(turns, ((0, 0), (0, 1)))
    index = np.zeros(sign.shape, dtype=np.int64)
    index[:, :-1] = np.where(turns == 0, 0, numbers[nodes])
    for name, array in zip(PATHS, (index, sign, (sign != 1).astype(np.int8)), strict=True):
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        write_atomic(folder / name, content.getvalue())


def _struct_tree(root: Any, num_units: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The children (N, 2) and the frequencies (V,) of nested nodes. Raises ValueError."""
    nodes = [root]
    for (
        node
    ) in nodes:  # children are appended while the list is read, so the order is breadth first
        if not isinstance(node, dict) or not {"freq", "tokenid", "left", "right"} <= node.keys():
            raise ValueError(f"{repr(node)[:40]} is not a node with freq, tokenid, left and right")
        if not _is_leaf(node):
            nodes += [node["left"], node["right"]]
    leaves = [node for node in nodes if _is_leaf(node)]
    if len(leaves) != num_units:
        raise ValueError(f"has {len(leaves)} leaves, but the unit table {num_units} units")
    frequencies = np.full(num_units, np.nan)
    for unit_id, freq in ((leaf["tokenid"], leaf["freq"]) for leaf in leaves):
        if type(unit_id) is not int or not 0 <= unit_id < num_units:
            raise ValueError(
                f"a leaf has tokenid {unit_id}; with {num_units} units it is 0…{num_units - 1}"
            )
        if type(freq) not in (int, float) or not np.isnan(frequencies[unit_id]):
            raise ValueError(f"tokenid {unit_id}: two leaves, or freq {freq!r} is not a number")
        frequencies[unit_id] = freq
    inner = itertools.count(1)
    children = [
        num_units - 1 + node["tokenid"] if _is_leaf(node) else next(inner) for node in nodes[1:]
    ]
    return np.array(children, dtype=np.int64).reshape(-1, 2), frequencies


def _is_leaf(node: dict[str, Any]) -> bool:
    return node["left"] is None and node["right"] is None


def _struct(tree: Tree, numbers: NDArray[np.int64]) -> dict[str, Any]:
    """The root of the nested nodes."""
    unit_ids = [*[None] * tree.num_inner, *range(tree.num_units)]
    fields = zip(tree.weights().tolist(), unit_ids, numbers.tolist(), strict=True)
    nodes = [
        {"freq": freq, "tokenid": unit, "idx": idx, "left": None, "right": None}
        for freq, unit, idx in fields
    ]
    for node, (left, right) in zip(nodes, tree.children.tolist(), strict=False):
        node["left"], node["right"] = nodes[left], nodes[right]
    return nodes[0]


def _preorder(tree: Tree) -> NDArray[np.int64]:
    """(N+V,) their number of each node.

    Of inner nodes: a node, all below its left child, all below its right child.
    """
    # Nodes with the same first leaf are on one path, and in breadth-first order the upper one has
    # the lower number.
    inner = np.argsort(np.argsort(tree.first_leaves()[: tree.num_inner], kind="stable"))
    return np.append(inner, np.arange(tree.num_inner, tree.num_inner + tree.num_units))


# ---- checkpoints


def is_original(state: Mapping[str, Tensor]) -> bool:
    """Whether a state_dict has the original's tree head."""
    return VECTORS in state


def _tree_of_state(state: Mapping[str, Tensor]) -> RenumberedTree:
    """The tree of a checkpoint, read from its buffers of paths; no folder is needed.

    Raises CheckpointError if they are not one tree.
    """
    buffers = [f"{_BUFFERS}{name}" for name in ("index", "sign", "bias")]
    missing = [name for name in buffers if name not in state]
    if missing:
        raise CheckpointError(
            "state_dict", f"{VECTORS} without {missing[0]}", "take the complete checkpoint"
        )
    shape = tuple(state[VECTORS].shape)
    if len(shape) != 2:
        raise CheckpointError("state_dict", f"{VECTORS} has shape {shape}, expected (N, D)", _OTHER)
    num_units = shape[0] + 1
    # Averaging checkpoints makes them floats; they are equal in all checkpoints, so they are still
    # whole numbers.
    flat = [state[name].double().round().long().numpy() for name in buffers]
    if len({array.size for array in flat}) != 1 or flat[0].size % num_units:
        sizes = ", ".join(str(array.size) for array in flat)
        raise CheckpointError(
            "state_dict", f"{_BUFFERS}* of {sizes} numbers for {num_units} units", _OTHER
        )
    index, sign, bias = (array.reshape(num_units, -1) for array in flat)
    try:
        if not (np.isin(sign, (-1, 0, 1)).all() and (bias == (sign != 1)).all()):
            raise ValueError(f"{_BUFFERS}sign and {_BUFFERS}bias contradict each other")
        return tree_from_paths(index, sign)
    except ValueError as error:
        raise CheckpointError("state_dict", str(error), _OTHER) from error


def saved_tree(state: Mapping[str, Tensor], num_units: int, where: str) -> Tree:
    """The tree of a checkpoint as a `Tree`; the names of its units are their ids, and all
    frequencies are 1.

    Raises CheckpointError if it is not a tree over `num_units` units.
    """
    children = _tree_of_state(state).children
    if len(children) + 1 != num_units:
        found = f"its tree has {len(children) + 1} units, but its decoder has {num_units}"
        raise CheckpointError(where, found, _OTHER)
    ones = np.ones(len(children) + 1)
    return Tree.build("original", lambda _: children, ones, options={"source": "hsoftmax original"})


def convert_tree_head(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their state_dict with the vectors of our tree head.

    The buffers of paths are left out, because the tree has its own file here, and so is the
    decoder's softmax layer, which they create and never use. Our head must have the same tree:
    `read_original_tree` of that training's folder.
    """
    rows = torch.from_numpy(_tree_of_state(state).rows)
    kept = {
        name: value
        for name, value in state.items()
        if not name.startswith(("hsoftmax.", "decoder.output_layer."))
    }
    return {**kept, "head.inner_vector.weight": state[VECTORS][rows]}
