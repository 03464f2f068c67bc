# SPDX-License-Identifier: Apache-2.0
"""Vectors of units: trained twice to the same bits, read from every kind of file, taken from a model; and faults."""

import logging
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from wenet_hs.errors import CheckpointError, ConfigError, DataError
from wenet_hs.tree.build import TreeSource, build_tree
from wenet_hs.tree.embedding import checkpoint_vectors, log_without_vector, read_embeddings, skip_gram_vectors

UNITS = ("<blank>", "a", "b", "é", "▁")


# Trained


def consonants_and_vowels(num_sequences: int = 300) -> list[list[int]]:
    """Syllables of a consonant (3…6) and a vowel (7…9), and an end (2): two classes that share all contexts."""
    rng = np.random.default_rng(0)
    return [
        [*np.stack([rng.integers(3, 7, 6), rng.integers(7, 10, 6)], axis=1).ravel().tolist(), 2]
        for _ in range(num_sequences)
    ]


@pytest.fixture(scope="module")
def trained() -> NDArray[np.float32]:
    pytest.importorskip("gensim")
    return skip_gram_vectors(consonants_and_vowels(), 11, dim=8, epochs=20)


def test_units_of_the_same_contexts_have_like_vectors(trained: NDArray[np.float32]) -> None:
    assert trained.shape == (11, 8)
    assert np.isnan(trained).all(axis=1).tolist() == [True, True] + [False] * 8 + [True]
    counts = np.array([0, 0, 3, 4, 4, 4, 4, 6, 6, 6, 0])
    tree = build_tree("embedding", TreeSource(tuple("abcdefghijk"), counts, vectors=trained))
    codes = dict(enumerate(tree.codes()))
    below = {
        prefix: {unit for unit, code in codes.items() if code.startswith(prefix)}
        for code in codes.values()
        for prefix in (code[:length] for length in range(1, len(code)))
    }
    assert {3, 4, 5, 6} in below.values()
    assert {7, 8, 9} in below.values()
    assert {0, 1, 10} in below.values()


_PROGRAM = """
import numpy as np
from wenet_hs.tree.embedding import skip_gram_vectors
rng = np.random.default_rng(0)
sequences = [rng.integers(0, 30, 20).tolist() for _ in range(50)]
vectors = skip_gram_vectors(sequences, 31, dim=16, epochs=3, seed=5)
import hashlib
digest = hashlib.sha256(vectors.tobytes()).hexdigest()
"""


@pytest.mark.slow
def test_two_processes_give_the_same_bits() -> None:
    pytest.importorskip("gensim")
    here: dict[str, str] = {}
    exec(_PROGRAM, here)  # noqa: S102
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PROGRAM + "print(digest)"],
        env=os.environ | {"PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "2"},
        capture_output=True,
        check=True,
    )
    assert run.stdout.decode().split() == [here["digest"]]
    assert run.stderr == b""


def test_seed_and_order_of_equal_counts(trained: NDArray[np.float32], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sequences = consonants_and_vowels()
    assert np.array_equal(skip_gram_vectors(sequences, 11, dim=8, epochs=20), trained, equal_nan=True)
    assert not np.array_equal(skip_gram_vectors(sequences, 11, dim=8, epochs=20, seed=1), trained, equal_nan=True)
    assert not caplog.messages  # nor gensim's progress
    assert logging.getLogger("gensim").level == logging.NOTSET


def test_little_and_nothing_to_train_on() -> None:
    pytest.importorskip("gensim")
    assert np.isnan(skip_gram_vectors([], 3, dim=4)).all()
    only = skip_gram_vectors([[1, 1, 1], [1]], 3, dim=4)
    assert (only[1] == 0).all()
    assert np.isnan(only[[0, 2]]).all()
    pair = skip_gram_vectors([[0, 1]], 2, dim=4)
    assert np.isfinite(pair).all()


def test_a_long_sequence_is_read_to_its_end() -> None:
    # gensim reads 10,000 units of a sentence: what changes behind them must change the vectors.
    pytest.importorskip("gensim")
    start = [0, 1] * 5000
    first = skip_gram_vectors([start + [2, 3, 2, 3]], 4, dim=4, epochs=1)
    second = skip_gram_vectors([start + [2, 2, 3, 3]], 4, dim=4, epochs=1)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("unit_id", [-1, 3])
def test_an_id_outside_the_table(unit_id: int) -> None:
    with pytest.raises(ValueError, match=f"sequences: unit id {unit_id}; with 3 units it must be 0…2"):
        skip_gram_vectors([[0, 1], [2, unit_id]], 3)


def test_without_gensim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(ConfigError, match=r'needs gensim; run pip install "wenet_hs\[trees\]", or use --embeddings'):
        skip_gram_vectors([[0, 1]], 2)


# Files


def written(tmp_path: Path, content: str | bytes, name: str = "vectors.vec") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        "4 2\na 1 2\n▁ 3 4\ne\u0301 5 6.5\nother -1 1e-3\n",
        "a 1 2\n▁ 3 4\nother 7 x\né 5 6.5",
        "\ufeff4 2 \r\na 1 2 \r\n▁  3 4 \r\né 5 6.5 \r\nother 0 0 \r\n",
    ],
)
def test_text_with_and_without_a_first_line(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path, content)
    vectors = read_embeddings(path, UNITS)
    assert np.isnan(vectors[[0, 2]]).all()
    assert vectors[[1, 4, 3]].tolist() == [[1, 2], [3, 4], [5, 6.5]]
    assert caplog.messages == [
        f"2 of 5 units have no vector in {path}; they are placed by their frequency only: <blank> b"
    ]


