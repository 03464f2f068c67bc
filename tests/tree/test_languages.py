# SPDX-License-Identifier: Apache-2.0
"""What a pooled tree costs each language: a table worked by hand, and code lengths of both sorts of trees."""

import math

import numpy as np
import pytest

from wenet_hs.errors import DataError
from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenizer import CharTokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import Tree
from wenet_hs.tree.counts import LanguageCost, language_costs
from wenet_hs.tree.nary import NaryTree

TABLE = UnitTable.from_units("abc")  # <blank> <unk> <sos/eos> a b c


def utterance(key: str, txt: str, lang: str | None) -> Utterance:
    return Utterance(key=key, wav="x.wav", txt=txt, lang=lang)


def test_two_languages_by_hand() -> None:
    huffman = Tree.huffman([0, 0, 8, 4, 2, 1])
    lengths = dict(zip(TABLE.units, huffman.depths().tolist(), strict=True))
    assert lengths == {"<sos/eos>": 1, "a": 2, "b": 3, "c": 4, "<blank>": 5, "<unk>": 5}
    said = [utterance("1", "aaa", "ca"), utterance("2", "bb", "es"), utterance("3", "cc", "es")]
    ca, es, both = language_costs(huffman, said, CharTokenizer(TABLE))
    # ca: a a a end, p = 3/4 and 1/4. es: b b end c c end, three thirds.
    assert (ca.lang, ca.num_units, es.lang, es.num_units, both.lang, both.num_units) == ("ca", 4, "es", 6, "(all)", 10)
    assert ca.entropy == pytest.approx(2 - 0.75 * math.log2(3))
    assert (ca.own_tree, ca.code_length) == (1.0, (3 * 2 + 1) / 4)
    assert es.entropy == pytest.approx(math.log2(3))
    assert es.own_tree == pytest.approx((1 + 2 + 2) / 3)
    assert es.code_length == pytest.approx((2 * 3 + 2 * 4 + 2 * 1) / 6)
    assert es.excess == pytest.approx(8 / 3 - math.log2(3))
    assert both.code_length == pytest.approx((7 + 16) / 10)


def test_one_language_needs_no_sum_and_none_is_named() -> None:
    tree = Tree.huffman([0, 0, 1, 1, 1, 1])
    assert [cost.lang for cost in language_costs(tree, [utterance("1", "a", None)], CharTokenizer(TABLE))] == ["(none)"]
    said = [utterance("1", "a", None), utterance("2", "a", "zh")]
    rows = language_costs(tree, said, CharTokenizer(TABLE))
    assert [cost.lang for cost in rows] == ["(none)", "zh", "(all)"]


def test_no_utterances_are_an_error() -> None:
    with pytest.raises(DataError, match="no utterances to count units in"):
        language_costs(Tree.huffman([1] * 6), [], CharTokenizer(TABLE))


def test_cells_are_rounded_and_the_excess_is_a_share_of_the_code() -> None:
    cost = LanguageCost("ca", 12345, 4.0, 4.05, 5.0)
    assert cost.cells() == ("ca", "12,345", "4.000", "4.050", "5.000", "1.000 (20.0 %)")
    assert LanguageCost("x", 1, 0.0, 0.0, 0.0).cells()[-1] == "0.000"
    assert LanguageCost("x", 1, 1.0 + 1e-15, 1.0, 1.0).cells()[-1] == "0.000 (0.0 %)"  # not "-0.000"


def test_a_choice_among_d_children_takes_log2_d_bits() -> None:
    tree = NaryTree.from_rows([[1, 2, 3], [4, 5, 6]], [1, 1, 1, 1, 1])
    assert tree.code_lengths() == pytest.approx(np.log2([3, 3, 9, 9, 9]))
    assert tree.code_lengths() @ tree.probabilities() == pytest.approx(tree.mean_code_length())
    deep = Tree.huffman([2.0**i for i in range(500)])
    assert deep.code_lengths().tolist() == deep.depths().tolist()


def test_codes_of_branches_are_those_of_the_tree() -> None:
    tree = Tree.huffman(range(1, 40))
    assert [tree.code(tree.num_inner + unit) for unit in range(39)] == tree.codes()
    assert tree.code(0) == ""
    assert tree.shares[0] == pytest.approx(1.0)
    assert Tree.huffman([0, 0]).shares.tolist() == [1.0, 0.5, 0.5]
