# SPDX-License-Identifier: Apache-2.0
"""How many words a second does word2vec take with a tree, against gensim?

One pass of skip-gram and of CBOW over the first words of a text, on one thread: the same words,
windows, tree and learning rates on both sides. In each pass gensim looks up its words in a
dictionary. Here the text is encoded once, which is not timed. gensim's threads are not used: its
compiled functions are called directly.

Example: python benchmarks/word2vec.py --text train.txt --out benchmarks/notes/word2vec_cpu
"""

import argparse
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from gensim.models import Word2Vec
from gensim.models.word2vec import train_batch_cbow, train_batch_sg
from paired import Facts, Side, alternate, make_parser, medians_ms, number, publish, ratios

from wenet_hs.lm.word2vec import EncodedText, Word2VecOptions, split_jobs, train_word2vec
from wenet_hs.manifest.data_list import read_sentences
from wenet_hs.score.tables import markdown_table
from wenet_hs.tree import Tree
from wenet_hs.tree.original import RenumberedTree, tree_from_paths

ARCHITECTURES = {"skip-gram": "skipgram", "CBOW": "cbow"}
Sentences = list[list[str]]


def read_text(path: Path, num_words: int, min_count: int) -> Sentences:
    """The first sentences with this many words together, of words that occur at least `min_count`
    times in the text.
    """
    sentences = [sentence.txt.split() for sentence in read_sentences(path)]
    counts = Counter(word for sentence in sentences for word in sentence)
    kept, num_kept = [], 0
    for sentence in sentences:
        kept.append([word for word in sentence if counts[word] >= min_count])
        num_kept += len(kept[-1])
        if num_kept >= num_words:
            break
    return [sentence for sentence in kept if sentence]


def read_gensim_tree(model: Word2Vec) -> tuple[Tree, RenumberedTree]:
    """The tree of a model with `hs=1` over its words, and gensim's number of each inner node
    (`syn1`).

    gensim stores for each word its inner nodes (`point`) and a 0 or 1 at each (`code`); code 0 is
    our left child.
    """
    words = tuple(map(str, model.wv.index_to_key))
    codes = [np.asarray(model.wv.get_vecattr(word, "code"), dtype=np.int64) for word in words]
    nodes_VP = np.zeros((len(words), max(map(len, codes))), dtype=np.int64)
    turns_VP = np.zeros_like(nodes_VP)
    for row, (word, codes_P) in enumerate(zip(words, codes, strict=True)):
        nodes_VP[row, : len(codes_P)] = model.wv.get_vecattr(word, "point")
        turns_VP[row, : len(codes_P)] = 1 - 2 * codes_P
    found = tree_from_paths(nodes_VP, turns_VP)
    counts = np.array([model.wv.get_vecattr(word, "count") for word in words])
    return Tree("gensim", words, found.children, counts), found


def gensim_side(model: Word2Vec, jobs: list[Sentences]) -> Side:
    """One pass from the start by gensim's compiled functions, called in this thread."""
    first, buffers = model.wv.vectors.copy(), np.zeros((2, model.vector_size), np.float32)

    def run() -> None:
        model.wv.vectors[:], model.syn1[:] = first, 0
        num_done, num_sentences = 0, sum(map(len, jobs))
        for job in jobs:
            rate = model.alpha + (model.min_alpha - model.alpha) * num_done / num_sentences
            if model.sg:
                train_batch_sg(model, job, rate, buffers[0], False)
            else:
                train_batch_cbow(model, job, rate, buffers[0], buffers[1], False)
            num_done += len(job)

    return run


def measure(name: str, sentences: Sentences, args: argparse.Namespace) -> Facts:
    """Words per second of both sides, and how far their vectors are from each other."""
    options = Word2VecOptions(
        arch=ARCHITECTURES[name], dim=args.dim, window=args.window, epochs=1, shrink_windows=False
    )
    settings = {
        "sg": int(options.arch == "skipgram"),
        "hs": 1,
        "negative": 0,
        "min_count": 1,
        "sample": 0,
    }
    settings |= {
        "vector_size": options.dim,
        "window": options.window,
        "shrink_windows": False,
        "workers": 1,
    }
    model = Word2Vec(**settings)
    model.build_vocab(sentences)
    first, (tree, _) = model.wv.vectors.copy(), read_gensim_tree(model)
    ids = np.array(
        [model.wv.key_to_index[word] for sentence in sentences for word in sentence], np.int32
    )
    text = EncodedText(ids, np.cumsum([0, *map(len, sentences)]), Counter())
    gensim = gensim_side(model, [sentences[begin:end] for begin, end in split_jobs(text.starts)])
    times = alternate(
        {
            "gensim": gensim,
            "ours": lambda: train_word2vec(text, tree.num_units, options, tree=tree, vectors=first),
        },
        args.rounds,
    )
    speeds = {side: 1000 * len(ids) / ms for side, ms in medians_ms(times).items()}
    found = train_word2vec(text, tree.num_units, options, tree=tree, vectors=first).vectors
    cosines = (
        (found * model.wv.vectors).sum(1)
        / np.linalg.norm(found, axis=1)
        / np.linalg.norm(model.wv.vectors, axis=1)
    )
    record = {"arch": name, "words_per_second": speeds, "ratio": ratios(times, "gensim")["ours"]}
    record |= {"cosine": float(np.median(cosines)), "words": len(ids), "units": tree.num_units}
    print(record, flush=True)
    return record | {"decisions": tree.mean_code_length()}


def table(records: list[Facts]) -> str:
    """Thousands of words per second of both sides."""
    rows = []
    for record in records:
        speeds, ratio = record["words_per_second"], record["ratio"]
        row = [str(record["arch"]), *(number(speeds[side] / 1000) for side in ("gensim", "ours"))]
        rows.append([*row, f"{number(ratio)}×", f"{record['cosine']:.3f}"])
    return markdown_table(
        ["", "gensim, 1,000 words/s", "ours, 1,000 words/s", "ratio", "median cosine"], rows
    )


def main() -> None:
    """Measure and publish."""
    parser = make_parser(__doc__, rounds=9)
    parser.set_defaults(threads=1)
    parser.add_argument("--text", type=Path, required=True, help="sentences, one per line")
    parser.add_argument(
        "--words",
        type=int,
        default=200_000,
        help="words that are trained on (default: %(default)s)",
    )
    parser.add_argument(
        "--min_count", type=int, default=5, help="leave out rarer words (default: %(default)s)"
    )
    parser.add_argument(
        "--dim", type=int, default=100, help="numbers per vector (default: %(default)s)"
    )
    parser.add_argument(
        "--window", type=int, default=5, help="words on each side (default: %(default)s)"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sentences = read_text(args.text, args.words, args.min_count)
    records = [measure(name, sentences, args) for name in ARCHITECTURES]
    text = (
        f"One pass over {records[0]['words']:,} words of {args.text.name} with {records[0]['units']:,} units, "
        f"{records[0]['decisions']:.1f} decisions per prediction, width {args.dim}, window {args.window}, one thread, "
        f"gensim {version('gensim')}; both sides in the same rounds (medians of {args.rounds}). The cosine is that of "
        f"both sides' vectors of a word; they differ by gensim's table of the sigmoid.\n\n{table(records)}"
    )
    publish("word2vec with a tree", text, {"records": records}, device="cpu", out=args.out)


if __name__ == "__main__":
    main()
