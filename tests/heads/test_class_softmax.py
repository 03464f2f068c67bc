# SPDX-License-Identifier: Apache-2.0
"""The class head: its formula by hand, its kernels against plain PyTorch, its searches and sparse
gradients.

Dimension key: N rows, D width, V units, E edges, K best.
"""

import numpy as np
import pytest
import torch
from torch import Tensor
from trees import merge_levels

from wenet_hs.heads import ClassHead, class_softmax
from wenet_hs.heads.decisions import edges_above
from wenet_hs.heads.kernels import classes as kernels
from wenet_hs.tree import NaryTree, Tree

DIM = 16
# Root: the node 1, unit 0, the node 2; below them units 1 2 3, and 4 5.
SIX = NaryTree.from_rows([[1, 3, 2], [4, 5, 6], [7, 8]], [8, 1, 1, 2, 2, 2])
ZIPF = 1 / np.arange(1, 601)
TREES = {
    "two levels": NaryTree.frequency_bins(ZIPF),
    "four levels": merge_levels(Tree.huffman(ZIPF), 3),
    "large classes": NaryTree.frequency_bins([1.0] * 40 + [0.0] * 560, 5),
}


def trained(tree: NaryTree, scale: float = 1.0, **options: object) -> ClassHead:
    torch.manual_seed(0)
    head = ClassHead(DIM, tree, **options)  # type: ignore[arg-type]
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return head


