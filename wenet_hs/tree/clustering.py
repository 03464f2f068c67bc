# SPDX-License-Identifier: Apache-2.0
"""Similar units under one node: Ward's clustering (1963) of one vector a unit, as the children of a binary tree.

Everything is decided by stated rules, so that one input gives one tree on every machine and with any number of
threads: distances that differ by no more than noise count as equal, equal ones go by the lowest unit id, and no sum
depends on threads. The agglomeration follows chains of nearest neighbours (Murtagh 1983) on a matrix of all
distances; above `DIRECT_LIMIT` distinct vectors, where that matrix is too large, 2-means first halves the units down to
blocks of `BLOCK_SIZE`.

Dimension key: V units, F features, M distinct vectors (or those of one block).
"""

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.huffman import add_unplaced, huffman_children

DIRECT_LIMIT = 10_000
"""The most distinct vectors that are clustered from one matrix of distances: 0.8 GB."""
BLOCK_SIZE = 2_000
"""The most vectors of a block where there are more than that. The time of all blocks together is V × this."""
_MAX_ROUNDS = 20  # of 2-means; what still moves then are a few vectors on the border
_AXIS_STEPS = 8  # of power iteration: 2-means needs a good start, not the axis itself
_LEAST_SHARE = 1 / 16  # of a half; smaller ones could make as many levels as units
_NOISE = 2.0**-36  # of the largest distance: what differs by less is equal; that of float64 is below 2^-45
_NO_DIRECTION = 2.0**-32  # where the largest value is near one: what is left after centring is noise


def ward_children(
    vectors: NDArray[np.floating], frequencies: NDArray[np.float64], *, cosine: bool = False
) -> NDArray[np.int64]:
    """The children (V-1, 2) of the tree of Ward's clustering, in the numbering of `Tree`.

    The left child is the less frequent one, of equal ones the one with the lowest unit id. Units of one and the same
    vector form one Huffman tree. Units without a vector hang where `add_unplaced` puts them.

    Args:
        vectors: (V, F); a row of NaN is a unit without a vector.
        frequencies: (V,) finite, ≥ 0. They order the children and build the Huffman trees; all units weigh the same in
            the clustering.
        cosine: cluster directions: the mean is taken from all vectors and their lengths are made one. It is meant for
            embeddings and output layers: there a length says how frequent a unit is, not what it is like, and a vector
            added to all rows of a softmax changes no probability, so it must not change the tree.
    Raises:
        ValueError: wrong shapes, a row that is partly NaN, an infinite value, frequencies as in `Tree`.
    """
    weights = frequencies
    rows_VF = np.asarray(vectors, dtype=np.float64)
    if rows_VF.ndim != 2 or len(rows_VF) != len(weights):
        raise ValueError(f"vectors: shape {rows_VF.shape} for {len(weights)} units; expected one row per unit")
    absent_VF = np.isnan(rows_VF)
    absent = absent_VF.all(axis=1) if rows_VF.shape[1] else np.zeros(len(rows_VF), dtype=bool)
    wrong = np.flatnonzero((absent_VF.any(axis=1) & ~absent) | np.isinf(rows_VF).any(axis=1))
    if len(wrong):
        raise ValueError(f"vectors: unit {wrong[0]} has NaN or infinite values; only a whole row may be NaN")
    forest, placed = _Forest(weights), np.flatnonzero(~absent)
    if len(placed):
        _cluster(forest, rows_VF, placed, cosine)
    return add_unplaced(np.array(forest.pairs, dtype=np.int64).reshape(-1, 2), placed, weights)


class _Forest:
    """Trees under construction: nodes 0…V-1 are leaves, V+n is the n-th merge."""

    def __init__(self, frequencies: NDArray[np.float64]) -> None:
        self.pairs: list[tuple[int, int]] = []
        self._frequencies = frequencies
        self._keys = list(zip(frequencies.tolist(), range(len(frequencies)), strict=True))  # weight, lowest unit id

    def merge(self, first: int, second: int) -> int:
        """A new node over two; the one of less weight, of equal ones the one with the lowest unit id, is the left."""
        pair = (first, second) if self._keys[first] < self._keys[second] else (second, first)
        self.pairs.append(pair)
        (weight, unit_id), (other_weight, other_id) = self._keys[first], self._keys[second]
        self._keys.append((weight + other_weight, min(unit_id, other_id)))
        return len(self._keys) - 1

    def huffman(self, unit_ids: NDArray[np.int64]) -> int:
        """Huffman's tree over some units in ascending order; returns its root."""
        children: list[list[int]] = huffman_children(self._frequencies[unit_ids]).tolist()
        nodes: list[int] = [0] * len(children) + unit_ids.tolist()
        for node in reversed(range(len(children))):  # breadth first, so children come after their parents
            left, right = children[node]
            nodes[node] = self.merge(nodes[left], nodes[right])
        return nodes[0]


