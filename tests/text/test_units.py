# SPDX-License-Identifier: Apache-2.0
"""Unit tables: order, round trip, WeNet's orders, faults; tokenizers: `join` is the inverse of
`split`.
"""

import pickle
import re
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wenet_hs.text.normalize import normalize, normalize_phones
from wenet_hs.text.tokenizer import (
    BpeTokenizer,
    CharTokenizer,
    PhoneTokenizer,
    bpe_units,
    make_tokenizer,
    train_bpe,
)
from wenet_hs.text.units import SPECIAL_UNITS, SpecialIds, UnitTable, check_special
from wenet_hs.tree.errors import ConfigError, DataError

WENET_NEW = {"<blank>": 0, "<unk>": 1, "<sos>": 2, "<eos>": 2}
UNITS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=" \n"), min_size=1, max_size=4
)


def table_of(path: Path, content: str) -> UnitTable:
    path.write_text(content, encoding="utf-8")
    return UnitTable.read(path)


def test_units_start_at_three_in_code_point_order() -> None:
    table = UnitTable.from_units(["ş", "b", "a", "a", "▁", "<unk>"])
    assert table.units == ("<blank>", "<unk>", "<sos/eos>", "a", "b", "ş", "▁")
    assert table.special == SpecialIds(blank=0, unk=1, sos=2, eos=2)
    assert table.special_ids == {0, 1, 2}
    assert table.id_of("a") == 3
    assert table.id_of("▁") == 6
    assert table.id_of("z") is None
    assert table.id_of("s\u0327") == 5, "the same letter as ş"


@pytest.mark.parametrize(
    ("units", "message"),
    [
        (("é", "a b"), "contains a space"),
        (("é", "e\u0301"), "equal after NFC"),
    ],
)
def test_a_table_with_a_wrong_unit_is_rejected(units: tuple[str, ...], message: str) -> None:
    special = UnitTable.from_units(["a"]).special

    with pytest.raises(ValueError, match=message):
        UnitTable(units=units, special=special)


@settings(max_examples=25, deadline=None)
@example({"\u3000", "\u00a0", "\u2028", "\u0085", "\t", "\x1c"})
@given(units=st.sets(UNITS, max_size=20))
def test_a_written_table_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, units: set[str]
) -> None:
    path = tmp_path_factory.mktemp("units") / "units.txt"
    table = UnitTable.from_units(units)

    table.write(path)

    assert UnitTable.read(path) == table
    composed = {unicodedata.normalize("NFC", unit) for unit in units}
    assert list(table.units[3:]) == sorted(composed - set(SPECIAL_UNITS))


