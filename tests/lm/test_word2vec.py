# SPDX-License-Identifier: Apache-2.0
"""word2vec: steps worked by hand, gradients of the heads, gensim's vectors, windows and sampling.

Agreement with gensim has two steps. A NumPy reference with gensim's table of the sigmoid and its
limit of 6 gives gensim's vectors. The same reference with the exact sigmoid gives the kernel's.
"""

import importlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from trees import comb, units_below

from wenet_hs.heads import HSoftmaxHead, SoftmaxHead
from wenet_hs.lm import word2vec
from wenet_hs.lm.word2vec import (
    Architecture,
    EncodedText,
    Word2VecOptions,
    encode_text,
    split_jobs,
    train_word2vec,
)
from wenet_hs.lm.word2vec_numba import train_job
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import Tree
from wenet_hs.tree_kinds.embedding import read_embeddings, write_embeddings
from wenet_hs.tree_kinds.kinds import TreeSource, build_tree

Floats = NDArray[np.float64]
Sigmoid = Callable[[float], float | None]
ARCHITECTURES = get_args(Architecture)
NO_TREE = np.empty(0, np.int32)


def text_of(sentences: Sequence[Sequence[int]]) -> EncodedText:
    starts = np.cumsum([0, *map(len, sentences)])
    return EncodedText(
        np.array([unit for sentence in sentences for unit in sentence], np.int32), starts, Counter()
    )


def zipf_sentences(num: int, num_units: int, length: int = 8) -> list[list[int]]:
    """Sentences in which every unit occurs; the lower its id, the more frequent."""
    weights = 1.0 / np.arange(1, num_units + 1)
    drawn = np.random.default_rng(1).choice(
        num_units, size=(num, length), p=weights / weights.sum()
    )
    drawn.reshape(-1)[:num_units] = np.arange(num_units)
    return drawn.tolist()


# ---- one step


def test_a_step_worked_by_hand() -> None:
    # The tree ((b c) a): node 0 is the root, node 1 is its left child. The text is "b a", and only
    # b has a window: b is predicted from the vector h = (1, 0) of a.
    tree = Tree("by hand", ("a", "b", "c"), np.array([[1, 2], [3, 4]]), np.ones(3))
    log3 = math.log(3)
    # The root's score is h · (log 3, 0) = log 3, so left has σ(log 3) = 3/4. Node 1's is h · (0, 1)
    # = 0: 1/2. b is left and left: P = 3/8. With the rate 0.4 the slopes are 0.4 · (1 - 3/4) = 0.1
    # and 0.4 · (1 - 1/2) = 0.2. Each node's vector moves by its slope times h, and h by 0.1 · (log
    # 3, 0) + 0.2 · (0, 1). c is left and right: P = 3/8 too, and the second slope is -0.4 · 1/2 =
    # -0.2.
    for unit, second_slope in ((1, 0.2), (2, -0.2)):
        vectors = np.array([[1, 0], [5, 5], [7, 7]], np.float32)
        weight = np.array([[log3, 0], [0, 1]], np.float32)
        reaches, up = np.array([1, 0]), tree.edges.astype(np.int32)
        words = np.array([unit, 0], np.int32)
        nats, num = train_job(
            words, np.array([0, 2]), reaches, vectors, weight, up, np.float32(0.4), False
        )
        assert (nats, num) == (pytest.approx(math.log(8 / 3)), 1)
        np.testing.assert_allclose(
            vectors, [[1 + 0.1 * log3, second_slope], [5, 5], [7, 7]], rtol=1e-6
        )
        np.testing.assert_allclose(weight, [[log3 + 0.1, 0], [second_slope, 1]], rtol=1e-6)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    "tree",
    [Tree.huffman([9, 5, 3, 2, 1, 1]), comb(6), Tree.random(np.ones(6)), None],
    ids=["huffman", "comb", "random", "softmax"],
)
def test_each_update_is_the_gradient_of_the_heads_nll(tree: Tree | None, arch: str) -> None:
    torch.manual_seed(0)
    head = SoftmaxHead(7, 6) if tree is None else HSoftmaxHead(7, tree)
    parameter = head.output.weight if isinstance(head, SoftmaxHead) else head.inner_vector.weight
    if isinstance(head, SoftmaxHead):
        torch.nn.init.zeros_(head.output.bias)
    torch.nn.init.normal_(parameter)
    vectors, rate = torch.randn(6, 7), 0.3
    sentence = [0, 3, 3, 5, 1]
    found, weight = vectors.numpy().copy(), parameter.detach().numpy().copy()
    up = NO_TREE if tree is None else tree.edges.astype(np.int32)
    arrays = np.array(sentence, np.int32), np.array([0, 5]), np.full(5, 2), found, weight, up
    nats, num = train_job(*arrays, np.float32(rate), arch == "cbow")

    expected, num_expected = 0.0, 0
    for centre, target in enumerate(sentence):
        around = [i for i in range(max(0, centre - 2), min(5, centre + 3)) if i != centre]
        for used in [around] if arch == "cbow" else [[i] for i in around]:
            hidden = vectors[[sentence[i] for i in used]].mean(0).requires_grad_()
            cost = head.nll(hidden, torch.tensor(target))
            of_hidden, of_weight = torch.autograd.grad(cost, (hidden, parameter))
            with torch.no_grad():
                parameter -= rate * of_weight
                for i in used:  # word2vec adds the gradient of the mean undivided
                    vectors[sentence[i]] -= rate * of_hidden
            expected, num_expected = expected + float(cost.detach()), num_expected + 1
    assert (nats, num) == (pytest.approx(expected, rel=1e-5), num_expected)
    np.testing.assert_allclose(found, vectors.numpy(), atol=2e-6)
    np.testing.assert_allclose(weight, parameter.detach().numpy(), atol=2e-6)


