# SPDX-License-Identifier: Apache-2.0
"""Embeddings of the units, and Ward's clustering of vectors (1963) as the children of a binary
tree.

Vectors come from a training on transcripts (lm/word2vec.py), from a file of word2vec's text, or
from the output rows of a softmax model. A unit without a vector has a row of NaN.

Dimension key: V units, F features, S units that have a vector.
"""

import logging
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wenet_hs.text.units import EOS, SOS, SPECIAL_UNITS
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import CheckpointError, ConfigError, DataError, list_names
from wenet_hs.tree.huffman import NO_ROWS, add_unplaced, huffman_subtree

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

MAX_VECTORS = 20_000
"""The most units with a vector: all their distances take 1.6 GB, twice while they are clustered."""
_NO_DIRECTION = 2.0**-32
"""A vector that is not longer than this is only rounding noise, if the largest value is near 1."""
_SOFTMAX_LAYERS = (
    "head.output.weight",
    "decoder.output_layer.weight",
    "decoder.left_decoder.output_layer.weight",
)
"""The output layer of the attention decoder in our checkpoints and in WeNet's."""


def read_embeddings(path: Path | str, units: Sequence[str]) -> NDArray[np.float64]:
    """The units' vectors in a file; names are compared in NFC.

    The file is word2vec's text: an optional first line `N F`, then per line a name and F numbers,
    separated by spaces. Units that are not in the file are logged.

    Returns: (V, F); NaN in the rows of units that are not in the file.
    Raises DataError: one line, whatever is wrong with the file. No code in the file is run.
    """
    path = Path(path)
    names = [unicodedata.normalize("NFC", unit) for unit in units]
    vector_of = _read_vectors(path, set(names))
    if not vector_of:
        fault = f"has none of the {len(units)} units"
        raise DataError(path, fault, "its names must be those of units.txt")
    dim = len(next(iter(vector_of.values())))
    no_vector = np.full(dim, np.nan)
    vectors = np.array([vector_of.get(name, no_vector) for name in names])
    log_without_vector(vectors, units, f"have no vector in {path}")
    return vectors


def _read_vectors(path: Path, wanted: set[str]) -> dict[str, NDArray[np.float64]]:
    """The vectors of the wanted names in a file of word2vec's text.

    The file is read line by line, because it may have millions of vectors. Raises DataError with
    the line of the first fault.
    """
    vector_of: dict[str, NDArray[np.float64]] = {}
    num_expected: int | None = None  # the number of vectors in the header; None without a header
    dim = 0  # not known before the first line
    line_number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for line_number, line in enumerate(file, start=1):
                fields = _split_fields(line)
                if line_number == 1 and _is_header(fields):
                    num_expected = int(fields[0])
                    dim = int(fields[1])
                    continue
                name = unicodedata.normalize("NFC", fields[0])
                numbers = fields[1:]
                dim = dim or len(numbers)  # without a header, the first line decides
                _check_dim(len(numbers), dim)
                if name not in wanted:
                    continue
                if name in vector_of:
                    raise ValueError(f"{name!r} occurs a second time; keep one")
                vector_of[name] = _parse_vector(numbers)
    except UnicodeDecodeError as error:
        to_do = "save the vectors in word2vec's text form"
        raise DataError(path, "not UTF-8 text", to_do) from error
    except ValueError as error:
        raise DataError(f"{path}:{line_number}", str(error)) from error
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from error
    num_found = line_number - 1  # of the vectors, if the first line is a header
    if num_expected is not None and num_expected != num_found:
        fault = f"the first line says {num_expected} vectors, but there are {num_found}"
        raise DataError(f"{path}:1", fault, "copy the file again, or correct the line")
    return vector_of


def _split_fields(line: str) -> list[str]:
    """The name and the numbers of a line; a line of spaces has an empty name.

    Only the ASCII space separates, because another space such as U+3000 may be a unit.
    """
    fields = [field for field in line.rstrip("\r\n").split(" ") if field]
    return fields or [""]


def _is_header(fields: Sequence[str]) -> bool:
    """Whether a first line has the number of vectors and their dimension: two whole numbers."""
    return len(fields) == 2 and all(re.fullmatch("[0-9]{1,12}", field) for field in fields)


def _check_dim(num_numbers: int, dim: int) -> None:
    """Raise ValueError unless a line has `dim` numbers, and at least two.

    `dim` is the number in the header or in the first line; it is 0 if that one has no numbers.
    """
    if num_numbers != dim or dim == 0:
        expected = f"a unit and {dim or 'its'} numbers, separated by spaces"
        raise ValueError(f"{num_numbers} numbers, expected {expected}")
    if dim == 1:
        raise ValueError("vectors of one number; a table of units is no file of vectors")


def _parse_vector(numbers: Sequence[str]) -> NDArray[np.float64]:
    """The vector (F,) of these numbers; raises ValueError if one is no number or not finite."""
    vector = np.array([_to_float(text) for text in numbers])
    if not np.isfinite(vector).all():
        raise ValueError("a value is NaN or infinite; leave the unit out if it has no vector")
    return vector


