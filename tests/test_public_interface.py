# SPDX-License-Identifier: Apache-2.0
"""The Python names that users' scripts call, with their arguments by position and by name."""

import inspect
from pathlib import Path

import pytest
import torch

import wenet_hs
from wenet_hs.corpus.subset import hours_to_keep
from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, OutputHead, SoftmaxHead
from wenet_hs.interop import wenet
from wenet_hs.tree import Tree

COUNTS = [5, 3, 2, 1, 1]


@pytest.mark.parametrize("build", [Tree.huffman, Tree.fano, Tree.balanced, Tree.random])
def test_trees(tmp_path: Path, build: type[Tree]) -> None:
    tree = build(COUNTS, units=list("abcde"))
    tree.save(tmp_path / "tree.json")
    assert Tree.load(tmp_path / "tree.json") == tree
    nodes, turns = tree.paths()
    assert nodes.shape == turns.shape == (5, tree.depth) and {*turns.flatten()} <= {-1, 0, 1}


@pytest.mark.parametrize(
    "head",
    [
        SoftmaxHead(dim=4, num_units=5),
        HSoftmaxHead(dim=4, tree=Tree.huffman(COUNTS), bias=True, sparse_grad=False),
        ClassHead(dim=4, tree=Tree.huffman(COUNTS)),
        AdaptiveHead(dim=4, frequencies=COUNTS),
    ],
    ids=lambda head: type(head).__name__,
)
def test_heads(head: OutputHead) -> None:
    hidden, targets = torch.randn(2, 3, 4), torch.randint(5, (2, 3))
    assert head.log_probs(hidden).shape == (2, 3, 5)
    assert (
        head.nll(hidden, targets).shape == head.loss(hidden, targets, smoothing=0.1).shape == (2, 3)
    )
    values, ids = head.topk(hidden, 2)
    assert values.shape == ids.shape == (2, 3, 2)


def test_functions() -> None:
    assert hours_to_keep({"a": 90.0, "b": 10.0}, alpha=0.5, ratio=0.1) == pytest.approx(
        {"a": 7.5, "b": 2.5}
    )
    assert "device" in inspect.signature(wenet_hs.load_model).parameters
    assert len(inspect.signature(wenet.load_model).parameters) >= 2