@pytest.mark.parametrize(
    ("content", "units", "special"),
    [
        pytest.param(
            "<blank> 0\n<unk> 1\na 2\nb 3\n<sos/eos> 4\n",
            ("<blank>", "<unk>", "a", "b", "<sos/eos>"),
            SpecialIds(blank=0, unk=1, sos=4, eos=4),
            id="WeNet's old order",
        ),
        pytest.param(
            "a\u0303\t3\r\n<sos> 2\r\n<blank> 1\r\n<eos> 0",
            ("<eos>", "<blank>", "<sos>", "a\u0303"),
            SpecialIds(blank=1, unk=None, sos=2, eos=0),
            id="any order, and tabs",
        ),
    ],
)
def test_special_units_are_found_by_name(
    tmp_path: Path, content: str, units: tuple[str, ...], special: SpecialIds
) -> None:
    table = table_of(tmp_path / "units.txt", content)

    assert table.units == units
    assert table.special == special
    for unit_id, unit in enumerate(units):
        assert table.id_of(unicodedata.normalize("NFC", unit)) == unit_id


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "<blank> 0\n<unk> 1\n<sos/eos> 2\na\n",
            "units.txt:4: expected `unit id`, found 'a'; write two fields",
        ),
        (f"<blank> 0\na {'1' * 5000}\n", "units.txt:2: expected `unit id`, found 'a 111"),
        ("<blank> 0\na b 1\n", "units.txt:2: expected `unit id`, found 'a b 1'"),
        ("<blank> 0\na ²\n", "units.txt:2: expected `unit id`, found 'a ²'"),
        ("<blank> 0\na 1\na 2\n", "units.txt:3: 'a' is the same unit (in NFC) as line 2; keep one"),
        ("<blank> 0\né 1\ne\u0301 2\n", "is the same unit (in NFC) as line 2; keep one"),
        ("<blank> 0\na 1\nb 1\n", "units.txt:3: id 1 is already used on line 2; ids must differ"),
        (
            "<blank> 0\na 1\nb 3\n",
            "units.txt:3: id 3 in a table of 3 units; ids must be 0 to 2, and 2 is missing",
        ),
        ("<unk> 0\na 1\n", "units.txt: no unit <blank>; create the table with `wenet-hs units`"),
        ("<blank> 0\n<sos> 1\n", "units.txt: no unit <sos/eos>; create the table"),
        ("", "units.txt: contains no units; create it with `wenet-hs units`"),
        ("x\n" * 30, "units.txt: and 20 more faults"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        table_of(tmp_path / "units.txt", lines)


def test_special_tokens_must_equal_the_table(tmp_path: Path) -> None:
    for special_tokens in (WENET_NEW, {"<sos/eos>": 2}, None):
        check_special(UnitTable.from_units(["a"]), special_tokens)
    old = table_of(tmp_path / "units.txt", "<blank> 0\n<unk> 1\na 2\nb 3\n<sos/eos> 4\n")
    message = (
        "tokenizer_conf.special_tokens: <sos> is 2, but is 4 in the unit table; "
        "use the units.txt of this model"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_special(old, WENET_NEW)
    with pytest.raises(ConfigError, match=re.escape("<mask> is 9, but is not in the unit table")):
        check_special(old, {"<mask>": 9})


# ---- tokenizers

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
    assert tokenizer.count_unknown("azbz") == Counter(z=2)
    assert (
        tokenizer.decode([2, 0, 3, 1, 0, 4, 1, 2]) == "a⁇b⁇"
    )  # blank, <sos> and <eos> are left out


def test_phones_and_words_stay_whole_and_special_names_are_text() -> None:
    phones = make_tokenizer("phone", UnitTable.from_units(["t͡ʃʰ", "a", "ã"]))
    assert phones.split("t͡ʃʰ  a\u0303 ") == ["t͡ʃʰ", "ã"]
    assert phones.encode("a <blank> t͡ʃʰ a\u0303 <sos/eos>") == [3, 1, 4, 5, 1]
    assert phones.count_unknown("a <blank>") == Counter({"<blank>": 1})
    assert phones.decode([1, 3]) == "⁇ a"
    words = make_tokenizer("word", UnitTable.from_units(["la", "casa"]))
    assert words.split(" la \t casa") == ["la", "casa"]
    assert words.encode("la cosa <blank> casa") == [4, 1, 1, 3]
    assert words.decode([4, 3, 2]) == "la casa"


def test_bpe_uses_pieces_longer_than_a_character(bpe: BpeTokenizer) -> None:
    ids = bpe.encode("la casa roja")
    assert len(ids) < len("la casa roja")
    assert 1 not in ids
    assert bpe.decode(ids) == "la casa roja"
    assert 1 in bpe.encode("la kasa")
    assert sum(bpe.count_unknown("la kasa").values()) == 1


@settings(max_examples=25, deadline=None)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    lang=st.sampled_from(["ca", "uz", None]),
)
def test_units_join_to_the_normalized_text_also_in_a_worker(
    bpe: BpeTokenizer, text: str, lang: str | None
) -> None:
    normalized = normalize(text, lang)
    for tokenizer in (CharTokenizer(CHARS), bpe, pickle.loads(pickle.dumps(bpe))):
        assert tokenizer.join(tokenizer.split(normalized)) == normalized
    phones = PhoneTokenizer(CHARS)
    assert phones.join(phones.split(text)) == normalize_phones(text)


def test_a_table_without_unk_refuses_an_unknown_unit() -> None:
    table = UnitTable(units=("<blank>", "<sos/eos>", "a"), special=SpecialIds(0, None, 1, 1))
    tokenizer = CharTokenizer(table)
    assert tokenizer.encode("a") == [2]
    message = (
        "transcript 'ab': unit 'b' is not in the unit table, which has no <unk>; "
        "use the table of these data"
    )
    with pytest.raises(DataError, match=re.escape(message)):
        tokenizer.encode("ab")


def test_a_wrong_kind_or_model_is_refused(tmp_path: Path) -> None:
    for kind in ("mora", "bpe"):
        with pytest.raises(ValueError, match=f"no tokenizer '{kind}' with the model None"):
            make_tokenizer(kind, CHARS)
    with pytest.raises(
        DataError, match=r"no\.model: cannot be read \(No such file or directory\); check the path"
    ):
        make_tokenizer("bpe", CHARS, tmp_path / "no.model")
    (tmp_path / "text.model").write_text("not a model")
    with pytest.raises(
        DataError, match=r"text\.model: not a sentencepiece model; create it with `wenet-hs units"
    ):
        make_tokenizer("bpe", CHARS, tmp_path / "text.model")
