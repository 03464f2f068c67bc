# SPDX-License-Identifier: Apache-2.0
"""Sentences: what is read, what is left out and why, and parts that never share one."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wenet_hs.corpus.synthetic_sentences import Sentences, clean_sentence, read_sentences, split_sentences
from wenet_hs.errors import DataError


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def test_a_folder_has_a_file_a_language(tmp_path: Path) -> None:
    write(tmp_path / "es.txt", "Hola.\nAdiós, amigo.\n")
    write(tmp_path / "it.txt", "Ciao bella.\n")
    read = read_sentences(tmp_path, ["it", "es"])
    assert list(read) == ["it", "es"]
    assert read["es"].kept == ("Hola.", "Adiós, amigo.") and read["es"].rejected == ()


def test_lines_are_cleaned_and_every_one_left_out_is_named(tmp_path: Path) -> None:
    write(
        tmp_path / "es.txt", "\ufeffÁrbol\tviejo \u2028 y  alto\n\nHola!\n ¡HOLA!\n...\n—\nA\u0301rbol viejo, y alto\n"
    )
    read = read_sentences(tmp_path, ["es"])["es"]
    assert read.kept == ("Árbol viejo y alto", "Hola!")
    assert [(line.line, line.reason, line.is_fault) for line in read.rejected] == [
        (2, "empty line", False),
        (4, "duplicate: the same sentence stands on line 3", False),
        (5, "no letter: ...", True),
        (6, "no letter: —", True),
        (7, "duplicate: the same sentence stands on line 1", False),
    ]


def test_vowel_signs_tell_sentences_apart(tmp_path: Path) -> None:
    write(tmp_path / "hi.txt", "कि\nकी\n")
    assert len(read_sentences(tmp_path, ["hi"])["hi"].kept) == 2


def test_one_file_for_one_language(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.txt", "Hola.\nAdiós.\n")
    assert read_sentences(path, ["es"])["es"].kept == ("Hola.", "Adiós.")
    with pytest.raises(
        DataError, match=r"mine\.txt: sentences without a language, but 2 languages are asked for; write"
    ):
        read_sentences(path, ["es", "it"])


def test_one_file_with_the_language_on_each_line(tmp_path: Path) -> None:
    path = write(tmp_path / "all.tsv", "es\tHola.\n\nit\tCiao.\nfr\tSalut.\nes\tAdiós.\n")
    read = read_sentences(path, ["es", "it"])
    assert read["es"].kept == ("Hola.", "Adiós.") and read["it"].kept == ("Ciao.",)
    with pytest.raises(DataError, match=r"all\.tsv: no sentence of 'pt' in it; add some, or drop the language"):
        read_sentences(path, ["es", "pt"])
    write(path, "es\tHola.\nCiao.\n")
    with pytest.raises(DataError, match=r"all\.tsv:2: no tab in 'Ciao\.'; every line is lang<TAB>sentence, or none is"):
        read_sentences(path, ["es"])


def test_faults_name_the_file(tmp_path: Path) -> None:
    write(tmp_path / "es.txt", "Hola.\n")
    with pytest.raises(DataError, match=r"it\.txt: no such file; write its sentences.*\(found: es\)"):
        read_sentences(tmp_path, ["es", "it"])
    with pytest.raises(DataError, match="nowhere: no such file or folder; give --sentences a folder"):
        read_sentences(tmp_path / "nowhere", ["es"])
    write(tmp_path / "es.txt", "\n...\n")
    with pytest.raises(DataError, match=r"es\.txt: no sentence of 'es' in it"):
        read_sentences(tmp_path, ["es"])
    (tmp_path / "es.txt").write_bytes("Hola.\n¿Qué?\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"es\.txt:2: not UTF-8 at byte 0"):
        read_sentences(tmp_path, ["es"])


def pool(num: int) -> Sentences:
    kept = tuple(f"sentence {number}" for number in range(num))
    return Sentences(lang="es", path=Path("es.txt"), kept=kept, rejected=())


@given(num_train=st.integers(1, 30), num_dev=st.integers(1, 9), num_test=st.integers(1, 9), seed=st.integers(0, 99))
def test_parts_are_disjoint_complete_and_repeatable(num_train: int, num_dev: int, num_test: int, seed: int) -> None:
    sentences = pool(num_train + num_dev + num_test)
    split = split_sentences(sentences, num_test=num_test, num_dev=num_dev, seed=seed)
    assert (len(split.train), len(split.dev), len(split.test)) == (num_train, num_dev, num_test)
    assert sorted(split.train + split.dev + split.test) == sorted(sentences.kept)
    assert split == split_sentences(sentences, num_test=num_test, num_dev=num_dev, seed=seed)


def test_the_seed_decides() -> None:
    assert split_sentences(pool(50), num_test=5, num_dev=5, seed=1) != split_sentences(
        pool(50), num_test=5, num_dev=5, seed=2
    )


def test_too_few_sentences() -> None:
    with pytest.raises(
        DataError, match=r"^es\.txt: 45 different sentences of 'es', but 30 for test and 15 for dev leave none"
    ):
        split_sentences(pool(45), num_test=30, num_dev=15, seed=1)


@given(st.text())
def test_a_clean_sentence_fits_a_table_and_stays_clean(line: str) -> None:
    cleaned = clean_sentence(line)
    assert not set("\t\n\r\0") & set(cleaned) and cleaned == cleaned.strip()
    assert clean_sentence(cleaned) == cleaned
