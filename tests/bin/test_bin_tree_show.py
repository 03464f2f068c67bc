# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs tree show`: figures, drawings, the table by language, and one line per wrong flag."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from command_line import Capsys, error_line

from wenet_hs.bin import tree as command
from wenet_hs.bin.main import run_command
from wenet_hs.bin.tree import figures
from wenet_hs.manifest import Utterance, write_data_list
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import NaryTree, Tree

LIST = ["--data_list", "data.list", "--units", "units.txt"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree over <blank> <unk> <sos/eos> a b c with the code lengths 5 5 1 2 3 4, and two languages."""
    monkeypatch.chdir(tmp_path)
    table = UnitTable.from_units("abc")
    table.write("units.txt")
    texts = [("ca", "aaa"), ("es", "bb"), ("es", "cc")]
    utterances = [Utterance(key=f"u{i}", wav="x.wav", txt=txt, lang=lang) for i, (lang, txt) in enumerate(texts)]
    write_data_list("data.list", utterances)
    Tree.huffman([0, 0, 8, 4, 2, 1], table.units, {"tokenizer": "char"}).save("tree.json")
    return tmp_path


def show(*flags: str) -> int:
    return run_command(command, ["show", "tree.json", *flags])


def test_redundancy_is_the_code_length_above_the_entropy() -> None:
    assert figures(Tree.huffman([3, 1])) == (
        "huffman tree of 2 units | depth 1 | mean code length 1.000 bits | entropy 0.811 bits | "
        "redundancy 0.189 bits (18.9 %)"
    )
    assert figures(Tree.huffman([1])).endswith("redundancy 0.000 bits")
    for size in range(1, 40):  # sums of logarithms are not exact
        assert "-0.0" not in figures(Tree.huffman([2.0**-n for n in range(size)]))


def test_figures_options_and_the_most_frequent_units(folder: Path, capsys: Capsys) -> None:
    record = json.loads((folder / "tree.json").read_text("utf-8"))
    record["options"] = {"a\nb": "\x1b[2J▁", "list": [1, "é"], "long": "x" * 1000}
    (folder / "tree.json").write_text(json.dumps(record), "utf-8")
    assert show() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("huffman tree of 6 units | depth 5 | ")
    assert lines[1:4] == ["  a\\nb: \\x1b[2J▁", '  list: [1, "é"]', f"  long: {'x' * 200}…"], "no control characters"
    assert [line.split()[0] for line in lines[4:8]] == ["<sos/eos>", "a", "b", "c"]
    assert lines[4].split()[1:] == ["53.33", "%", Tree.load(folder / "tree.json").codes()[2]]


def test_a_table_by_language(capsys: Capsys) -> None:
    assert show(*LIST) == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "language  units  entropy  own tree  this tree          excess",
        "ca            4    0.811     1.000      1.750  0.939 (53.6 %)",
        "es            6    1.585     1.667      2.667  1.082 (40.6 %)",
        "(all)        10    1.971     2.000      2.300  0.329 (14.3 %)",
    ]


def test_every_drawing_is_written(folder: Path, capsys: Capsys) -> None:
    flags = [part for kind in ("svg", "png", "html") for part in (f"--{kind}", f"out/tree.{kind}")]
    assert show(*flags, *LIST) == 0
    ElementTree.parse(folder / "out" / "tree.svg")
    assert (folder / "out" / "tree.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "out" / "tree.html").read_text("utf-8")
    assert '<th scope="row">es</th>' in page and "<li>depth 5</li>" in page
    out = capsys.readouterr().out
    assert out.count(": drawn") == 2 and "tree.html: written; open it in a browser" in out


def test_an_nary_tree_and_a_deep_one_whose_codes_are_cut(capsys: Capsys) -> None:
    NaryTree.from_rows([[1, 2, 3], [4, 5, 6]], [1, 2, 3, 6, 8], units=list("abcde")).save("tree.json")
    assert show("--svg", "tree.svg", "--html", "tree.html") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("classes tree of 5 units | depth 2 | mean code length 2.932 bits")
    assert lines[1] == "e   40.00 %  0.2"
    ElementTree.parse("tree.svg")
    Tree.huffman([1e-30] * 2 + [2.0**-i for i in range(90)]).save("tree.json")
    assert show() == 0
    assert max(map(len, capsys.readouterr().out.splitlines()[1:])) <= 80


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data_list", "data.list"], "--data_list: needs --units as well; name the units.txt"),
        (["--units", "units.txt"], "--units: is used with --data_list only; add --data_list, or leave --units out"),
        (["--tokenizer", "char"], "--tokenizer: is used with --data_list only"),
        (["--bpe_model", "x.model"], "--bpe_model: is used with --data_list only"),
        ([*LIST, "--tokenizer", "bpe"], "--bpe_model: tokenizer bpe without a model; name the sentencepiece file"),
        ([*LIST, "--bpe_model", "x.model"], "--bpe_model: tokenizer char does not use it; add --tokenizer bpe, or"),
        (["--max_leaves", "8"], "--max_leaves: is used with --svg and --png only; add one of them"),
        (["--max_leaves", "0", "--svg", "x.svg"], "--max_leaves 0: must be at least 1"),
        (["--data_list", "none.list", "--units", "units.txt"], "none.list: cannot be read"),
        ([*LIST, "--units", "abd.txt"], "abd.txt: not the units of tree.json (unit 5 is 'd' against 'c'); name the"),
        ([*LIST, "--units", "abcd.txt"], "abcd.txt: not the units of tree.json (7 units against 6); name the units"),
    ],
)
def test_a_fault_is_one_line(flags: list[str], message: str, capsys: Capsys) -> None:
    for units in ("abd", "abcd"):
        UnitTable.from_units(units).write(f"{units}.txt")
    assert message in error_line(show(*flags), capsys)


@pytest.mark.parametrize(("recorded", "code"), [("char", 0), ("no such", 0), (7, 0), ("phone", 2)])
def test_the_tokenizer_of_the_tree_is_the_default(folder: Path, recorded: object, code: int, capsys: Capsys) -> None:
    record = json.loads((folder / "tree.json").read_text("utf-8"))
    (folder / "tree.json").write_text(json.dumps({**record, "options": {"tokenizer": recorded}}), "utf-8")
    assert show(*LIST) == code
    captured = capsys.readouterr()
    if code == 0:
        assert captured.out.splitlines()[-1].split()[1] == "10"
    else:  # "aaa" is one phone
        assert "of the transcripts are not in the unit table" in captured.err
