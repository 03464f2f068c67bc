# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs units`: the tables of each kind, and one line per fault."""

from pathlib import Path

import pytest
from command_line import Capsys, error_line, run_line

from wenet_hs.bin import units as command
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sentences = ["la casa blanca", "la cosa roja", "una casa roja"] * 10
    write_data_list(
        "train.list", [Utterance(key=f"k{n}", wav="x", txt=txt) for n, txt in enumerate(sentences)]
    )
    write_data_list("phones.list", [Utterance(key="p", wav="x", txt="t͡ʃʰ a a\u0303 kʷ")])
    return tmp_path


BPE = "--data_list train.list --kind bpe --bpe_model m"


def call(line: str) -> int:
    return run_line(command, line)


def test_characters_and_phones_of_data_lists(folder: Path, capsys: Capsys) -> None:
    assert call("--data_list train.list --kind char --out units.txt") == 0
    lines = (folder / "units.txt").read_text("utf-8").split("\n")
    assert lines[:5] == ["<blank> 0", "<unk> 1", "<sos/eos> 2", "a 3", "b 4"]
    assert lines[-2:] == ["▁ 13", ""]
    assert capsys.readouterr().out == "units.txt: 14 units (11 of them text) from 30 transcripts\n"
    assert call("--data_list phones.list train.list --kind phone --out units.txt") == 0
    assert {"t͡ʃʰ", "ã", "kʷ", "blanca"} <= set(UnitTable.read(folder / "units.txt").units)


def test_units_that_a_new_table_does_not_have_are_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = "--data_list train.list --kind char --out units.txt"
    assert call(line) == 0
    with Path("units.txt").open("a", encoding="utf-8") as table:
        table.write("ca 14\nsa 15\n")
    assert not caplog.messages
    assert call(line) == 0
    assert caplog.messages == [
        "units.txt: the table before had 2 units that this one does not have: ca, sa"
    ]
    assert len(UnitTable.read("units.txt")) == 14
    caplog.clear()
    Path("units.txt").write_text("no table\n")
    assert call(line) == 0 and not caplog.messages


def test_words_of_two_texts_with_a_least_count(folder: Path, capsys: Capsys) -> None:
    (folder / "a.txt").write_text("la casa\tblanca\n\n  la rosa \r\n", "utf-8")
    (folder / "b.txt").write_text("la casa fe\u0301\n", "utf-8")
    assert call("--text a.txt b.txt --kind word --min_count 2 --out units.txt") == 0
    assert UnitTable.read(folder / "units.txt").units[3:] == ("casa", "la")
    assert capsys.readouterr().out == (
        "units.txt: 5 units (2 of them text) from 3 transcripts; "
        "3 units seen less than 2 times are left out (3 occurrences)\n"
    )
    assert call("--text a.txt b.txt --kind word --out units.txt") == 0
    assert UnitTable.read(folder / "units.txt").units[3:] == ("blanca", "casa", "fé", "la", "rosa")


def test_bpe_of_long_lines_uses_all_of_them(folder: Path, capsys: Capsys) -> None:
    (folder / "long.txt").write_text(f"la casa\n\n{'éèêëç' * 500}\n", "utf-8")
    assert call("--text long.txt --kind bpe --bpe_model m --vocab_size 16 --out u.txt") == 0
    assert (
        capsys.readouterr().out
        == "u.txt: 16 units (13 of them text) from 3 lines of 2 transcripts\n"
    )
    assert {*"éèêëç"} <= {*UnitTable.read(folder / "u.txt").units}


def test_bpe_is_the_same_each_time(folder: Path, capsys: Capsys) -> None:
    for name in ("a", "b"):
        assert call(f"{BPE} --vocab_size 20 --bpe_model {name}.model --out {name}.txt") == 0
    for kind in ("model", "txt"):
        assert (folder / f"a.{kind}").read_bytes() == (folder / f"b.{kind}").read_bytes()
    table = UnitTable.read(folder / "a.txt")
    assert len(table) == 3 + 20 - 3  # of sentencepiece's pieces, <unk>, <s> and </s> are no text
    assert "a.txt: 20 units (17 of them text)" in capsys.readouterr().out
    tokenizer = make_tokenizer("bpe", table, folder / "a.model")
    assert tokenizer.decode(tokenizer.encode("una cosa blanca")) == "una cosa blanca"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--data_list train.list --kind bpe --vocab_size 20",
            "--kind bpe: --vocab_size and --bpe_model belong to --k",
        ),
        (
            "--data_list train.list --kind char --vocab_size 20",
            "--kind char: --vocab_size and --bpe_model belong to ",
        ),
        (
            f"{BPE} --vocab_size 900",
            "--vocab_size 900: the transcripts give at most 55 pieces; use 55 or",
        ),
        (
            f"{BPE} --vocab_size 4",
            "--vocab_size 4: the characters of the transcripts are already 14",
        ),
        (f"{BPE} --vocab_size 0", "--vocab_size 0: must be above 0"),
        (
            f"{BPE} --vocab_size 20 --min_count 2",
            "--min_count: --kind bpe has a --vocab_size instead",
        ),
        ("--data_list train.list --kind char --min_count 0", "--min_count 0: must be at least 1"),
        ("--text empty.txt --kind word", "empty.txt: contains no sentences; write one per line"),
    ],
)
def test_a_fault_is_one_line(folder: Path, capsys: Capsys, options: str, message: str) -> None:
    (folder / "empty.txt").write_text("\n \n", "utf-8")
    assert error_line(call(f"{options} --out units.txt"), capsys).startswith(message)
    assert not (folder / "units.txt").exists()
