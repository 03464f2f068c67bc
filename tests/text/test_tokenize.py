# SPDX-License-Identifier: Apache-2.0
"""Tokenizers: `join` is the inverse of `split`; text never becomes a special unit."""

import pickle
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.errors import ConfigError, DataError
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
PHONES = UnitTable.from_units(["t͡ʃʰ", "a", "ã"])


@pytest.fixture(scope="module")
def bpe_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bpe") / "bpe.model"
    path.write_bytes(train_bpe(["la casa blanca", "la cosa roja", "una casa roja"] * 20, 18))
    return path


def bpe_table(model: Path) -> UnitTable:
    return UnitTable.from_units(bpe_units(model.read_bytes()))


def test_a_space_is_a_unit() -> None:
    tokenizer = CharTokenizer(CHARS)
    assert tokenizer.split("ab ş") == ["a", "b", "▁", "ş"]
    assert tokenizer.encode("ab ş") == [3, 4, 7, 6]
    assert tokenizer.decode(tokenizer.encode("ab ş")) == "ab ş"


def test_an_unknown_unit_becomes_unk_and_is_counted() -> None:
    tokenizer = CharTokenizer(CHARS)
    assert tokenizer.encode("azbz") == [3, 1, 4, 1]
    assert tokenizer.unknown("azbz") == Counter(z=2)
    assert tokenizer.decode([2, 0, 3, 1, 0, 4, 1, 2]) == "a⁇b⁇"  # blank, <sos> and <eos> are left out
    assert PhoneTokenizer(PHONES).decode([1, PHONES.id_of("a") or 0]) == "⁇ a"


def test_words_are_separated_by_white_space() -> None:
    tokenizer = make_tokenizer("word", UnitTable.from_units(["la", "casa"]))
    assert tokenizer.split(" la \t casa") == ["la", "casa"]
    assert tokenizer.encode("la cosa <blank> casa") == [4, 1, 1, 3]
    assert tokenizer.decode([4, 3, 2]) == "la casa"


def test_a_special_name_in_a_transcript_is_text() -> None:
    tokenizer = PhoneTokenizer(PHONES)
    assert tokenizer.encode("a <blank> <sos/eos>") == [PHONES.id_of("a"), 1, 1]
    assert tokenizer.unknown("a <blank>") == Counter({"<blank>": 1})


def test_a_table_without_unk_refuses_an_unknown_unit() -> None:
    table = UnitTable(units=("<blank>", "<sos/eos>", "a"), special=SpecialIds(0, None, 1, 1))
    tokenizer = CharTokenizer(table)
    assert tokenizer.encode("a") == [2]
    message = "transcript 'ab': unit 'b' is not in the unit table, which has no <unk>; use the table of these data"
    with pytest.raises(DataError, match=re.escape(message)):
        tokenizer.encode("ab")


def test_phones_stay_whole_and_keep_their_modifiers() -> None:
    tokenizer = PhoneTokenizer(PHONES)
    assert tokenizer.split("t͡ʃʰ  a\u0303 ") == ["t͡ʃʰ", "ã"]
    assert tokenizer.encode("t͡ʃʰ a\u0303") == [PHONES.id_of("t͡ʃʰ"), PHONES.id_of("ã")]


@settings(max_examples=25)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60), lang=st.sampled_from(["ca", "uz", None]))
def test_units_join_to_the_normalized_text(bpe_model: Path, text: str, lang: str | None) -> None:
    normalized = normalize(text, lang)
    for tokenizer in (CharTokenizer(CHARS), make_tokenizer("bpe", bpe_table(bpe_model), bpe_model)):
        assert tokenizer.join(tokenizer.split(normalized)) == normalized
    phones = PhoneTokenizer(PHONES)
    assert phones.join(phones.split(text)) == normalize_phones(text)


def test_bpe_uses_pieces_longer_than_a_character(bpe_model: Path) -> None:
    tokenizer = make_tokenizer("bpe", bpe_table(bpe_model), bpe_model)
    ids = tokenizer.encode("la casa roja")
    assert len(ids) < len("la casa roja")
    assert 1 not in ids
    assert tokenizer.decode(ids) == "la casa roja"
    assert 1 in tokenizer.encode("la kasa")
    assert sum(tokenizer.unknown("la kasa").values()) == 1


def test_tokenizers_can_be_sent_to_workers(bpe_model: Path) -> None:
    bpe = BpeTokenizer(bpe_table(bpe_model), bpe_model)
    for tokenizer in (CharTokenizer(CHARS), PhoneTokenizer(PHONES), bpe):
        again = pickle.loads(pickle.dumps(tokenizer))
        assert again.encode("la casa") == tokenizer.encode("la casa")


def test_a_wrong_kind_or_model_is_refused(tmp_path: Path) -> None:
    assert isinstance(make_tokenizer("char", CHARS), CharTokenizer)
    assert isinstance(make_tokenizer("phone", PHONES), PhoneTokenizer)
    with pytest.raises(ConfigError, match="tokenizer: must be one of char, phone, bpe, word, got 'mora'"):
        make_tokenizer("mora", CHARS)
    with pytest.raises(ConfigError, match="missing; tokenizer: bpe needs its sentencepiece model"):
        make_tokenizer("bpe", CHARS)
    with pytest.raises(DataError, match=r"no\.model: cannot be read \(No such file or directory\); check the path"):
        make_tokenizer("bpe", CHARS, tmp_path / "no.model")
    (tmp_path / "text.model").write_text("not a model")
    with pytest.raises(DataError, match=r"text\.model: not a sentencepiece model; create it with `wenet-hs units"):
        make_tokenizer("bpe", CHARS, tmp_path / "text.model")
