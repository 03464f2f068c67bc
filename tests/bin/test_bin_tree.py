# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs tree build | show` from files to files."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

from wenet_hs.bin import tree as command
from wenet_hs.bin.command import run_command
from wenet_hs.manifest import Utterance, write_data_list
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import Tree, load_tree


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
    source = {"weighting": "pooled", "tokenizer": "char", "data_list": str(corpus / "data.list"), "num_utterances": 3}
    assert tree.options == source
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "huffman tree of 7 units | depth 5 | mean code length 2.300 bits | entropy 2.171 bits" in out


def test_weighting_and_tokenizer_are_heard(corpus: Path) -> None:
    assert build(corpus, "--weighting", "per_language", "--tokenizer", "phone") == 0
    tree = Tree.load(corpus / "tree.json")
    # phones: "aab" is not in the table; ca: <unk>, a, eos of 3; es: b, c and two eos of 4
    assert tree.frequencies.tolist() == pytest.approx([0, 1 / 3, 1 / 3 + 1 / 2, 1 / 3, 1 / 4, 1 / 4, 0])
    assert tree.options["weighting"] == "per_language"


def test_words_of_text(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("1.txt", "a b a\n"), ("2.txt", "b\n\nc a d\n")):
        (corpus / name).write_text(text, "utf-8")
    files = ["--units", f"{corpus}/units.txt", "--text", f"{corpus}/1.txt", f"{corpus}/2.txt"]
    line = ["build", "--tokenizer", "word", *files, "--out", f"{corpus}/tree.json"]
    assert run_command(command, line) == 0
    tree = Tree.load(corpus / "tree.json")
    assert tree.frequencies.tolist() == [0, 1, 3, 3, 2, 1, 0]
    text = f"{corpus}/1.txt {corpus}/2.txt"
    assert tree.options == {"weighting": "pooled", "tokenizer": "word", "text": text, "num_utterances": 3}
    assert run_command(command, [*line, "--weighting", "per_language"]) == 2
    assert "--weighting per_language: --text has no languages; use --data_list" in capsys.readouterr().err


