# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs tree build | import | export`; `tree show` is tested in test_bin_tree_show.py."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import Capsys, error_line

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


def pairs_of(tree: Tree) -> set[frozenset[int]]:
    """The two children of each inner node: units are their ids, inner nodes are negative."""
    return {frozenset(pair) for pair in (tree.children - len(tree.children)).tolist()}


def test_build_writes_the_tree_and_one_line(corpus: Path, capsys: Capsys) -> None:
    assert build(corpus, "--kind", "huffman") == 0
    tree = Tree.load(corpus / "tree.json")
    assert tree.units == ("<blank>", "<unk>", "<sos/eos>", "a", "b", "c", "▁")
    assert tree.frequencies.tolist() == [0, 0, 3, 3, 2, 1, 1]
    source = {"weighting": "pooled", "tokenizer": "char", "data_list": str(corpus / "data.list"), "num_utterances": 3}
    assert tree.options == source
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "huffman tree of 7 units | depth 5 | mean code length 2.300 bits | entropy 2.171 bits" in out


def test_weighting_and_tokenizer(corpus: Path) -> None:
    assert build(corpus, "--weighting", "per_language", "--tokenizer", "phone") == 0
    tree = Tree.load(corpus / "tree.json")
    # phones: "aab" is not in the table; ca: <unk>, a, eos of 3; es: b, c and two eos of 4
    assert tree.frequencies.tolist() == pytest.approx([0, 1 / 3, 1 / 3 + 1 / 2, 1 / 3, 1 / 4, 1 / 4, 0])
    assert tree.options["weighting"] == "per_language"


def test_words_of_text(corpus: Path, capsys: Capsys) -> None:
    for name, text in (("1.txt", "a b a\n"), ("2.txt", "b\n\nc a d\n")):
        (corpus / name).write_text(text, "utf-8")
    files = ["--units", f"{corpus}/units.txt", "--text", f"{corpus}/1.txt", f"{corpus}/2.txt"]
    line = ["build", "--tokenizer", "word", *files, "--out", f"{corpus}/tree.json"]
    assert run_command(command, line) == 0
    tree = Tree.load(corpus / "tree.json")
    assert tree.frequencies.tolist() == [0, 1, 3, 3, 2, 1, 0]
    text = f"{corpus}/1.txt {corpus}/2.txt"
    assert tree.options == {"weighting": "pooled", "tokenizer": "word", "text": text, "num_utterances": 3}
    found = error_line(run_command(command, [*line, "--weighting", "per_language"]), capsys)
    assert "--weighting per_language: --text has no languages; use --data_list" in found


@pytest.mark.parametrize(
    ("flags", "recorded"),
    [
        (["--kind", "huffman", "--max_depth", "3"], {"max_depth": 3}),
        (["--kind", "random", "--seed", "7"], {"seed": 7}),
        pytest.param(["--kind", "brown"], {}, marks=pytest.mark.slow),  # compiles a kernel
        (["--kind", "huffman", "--blank_share", "0.5"], {"blank_share": 0.5}),
        (["--kind", "classes", "--by", "frequency"], {"by": "frequency", "num_classes": 3}),
        (["--kind", "classes", "--by", "top-of", "fano"], {"by": "top-of fano", "from": "fano", "num_classes": 3}),
        (["--kind", "classes", "--by", "top-of random"], {"by": "top-of random", "seed": 0}),
    ],
)
def test_kinds_and_their_options(corpus: Path, flags: list[str], recorded: dict[str, object]) -> None:
    assert build(corpus, *flags) == 0
    tree = load_tree(corpus / "tree.json")
    assert (tree.kind, tree.num_units) == (flags[1], 7)
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
    assert frozenset({tree.units.index("b"), tree.units.index("c")}) in pairs_of(tree)  # two stops beside one vowel
    assert tree.options["tokenizer"] == "phone"


