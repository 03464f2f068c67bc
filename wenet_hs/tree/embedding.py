# SPDX-License-Identifier: Apache-2.0
"""Embeddings of the units, and Ward's clustering of vectors (1963) as the children of a binary tree.

Vectors are trained on transcripts, read from a file, or the output rows of a softmax model. A unit without a vector has
a row of NaN.

Dimension key: V units, F features, S units that have a vector.
"""

import io
import logging
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wenet_hs.errors import CheckpointError, ConfigError, DataError, list_names, one_line
from wenet_hs.files import write_atomic
from wenet_hs.text.units import EOS, SOS, SPECIAL_UNITS
from wenet_hs.tree.huffman import NO_ROWS, add_unplaced, huffman_rows

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

_TRAINED_UNITS = 4_000_000  # units that skip-gram reads in all epochs: seconds, and enough for a few hundred units
_EPOCHS = (5, 100)  # minimum and maximum
_WIDTH = 64  # of a trained vector
_WINDOW = 3  # the most context units on each side, about a syllable; near ones count more
_MAX_BATCH = 10_000  # words that gensim trains on at once; it drops the words after them
MAX_VECTORS = 20_000
"""The most units with a vector: all their distances take 1.6 GB, twice while they are clustered."""
_NO_DIRECTION = 2.0**-32  # the largest value is near one, so a shorter vector is rounding noise
_SOFTMAX_LAYERS = ("head.output.weight", "decoder.output_layer.weight", "decoder.left_decoder.output_layer.weight")
"""The output layer of the attention decoder in our checkpoints and in WeNet's."""


