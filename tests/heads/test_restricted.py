# SPDX-License-Identifier: Apache-2.0
"""Heads limited to some units, against the distribution over all units renormalised by its definition.

Dimension key: N rows, V units.
"""

import math

import numpy as np
import pytest
import torch
from test_heads_contract import HEADS, assert_are_best, decisions, make_head, rows
from torch import Tensor
from trees import merge_levels, units_below

from wenet_hs.heads import AdaptiveHead, OutputHead
from wenet_hs.heads.restricted import restrict_head
from wenet_hs.tree import NaryTree, Tree

KEPT = [12, 13, 14, 17, 24, 33, 34, 38, 39]
"""In the trees `class:cut` and `hsoftmax:balanced` nodes that are left come in another order than before."""
TREES = [
    Tree.huffman(1 / np.arange(1, 31)),
    Tree.random([1.0] * 30, seed=4),
    merge_levels(Tree.balanced([1.0] * 30), 2),
]


def by_definition(kind: str, head: OutputHead, hidden: Tensor, kept: list[int], *, by_node: bool = True) -> Tensor:
    """(N, V) in float64: each decision renormalised over the alternatives in which a unit is left."""
    log_probs = head.double().log_probs(hidden.double()).detach()
    head.float()
    choices = decisions(kind, head)
    if not by_node or isinstance(head, AdaptiveHead):
        choices = [[{unit} for unit in range(head.num_units)]]
    found = torch.full_like(log_probs, -math.inf)
    found[:, kept] = 0.0
    for alternatives in choices:
        left = [units for units in alternatives if units.intersection(kept)]
        if left:
            masses = torch.stack([log_probs[:, sorted(units)].logsumexp(-1) for units in left], dim=-1).log_softmax(-1)
            for column, units in enumerate(left):
                found[:, sorted(units)] += masses[:, [column]]
    return found


@pytest.mark.parametrize("by_node", [True, False])
@pytest.mark.parametrize("kind", HEADS)
def test_it_is_the_renormalised_distribution(kind: str, by_node: bool) -> None:
    head = make_head(kind, 40)
    hidden, _ = rows(head)
    expected = by_definition(kind, head, hidden, KEPT, by_node=by_node).float()
    restricted = restrict_head(head, dict(zip(KEPT, KEPT, strict=True)), by_node=by_node)
    found = restricted.log_probs(hidden)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(6), atol=1e-6, rtol=0)
    for k in (1, 4, 40):  # at most the units that are left
        values, ids = restricted.topk(hidden, k)
        assert values.shape == ids.shape == (6, min(k, len(KEPT)))
        assert_are_best(expected, values, ids)
    targets = torch.tensor([KEPT[row] for row in range(6)])
    torch.testing.assert_close(restricted.nll(hidden, targets), -expected.gather(1, targets[:, None])[:, 0])
    assert restricted.nll(hidden[:1], torch.tensor([1])).isposinf().all()
    labels = restricted.label_log_probs(hidden[None], targets[None, :3])
    torch.testing.assert_close(labels[0], expected[:, targets[:3]], atol=1e-5, rtol=1e-5)
    assert (
        not any(parameter.requires_grad for parameter in restricted.parameters()) or not by_node or kind == "adaptive"
    )


@pytest.mark.parametrize("kind", HEADS)
@torch.no_grad()
def test_all_units_change_nothing(kind: str) -> None:
    head = make_head(kind, 40)
    hidden, targets = rows(head)
    restricted = restrict_head(head, {unit: unit for unit in range(40)})
    tolerance = {"atol": 2e-6, "rtol": 0} if kind == "adaptive" else {"atol": 0, "rtol": 0}
    torch.testing.assert_close(restricted.log_probs(hidden), head.log_probs(hidden), **tolerance)
    for found, expected in zip(restricted.topk(hidden, 9), head.topk(hidden, 9), strict=True):
        torch.testing.assert_close(found, expected, **tolerance)


@pytest.mark.parametrize("by_node", [True, False])
@pytest.mark.parametrize("kind", HEADS)
@torch.no_grad()
def test_new_units_share_the_probability_of_their_source(kind: str, by_node: bool) -> None:
    head = make_head(kind, 40)
    hidden, _ = rows(head)
    # 40 and 41 are beside 7; 42 is beside 20, which is not left itself.
    restricted = restrict_head(head, {0: 0, 7: 7, 29: 29, 40: 7, 41: 7, 42: 20}, 43, by_node=by_node)
    expected = by_definition(kind, head, hidden, [0, 7, 20, 29], by_node=by_node).float()
    found = restricted.log_probs(hidden)
    assert found.shape == (6, 43)
    for unit, source, share in ((0, 0, 1), (29, 29, 1), (42, 20, 1), (7, 7, 3), (40, 7, 3), (41, 7, 3)):
        torch.testing.assert_close(found[:, unit], expected[:, source] - math.log(share), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(6), atol=1e-6, rtol=0)
    assert_are_best(found, *restricted.topk(hidden, 6))


@pytest.mark.parametrize("tree", TREES)
def test_a_pruned_tree_has_the_subtrees_that_are_left(tree: Tree | NaryTree) -> None:
    generator = np.random.default_rng(1)
    for size in (1, 2, 3, 9, 29, 30):
        kept = sorted(generator.choice(30, size, replace=False).tolist())
        pruned, edges = tree.prune(kept)  # the constructor checks that it is a tree
        assert type(pruned) is type(tree) and pruned.units == tuple(tree.units[unit] for unit in kept)
        assert np.array_equal(pruned.frequencies, tree.frequencies[kept])
        left = {below & frozenset(kept) for below in units_below(tree)}
        in_old_ids = [frozenset(kept[unit] for unit in below) for below in units_below(pruned)]
        assert set(in_old_ids) == {below for below in left if len(below) > 1} and len(set(in_old_ids)) == len(
            in_old_ids
        )
        old_below = [*units_below(tree), *(frozenset([unit]) for unit in range(30))]
        new_below = [*in_old_ids, *(frozenset([unit]) for unit in kept)]
        for edge, old in enumerate(edges):
            ends = (
                (pruned.edge_nodes[edge], tree.edge_nodes[old]),
                (pruned.children.flat[edge], tree.children.flat[old]),
            )
            assert all(new_below[new_end] == old_below[old_end].intersection(kept) for new_end, old_end in ends)
        if size == 30:
            assert pruned == tree and edges.tolist() == list(range(tree.num_edges))
