# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs tree build | show | import | export`: trees, printed figures, drawings, and one line
per fault.
"""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import Capsys, error_line, run_line

from wenet_hs.bin import tree as command
from wenet_hs.bin.tree import describe_tree
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import NaryTree, Tree, load_tree

UNITS = ("<blank>", "<unk>", "<sos/eos>", "a", "b", "c", "▁")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Units and texts to build a tree; a tree over <blank> <unk> <sos/eos> a b c with the code
    lengths 5 5 1 2 3 4.
    """
    monkeypatch.chdir(tmp_path)
    UnitTable.from_units("abc▁").write("units.txt")
    write_texts("data.list", ca=["aab a"], es=["b", "c"])
    for letters in ("abc", "abd", "abcd"):
        UnitTable.from_units(letters).write(f"{letters}.txt")
    write_texts("list", ca=["aaa"], es=["bb", "cc"])
    save_tree({"tokenizer": "char"})
    return tmp_path


def save_tree(options: dict[str, object]) -> None:
    units = UnitTable.read("abc.txt").units
    replace(Tree.huffman([0, 0, 8, 4, 2, 1], units), options=options).save("tree.json")


def write_texts(path: str, **texts: list[str]) -> None:
    """A data list of these texts by language."""
    pairs = enumerate((lang, text) for lang, of_lang in texts.items() for text in of_lang)
    write_data_list(
        path,
        [Utterance(key=f"u{i}", wav="x.wav", txt=text, lang=lang) for i, (lang, text) in pairs],
    )


def call(line: str) -> int:
    return run_line(command, line)


def build(flags: str) -> int:
    source = "" if "--text" in flags else "--data_list data.list"
    return call(f"build --units units.txt --out tree.json {source} {flags}")


def built(flags: str) -> Tree | NaryTree:
    assert build(flags) == 0
    return load_tree(Path("tree.json"))


def test_build_counts_the_units_of_lists_and_text(folder: Path, capsys: Capsys) -> None:
    tree = built("--kind huffman")
    assert tree.units == UNITS
    assert tree.frequencies.tolist() == [0, 0, 3, 3, 2, 1, 1]
    source = {
        "weighting": "pooled",
        "tokenizer": "char",
        "data_list": "data.list",
        "num_utterances": 3,
    }
    assert tree.options == source
    assert capsys.readouterr().out == f"tree.json: {describe_tree(tree)}\n"
    tree = built("--weighting per_language --tokenizer phone --units abc.txt")
    # phones: "aab" is not in the table; ca: <unk>, a, eos of 3; es: b, c and two eos of 4
    assert tree.frequencies.tolist() == pytest.approx(
        [0, 1 / 3, 1 / 3 + 1 / 2, 1 / 3, 1 / 4, 1 / 4]
    )
    assert tree.options["weighting"] == "per_language"
    (folder / "1.txt").write_text("a b a\n")
    (folder / "2.txt").write_text("b\n\nc a d\n")
    tree = built("--tokenizer word --text 1.txt 2.txt")
    assert tree.frequencies.tolist() == [0, 1, 3, 3, 2, 1, 0]
    assert tree.options == {
        "weighting": "pooled",
        "tokenizer": "word",
        "text": "1.txt 2.txt",
        "num_utterances": 3,
    }
    tree = built("--tokenizer word --text 1.txt 2.txt --keep_empty_lines")
    assert (
        tree.frequencies.tolist() == [0, 1, 4, 3, 2, 1, 0] and tree.options["num_utterances"] == 4
    )
    assert build("--tokenizer word --text data.list") == 2
    assert "data.list:1: JSON, not text; give a data.list as --data_list" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "recorded"),
    [
        ("--kind huffman --max_depth 3", {"max_depth": 3}),
        ("--kind random --seed 7", {"seed": 7}),
        pytest.param("--kind brown", {}, marks=pytest.mark.slow),  # compiles a kernel
        ("--kind huffman --blank_share 0.5", {"blank_share": 0.5}),
        ("--kind embedding --embeddings vectors.txt", {"embeddings": "vectors.txt"}),
        ("--kind classes --by frequency", {"by": "frequency", "num_classes": 3}),
        (
            "--kind classes --by top-of fano",
            {"by": "top-of fano", "from": "fano", "num_classes": 3},
        ),
        ("--kind classes --by 'top-of random'", {"by": "top-of random", "seed": 0}),
    ],
)
def test_kinds_and_their_options(folder: Path, flags: str, recorded: dict[str, object]) -> None:
    (folder / "vectors.txt").write_text(
        "5 2\na 1 0.1\nb 0 1\nc -1 0.1\n▁ 1 0\n<sos/eos> -1 0\n", "utf-8"
    )
    tree = built(flags)
    assert (tree.kind, tree.num_units) == (flags.split()[1], 7)
    assert recorded.items() <= tree.options.items()
    if "--blank_share" in flags:
        assert tree.frequencies[0] == 10
    before = (folder / "tree.json").read_bytes()
    assert build(flags) == 0
    assert (folder / "tree.json").read_bytes() == before


