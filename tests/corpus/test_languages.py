# SPDX-License-Identifier: Apache-2.0
"""Languages by code or name, in `--lang` and in the data; sets that say that there is none."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from prepared import prepare_line, read_lists

from wenet_hs.corpus.languages import (
    describe_language,
    find_language,
    resolve_languages,
    suggest_languages,
)
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import ConfigError, DataError

TEXTS = ["Sıra Yıl", "Irmak IŞIK", "Isı Kapı", "Yıl Kapı", "Kapı Sıra", "IŞIK Yıl"]


def write_table(folder: Path, column: str, values: list[str]) -> str:
    """A table with one more column. Returns the command that reads it."""
    lines = [f"audio\ttext\t{column}"]
    for number, value in enumerate(values):
        noise = np.random.default_rng(number).uniform(-0.4, 0.4, 8000)
        soundfile.write(folder / f"r{number}.wav", noise, 16000)
        lines.append(f"r{number}.wav\t{TEXTS[number % 6]} {'ab'[number // 6 % 2]}\t{value}")
    (folder / "t.tsv").write_text("\n".join(lines), "utf-8")
    return (
        f"table --table {folder / 't.tsv'} --out {folder / 'out'} --num_workers 0 --split_by none"
    )


def prepare(folder: Path, words: str) -> tuple[dict[str, list[Utterance]], dict[str, Any]]:
    stats = prepare_line(words)
    return read_lists(folder / "out"), stats["total"]


def langs_of(lists: dict[str, list[Utterance]]) -> Counter[str | None]:
    return Counter(u.lang for of_set in lists.values() for u in of_set)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *[
            ("Turkish", "tr"),
            ("turkish", "tr"),
            ("Türkçe", "tr"),
            ("Abui", "abz"),
            ("español", "es"),
            ("日本語", "ja"),
        ],
        *[
            ("Tu\u0308rkc\u0327e", "tr"),
            ("Brazilian Portuguese", "pt-BR"),
            ("Kurmanji", "kmr"),
            ("Malayo", "mbp"),
        ],
        *[
            ("tr", "tr"),
            ("tur", "tur"),
            ("TR", "TR"),
            ("tr_TR", "tr_TR"),
            ("cmn_hans_cn", "cmn_hans_cn"),
        ],
        *[
            ("x-abc", "x-abc"),
            ("qaa", "qaa"),
            ("und", "und"),
            ("ga", "ga"),
            ("mon", "mon"),
            ("De", "De"),
        ],
    ],
)
def test_a_language_is_given_by_its_code_or_by_a_name_in_any_language(text: str, code: str) -> None:
    assert find_language(text) == code


def test_names_that_are_like_a_text() -> None:
    assert suggest_languages("mbos")["Mboshi"] == "mdw" == find_language("Mboshi")
    assert suggest_languages("Mbosi")["Mbosi"] == "mdw"
    assert (
        suggest_languages("Arrernte")["Eastern Arrernte"] == "aer" and suggest_languages("a") == {}
    )
    assert len(suggest_languages("mixtec")) == 12 and len(suggest_languages("mixtec", 3)) == 3
    assert [describe_language(code) for code in ("es", "x-abc", "qxz")] == [
        "Spanish, es",
        "x-abc",
        "qxz",
    ]


@pytest.mark.parametrize(
    "text", ["Bininj Gun-Wok", "Turkishes", "French/English", "xyz", "xx", "tr_TR.UTF-8", "other"]
)
def test_what_only_begins_like_a_name_and_other_texts_are_no_language(text: str) -> None:
    with pytest.raises(
        ValueError,
        match="is no known code or name of a language(, similar are .+)?; write its code",
    ):
        find_language(text)


def test_a_name_that_is_the_code_of_another_language_is_refused() -> None:
    with pytest.raises(
        ValueError, match="^'Ga' is a name of gaa and the code of Irish; write gaa or ga$"
    ):
        find_language("Ga")
    with pytest.raises(
        DataError, match=r"^t\.tsv:2: language: 'Mon' is a name of mnw and the code of Mongolian"
    ):
        resolve_languages([("Mon", "t.tsv:2")], "und")


@pytest.mark.parametrize("lang", ["", "--lang tr", "--lang Türkçe"])
def test_a_name_in_the_data_decides_how_text_is_normalised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lang: str
) -> None:
    with caplog.at_level("INFO"):
        lists, _ = prepare(
            tmp_path, f"{write_table(tmp_path, 'language', ['Turkish'] * 12)} {lang}"
        )
    assert langs_of(lists) == {"tr": 12}
    assert "ırmak ışık a" in {u.txt for of_set in lists.values() for u in of_set}
    assert any(
        line.startswith("languages: ") and "'Turkish' is tr" in line for line in caplog.messages
    )
    assert not any("another language" in line for line in caplog.messages)


def test_lang_by_name_and_an_unknown_one(tmp_path: Path) -> None:
    words = write_table(tmp_path, "speaker", ["s"] * 12)
    assert langs_of(prepare(tmp_path, f"{words} --lang Abui")[0]) == {"abz": 12}
    with pytest.raises(
        ConfigError, match="^--lang: 'Abuii' is no known code or name .*, similar are Abui .abz."
    ):
        prepare(tmp_path, f"{words} --lang Abuii")


def test_codes_and_names_of_one_language_are_one_language(caplog: pytest.LogCaptureFixture) -> None:
    written = [
        (value, f"t.tsv:{line}")
        for line, value in enumerate(["tr", "Turkish", "TR", None, "tur", "x-a"], 2)
    ]
    with caplog.at_level("INFO"):
        assert resolve_languages(written, "tur") == ["tur"] * 5 + ["x-a"]
    assert caplog.messages == [
        "languages: 'tr' is tur, 'Turkish' is tur, 'TR' is tur",
        "--lang tur: the data name another language: x-a (1), which counts; correct the data if that is wrong",
    ]


def test_what_is_no_language_in_the_data_is_refused_but_new_codes_are_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(
        DataError, match=r"^t\.tsv:3: language: 'Dialect A' is no known code .*; or leave it out"
    ):
        resolve_languages([("tr", "t.tsv:2"), ("Dialect A", "t.tsv:3")], "und")
    assert resolve_languages([("qxz", "t.tsv:2"), ("en_accented", "t.tsv:3")], "und") == [
        "qxz",
        "en_accented",
    ]
    assert (
        caplog.messages[0] == "t.tsv:2: 'qxz' is no known code of a language; it is kept, check it"
    )


@pytest.mark.parametrize("value", ["unassigned", "None", " ", "nan"])
def test_sets_are_made_if_no_row_is_assigned_to_one(tmp_path: Path, value: str) -> None:
    lists, total = prepare(tmp_path, write_table(tmp_path, "split", [value] * 12))
    assert {name: len(of_set) for name, of_set in lists.items()} == {
        "train": 10,
        "dev": 1,
        "test": 1,
    }
    assert total["rejected"] == {}


def test_rows_without_a_set_beside_others_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = write_table(tmp_path, "split", ["train", "train", "dev", "test", "unassigned", ""])
    with caplog.at_level("INFO"):
        lists, total = prepare(tmp_path, words)
    assert {name: len(of_set) for name, of_set in lists.items()} == {
        "train": 2,
        "dev": 1,
        "test": 1,
    }
    assert (total["rejected"], total["left_out"]) == ({}, {"no set": 2})
    expected = "2 utterances have no set, others have one: they are left out; --ignore_sets makes sets of all"
    assert expected in caplog.messages
    assert sum(map(len, prepare(tmp_path, f"{words} --ignore_sets")[0].values())) == 6
