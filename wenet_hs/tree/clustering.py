# SPDX-License-Identifier: Apache-2.0
"""Ward's hierarchical clustering (1963) of one vector per unit, as the children of a binary tree.

Dimension key: V units, F features, S units that have a vector.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist

from wenet_hs.errors import ConfigError
from wenet_hs.tree.huffman import add_unplaced, huffman_rows

MAX_VECTORS = 20_000
"""The most units with a vector: all their distances take 1.6 GB, twice while they are clustered."""
_NO_DIRECTION = 2.0**-32  # the largest value is near one, so a shorter vector is rounding noise


def ward_children(
    vectors: NDArray[np.floating], frequencies: NDArray[np.float64], *, cosine: bool = False
) -> NDArray[np.int64]:
    """The children (V-1, 2) of the tree of Ward's clustering, in the numbering of `Tree`.

    The left child is the less frequent one; of equal frequency the one with the lowest unit id. Units with identical
    vectors form one Huffman tree. Units without a vector are placed by `add_unplaced`. Clusters at equal distance are
    merged in the order of `scipy.cluster.hierarchy.linkage`, which depends only on the unit ids.

    Args:
        vectors: (V, F); a row of NaN is a unit without a vector.
        frequencies: (V,) finite, ≥ 0. They order the children and build the Huffman trees. In the clustering all units
            have the same weight.
        cosine: cluster directions: the mean of all vectors is subtracted and lengths are set to one. For embeddings and
            output layers: there the length depends on the frequency of the unit, and a vector added to all rows of a
            softmax changes no probability.
    Raises:
        ValueError: wrong shapes, a row that is partly NaN, an infinite value.
        ConfigError: more than `MAX_VECTORS` vectors.
    """
    rows_VF = np.asarray(vectors, dtype=np.float64)
    if rows_VF.ndim != 2 or len(rows_VF) != len(frequencies):
        raise ValueError(f"vectors: shape {rows_VF.shape} for {len(frequencies)} units; expected one row per unit")
    absent_VF = np.isnan(rows_VF)
    is_absent = absent_VF.all(axis=1) if rows_VF.shape[1] else np.zeros(len(rows_VF), dtype=bool)
    wrong = np.flatnonzero((absent_VF.any(axis=1) & ~is_absent) | np.isinf(rows_VF).any(axis=1))
    if len(wrong):
        raise ValueError(f"vectors: unit {wrong[0]} has NaN or infinite values; only a whole row may be NaN")
    placed = np.flatnonzero(~is_absent)
    if len(placed) > MAX_VECTORS:
        raise ConfigError(
            f"vectors: {len(placed):,} units have one, clustering takes at most {MAX_VECTORS:,}; use --kind brown"
        )
    pairs = np.zeros((0, 2), dtype=np.int64)
    if len(placed) > 1:
        pairs = _ward_rows(_prepared(rows_VF[placed], cosine), placed, frequencies)
    return add_unplaced(pairs, placed, frequencies)


def _prepared(rows_SF: NDArray[np.float64], cosine: bool) -> NDArray[np.float64]:
    """The vectors scaled so that no square overflows; with `cosine` their directions, zero for the mean itself."""
    largest = np.abs(rows_SF).max(initial=0.0)
    rows_SF = np.ldexp(rows_SF, -int(np.frexp(largest)[1]))  # exact
    if not cosine:
        return rows_SF
    rows_SF = rows_SF - rows_SF.mean(axis=0)
    lengths_S = np.sqrt(np.square(rows_SF).sum(axis=1))
    return np.asarray(rows_SF / np.where(lengths_S > _NO_DIRECTION, lengths_S, np.inf)[:, None])


def _ward_rows(
    rows_SF: NDArray[np.float64], unit_ids: NDArray[np.int64], frequencies: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The merges (S-1, 2) as `breadth_first` takes them: below V a unit, V+n row n."""
    distances = pdist(rows_SF if rows_SF.shape[1] else np.zeros((len(rows_SF), 1)))
    merges = linkage(distances, method="ward")  # given vectors, it may take a square matrix for distances and warn
    clusters, is_identical = merges[:, :2].astype(np.int64), merges[:, 2] == 0
    groups = list(unit_ids.reshape(-1, 1))  # the units of each cluster of identical vectors; such merges come first
    for first, second in clusters[is_identical]:
        groups.append(np.sort(np.concatenate([groups[first], groups[second]])))
        groups[first] = groups[second] = unit_ids[:0]
    rows: list[NDArray[np.int64]] = []
    num_rows, num_units = 0, len(frequencies)
    nodes: dict[int, tuple[float, int, int]] = {}  # of each cluster: weight, lowest unit id, number
    for cluster, units in enumerate(groups):
        if len(units):
            rows.append(huffman_rows(units, frequencies, num_rows))
            num_rows += len(units) - 1
            root = num_units + num_rows - 1 if len(units) > 1 else int(units[0])
            nodes[cluster] = (float(frequencies[units].sum()), int(units[0]), root)
    for cluster, (first, second) in enumerate(clusters[~is_identical].tolist(), start=len(groups)):
        left, right = sorted((nodes.pop(first), nodes.pop(second)))
        rows.append(np.array([[left[2], right[2]]]))
        num_rows += 1
        nodes[cluster] = (left[0] + right[0], min(left[1], right[1]), num_units + num_rows - 1)
    return np.concatenate(rows)
