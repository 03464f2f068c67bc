# SPDX-License-Identifier: Apache-2.0
"""Tree folders and tree heads of the paper's original implementation, and trees known by the paths
of their leaves.

A folder has `tree_struct` (JSON, each node inside its parent), `tree_info`, and the units' paths as
`path_index.npy` (inner nodes from the root), `path_sign.npy` (1 left, -1 right, 0 after the end)
and `path_bias.npy` (0 left, else 1), so that the probability of a decision is sign·σ(z) + bias. Its
inner nodes are numbered in preorder, ours breadth first; σ(z) is the probability of the left child
in both. `tokenid` is the id of the unit.

Dimension key: V units (leaves), N = V-1 inner nodes, P longest path, S steps of all paths, D width.
"""

import io
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

STRUCT = "tree_struct"
INFO = "tree_info"
VECTORS = "hsoftmax.inner_vector.weight"
"""The vectors of the inner nodes in a checkpoint: (N, D), rows in preorder."""
_BUFFERS = "hsoftmax.path_"
"""How the names of the tables of paths begin in a checkpoint."""
_NO_CHILD = -1
_OTHER_CHECKPOINT = "take another checkpoint of this model"


class RenumberedTree(NamedTuple):
    """A tree in our numbering, and the original's number of each inner node."""

    children: NDArray[np.int64]
    """(N, 2) in the numbering of `Tree`."""
    rows: NDArray[np.int64]
    """(N,) the original's number of each of our inner nodes.

    `original_vectors[rows]` are the vectors in our order.
    """


def tree_from_paths(nodes: NDArray[np.integer], turns: NDArray[np.integer]) -> RenumberedTree:
    """The tree whose leaves have these paths from the root.

    Args:
        nodes: (V, P) the original's inner nodes 0…V-2 on the path; any number where `turns` is 0.
        turns: (V, P) the turn at each: +1 left, -1 right, 0 padding after the end.
    Raises ValueError: one line with the first unit or node where the paths are not those of one
        tree.
    """
    num_units = len(nodes)
    is_step = turns != 0
    if num_units == 1 and not is_step.any():
        return RenumberedTree(NO_ROWS, np.zeros(0, dtype=np.int64))
    _check_steps(nodes, is_step)
    # The steps (S,) of all paths, one path after the other: from `parents` to `targets`.
    units, _ = np.nonzero(is_step)
    parents = nodes[is_step].astype(np.int64)
    is_first = np.append(True, units[1:] != units[:-1])
    is_last = np.append(is_first[1:], True)
    next_parents = np.append(parents[1:], 0)  # of no use where a step is the last of its path
    # A unit is its id; inner node n is V+n.
    targets = np.where(is_last, units, num_units + next_parents)
    is_right = turns[is_step] < 0
    positions = 2 * parents + is_right  # left and right child of node 0, of node 1, …
    children = np.full(2 * (num_units - 1), _NO_CHILD, dtype=np.int64)
    children[positions] = targets
    root = int(parents[0])
    # Where two paths have different children for one position, only one of them is stored.
    differs_in_child = children[positions] != targets
    differs_in_root = is_first & (parents != root)
    is_wrong = differs_in_child | differs_in_root
    if is_wrong.any():
        unit = units[np.argmax(is_wrong)]
        raise ValueError(f"the path of unit {unit} contradicts that of another unit")
    is_missing = children == _NO_CHILD
    if is_missing.any():
        node = np.argmax(is_missing) // 2  # each node has two positions
        raise ValueError(f"inner node {node} has only one child in the paths of all units")
    # Every path begins at the root and each child is the same in all paths, so every node is a
    # child exactly once.
    rows = children.reshape(-1, 2)
    return RenumberedTree(number_breadth_first(rows, root), breadth_first_order(rows, root))


def _check_steps(nodes: NDArray[np.integer], is_step: NDArray[np.bool_]) -> None:
    """Raise ValueError for the first unit without a path of inner nodes 0…V-2.

    Args:
        nodes: (V, P) the nodes on the path of each unit.
        is_step: (V, P) False for padding, which comes after the path.
    """
    num_inner = len(nodes) - 1
    is_empty = ~is_step.any(1)
    has_gap = (is_step[:, 1:] & ~is_step[:, :-1]).any(1)
    is_no_inner_node = (nodes < 0) | (nodes >= num_inner)
    has_wrong_node = (is_step & is_no_inner_node).any(1)
    is_wrong = is_empty | has_gap | has_wrong_node
    if is_wrong.any():
        fault = f"is empty, has a gap, or has an inner node that is not 0…{num_inner - 1}"
        raise ValueError(f"the path of unit {np.argmax(is_wrong)} {fault}")


# ---- folders


def read_original_tree(folder: Path | str, units: Sequence[str]) -> Tree:
    """The tree of a folder's `tree_struct` over our units: `tokenid` i is unit i.

    Raises DataError, one line with the file's name, if it is damaged or has other units.
    """
    path = Path(folder) / STRUCT
    try:
        children, frequencies = _tree_of_struct(json.loads(read_utf8(path)), len(units))
        options = {"source": "hsoftmax original", "folder": str(folder)}
        return Tree("original", tuple(units), children, frequencies, options)
    except RecursionError as error:
        to_do = "a tree of counts has less than a hundred levels"
        raise DataError(path, "nested too deeply", to_do) from error
    except ValueError as error:
        to_do = "copy the folder again from where it was made"
        raise DataError(path, one_line(error), to_do) from error


