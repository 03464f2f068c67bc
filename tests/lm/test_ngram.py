# SPDX-License-Identifier: Apache-2.0
"""Kneser-Ney models: a hand-worked one, the files of lmplz, sums of probabilities, and what reads
the ARPA file.
"""

import lzma
import math
from collections.abc import Iterable
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.lm.backoff import ArpaReader, KenlmModel, NgramModel
from wenet_hs.lm.ngram import (
    KneserNeyModel,
    UnitText,
    count_ngrams,
    estimate,
    index_units,
    write_arpa,
)
from wenet_hs.text.units import UnitTable

LETTERS = UnitTable.from_units("abc\u3000")
texts = st.lists(
    st.lists(st.sampled_from([*"abc", "<unk>"]), min_size=1, max_size=6), min_size=1, max_size=8
)


def text_of(sentences: Iterable[Iterable[str]]) -> UnitText:
    return index_units(
        (f"sentence {number}", list(units)) for number, units in enumerate(sentences)
    )


def read_ngrams(text: str) -> dict[str, tuple[float, float | None]]:
    """The logarithms of probability and backoff of each line of an ARPA file that has an n-gram."""
    rows = (line.split("\t") for line in text.splitlines() if "\t" in line)
    return {row[1]: (float(row[0]), float(row[2]) if len(row) == 3 else None) for row in rows}


def written(model: KneserNeyModel, folder: Path) -> dict[str, tuple[float, float | None]]:
    write_arpa(folder / "lm.arpa", model)
    return read_ngrams((folder / "lm.arpa").read_text("utf-8"))


# ---- numbers


def test_a_model_by_hand(tmp_path: Path) -> None:
    # The text `a b`, `a`. Before a: <s>. Before b: a. Before </s>: b and a. So c(a) = c(b) = 1, c(</s>) = 2, sum 4.
    # No unit has the count 3, so the discounts are 0.5, 1 and 1.5. backoff() = (0.5 + 0.5 + 1) / 4 = 0.5.
    # The uniform distribution of <unk>, </s>, a, b is 0.25 each. p(a) = p(b) = (1 - 0.5) / 4 + 0.5 · 0.25 = 0.25.
    # p(</s>) = (2 - 1) / 4 + 0.5 · 0.25 = 0.375. p(<unk>) = 0.5 · 0.25 = 0.125.
    # c(<s> a) = 2; c(a b) = c(a </s>) = c(b </s>) = 1. backoff(<s>) = 1/2, backoff(a) = (0.5 + 0.5) / 2 = 0.5,
    # backoff(b) = 0.5 / 1. Nothing follows <unk> and </s>: their backoff is 1.
    # p(a | <s>) = (2 - 1) / 2 + 0.5 · 0.25 = 0.625. p(b | a) = 0.5 / 2 + 0.5 · 0.25 = 0.375.
    # p(</s> | a) = 0.5 / 2 + 0.5 · 0.375 = 0.4375. p(</s> | b) = 0.5 + 0.5 · 0.375 = 0.6875.
    expected = {
        **{
            "<unk>": (0.125, 1),
            "<s>": (1, 0.5),
            "</s>": (0.375, 1),
            "a": (0.25, 0.5),
            "b": (0.25, 0.5),
        },
        **{
            "<s> a": (0.625, None),
            "a b": (0.375, None),
            "a </s>": (0.4375, None),
            "b </s>": (0.6875, None),
        },
    }
    found = written(estimate(text_of(["ab", "a"]), 2, fallback=True), tmp_path)
    assert {
        name: tuple(x if x is None else pytest.approx(10**x) for x in pair)
        for name, pair in found.items()
    } == (expected)
    lines = (tmp_path / "lm.arpa").read_text().splitlines()
    assert lines[:6] == [
        "\\data\\",
        "ngram 1=5",
        "ngram 2=4",
        "",
        "\\1-grams:",
        "-0.90309\t<unk>\t0",
    ]
    assert lines[10:13] == ["", "\\2-grams:", "-0.20412\t<s> a"] and lines[-2:] == ["", "\\end\\"]


