# SPDX-License-Identifier: Apache-2.0
"""Common Voice tables: every row is used or rejected with its reason, whatever stands in it."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_release import HEADER_11, HEADER_17, Row, write_table

from wenet_hs.corpus.commonvoice import find_language_folders, read_table
from wenet_hs.errors import DataError

HEADER = b"client_id\tpath\tsentence\n"


def table_of(folder: Path, content: bytes) -> Path:
    path = folder / "ca" / "validated.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def reasons(path: Path) -> list[tuple[str, str]]:
    return [(clip.key, clip.reason) for clip in read_table(path, "ca").rejected]


@pytest.mark.parametrize("header", [HEADER_11, HEADER_17, tuple(reversed(HEADER_17))])
def test_columns_are_found_by_their_names(tmp_path: Path, header: tuple[str, ...]) -> None:
    path = tmp_path / "ca" / "validated.tsv"
    write_table(path, [Row("common_voice_ca_7.mp3", "L’aigua, «bona»!", "anna", 2.0)], header)
    table = read_table(path, "ca")
    assert table.rejected == []
    (utterance,) = table.utterances
    assert utterance.txt == "l'aigua bona"
    assert utterance.speaker == "anna"
    assert utterance.key == "common_voice_ca_7"
    assert utterance.wav == str(tmp_path / "ca" / "clips" / "common_voice_ca_7.mp3")
    assert (utterance.lang, utterance.duration) == ("ca", None)
    assert table.removed == {",": 1, "«": 1, "»": 1, "!": 1}


def test_quotation_marks_are_text(tmp_path: Path) -> None:
    rows = [f"a\tc{n}.mp3\t{quote}hola món\n".encode() for n, quote in enumerate(['"', "", '""', "'", '"', '"'])]
    table = read_table(table_of(tmp_path, HEADER + b"".join(rows)), "ca")
    assert len(table.utterances) == 6
    assert {u.txt for u in table.utterances} == {"hola món"}


@pytest.mark.parametrize("word", ["NA", "null", "None", "nan", "1984"])
def test_words_that_look_like_nothing_are_words(tmp_path: Path, word: str) -> None:
    table = read_table(table_of(tmp_path, HEADER + f"a\tc.mp3\t{word}\n".encode()), "ca")
    assert [u.txt for u in table.utterances] == [word.lower()]


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + HEADER.replace(b"\n", b"\r\n") + b"a\tc.mp3\thola\r\nb\td.mp3\tadeu"
    table = read_table(table_of(tmp_path, content), "ca")
    assert [(u.speaker, u.txt) for u in table.utterances] == [("a", "hola"), ("b", "adeu")]


@pytest.mark.parametrize("space", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\r"])
def test_other_line_separators_are_white_space_in_the_text(tmp_path: Path, space: str) -> None:
    table = read_table(table_of(tmp_path, HEADER + f"a\tc.mp3\thola{space}món\n".encode()), "ca")
    assert [u.txt for u in table.utterances] == ["hola món"]


def test_a_row_that_is_of_no_use_has_its_reason(tmp_path: Path) -> None:
    lines = [
        b"a\tc0.mp3\thola",
        b"a\tc1.mp3\thola\tmon",
        b"a\tc2.mp3",
        b"a\tc3.mp3\thol\xe0",
        b"a\tc4.mp3\t  ",
        b"a\tc5.mp3\t?! \xe2\x80\xa6",
        b"a\tc0.mp3\thola",
        b"a\t\thola",
        b"a\t../c6.mp3\thola",
        b"a\tc7.mp3\t" + b"la " * 400,
        b"\tc8.mp3\thola",
        b"a\tc9\tadeu",
    ]
    path = table_of(tmp_path, HEADER + b"\n".join(lines) + b"\n")
    table = read_table(path, "ca")
    assert [(u.key, u.speaker) for u in table.utterances] == [("ca_c0", "a"), ("ca_c8", None), ("ca_c9", "a")]
    assert table.utterances[-1].wav.endswith("clips/c9.mp3")
    assert reasons(path) == [
        ("ca:validated.tsv:3", "wrong number of columns: 4, the header has 3"),
        ("ca:validated.tsv:4", "wrong number of columns: 2, the header has 3"),
        ("ca:validated.tsv:5", "not UTF-8: byte 12 of the line"),
        ("ca_c4", "empty transcript"),
        ("ca_c5", "empty transcript after normalisation: '?! …'"),
        ("ca:validated.tsv:8", "repeated: this clip stands on an earlier line"),
        ("ca:validated.tsv:9", "no path"),
        ("ca_../c6", "path is not a file name"),
        ("ca_c7", "transcript too long: 1200 characters, at most 1000"),
    ]
    assert len(table.utterances) + len(table.rejected) == len(lines)


@given(rows=st.lists(st.binary(max_size=40).filter(lambda row: b"\n" not in row), max_size=12))
def test_rows_in_are_rows_used_and_rows_rejected(tmp_path_factory: pytest.TempPathFactory, rows: list[bytes]) -> None:
    path = table_of(tmp_path_factory.mktemp("tsv"), HEADER + b"".join(row + b"\n" for row in rows))
    table = read_table(path, "ca")
    assert len(table.utterances) + len(table.rejected) == len(rows)


def test_durations_are_milliseconds(tmp_path: Path) -> None:
    path = table_of(tmp_path, HEADER + b"".join(b"a\tc%d.mp3\thola\n" % n for n in range(5)))
    (tmp_path / "ca" / "clip_durations.tsv").write_text(
        "clip\tduration[ms]\nc0.mp3\t1234\nc1.mp3\t-5\nc2.mp3\tno\nc3.mp3\tnan\n", encoding="utf-8"
    )
    assert [u.duration for u in read_table(path, "ca").utterances] == [1.234, None, None, None, None]


def test_faulty_tables_are_named(tmp_path: Path) -> None:
    message = "validated.tsv:1: no column 'sentence' (has: client_id, path, text); is this a table of a Common Voice"
    with pytest.raises(DataError, match=re.escape(message)):
        read_table(table_of(tmp_path, b"client_id\tpath\ttext\n"), "ca")
    with pytest.raises(DataError, match=re.escape("no column 'client_id' (has: )")):
        read_table(table_of(tmp_path, b""), "ca")
    with pytest.raises(DataError, match=r"test\.tsv: cannot be read \(No such file or directory\); is this a Common"):
        read_table(tmp_path / "ca" / "test.tsv", "ca")
    (tmp_path / "ca" / "clip_durations.tsv").write_text("name,seconds\n")
    message = "clip_durations.tsv:1: expected columns clip and duration[ms], found name,seconds; restore the file"
    with pytest.raises(DataError, match=re.escape(message)):
        read_table(table_of(tmp_path, HEADER), "ca")


def test_a_language_is_found_in_the_release_folder_or_below(tmp_path: Path) -> None:
    (tmp_path / "ca").mkdir()
    (tmp_path / "cv-corpus-11.0-2022-09-21" / "es").mkdir(parents=True)
    folders = find_language_folders(tmp_path, ("ca", "es"))
    assert folders["ca"] == tmp_path / "ca"
    assert folders["es"] == tmp_path / "cv-corpus-11.0-2022-09-21" / "es"


def test_languages_that_are_not_there_are_all_named(tmp_path: Path) -> None:
    for release in ("cv-corpus-11.0", "cv-corpus-12.0"):
        (tmp_path / release / "es").mkdir(parents=True)
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca" / "validated.tsv").touch()
    with pytest.raises(DataError) as caught:
        find_language_folders(tmp_path, ("ca", "es", "fr"))
    first, second = str(caught.value).split("\n")
    assert first.startswith(f"{tmp_path}: language 'es' is there 2 times (")
    assert second == f"{tmp_path}: no folder 'fr' of a Common Voice release; found: ca"
    with pytest.raises(DataError, match="no such folder; --corpus is the folder of a Common Voice release"):
        find_language_folders(tmp_path / "nowhere", ("ca",))
