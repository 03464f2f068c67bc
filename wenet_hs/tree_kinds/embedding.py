# SPDX-License-Identifier: Apache-2.0
"""Embeddings of the units, and Ward's clustering of vectors (1963) as the children of a binary
tree.

Vectors are trained on transcripts (lm/word2vec.py), read from word2vec's text, or the output rows
of a softmax model. A unit without a vector has a row of NaN.

Dimension key: V units, F features, S units that have a vector.
"""

import logging
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
_NO_DIRECTION = 2.0**-32  # the largest value is near one, so a shorter vector is rounding noise
_SOFTMAX_LAYERS = (
    "head.output.weight",
    "decoder.output_layer.weight",
    "decoder.left_decoder.output_layer.weight",
)
"""The output layer of the attention decoder in our checkpoints and in WeNet's."""


def read_embeddings(path: Path | str, units: Sequence[str]) -> NDArray[np.float64]:
    """The units' vectors in a file; names are compared in NFC.

    The file is word2vec's text: an optional first line `N F`, then per line a name and F numbers,
    separated by spaces.

    Returns: (V, F); NaN in the rows of units that are not in the file.
    Raises DataError: one line, whatever is wrong with the file. No code in the file is run.
    """
    path = Path(path)
    names = [unicodedata.normalize("NFC", unit) for unit in units]
    rows = _read_text(path, set(names))
    found = [row for row in map(rows.get, names) if row is not None]
    if not found:
        raise DataError(
            path, f"has none of the {len(units)} units", "its names must be those of units.txt"
        )
    vectors = np.array([rows.get(name, np.full(len(found[0]), np.nan)) for name in names])
    log_without_vector(vectors, units, f"have no vector in {path}")
    return vectors


def write_embeddings(path: Path | str, units: Sequence[str], vectors: NDArray[np.floating]) -> None:
    """Write the units that have a vector in word2vec's text format; `read_embeddings` reads the
    same values.
    """
    present = np.flatnonzero(~np.isnan(vectors).all(axis=1)).tolist()
    lines = [f"{len(present)} {vectors.shape[1]}"]
    lines += [
        " ".join([units[unit_id], *map(repr, vectors[unit_id].tolist())]) for unit_id in present
    ]
    write_atomic(path, "\n".join(lines) + "\n")


def log_without_vector(vectors: NDArray[np.floating], units: Sequence[str], reason: str) -> None:
    """Log the units whose row is NaN in one line: a warning unless all are special units like
    `<blank>`.
    """
    absent = np.flatnonzero(np.isnan(vectors).all(axis=1)).tolist() if vectors.size else []
    names = [units[unit_id] for unit_id in absent]
    if not names:
        return
    level = logging.INFO if {*names} <= {*SPECIAL_UNITS, SOS, EOS} else logging.WARNING
    text = "%d of %d units %s; they are placed by their frequency only: %s"
    logger.log(level, text, len(names), len(units), reason, list_names(names, " ", most=20))


def _read_text(path: Path, wanted: set[str]) -> dict[str, NDArray[np.float64]]:
    """The vectors of the wanted names in a file of word2vec's text, which is read line by line."""
    rows: dict[str, NDArray[np.float64]] = {}
    num_expected: int | None = None
    dim = number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                # Only a space separates, because U+3000 may be a unit.
                name, *numbers = [field for field in line.rstrip("\r\n").split(" ") if field] or [
                    ""
                ]
                if (
                    number == 1
                    and len(numbers) == 1
                    and re.fullmatch("[0-9]{1,12} [0-9]{1,12}", f"{name} {numbers[0]}")
                ):
                    num_expected, dim = int(name), int(numbers[0])
                    continue
                dim = dim or len(numbers)
                if len(numbers) != dim or not dim:
                    expected = f"a unit and {dim or 'its'} numbers, separated by spaces"
                    raise ValueError(f"{len(numbers)} numbers, expected {expected}")
                if dim == 1:
                    raise ValueError(
                        "vectors of one number; a table of units is no file of vectors"
                    )
                name = unicodedata.normalize("NFC", name)
                if name not in wanted:
                    continue
                if name in rows:
                    raise ValueError(f"{name!r} occurs a second time; keep one")
                rows[name] = np.array([_to_float(text) for text in numbers])
                if not np.isfinite(rows[name]).all():
                    raise ValueError(
                        "a value is NaN or infinite; leave the unit out if it has no vector"
                    )
    except UnicodeDecodeError as error:
        raise DataError(
            path, "not UTF-8 text", "save the vectors in word2vec's text form"
        ) from error
    except ValueError as error:
        raise DataError(f"{path}:{number}", str(error)) from error
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from error
    if num_expected not in (None, number - 1):
        found = f"the first line says {num_expected} vectors, but there are {number - 1}"
        raise DataError(f"{path}:1", found, "copy the file again, or correct the line")
    return rows