def test_discounts_are_estimated_from_counts_of_counts(caplog: pytest.LogCaptureFixture) -> None:
    # Order 1: the counts are occurrences. 8 units occur once, 3 twice, 2 three times, 1 four times,
    # </s> 24 times. Y = 8 / (8 + 2·3) = 4/7. D1 = 1 - 2Y·3/8 = 4/7, D2 = 2 - 3Y·2/3 = 6/7, D3 = 3 -
    # 4Y·1/2 = 13/7.
    sentences = [*"abcdefgh", *("ijk" * 2), *("lm" * 3), *("n" * 4)]
    caplog.set_level("INFO")
    model = estimate(text_of(sentences), 1)
    assert "1-grams: 17 | discounts 0.571 0.857 1.86" in caplog.text
    total, num_units = 2 * len(sentences), 16  # with </s>; 14 letters, </s> and <unk>
    backoff = (8 * 4 / 7 + 3 * 6 / 7 + (2 + 1 + 1) * 13 / 7) / total
    assert model.probs[0][0] == pytest.approx(backoff / num_units)
    assert model.probs[0][3] == pytest.approx((1 - 4 / 7) / total + backoff / num_units)
    assert model.probs[0][2] == pytest.approx(
        (len(sentences) - 13 / 7) / total + backoff / num_units
    )


def test_a_discount_of_zero(tmp_path: Path) -> None:
    # 2 bigrams occur once (those of e), 2 twice (b), 4 three times (c, d). Y = 2 / (2 + 2·2), D2 = 2 - 3Y·4/2 = 0,
    # D3 = 3. So backoff(b) = 0 / 2 and p(</s> | b) = 2/2, but p(</s> | c) = (3 - 3) / 3 + p(</s>).
    found = written(estimate(text_of(["b", "b", *"cccddde"]), 2, fallback=True), tmp_path)
    assert (found["b"][1], found["b </s>"]) == (-99, (0, None))
    assert found["c </s>"][0] == found["</s>"][0] and found["c"][1] == 0


@pytest.mark.parametrize(
    ("name", "order", "fallback"), [("words.o3", 3, False), ("chars.o4.fallback", 4, True)]
)
def test_the_files_of_lmplz(
    shared_dir: Path, tmp_path: Path, name: str, order: int, fallback: bool
) -> None:
    folder = shared_dir / "golden" / "lmplz"
    lines = (folder / f"{name.partition('.')[0]}.txt").read_text("utf-8").splitlines()
    found = written(
        estimate(text_of(line.split() for line in lines), order, fallback=fallback), tmp_path
    )
    expected = read_ngrams(lzma.decompress((folder / f"{name}.arpa.xz").read_bytes()).decode())
    assert len(expected) > 8000 and found.keys() == expected.keys()
    log_probs, backoffs = ([(found[n][i], expected[n][i]) for n in expected] for i in (0, 1))
    assert (
        np.abs(np.subtract(*zip(*log_probs, strict=True))).max() < 2e-6
    )  # lmplz computes in float32
    assert [pair for pair in backoffs if None in pair and pair != (None, None)] == []
    assert (
        np.abs(
            np.subtract(*zip(*(pair for pair in backoffs if None not in pair), strict=True))
        ).max()
        < 2e-6
    )


@settings(max_examples=40, deadline=None)
@given(texts, st.integers(1, 4))
def test_the_probabilities_of_every_history_sum_to_one(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[str]], order: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.arpa"
    sentences = [*sentences, ["a"]]  # recognition refuses a model that knows no unit
    order = min(order, 2 + max(map(len, sentences)))
    write_arpa(path, estimate(text_of(sentences), order, fallback=True))
    lm = NgramModel(ArpaReader(path), LETTERS)
    seen = {unit for units in sentences for unit in units} & {*"abc"}
    candidates = torch.tensor([LETTERS.special.unk, LETTERS.special.eos, *map(LETTERS.id_of, seen)])
    states = lm.start(1)
    for _ in range(order + 1):  # all histories of up to `order` units, the first ones after <s>
        sums = lm.score(states, candidates.expand(len(states), -1)).exp().sum(1)
        assert sums.tolist() == pytest.approx([1.0] * len(states), abs=1e-5)
        num_states, num_next = len(states), len(candidates)
        states = lm.advance(
            states.repeat_interleave(num_next), candidates.repeat(num_states)
        ).unique()