def test_trained_embeddings_are_saved_and_read_again(folder: Path) -> None:
    trained = built("--kind embedding --seed 3 --save_embeddings vectors.txt")
    assert (trained.kind, trained.options["seed"]) == ("embedding", 3)
    lines = (folder / "vectors.txt").read_text("utf-8").splitlines()
    assert [line.split(" ")[0] for line in lines] == ["5", "<sos/eos>", "a", "b", "c", "▁"]
    assert built("--kind embedding --embeddings vectors.txt").codes() == trained.codes()


def test_a_tree_of_the_output_rows_of_a_trained_model(folder: Path, capsys: Capsys) -> None:
    (folder / "exp/checkpoints").mkdir(parents=True)
    rows = torch.tensor([[0.0, 1], [0, 1.1], [5, 0.1], [-1, 0], [-1, 0.1], [0.1, -1], [4, 0]])
    torch.save({"head.output.weight": rows, "head.output.bias": torch.zeros(7)}, "exp/final.pt")
    torch.save({"decoder.output_layer.weight": rows}, "exp/checkpoints/step_4.pt")
    for name in ("exp", "exp/final.pt", "exp/checkpoints/step_4.pt"):
        tree = built(f"--kind embedding --checkpoint {name}")
        assert tree.options["checkpoint"] == name
        parents = [code[:-1] for code in tree.codes()]
        assert parents[0] == parents[1] and parents[2] == parents[6] and parents[3] == parents[4]
    UnitTable.from_units("abcd").write("exp/units.txt")
    capsys.readouterr()
    for name in ("exp", "exp/checkpoints/step_4.pt"):
        found = error_line(build(f"--kind embedding --checkpoint {name}"), capsys)
        assert (
            found
            == "exp/units.txt: the model has other units than units.txt; use --units exp/units.txt"
        )


# ---- import and export

IMPORT = "import --units units.txt --out back.json"


def test_a_tree_folder_of_the_original_implementation(capsys: Capsys) -> None:
    tree = Tree.huffman([1.0, 2, 3, 4, 5, 6, 7], units=UNITS)
    tree.save("tree.json")
    assert call("export tree.json --original their") == 0
    assert capsys.readouterr().out == f"their: tree of 7 units, depth {tree.depth}\n"
    assert call(f"{IMPORT} --original their") == 0
    assert capsys.readouterr().out.startswith(
        f"back.json: original tree of 7 units | depth {tree.depth}"
    )
    back = Tree.load("back.json")
    assert (back.units, back.codes(), back.frequencies.tolist()) == (
        tree.units,
        tree.codes(),
        [1, 2, 3, 4, 5, 6, 7],
    )
    assert back.options == {"source": "hsoftmax original", "folder": "their"}


NESTED = '[[["a", "b"], "c"], ["▁", "<sos/eos>", ["<blank>", "<unk>"]]]'


