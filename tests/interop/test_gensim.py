# SPDX-License-Identifier: Apache-2.0
"""gensim's hierarchical softmax and the tree head: the same log-probabilities, there and back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from wenet_hs.errors import ConfigError, DataError
from wenet_hs.heads import HSoftmaxHead
from wenet_hs.interop.gensim import from_gensim, gensim_tree, load_gensim, to_gensim, tree_over
from wenet_hs.tree import Tree

gensim_models = pytest.importorskip("gensim.models")
WORDS = list("abcdefghijkl")


def train(seed: int = 1, **options: Any) -> Any:
    """A tiny model; the rarer a word, the later it stands in WORDS."""
    generator = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, len(WORDS) + 1)
    sentences = [list(generator.choice(WORDS, size=8, p=weights / weights.sum())) for _ in range(60)]
    settings: dict[str, Any] = {"vector_size": 6, "hs": 1, "negative": 0, "min_count": 1, "epochs": 40, "sample": 0}
    return gensim_models.Word2Vec(sentences, workers=1, seed=seed, sg=1, **{**settings, **options})


@pytest.fixture(scope="module")
def model() -> Any:
    return train()


def assert_score(model: Any, pair: tuple[str, str], tree: Tree, head: HSoftmaxHead) -> None:
    """gensim's own score of two words is the sum of both directions. It looks each decision up in a table
    of 1,000 steps from -6 to 6, up to five steps too low, which takes less than 0.06 from its logarithm."""
    ids = [tree.units.index(word) for word in pair]
    hidden = torch.from_numpy(np.stack([model.wv[word] for word in pair]))
    expected = -float(head.nll(hidden, torch.tensor(ids[::-1])).sum().detach())
    rounding = 0.06 * sum(len(tree.codes()[unit_id]) for unit_id in ids)
    assert -rounding <= float(model.score([list(pair)], 1)[0]) - expected <= 1e-4


def gensim_log_probs(model: Any, hidden: NDArray[np.float64]) -> NDArray[np.float64]:
    """word2vec's formula, word by word, in float64."""
    columns = []
    for word in model.wv.index_to_key:
        code, point = model.wv.get_vecattr(word, "code"), model.wv.get_vecattr(word, "point")
        scores = hidden @ model.syn1[point].astype(np.float64).T
        columns.append(-np.logaddexp(0, -scores * (1 - 2 * np.asarray(code, dtype=np.int64))).sum(-1))
    return np.stack(columns, axis=-1)


def test_the_head_gives_the_models_log_probabilities(model: Any) -> None:
    tree, head = from_gensim(model)
    assert tree.units == tuple(model.wv.index_to_key)
    assert tree.frequencies.sum() == 60 * 8
    for hidden in (model.wv.vectors, 3 * np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)):
        found = head.log_probs(torch.from_numpy(hidden)).detach()
        np.testing.assert_allclose(found.numpy(), gensim_log_probs(model, hidden.astype(np.float64)), atol=1e-5)


def test_codes_are_gensims(model: Any) -> None:
    tree = gensim_tree(model)
    codes = ["".join(map(str, model.wv.get_vecattr(word, "code"))) for word in tree.units]
    assert tree.codes() == codes
    huffman = Tree.huffman(tree.frequencies)
    assert tree.mean_code_length() == pytest.approx(huffman.mean_code_length())


def test_our_head_in_a_model_and_back(model: Any) -> None:
    torch.manual_seed(0)
    tree = Tree.balanced([1.0] * len(WORDS), units=WORDS)
    head = HSoftmaxHead(6, tree)
    other = train(seed=2)
    to_gensim(tree, head, other)
    back, head_back = from_gensim(other)
    hidden = torch.randn(7, 6)
    order = [tree.units.index(word) for word in back.units]
    assert [tree.codes()[i] for i in order] == back.codes()
    torch.testing.assert_close(head_back.log_probs(hidden), head.log_probs(hidden)[:, order])
    assert_score(other, ("a", "b"), tree, head)  # gensim's compiled code reads what was put in