# ---- other readers


def test_words_in_another_form_of_unicode_are_known(tmp_path: Path) -> None:
    """Units are in NFC; files of other programs may not be."""
    words = ("cafe\u0301", "\u0932\u095c\u0915\u093e")
    rare = [
        "-6\te\u0301",
        "-0.5\t\u00e9",
        "-6\te\u0301x",
    ]  # of two spellings that of the units counts
    lines = ["\\data\\", "ngram 1=8", "", "\\1-grams:", "-5\t<unk>", "-99\t<s>", "-1\t</s>"]
    lines += [*(f"-0.5\t{one}" for one in words), *rare, "", "\\end\\", ""]
    (tmp_path / "lm.arpa").write_text("\n".join(lines), "utf-8")
    table = UnitTable.from_units([normalize("NFC", word) for word in (*words, "\u00e9")])
    lm = NgramModel(ArpaReader(tmp_path / "lm.arpa"), table)
    assert lm.unknown == []
    ids = torch.tensor([[table.id_of(unit) for unit in table.units[-3:]]])
    assert lm.score(lm.start(1), ids)[0].tolist() == pytest.approx([-0.5 * math.log(10)] * 3)


def test_recognition_and_kenlm_read_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    sentences = [
        rng.choice(["a", "b", "c", "\u3000", "<unk>"], rng.integers(1, 9)).tolist()
        for _ in range(60)
    ]
    write_arpa(tmp_path / "lm.arpa", estimate(text_of(sentences), 3, fallback=True))
    ours = NgramModel(ArpaReader(tmp_path / "lm.arpa"), LETTERS)
    assert ours.unknown == []
    pytest.importorskip("kenlm", reason="kenlm is not installed")
    theirs = KenlmModel(tmp_path / "lm.arpa", LETTERS)
    candidates = torch.arange(1, len(LETTERS))[None]  # no blank
    for sentence in sentences[:20]:
        states = [lm.start(1) for lm in (ours, theirs)]
        for unit in sentence:
            scores = [
                lm.score(state, candidates)
                for lm, state in zip((ours, theirs), states, strict=True)
            ]
            torch.testing.assert_close(*scores, atol=1e-5, rtol=0)
            unit_id = torch.tensor([LETTERS.id_of(unit)])
            states = [
                lm.advance(state, unit_id) for lm, state in zip((ours, theirs), states, strict=True)
            ]


# ---- counts


def test_units_are_counted_within_sentences() -> None:
    text = text_of(["ab", "a"])
    assert (text.units, text.ids_T.tolist()) == (
        ["<unk>", "<s>", "</s>", "a", "b"],
        [1, 3, 4, 2, 1, 3, 2],
    )
    unigrams, bigrams, trigrams, longest = count_ngrams(text, 4)
    assert unigrams.counts_G.tolist() == [0, 0, 2, 2, 1]
    # <s> a, a </s>, a b, b </s>
    assert bigrams.histories_G.tolist() == [1, 3, 3, 4] and bigrams.last_units_G.tolist() == [
        3,
        2,
        4,
        2,
    ]
    assert bigrams.suffixes_G.tolist() == [3, 2, 4, 2] and bigrams.counts_G.tolist() == [2, 1, 1, 1]
    assert bigrams.has_begin_G.tolist() == [True, False, False, False]
    assert (len(trigrams.counts_G), longest.counts_G.tolist(), longest.has_begin_G.tolist()) == (
        3,
        [1],
        [True],
    )
