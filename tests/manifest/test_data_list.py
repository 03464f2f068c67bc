# SPDX-License-Identifier: Apache-2.0
"""Files: atomic writes and lines; data lists and texts: round trips, WeNet's lists, each fault with
its place.
"""

import errno
import gzip
import json
import lzma
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.base.files import read_lines
from wenet_hs.manifest.data_list import (
    Utterance,
    read_data_list,
    read_sentences,
    read_text,
    write_data_list,
    write_text,
)
from wenet_hs.tree.atomic import open_atomic, write_atomic
from wenet_hs.tree.errors import DataError

GOOD = '{"key": "a", "wav": "a.wav", "txt": "x"}'
words = st.text(st.characters(codec="utf-8"), max_size=8)
keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5).filter(
    lambda k: not any(c.isspace() for c in k)
)
seconds = st.none() | st.floats(0, 1e5)


@settings(max_examples=10, deadline=None)
@given(
    st.builds(
        Utterance, key=keys, wav=words, txt=st.just("ε"), lang=st.none() | words, duration=seconds
    )
)
def test_what_was_written_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, utterance: Utterance
) -> None:
    utterance = replace(utterance, speaker=utterance.lang, start=0.5, end=2.0)
    path = tmp_path_factory.getbasetemp() / "list"
    write_data_list(path, [utterance])
    assert read_data_list(path) == [utterance]


def test_wenets_lists_load(tmp_path: Path) -> None:
    line = {"key": "a", "wav": "a.wav", "txt": "e\u0301 \u1e9b\u0323", "feat": [1], "lang": None}
    (tmp_path / "l").write_text(f"\ufeff{json.dumps(line)}\r\n\n", encoding="utf-8")
    assert read_data_list(tmp_path / "l") == [
        Utterance(key="a", wav="a.wav", txt="é \u1e9b\u0323")
    ], "NFC, never NFKC"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (GOOD, "utterance 'a' is already on line 1; give each a unique key"),
        (
            "{key: a}",
            "not JSON (Expecting property name enclosed in double quotes at column 2); write {",
        ),
        ("[" * 100_000, "not a JSON object with key, wav and txt"),
        (f'{{"duration": {"1" * 5000}}}', "not a JSON object with key, wav and txt"),
        ("[1]", "expected a JSON object with key, wav and txt"),
        (
            '{"key": "b", "wav": "b.wav"}',
            'no \'txt\' in this line; write "txt": "" where there is no transcript',
        ),
        (
            '{"key": "b", "txt": ""}',
            'no \'wav\' in this line; say where the audio is, "wav": "PATH"',
        ),
        (
            '{"wav": "b.wav", "txt": ""}',
            'no \'key\' in this line; give each utterance a unique name, "key": "…"',
        ),
        ('{"key": "b", "wav": "b.wav", "txt": 7}', "'txt' is 7, expected text"),
        (
            '{"key": "b", "wav": "b", "txt": "x", "duration": "é"}',
            "'duration' is \"é\", expected a number of seconds",
        ),
        (
            '{"key": "b", "wav": "b", "txt": "x", "start": true}',
            "'start' is true, expected a number of seconds",
        ),
        ('{"key": "b c", "wav": "b", "txt": "x"}', "key 'b c' is empty or contains white space"),
        ('{"key": "", "wav": "b", "txt": "x"}', "key '' is empty or contains white space"),
        (
            '{"key": "b", "wav": "b", "txt": "x", "duration": NaN}',
            "'duration' is nan, expected a number of seconds",
        ),
        (
            '{"key": "b", "wav": "b", "txt": "x", "duration": 1e999}',
            "'duration' is inf, expected a number of seconds",
        ),
        (
            '{"key": "b", "wav": "b", "txt": "x", "start": -1}',
            "'start' is -1, expected a number of seconds, 0 or more",
        ),
        (
            '{"key": "b", "wav": "b", "txt": "x", "start": 2, "end": 2}',
            "'end' is 2, expected more than 'start', 2",
        ),
        (
            '{"key": "b", "wav": "b", "txt": "x\\ud800"}',
            "'txt' has half of a surrogate pair, which is not text",
        ),
    ],
)
def test_a_fault_is_one_line_with_its_place(tmp_path: Path, line: str, fault: str) -> None:
    (tmp_path / "l").write_text(f"{GOOD}\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_data_list(tmp_path / "l")
    assert str(caught.value).startswith(f"{tmp_path / 'l'}:2: {fault}")
    assert "\n" not in str(caught.value)


def test_all_faults_at_once_but_no_flood(tmp_path: Path) -> None:
    (tmp_path / "l").write_text('{"\n' * 12)

    with pytest.raises(DataError) as caught:
        read_data_list(tmp_path / "l")

    *lines, last = str(caught.value).split("\n")
    line_numbers = [int(line.split(":")[1]) for line in lines]
    assert line_numbers == list(range(1, 11))
    assert last == f"{tmp_path / 'l'}: and 2 more faults"


def test_a_list_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "l").write_text("\n \n")
    with pytest.raises(
        DataError, match=r"l: contains no utterances; run the stage that prepares the data again$"
    ):
        read_data_list(tmp_path / "l")
    with pytest.raises(
        DataError, match=r"none: cannot be read \(No such file or directory\); check the path$"
    ):
        read_data_list(tmp_path / "none")
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\); check the path$"):
        read_data_list(tmp_path)
    (tmp_path / "l").write_bytes(GOOD.encode() + b'\n{"key": "b", "wav": "b", "txt": "\xe9"}\n')
    with pytest.raises(DataError, match=r"l:2: not UTF-8 at byte 33; convert the file to UTF-8$"):
        read_data_list(tmp_path / "l")


