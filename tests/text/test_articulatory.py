# SPDX-License-Identifier: Apache-2.0
"""Phones as vectors: which symbols are phones, which spellings are equal, which phones are near
each other.
"""

import importlib.util
import unicodedata
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import units_below

from wenet_hs.text import articulatory
from wenet_hs.text.articulatory import articulatory_vectors
from wenet_hs.tree.errors import ConfigError
from wenet_hs.tree_kinds.kinds import TreeSource, build_tree

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("panphon") is None, reason="needs the extra trees"
)


CONSONANTS = str.split("p b t d k ɡ q ʔ m n ɲ ŋ f v θ ð s z ʃ ʒ x ɣ χ ʁ ħ ʕ h l ʎ r ɾ ʀ ɹ j w")
VOWELS = str.split("i y ɨ u e ø ɘ o ɛ œ ə ɔ æ a ɑ ɪ ʊ ʌ aː ã i̥ ɚ ă ä ṳ aɪ a˥ ɤ˞")
HARD = str.split(
    "pʰ tʷ kʲ n̪ t̺ s̻ d̤ ɓ ɗ kʼ tsʼ t͡ʃʰ t͜s ʈ͡ʂ d͡ʒ tʃ ʧ k͡p ɡ͡b ᵐb ⁿd ᵑɡ dⁿ tˡ ʰt ˀa pˀ n̥ ŋ̊ m̩ l̩ r̝ ɫ lˠ tˤ ʘ ǀ ǃ ǁ ǂ "
    "ⱱ ʜ ʢ ʡ ʙ ɺ ɮ ɬ ɧ ɥ ʍ p̚ kʷʰ kʰʷ t̪͡s̪ˠʷ eˑ é oɪ̯ ˥ ˩˥ ˧˩˧ e˥˩ a⁵⁵ t͈ ˈa"
)


def test_a_plain_phone_is_panphons_row() -> None:
    # p of the table: + cons ant lab, 0 distr tense and tones, - the rest.
    row_of_p = "- - + - - - - - - - - + - 0 + - - - - - 0 - 0 0"
    values = {"+": 1, "-": -1, "0": 0}
    signs = np.array([values[sign] for sign in row_of_p.split()])
    weights = np.array(
        [1, 1, 1, 0.5]
        + [0.25] * 3
        + [0.125] * 4
        + [0.25, 0.25, 0.125]
        + [0.25] * 7
        + [0.125, 0.25, 0.25]
    )
    signs_scaled_by_roots = signs * np.sqrt(weights)
    no_difference_of_ends = [0.0] * 24

    (vector,) = articulatory_vectors(["p"])

    assert vector.tolist() == signs_scaled_by_roots.tolist() + no_difference_of_ends


# `nd` has no sign that `ⁿd` has: both are n and d.
SPELLINGS = (
    "g ɡ, t͡ʃ tʃ ʧ t͜ʃ, d͡z ʣ dz, ɚ ə˞, aː a:, kʼ k' k’, kʷʰ kʰʷ, ŋ̊ ŋ̥, bʱ b̤, e̞ e˕, tˤ tˁ, ⁿd nd"
)


@pytest.mark.parametrize("spellings", SPELLINGS.split(", "))
def test_all_spellings_of_a_phone_have_one_vector(spellings: str) -> None:
    first, *others = articulatory_vectors(spellings.split())

    for other in others:
        assert np.array_equal(first, other)


def test_every_phone_has_a_vector_that_does_not_depend_on_the_unicode_form() -> None:
    units = [*CONSONANTS, *VOWELS, *HARD, "ç", "ĩ", "ǘ", "ã̤"]
    composed = [unicodedata.normalize("NFC", unit) for unit in units]
    decomposed = [unicodedata.normalize("NFD", unit) for unit in units]
    assert composed != decomposed

    vectors = articulatory_vectors(composed)

    for unit, vector in zip(units, vectors, strict=True):
        assert np.isfinite(vector).all(), unit
    assert np.array_equal(vectors, articulatory_vectors(decomposed))


