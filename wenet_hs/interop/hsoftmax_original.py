# SPDX-License-Identifier: Apache-2.0
"""The tree folders and the tree head of the paper's original implementation.

A folder holds `tree_struct` (JSON, a node inside its parent), `tree_info`, and the units' paths as `path_index.npy`
(inner nodes from the root), `path_sign.npy` (1 left, -1 right, 0 behind the end) and `path_bias.npy` (0 left, else 1),
so that a decision's probability is sign·σ(z) + bias. Its inner nodes are numbered in preorder, ours breadth first; the
left child is the likely σ(z) in both. `tokenid` is the id of the unit.

Dimension key: V units, N = V-1 inner nodes, P longest path, D width.
"""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.errors import CheckpointError, DataError
from wenet_hs.files import read_lines, write_atomic
from wenet_hs.interop.nested import NestedTree, nested_text, parse_nested
from wenet_hs.interop.paths import Renumbered, from_paths, renumbered
from wenet_hs.tree import Tree

STRUCT, INFO = "tree_struct", "tree_info"
PATHS = ("path_index.npy", "path_sign.npy", "path_bias.npy")
VECTORS = "hsoftmax.inner_vector.weight"
"""(N, D) in a checkpoint, rows in preorder."""
_BUFFERS = "hsoftmax.path_"
_UNUSED_LAYER = "decoder.output_layer."
_AGAIN = "copy the folder again from where it was made"


class OriginalTree(NamedTuple):
    """A tree of theirs in our numbering, and where its nodes' vectors stand in their checkpoints."""

    tree: Tree
    rows: NDArray[np.int64]
    """(N,) their number of each of our inner nodes: `our_vectors = their_vectors[rows]`."""


# ---- folders


def read_original_tree(folder: Path | str, units: Sequence[str]) -> OriginalTree:
    """The tree of a folder over our units: `tokenid` i is unit i.

    `tree_struct` says everything; the other files, where they are there, must agree with it. No code in them is run,
    and no depth is too deep.

    Raises DataError, one line naming the file, where one is damaged, contradicts another, or has other units.
    """
    folder = Path(folder)
    path = folder / STRUCT
    try:
        nested = parse_nested("\n".join(read_lines(path)))
        found = _renumbered(nested, len(units))
        frequencies = [nested.frequencies[unit_id] for unit_id in range(len(units))]
        options = {"source": "hsoftmax original", "folder": str(folder)}
        tree = Tree("original", tuple(units), found.children, np.array(frequencies), options)
    except ValueError as error:
        raise DataError(f"{path}: {error}; {_AGAIN}") from error
    _check_info(folder / INFO, tree)
    _check_paths(folder, tree, found.rows)
    return OriginalTree(tree, found.rows)


def write_original_tree(tree: Tree, folder: Path | str) -> None:
    """Write the four kinds of file; a folder that was there keeps what has another name.

    `tree_struct` is written without white space: indented, a deep tree would be quadratic in its depth.

    Raises DataError where the tree is too deep for the tables of paths.
    """
    folder = Path(folder)
    numbers = _preorder(tree)
    try:
        arrays = _path_arrays(tree, numbers)
    except ValueError as error:
        raise DataError(f"{folder}: {error}; the original's format has no other form of it") from error
    write_atomic(folder / STRUCT, nested_text(tree.children, tree.weights(), numbers))
    write_atomic(folder / INFO, json.dumps({"depth": tree.depth + 1, "leaf_cnt": tree.num_units}, indent=1))
    for name, array in arrays.items():
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        write_atomic(folder / name, content.getvalue())


def _renumbered(nested: NestedTree, num_units: int) -> Renumbered:
    """Check the numbers of all nodes and replace them by ours. Raises ValueError."""
    if len(nested.frequencies) != num_units:
        raise ValueError(f"has {len(nested.frequencies)} leaves, but the unit table {num_units} units")
    num_inner = num_units - 1
    for what, found, count in (("tokenid", nested.frequencies, num_units), ("idx", nested.children, num_inner)):
        outside = [number for number in found if not 0 <= number < count]
        if outside:
            raise ValueError(f"{what} {outside[0]} is not within 0…{count - 1}")
    for unit_id, number in nested.leaf_numbers.items():
        if number != num_inner + unit_id:
            raise ValueError(f"the leaf of tokenid {unit_id} has idx {number}, expected {num_inner + unit_id}")
    pairs = np.array([nested.children[number] for number in range(num_inner)], dtype=np.int64).reshape(-1, 2)
    # Below 0 stands ~idx of an inner node.
    return renumbered(np.where(pairs < 0, num_units + ~pairs, pairs), ~nested.root if num_inner else 0)


def _preorder(tree: Tree) -> NDArray[np.int64]:
    """(N,) their number of each inner node: a node, all below its left child, all below its right child."""
    numbers = np.zeros(2 * tree.num_units - 1, dtype=np.int64)
    inner_below = tree.num_leaves() - 1
    for start, end in zip(tree.level_starts[:-1], tree.level_starts[1:], strict=True):
        left, right = tree.children[start:end].T
        numbers[left] = numbers[start:end] + 1
        numbers[right] = numbers[start:end] + 1 + inner_below[left]
    return numbers[: tree.num_units - 1]