def test_to_gensim_refuses_what_does_not_fit(model: Any) -> None:
    tree = gensim_tree(model)
    with pytest.raises(ValueError, match="to_gensim: the head has a bias"):
        to_gensim(tree, HSoftmaxHead(6, tree, bias=True), model)
    with pytest.raises(ValueError, match="to_gensim: a head of width 5 for vectors of width 6"):
        to_gensim(tree, HSoftmaxHead(5, tree), model)
    others = Tree.balanced([1.0] * len(WORDS))
    with pytest.raises(ValueError, match="the model's words must be the same"):
        to_gensim(others, HSoftmaxHead(6, others), model)


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


def small_tree() -> Tree:
    """((a b) (c (d e)))."""
    children = np.array([[1, 2], [4, 5], [6, 3], [7, 8]])
    return Tree("gensim", tuple("abcde"), children, np.array([5.0, 4, 3, 2, 1]), {"source": "gensim"})


def test_the_same_units_in_another_order() -> None:
    tree = tree_over(small_tree(), tuple("ecabd"))
    assert dict(zip(tree.units, tree.codes(), strict=True)) == dict(zip("abcde", small_tree().codes(), strict=True))
    assert tree.frequencies.tolist() == [1, 3, 5, 4, 2]
    assert tree.options == {"source": "gensim", "words": 5, "added": 0, "left_out": 0}


@pytest.mark.parametrize(
    ("units", "codes"),
    [
        ("bcde", {"b": "0", "c": "10", "d": "110", "e": "111"}),
        ("cd", {"c": "0", "d": "1"}),
        ("d", {"d": ""}),
    ],
)
def test_words_that_are_no_units_are_cut_out(units: str, codes: dict[str, str]) -> None:
    tree = tree_over(small_tree(), tuple(units))
    assert dict(zip(tree.units, tree.codes(), strict=True)) == codes
    assert tree.options["left_out"] == 5 - len(units)


def test_units_that_are_no_words() -> None:
    units = ("<blank>", "<unk>", "<sos/eos>", "x", *"abcde")
    message = r"units: 4 of 9 are not words of this model \(<blank>, <unk>, <sos/eos>, x\); --add_missing puts them"
    with pytest.raises(DataError, match=message):
        tree_over(small_tree(), units)
    tree = tree_over(small_tree(), units, add_missing=True)
    assert tree.codes()[:4] == ["100", "101", "110", "111"]
    assert tree.codes()[4:] == ["0" + code for code in small_tree().codes()]
    assert tree.frequencies.tolist() == [0, 0, 0, 0, 5, 4, 3, 2, 1]
    assert tree_over(small_tree(), ("x", "d"), add_missing=True).codes() == ["1", "0"]
    with pytest.raises(DataError, match="units: none of the 2 is a word of this model; take the table"):
        tree_over(small_tree(), ("x", "y"), add_missing=True)


# ---- files


def test_a_file_is_read_only_when_it_is_trusted(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "w2v.model"
    model.save(str(path))
    with pytest.raises(ConfigError, match=r"w2v.model: gensim's format is a pickle, .* any code .* add --trust_pickle"):
        load_gensim(path, trust_pickle=False)
    assert gensim_tree(load_gensim(path, trust_pickle=True)) == gensim_tree(model)
    path.write_bytes(b"not a pickle")
    with pytest.raises(
        DataError, match=r"w2v.model: not a word2vec model of gensim \(.*\); give what `model.save` wrote"
    ):
        load_gensim(path, trust_pickle=True)
    with pytest.raises(DataError, match="other.model: no such file"):
        load_gensim(tmp_path / "other.model", trust_pickle=True)


def test_gensim_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gensim.models", None)
    with pytest.raises(ConfigError, match=r'gensim is not installed; run `pip install "wenet_hs\[trees\]"`'):
        load_gensim(tmp_path / "x", trust_pickle=True)
