# SPDX-License-Identifier: Apache-2.0
"""Unit tables of other toolkits: `<space>`, marked units, byte pieces, Chinese characters beside
BPE; long lines.
"""

import io
import re
from pathlib import Path

import pytest
import sentencepiece

from wenet_hs.text.tokenizer import (
    BpeTokenizer,
    SegmentingTokenizer,
    bpe_units,
    check_units,
    cut_lines,
    make_tokenizer,
    train_bpe,
)
from wenet_hs.text.units import SpecialIds, UnitTable
from wenet_hs.train.finetune import match_units
from wenet_hs.tree.errors import ConfigError, DataError

ESPNET = UnitTable(("<blank>", "<unk>", "<sos/eos>", "a", "b", "<space>"), SpecialIds(0, 1, 2, 2))


def bpe_tokenizer(folder: Path, model: bytes, *more: str) -> BpeTokenizer:
    (folder / "bpe.model").write_bytes(model)
    tokenizer = make_tokenizer(
        "bpe", UnitTable.from_units([*bpe_units(model), *more]), folder / "bpe.model"
    )
    assert isinstance(tokenizer, BpeTokenizer)
    return tokenizer


# ---- the space


def test_the_space_of_a_table_may_be_named_space(tmp_path: Path) -> None:
    tokenizer = make_tokenizer("char", ESPNET)
    assert tokenizer.encode("ab a") == [3, 4, 5, 3] and not tokenizer.count_unknown("ab a")
    assert tokenizer.decode([3, 5, 4]) == "a b"
    assert ESPNET.id_of("▁") == ESPNET.id_of("<space>") == 5
    check_units("char", ESPNET, "units.txt")
    (tmp_path / "units.txt").write_text("<blank> 0\n<sos/eos> 1\n<space> 2\n▁ 3\n", "utf-8")
    with pytest.raises(
        DataError,
        match=re.escape("units.txt:4: '▁' is the same unit (the space) as line 3; keep one"),
    ):
        UnitTable.read(tmp_path / "units.txt")


def test_fine_tuning_matches_both_names_of_the_space() -> None:
    assert match_units(ESPNET, UnitTable.from_units("a▁")).inputs.tolist() == [0, 1, 2, 3, 5]
    assert match_units(UnitTable.from_units("a▁"), ESPNET).inputs.tolist() == [0, 1, 2, 3, -1, 4]


def test_in_phones_the_unit_is_as_written() -> None:
    tokenizer = make_tokenizer("phone", ESPNET)
    assert tokenizer.encode("a <space> b") == [3, 5, 4]
    assert tokenizer.decode([3, 5, 4]) == "a <space> b"


@pytest.mark.parametrize("space", ["|", "<SPACE>", "[space]"])
def test_a_space_under_another_name_is_refused(space: str) -> None:
    table = UnitTable.from_units(["a", space])
    message = f"u.txt: unit {space!r} is the space of other toolkits, which is a letter for tokenizer: char; rename it ▁"
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_units("char", table, "u.txt")
    check_units("phone", table, "u.txt")
    check_units("char", UnitTable.from_units(["a", "▁", "|"]), "u.txt")


def test_missing_roles_name_what_other_toolkits_call_them(tmp_path: Path) -> None:
    for content, missing, others in (
        ("<pad> 0\n<s> 1\na 2\n", "<blank>", "<blk>, <eps> or <pad>"),
        ("<blank> 0\n<s> 1\n</s> 2\n", "<sos/eos>", "<s> or </s>"),
    ):
        (tmp_path / "units.txt").write_text(content)
        with pytest.raises(
            DataError,
            match=f"no unit {missing}; create .*, or rename the unit .* \\(as {others}\\)$",
        ):
            UnitTable.read(tmp_path / "units.txt")


# ---- marked units


def test_a_marked_unit_of_the_table_is_whole_in_transcripts(tmp_path: Path) -> None:
    table = UnitTable.from_units(["a", "b", "▁", "<noise>", "[UNK]", "<en>", "<0xC3>"])
    assert table.marked_units == ["<en>", "<noise>", "[UNK]"]
    tokenizer = make_tokenizer("char", table)
    assert tokenizer.split("<en>ab <noise> b<x>") == [
        "<en>",
        "a",
        "b",
        "▁",
        "<noise>",
        "▁",
        "b",
        "<",
        "x",
        ">",
    ]
    assert tokenizer.decode(tokenizer.encode("ab <noise> b")) == "ab <noise> b"
    assert tokenizer.split("<unk>") == [
        *"<unk>"
    ]  # of the table, but special: a transcript's text is never special
    with pytest.raises(
        ConfigError, match="unit '<0xC3>' is a piece of BPE, not a character; set tokenizer"
    ):
        check_units("char", table, "units.txt")
    check_units("char", UnitTable.from_units(["a", "<noise>"]), "units.txt")
    bpe = bpe_tokenizer(tmp_path, train_bpe(["la casa"] * 9, 10), "<noise>")
    assert "<noise>" in bpe.split("la <noise> casa") and not bpe.count_unknown("la <noise> casa")