def zipf_rows(head: ClassHead, num_rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    share = 1.0 / torch.arange(1, head.num_units + 1)
    targets = torch.multinomial(share, num_rows, replacement=True, generator=generator)
    return torch.randn(num_rows, DIM, generator=generator, requires_grad=True), targets


def test_a_softmax_at_each_node_by_hand() -> None:
    head = trained(SIX)
    shapes = {name: tuple(value.shape) for name, value in head.state_dict().items()}
    assert shapes == {"output.weight": (8, DIM), "output.bias": (8,)}
    hidden = torch.randn(4, DIM)
    scores = head.output(hidden)
    root, first, second = (
        scores[:, edges].log_softmax(-1) for edges in (slice(0, 3), slice(3, 6), slice(6, 8))
    )
    expected = torch.cat([root[:, 1:2], root[:, :1] + first, root[:, 2:] + second], dim=1)
    torch.testing.assert_close(head.log_probs(hidden), expected)


@pytest.mark.parametrize("tree", TREES)
def test_nodes_with_and_without_a_matrix_product_give_the_same(
    tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, twin = (trained(TREES[tree], route="path") for _ in range(2))
    twin.double()  # which no kernel computes
    hidden, targets = zipf_rows(head, 200)
    exact_hidden = hidden.detach().double().requires_grad_()
    for smoothing in (0.0, 0.1):
        exact = twin.loss(exact_hidden, targets, smoothing, "node")
        expected = torch.autograd.grad(exact.sum(), (exact_hidden, *twin.parameters()))
        for few_rows, few_scores in ((6, 200), (10**9, 0)):
            monkeypatch.setattr(kernels, "MIN_PRODUCT_ROWS", few_rows)
            monkeypatch.setattr(kernels, "MIN_PRODUCT_SCORES", few_scores)
            loss = head.loss(hidden, targets, smoothing, "node")
            torch.testing.assert_close(loss.double(), exact, atol=1e-5, rtol=1e-5)
            for found, wanted in zip(
                torch.autograd.grad(loss.sum(), (hidden, *head.parameters())), expected, strict=True
            ):
                torch.testing.assert_close(found.double(), wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sparse_gradient_contains_the_nodes_on_the_paths(dtype: torch.dtype) -> None:
    tree = TREES["two levels"]
    head, dense = (trained(tree, sparse_grad=is_sparse).to(dtype) for is_sparse in (True, False))
    hidden, targets = zipf_rows(head, 30)
    hidden = hidden.detach().to(dtype).requires_grad_()
    for smoothing in (0.0, 0.1):
        gradient, bias = torch.autograd.grad(
            head.loss(hidden, targets, smoothing, "node").sum(), [*head.parameters()]
        )
        gradient = gradient.coalesce()
        assert gradient.is_sparse and not bias.is_sparse
        nodes = np.unique(tree.edge_nodes[tree.path_edges(targets.numpy())[1]])
        assert (
            gradient.indices()[0].tolist()
            == np.flatnonzero(np.isin(tree.edge_nodes, nodes)).tolist()
        )
        expected = torch.autograd.grad(
            dense.loss(hidden, targets, smoothing, "node").sum(), [*dense.parameters()]
        )
        torch.testing.assert_close((gradient.to_dense(), bias), expected)
    assert head.sparse_parameters() == [head.output.weight] and dense.sparse_parameters() == []


def test_the_number_of_threads_does_not_change_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        kernels, "MIN_PRODUCT_ROWS", 10**9
    )  # a matrix product may share its sums among threads
    head = trained(TREES["two levels"], search="best_first")
    hidden, targets = zipf_rows(head, 50)
    results = []
    for num_threads in (2, 1):
        torch.set_num_threads(num_threads)
        loss = head.loss(hidden, targets, 0.1, "node")
        gradients = torch.autograd.grad(loss.sum(), (hidden, *head.parameters()))
        results.append([loss, *gradients, *head.topk(hidden.detach(), 3)])
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("scale", [0.1, 1.0])
@torch.no_grad()
def test_best_first_is_exact(tree: str, scale: float) -> None:
    head = trained(TREES[tree], scale, search="best_first")
    hidden = torch.randn(20, DIM, generator=torch.Generator().manual_seed(5))
    log_probs = head.log_probs(hidden)
    for k in (1, 10, 600):
        values, ids = head.topk(hidden, k)
        torch.testing.assert_close(values, log_probs.topk(k).values, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(values, log_probs.gather(1, ids), atol=2e-5, rtol=1e-5)
        assert all(len(set(row)) == k for row in ids.tolist())


@torch.no_grad()
def test_rows_beyond_the_budget_are_computed_by_the_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(class_softmax, "SEARCH_FROM_EDGES", 0)
    hidden = torch.randn(20, DIM)
    hidden[::2] = 0.0
    for scale in (0.01, 1.0):  # about uniform, so that every class has to be opened, and not
        head = trained(TREES["two levels"], scale)
        assert head.uses_search(torch.empty(0), 5)
        expected = head.log_probs(hidden).topk(5).values
        torch.testing.assert_close(head.topk(hidden, 5)[0], expected, atol=2e-5, rtol=1e-5)


@torch.no_grad()
def test_rows_whose_search_meets_a_nan_are_computed_by_the_product() -> None:
    head = trained(SIX, search="best_first")
    head.output.weight.zero_()
    head.output.bias.copy_(torch.tensor([5.0, 0.0, 4.0, torch.nan, 0.0, 0.0, 0.0, 0.0]))
    values, ids = head.topk(
        torch.zeros(1, DIM), 4
    )  # units 1, 2 and 3 are below the most probable node and NaN
    assert values.isnan().tolist() == [[True, True, True, False]]
    assert sorted(ids[0, :3].tolist()) == [1, 2, 3] and ids[0, 3] in (4, 5)


def test_choices_of_a_route_and_a_search() -> None:
    head = ClassHead(4, NaryTree.frequency_bins(1 / np.arange(1, 5001)))
    assert "dim=4, num_units=5000, depth=2, route=auto: path, search=auto" in repr(head)
    on_cpu, on_gpu = torch.empty(0), torch.empty(0, device="meta")
    assert head.uses_paths(on_cpu) and not head.uses_paths(on_gpu)
    assert head.uses_search(on_cpu, 5) and not head.uses_search(on_cpu, 500)
    assert not head.uses_search(on_gpu, 5) and not head.uses_search(on_cpu.double(), 5)


def test_edges_above_units() -> None:
    """By hand: unit 0 is the second child of the root, unit 4 the first child of its third one."""
    above = edges_above(SIX, np.array([0, 4]))
    assert above.edges.tolist() == [0, 1, 2, 6, 7]
    assert above.degrees.tolist() == [3, 2]
    paths = sorted(zip(above.path_units.tolist(), above.path_columns.tolist(), strict=True))
    assert paths == [(0, 1), (1, 2), (1, 3)]
