# SPDX-License-Identifier: Apache-2.0
"""CTM and STM: one rule for `score`, whose lines have keys, and for texts beside a recording."""

from pathlib import Path

import pytest

from wenet_hs.manifest.file_forms import find_form
from wenet_hs.manifest.nist import CTM, STM, TimedForm, suffix_of
from wenet_hs.score.transcript_files import read_transcripts


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("x.txt", "rec 1 0. 0.2 hi\n", "a CTM of NIST"),
        ("x.txt", "rec A 0 0.2 hi\nrec A 1 0.2 yo NA lex ana\n", "a CTM of NIST"),
        ("x.ctm", "rec 1 0 1 hi\nrec 1 1 1 yo\n", "a CTM of NIST"),
        ("x.txt", "rec 1 ana 0 2.5 hi yo\n", "an STM of NIST"),
        ("x.stm", "u1 1 ana 0 2 hi\nu2 1 ana 0 1 yo\n", "an STM of NIST"),
    ],
)
def test_what_is_a_form_of_nist_beside_a_recording_is_one_for_score(
    tmp_path: Path, name: str, content: str, form: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    known_form = find_form(path, content)
    assert known_form is not None and known_form.name == form
    assert " ".join(read_transcripts(path).values()) in ("hi", "hi yo")


@pytest.mark.parametrize(
    "content",
    [
        "rec AB 0.1 0.2 hi\n",
        "rec 1 0.1 0.2 hi a b c\n",
        "clips/a0.wav\tana\tes\t0.10\t0.90\tmo hola\n",
    ],
)
def test_other_columns_are_no_form_of_nist(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.txt"
    path.write_text(content)
    assert find_form(path, content) is None
    assert [*read_transcripts(path).values()] == [content.split(maxsplit=1)[1].rstrip()]


@pytest.mark.parametrize(
    ("form", "content"),
    [
        (STM, "room 1 has 3 4 people\nroom 1 has 5 6 people"),
        (CTM, "take 2 3 4 eggs\ntake 2 1 2 spoons"),
    ],
)
def test_repeated_first_words_are_recordings_only_where_lines_have_keys(
    form: TimedForm,
    content: str,
) -> None:
    lines = content.splitlines()
    assert form.is_form_of(Path("x"), lines, have_keys=True)
    assert not form.is_form_of(Path("x"), lines, have_keys=False)


def test_the_suffix_of_a_compressed_file_is_that_of_its_content() -> None:
    names = ("x.STM", "x.ctm.gz", "x.y.xz", "x.gz", "text")
    assert [suffix_of(Path(name)) for name in names] == [".stm", ".ctm", ".y", "", ""]
