# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs embed`: from text to word vectors, to gensim and to an embedding tree; one line per
fault.
"""

import logging
import math
from pathlib import Path

import numpy as np
import pytest
from command_line import Capsys, error_line, run_line
from trees import units_below

from wenet_hs.bin import embed, tree, units
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import NaryTree, Tree, load_tree
from wenet_hs.tree_kinds.embedding import read_embeddings

CLASSES = ("the a", "cat dog cow", "she he", "runs sits eats")
WORDS = "--text text.txt --units words.txt --out vectors.txt"


@pytest.fixture(autouse=True)
def folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Path:
    """300 sentences, each with a word of each class in this order; and the unit table."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)
    rng = np.random.default_rng(0)
    drawn = [[rng.choice(words.split(" ")) for words in CLASSES] for _ in range(300)]
    (tmp_path / "text.txt").write_text("".join(" ".join(row) + "\n" for row in drawn))
    UnitTable.from_units(" ".join(CLASSES).split()).write("words.txt")
    return tmp_path


def call(line: str) -> int:
    return run_line(embed, line)


def test_from_text_to_an_embedding_tree(
    folder: Path, capsys: Capsys, caplog: pytest.LogCaptureFixture
) -> None:
    assert run_line(units, "--text text.txt --kind word --out words.txt") == 0
    # Skip-gram at window 1: of the 6 predictions of a sentence, 4 are of a word that is on one side
    # or on the other, log 2 more. CBOW always knows the class. A noun or a verb is one of 3 words,
    # the others are of 2.
    for arch, nats in (
        ("skipgram", (7 * math.log(2) + 3 * math.log(3)) / 6),
        ("cbow", math.log(6) / 2),
    ):
        capsys.readouterr()
        assert call(f"{WORDS} --arch {arch} --dim 16 --window 1 --epochs 20 --lr 0.1") == 0
        text, _, loss = capsys.readouterr().out.partition(" | ")
        assert (text, loss.partition(" ")[2]) == (
            "vectors.txt: 10 vectors of 16 numbers",
            "nats per prediction\n",
        )
        assert float(loss.split()[0]) == pytest.approx(nats, abs=0.02)
        assert f"epoch 20/20 | {loss.strip()} | " in caplog.text
        source = "--tokenizer word --text text.txt --units words.txt --embeddings vectors.txt"
        assert run_line(tree, f"build --kind embedding {source} --out tree.json") == 0
        found = load_tree(
            "tree.json"
        )  # the units 0 to 2 are special ones, below the least frequent word
        below = {
            frozenset(found.units[unit] for unit in ids - {0, 1, 2}) for ids in units_below(found)
        }
        assert {frozenset(words.split(" ")) for words in CLASSES} <= below
    assert "1200 words, 10 of them different, in 300 sentences" in caplog.messages
    vectors = pytest.importorskip("gensim.models").KeyedVectors.load_word2vec_format("vectors.txt")
    assert {name for name, _ in vectors.most_similar("cat", topn=2)} == {"dog", "cow"}


def test_without_units_the_words_are_those_of_the_text(folder: Path, capsys: Capsys) -> None:
    with (folder / "text.txt").open("a") as file:
        file.write("the rare cat\n")
    assert call("--text text.txt --dim 4 --epochs 1 --out vectors.txt") == 0
    assert "vectors.txt: 10 vectors" in capsys.readouterr().out, "a word seen once is left out"
    assert call("--text text.txt --min_count 1 --dim 4 --epochs 1 --out vectors.txt") == 0
    assert "vectors.txt: 11 vectors" in capsys.readouterr().out
    many = "--text text.txt --min_count 1000 --out vectors.txt"
    assert "text.txt: no word occurs 1000 times" in error_line(call(many), capsys)
    assert "--min_count: --units names the words" in error_line(
        call(f"{WORDS} --min_count 2"), capsys
    )