def test_nested_lists_of_any_arity_are_a_tree(capsys: Capsys) -> None:
    Path("nested.txt").write_text(NESTED)
    assert call(f"{IMPORT} --nested nested.txt") == 0
    assert capsys.readouterr().out.startswith(
        "back.json: nested tree of 7 units | depth 3 | mean code length"
    )
    tree = load_tree(Path("back.json"))
    assert isinstance(tree, NaryTree) and tree.units == UNITS
    assert tree.codes() == ["1.2.0", "1.2.1", "1.1", "0.0.0", "0.0.1", "0.1", "1.0"]
    Path("nested.txt").write_text(NESTED.replace('"▁", "<sos/eos>"', '["▁", "<sos/eos>"]'))
    assert call(f"{IMPORT} --nested nested.txt") == 0
    assert Tree.load("back.json").codes() == ["110", "111", "101", "000", "001", "01", "100"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (', "c"]', "]", 'the list [["a", "b"]] has one member; a list needs two or more'),
        ('["a", "b"]', "[]", "the list [] has no members; a list needs two or more"),
        (
            '"b"',
            '"b", "d", "é"',
            "units not in the unit table: d, é; remove them, or give the unit table that",
        ),
        ('"b"', '"b", "c"', "units in it more than once: c; keep one of each"),
        ('"b"', '"▁"', "units in it more than once: ▁; keep one of each"),
        ('"a", "b"', '"a", "c"', "units in it more than once: c; keep one of each"),
        (
            '["a", "b"]',
            '"a"',
            "units missing: b; add each once; <blank> and <unk> beside a rare unit, for example",
        ),
        ('"b"', "1", "1 is no list; write units in quotation marks"),
        ("]]]", "]]", "not JSON ("),
        (NESTED, "[" * 100_000, "not JSON ("),
        (NESTED, '{"a": 1}', '{"a": 1} is no list; write units in quotation marks'),
    ],
)
def test_nested_lists_that_are_no_tree_over_the_units(
    old: str, new: str, message: str, capsys: Capsys
) -> None:
    assert old in NESTED
    Path("nested.txt").write_text(NESTED.replace(old, new))
    assert f"nested.txt: {message}" in error_line(call(f"{IMPORT} --nested nested.txt"), capsys)
    assert not Path("back.json").exists()


# ---- show

LIST = "--data_list list --units abc.txt"


def show(flags: str) -> int:
    return call(f"show tree.json {flags}")


def test_redundancy_is_the_code_length_above_the_entropy() -> None:
    assert describe_tree(Tree.huffman([3, 1])) == (
        "huffman tree of 2 units | depth 1 | mean code length 1.000 bits | entropy 0.811 bits | "
        "redundancy 0.189 bits (18.9 %)"
    )
    assert describe_tree(Tree.huffman([1])).endswith("redundancy 0.000 bits")
    for size in range(1, 40):  # sums of logarithms are not exact
        assert "-0.0" not in describe_tree(Tree.huffman([2.0**-n for n in range(size)]))


