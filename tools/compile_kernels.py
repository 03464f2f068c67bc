#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compile the Numba kernels into their cache (about a minute), so that no training, recognition or
test waits for it.

`make setup` calls it. Without it each kernel is compiled when it is first needed.
"""

import itertools
import warnings
from collections import Counter

import numpy as np
import torch

from wenet_hs.decode.ctc_search import prefix_beam_search, viterbi_align
from wenet_hs.heads import ClassHead, HSoftmaxHead, OutputHead
from wenet_hs.heads.kernels.numba_common import SERIAL_MAX_VALUES
from wenet_hs.heads.kernels.search import topk_lowest_id_first
from wenet_hs.heads.kernels.search_numba import SERIAL_MAX_ROWS
from wenet_hs.lm.word2vec import EncodedText, Word2VecOptions, train_word2vec
from wenet_hs.nn.dropout import MANY_VALUES, Dropout
from wenet_hs.tree import NaryTree, Tree
from wenet_hs.tree.brown import brown_children

NUM_UNITS, DIM = 6, 4
COUNTS = np.arange(NUM_UNITS, 0, -1.0)


def heads() -> list[OutputHead]:
    """Heads of every route and search that has kernels."""
    tree = Tree.huffman(COUNTS)
    routes = itertools.product(("path", "all"), (False, True))
    of_trees = [HSoftmaxHead(DIM, tree, bias, route=route, search="all") for route, bias in routes]
    searching = HSoftmaxHead(DIM, tree, search="best_first")
    classes = NaryTree.from_binary(tree, 2)
    of_classes = [
        ClassHead(DIM, classes, search="best_first"),
        ClassHead(DIM, classes, route="path", search="all"),
    ]
    return [*of_trees, searching, *of_classes]


def main() -> None:
    """Call everything that has a kernel once."""
    torch.set_num_threads(1)
    hidden = torch.randn(3, DIM, requires_grad=True)
    targets, many = torch.tensor([0, 1, 5]), torch.randn(SERIAL_MAX_ROWS + 1, DIM)
    for head in heads():
        for smoothing, kind in ((0.0, "leaf"), (0.1, "node"), (0.1, "leaf")):
            head.loss(hidden, targets, smoothing, kind).sum().backward()
        with torch.no_grad():
            head.loss(hidden, targets)
            head.topk(hidden, 2)
            head.topk(many, 2)
            head.eval_metrics(hidden, targets)
        head.log_probs(hidden).sum().backward()
        head.label_log_probs(hidden[None], targets[None]).sum().backward()
    topk_lowest_id_first(torch.zeros(2, SERIAL_MAX_VALUES), 1)
    for dtype in (torch.float32, torch.bfloat16):
        Dropout(0.1)(torch.ones(MANY_VALUES, dtype=dtype))
    text = EncodedText(np.array([0, 1, 5], np.int32), np.array([0, 3]), Counter())
    train_word2vec(text, NUM_UNITS, Word2VecOptions(dim=DIM, epochs=1), tree=Tree.huffman(COUNTS))
    brown_children([[0, 1, 2], [3, 4, 5, 0]], COUNTS)
    scores = torch.randn(2, 7, NUM_UNITS).log_softmax(-1)
    values, ids = scores.topk(3)
    prefix_beam_search(values, ids, torch.tensor([7, 5]), blank=0, beam_size=3)
    viterbi_align(scores, torch.tensor([7, 5]), [[1, 2], [3]])


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