def test_a_tree_of_embeddings_from_a_file(corpus: Path) -> None:
    vectors = {"a": (1, 0.1), "b": (0, 1), "c": (-1, 0.1), "▁": (1, 0), "<sos/eos>": (-1, 0)}
    lines = [f"{unit} {x} {y}\n" for unit, (x, y) in vectors.items()]
    (corpus / "vectors.txt").write_text(f"{len(lines)} 2\n" + "".join(lines), "utf-8")
    assert build(corpus, "--kind", "embedding", "--embeddings", f"{corpus}/vectors.txt") == 0
    tree = Tree.load(corpus / "tree.json")
    assert frozenset({tree.units.index("a"), tree.units.index("▁")}) in pairs_of(tree)
    # <blank> and <unk>, which never occur, are beside c, the least frequent unit.
    assert tree.codes()[tree.units.index("c")][:-2] == tree.codes()[tree.units.index("<sos/eos>")][:-1]
    assert tree.options["embeddings"] == f"{corpus}/vectors.txt"


def test_trained_embeddings_are_saved_and_read_again(corpus: Path) -> None:
    pytest.importorskip("gensim")
    file = corpus / "vectors.txt"
    assert build(corpus, "--kind", "embedding", "--seed", "3", "--save_embeddings", str(file)) == 0
    trained = Tree.load(corpus / "tree.json")
    assert (trained.kind, trained.options["seed"]) == ("embedding", 3)
    lines = file.read_text("utf-8").splitlines()
    assert [line.split(" ")[0] for line in lines] == ["5", "<sos/eos>", "a", "b", "c", "▁"]
    assert build(corpus, "--kind", "embedding", "--embeddings", str(file)) == 0
    assert (Tree.load(corpus / "tree.json").children == trained.children).all()


def test_a_tree_of_the_output_rows_of_a_trained_model(corpus: Path, capsys: Capsys) -> None:
    model = corpus / "exp"
    (model / "checkpoints").mkdir(parents=True)
    rows = torch.tensor([[0.0, 1], [0, 1.1], [5, 0.1], [-1, 0], [-1, 0.1], [0.1, -1], [4, 0]])
    torch.save({"head.output.weight": rows, "head.output.bias": torch.zeros(7)}, model / "final.pt")
    torch.save({"decoder.output_layer.weight": rows}, model / "checkpoints" / "step_4.pt")
    for name in ("exp", "exp/final.pt", "exp/checkpoints/step_4.pt"):
        assert build(corpus, "--kind", "embedding", "--checkpoint", f"{corpus}/{name}") == 0
        tree = Tree.load(corpus / "tree.json")
        assert tree.options["checkpoint"] == f"{corpus}/{name}"
        assert {frozenset({0, 1}), frozenset({2, 6}), frozenset({3, 4})} <= pairs_of(tree)
    own = model / "units.txt"
    UnitTable.from_units("abcd").write(own)
    capsys.readouterr()
    for name in ("exp", "exp/checkpoints/step_4.pt"):
        found = error_line(build(corpus, "--kind", "embedding", "--checkpoint", f"{corpus}/{name}"), capsys)
        assert f"{own}: the model has other units than {corpus}/units.txt; use --units {own}" in found


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--kind fano --max_depth 3", "--max_depth: --kind fano does not use it, huffman does; leave it"),
        ("--blank_share 1", "--blank_share: must be greater than 0 and less than 1"),
        ("--bpe_model x.model", "--bpe_model: tokenizer char does not use it; add --tokenizer bpe"),
        ("--tokenizer bpe", "--bpe_model: tokenizer bpe without a model; name the sentencepiece file"),
        (
            "--kind embedding --embeddings x --save_embeddings y",
            "--save_embeddings: --embeddings gives the vectors, so",
        ),
        ("--save_embeddings y", "--save_embeddings: --kind huffman does not use it, embedding does; leave it out"),
        ("--kind embedding --embeddings none.txt", "none.txt: cannot be read"),
        ("--kind embedding --checkpoint none.pt", "none.pt: no such file; `wenet-hs train` writes"),
    ],
)
def test_a_flag_that_does_not_fit_is_one_line(corpus: Path, flags: str, message: str, capsys: Capsys) -> None:
    assert message in error_line(build(corpus, *flags.split()), capsys)
    assert not (corpus / "tree.json").exists()


