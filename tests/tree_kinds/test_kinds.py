# SPDX-License-Identifier: Apache-2.0
"""Counts of units, code lengths per language, and `build_tree` for every kind with its options."""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trees import tree_of_kind

from wenet_hs.manifest.data_list import Utterance
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import NaryTree, Tree
from wenet_hs.tree.errors import ConfigError, DataError
from wenet_hs.tree_kinds.counts import (
    Weighting,
    format_excess,
    language_costs,
    unit_frequencies,
    unit_sequences,
    with_blank_share,
)
from wenet_hs.tree_kinds.kinds import KINDS, TreeSource, build_tree, required_input

TOKENIZER = make_tokenizer("char", UnitTable.from_units("abc"))  # <blank> <unk> <sos/eos> a b c


def utterance(text: str, lang: str | None = None) -> Utterance:
    return Utterance(key=f"{lang}-{text}", wav="x.wav", txt=text, lang=lang)


def test_pooled_counts_units_and_one_end_per_utterance(caplog: pytest.LogCaptureFixture) -> None:
    data = [utterance("abca", "ca"), utterance("b", "es")]
    counts = unit_frequencies(data, TOKENIZER)
    assert counts.tolist() == [0, 0, 2, 2, 2, 1]
    assert counts.dtype == np.float64
    assert unit_sequences(data, TOKENIZER) == [[3, 4, 5, 3, 2], [4, 2]]
    assert not caplog.messages


@pytest.mark.parametrize(("num_known", "level"), [(12, logging.WARNING), (97, logging.INFO)])
def test_unknown_units_are_logged(
    num_known: int, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        counts = unit_frequencies([utterance("xé" + num_known * "a")], TOKENIZER)
    assert counts.tolist() == [0, 2, 1, num_known, 0, 0]
    total = num_known + 3
    reason = "in the text, or because they are not in the unit table"
    expected = f"2 of {total} units ({200 / total:.2f} %) are <unk>: {reason}"
    assert caplog.record_tuples == [("wenet_hs.tree_kinds.counts", level, expected)]


def test_per_language_gives_each_language_the_same_weight() -> None:
    # ca: a 2, eos 2 of 4; es: b 3, eos 1 of 4 (equation 2 of the paper, end of sentence being a
    # unit like any other)
    data = [utterance("a", "ca"), utterance("a", "ca"), utterance("bbb", "es")]
    expected = [0, 0, 0.5 + 0.25, 0.5, 0.75, 0]
    assert unit_frequencies(data, TOKENIZER, "per_language").tolist() == expected
    more_catalan = data + [utterance("a", "ca")] * 10
    assert unit_frequencies(more_catalan, TOKENIZER, "per_language").tolist() == expected


def test_the_order_of_the_utterances_changes_no_bit_of_the_frequencies() -> None:
    languages = ["tr", "ca", "es", "tr", "pl", "ca"]
    data = [utterance("a" * i + "b", lang) for i, lang in enumerate(languages)]
    forward = unit_frequencies(data, TOKENIZER, "per_language")
    backward = unit_frequencies(data[::-1], TOKENIZER, "per_language")
    assert (backward == forward).all()


@pytest.mark.parametrize(
    ("texts", "weighting", "message"),
    [
        (
            ["axé"],
            "pooled",
            r"2 of 4 units \(50%\) of the transcripts are not in the unit table; give the",
        ),
        (
            ["a"],
            "per_language",
            "utterance 'None-a': no language in the data list; add `lang`, or use",
        ),
        ([], "pooled", "no utterances to count units in"),
    ],
)
def test_transcripts_of_other_units_and_without_language_are_refused(
    texts: list[str], weighting: Weighting, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        unit_frequencies(map(utterance, texts), TOKENIZER, weighting)


def test_blank_has_its_share_of_all_mass() -> None:
    shared = with_blank_share(np.array([7.0, 1.0, 2.0]), 0, 0.75)
    assert shared.tolist() == [9.0, 1.0, 2.0]  # what was counted of it before is dropped
    for share in (0.0, 1.0, float("nan")):
        with pytest.raises(
            ConfigError,
            match=f"--blank_share: must be greater than 0 and less than 1, got {share:g}",
        ):
            with_blank_share(np.ones(3), 0, share)


def built(kind: str, counts: Sequence[float], **options: Any) -> Tree | NaryTree:
    """The tree of units that occur in ascending runs of up to nine, and once in falling order."""
    lengths = np.minimum(counts, 9).astype(int)
    ids = np.repeat(np.arange(len(counts)), lengths).tolist()
    units = tuple("aeioubdgptkfsvzmnlrw"[: len(counts)])
    frequencies = np.array(counts, dtype=np.float64)
    return build_tree(
        kind, TreeSource(units, frequencies, sequences=[ids, ids[::-1]], options=options)
    )


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind != "embedding"]
)  # that has tests of its own
@settings(max_examples=5, deadline=None)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=20))
@example(counts=[1e300, 1e307, 5e306, 1, 0, 0])
@example(counts=[5e-324, 1e-320, 0, 1, 5e-324, 2])
def test_every_kind_is_a_complete_tree_and_the_same_again(kind: str, counts: list[float]) -> None:
    tree = built(kind, counts)
    assert tree.kind == kind
    assert tree == built(kind, counts)
    binary = tree.binary() if isinstance(tree, NaryTree) else tree
    assert sum(0.5 ** binary.depths()) == 1  # Kraft's equality: every code is used
    assert 0 <= tree.entropy() <= tree.mean_code_length() + 1e-9 <= binary.depth + 1e-6
    if any(counts):
        assert Tree.huffman(counts).mean_code_length() <= binary.mean_code_length() + 1e-9