def _cluster(forest: _Forest, rows_VF: NDArray[np.float64], unit_ids: NDArray[np.int64], cosine: bool) -> None:
    """The tree over the units that have a vector."""
    rows_MF, groups = _distinct(rows_VF[unit_ids])
    counts_M = np.array([len(group) for group in groups], dtype=np.float64)
    nodes = [forest.huffman(unit_ids[group]) for group in groups]
    rows_MF = _directions(rows_MF, counts_M) if cosine else rows_MF
    parts = [np.arange(len(rows_MF))]
    halves: list[tuple[int, int] | None] = []
    limit = DIRECT_LIMIT if len(rows_MF) <= DIRECT_LIMIT else BLOCK_SIZE
    while len(halves) < len(parts):
        here = len(halves)
        if len(parts[here]) <= limit:
            halves.append(None)
            continue
        is_right = _bisect(rows_MF[parts[here]], counts_M[parts[here]])
        halves.append((len(parts), len(parts) + 1))
        parts += [parts[here][~is_right], parts[here][is_right]]
        parts[here] = parts[here][:0]
    roots = [0] * len(parts)
    for here in reversed(range(len(parts))):
        pair = halves[here]
        part = parts[here]
        roots[here] = (
            forest.merge(roots[pair[0]], roots[pair[1]])
            if pair
            else _agglomerate(forest, [nodes[row] for row in part.tolist()], rows_MF[part], counts_M[part])
        )


def _distinct(rows_NF: NDArray[np.float64]) -> tuple[NDArray[np.float64], list[NDArray[np.int64]]]:
    """The distinct rows (M, F), of a size near one, by their first place, and for each the places where it stands."""
    largest = np.abs(rows_NF).max(initial=0.0)
    scaled_NF = np.ldexp(rows_NF, -int(np.frexp(largest)[1])) + 0.0  # exact, no square overflows; + 0.0: no -0.0
    if not scaled_NF.shape[1]:
        return scaled_NF[:1], [np.arange(len(scaled_NF))]
    as_bytes = np.ascontiguousarray(scaled_NF).view(np.dtype((np.void, 8 * scaled_NF.shape[1]))).reshape(-1)
    _, first, group_N = np.unique(as_bytes, return_index=True, return_inverse=True)
    by_group = np.split(np.argsort(group_N, kind="stable"), np.cumsum(np.bincount(group_N))[:-1])
    order = np.argsort(first)
    return scaled_NF[first[order]], [by_group[group] for group in order]


def _directions(rows_MF: NDArray[np.float64], counts_M: NDArray[np.float64]) -> NDArray[np.float64]:
    """Without their mean and of length one; a vector that was the mean itself becomes zero."""
    rows_MF = rows_MF - _weighted_sum(rows_MF, counts_M) / counts_M.sum()
    lengths_M = np.sqrt(np.square(rows_MF).sum(axis=1))
    return np.asarray(rows_MF / np.where(lengths_M > _NO_DIRECTION, lengths_M, np.inf)[:, None])


def _weighted_sum(rows_MF: NDArray[np.float64], weights_M: NDArray[np.float64]) -> NDArray[np.float64]:
    # einsum instead of BLAS, here and below: the order of its sums does not depend on the number of threads.
    return np.asarray(np.einsum("m,mf->f", weights_M, rows_MF))


def _agglomerate(forest: _Forest, nodes: list[int], rows_MF: NDArray[np.float64], counts_M: NDArray[np.float64]) -> int:
    """Ward's tree over some nodes, ordered by their lowest unit id; returns its root.

    A chain goes from a cluster to its nearest one until two are nearest to each other; these are merged. Ward's
    distance never shrinks by a merge, so this finds the same tree as merging the globally nearest pair each time.
    """
    distances_MM, noise = _ward_distances(rows_MF, counts_M)
    sizes_M, nodes = counts_M.copy(), list(nodes)
    chain: list[int] = []
    lowest = 0
    for _ in range(len(nodes) - 1):
        if not chain:
            while nodes[lowest] < 0:
                lowest += 1
            chain.append(lowest)
        while (nearest := _nearest(distances_MM[chain[-1]], chain, noise)) is not None:
            chain.append(nearest)
        kept, gone = sorted((chain.pop(), chain.pop()))
        nodes[kept], nodes[gone] = forest.merge(nodes[kept], nodes[gone]), -1
        _merge_distances(distances_MM, sizes_M, kept, gone)
    return nodes[0]