def _tree_of_struct(root: Any, num_units: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The children (N, 2) and the frequencies (V,) of the nested nodes of a `tree_struct`.

    Inner nodes 0…N-1 are numbered breadth first, and N+i is the leaf of unit i.

    Raises ValueError if a value is not a node, or the leaves are not the units 0…V-1.
    """
    nodes = [root]
    for node in nodes:  # the loop also visits the nodes that it appends, so they are breadth first
        if not _is_node(node):
            raise ValueError(f"{repr(node)[:40]} is not a node with freq, tokenid, left and right")
        if not _is_leaf(node):
            nodes += [node["left"], node["right"]]
    leaves = [node for node in nodes if _is_leaf(node)]
    frequencies = _frequencies_of_leaves(leaves, num_units)
    num_inner = num_units - 1
    next_inner = 1  # 0 is the root
    children = []
    for node in nodes[1:]:  # all but the root are children, and siblings are adjacent
        if _is_leaf(node):
            children.append(num_inner + node["tokenid"])
        else:
            children.append(next_inner)
            next_inner += 1
    return np.array(children, dtype=np.int64).reshape(-1, 2), frequencies


def _is_node(value: Any) -> bool:
    """Whether a value has the fields of a node that are read here."""
    return isinstance(value, dict) and {"freq", "tokenid", "left", "right"} <= value.keys()


def _is_leaf(node: dict[str, Any]) -> bool:
    """Whether a node has no children. A node with only one is not a leaf, and is refused later."""
    return node["left"] is None and node["right"] is None


def _frequencies_of_leaves(leaves: Sequence[dict[str, Any]], num_units: int) -> NDArray[np.float64]:
    """The frequency of each unit (V,); a leaf has the id of its unit and its frequency.

    Raises ValueError unless there is one leaf per unit, and each frequency is a number.
    """
    if len(leaves) != num_units:
        raise ValueError(f"has {len(leaves)} leaves, but the unit table {num_units} units")
    frequencies = np.zeros(num_units)
    has_leaf = np.zeros(num_units, dtype=bool)
    for leaf in leaves:
        unit_id = leaf["tokenid"]
        frequency = leaf["freq"]
        # isinstance would take True for an int.
        if type(unit_id) is not int or not 0 <= unit_id < num_units:
            expected = f"with {num_units} units it is 0…{num_units - 1}"
            raise ValueError(f"a leaf has tokenid {unit_id}; {expected}")
        if has_leaf[unit_id] or type(frequency) not in (int, float):
            fault = f"two leaves, or freq {frequency!r} is not a number"  # one of the two
            raise ValueError(f"tokenid {unit_id}: {fault}")
        frequencies[unit_id] = frequency
        has_leaf[unit_id] = True
    return frequencies


def write_original_tree(tree: Tree, folder: Path | str) -> None:
    """Write `tree_struct`, `tree_info` and the three tables of paths of the original's tree folder.

    Other files in the folder stay. Raises DataError if the tree is too deep for the tables of
    paths, or for nodes inside of nodes in JSON.
    """
    folder = Path(folder)
    numbers = _original_numbers(tree)
    try:
        nodes, turns = tree.paths()
        struct = json.dumps(_struct_of_tree(tree, numbers))
    except (ValueError, RecursionError) as error:
        fault = str(error)
        if isinstance(error, RecursionError):
            fault = f"a tree of {tree.depth} levels cannot be written"
        raise DataError(folder, fault, "the original's format has no other form of it") from error
    info = {"depth": tree.depth + 1, "leaf_cnt": tree.num_units}
    write_atomic(folder / STRUCT, struct + "\n")
    write_atomic(folder / INFO, json.dumps(info, indent=1))
    # The tables (V, P+1) have a last column of padding, because the original counts the levels with
    # the leaves. A turn of 0 is padding too.
    sign = np.pad(turns, ((0, 0), (0, 1)))
    index = np.zeros(sign.shape, dtype=np.int64)
    index[:, :-1] = np.where(turns == 0, 0, numbers[nodes])
    bias = (sign != 1).astype(np.int8)  # 0 for a turn to the left, else 1
    _write_array(folder / "path_index.npy", index)
    _write_array(folder / "path_sign.npy", sign)
    _write_array(folder / "path_bias.npy", bias)


def _original_numbers(tree: Tree) -> NDArray[np.int64]:
    """(N+V,) the original's number of each of our nodes.

    The original numbers inner nodes in preorder: a node, all nodes below its left child, all nodes
    below its right child. Leaves have the same numbers as here.
    """
    # In preorder, nodes are ordered by the leaves to the left of them. Nodes with the same number
    # of these are on one path, and the upper one, which comes first, has the lower number here.
    first_leaves = tree.first_leaves()[: tree.num_inner]
    in_preorder = np.argsort(first_leaves, kind="stable")
    inner = np.argsort(in_preorder)  # the inverse permutation: the position of each node
    leaves = np.arange(tree.num_inner, tree.num_inner + tree.num_units)
    return np.append(inner, leaves)


def _struct_of_tree(tree: Tree, numbers: NDArray[np.int64]) -> dict[str, Any]:
    """The root of the original's nested nodes; each node has its children in `left` and `right`.

    `numbers` (N+V,) are the original's numbers of our nodes, which become `idx`.
    """
    weights = tree.weights().tolist()
    unit_ids = [*[None] * tree.num_inner, *range(tree.num_units)]  # None for inner nodes
    nodes = []
    for weight, unit_id, number in zip(weights, unit_ids, numbers.tolist(), strict=True):
        node = {"freq": weight, "tokenid": unit_id, "idx": number, "left": None, "right": None}
        nodes.append(node)
    for node, (left, right) in zip(nodes[: tree.num_inner], tree.children.tolist(), strict=True):
        node["left"] = nodes[left]
        node["right"] = nodes[right]
    return nodes[0]


def _write_array(path: Path, array: NDArray[Any]) -> None:
    """Write a NumPy file atomically."""
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    write_atomic(path, content.getvalue())


# ---- checkpoints


def is_original(state: Mapping[str, Tensor]) -> bool:
    """Whether a state_dict has the original's tree head."""
    return VECTORS in state


def saved_tree(state: Mapping[str, Tensor], num_units: int, where: str) -> Tree:
    """The tree of a checkpoint; its units are named by their ids, and all frequencies are 1.

    Raises CheckpointError, whose message begins with `where`, if it is not a tree over `num_units`
    units.
    """
    children = _tree_of_state(state).children
    if len(children) + 1 != num_units:
        fault = f"its tree has {len(children) + 1} units, but its decoder has {num_units}"
        raise CheckpointError(where, fault, _OTHER_CHECKPOINT)
    ones = np.ones(num_units)
    return Tree.build("original", lambda _: children, ones, options={"source": "hsoftmax original"})


def convert_tree_head(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the tree head in a state_dict of the original; other weights stay as they are.

    The vectors of the inner nodes get the name and the order that our tree head has. The buffers of
    paths are left out, because the tree has its own file here. The decoder's softmax layer is left
    out too: the original creates it and never uses it. Our head must have the same tree, which
    `read_original_tree` reads from that training's folder.

    Raises CheckpointError if the buffers of paths are not one tree.
    """
    rows = torch.from_numpy(_tree_of_state(state).rows)  # of each of our inner nodes
    converted = {}
    for name, value in state.items():
        if not name.startswith(("hsoftmax.", "decoder.output_layer.")):
            converted[name] = value
    converted["head.inner_vector.weight"] = state[VECTORS][rows]
    return converted


def _tree_of_state(state: Mapping[str, Tensor]) -> RenumberedTree:
    """The tree of a checkpoint, read from its buffers of paths; no folder is needed.

    Raises CheckpointError if they are not one tree.
    """
    index, sign, bias = _path_tables(state)
    are_signs = np.isin(sign, (-1, 0, 1)).all()  # right, padding, left
    is_bias_of_sign = (bias == (sign != 1)).all()  # 0 for a turn to the left, else 1
    if not (are_signs and is_bias_of_sign):
        fault = f"{_BUFFERS}sign and {_BUFFERS}bias contradict each other"
        raise CheckpointError("state_dict", fault, _OTHER_CHECKPOINT)
    try:
        return tree_from_paths(index, sign)
    except ValueError as error:
        raise CheckpointError("state_dict", str(error), _OTHER_CHECKPOINT) from error


def _path_tables(state: Mapping[str, Tensor]) -> list[NDArray[np.int64]]:
    """The tables index, sign and bias of a checkpoint, (V, P+1) each.

    They are saved flat. V is known from the vectors of the inner nodes. Raises CheckpointError if a
    table is missing, or the sizes do not fit.
    """
    names = [f"{_BUFFERS}{table}" for table in ("index", "sign", "bias")]
    missing = [name for name in names if name not in state]
    if missing:
        fault = f"{VECTORS} without {missing[0]}"
        raise CheckpointError("state_dict", fault, "take the complete checkpoint")
    shape = tuple(state[VECTORS].shape)
    if len(shape) != 2:
        fault = f"{VECTORS} has shape {shape}, expected (N, D)"
        raise CheckpointError("state_dict", fault, _OTHER_CHECKPOINT)
    num_units = shape[0] + 1
    # Averaging checkpoints makes them floats; they are equal in all checkpoints, so they are still
    # whole numbers.
    flat_tables = [state[name].double().round().long().numpy() for name in names]
    sizes = [table.size for table in flat_tables]
    if len(set(sizes)) != 1 or sizes[0] % num_units:
        fault = f"{_BUFFERS}* of {', '.join(map(str, sizes))} numbers for {num_units} units"
        raise CheckpointError("state_dict", fault, _OTHER_CHECKPOINT)
    return [table.reshape(num_units, -1) for table in flat_tables]