# ---- agreement with gensim


class Plain:
    """word2vec with hierarchical softmax in float64, without random windows."""

    def __init__(self, tree: Tree, vectors: NDArray[np.float32], sigmoid: Sigmoid) -> None:
        self.vectors, self.weight = (
            vectors.astype(np.float64),
            np.zeros((tree.num_inner, vectors.shape[1])),
        )
        self.nodes, self.turns = tree.paths()
        self.sigmoid, self.num_steps, self.num_skipped = sigmoid, 0, 0

    def train(self, text: EncodedText, options: Word2VecOptions) -> "Plain":
        jobs, ends = split_jobs(text.starts), text.starts.tolist()
        for epoch in range(options.epochs):
            for first, last in jobs:
                progress = (epoch + first / (len(ends) - 1)) / options.epochs
                rate = options.lr + (options.min_lr - options.lr) * progress
                for start, end in zip(ends[first:last], ends[first + 1 : last + 1], strict=True):
                    self.train_sentence(text.ids[start:end].tolist(), rate, options)
        return self

    def train_sentence(self, units: list[int], rate: float, options: Word2VecOptions) -> None:
        for centre, target in enumerate(units):
            around = (
                units[max(0, centre - options.window) : centre],
                units[centre + 1 : centre + options.window + 1],
            )
            others = [*around[0], *around[1]]
            for used in [others] if options.arch == "cbow" else [[unit] for unit in others]:
                error = self.step(self.vectors[used].mean(axis=0), target, rate)
                np.add.at(self.vectors, used, error)

    def step(self, hidden: Floats, target: int, rate: float) -> Floats:
        error = np.zeros_like(hidden)
        for node, turn in zip(self.nodes[target], self.turns[target], strict=True):
            sigma = self.sigmoid(float(hidden @ self.weight[node])) if turn else None
            if sigma is None:
                self.num_skipped += int(turn != 0)
                continue
            slope = rate * ((turn == 1) - sigma)
            error += slope * self.weight[node]
            self.weight[node] += slope * hidden
        self.num_steps += 1
        return error


def exact_sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-score))


def gensims_sigmoid(score: float) -> float | None:
    """Its table has 1,000 values for -6 … 6.

    It multiplies by 83, not by 1000 / 12, and rounds down.
    """
    return None if abs(score) >= 6 else exact_sigmoid((int((score + 6) * 83) / 1000 * 2 - 1) * 6)


def gensim_model(sentences: list[list[int]], options: Word2VecOptions) -> Any:
    """An untrained model; its word i is the unit i."""
    settings = {
        "sg": int(options.arch == "skipgram"),
        "hs": 1,
        "negative": 0,
        "sample": 0,
        "cbow_mean": 1,
    }
    settings |= {
        "vector_size": options.dim,
        "window": options.window,
        "shrink_windows": False,
        "workers": 1,
    }
    settings |= {
        "alpha": options.lr,
        "min_alpha": options.min_lr,
        "epochs": options.epochs,
        "sorted_vocab": 0,
    }
    counts = Counter(unit for sentence in sentences for unit in sentence)
    model = pytest.importorskip("gensim.models").Word2Vec(
        min_count=1, batch_words=word2vec.JOB_WORDS, **settings
    )
    model.build_vocab_from_freq(
        {str(unit): counts[unit] for unit in range(len(counts))}, corpus_count=len(sentences)
    )
    return model


