# SPDX-License-Identifier: Apache-2.0
"""Lines of any length for sentencepiece's trainer."""

import re

import pytest

from wenet_hs.errors import DataError
from wenet_hs.text.tokenizer import bpe_units, cut_lines, train_bpe

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
    with pytest.raises(DataError, match=re.escape("'a▅b': has U+2585, which sentencepiece reserves; remove this char")):
        list(cut_lines(["a", "a▅b"]))


def test_a_model_of_one_long_line_has_its_letters() -> None:
    units = bpe_units(train_bpe(cut_lines(["ကခဂဃင" * 300]), 12))
    assert {*"ကခဂဃင"} <= {*units}