def _path_arrays(tree: Tree, numbers: NDArray[np.int64]) -> dict[str, NDArray[np.integer]]:
    """File name → array (V, P+1); the last column is padding, as they count the levels with the leaves."""
    nodes, turns = tree.paths()
    spare = ((0, 0), (0, 1))
    sign = np.pad(turns, spare)
    index = np.pad(numbers[nodes], spare) if len(numbers) else np.zeros(sign.shape, dtype=np.int64)
    bias = (sign != 1).astype(np.int8)
    return dict(zip(PATHS, (np.where(sign == 0, 0, index), sign, bias), strict=True))


def _check_info(path: Path, tree: Tree) -> None:
    if not path.exists():
        return
    expected = {"depth": tree.depth + 1, "leaf_cnt": tree.num_units}
    try:
        found = json.loads("\n".join(read_lines(path)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({' '.join(str(error).split())}); {_AGAIN}") from error
    for name, number in expected.items():
        there = found.get(name) if isinstance(found, dict) else None
        if there != number:
            raise DataError(f"{path}: {name} is {there!r}, but the tree of {STRUCT} has {number}; {_AGAIN}")


def _check_paths(folder: Path, tree: Tree, rows: NDArray[np.int64]) -> None:
    present = [name for name in PATHS if (folder / name).exists()]
    if not present:
        return
    try:
        arrays = _path_arrays(tree, rows)
    except ValueError as error:
        raise DataError(f"{folder / present[0]}: {error}; take it away, {STRUCT} is enough") from error
    for name in present:
        _check_array(folder / name, arrays[name])


def _check_array(path: Path, expected: NDArray[np.integer]) -> None:
    try:
        found = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
    except (
        Exception
    ) as error:  # a damaged header is parsed as Python, or is that of an archive: what it raises has no end
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        raise DataError(f"{path}: not an array of numbers ({reason}); {_AGAIN}") from error
    if not isinstance(found, np.ndarray) or found.shape != expected.shape or found.dtype.kind not in "iu":
        what = f"{found.shape} {found.dtype}" if isinstance(found, np.ndarray) else type(found).__name__
        raise DataError(f"{path}: {what}, but {STRUCT} needs integers of shape {expected.shape}; {_AGAIN}")
    wrong = np.flatnonzero((found != expected).any(1))
    if len(wrong):
        raise DataError(f"{path}: the path of unit {wrong[0]} is not that of {STRUCT}; {_AGAIN}")


# ---- checkpoints


def is_original(state: Mapping[str, Tensor]) -> bool:
    """Whether a state_dict has the original's tree head."""
    return VECTORS in state


def tree_of_state(state: Mapping[str, Tensor]) -> Renumbered:
    """The tree that a checkpoint was trained with, by its buffers of paths; it needs no folder.

    Raises CheckpointError where they are not one tree.
    """
    missing = [name for name in ("index", "sign", "bias") if f"{_BUFFERS}{name}" not in state]
    if missing:
        raise CheckpointError(f"state_dict: {VECTORS} without {_BUFFERS}{missing[0]}; take the complete checkpoint")
    if state[VECTORS].dim() != 2:
        raise CheckpointError(
            f"state_dict: {VECTORS} has shape {tuple(state[VECTORS].shape)}, expected (N, D); {_WHOLE}"
        )
    num_units = len(state[VECTORS]) + 1
    # Averaging makes floats of them; they were equal in all checkpoints, so they are whole numbers still.
    flat = [state[f"{_BUFFERS}{name}"].double().round().long().numpy() for name in ("index", "sign", "bias")]
    if len({array.size for array in flat}) != 1 or flat[0].size % num_units:
        sizes = ", ".join(str(array.size) for array in flat)
        raise CheckpointError(f"state_dict: {_BUFFERS}* of {sizes} numbers for {num_units} units; {_WHOLE}")
    index, sign, bias = (array.reshape(num_units, -1) for array in flat)
    try:
        if not (np.isin(sign, (-1, 0, 1)).all() and (bias == (sign != 1)).all()):
            raise ValueError(f"{_BUFFERS}sign and {_BUFFERS}bias do not go together")
        return from_paths(index, sign)
    except ValueError as error:
        raise CheckpointError(f"state_dict: {error}; {_WHOLE}") from error


_WHOLE = "take another checkpoint of this model"


def saved_tree(state: Mapping[str, Tensor]) -> Tree:
    """That tree as a value of its own; of its units it knows the ids alone, and no frequencies."""
    children = tree_of_state(state).children
    names = tuple(map(str, range(len(children) + 1)))
    return Tree("original", names, children, np.ones(len(names)), {"source": "hsoftmax original"})


def convert_tree_head(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state_dict of theirs with the vectors as our tree head has them.

    The buffers of paths go (the tree has a file of its own here), and so does the softmax layer of the decoder, which
    they create and never use. Our head must have the same tree: `read_original_tree` of the folder of that training.
    """
    rows = torch.from_numpy(tree_of_state(state).rows)
    kept = {name: value for name, value in state.items() if not name.startswith(("hsoftmax.", _UNUSED_LAYER))}
    return {**kept, "head.inner_vector.weight": state[VECTORS][rows]}