@pytest.mark.parametrize("start", ["small", "large"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_vectors_of_gensim(arch: Architecture, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From gensim's start, 1,000 steps.

    From one 60 times larger few steps, in which gensim skips decisions.

    No score of the few is within 3e-4 of a border of two values of the table, so rounding cannot
    choose another one. In the many the neighbouring value would change a vector by less than 1e-5.
    """
    monkeypatch.setattr(
        word2vec, "JOB_WORDS", 50
    )  # 6 sentences; the learning rate changes after each job
    sentences = zipf_sentences(40, 20) if start == "small" else zipf_sentences(3, 4)
    num_units, epochs = (20, 4 if arch == "cbow" else 1) if start == "small" else (4, 1)
    lr = 0.025 if start == "small" else 0.2
    options = Word2VecOptions(
        arch=arch, dim=10, window=3, shrink_windows=False, epochs=epochs, lr=lr
    )
    model = gensim_model(sentences, options)
    model.wv.vectors *= 1 if start == "small" else 60
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    read_gensim_tree = importlib.import_module("word2vec").read_gensim_tree
    first, (tree, found) = model.wv.vectors.copy(), read_gensim_tree(model)
    assert tree.units == tuple(map(str, range(num_units)))
    words = [list(map(str, sentence)) for sentence in sentences]
    model.train(words, total_examples=len(words), epochs=epochs)

    text, tolerance = text_of(sentences), 1e-5 * max(1, np.abs(first).max())
    plain, exact = (
        Plain(tree, first, sigmoid).train(text, options)
        for sigmoid in (gensims_sigmoid, exact_sigmoid)
    )
    assert plain.num_steps > 1000 if start == "small" else plain.num_skipped > 20
    assert np.abs(plain.vectors - exact.vectors).max() > 50 * tolerance
    np.testing.assert_allclose(model.wv.vectors, plain.vectors, rtol=0, atol=tolerance)
    np.testing.assert_allclose(model.syn1[found.rows], plain.weight, rtol=0, atol=tolerance)

    ours = train_word2vec(text, num_units, options, tree=tree, vectors=first)
    assert isinstance(ours.head, HSoftmaxHead)
    np.testing.assert_allclose(ours.vectors, exact.vectors, rtol=0, atol=tolerance)
    np.testing.assert_allclose(
        ours.head.inner_vector.weight.detach(), exact.weight, rtol=0, atol=tolerance
    )


def test_the_first_vectors_have_the_distribution_of_gensims() -> None:
    text, options = text_of([[0, 1]]), Word2VecOptions(dim=50, epochs=1, lr=1e-30, min_lr=0, seed=3)
    drawn = train_word2vec(text, 2, options).vectors
    model = gensim_model([[0, 1]], options)
    model.wv.vectors = None
    model.wv.resize_vectors(seed=3)
    assert np.array_equal(drawn, model.wv.vectors)


# ---- texts, jobs, windows, sampling


def test_words_that_are_not_units_are_counted_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word2vec, "JOB_WORDS", 3)
    tokenizer = make_tokenizer("word", UnitTable.from_units("aé"))  # <blank> <unk> <sos/eos> a é
    sentences = ["a x e\u0301 <unk>", "x", "", "<blank> <sos/eos>", "a a a a a a é", "é"]
    text = encode_text(sentences, tokenizer)
    assert text.ids.tolist() == [3, 4, 1, *[3] * 6, 4, 4]
    assert text.starts.tolist() == [0, 3, 6, 9, 10, 11]  # a longer sentence is cut
    assert text.unknown == {"x": 2, "<blank>": 1, "<sos/eos>": 1}
    assert text.count_units(6).tolist() == [0, 1, 0, 7, 3, 0]
    assert split_jobs(text.starts) == [(0, 1), (1, 2), (2, 3), (3, 5)]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    "tree", [Tree.huffman([*np.arange(12, 0, -1), 0, 0]), None], ids=["tree", "softmax"]
)
def test_training_on_a_text(tree: Tree | None, arch: Architecture, tmp_path: Path) -> None:
    # Six pairs: unit 2n is always next to unit 2n + 1. Units 12 and 13 do not occur.
    pairs = np.random.default_rng(0).integers(0, 6, (60, 3))
    text = text_of(
        [[unit for pair in row for unit in (2 * pair, 2 * pair + 1)] for row in pairs.tolist()]
    )
    options = Word2VecOptions(arch=arch, dim=8, window=2, epochs=3, lr=0.2)
    first, again = (train_word2vec(text, 14, options, tree=tree) for _ in range(2))
    other = train_word2vec(text, 14, replace(options, seed=1), tree=tree)
    assert first.losses[0] > first.losses[1] > first.losses[2] > 0
    assert first.vectors.tobytes() == again.vectors.tobytes()
    assert first.losses == again.losses
    assert not np.array_equal(first.vectors, other.vectors)
    for parameter, same in zip(first.head.parameters(), again.head.parameters(), strict=True):
        assert torch.equal(parameter, same)
    assert np.isnan(first.vectors).all(axis=1).tolist() == [False] * 12 + [True] * 2
    probabilities = first.head.log_probs(torch.from_numpy(first.vectors[:12])).exp()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(12))
    assert (
        probabilities[np.arange(12), np.arange(12) ^ 1].mean() > 2 / 12
    )  # of the other one of the pair
    names = [f"w{unit}" for unit in range(14)]
    write_embeddings(tmp_path / "v.txt", names, first.vectors)
    read = read_embeddings(tmp_path / "v.txt", names)
    assert np.array_equal(read, first.vectors.astype(np.float64), equal_nan=True)
    keyed = pytest.importorskip("gensim.models").KeyedVectors.load_word2vec_format(
        tmp_path / "v.txt"
    )
    assert keyed.index_to_key == names[:12]
    assert np.array_equal(keyed.vectors, first.vectors[:12])


def test_windows_are_drawn_evenly_and_frequent_words_are_left_out() -> None:
    # The share of unit 0 is 0.9, 9 times the limit: kept with (√9 + 1) / 9. That of unit 1 is 0.1,
    # the limit: all are.
    text = text_of([[0] * 9 + [1]] * 1000)
    options = Word2VecOptions(window=4, sample=0.1)
    vectors = np.zeros((3, 100), np.float32)
    trainer = word2vec._Trainer(
        text=text,
        options=options,
        vectors_VD=vectors,
        head=SoftmaxHead(100, 3),
        generator=np.random.default_rng(0),
    )
    drawn = trainer.draw_words(word2vec.SentenceRange(0, 1000))
    kept = np.bincount(drawn.ids)
    assert kept[1] == 1000 and kept[0] == pytest.approx(4000, abs=150)
    assert (np.diff(drawn.starts) >= 1).all() and (drawn.ids[drawn.starts[1:] - 1] == 1).all()
    assert np.bincount(drawn.reaches)[1:] == pytest.approx(len(drawn.ids) / 4, rel=0.1)


def test_a_text_a_tree_and_vectors_over_other_units_are_refused() -> None:
    options = Word2VecOptions(dim=4)
    for units, tree, vectors in (
        (2, None, None),
        (3, Tree.huffman([1, 2]), None),
        (3, Tree.huffman([1, 2, 3]), np.zeros((2, 4), np.float32)),
        (3, None, np.zeros((3, 5), np.float32)),
    ):
        with pytest.raises(
            ValueError, match=f"vectors: expected {units} units and vectors of 4 numbers"
        ):
            train_word2vec(text_of([[0, 2]]), units, options, tree=tree, vectors=vectors)


def test_units_with_equal_contexts_have_similar_vectors(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word2vec, "TRAINED_UNITS", 50_000)
    caplog.set_level(logging.INFO)
    # Syllables of a consonant (3…6) and a vowel (7…9), and an end (2): two classes of equal
    # contexts.
    rng = np.random.default_rng(0)
    syllables = [
        np.stack([rng.integers(3, 7, 6), rng.integers(7, 10, 6)], axis=1) for _ in range(200)
    ]
    sequences = [[*pairs.ravel().tolist(), 2] for pairs in syllables]
    trained, again, other = (word2vec.unit_vectors(sequences, 11, seed) for seed in (0, 0, 1))
    assert np.isnan(trained).all(axis=1).tolist() == [True, True] + [False] * 8 + [True]
    counts = np.array([0, 0, 3, 4, 4, 4, 4, 6, 6, 6, 0])
    tree = build_tree("embedding", TreeSource(tuple("abcdefghijk"), counts, vectors=trained))
    assert {frozenset([3, 4, 5, 6]), frozenset([7, 8, 9]), frozenset([0, 1, 10])} <= set(
        units_below(tree)
    )
    assert np.array_equal(again, trained, equal_nan=True) and not np.array_equal(
        other, trained, equal_nan=True
    )
    assert not caplog.messages


def test_vectors_of_few_units() -> None:
    assert np.isnan(word2vec.unit_vectors([], 3, 0)).all()
    only = word2vec.unit_vectors([[1, 1, 1], [1]], 3, 0)
    assert (only[1] == 0).all() and np.isnan(only[[0, 2]]).all()
    assert np.isfinite(word2vec.unit_vectors([[0, 1]], 2, 0)).all()
