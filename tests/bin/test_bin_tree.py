# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs tree build | show` from files to files."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from wenet_hs.bin import tree as command
from wenet_hs.bin.command import run_command
from wenet_hs.manifest import Utterance, write_data_list
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import Tree


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    UnitTable.from_units("abc▁").write(tmp_path / "units.txt")
    texts = [("ca", "aab a"), ("es", "b"), ("es", "c")]
    utterances = [Utterance(key=f"u{i}", wav="x.wav", txt=txt, lang=lang) for i, (lang, txt) in enumerate(texts)]
    write_data_list(tmp_path / "data.list", utterances)
    return tmp_path


def build(folder: Path, *flags: str) -> int:
    files = ["--units", f"{folder}/units.txt", "--data_list", f"{folder}/data.list", "--out", f"{folder}/tree.json"]
    return run_command(command, ["build", *files, *flags])


def test_build_writes_the_tree_and_one_line(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build(corpus, "--kind", "huffman") == 0
    tree = Tree.load(corpus / "tree.json")
    assert tree.units == ("<blank>", "<unk>", "<sos/eos>", "a", "b", "c", "▁")
    assert tree.frequencies.tolist() == [0, 0, 3, 3, 2, 1, 1]
    assert tree.options == {"weighting": "pooled", "data_list": str(corpus / "data.list"), "num_utterances": 3}
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "huffman tree of 7 units | depth 5 | mean code length 2.300 bits | entropy 2.171 bits" in out


def test_weighting_and_tokenizer_are_heard(corpus: Path) -> None:
    assert build(corpus, "--weighting", "per_language", "--tokenizer", "phone") == 0
    tree = Tree.load(corpus / "tree.json")
    # phones: "aab" is not in the table; ca: <unk>, a, eos of 3; es: b, c and two eos of 4
    assert tree.frequencies.tolist() == pytest.approx([0, 1 / 3, 1 / 3 + 1 / 2, 1 / 3, 1 / 4, 1 / 4, 0])
    assert tree.options["weighting"] == "per_language"


def test_show_prints_units_and_draws(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(corpus)
    capsys.readouterr()
    assert run_command(command, ["show", f"{corpus}/tree.json", "--svg", f"{corpus}/tree.svg"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("huffman tree of 7 units | depth 5")
    assert "  weighting: pooled" in lines
    units = [line.split() for line in lines if "%" in line]
    assert units[0] == ["<sos/eos>", "30.00", "%", Tree.load(corpus / "tree.json").codes()[2]]
    assert [unit[0] for unit in units[:3]] == ["<sos/eos>", "a", "b"]
    ElementTree.parse(corpus / "tree.svg")


def test_show_stops_after_twenty_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Tree.huffman(range(100)).save(tmp_path / "tree.json")
    assert run_command(command, ["show", f"{tmp_path}/tree.json"]) == 0
    assert capsys.readouterr().out.count("%") == 20


def test_a_users_fault_is_one_line_and_exit_code_2(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (corpus / "tree.json").write_text(json.dumps({"format": "other"}), "utf-8")
    assert run_command(command, ["show", f"{corpus}/tree.json"]) == 2
    assert 'tree.json: format is "other", expected "wenet_hs.tree/1"' in capsys.readouterr().err
    assert build(corpus, "--tokenizer", "bpe") == 2
    assert "bpe without a model" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--kind", "balanced"], ["--weighting", "even"], ["--surplus", "1"]])
def test_unknown_choices_are_refused(corpus: Path, flags: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        build(corpus, *flags)
    assert stop.value.code == 2


@pytest.mark.parametrize("action", [[], ["build"], ["show"]])
def test_help_opens_with_an_example(action: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command(command, [*action, "--help"])
    assert "Example: wenet-hs tree" in capsys.readouterr().out
