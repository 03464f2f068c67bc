# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs tree import | export` from files to files."""

from pathlib import Path

import numpy as np
import pytest

from wenet_hs.bin import tree as command
from wenet_hs.bin.command import run_command
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import Tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table = UnitTable.from_units("abc")
    table.write(tmp_path / "units.txt")
    Tree.huffman([1.0, 2, 3, 4, 5, 6], units=table.units).save(tmp_path / "tree.json")
    return tmp_path


def run(*flags: str | Path) -> int:
    return run_command(command, [str(flag) for flag in flags])


def imported(folder: Path, *flags: str | Path) -> int:
    return run("import", *flags, "--units", folder / "units.txt", "--out", folder / "back.json")


def test_export_and_import_of_the_originals_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", folder / "tree.json", "--original", folder / "their") == 0
    assert capsys.readouterr().out == f"{folder / 'their'}: tree of 6 units, depth 4\n"
    assert imported(folder, "--original", folder / "their") == 0
    assert capsys.readouterr().out.startswith(f"{folder / 'back.json'}: original tree of 6 units | depth 4 | mean code")
    back, tree = Tree.load(folder / "back.json"), Tree.load(folder / "tree.json")
    assert (back.units, back.codes(), back.frequencies.tolist()) == (tree.units, tree.codes(), [1, 2, 3, 4, 5, 6])
    assert back.options == {"source": "hsoftmax original", "folder": str(folder / "their")}


def test_import_of_a_gensim_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = pytest.importorskip("gensim.models")
    words = np.random.default_rng(0).choice(list("abcx"), size=(50, 5)).tolist()
    model = models.Word2Vec(words, vector_size=4, hs=1, negative=0, min_count=1, epochs=1, workers=1)
    model.save(str(folder / "w2v"))
    assert imported(folder, "--gensim", folder / "w2v") == 2
    assert "add --trust_pickle" in capsys.readouterr().err
    assert imported(folder, "--gensim", folder / "w2v", "--trust_pickle") == 2
    expected = f"{folder / 'w2v'}: units: 3 of 6 are not words of this model (<blank>, <unk>, <sos/eos>); --add_missing"
    assert capsys.readouterr().err.startswith(expected)
    assert imported(folder, "--gensim", folder / "w2v", "--trust_pickle", "--add_missing") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{folder / 'w2v'}: 1 of 4 words are not units and were left out"
    assert out[1].startswith(f"{folder / 'back.json'}: gensim tree of 6 units | depth 3")
    tree = Tree.load(folder / "back.json")
    assert [code[0] for code in tree.codes()] == ["1", "1", "1", "0", "0", "0"]
    assert tree.frequencies[3:].sum() == 250 - sum(row.count("x") for row in words)


def test_faults_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert imported(folder, "--original", folder) == 2
    assert capsys.readouterr().err.startswith(f"{folder / 'tree_struct'}: cannot be read")
    assert imported(folder, "--original", folder, "--add_missing") == 2
    assert capsys.readouterr().err == "--add_missing: belongs to --gensim; leave it out with --original\n"
    with pytest.raises(SystemExit) as stop:
        imported(folder)
    assert stop.value.code == 2
    assert "one of the arguments --original --gensim is required" in capsys.readouterr().err