@pytest.mark.parametrize(
    ("phone", "near", "far"),
    [
        ("p", "b", "a"),
        ("p", "pʰ", "k"),
        ("p", "p̚", "pʰ"),
        ("p", "p̚", "b"),
        ("i", "iː", "a"),
        ("a", "ã", "e"),
        ("t͡ʃ", "d͡ʒ", "m"),
        ("ᵐb", "b", "s"),
        ("ᵐb", "m", "a"),
        ("aɪ", "a", "p"),
        ("aɪ", "aʊ", "ɪa"),
        ("a˥", "a", "˥"),
        ("˥", "˦", "˩"),
        ("˩˥", "˥", "˥˩"),
        ("ǃ", "ǀ", "a"),
        ("t̪͡s̪ˠʷ", "t͡s", "m"),
        ("ʜ", "ħ", "h"),
    ],
)
def test_a_similar_phone_is_nearer_than_another(phone: str, near: str, far: str) -> None:
    vector, near_vector, far_vector = articulatory_vectors([phone, near, far])

    distance_to_near = np.linalg.norm(vector - near_vector)
    distance_to_far = np.linalg.norm(vector - far_vector)
    assert 0 < distance_to_near < distance_to_far


def test_a_phone_with_an_unknown_diacritic_is_near_its_letter() -> None:
    vectors = articulatory_vectors(["p", "p̚", "p͈", "p͈̚", "b", "b̚"])

    p, unreleased, strong, both, b, b_unreleased = vectors
    assert np.linalg.norm(p - unreleased) > 0
    assert np.linalg.norm(p - unreleased) == np.linalg.norm(p - strong)
    assert np.array_equal(unreleased - p, b_unreleased - b)
    assert np.linalg.norm(p - both) < np.linalg.norm(p - b)
    assert len(np.unique(vectors, axis=0)) == 6
    # What the table does know with that letter still counts beside the sign that it does not.
    aspirated_and_strong, aspirated = articulatory_vectors(["pʰ͈", "pʰ"])
    assert np.array_equal(aspirated_and_strong[:48], aspirated[:48])


def test_several_letters_are_their_mean_and_their_difference() -> None:
    a, i, ai, ia, aj = articulatory_vectors(["a", "i", "ai", "ia", "aj"])

    middle = (a[:24] + i[:24]) / 2
    difference = (i[:24] - a[:24]) / 2
    assert np.array_equal(ai, [*middle, *difference])
    assert np.array_equal(ia, [*middle, *-difference])
    syllabic = 0
    assert aj[syllabic] == a[syllabic]


def test_symbols_that_are_not_phones_have_no_vector() -> None:
    units = ["<blank>", "<unk>", "<sos/eos>", "a", *"ж▁字1!'ʰ", "aж", "͡", "A", "", "ٱ", "▁the", "-"]

    vectors = articulatory_vectors(units)

    has_vector = np.isfinite(vectors).all(axis=1)
    index_of_a = 3
    assert np.flatnonzero(has_vector).tolist() == [index_of_a]
    assert np.isnan(vectors).sum() == 17 * 48
    assert articulatory_vectors([]).shape == (0, 48)


def test_similar_phones_share_a_branch() -> None:
    units = ["<blank>", "<unk>", *CONSONANTS, *VOWELS, "pʰ", "字"]
    tree = build_tree("articulatory", TreeSource(units, np.ones(len(units))))

    subtrees = units_below(tree)

    for expected in (
        ["<blank>", "<unk>", "字"],
        VOWELS,
        ["p", "pʰ", "b"],
        ["s", "z"],
        ["m", "n", "ɲ", "ŋ"],
    ):
        ids = frozenset(units.index(unit) for unit in expected)
        assert ids in subtrees, expected


@settings(max_examples=10, deadline=None)
@given(st.text("pbtʃaiɪŋ\u0361\u0325\u0329ʰʷʼːˈˀⁿᵐ˥˩\u0301\u032a⁵ж ", max_size=12))
def test_any_text_has_a_vector_or_none(text: str) -> None:
    (row,) = articulatory_vectors([text])
    assert np.isfinite(row).all() or np.isnan(row).all()


def test_without_panphon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(articulatory, "_feature_table", articulatory._feature_table.__wrapped__)
    monkeypatch.setattr(articulatory, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r'panphon is not installed; run pip install "wenet_hs\[trees\]"'
    ):
        articulatory_vectors(["a"])
    broken = ModuleSpec("panphon", None, is_package=True)
    broken.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(articulatory, "find_spec", lambda name: broken)
    with pytest.raises(
        ConfigError, match=r'ipa_all.csv is missing; run pip install "wenet_hs\[trees\]" again'
    ):
        articulatory_vectors(["a"])