def test_figures_options_the_most_frequent_units_a_table_by_language_and_drawings(
    capsys: Capsys,
) -> None:
    save_tree({"a\nb": "\x1b[2J▁", "list": [1, "é"], "long": "x" * 1000})
    assert show(f"--svg out/tree.svg --png out/tree.png --html out/tree.html {LIST}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("huffman tree of 6 units | depth 5 | ")
    assert lines[1:4] == ["  a\\nb: \\x1b[2J▁", '  list: [1, "é"]', f"  long: {'x' * 200}…"], (
        "no control characters"
    )
    assert [line.split()[0] for line in lines[4:8]] == ["<sos/eos>", "a", "b", "c"]
    assert lines[4].split()[1:] == ["53.33", "%", Tree.load("tree.json").codes()[2]]
    assert lines[-7:] == [
        "language  units  entropy  own tree  this tree          excess",
        "ca            4    0.811     1.000      1.750  0.939 (53.6 %)",
        "es            6    1.585     1.667      2.667  1.082 (40.6 %)",
        "(all)        10    1.971     2.000      2.300  0.329 (14.3 %)",
        *(
            "out/tree.svg: drawn",
            "out/tree.png: drawn",
            "out/tree.html: written; open it in a browser",
        ),
    ]
    ElementTree.parse("out/tree.svg")
    assert Path("out/tree.png").read_bytes().startswith(b"\x89PNG")
    page = Path("out/tree.html").read_text("utf-8")
    assert '<th scope="row">es</th>' in page and "<li>depth 5</li>" in page


def test_an_nary_tree_and_a_deep_one_whose_codes_are_cut(capsys: Capsys) -> None:
    NaryTree.from_rows([[1, 2, 3], [4, 5, 6]], [1, 2, 3, 6, 8], units=list("abcde")).save(
        "tree.json"
    )
    assert show("--svg tree.svg --html tree.html") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("classes tree of 5 units | depth 2 | mean code length 2.932 bits")
    assert lines[1] == "e   40.00 %  0.2"
    ElementTree.parse("tree.svg")
    Tree.huffman([1e-30] * 2 + [2.0**-i for i in range(90)]).save("tree.json")
    assert show("") == 0
    assert max(map(len, capsys.readouterr().out.splitlines()[1:])) <= 80


def test_the_tokenizer_of_the_tree_is_the_default(capsys: Capsys) -> None:
    save_tree({"tokenizer": "no such"})
    assert show(LIST) == 0
    save_tree({"tokenizer": "phone"})  # "aaa" is one phone
    assert "of the transcripts are not in the unit table" in error_line(show(LIST), capsys)


# ---- faults


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "build --kind fano --max_depth 3",
            "--max_depth: --kind fano does not use it, huffman does; leave it",
        ),
        ("build --blank_share 1", "--blank_share: must be greater than 0 and less than 1"),
        (
            "build --bpe_model x.model",
            "--bpe_model: tokenizer char does not use it; add --tokenizer bpe",
        ),
        (
            "build --tokenizer bpe",
            "--bpe_model: tokenizer bpe without a model; name the sentencepiece file",
        ),
        (
            "build --kind embedding --embeddings x --save_embeddings y",
            "--save_embeddings: --embeddings gives the",
        ),
        (
            "build --save_embeddings y",
            "--save_embeddings: --kind huffman does not use it, embedding does; leave it",
        ),
        ("build --kind embedding --embeddings none.txt", "none.txt: cannot be read"),
        (
            "build --kind embedding --checkpoint none.pt",
            "none.pt: no such file; `wenet-hs train` writes",
        ),
        (
            "build --keep_empty_lines",
            "--keep_empty_lines: has no effect with --data_list; leave it out",
        ),
        (
            "build --text x --weighting per_language",
            "--weighting per_language: --text has no languages; use --data",
        ),
        ("import --original .", "tree_struct: cannot be read"),
        (
            "export other.json --original their",
            "other.json: format: expected 'wenet_hs.tree/1', found 'other'",
        ),
        ("show --data_list list", "--data_list: needs --units as well; name the units.txt"),
        (
            "show --units units.txt",
            "--units: is used with --data_list only; add --data_list, or leave --units out",
        ),
        ("show --tokenizer char", "--tokenizer: is used with --data_list only"),
        ("show --bpe_model x.model", "--bpe_model: is used with --data_list only"),
        (
            f"show {LIST} --tokenizer bpe",
            "--bpe_model: tokenizer bpe without a model; name the sentencepiece file",
        ),
        ("show --max_leaves 8", "--max_leaves: is used with --svg and --png only; add one of them"),
        ("show --max_leaves 0 --svg x.svg", "--max_leaves 0: must be at least 1"),
        ("show --data_list none.list --units abc.txt", "none.list: cannot be read"),
        (
            "show --data_list list --units abd.txt",
            "abd.txt: not the units of tree.json (unit 5 is 'd' here and 'c' in the tree)",
        ),
        (
            "show --data_list list --units abcd.txt",
            "abcd.txt: not the units of tree.json (7 units here and 6 in the tree); give",
        ),
    ],
)
def test_a_fault_is_one_line(line: str, message: str, capsys: Capsys) -> None:
    Path("other.json").write_text('{"format": "other"}')
    before = Path("tree.json").read_bytes()
    action, flags = line.split(" ", 1)
    actions = {"build": build, "import": lambda flags: call(f"{IMPORT} {flags}"), "show": show}
    code = actions[action](flags) if action in actions else call(line)
    assert message in error_line(code, capsys)
    assert Path("tree.json").read_bytes() == before and not Path("back.json").exists()