def test_show_prints_units_and_draws(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(corpus)
    capsys.readouterr()
    assert run_command(command, ["show", f"{corpus}/tree.json", "--svg", f"{corpus}/tree.svg"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("huffman tree of 7 units | depth 5")
    assert "  weighting: pooled" in lines
    units = [line.split() for line in lines[1:] if "%" in line]
    assert units[0] == ["<sos/eos>", "30.00", "%", Tree.load(corpus / "tree.json").codes()[2]]
    assert [unit[0] for unit in units[:3]] == ["<sos/eos>", "a", "b"]
    ElementTree.parse(corpus / "tree.svg")


def test_a_users_fault_is_one_line_and_exit_code_2(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (corpus / "tree.json").write_text(json.dumps({"format": "other"}), "utf-8")
    assert run_command(command, ["show", f"{corpus}/tree.json"]) == 2
    assert "tree.json: format: Input should be 'wenet_hs.tree/1', found 'other'; build" in capsys.readouterr().err
    assert build(corpus, "--tokenizer", "bpe") == 2
    assert "bpe without a model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "recorded"),
    [
        (["--kind", "huffman", "--max_depth", "3"], {"max_depth": 3}),
        (["--kind", "fano"], {}),
        (["--kind", "balanced"], {}),
        (["--kind", "alphabetical"], {}),
        (["--kind", "random", "--seed", "7"], {"seed": 7}),
        (["--kind", "brown"], {}),
        (["--kind", "huffman", "--blank_share", "0.5"], {"blank_share": 0.5}),
        (["--kind", "classes", "--num_classes", "2"], {"by": "frequency", "num_classes": 2}),
        (["--kind", "classes", "--by", "frequency"], {"by": "frequency", "num_classes": 3}),
        (["--kind", "classes", "--by", "top-of", "brown"], {"by": "top-of brown", "from": "brown", "num_classes": 3}),
        (["--kind", "classes", "--by", "top-of random"], {"by": "top-of random", "seed": 0}),
    ],
)
def test_every_kind_with_what_shaped_it(corpus: Path, flags: list[str], recorded: dict[str, object]) -> None:
    assert build(corpus, *flags) == 0
    tree = load_tree(corpus / "tree.json")
    assert tree.kind == flags[1]
    assert tree.num_units == 7
    assert recorded.items() <= tree.options.items()
    if "--blank_share" in flags:
        assert tree.frequencies[0] == 10
    before = (corpus / "tree.json").read_bytes()
    assert build(corpus, *flags) == 0
    assert (corpus / "tree.json").read_bytes() == before


def test_a_tree_of_phones_by_their_features(corpus: Path) -> None:
    pytest.importorskip("panphon")
    assert build(corpus, "--kind", "articulatory", "--tokenizer", "phone") == 0
    tree = Tree.load(corpus / "tree.json")
    below = {frozenset(pair) for pair in (tree.children - len(tree.children)).tolist()}
    assert frozenset({tree.units.index("b"), tree.units.index("c")}) in below  # two stops beside one vowel
    assert tree.options["tokenizer"] == "phone"


def test_a_tree_of_embeddings_from_a_file_and_trained(corpus: Path) -> None:
    vectors = {"a": (1, 0.1), "b": (0, 1), "c": (-1, 0.1), "▁": (1, 0), "<sos/eos>": (-1, 0)}
    lines = [f"{unit} {x} {y}\n" for unit, (x, y) in vectors.items()]
    (corpus / "vectors.txt").write_text(f"{len(lines)} 2\n" + "".join(lines), "utf-8")
    assert build(corpus, "--kind", "embedding", "--embeddings", f"{corpus}/vectors.txt") == 0
    tree = Tree.load(corpus / "tree.json")
    below = {frozenset(pair) for pair in (tree.children - len(tree.children)).tolist()}
    assert frozenset({tree.units.index("a"), tree.units.index("▁")}) in below
    # <blank> and <unk>, which never occur, stand beside c, the least frequent unit.
    assert tree.codes()[tree.units.index("c")][:-2] == tree.codes()[tree.units.index("<sos/eos>")][:-1]
    assert tree.options["embeddings"] == f"{corpus}/vectors.txt"
    pytest.importorskip("gensim")
    assert build(corpus, "--kind", "embedding", "--seed", "3") == 0
    trained = Tree.load(corpus / "tree.json")
    assert (trained.kind, trained.options["seed"]) == ("embedding", 3)


def test_trained_embeddings_are_saved_and_read_again(corpus: Path) -> None:
    pytest.importorskip("gensim")
    file = corpus / "vectors.txt"
    assert build(corpus, "--kind", "embedding", "--save_embeddings", str(file)) == 0
    trained = Tree.load(corpus / "tree.json")
    lines = file.read_text("utf-8").splitlines()
    assert lines[0] == "5 64"
    assert [line.split(" ")[0] for line in lines[1:]] == ["<sos/eos>", "a", "b", "c", "▁"]
    assert build(corpus, "--kind", "embedding", "--embeddings", str(file)) == 0
    assert (Tree.load(corpus / "tree.json").children == trained.children).all()
    assert build(corpus, "--kind", "classes", "--by", "top-of", "embedding", "--save_embeddings", f"{corpus}/2") == 0
    assert (corpus / "2").read_bytes() == file.read_bytes()


def test_a_tree_of_the_output_rows_of_a_trained_model(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = corpus / "exp"
    (model / "checkpoints").mkdir(parents=True)
    rows = torch.tensor([[0.0, 1], [0, 1.1], [5, 0.1], [-1, 0], [-1, 0.1], [0.1, -1], [4, 0]])
    torch.save({"head.output.weight": rows, "head.output.bias": torch.zeros(7)}, model / "final.pt")
    torch.save({"decoder.output_layer.weight": rows}, model / "checkpoints" / "step_4.pt")
    found = []
    for name in ("exp", "exp/final.pt", "exp/checkpoints/step_4.pt"):
        assert build(corpus, "--kind", "embedding", "--checkpoint", f"{corpus}/{name}") == 0
        found.append(Tree.load(corpus / "tree.json"))
        assert found[-1].options["checkpoint"] == f"{corpus}/{name}"
    assert (found[0].children == found[1].children).all() and (found[0].children == found[2].children).all()
    below = {frozenset(pair) for pair in (found[0].children - len(found[0].children)).tolist()}
    assert {frozenset({0, 1}), frozenset({2, 6}), frozenset({3, 4})} <= below
    UnitTable.from_units("abcd").write(model / "units.txt")
    capsys.readouterr()
    for name in ("exp", "exp/checkpoints/step_4.pt"):
        assert build(corpus, "--kind", "embedding", "--checkpoint", f"{corpus}/{name}") == 2
        own = model / "units.txt"
        assert f"{own}: the model has other units than {corpus}/units.txt; use --units {own}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--kind", "fano", "--max_depth", "3"], "--max_depth: --kind fano does not use it, huffman does; leave it"),
        (["--blank_share", "1"], "--blank_share: must be greater than 0 and less than 1"),
        (["--bpe_model", "x.model"], "--bpe_model: tokenizer char does not use it; add --tokenizer bpe"),
        (
            ["--kind", "embedding", "--embeddings", "x", "--save_embeddings", "y"],
            "--save_embeddings: --embeddings gives the vectors, so none are trained; leave --save_embeddings out",
        ),
        (["--save_embeddings", "y"], "--save_embeddings: --kind huffman does not use it, embedding does; leave it out"),
        (["--kind", "embedding", "--embeddings", "none.txt"], "none.txt: cannot be read"),
        (["--kind", "embedding", "--checkpoint", "none.pt"], "none.pt: no such file; `wenet-hs train` writes"),
    ],
)
def test_a_flag_that_does_not_fit_is_one_line(
    corpus: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(corpus, *flags) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (corpus / "tree.json").exists()


@pytest.mark.parametrize("action", [[], *([action] for action in command.ACTIONS)])
def test_help_opens_with_an_example(action: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command(command, [*action, "--help"])
    assert "Example: wenet-hs tree" in capsys.readouterr().out
