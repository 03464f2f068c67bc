# SPDX-License-Identifier: Apache-2.0
"""Reads gensim's word2vec models that were trained with hierarchical softmax (`hs=1`) as a tree and a tree head.

gensim stores for each word its path from the root, `point` (inner nodes) and `code` (0 or 1 at each), and one vector
per node in `syn1`. Its probability of code 0 is σ(h·syn1), like that of our left child, so code 0 is left (Mikolov et
al. 2013, "Distributed representations of words and phrases", section 2.1).

Dimension key: V words, N = V-1 inner nodes, P longest path, D width.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wenet_hs.errors import ConfigError, DataError, list_names, one_line
from wenet_hs.heads.hsoftmax import HSoftmaxHead
from wenet_hs.interop.hsoftmax_original import RenumberedTree, tree_from_paths
from wenet_hs.tree.huffman import balanced_children, breadth_first
from wenet_hs.tree.tree import Tree


def load_gensim(path: Path | str, *, trust_pickle: bool) -> Any:
    """The word2vec model in a file of gensim's own format.

    Raises ConfigError without `trust_pickle`: the format is a pickle, so the file can run any code. Raises DataError if
    the file is not such a model.
    """
    if not trust_pickle:
        raise ConfigError(
            f"{path}: gensim's format is a pickle, and reading a pickle can run any code that its author put in; "
            "if you made the file yourself, add --trust_pickle"
        )
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise ConfigError('--gensim: gensim is not installed; run `pip install "wenet_hs[trees]"`') from error
    if not Path(path).is_file():
        raise DataError(f"{path}: no such file; give what gensim's `model.save` wrote")
    try:
        return Word2Vec.load(str(path), rethrow=True)
    except Exception as error:  # a damaged pickle may raise anything: EOF, attribute, import, index, unicode …
        raise DataError(
            f"{path}: not a word2vec model of gensim ({one_line(error)}); give what `model.save` wrote"
        ) from error


def from_gensim(model: Any) -> tuple[Tree, HSoftmaxHead]:
    """The tree of a `gensim.models.Word2Vec` with `hs=1` over its words in its order, and the head with its vectors.

    head.log_probs(h)[v] is the model's log-probability of its word v, where h is the input vector (skip-gram) or the
    mean of the context's (CBOW).

    Raises DataError if the model has no such tree, or a damaged one.
    """
    tree, found = read_gensim_tree(model)
    head = HSoftmaxHead(int(model.wv.vector_size), tree)
    with torch.no_grad():
        head.inner_vector.weight.copy_(torch.from_numpy(np.asarray(model.syn1)[found.rows]))
    return tree, head


def tree_over(tree: Tree, units: Sequence[str], *, add_missing: bool = False) -> Tree:
    """The tree of a model over the units of a table: leaves by name, in the table's order.

    Words that are not units are removed, and the sibling replaces the parent. The other words keep their conditional
    probabilities. With `add_missing`, units that are not words form one balanced subtree of frequency 0. It is the
    right child of a new root whose left child is the rest. Their frequencies are unknown (<sos/eos> may be among them),
    so they are not placed deep in the tree.

    Raises DataError if units are missing and `add_missing` is not set, or none of them is a word.
    """
    num_units = len(units)
    word_ids = {word: word_id for word_id, word in enumerate(tree.units)}
    found = [unit_id for unit_id, unit in enumerate(units) if unit in word_ids]
    missing = sorted(set(range(num_units)) - set(found))
    if len(missing) == num_units:
        raise DataError(f"units: none of the {num_units} is a word of this model; take the table it was trained with")
    if missing and not add_missing:
        raise DataError(
            f"units: {len(missing)} of {num_units} are not words of this model "
            f"({list_names([units[unit_id] for unit_id in missing])}); "
            "--add_missing puts them into a subtree of their own under the root"
        )
    pruned, _ = tree.prune([word_ids[units[unit_id]] for unit_id in found])
    number = np.array([*range(num_units, num_units + pruned.num_inner), *found])  # row n has the number num_units + n
    rows, root = number[pruned.children], 0
    if missing:
        below = np.array([*range(num_units + len(rows), num_units + len(rows) + len(missing) - 1), *missing])
        rows = np.concatenate([rows, below[balanced_children(np.arange(len(missing)))], [[number[0], below[0]]]])
        root = len(rows) - 1
    frequencies = np.zeros(num_units)
    frequencies[found] = pruned.frequencies
    counts = {"words": tree.num_units, "added": len(missing), "left_out": tree.num_units - len(found)}
    return Tree(tree.kind, tuple(units), breadth_first(rows, root), frequencies, {**tree.options, **counts})


def read_gensim_tree(model: Any) -> tuple[Tree, RenumberedTree]:
    """The tree that `from_gensim` returns, and gensim's number of each of its inner nodes."""
    words = tuple(map(str, model.wv.index_to_key))
    if not getattr(model, "hs", 0) or getattr(model, "syn1", None) is None or "code" not in model.wv.expandos:
        raise DataError("gensim model: trained without hierarchical softmax; train it with hs=1 and negative=0")
    if np.shape(model.syn1) != (len(words), model.wv.vector_size):
        raise DataError(f"gensim model: syn1 of shape {np.shape(model.syn1)} for {len(words)} words; train it again")
    points = [np.asarray(model.wv.get_vecattr(word, "point"), dtype=np.int64) for word in words]
    codes = [np.asarray(model.wv.get_vecattr(word, "code"), dtype=np.int64) for word in words]
    nodes_VP = np.zeros((len(words), max(map(len, codes))), dtype=np.int64)
    turns_VP = np.zeros_like(nodes_VP)
    try:
        for row, (points_P, codes_P) in enumerate(zip(points, codes, strict=True)):
            if len(points_P) != len(codes_P) or not np.isin(codes_P, (0, 1)).all():
                raise ValueError(f"the code and the points of {words[row]!r} contradict each other")
            nodes_VP[row, : len(points_P)] = points_P
            turns_VP[row, : len(codes_P)] = 1 - 2 * codes_P
        found = tree_from_paths(nodes_VP, turns_VP)
        frequencies = [model.wv.get_vecattr(word, "count") for word in words]
        return Tree("gensim", words, found.children, np.array(frequencies), {"source": "gensim"}), found
    except ValueError as error:
        raise DataError(f"gensim model: {error}; train it again") from error
