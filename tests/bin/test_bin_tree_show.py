# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs tree show`: figures, drawings, the table by language, and one line for each wrong flag."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from wenet_hs.bin import tree as command
from wenet_hs.bin.command import run_command
from wenet_hs.bin.tree import figures
from wenet_hs.manifest import Utterance, write_data_list
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import NaryTree, Tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tree over <blank> <unk> <sos/eos> a b c with the code lengths 5 5 1 2 3 4, and two languages."""
    table = UnitTable.from_units("abc")
    table.write(tmp_path / "units.txt")
    texts = [("ca", "aaa"), ("es", "bb"), ("es", "cc")]
    write_data_list(
        tmp_path / "data.list",
        [Utterance(key=f"u{i}", wav="x.wav", txt=txt, lang=lang) for i, (lang, txt) in enumerate(texts)],
    )
    Tree.huffman([0, 0, 8, 4, 2, 1], table.units, {"tokenizer": "char"}).save(tmp_path / "tree.json")
    return tmp_path


def show(folder: Path, *flags: str) -> int:
    return run_command(command, ["show", f"{folder}/tree.json", *flags])


def test_redundancy_is_what_the_code_has_above_the_entropy() -> None:
    assert figures(Tree.huffman([3, 1])) == (
        "huffman tree of 2 units | depth 1 | mean code length 1.000 bits | entropy 0.811 bits | "
        "redundancy 0.189 bits (18.9 %)"
    )
    assert figures(Tree.huffman([1])).endswith("redundancy 0.000 bits")
    for size in range(1, 200):  # sums of logarithms are not exact
        assert "-0.0" not in figures(
            Tree.huffman([0.1] * 2 ** (size % 8) if size < 9 else [2.0**-n for n in range(size)])
        )


def test_what_a_file_records_cannot_speak_to_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads((folder / "tree.json").read_text("utf-8"))
    record["options"] = {"a\nb": "\x1b[2J▁", "list": [1, "é"], "long": "x" * 1000}
    (folder / "tree.json").write_text(json.dumps(record), "utf-8")
    assert show(folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:4] == ["  a\\nb: \\x1b[2J▁", '  list: [1, "é"]', f"  long: {'x' * 200}…"]


def test_a_table_by_language(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(folder, "--data_list", f"{folder}/data.list", "--units", f"{folder}/units.txt") == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "language  units  entropy  own tree  this tree          excess",
        "ca            4    0.811     1.000      1.750  0.939 (53.6 %)",
        "es            6    1.585     1.667      2.667  1.082 (40.6 %)",
        "(all)        10    1.971     2.000      2.300  0.329 (14.3 %)",
    ]


def test_every_drawing_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [part for kind in ("svg", "png", "html") for part in (f"--{kind}", f"{folder}/out/tree.{kind}")]
    assert show(folder, *flags, "--data_list", f"{folder}/data.list", "--units", f"{folder}/units.txt") == 0
    ElementTree.parse(folder / "out" / "tree.svg")
    assert (folder / "out" / "tree.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "out" / "tree.html").read_text("utf-8")
    assert '<th scope="row">es</th>' in page and "<li>depth 5</li>" in page
    out = capsys.readouterr().out
    assert out.count(": drawn") == 2 and "tree.html: written; open it in a browser" in out


def test_an_nary_tree_is_shown_with_its_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    NaryTree.from_rows([[1, 2, 3], [4, 5, 6]], [1, 2, 3, 6, 8], units=list("abcde")).save(tmp_path / "tree.json")
    assert show(tmp_path, "--svg", f"{tmp_path}/tree.svg", "--html", f"{tmp_path}/tree.html") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("classes tree of 5 units | depth 2 | mean code length 2.932 bits")
    assert lines[1] == "e   40.00 %  0.2"
    ElementTree.parse(tmp_path / "tree.svg")


def test_a_deep_code_is_cut_on_the_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Tree.huffman([1e-30] * 2 + [2.0**-i for i in range(90)]).save(tmp_path / "tree.json")
    assert show(tmp_path) == 0
    assert max(map(len, capsys.readouterr().out.splitlines()[1:])) <= 80


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data_list", "data.list"], "--data_list: needs --units as well; name the units.txt"),
        (["--units", "units.txt"], "--units: is used with --data_list only; add --data_list, or leave --units out"),
        (["--tokenizer", "char"], "--tokenizer: is used with --data_list only"),
        (["--bpe_model", "x.model"], "--bpe_model: is used with --data_list only"),
        (
            ["--data_list", "data.list", "--units", "units.txt", "--tokenizer", "bpe"],
            "--bpe_model: tokenizer bpe without a model; name the sentencepiece file",
        ),
        (
            ["--data_list", "data.list", "--units", "units.txt", "--bpe_model", "x.model"],
            "--bpe_model: tokenizer char does not use it; add --tokenizer bpe, or leave it out",
        ),
        (["--max_leaves", "8"], "--max_leaves: is used with --svg and --png only; add one of them"),
        (["--max_leaves", "0", "--svg", "x.svg"], "--max_leaves 0: must be at least 1"),
        (["--data_list", "none.list", "--units", "units.txt"], "none.list: cannot be read"),
    ],
)
def test_wrong_flags_are_one_line(
    folder: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert show(folder, *flags) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ("abd", "not the units of {tree} (unit 5 is 'd' against 'c'); name the units.txt of this tree"),
        ("abcd", "not the units of {tree} (7 units against 6); name the units.txt of this tree"),
    ],
)
def test_units_of_another_tree_are_refused(
    folder: Path, units: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    UnitTable.from_units(units).write(folder / "other.txt")
    assert show(folder, "--data_list", f"{folder}/data.list", "--units", f"{folder}/other.txt") == 2
    assert f"{folder}/other.txt: " + message.format(tree=folder / "tree.json") in capsys.readouterr().err


@pytest.mark.parametrize("recorded", ["char", "no such", 7])
def test_the_tokenizer_of_the_tree_is_the_default(
    folder: Path, recorded: object, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((folder / "tree.json").read_text("utf-8"))
    (folder / "tree.json").write_text(json.dumps({**record, "options": {"tokenizer": recorded}}), "utf-8")
    assert show(folder, "--data_list", f"{folder}/data.list", "--units", f"{folder}/units.txt") == 0
    both = capsys.readouterr().out.splitlines()[-1].split()
    assert both[1] == "10"
    (folder / "tree.json").write_text(json.dumps({**record, "options": {"tokenizer": "phone"}}), "utf-8")
    assert show(folder, "--data_list", f"{folder}/data.list", "--units", f"{folder}/units.txt") == 2
    assert "of the transcripts are not in the unit table" in capsys.readouterr().err  # "aaa" is one phone
