# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs lm ngram`: from a data list or text to a model for `recognize --lm`, and one line per
fault.
"""

import lzma
from pathlib import Path

import pytest
from command_line import Capsys, error_line, run_line

from wenet_hs.bin import lm as command
from wenet_hs.lm.backoff import ArpaReader, NgramModel
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.text.tokenizer import bpe_units, train_bpe
from wenet_hs.text.units import UnitTable

SENTENCES = ["la casa", "", "la cosa", "una casa"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_data_list(
        "train.list", [Utterance(key=f"k{n}", wav="x", txt=txt) for n, txt in enumerate(SENTENCES)]
    )
    return tmp_path


def call(flags: str) -> int:
    return run_line(command, f"ngram --out out/lm.arpa {flags}")


def units_of_model() -> list[str]:
    """The 1-grams of the file without <unk>, <s> and </s>."""
    lines = Path("out/lm.arpa").read_text("utf-8").partition("\\2-grams:")[0].splitlines()
    return [line.split("\t")[1] for line in lines if "\t" in line][3:]


def test_a_data_list_is_split_into_the_units_of_the_recogniser(capsys: Capsys) -> None:
    assert call("--data_list train.list --discount_fallback") == 0
    shown = "4-gram model of 8 units from 3 sentences; empty transcripts left out: 1"
    assert capsys.readouterr().out == f"out/lm.arpa: {shown}\n"
    assert units_of_model() == [*"la▁csoun"]
    assert (
        NgramModel(ArpaReader(Path("out/lm.arpa")), UnitTable.from_units("la▁csoun")).unknown == []
    )
    assert call("--data_list train.list --tokenizer word --order 2 --discount_fallback") == 0
    assert units_of_model() == ["la", "casa", "cosa", "una"]
    model = train_bpe(SENTENCES, 14)
    Path("bpe.model").write_bytes(model)
    assert (
        call("--data_list train.list --tokenizer bpe --bpe_model bpe.model --discount_fallback")
        == 0
    )
    assert {*units_of_model()} <= {*bpe_units(model)}


def test_text_is_words_and_may_be_compressed(folder: Path, capsys: Capsys) -> None:
    (folder / "a.txt.xz").write_bytes(lzma.compress(b"the <unk> cat\n\nthe dog\n"))
    (folder / "b.txt").write_text("<unk>\n")
    assert call("--text a.txt.xz b.txt --discount_fallback") == 0
    shown = "4-gram model of 3 units from 3 sentences; occurrences of <unk> in the text: 2"
    assert capsys.readouterr().out == f"out/lm.arpa: {shown}\n"
    assert units_of_model() == ["the", "cat", "dog"]
    text = (folder / "out/lm.arpa").read_text()
    assert "\tthe <unk> cat\t" in text and "\t<s> <unk> </s>\t" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--text t --order 0", "--order 0: must be at least 1"),
        (
            "--text t --order 7",
            "--order 7: the longest sentence has 6 units with <s> and </s>; use 6 or less",
        ),
        (
            "--text one --order 4",
            "--order 4: the longest sentence has 3 units with <s> and </s>; use 3 or less",
        ),
        (
            "--text one --order 3",
            "1-grams: the discounts cannot be estimated (no 1-gram has the adjusted count 2); give "
            "--discount_fallback or more text",
        ),
        (
            "--text t --order 1",
            "1-grams: the discounts cannot be estimated (D2 is -1.60, below 0); give --discount_fallback or more text",
        ),
        ("--text none", "none: cannot be read (No such file or directory); check the path"),
        ("--text empty", "empty: contains no sentences; write one per line"),
        ("--data_list empty.list", "empty.list: all transcripts are empty; give text"),
        (
            "--text cut.xz",
            "cut.xz: not a complete .xz file (Compressed file ended ",
        ),
        (
            "--text begin",
            "begin:2: '<s>' cannot be a unit of an n-gram model; remove it from the text",
        ),
        (
            "--text end",
            "end:1: '</s>' cannot be a unit of an n-gram model; remove it from the text",
        ),
        (
            "--text unk",
            "unk:1: '<UNK>' cannot be a unit of an n-gram model; remove it from the text",
        ),
        (
            "--data_list tab.list",
            r"utterance t: '\t' cannot be a unit of an n-gram model; remove it from the text",
        ),
        (
            "--text t --out lm.arpa.gz",
            "--out lm.arpa.gz: the file is not compressed; leave out .gz",
        ),
        (
            "--text t --tokenizer bpe",
            "--bpe_model: tokenizer bpe without a model; name the sentencepiece file",
        ),
        (
            "--text t --order 1 --discount_fallback --out t/lm.arpa",
            "t: File exists; check the path, its perm",
        ),
    ],
)
def test_a_fault_is_one_line(folder: Path, flags: str, message: str, capsys: Capsys) -> None:
    # The counts of `t` with </s>: 3 units occur once, 1 twice, 2 three times. Y = 3 / (3 + 2), D2 =
    # 2 - 3Y · 2/1.
    texts = {
        "t": "",
        "one": "a\n",
        "empty": "\n \n",
        "begin": "a b\nc <s> d\n",
        "end": "a </s>\n",
        "unk": "<UNK>\n",
    }
    texts["t"] = "a b c c\nd d d\ne\n"
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "cut.xz").write_bytes(lzma.compress(b"a b c\n" * 20)[:-20])
    write_data_list("empty.list", [Utterance(key="e", wav="x", txt="")])
    write_data_list("tab.list", [Utterance(key="t", wav="x", txt="a\tb")])
    assert error_line(call(flags), capsys).startswith(message)
    assert not Path("out").exists()


def test_units_of_several_characters_are_those_of_the_recogniser() -> None:
    Path("text").write_text("a <noise> a\na b\n", "utf-8")
    UnitTable.from_units(["a", "b", "▁", "<noise>"]).write(Path("units.txt"))
    flags = "--text text --tokenizer char --order 2 --discount_fallback"
    for more, units in (("", [*"a▁<noise>b"]), (" --units units.txt", ["a", "▁", "<noise>", "b"])):
        assert call(flags + more) == 0
        assert {*units_of_model()} == {*units}
