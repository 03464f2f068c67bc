# SPDX-License-Identifier: Apache-2.0
"""Binary files of KenLM: told from those of words, used as models of words, or refused, as ARPA
files are.
"""

import logging
from pathlib import Path

import pytest
from small_models import SPECIAL

from wenet_hs.lm.backoff import KenlmModel
from wenet_hs.lm.kenlm_file import read_kenlm_vocabulary
from wenet_hs.lm.language_model import TextModel
from wenet_hs.lm.loader import load_language_model
from wenet_hs.text.tokenizer import CharTokenizer, PhoneTokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.tree.errors import DataError

GOLDEN = Path(__file__).parents[1] / "golden/kenlm"
UNITS = UnitTable(("<blank>", "<unk>", "<sos/eos>", *"abc▁defg"), SPECIAL)
A, B, SPACE = 3, 4, 6
WORDS_ARPA = """\\data\\
ngram 1=7
ngram 2=3

\\1-grams:
-1.0\t<unk>
0\t<s>\t-0.5
-0.8\t</s>
-0.9\tab\t-0.3
-1.0\tba\t-0.2
-1.1\tcab\t0
-1.2\ta

\\2-grams:
-0.2\t<s> ab
-0.6\tab ba
-1.1\tba </s>

\\end\\
"""
"""What `words.bin` was built from."""


def test_the_spelling_of_the_words_is_read() -> None:
    words = read_kenlm_vocabulary(GOLDEN / "words.bin")
    assert words.num_words == 7 and words.words == ["<unk>", "<s>", "</s>", "ab", "ba", "cab", "a"]
    units = read_kenlm_vocabulary(GOLDEN / "units.bin")
    assert units.words == ["<unk>", "<s>", "</s>", "a", "b", "▁"]
    without_spelling = read_kenlm_vocabulary(GOLDEN / "words-v.bin")
    assert without_spelling.num_words == 7 and without_spelling.words is None


def test_words_that_end_as_the_first_one(tmp_path: Path) -> None:
    content = (GOLDEN / "words.bin").read_bytes()
    (tmp_path / "lm.bin").write_bytes(content.replace(b"cab\0", b"c<unk>\0"))
    assert read_kenlm_vocabulary(tmp_path / "lm.bin").words == [
        "<unk>",
        "<s>",
        "</s>",
        "ab",
        "ba",
        "c<unk>",
        "a",
    ]


@pytest.mark.parametrize("size", [40, 100, 360, 390])
def test_an_incomplete_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "lm.bin"
    path.write_bytes((GOLDEN / "words.bin").read_bytes()[:size])
    with pytest.raises(
        DataError,
        match=r"lm.bin: is no complete binary file of KenLM \(version 5\); build it again",
    ):
        load_language_model(path, CharTokenizer(UNITS))


def test_words_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "lm.bin"
    path.write_bytes((GOLDEN / "words.bin").read_bytes().replace(b"cab\0", b"c\xe9b\0"))
    with pytest.raises(
        DataError, match="lm.bin: has words that are not UTF-8; convert the ARPA file to UTF-8"
    ):
        load_language_model(path, CharTokenizer(UNITS))


def test_a_file_of_words_rescores_as_its_arpa_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("kenlm", reason="kenlm is not installed")
    caplog.set_level(logging.INFO)
    (tmp_path / "words.arpa").write_text(WORDS_ARPA, "utf-8")
    of_arpa = load_language_model(tmp_path / "words.arpa", CharTokenizer(UNITS))
    of_binary = load_language_model(GOLDEN / "words.bin", CharTokenizer(UNITS))
    assert isinstance(of_arpa, TextModel) and isinstance(of_binary, TextModel)
    line = (
        "1 of its 4 words are units of the recogniser; it rescores n-best lists as a model of words"
    )
    assert f"words.bin: {line}" in caplog.text
    texts = [(A, B, SPACE, B, A), (B, A), (A, A, SPACE, A, B), ()]
    assert of_binary.score_texts(texts) == pytest.approx(of_arpa.score_texts(texts), abs=1e-5)


def test_a_file_of_words_without_spelling_is_refused(tmp_path: Path) -> None:
    """The remedies of the line work: the same model as ARPA file, and built without `-v`."""
    pytest.importorskip("kenlm", reason="kenlm is not installed")
    with pytest.raises(DataError) as caught:
        load_language_model(GOLDEN / "words-v.bin", CharTokenizer(UNITS))
    assert str(caught.value).endswith(
        "words-v.bin: a model of words, without their spelling (1 of its 4 words are units of the recogniser); "
        "give the ARPA file, or build it again with build_binary without `-v`"
    )
    (tmp_path / "words.arpa").write_text(WORDS_ARPA, "utf-8")
    for remedy in (tmp_path / "words.arpa", GOLDEN / "words.bin"):
        assert isinstance(load_language_model(remedy, CharTokenizer(UNITS)), TextModel)


@pytest.mark.parametrize("name", ["units.bin", "units-v.bin"])
def test_a_file_over_units_takes_part_in_the_searches(name: str) -> None:
    pytest.importorskip("kenlm", reason="kenlm is not installed")
    model = load_language_model(GOLDEN / name, CharTokenizer(UNITS))
    assert isinstance(model, KenlmModel) and model.known == ["a", "b", "▁"]


def test_phones_are_never_words() -> None:
    """As with an ARPA file: a file that knows no phone is refused."""
    pytest.importorskip("kenlm", reason="kenlm is not installed")
    phones = PhoneTokenizer(UnitTable(("<blank>", "<unk>", "<sos/eos>", "tʃ", "ŋ"), SPECIAL))
    for name in ("words.bin", "words-v.bin"):
        with pytest.raises(
            DataError, match=rf"{name}: knows none of the 5 units of units.txt; build it from text"
        ):
            load_language_model(GOLDEN / name, phones)