def _to_float(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(
            f"{text[:40]!r} is not a number; expected a unit and its vector"
        ) from error


def checkpoint_vectors(
    state: "Mapping[str, Tensor]", num_units: int, where: str
) -> NDArray[np.float64]:
    """The rows of the output layer of a trained softmax model, without its bias, which encodes the
    frequency.

    Args:
        state: the state_dict of a model of ours or of WeNet.
        num_units: V.
        where: the name of the checkpoint in messages.
    Returns: (V, F).
    Raises CheckpointError: the model has no flat softmax, or another number of units, or a weight
        that is not finite.
    """
    name = next((name for name in _SOFTMAX_LAYERS if name in state), None)
    if name is None:
        raise CheckpointError(
            where, "has no flat softmax", "give the checkpoint of a model with decoder and softmax"
        )
    weight = state[name]
    if weight.dim() != 2 or len(weight) != num_units:
        found = f"{name} has shape {tuple(weight.shape)}, but there are {num_units} units"
        raise CheckpointError(where, found, "use the units.txt that the model was trained with")
    vectors: NDArray[np.float64] = weight.detach().cpu().double().numpy()
    if not np.isfinite(vectors).all():
        raise CheckpointError(
            where, f"{name} has a value that is NaN or infinite", "use an earlier checkpoint"
        )
    return vectors


# ---- clustering


def ward_children(
    vectors: NDArray[np.floating], frequencies: NDArray[np.float64], *, cosine: bool = False
) -> NDArray[np.int64]:
    """The children (V-1, 2) of the tree of Ward's clustering, in the numbering of `Tree`.

    The left child is the less frequent one; of equal frequency the one with the lowest unit id.
    Units with identical vectors form one Huffman tree. Units without a vector are placed by
    `add_unplaced`. Clusters at equal distance are merged in the order of
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
    rows_VF = np.asarray(vectors, dtype=np.float64)
    if rows_VF.ndim != 2 or len(rows_VF) != len(frequencies):
        raise ValueError(
            f"vectors: shape {rows_VF.shape} for {len(frequencies)} units; expected one row per unit"
        )
    absent_VF = np.isnan(rows_VF)
    is_absent = absent_VF.all(axis=1) if rows_VF.shape[1] else np.zeros(len(rows_VF), dtype=bool)
    wrong = np.flatnonzero((absent_VF.any(axis=1) & ~is_absent) | np.isinf(rows_VF).any(axis=1))
    if len(wrong):
        raise ValueError(
            f"vectors: unit {wrong[0]} has NaN or infinite values; only a whole row may be NaN"
        )
    placed = np.flatnonzero(~is_absent)
    if len(placed) > MAX_VECTORS:
        found = f"{len(placed):,} units have one, clustering takes at most {MAX_VECTORS:,}"
        raise ConfigError("vectors", found, "use --kind brown")
    rows = (
        _ward_rows(_prepared(rows_VF[placed], cosine), placed, frequencies)
        if len(placed) > 1
        else NO_ROWS
    )
    return add_unplaced(rows, placed, frequencies)


def _prepared(rows_SF: NDArray[np.float64], cosine: bool) -> NDArray[np.float64]:
    """The vectors scaled so that no square overflows; with `cosine` their directions, zero for the
    mean itself.
    """
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
    """The merges as rows (S-1, 2): below V a unit, V+n row n."""
    from scipy.cluster.hierarchy import linkage  # takes half a second
    from scipy.spatial.distance import pdist

    distances = pdist(rows_SF if rows_SF.shape[1] else np.zeros((len(rows_SF), 1)))
    merges = linkage(
        distances, method="ward"
    )  # given vectors, it may take a square matrix for distances and warn
    clusters, is_identical = merges[:, :2].astype(np.int64), merges[:, 2] == 0
    groups = list(
        unit_ids.reshape(-1, 1)
    )  # the units of each cluster of identical vectors; such merges come first
    for first, second in clusters[is_identical]:
        groups.append(np.sort(np.concatenate([groups[first], groups[second]])))
        groups[first] = groups[second] = unit_ids[:0]
    rows: list[NDArray[np.int64]] = []
    next_node = len(frequencies)
    nodes: dict[int, tuple[float, int, int]] = {}  # of each cluster: weight, lowest unit id, number
    for cluster, units in enumerate(groups):
        if len(units):
            subtree = huffman_subtree(units, frequencies[units], next_node)
            rows.append(subtree.rows)
            nodes[cluster] = (float(frequencies[units].sum()), int(units[0]), subtree.root)
            next_node += len(subtree.rows)
    for cluster, (first, second) in enumerate(clusters[~is_identical].tolist(), start=len(groups)):
        left, right = sorted((nodes.pop(first), nodes.pop(second)))
        rows.append(np.array([[left[2], right[2]]]))
        nodes[cluster] = (left[0] + right[0], min(left[1], right[1]), next_node)
        next_node += 1
    return np.concatenate(rows)