def _nearest(distances_M: NDArray[np.float64], chain: list[int], noise: float) -> int | None:
    """The cluster nearest to the chain's last, of equal ones the one of the lowest unit id.

    None when the one that led to the last is among them: then these two are nearest to each other. So a chain gets
    shorter at each step and ends; `not in chain` keeps noise from leading it in a circle.
    """
    least = float(distances_M.min())
    bound = least + noise + _NOISE * least
    if len(chain) > 1 and distances_M[chain[-2]] <= bound:
        return None
    return next((slot for slot in np.flatnonzero(distances_M <= bound).tolist() if slot not in chain), None)


def _ward_distances(rows_MF: NDArray[np.float64], counts_M: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """(M, M) squared Ward distances, 2·n·m/(n+m)·|x-y|², infinite on the diagonal; and how much of them is noise."""
    rows_MF = rows_MF - _weighted_sum(rows_MF, counts_M) / counts_M.sum()  # less is cancelled below
    squares_M = np.square(rows_MF).sum(axis=1)
    distances_MM = rows_MF @ rows_MF.T
    largest = 0.0
    for row, products_M in enumerate(distances_MM):  # a row at a time: no second matrix of this size
        factors_M = 2.0 * (counts_M[row] * counts_M) / (counts_M[row] + counts_M)
        np.maximum(squares_M[row] + squares_M - 2.0 * products_M, 0.0, out=products_M)
        products_M *= factors_M
        products_M[row] = 0.0
        largest = max(largest, float(products_M.max()))
        products_M[row] = np.inf
    return distances_MM, _NOISE * largest


def _merge_distances(distances_MM: NDArray[np.float64], sizes_M: NDArray[np.float64], kept: int, gone: int) -> None:
    """Lance and Williams' update for Ward's criterion, in place; the cluster `gone` is at infinity from now on."""
    both = sizes_M[kept] + sizes_M[gone]
    merged_M = (sizes_M[kept] + sizes_M) * distances_MM[kept] + (sizes_M[gone] + sizes_M) * distances_MM[gone]
    merged_M -= sizes_M * distances_MM[kept, gone]
    merged_M /= both + sizes_M
    distances_MM[kept] = distances_MM[:, kept] = merged_M
    distances_MM[gone] = distances_MM[:, gone] = np.inf
    sizes_M[kept] = both


def _bisect(rows_MF: NDArray[np.float64], counts_M: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of the rows belong to the second of two halves: 2-means, started at the mean across the principal axis.

    Where 2-means cuts off less than a sixteenth, the halves are cut at the median instead, so depth and time stay low.
    """
    rows_MF = rows_MF - _weighted_sum(rows_MF, counts_M) / counts_M.sum()
    scores_M = _scores(rows_MF, _principal_axis(rows_MF, counts_M))
    is_right_M = scores_M > 0
    for _ in range(_MAX_ROUNDS):
        num_right = float(counts_M[is_right_M].sum())
        num_left = float(counts_M.sum()) - num_right
        if not num_right or not num_left:
            break
        right_F = _weighted_sum(rows_MF, counts_M * is_right_M) / num_right
        left_F = -right_F * (num_right / num_left)  # the mean of all is zero
        between_F = right_F - left_F
        scores_M = _scores(rows_MF, between_F, float(between_F @ (right_F + left_F)) / 2)
        before_M, is_right_M = is_right_M, scores_M > 0
        if np.array_equal(before_M, is_right_M):
            break
    if min(is_right_M.sum(), (~is_right_M).sum()) < _LEAST_SHARE * len(rows_MF):
        is_right_M = np.zeros(len(rows_MF), dtype=bool)
        is_right_M[np.argsort(scores_M, kind="stable")[len(rows_MF) // 2 :]] = True
    return is_right_M


def _scores(rows_MF: NDArray[np.float64], direction_F: NDArray[np.float64], border: float = 0.0) -> NDArray[np.float64]:
    """(M,) how far the rows are beyond a border along a direction; what is noise is zero."""
    scores_M = np.einsum("mf,f->m", rows_MF, direction_F) - border
    return np.asarray(np.where(np.abs(scores_M) > _NOISE * np.abs(scores_M).max(), scores_M, 0.0))


def _principal_axis(rows_MF: NDArray[np.float64], counts_M: NDArray[np.float64]) -> NDArray[np.float64]:
    """About the direction of the largest variance of centred rows, from the longest row by power iteration."""
    axis_F: NDArray[np.float64] = rows_MF[int(np.square(rows_MF).sum(axis=1).argmax())]
    for _ in range(_AXIS_STEPS):
        axis_F = axis_F / max(float(np.abs(axis_F).max()), np.finfo(np.float64).tiny)
        axis_F = _weighted_sum(rows_MF, counts_M * np.einsum("mf,f->m", rows_MF, axis_F))
    return axis_F
