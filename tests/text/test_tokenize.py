# SPDX-License-Identifier: Apache-2.0
"""Tokenizers: `join` is the inverse of `split`; text never becomes a special unit."""

import pickle
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.errors import DataError
from wenet_hs.text.normalize import normalize, normalize_phones
from wenet_hs.text.tokenizer import (
    BpeTokenizer,
    CharTokenizer,
    PhoneTokenizer,
    bpe_units,
    make_tokenizer,
    train_bpe,
)
from wenet_hs.text.units import SpecialIds, UnitTable

CHARS = UnitTable.from_units("abc▁ş")


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> BpeTokenizer:
    path = tmp_path_factory.mktemp("bpe") / "bpe.model"
    path.write_bytes(train_bpe(["la casa blanca", "la cosa roja", "una casa roja"] * 20, 18))
    return make_tokenizer("bpe", UnitTable.from_units(bpe_units(path.read_bytes())), path)


def test_characters_with_the_space_as_a_unit() -> None:
    tokenizer = make_tokenizer("char", CHARS)
    assert tokenizer.split("ab ş") == ["a", "b", "▁", "ş"]
    assert tokenizer.encode("ab ş") == [3, 4, 7, 6]
    assert tokenizer.decode(tokenizer.encode("ab ş")) == "ab ş"
    assert tokenizer.encode("azbz") == [3, 1, 4, 1]
    assert tokenizer.unknown("azbz") == Counter(z=2)
    assert tokenizer.decode([2, 0, 3, 1, 0, 4, 1, 2]) == "a⁇b⁇"  # blank, <sos> and <eos> are left out


def test_phones_and_words_stay_whole_and_special_names_are_text() -> None:
    phones = make_tokenizer("phone", UnitTable.from_units(["t͡ʃʰ", "a", "ã"]))
    assert phones.split("t͡ʃʰ  a\u0303 ") == ["t͡ʃʰ", "ã"]
    assert phones.encode("a <blank> t͡ʃʰ a\u0303 <sos/eos>") == [3, 1, 4, 5, 1]
    assert phones.unknown("a <blank>") == Counter({"<blank>": 1})
    assert phones.decode([1, 3]) == "⁇ a"
    words = make_tokenizer("word", UnitTable.from_units(["la", "casa"]))
    assert words.split(" la \t casa") == ["la", "casa"]
    assert words.encode("la cosa <blank> casa") == [4, 1, 1, 3]
    assert words.decode([4, 3, 2]) == "la casa"


def test_bpe_uses_pieces_longer_than_a_character(bpe: BpeTokenizer) -> None:
    ids = bpe.encode("la casa roja")
    assert len(ids) < len("la casa roja") and 1 not in ids
    assert bpe.decode(ids) == "la casa roja"
    assert 1 in bpe.encode("la kasa")
    assert sum(bpe.unknown("la kasa").values()) == 1


@settings(max_examples=25)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60), lang=st.sampled_from(["ca", "uz", None]))
def test_units_join_to_the_normalized_text_also_in_a_worker(bpe: BpeTokenizer, text: str, lang: str | None) -> None:
    normalized = normalize(text, lang)
    for tokenizer in (CharTokenizer(CHARS), bpe, pickle.loads(pickle.dumps(bpe))):
        assert tokenizer.join(tokenizer.split(normalized)) == normalized
    phones = PhoneTokenizer(CHARS)
    assert phones.join(phones.split(text)) == normalize_phones(text)


def test_a_table_without_unk_refuses_an_unknown_unit() -> None:
    table = UnitTable(units=("<blank>", "<sos/eos>", "a"), special=SpecialIds(0, None, 1, 1))
    tokenizer = CharTokenizer(table)
    assert tokenizer.encode("a") == [2]
    message = "transcript 'ab': unit 'b' is not in the unit table, which has no <unk>; use the table of these data"
    with pytest.raises(DataError, match=re.escape(message)):
        tokenizer.encode("ab")


def test_a_wrong_kind_or_model_is_refused(tmp_path: Path) -> None:
    for kind in ("mora", "bpe"):
        with pytest.raises(ValueError, match=f"no tokenizer '{kind}' with the model None"):
            make_tokenizer(kind, CHARS)
    with pytest.raises(DataError, match=r"no\.model: cannot be read \(No such file or directory\); check the path"):
        make_tokenizer("bpe", CHARS, tmp_path / "no.model")
    (tmp_path / "text.model").write_text("not a model")
    with pytest.raises(DataError, match=r"text\.model: not a sentencepiece model; create it with `wenet-hs units"):
        make_tokenizer("bpe", CHARS, tmp_path / "text.model")
