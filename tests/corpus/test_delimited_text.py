# SPDX-License-Identifier: Apache-2.0
"""Delimiters and quotation marks of texts with columns, by hand."""

import re

import pytest

from wenet_hs.corpus.delimited_text import NumberedRow, split_keys, split_text


def test_the_delimiter_that_splits_all_rows_alike():
    text = "path,text\na.wav,mo; lu\n\nb.wav,ke\n"
    delimited = split_text(text)
    assert delimited is not None
    assert (delimited.form, delimited.separator) == ("comma-separated", ",")
    assert delimited.rows == [
        NumberedRow(1, ["path", "text"]),
        NumberedRow(2, ["a.wav", "mo; lu"]),
        NumberedRow(4, ["b.wav", "ke"]),
    ]


@pytest.mark.parametrize(
    ("text", "form", "rows"),
    [
        ('a,b\n"x, y",2', "comma-separated, quoted", [["x, y", "2"]]),
        ('a\tb\n"mo" lu\t2', "tab-separated", [['"mo" lu', "2"]]),
        (
            'a,b\n"mo\nlu",2',
            "comma-separated, quoted, 1 rows with cells of several lines .*2.",
            None,
        ),
        ('a,b\n"mo,2\nlu,3', "comma-separated", [['"mo', "2"], ["lu", "3"]]),
        (
            'a,b\n"x, y",2\n"mo,2\nlu,3',
            "comma-separated, quoted",
            [["x, y", "2"], [], ["lu", "3"]],
        ),
    ],
    ids=["enclosed", "part-of-text", "several-lines", "sign", "not-closed"],
)
def test_quotation_marks(text, form, rows):
    delimited = split_text(text)
    assert delimited is not None
    assert re.fullmatch(form, delimited.form)
    if rows is not None:
        assert [row.cells for row in delimited.rows[1:]] == rows


def test_empty_cells_without_a_name_are_removed():
    delimited = split_text("a,b,\nx,,\n,y,,\n,,\n")
    assert delimited is not None
    assert [row.cells for row in delimited.rows] == [["a", "b"], ["x", ""], ["", "y"]]


def test_double_colons_come_before_commas_only_with_spaces():
    spaced = split_text("a.pcm :: mo, lu\n\nb.pcm :: ke")
    assert spaced is not None and spaced.separator == " :: "
    assert spaced.rows == [NumberedRow(1, ["a.pcm", "mo, lu"]), NumberedRow(3, ["b.pcm", "ke"])]
    commas = split_text("a.pcm,mo::lu")
    assert commas is not None and commas.separator == ","
    assert split_text("a.pcm::mo\nb.pcm") is None  # a line without the separator


def test_one_column_and_keys():
    assert split_text("a mo lu\nb") is None
    assert split_keys("a mo lu\n\n b ").rows == [
        NumberedRow(1, ["a", "mo lu"]),
        NumberedRow(3, ["b", ""]),
    ]
