# SPDX-License-Identifier: Apache-2.0
"""Transcripts of AI Hub: two spellings, letters of noise, and lists with double colons."""

from pathlib import Path
from typing import Any

import pytest
from annotation_forms import write_audio
from prepared import prepare_line, read_lists

from wenet_hs.corpus.korean import KoreanMarks, read_korean_marks

TEXTS = {
    "b/ 아/ (70%)/(칠십 퍼센트) 확률이라니 n/": "아 칠십 퍼센트 확률이라니",
    "o/ 그래서 (3명)/(세 명) (2개)/(두 개) l/": "그래서 세 명 두 개",
    "n/u/ 모+ 몬 소리야": "모 몬 소리야",
    "가격이 (10,000원) / (만 원) 이야.": "가격이 만 원 이야",
}


def prepare(folder: Path, words: str) -> tuple[list[str], dict[str, Any]]:
    """The transcripts in the order of their recordings, and the counts."""
    total = prepare_line(f"{words} --out {folder / 'out'} --num_workers 0 --split_by none")["total"]
    found = [u for of_set in read_lists(folder / "out").values() for u in of_set]
    return [u.txt for u in sorted(found, key=lambda u: u.wav)], total


@pytest.mark.parametrize("lang", ["ko", "und"])
def test_two_spellings_and_letters_of_noise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lang: str
) -> None:
    caplog.set_level("INFO")
    for n, text in enumerate(TEXTS):
        write_audio(tmp_path / f"{n}.wav", seconds=2)
        (tmp_path / f"{n}.txt").write_text(text, "utf-8")
    found, _ = prepare(tmp_path, f"folder --corpus {tmp_path} --lang {lang}")
    assert found == [*TEXTS.values()]
    spellings = "of two Korean spellings the second is used, as it is spoken: '(70%)/(칠십 퍼센트)' (1), '(3명)/(세 명)' (1)"
    assert spellings in caplog.text
    noises = "removed from the transcripts as letters of noise in Korean: 'n/' (2), 'b/' (1), 'o/' (1), 'l/' (1), 'u/' (1)"
    assert noises in caplog.messages
    assert "transcripts have digits" not in caplog.text and "notes in brackets" not in caplog.text


def test_a_recording_with_noise_only_is_no_fault(tmp_path: Path) -> None:
    for n, text in enumerate(["b/ n/", *TEXTS]):
        write_audio(tmp_path / f"{n}.wav", seconds=2)
        (tmp_path / f"{n}.txt").write_text(text, "utf-8")
    found, total = prepare(tmp_path, f"folder --corpus {tmp_path} --lang ko")
    assert found == [*TEXTS.values()]
    assert (total["rejected"], total["left_out"]) == ({}, {"empty transcript": 1})


@pytest.mark.parametrize(
    ("text", "lang"),
    [
        ("and/or b/ (he)/(she)", "en"),
        ("b/ n/", "und"),
        ("A/B (하나)", "ko"),
        ("파티 b/c 그래", "ko"),
        ("http://n/ 그래", "ko"),
        ("(하나) (둘)", "ko"),
    ],
)
def test_other_slashes_stay(text: str, lang: str) -> None:
    assert read_korean_marks(text, lang, KoreanMarks()) == text


@pytest.mark.parametrize("form", ["table", "folder"])
def test_lists_with_double_colons(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    """Lists name the files of raw samples; here they were converted."""
    caplog.set_level("INFO")
    lines = []
    for n, text in enumerate(TEXTS):
        write_audio(tmp_path / f"Kspon_01/K_{n}.wav", seconds=2)
        lines.append(f"Kspon_01/K_{n}.pcm :: {text}, :: 네")
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n", "utf-8")
    words = (
        f"table --table {tmp_path / 'train.txt'}"
        if form == "table"
        else f"folder --corpus {tmp_path}"
    )
    found, _ = prepare(tmp_path, f"{words} --lang ko")
    assert found == [f"{text} 네" for text in TEXTS.values()]
    assert (
        "train.txt: separated by double colons, utf-8, without names of columns: column 1 is taken"
        in caplog.text
    )


@pytest.mark.parametrize("separator", [" :: ", "::"])
def test_double_colons_with_names_of_columns(tmp_path: Path, separator: str) -> None:
    rows = [f"path{separator}text"]
    for n in range(4):
        write_audio(tmp_path / f"{n}.wav", seconds=2)
        rows.append(f"{n}.wav{separator}mo {n}, lu")
    (tmp_path / "t.txt").write_text("\n".join(rows), "utf-8")
    found, _ = prepare(tmp_path, f"table --table {tmp_path / 't.txt'} --lang qaa")
    assert found == [f"mo {n} lu" for n in range(4)]