def test_only_a_space_divides(tmp_path: Path) -> None:
    assert read_embeddings(written(tmp_path, "\u3000 1 2\n\u2028 3 4\n"), ("\u3000", "\u2028")).tolist() == [
        [1, 2],
        [3, 4],
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 1 2\nb 3\n", ":2: 2 fields, expected a unit and 2 numbers, separated by spaces"),
        ("2 3\na 1 2\nb 3 4\n", ":2: 3 fields, expected a unit and 3 numbers"),
        ("a 1 2\n\nb 3 4\n", ":2: 0 fields, expected a unit and 2 numbers"),
        ("a 1 2\nb 3 nan\n", ":2: a value is NaN or infinite; leave the unit out if it has no vector"),
        ("a 1 two\n", ":1: 'two' is not a number; expected a unit and its vector"),
        ("2 2\na 1 2\na 3 4\n", ":3: 'a' is already on line 2; keep one"),
        ("é 1 2\ne\u0301 3 4\n", ":2: 'é' is already on line 1; keep one"),
        ("9 2\na 1 2\nb 3 4\n", ":1: announces 9 vectors, but 2 follow; copy the file again"),
        ("2 2\nx 1 2\ny 3 4\n", ": has none of the 5 units; its names must be those of units.txt"),
        ("9" * 5000 + " 2\na 1 2\n", ":2: 3 fields, expected a unit and 1 numbers"),
        (b"1 2\na \x00\x00\x80\x3f\xff\xfe\n", ":2: not UTF-8 text at byte 4; save word2vec's binary form as text"),
    ],
)
def test_faults_of_a_text_file(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_embeddings(path, UNITS)
    assert str(caught.value).startswith(f"{path}{message}")
    assert "\n" not in str(caught.value)


def test_npy_has_the_rows_in_the_order_of_the_units(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    array = np.arange(10, dtype=np.float16).reshape(5, 2)
    array[0] = np.nan
    np.save(tmp_path / "vectors.npy", array)
    assert np.array_equal(read_embeddings(tmp_path / "vectors.npy", UNITS), array.astype(np.float64), equal_nan=True)
    assert caplog.messages == []  # a special unit alone is no warning


def test_npz_has_named_rows(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", units=np.array(["b", "x", "e\u0301"]), vectors=np.array([[1, 2], [3, 4], [5, 6]]))
    vectors = read_embeddings(tmp_path / "v.npz", UNITS)
    assert vectors[[2, 3]].tolist() == [[1, 2], [5, 6]]
    assert np.isnan(vectors[[0, 1, 4]]).all()
    for name in ("none.txt", "none.npy"):
        with pytest.raises(DataError, match=f"{name}: cannot be read .No such file or directory.; check the path"):
            read_embeddings(tmp_path / name, UNITS)


def saved(**arrays: object) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("save", "message"),
    [
        (saved(vectors=np.eye(2)), ": expected the arrays `units` and `vectors`, found 'vectors'"),
        (saved(units=np.array(["a", "a"]), vectors=np.eye(2)), ": units: 'a' occurs twice; keep one"),
        (saved(units=np.array([1, 2]), vectors=np.eye(2)), ": units: expected a list of names, found int64"),
        (saved(units=np.array(["a", "b"]), vectors=np.ones((2, 0))), ": vectors: shape (2, 0), expected (2, F)"),
        (
            saved(units=np.array(["a", "b"]), vectors=np.array([[1, 2], [np.nan, 1]])),
            ": vectors: row 1 has a value that is NaN or infinite; only a whole row may be NaN (absent)",
        ),
        (saved(units=np.array(["a", None]), vectors=np.eye(2)), ": not a readable NumPy file"),
        (lambda path: path.write_bytes(b"PK\x03\x04 rubbish"), ": not a readable NumPy file"),
        (lambda path: path.write_bytes(b""), ": not a readable NumPy file"),
    ],
)
def test_faults_of_an_archive(tmp_path: Path, save: Callable[[Path], None], message: str) -> None:
    path = tmp_path / "vectors.npz"
    save(path)
    with pytest.raises(DataError) as caught:
        read_embeddings(path, UNITS)
    assert str(caught.value).startswith(f"{path}{message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((4, 2)), r"shape \(4, 2\), expected \(5, F\): one vector per unit, in their order"),
        (np.ones(5), r"shape \(5,\), expected \(5, F\)"),
        (np.array(["a"] * 5), "expected one array of numbers, found <U1"),
        (np.array([[print], [1], [2], [3], [4]], dtype=object), "not a readable NumPy file of numbers and text"),
    ],
)
def test_faults_of_an_array(tmp_path: Path, array: NDArray[np.generic], message: str) -> None:
    np.save(tmp_path / "vectors.npy", array, allow_pickle=True)
    with pytest.raises(DataError, match=rf"vectors.npy: {message}"):
        read_embeddings(tmp_path / "vectors.npy", UNITS)


def test_an_archive_cut_short_or_named_as_an_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", units=np.array(["a"]), vectors=np.ones((1, 900)))
    whole = (tmp_path / "v.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "cut.npz", "w") as archive:
        archive.writestr("units.npy", whole[:90])
        archive.writestr("vectors.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': 'x'")
    with pytest.raises(DataError, match="cut.npz: not a readable NumPy file"):
        read_embeddings(tmp_path / "cut.npz", UNITS)
    with pytest.raises(DataError, match="v.npy: expected one array of numbers, found an archive"):
        read_embeddings(written(tmp_path, whole, "v.npy"), UNITS)


# Checkpoints


@pytest.mark.parametrize(
    "name", ["head.output.weight", "decoder.output_layer.weight", "decoder.left_decoder.output_layer.weight"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_rows_of_a_softmax(name: str, dtype: torch.dtype) -> None:
    weight = torch.arange(6, dtype=dtype).reshape(3, 2).requires_grad_()
    state = {"ctc.ctc_lo.weight": torch.zeros(3, 2), name: weight, name.replace("weight", "bias"): torch.ones(3)}
    vectors = checkpoint_vectors(state, 3, "final.pt")
    assert vectors.dtype == np.float64
    assert vectors.tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"head.inner_vector.weight": torch.zeros(2, 4)}, "has no flat softmax; give the checkpoint of a model with"),
        (
            {"head.output.weight": torch.zeros(4, 2)},
            r"head.output.weight has shape \(4, 2\), but there are 3 units; use",
        ),
        ({"head.output.weight": torch.zeros(3)}, r"head.output.weight has shape \(3,\), but"),
        ({"head.output.weight": torch.full((3, 2), torch.nan)}, "has a value that is NaN or infinite; use an earlier"),
    ],
)
def test_faults_of_a_checkpoint(state: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"final.pt: .*{message}"):
        checkpoint_vectors(state, 3, "final.pt")


def test_units_without_a_vector_are_listed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    units = ["<blank>", "a", "ж", "b"]
    log_without_vector(np.array([[np.nan], [1.0], [np.nan], [2.0]]), units, "have no vector")
    log_without_vector(np.array([[np.nan], [1.0], [3.0], [2.0]]), units, "have no vector")
    log_without_vector(np.zeros((4, 1)), units, "have no vector")
    log_without_vector(np.full((30, 2), np.nan), [f"u{unit}" for unit in range(30)], "have no vector")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
    assert caplog.messages[0] == "2 of 4 units have no vector; they are placed by their frequency only: <blank> ж"
    assert caplog.messages[2].endswith("u18 u19 and 10 more")