def test_permuted_is_huffman_with_other_units_at_its_leaves() -> None:
    counts = [0, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    huffman = Tree.huffman(counts)
    permuted = tree_of_kind("permuted", counts, seed=1)
    assert sorted(permuted.depths()) == sorted(huffman.depths())
    assert permuted.codes() != huffman.codes()
    assert permuted.codes()[0] == huffman.codes()[0], "a unit that never occurs keeps its leaf"
    assert permuted.codes() != tree_of_kind("permuted", counts, seed=2).codes()


def test_classes_come_from_bins_or_from_the_top_of_a_tree() -> None:
    counts = [8, 4, 2, 1, 1]
    bins = built("classes", counts, num_classes=2)
    assert bins.rows() == NaryTree.frequency_bins(counts, 2).rows()
    top = built("classes", counts, by="top-of fano", num_classes=3)
    assert top.rows() == NaryTree.from_binary(Tree.fano(counts), 3).rows()


def test_only_two_kinds_need_more_than_frequencies(tmp_path: Path) -> None:
    inputs = {kind: required_input(kind, {}) for kind in KINDS}
    expected = dict.fromkeys(KINDS, "") | {"brown": "sequences", "embedding": "vectors"}
    assert inputs == expected
    assert required_input("classes", {"by": "top-of brown"}) == "sequences"
    for kind, options in (("brown", {}), ("embedding", {"checkpoint": tmp_path})):
        message = f"kind {kind} is built from {inputs[kind]}; give them"
        with pytest.raises(ValueError, match=message):
            build_tree(kind, TreeSource(("a", "b"), np.ones(2), options=options))


def test_vectors_that_are_given_are_clustered_by_direction() -> None:
    vectors = np.array([[9.0, 1.0], [1.0, 0.1], [-1.0, 0.2], [-8.0, 1.5], [np.nan, np.nan]])
    source = TreeSource(tuple("abcde"), np.array([5.0, 4, 3, 2, 1]), vectors=vectors)
    tree = build_tree("embedding", source)
    assert isinstance(tree, Tree) and tree.codes() == ["111", "110", "101", "100", "0"]
    classes = build_tree(
        "classes", replace(source, options={"by": "top-of embedding", "num_classes": 3})
    )
    assert classes.rows() == NaryTree.from_binary(tree, 3).rows()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("hufman", {}, "--kind: must be one of huffman, fano, balanced, .*, classes, got 'hufman'"),
        (
            "fano",
            {"max_depth": 4},
            r"--max_depth: --kind fano does not use it, huffman does; leave it out",
        ),
        (
            "huffman",
            {"embeddings": Path("a")},
            "--embeddings: --kind huffman does not use it, embedding does; ",
        ),
        (
            "classes",
            {"by": "top-of fano", "max_depth": 4},
            "--max_depth: --kind classes does not use it",
        ),
        (
            "classes",
            {"by": "top-of classes"},
            "--by: must be frequency, or top-of and one of .*, got 'top-of classes'",
        ),
        ("classes", {"num_classes": 500}, "--num_classes: must be at most 3 with 3 units, got 500"),
        ("huffman", {"max_depth": 1}, "--max_depth: must be at least 2 with 3 units, got 1"),
        (
            "embedding",
            {"embeddings": Path("a"), "checkpoint": Path("b")},
            "each gives the vectors; leave one out",
        ),
        (
            "embedding",
            {"embeddings": Path("a"), "seed": 1},
            "--seed: --embeddings gives the vectors, so none are",
        ),
    ],
)
def test_options_that_do_not_go_with_the_kind_are_refused(
    kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as fault:
        build_tree(kind, TreeSource(("a", "b", "c"), np.ones(3), [[0]], options=options))
    assert "\n" not in str(fault.value)


def test_code_lengths_of_two_languages_by_hand() -> None:
    tree = Tree.huffman([0, 0, 8, 4, 2, 1])
    assert tree.depths().tolist() == [5, 5, 1, 2, 3, 4]  # <blank> <unk> <sos/eos> a b c
    # ca: a a a end: entropy 2 - 3/4·log2 3, its own tree 1, this one (3·2 + 1) / 4. es: b b end c c
    # end: entropy log2 3 = 1.585, its own tree (1 + 2 + 2) / 3, this one (2·3 + 2·4 + 2·1) / 6.
    spoken = [utterance("aaa", "ca"), utterance("bb", "es"), utterance("cc", "es")]
    assert language_costs(tree, spoken, TOKENIZER) == [
        ("language", "units", "entropy", "own tree", "this tree", "excess"),
        ("ca", "4", "0.811", "1.000", "1.750", "0.939 (53.6 %)"),
        ("es", "6", "1.585", "1.667", "2.667", "1.082 (40.6 %)"),
        ("(all)", "10", "1.971", "2.000", "2.300", "0.329 (14.3 %)"),
    ]


def test_the_last_row_counts_all_languages_unless_there_is_one() -> None:
    tree = Tree.huffman([0, 0, 8, 4, 2, 1])
    without_language = utterance("a", None)
    table = language_costs(tree, [without_language], TOKENIZER)
    assert [row[0] for row in table] == ["language", "(none)"]
    table = language_costs(tree, [without_language, utterance("a", "zh")], TOKENIZER)
    assert [row[0] for row in table] == ["language", "(none)", "zh", "(all)"]


def test_an_excess_is_never_negative() -> None:
    assert format_excess(0.0, 0.0) == "0.000"
    assert format_excess(1.0, 1.0 + 1e-15) == "0.000 (0.0 %)"  # not "-0.000"


def test_the_docs_have_a_row_for_each_kind() -> None:
    text = (Path(__file__).parents[2] / "docs" / "heads.md").read_text("utf-8")
    rows = re.findall(
        r"^\| `(\w+)`(?: \(default\))? \|", text.partition("| `--kind`")[2], re.MULTILINE
    )
    assert rows[: len(KINDS)] == [*KINDS]