def skip_gram_vectors(sequences: Sequence[Sequence[int]], num_units: int, seed: int) -> NDArray[np.float32]:
    """Skip-gram embeddings trained with hierarchical softmax (Mikolov et al. 2013) by gensim.

    The result is reproducible on one machine. BLAS may round differently on another kind of processor.
    The settings suit some hundred phones or characters and some thousand utterances.

    Args:
        sequences: unit ids of each transcript. They are read until four million units have been, in 5 to 100 passes.
        seed: ≥ 0.
    Returns: (V, 64); NaN in the rows of units that never occur, zero if only one unit occurs.
    Raises ConfigError: gensim is not installed.
    """
    counts = Counter(chain.from_iterable(sequences))
    vectors_VF = np.full((num_units, _WIDTH), np.nan, dtype=np.float32)
    if len(counts) < 2:  # nothing to predict, and gensim would not return
        vectors_VF[list(counts)] = 0.0
        return vectors_VF
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise ConfigError(
            '--kind embedding: training embeddings needs gensim; run pip install "wenet_hs[trees]", or use --embeddings'
        ) from error
    # gensim's own order of equal counts depends on its sorting routine, so the vocabulary is sorted here.
    present = sorted(counts, key=lambda unit_id: (-counts[unit_id], unit_id))
    least, most = _EPOCHS
    passes = min(max(-(-_TRAINED_UNITS // counts.total()), least), most)
    library = logging.getLogger("gensim")
    level = library.level
    library.setLevel(logging.ERROR)  # its progress does not belong in our log
    try:
        # One worker, because the order of updates of two depends on timing. sample=0, because each of a few hundred
        # units is a "frequent word", and most of the data would be dropped. hashfxn: Python's hash() differs per
        # process.
        settings = {"sg": 1, "hs": 1, "negative": 0, "min_count": 1, "sample": 0, "workers": 1, "sorted_vocab": 0}
        settings |= {"vector_size": _WIDTH, "window": _WINDOW, "seed": seed}
        model = Word2Vec(hashfxn=lambda text: zlib.crc32(text.encode("utf-8")), **settings)
        model.build_vocab_from_freq({str(unit_id): counts[unit_id] for unit_id in present})
        words = [list(map(str, sequence)) for sequence in sequences]
        _train(model, [part[at : at + _MAX_BATCH] for part in words for at in range(0, len(part), _MAX_BATCH)], passes)
    finally:
        library.setLevel(level)
    vectors_VF[present] = model.wv.vectors
    return vectors_VF


def _train(model: Any, sentences: Sequence[list[str]], passes: int) -> None:
    """word2vec's passes over the data with a linearly falling learning rate, in this thread.

    `model.train` passes batches to a thread, and does not return if an exception ends that thread.
    """
    from gensim.models.word2vec import train_batch_sg

    batches: list[list[list[str]]] = [[]]
    num_left = _MAX_BATCH
    for sentence in sentences:
        if len(sentence) > num_left:
            batches.append([])
            num_left = _MAX_BATCH
        batches[-1].append(sentence)
        num_left -= len(sentence)
    scratch = np.zeros(model.layer1_size, dtype=np.float32)
    for step in range(passes * len(batches)):
        rate = model.alpha + (model.min_alpha - model.alpha) * step / (passes * len(batches))
        train_batch_sg(model, batches[step % len(batches)], rate, scratch, False)


def read_embeddings(path: Path | str, units: Sequence[str]) -> NDArray[np.float64]:
    """The units' vectors in a file; names are compared in NFC.

    `.npy` is an array (V, F) in the order of the units. `.npz` has the arrays `units`, (N,) names, and `vectors`,
    (N, F). In both, a row of NaN is a unit without a vector. Any other file is word2vec's text: an optional first line
    `N F`, then per line a name and F numbers, separated by spaces.

    Returns: (V, F); NaN in the rows of units that are not in the file.
    Raises DataError: one line, whatever is wrong with the file. No code in the file is run.
    """
    path = Path(path)
    if path.suffix == ".npy":
        vectors = _checked(path, load_numpy(path), len(units))
    else:
        names = [unicodedata.normalize("NFC", unit) for unit in units]
        rows = _read_archive(path) if path.suffix == ".npz" else _read_text(path, set(names))
        found = [row for row in map(rows.get, names) if row is not None]
        if not found:
            raise DataError(f"{path}: has none of the {len(units)} units; its names must be those of units.txt")
        vectors = np.array([rows.get(name, np.full(len(found[0]), np.nan)) for name in names])
    log_without_vector(vectors, units, f"have no vector in {path}")
    return vectors


def write_embeddings(path: Path | str, units: Sequence[str], vectors: NDArray[np.floating]) -> None:
    """Write the units that have a vector in word2vec's text format; `read_embeddings` reads the same values."""
    present = np.flatnonzero(~np.isnan(vectors).all(axis=1)).tolist()
    lines = [f"{len(present)} {vectors.shape[1]}"]
    lines += [" ".join([units[unit_id], *map(repr, vectors[unit_id].tolist())]) for unit_id in present]
    write_atomic(path, "\n".join(lines) + "\n")


def log_without_vector(vectors: NDArray[np.floating], units: Sequence[str], reason: str) -> None:
    """Log the units whose row is NaN in one line: a warning unless all are special units like `<blank>`."""
    absent = np.flatnonzero(np.isnan(vectors).all(axis=1)).tolist() if vectors.size else []
    names = [units[unit_id] for unit_id in absent]
    if not names:
        return
    level = logging.INFO if {*names} <= {*SPECIAL_UNITS, SOS, EOS} else logging.WARNING
    text = "%d of %d units %s; they are placed by their frequency only: %s"
    logger.log(level, text, len(names), len(units), reason, list_names(names, " ", most=20))


def load_numpy(path: Path) -> Any:
    """The content of a `.npy` or `.npz` file; no code in it is run. Raises DataError."""
    try:
        return np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
    except Exception as error:  # a damaged header is parsed as Python and may raise anything
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(
        f"{path}: not a readable NumPy file of numbers and text ({one_line(error)}); check the path, or save it again"
    )


def _checked(where: Path | str, array: Any, num_rows: int) -> NDArray[np.float64]:
    """The array as (num_rows, F) float64, each row finite or all NaN."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise DataError(f"{where}: expected one array of numbers, found {getattr(array, 'dtype', 'an archive')}")
    if array.ndim != 2 or len(array) != num_rows or not array.shape[1]:
        raise DataError(f"{where}: shape {array.shape}, expected ({num_rows}, F): one vector per unit, in their order")
    vectors = array.astype(np.float64)
    faulty = ~np.isfinite(vectors).all(axis=1) & ~np.isnan(vectors).all(axis=1)
    if faulty.any():
        row = int(np.argmax(faulty))
        raise DataError(f"{where}: row {row} has a value that is NaN or infinite; only a whole row may be NaN (absent)")
    return vectors


def _read_archive(path: Path) -> dict[str, NDArray[np.float64]]:
    archive = load_numpy(path)
    if isinstance(archive, np.ndarray) or not {"units", "vectors"} <= set(archive.files):
        found = "one array" if isinstance(archive, np.ndarray) else ", ".join(map(repr, archive.files[:8])) or "nothing"
        raise DataError(f"{path}: expected the arrays `units` and `vectors`, found {found}")
    try:
        names, array = archive["units"], archive["vectors"]
    except Exception as error:  # each array is read only now, and may be damaged
        raise _unreadable(path, error) from error
    if names.dtype.kind != "U" or names.ndim != 1:
        raise DataError(f"{path}: units: expected a list of names, found {names.dtype} of shape {names.shape}")
    vectors = _checked(f"{path}: vectors", array, len(names))
    rows: dict[str, NDArray[np.float64]] = {}
    for name, vector in zip([unicodedata.normalize("NFC", name) for name in names.tolist()], vectors, strict=True):
        if name in rows:
            raise DataError(f"{path}: units: {name!r} occurs twice; keep one")
        rows[name] = vector
    return rows


def _read_text(path: Path, wanted: set[str]) -> dict[str, NDArray[np.float64]]:
    """The vectors of the wanted names in a file of word2vec's text, which is read line by line."""
    rows: dict[str, NDArray[np.float64]] = {}
    num_expected: int | None = None
    dim = number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                # Only a space separates, because U+3000 may be a unit.
                name, *numbers = [field for field in line.rstrip("\r\n").split(" ") if field] or [""]
                if (
                    number == 1
                    and len(numbers) == 1
                    and re.fullmatch("[0-9]{1,12} [0-9]{1,12}", f"{name} {numbers[0]}")
                ):
                    num_expected, dim = int(name), int(numbers[0])
                    continue
                dim = dim or len(numbers)
                if len(numbers) != dim or not dim:
                    what = f"expected a unit and {dim or 'its'} numbers, separated by spaces"
                    raise ValueError(f"{len(numbers)} numbers, {what}")
                if dim == 1:
                    raise ValueError("vectors of one number; a table of units is no file of vectors")
                name = unicodedata.normalize("NFC", name)
                if name not in wanted:
                    continue
                if name in rows:
                    raise ValueError(f"{name!r} occurs a second time; keep one")
                rows[name] = np.array([_to_float(text) for text in numbers])
                if not np.isfinite(rows[name]).all():
                    raise ValueError("a value is NaN or infinite; leave the unit out if it has no vector")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text; save word2vec's binary form as text, or as .npz") from error
    except ValueError as error:
        raise DataError(f"{path}:{number}: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if num_expected not in (None, number - 1):
        what = f"{path}:1: the first line says {num_expected} vectors, but there are {number - 1}"
        raise DataError(f"{what}; copy the file again, or correct the line")
    return rows


def _to_float(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{text[:40]!r} is not a number; expected a unit and its vector") from error


def checkpoint_vectors(state: "Mapping[str, Tensor]", num_units: int, where: str) -> NDArray[np.float64]:
    """The rows of the output layer of a trained softmax model, without its bias, which encodes the frequency.

    Args:
        state: the state_dict of a model of ours or of WeNet.
        num_units: V.
        where: the name of the checkpoint in messages.
    Returns: (V, F).
    Raises CheckpointError: the model has no flat softmax, or another number of units, or a weight that is not finite.
    """
    name = next((name for name in _SOFTMAX_LAYERS if name in state), None)
    if name is None:
        raise CheckpointError(f"{where}: has no flat softmax; give the checkpoint of a model with head: softmax")
    weight = state[name]
    if weight.dim() != 2 or len(weight) != num_units:
        raise CheckpointError(
            f"{where}: {name} has shape {tuple(weight.shape)}, but there are {num_units} units; "
            "use the units.txt that the model was trained with"
        )
    vectors: NDArray[np.float64] = weight.detach().cpu().double().numpy()
    if not np.isfinite(vectors).all():
        raise CheckpointError(f"{where}: {name} has a value that is NaN or infinite; use an earlier checkpoint")
    return vectors


# ---- clustering


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
        cosine: cluster directions: the mean of all vectors is subtracted and lengths are set to one. In embeddings and
            output layers the length depends on the frequency of the unit, and a vector added to all rows of a softmax
            changes no probability.
    Raises ValueError: wrong shapes, a row that is partly NaN, an infinite value. ConfigError: more than `MAX_VECTORS`
        vectors.
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
    rows = _ward_rows(_prepared(rows_VF[placed], cosine), placed, frequencies) if len(placed) > 1 else NO_ROWS
    return add_unplaced(rows, placed, frequencies)


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
    """The merges as rows (S-1, 2): below V a unit, V+n row n."""
    from scipy.cluster.hierarchy import linkage  # takes half a second
    from scipy.spatial.distance import pdist

    distances = pdist(rows_SF if rows_SF.shape[1] else np.zeros((len(rows_SF), 1)))
    merges = linkage(distances, method="ward")  # given vectors, it may take a square matrix for distances and warn
    clusters, is_identical = merges[:, :2].astype(np.int64), merges[:, 2] == 0
    groups = list(unit_ids.reshape(-1, 1))  # the units of each cluster of identical vectors; such merges come first
    for first, second in clusters[is_identical]:
        groups.append(np.sort(np.concatenate([groups[first], groups[second]])))
        groups[first] = groups[second] = unit_ids[:0]
    rows: list[NDArray[np.int64]] = []
    next_node = len(frequencies)
    nodes: dict[int, tuple[float, int, int]] = {}  # of each cluster: weight, lowest unit id, number
    for cluster, units in enumerate(groups):
        if len(units):
            below, root = huffman_rows(units, frequencies[units], next_node)
            rows.append(below)
            nodes[cluster] = (float(frequencies[units].sum()), int(units[0]), root)
            next_node += len(below)
    for cluster, (first, second) in enumerate(clusters[~is_identical].tolist(), start=len(groups)):
        left, right = sorted((nodes.pop(first), nodes.pop(second)))
        rows.append(np.array([[left[2], right[2]]]))
        nodes[cluster] = (left[0] + right[0], min(left[1], right[1]), next_node)
        next_node += 1
    return np.concatenate(rows)