# ---- pieces of sentencepiece


def byte_model() -> bytes:
    model, lines = io.BytesIO(), ["la casa blanca"] * 9
    settings = {
        "model_type": "bpe",
        "vocab_size": 285,
        "normalization_rule_name": "identity",
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        byte_fallback=True,
        hard_vocab_limit=False,
        **settings,
    )
    return model.getvalue()


def test_bytes_are_decoded_as_utf8(tmp_path: Path) -> None:
    tokenizer = bpe_tokenizer(tmp_path, byte_model())
    assert tokenizer.marked_units == []
    for text in ("la é casa", "好的 casa", "la ក្ក 🙂"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    e, more = "<0xC3>", "<0xA9>"
    assert tokenizer.join([e, more]) == "é"
    assert tokenizer.join(["l", e, "a"]) == "l�a"  # incomplete
    assert tokenizer.join([e, e, more, more]) == "�é�"
    assert tokenizer.join(["<0xE5>", "<0xA5>"]) == "�"
    assert tokenizer.join(["<0xE5>", "<0xA5>", "▁", "<0xBD>", "a"]) == "� �a"
    assert (
        tokenizer.join(["a", "<0x0A>", "b"]) == "a b"
    )  # a line end would break the file of results
    assert tokenizer.texts(["▁l", "<0xE5>", "<0xA5>", "<0xBD>", "a"]) == ["▁l", "好", "", "", "a"]


def test_chinese_characters_beside_bpe_are_split_as_by_wenet(tmp_path: Path) -> None:
    model = train_bpe(["IT'S OKAY", "THANK YOU", "OKAY THANKS", "HELLO YOU"] * 20, 30)
    mixed = bpe_tokenizer(tmp_path, model, *"你好的我们谢")
    assert (
        mixed.split("你好 it's OKAY 的")[:2] == ["你", "好"]
        and mixed.split("你好 OKAY 的")[-1] == "的"
    )
    for text in ("你好 IT'S OKAY 的", "我们 THANK YOU", "谢你 okay", "你好", "thank you 谢"):
        assert not mixed.count_unknown(text), text
    assert mixed.count_unknown("你坏 okay") == {"坏": 1}  # one unit, not the whole run
    assert (
        mixed.decode(mixed.encode("你好 it's OKAY 的")) == "你好 IT'S OKAY的"
    )  # as in WeNet's results
    lower = bpe_tokenizer(tmp_path, train_bpe(["ok okay thank you"] * 20, 20), *"你好")
    assert not lower.count_unknown("你好 okay") and lower.count_unknown("OKAY")
    plain = bpe_tokenizer(tmp_path, model)
    assert plain.count_unknown("okay")  # only such tables have WeNet's upper case
    chinese = train_bpe(["你好", "你好 okay"] * 9, 14)
    assert (
        "".join(bpe_tokenizer(tmp_path, chinese).split("你好 okay")) == "▁你好▁okay"
    )  # its own Chinese pieces


# ---- words of a script without spaces


def test_text_without_spaces_is_divided_into_the_fewest_words_of_a_table() -> None:
    words = SegmentingTokenizer(
        UnitTable.from_units(["你好", "好的", "的", "好", "ok", "แมว", "กิน", "ปลา", "กี่"])
    )
    for text, units in {
        "你好的": ["你好", "的"],
        "好的好": ["好的", "好"],
        "你坏好": ["你", "坏", "好"],  # letters in no word
        "你好ok不ab": ["你好", "ok", "不", "ab"],
        "แมวกินปลา แมว": ["แมว", "กิน", "ปลา", "แมว"],
        "แมวกี่ิ": ["แมว", "กี่ิ"],  # never between a letter and its mark
        "unbekannt ok": ["unbekannt", "ok"],  # in a script with spaces a word is a word
        "": [],
    }.items():
        assert words.split(text) == units, text


# ---- lines of sentencepiece's trainer


def test_long_lines_are_cut_at_spaces_or_between_letters() -> None:
    words, letters = "casa blanca " * 500, "ကို" * 1000
    for text in (words, letters, f"{letters} {letters} {words}", "é" + "\u0301" * 5000):
        lines = list(cut_lines([text]))
        assert len(lines) > 1 and max(len(line.encode()) for line in lines) <= 4192
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert {*" ".join(cut_lines([words])).split()} == {"casa", "blanca"}
    assert all(line.endswith("ို") for line in cut_lines([letters]))  # with its marks
    assert list(cut_lines(["a b", "", "  ", " c "])) == ["a b", "c"]
    with pytest.raises(
        DataError,
        match=re.escape("'a▅b': has U+2585, which sentencepiece reserves; remove this char"),
    ):
        list(cut_lines(["a", "a▅b"]))


def test_a_model_of_one_long_line_has_its_letters() -> None:
    units = bpe_units(train_bpe(cut_lines(["ကခဂဃင" * 300]), 12))
    assert {*"ကခဂဃင"} <= {*units}