def test_heads_trees_and_tokenizers(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = UnitTable.read("words.txt").units
    Tree.balanced(np.ones(13), table).save("balanced.json")
    NaryTree.frequency_bins(np.ones(13), 3, units=table).save("classes.json")
    files = []
    for flags in (
        "",
        "--tree balanced.json",
        "--tree classes.json",
        "--head softmax",
        "--seed 1",
        "--sample 0.05",
    ):
        for _ in range(2):
            assert call(f"{WORDS} --dim 4 --epochs 1 {flags}") == 0
            files.append(Path("vectors.txt").read_bytes())
    assert files[::2] == files[1::2]  # the same seed gives the same bytes
    assert len(set(files)) == 6
    assert not any(record.levelno >= logging.WARNING for record in caplog.records)
    write_data_list(
        "list", [Utterance(key="a", wav="", txt="ab ba"), Utterance(key="b", wav="", txt="bc")]
    )
    UnitTable.from_units("abd▁").write("units.txt")
    assert (
        call("--data_list list --tokenizer char --units units.txt --dim 4 --out vectors.txt") == 0
    )
    assert (
        "list: 1 of 7 units of the text (14.29%) are not in units.txt and are left out: 'c'"
        in caplog.text
    )
    vectors = read_embeddings("vectors.txt", UnitTable.read("units.txt").units)
    assert np.isnan(vectors).all(axis=1).tolist() == [True, True, True, False, False, True, False]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--dim 0", "--dim 0: must be at least 1"),
        ("--window 0", "--window 0: must be at least 1"),
        ("--epochs 0", "--epochs 0: must be at least 1"),
        ("--seed -1", "--seed -1: must be at least 0"),
        ("--lr 0", "--lr 0: must be greater than 0 and finite; word2vec uses 0.025"),
        ("--lr nan", "--lr nan: must be greater than 0 and finite"),
        (
            "--lr 1e30",
            "--lr 1e+30: the loss is not finite in epoch 1/5; use a smaller learning rate",
        ),
        ("--min_lr -1", "--min_lr -1.0: must be at least 0"),
        ("--lr 0.01 --min_lr 0.02", "--min_lr 0.02: must be at most --lr 0.01"),
        (
            "--sample 1",
            "--sample 1: must be a share of the text, from 0 (none is left out) to less than 1",
        ),
        (
            "--sample 1e-15",
            "--sample 1e-15: nothing is left to predict in epoch 1/5; use a larger value",
        ),
        (
            "--tree small.json",
            "small.json: a tree over 3 units, but the unit table has 13; build the tree again",
        ),
        (
            "--tree other.json",
            "other.json: leaf 3 is 'x3', but unit 3 of the table is 'a'; build the tree again",
        ),
        (
            "--tree other.json --head softmax",
            "--tree: --head softmax has no tree; leave --tree out, or use --head h",
        ),
        (
            "--tokenizer bpe",
            "--bpe_model: tokenizer bpe without a model; name the sentencepiece file",
        ),
        (
            "--tokenizer char --text one.txt",
            "one.txt: only the unit 'a' occurs, so there is nothing to predict; give ",
        ),
        (
            "--text one.txt",
            "one.txt: none of the 2 units of the text is in words.txt (found 'aa', 'aaa'); give the --",
        ),
        (
            "--text lines.txt",
            "lines.txt: no sentence has two units, so there is nothing to predict; write whole sent",
        ),
        ("--text empty.txt", "empty.txt: contains no sentences; write one per line"),
    ],
)
def test_each_fault_is_one_line(folder: Path, capsys: Capsys, flags: str, message: str) -> None:
    (folder / "one.txt").write_text("aa\naaa\n")
    (folder / "lines.txt").write_text("the\ncat\nruns\n")
    (folder / "empty.txt").write_text("\n")
    Tree.huffman([1, 2, 3]).save("small.json")
    units_of_another = (*UnitTable.read("words.txt").units[:3], *(f"x{n}" for n in range(3, 13)))
    Tree.huffman(np.ones(13), units_of_another).save("other.json")
    line = WORDS.replace("--text text.txt", "") if "--text" in flags else WORDS
    assert error_line(call(f"{line} --dim 4 {flags}"), capsys).startswith(message)
    assert not (folder / "vectors.txt").exists()