def test_texts_read_back_and_kaldis_tabs_divide_too(tmp_path: Path) -> None:
    texts = {"a": "x y", "b": "", "c": "ά\u2028β"}
    write_text(tmp_path / "text", texts)
    assert read_text(tmp_path / "text") == texts
    (tmp_path / "text").write_text("a\tx y\nb  z \n\n c\n", encoding="utf-8")
    assert read_text(tmp_path / "text") == {"a": "x y", "b": "z", "c": ""}
    (tmp_path / "text").write_text("{a {\n")
    assert read_text(tmp_path / "text") == {"{a": "{"}
    (tmp_path / "text").write_text("a x\nb y\na z\n")
    with pytest.raises(DataError, match=r"text:3: 'a' occurs twice; keep one of the two lines$"):
        read_text(tmp_path / "text")
    (tmp_path / "text").write_text('{"key": "a", "hyps": []}\n')
    with pytest.raises(
        DataError, match=r"text:1: JSON lines, not `key transcript` lines; give the file `text`"
    ):
        read_text(tmp_path / "text")


# ---- files


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomic(path, b"\0")
    write_atomic(path, "é\n")
    with pytest.raises(KeyboardInterrupt), open_atomic(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"\xc3\xa9\n"
    assert list(path.parent.iterdir()) == [path]
    write_atomic(tmp_path / ("é" * 127), "as long as a name may be")


def test_an_error_names_the_file_that_was_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        write_atomic(tmp_path, "x")
    assert (caught.value.filename, caught.value.filename2) == (str(tmp_path), None)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught_full:
        write_atomic(tmp_path / "file", "x")
    assert caught_full.value.filename == str(tmp_path / "file")


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa\r\nb\xe2\x80\xa8c\x0b\n\nd")
    assert read_lines(tmp_path / "f") == ["a", "b\u2028c\x0b", "", "d"]
    (tmp_path / "f").write_bytes(b"ok\n\xc3")
    with pytest.raises(DataError, match=r"f:2: not UTF-8 at byte 0; convert the file to UTF-8$"):
        read_lines(tmp_path / "f")


@pytest.mark.parametrize(("name", "compress"), [("t.gz", gzip.compress), ("t.xz", lzma.compress)])
def test_compressed_text_is_read(
    tmp_path: Path, name: str, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / name
    path.write_bytes(compress("\ufeffé b\r\n\nc\n".encode()))

    sentences = [(sentence.key, sentence.txt) for sentence in read_sentences(path)]
    with_empty_lines = [sentence.txt for sentence in read_sentences(path, keep_empty_lines=True)]

    assert sentences == [(f"{path}:1", "é b"), (f"{path}:3", "c")]
    assert with_empty_lines == ["é b", "", "c"]


@pytest.mark.parametrize(
    ("name", "compress", "fault"),
    [
        ("t.gz", gzip.compress, "Error -3 while decompressing data"),
        ("t.xz", lzma.compress, "Corrupt input data"),
    ],
)
def test_damaged_compressed_text_is_refused(
    tmp_path: Path, name: str, compress: Callable[[bytes], bytes], fault: str
) -> None:
    path = tmp_path / name
    content = compress("\ufeffé b\r\n\nc\n".encode())
    middle = len(content) // 2
    inverted_second_half = bytes(255 - byte for byte in content[middle:])
    faulty_contents = (
        (content[:-9], "Compressed (data|file) ended before"),
        (b"text", "."),
        (content[:middle] + inverted_second_half, fault),
    )

    for faulty, reason in faulty_contents:
        path.write_bytes(faulty)
        with pytest.raises(DataError) as caught:
            read_lines(path)
        message = (
            rf"\S+/{name}: not a complete {path.suffix} file \({reason}.*\); "
            "copy it again, or compress the text again"
        )
        assert re.fullmatch(message, str(caught.value))
