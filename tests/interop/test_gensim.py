# SPDX-License-Identifier: Apache-2.0
"""gensim's hierarchical softmax and the tree head: the same codes and log-probabilities."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from wenet_hs.errors import ConfigError, DataError
from wenet_hs.interop.gensim import from_gensim, load_gensim, read_gensim_tree, tree_over
from wenet_hs.tree import Tree

gensim_models = pytest.importorskip("gensim.models")
WORDS = list("abcdefghijkl")


def train(**options: Any) -> Any:
    """A tiny model; the rarer a word, the later it is in WORDS."""
    generator = np.random.default_rng(1)
    weights = 1.0 / np.arange(1, len(WORDS) + 1)
    sentences = [list(generator.choice(WORDS, size=8, p=weights / weights.sum())) for _ in range(60)]
    settings: dict[str, Any] = {"vector_size": 6, "hs": 1, "negative": 0, "min_count": 1, "epochs": 40, "sample": 0}
    return gensim_models.Word2Vec(sentences, workers=1, seed=1, sg=1, **{**settings, **options})


@pytest.fixture(scope="module")
def model() -> Any:
    return train()


def gensim_log_probs(model: Any, hidden: NDArray[np.float64]) -> NDArray[np.float64]:
    """word2vec's formula, word by word, in float64."""
    columns = []
    for word in model.wv.index_to_key:
        code, point = model.wv.get_vecattr(word, "code"), model.wv.get_vecattr(word, "point")
        scores = hidden @ model.syn1[point].astype(np.float64).T
        columns.append(-np.logaddexp(0, -scores * (1 - 2 * np.asarray(code, dtype=np.int64))).sum(-1))
    return np.stack(columns, axis=-1)


def test_the_head_has_the_codes_and_log_probabilities_of_the_model(model: Any) -> None:
    tree, head = from_gensim(model)
    assert tree.units == tuple(model.wv.index_to_key)
    assert tree.frequencies.sum() == 60 * 8
    assert tree.codes() == ["".join(map(str, model.wv.get_vecattr(word, "code"))) for word in tree.units]
    assert tree.mean_code_length() == pytest.approx(Tree.huffman(tree.frequencies).mean_code_length())
    for hidden in (model.wv.vectors, 3 * np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)):
        found = head.log_probs(torch.from_numpy(hidden)).detach()
        np.testing.assert_allclose(found.numpy(), gensim_log_probs(model, hidden.astype(np.float64)), atol=1e-5)
    # gensim's own score of two words is the sum of both directions. It looks each decision up in a table of
    # 1,000 steps from -6 to 6, up to five steps too low, which takes less than 0.06 from its logarithm.
    ids = [tree.units.index(word) for word in "ab"]
    expected = -float(head.nll(torch.from_numpy(model.wv.vectors[ids]), torch.tensor(ids[::-1])).sum().detach())
    rounding = 0.06 * sum(len(tree.codes()[unit_id]) for unit_id in ids)
    assert -rounding <= float(model.score([["a", "b"]], 1)[0]) - expected <= 1e-4


def test_damaged_models() -> None:
    with pytest.raises(DataError, match="gensim model: trained without hierarchical softmax; train it with hs=1"):
        from_gensim(train(hs=0, negative=5, epochs=1))
    damaged = train(epochs=1)
    damaged.wv.set_vecattr("a", "code", np.array([0, 2], dtype=np.uint8))
    with pytest.raises(DataError, match="gensim model: the code and the points of 'a' contradict each other; train"):
        from_gensim(damaged)
    damaged.wv.set_vecattr("a", "code", np.array([], dtype=np.uint8))
    damaged.wv.set_vecattr("a", "point", np.array([], dtype=np.uint32))
    with pytest.raises(DataError, match="gensim model: unit 0 has an empty path"):
        from_gensim(damaged)
    damaged.syn1 = damaged.syn1[:3]
    with pytest.raises(DataError, match=r"gensim model: syn1 of shape \(3, 6\) for 12 words"):
        from_gensim(damaged)


# ---- over the units of a table

SMALL = Tree("gensim", tuple("abcde"), np.array([[1, 2], [4, 5], [6, 3], [7, 8]]), np.array([5.0, 4, 3, 2, 1]))
"""((a b) (c (d e)))."""


def test_units_are_found_by_name_and_other_words_are_removed() -> None:
    tree = tree_over(SMALL, tuple("ecabd"))
    assert dict(zip(tree.units, tree.codes(), strict=True)) == dict(zip("abcde", SMALL.codes(), strict=True))
    assert tree.frequencies.tolist() == [1, 3, 5, 4, 2]
    assert tree.options == {"words": 5, "added": 0, "left_out": 0}
    for units, codes in (("bcde", ["0", "10", "110", "111"]), ("cd", ["0", "1"]), ("d", [""])):
        tree = tree_over(SMALL, tuple(units))
        assert (tree.codes(), tree.options["left_out"]) == (codes, 5 - len(units))


def test_units_that_are_not_words() -> None:
    units = ("<blank>", "<unk>", "<sos/eos>", "x", *"abcde")
    with pytest.raises(DataError, match=r"4 of 9 are not words of this model \(<blank>, .*, x\); --add_missing puts"):
        tree_over(SMALL, units)
    tree = tree_over(SMALL, units, add_missing=True)
    assert tree.codes() == ["100", "101", "110", "111", *("0" + code for code in SMALL.codes())]
    assert tree.frequencies.tolist() == [0, 0, 0, 0, 5, 4, 3, 2, 1]
    assert tree_over(SMALL, ("x", "d"), add_missing=True).codes() == ["1", "0"]
    with pytest.raises(DataError, match="units: none of the 2 is a word of this model; take the table"):
        tree_over(SMALL, ("x", "y"), add_missing=True)


# ---- files


def test_a_file_is_read_only_if_it_is_trusted(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w2v.model"
    model.save(str(path))
    with pytest.raises(ConfigError, match=r"w2v.model: gensim's format is a pickle, .* any code .* add --trust_pickle"):
        load_gensim(path, trust_pickle=False)
    assert read_gensim_tree(load_gensim(path, trust_pickle=True))[0] == read_gensim_tree(model)[0]
    path.write_bytes(b"not a pickle")
    with pytest.raises(DataError, match=r"w2v.model: not a word2vec model of gensim \(.*\); give what `model.save`"):
        load_gensim(path, trust_pickle=True)
    with pytest.raises(DataError, match="other.model: no such file"):
        load_gensim(tmp_path / "other.model", trust_pickle=True)
    monkeypatch.setitem(__import__("sys").modules, "gensim.models", None)
    with pytest.raises(ConfigError, match=r'gensim is not installed; run `pip install "wenet_hs\[trees\]"`'):
        load_gensim(path, trust_pickle=True)