# ---- import and export


def import_tree(folder: Path, *flags: str | Path) -> int:
    files = ["--units", f"{folder}/units.txt", "--out", f"{folder}/back.json"]
    return run_command(command, ["import", *map(str, flags), *files])


def test_a_tree_folder_of_the_original_implementation(corpus: Path, capsys: Capsys) -> None:
    tree = Tree.huffman([1.0, 2, 3, 4, 5, 6, 7], units=UnitTable.read(corpus / "units.txt").units)
    tree.save(corpus / "tree.json")
    assert run_command(command, ["export", f"{corpus}/tree.json", "--original", f"{corpus}/their"]) == 0
    assert capsys.readouterr().out == f"{corpus / 'their'}: tree of 7 units, depth {tree.depth}\n"
    assert import_tree(corpus, "--original", corpus / "their") == 0
    assert capsys.readouterr().out.startswith(f"{corpus / 'back.json'}: original tree of 7 units | depth {tree.depth}")
    back = Tree.load(corpus / "back.json")
    assert (back.units, back.codes(), back.frequencies.tolist()) == (tree.units, tree.codes(), [1, 2, 3, 4, 5, 6, 7])
    assert back.options == {"source": "hsoftmax original", "folder": str(corpus / "their")}


def test_import_of_a_gensim_model(corpus: Path, capsys: Capsys) -> None:
    models = pytest.importorskip("gensim.models")
    words = np.random.default_rng(0).choice(list("abcx"), size=(50, 5)).tolist()
    model = models.Word2Vec(words, vector_size=4, hs=1, negative=0, min_count=1, epochs=1, workers=1)
    model.save(str(corpus / "w2v"))
    assert "add --trust_pickle" in error_line(import_tree(corpus, "--gensim", corpus / "w2v"), capsys)
    found = error_line(import_tree(corpus, "--gensim", corpus / "w2v", "--trust_pickle"), capsys)
    missing = "4 of 7 are not words of this model (<blank>, <unk>, <sos/eos>, ▁); --add_missing"
    assert found.startswith(f"{corpus / 'w2v'}: units: {missing}")
    assert import_tree(corpus, "--gensim", corpus / "w2v", "--trust_pickle", "--add_missing") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{corpus / 'w2v'}: 1 of 4 words are not units and were left out"
    assert out[1].startswith(f"{corpus / 'back.json'}: gensim tree of 7 units | depth ")
    tree = Tree.load(corpus / "back.json")
    assert [code[0] for code in tree.codes()] == ["1", "1", "1", "0", "0", "0", "1"]
    assert tree.frequencies[3:6].sum() == 250 - sum(row.count("x") for row in words)


def test_a_fault_of_import_is_one_line(corpus: Path, capsys: Capsys) -> None:
    found = error_line(import_tree(corpus, "--original", corpus), capsys)
    assert found.startswith(f"{corpus / 'tree_struct'}: cannot be read")
    found = error_line(import_tree(corpus, "--original", corpus, "--add_missing"), capsys)
    assert found == "--add_missing: belongs to --gensim; leave it out with --original"
    (corpus / "tree.json").write_text(json.dumps({"format": "other"}), "utf-8")
    found = error_line(run_command(command, ["export", f"{corpus}/tree.json", "--original", "their"]), capsys)
    assert "tree.json: format: Input should be 'wenet_hs.tree/1', found 'other'; build" in found
    with pytest.raises(SystemExit, match="2"):
        import_tree(corpus)
    assert "one of the arguments --original --gensim is required" in capsys.readouterr().err
