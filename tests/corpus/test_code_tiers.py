# SPDX-License-Identifier: Apache-2.0
"""Rules by which tiers of codes, labels and titles are told from transcripts, by hand."""

from pathlib import Path

import pytest

from wenet_hs.annotation.tiers import AnnotationFile, Tier
from wenet_hs.corpus.code_tiers import (
    TierTexts,
    are_labels,
    collect_texts,
    describe_identifiers,
    have_codes,
    have_labels,
    have_titles,
    is_code,
    look_like_codes,
    recur_like_codes,
)
from wenet_hs.corpus.tier_choice import fits_pattern
from wenet_hs.corpus.tier_facts import find_ancestors, find_root

SENTENCES = {"tx": ["mo lu ke", "ke mo", "lu mo ke"]}


def make_texts(*by_file: list[str]) -> TierTexts:
    """The texts of the tier `ref`, above the tier `tx`."""
    return TierTexts(names=["ref"], by_file=by_file, transcripts=SENTENCES)


@pytest.mark.parametrize("text", ["12", "text_03", "story 3", "***", ""])
def test_codes(text):
    assert is_code(text)


@pytest.mark.parametrize("text", ["mo", "mo lu", "in 1912 they left"])
def test_no_codes(text):
    assert not is_code(text)


def test_more_than_half_of_the_texts_are_codes():
    assert look_like_codes(["001", "002", "mo"])
    assert not look_like_codes(["001", "mo"])
    assert not look_like_codes([])


@pytest.mark.parametrize(
    "labels", [["story_intro", "story_end"], ["story-a", "story-b", "story-c"], ["ab_1", "ab_x"]]
)
def test_labels(labels):
    assert are_labels(labels)


@pytest.mark.parametrize(
    "words",
    [
        ["anamo", "analu"],  # a prefix of a language
        ["story-a", "story-b"],  # two letters may be by chance
        ["story_a", "story_a"],
        ["story_a", "story b"],
        ["x_a", "x_b"],  # one common letter
        ["故事一", "故事二", "故事三"],
    ],
)
def test_no_labels(words):
    assert not are_labels(words)


def test_signs_of_a_signer_recur():
    assert recur_like_codes(["LH", "RH"] * 5)
    assert not recur_like_codes(["LH", "RH"] * 4)  # four times each
    assert not recur_like_codes(["the hand", "RH"] * 5)
    assert not recur_like_codes([str(number) for number in range(11)] * 5)


def test_rule_of_codes():
    assert have_codes(make_texts(["001", "002"], ["001"]))
    assert not have_codes(make_texts(["mo"], ["lu"]))


def test_rule_of_labels():
    assert have_labels(make_texts(["story_a", "story_b"], ["", "tale_a", "tale_b"], ["mo"]))
    assert not have_labels(make_texts(["story_a", "story_b"], ["mo", "lu"]))
    single_words = TierTexts(["ref"], [["story_a", "story_b"]], {"tx": ["mo", "lu"]})
    assert not have_labels(single_words)


def test_rule_of_titles():
    assert have_titles(make_texts(["The frog"], []))  # 8 words below 2
    assert not have_titles(make_texts(["The frog jumps"], []))
    assert not have_titles(make_texts(["Frog", "Toad"]))


def test_texts_are_those_of_wanted_tiers_and_of_all_tiers_below():
    tiers = [
        Tier(name="ref", spans=[(0.0, 1.0, "001")]),
        Tier(name="tx", parent="ref", spans=[(0.0, 1.0, "mo lu")]),
        Tier(name="gloss", parent="tx", spans=[(0.0, 1.0, "I go")]),
        Tier(name="number", parent="ref", spans=[(0.0, 1.0, "1")]),
        Tier(name="other", spans=[(0.0, 1.0, "ke")]),
    ]
    files = [AnnotationFile(path=Path("a.eaf"), media=(), tiers=tiers)]
    texts = collect_texts(files, lambda tier: tier.name == "ref")
    assert texts == TierTexts(["ref"], [["001"]], {"tx": ["mo lu"], "gloss": ["I go"]})
    fault = describe_identifiers(files, lambda tier: tier.name == "ref")
    assert fault == (
        "tier 'ref' seems to have no transcripts but '001'; name the tiers of the transcripts "
        "with --tier; those that depend on it: 'tx' ('mo lu'), 'gloss' ('I go')"
    )
    assert describe_identifiers(files, lambda tier: tier.name == "tx") is None


def test_ancestors_end_in_a_circle():
    parents = {"gloss": "tx", "tx": "ref", "ref": "", "a": "b", "b": "a"}
    assert find_ancestors("gloss", parents) == ["tx", "ref"]
    assert find_ancestors("a", parents) == ["b", "a"]
    assert find_root("gloss", parents) == "ref"
    assert find_root("ref", parents) == "ref"


def test_a_pattern_fits_itself_and_any_characters_in_place_of_the_star():
    assert fits_pattern("text@Ana", "text@*")
    assert fits_pattern("text[1]", "text[1]")  # as a pattern it is `text1`
    assert fits_pattern("caf\N{LATIN SMALL LETTER E WITH ACUTE}", "cafe\N{COMBINING ACUTE ACCENT}")
    assert not fits_pattern("Text", "text")
