# SPDX-License-Identifier: Apache-2.0
"""Counting units for a tree: end of sentence once an utterance, pooled or by language."""

import logging

import numpy as np
import pytest

from wenet_hs.errors import ConfigError, DataError
from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenize import Tokenizer, make_tokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.tree.build import build_tree, unit_frequencies


@pytest.fixture
def tokenizer() -> Tokenizer:
    return make_tokenizer("char", UnitTable.from_units("ab▁"))  # <blank> <unk> <sos/eos> a b ▁


def utterance(text: str, lang: str | None = None) -> Utterance:
    return Utterance(key=f"{lang}-{text}", wav="x.wav", txt=text, lang=lang)


def test_pooled_counts_units_and_one_end_an_utterance(tokenizer: Tokenizer) -> None:
    counts = unit_frequencies([utterance("ab a", "ca"), utterance("b", "es")], tokenizer)
    assert counts.tolist() == [0, 0, 2, 2, 2, 1]
    assert counts.dtype == np.float64


def test_per_language_gives_each_language_the_same_weight(tokenizer: Tokenizer) -> None:
    # ca: a 2, eos 2 of 4; es: b 3, eos 1 of 4 (equation 2 of the paper, end of sentence being a unit like any other)
    data = [utterance("a", "ca"), utterance("a", "ca"), utterance("bbb", "es")]
    assert unit_frequencies(data, tokenizer, "per_language").tolist() == [0, 0, 0.5 + 0.25, 0.5, 0.75, 0]
    many = data + [utterance("a", "ca")] * 10
    assert unit_frequencies(many, tokenizer, "per_language").tolist() == [0, 0, 0.75, 0.5, 0.75, 0]


def test_order_of_utterances_changes_nothing(tokenizer: Tokenizer) -> None:
    data = [utterance("a" * i + "b", lang) for i, lang in enumerate(["tr", "ca", "es", "tr", "pl", "ca"])]
    forward = unit_frequencies(data, tokenizer, "per_language")
    assert (unit_frequencies(data[::-1], tokenizer, "per_language") == forward).all()
    assert forward.sum() == pytest.approx(4)


def test_unknown_units_are_counted_and_named(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        counts = unit_frequencies([utterance("axé")], tokenizer)
    assert counts.tolist() == [0, 2, 1, 1, 0, 0]
    assert "2 of 4 units (50.00 %) are not in the unit table and count as <unk>" in caplog.text


def test_wrong_calls_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="--weighting: must be one of pooled, per_language, got 'even'"):
        unit_frequencies([utterance("a")], tokenizer, "even")
    with pytest.raises(DataError, match="utterance 'None-a': no language in the data list; add `lang`, or use"):
        unit_frequencies([utterance("a")], tokenizer, "per_language")
    with pytest.raises(DataError, match="no utterances to count units in"):
        unit_frequencies([], tokenizer)


def test_build_tree_matches_the_kind() -> None:
    tree = build_tree("huffman", ("a", "b"), np.array([1.0, 2.0]), options={"weighting": "pooled"})
    assert (tree.kind, tree.codes(), tree.options) == ("huffman", ["0", "1"], {"weighting": "pooled"})
    with pytest.raises(ConfigError, match="--kind: must be one of huffman, got 'fano'"):
        build_tree("fano", ("a", "b"), np.array([1.0, 2.0]))