def _to_float(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(
            f"{text[:40]!r} is not a number; expected a unit and its vector"
        ) from error


def write_embeddings(path: Path | str, units: Sequence[str], vectors: NDArray[np.floating]) -> None:
    """Write the units that have a vector in word2vec's text format.

    `vectors` (V, F) has a row of NaN for other units. `read_embeddings` reads the same values.
    """
    has_vector = ~np.isnan(vectors).all(axis=1)
    unit_ids = np.flatnonzero(has_vector).tolist()
    lines = [f"{len(unit_ids)} {vectors.shape[1]}"]
    for unit_id in unit_ids:
        numbers = map(repr, vectors[unit_id].tolist())
        lines.append(" ".join([units[unit_id], *numbers]))
    write_atomic(path, "\n".join(lines) + "\n")


def log_without_vector(vectors: NDArray[np.floating], units: Sequence[str], reason: str) -> None:
    """Log in one line the units whose row in `vectors` (V, F) is NaN, if there are any.

    It is a warning unless all are special units such as `<blank>`. `reason` is a part of the
    sentence, such as "have no vector in FILE".
    """
    if vectors.size == 0:
        return
    has_no_vector = np.isnan(vectors).all(axis=1)
    names = [units[unit_id] for unit_id in np.flatnonzero(has_no_vector).tolist()]
    if not names:
        return
    are_special = {*names} <= {*SPECIAL_UNITS, SOS, EOS}
    level = logging.INFO if are_special else logging.WARNING
    text = "%d of %d units %s; they are placed by their frequency only: %s"
    logger.log(level, text, len(names), len(units), reason, list_names(names, " ", most=20))


def checkpoint_vectors(
    state: "Mapping[str, Tensor]", num_units: int, where: str
) -> NDArray[np.float64]:
    """The rows of the output layer of a trained softmax model, as the vectors of its units.

    Its bias is left out, because it encodes the frequency.

    Args:
        state: the state_dict of a model of ours or of WeNet.
        num_units: V.
        where: the name of the checkpoint in messages.
    Returns: (V, F).
    Raises CheckpointError: the model has no flat softmax, or another number of units, or a weight
        that is not finite.
    """
    layers = [layer for layer in _SOFTMAX_LAYERS if layer in state]
    if not layers:
        to_do = "give the checkpoint of a model with decoder and softmax"
        raise CheckpointError(where, "has no flat softmax", to_do)
    layer = layers[0]
    weight = state[layer]
    if weight.dim() != 2 or len(weight) != num_units:
        fault = f"{layer} has shape {tuple(weight.shape)}, but there are {num_units} units"
        raise CheckpointError(where, fault, "use the units.txt that the model was trained with")
    vectors: NDArray[np.float64] = weight.detach().cpu().double().numpy()
    if not np.isfinite(vectors).all():
        fault = f"{layer} has a value that is NaN or infinite"
        raise CheckpointError(where, fault, "use an earlier checkpoint")
    return vectors


# ---- clustering


def ward_children(
    vectors: NDArray[np.floating], frequencies: NDArray[np.float64], *, cosine: bool = False
) -> NDArray[np.int64]:
    """The left and the right child of each inner node in the tree of Ward's clustering: (V-1, 2).

    Inner nodes 0…V-2 are numbered breadth first, and V-1+i is the leaf of unit i. The left child is
    the less frequent one; of equal frequency the one with the lowest unit id. Units with identical
    vectors form one Huffman tree. Units without a vector are placed by their frequency
    (`add_unplaced`). Clusters at equal distance are merged in the order of
    `scipy.cluster.hierarchy.linkage`, which depends only on the unit ids.

    Args:
        vectors: (V, F); a row of NaN is a unit without a vector.
        frequencies: (V,) finite, ≥ 0. They order the children and build the Huffman trees. In the
            clustering all units have the same weight.
        cosine: cluster directions: the mean of all vectors is subtracted and lengths are set to
            one. In embeddings and output layers the length depends on the frequency of the unit,
            and a vector added to all rows of a softmax changes no probability.
    Raises ValueError: wrong shapes, a row that is partly NaN, an infinite value. ConfigError: more
        than `MAX_VECTORS` vectors.
    """
    vectors_VF = np.asarray(vectors, dtype=np.float64)
    if vectors_VF.ndim != 2 or len(vectors_VF) != len(frequencies):
        fault = f"shape {vectors_VF.shape} for {len(frequencies)} units"
        raise ValueError(f"vectors: {fault}; expected one row per unit")
    unit_ids = _units_with_vector(vectors_VF)
    if len(unit_ids) > MAX_VECTORS:
        fault = f"{len(unit_ids):,} units have one, clustering takes at most {MAX_VECTORS:,}"
        raise ConfigError("vectors", fault, "use --kind brown")
    rows = NO_ROWS
    if len(unit_ids) > 1:
        vectors_SF = _scale(vectors_VF[unit_ids])
        if cosine:
            vectors_SF = _directions(vectors_SF)
        rows = _ward_rows(vectors_SF, unit_ids, frequencies)
    return add_unplaced(rows, unit_ids, frequencies)


def _units_with_vector(vectors_VF: NDArray[np.float64]) -> NDArray[np.int64]:
    """The ids (S,) of the units whose row is not NaN.

    Rows of no features are vectors too. Raises ValueError for a row that is partly NaN, or has an
    infinite value.
    """
    is_nan_VF = np.isnan(vectors_VF)
    has_features = vectors_VF.shape[1] > 0
    is_absent_V = is_nan_VF.all(axis=1) & has_features  # `all` is True for no features
    is_partly_nan_V = is_nan_VF.any(axis=1) & ~is_absent_V
    is_wrong_V = is_partly_nan_V | np.isinf(vectors_VF).any(axis=1)
    if is_wrong_V.any():
        unit_id = np.argmax(is_wrong_V)
        raise ValueError(
            f"vectors: unit {unit_id} has NaN or infinite values; only a whole row may be NaN"
        )
    return np.flatnonzero(~is_absent_V)


def _scale(vectors_SF: NDArray[np.float64]) -> NDArray[np.float64]:
    """The vectors times a power of two (which is exact), so that no square overflows.

    The largest value is then between 0.5 and 1.
    """
    largest = np.abs(vectors_SF).max(initial=0.0)
    _, exponent = np.frexp(largest)
    return np.ldexp(vectors_SF, -int(exponent))


def _directions(vectors_SF: NDArray[np.float64]) -> NDArray[np.float64]:
    """The vectors minus their mean, divided by their length; zero for the mean itself."""
    vectors_SF = vectors_SF - vectors_SF.mean(axis=0)
    lengths_S = np.sqrt(np.square(vectors_SF).sum(axis=1))
    divisors_S = np.where(lengths_S > _NO_DIRECTION, lengths_S, np.inf)  # x / inf is 0
    return np.asarray(vectors_SF / divisors_S[:, None])


class _Cluster(NamedTuple):
    """A cluster of units; when two are merged, the one that sorts first is the left child."""

    weight: float
    """The frequency of its units."""
    lowest_id: int
    """The lowest id of its units."""
    node: int
    """Its number in the tree: below V a unit, V+n is row n."""


def _ward_rows(
    vectors_SF: NDArray[np.float64], unit_ids: NDArray[np.int64], frequencies: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The merges of Ward's clustering as rows (S-1, 2): a value below V is a unit, V+n is row n.

    The merges of units with identical vectors are replaced by one Huffman tree for each such group.

    Args:
        vectors_SF: the vectors of S ≥ 2 units.
        unit_ids: (S,) the ids of these units.
        frequencies: (V,) the frequencies of all units.
    """
    from scipy.cluster.hierarchy import linkage  # takes half a second
    from scipy.spatial.distance import pdist

    if vectors_SF.shape[1] == 0:
        vectors_SF = np.zeros((len(vectors_SF), 1))  # without features, all are identical
    # Merge n joins two clusters and becomes cluster S+n; the clusters below S are the units.
    # `linkage` gets the distances. Given vectors, it may take a square matrix for distances and
    # warn.
    merges = linkage(pdist(vectors_SF), method="ward")  # two clusters, their distance, their size
    pairs = merges[:, :2].astype(np.int64)
    distances = merges[:, 2]  # ascending
    is_identical = distances == 0
    groups = _groups_of_identical(pairs[is_identical], unit_ids)
    rows: list[NDArray[np.int64]] = []
    next_node = len(frequencies)  # V + the number of rows so far
    clusters: dict[int, _Cluster] = {}  # that are not merged yet, by linkage's number
    for number, units in groups.items():
        subtree = huffman_subtree(units, frequencies[units], next_node)
        rows.append(subtree.rows)
        next_node += len(subtree.rows)
        weight = float(frequencies[units].sum())
        lowest_id = int(units[0])  # they are in ascending order
        clusters[number] = _Cluster(weight, lowest_id, subtree.root)
    first_number = len(unit_ids) + int(is_identical.sum())  # of the merges at larger distances
    for number, (first, second) in enumerate(pairs[~is_identical].tolist(), start=first_number):
        left, right = sorted([clusters.pop(first), clusters.pop(second)])  # the lighter is left
        rows.append(np.array([[left.node, right.node]]))
        weight = left.weight + right.weight
        lowest_id = min(left.lowest_id, right.lowest_id)
        clusters[number] = _Cluster(weight, lowest_id, next_node)
        next_node += 1
    return np.concatenate(rows)


def _groups_of_identical(
    pairs: NDArray[np.int64], unit_ids: NDArray[np.int64]
) -> dict[int, NDArray[np.int64]]:
    """The unit ids of each group of units with identical vectors, in ascending order.

    The key is the number of the group's cluster, as in `linkage`.

    Args:
        pairs: the merges at distance 0: a cluster below S is a unit, S+n is merge n.
        unit_ids: (S,). A unit in no merge is a group of its own.
    """
    groups = {number: unit_ids[number : number + 1] for number in range(len(unit_ids))}
    for number, (first, second) in enumerate(pairs.tolist(), start=len(unit_ids)):
        units = np.concatenate([groups.pop(first), groups.pop(second)])
        groups[number] = np.sort(units)
    return groups
