# SPDX-License-Identifier: Apache-2.0
"""The class head: its formula by hand, its kernels against plain PyTorch, its routes, searches and sparse gradients.

Dimension key: N rows, D width, V units, E edges, K best.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from trees import merge_levels

from wenet_hs.heads import class_softmax
from wenet_hs.heads.class_softmax import ClassHead, group_decisions, log_softmax_of_nodes
from wenet_hs.heads.kernels import classes as kernels
from wenet_hs.tree import NaryTree, Tree

DIM = 16
# Root: the node 1, unit 0, the node 2; below them units 1 2 3, and 4 5.
SIX = NaryTree.from_rows([[1, 3, 2], [4, 5, 6], [7, 8]], [8, 1, 1, 2, 2, 2])


def trained(tree: NaryTree, scale: float = 1.0, **options: object) -> ClassHead:
    torch.manual_seed(0)
    head = ClassHead(DIM, tree, **options)  # type: ignore[arg-type]
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return head


def reference(head: ClassHead, tree: NaryTree) -> ClassHead:
    """The same head in float64, which no kernel takes."""
    twin = ClassHead(DIM, tree, route=head.route).double()
    twin.load_state_dict({name: value.double() for name, value in head.state_dict().items()})
    return twin


def zipf_rows(head: ClassHead, num_rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    share = 1.0 / torch.arange(1, head.num_units + 1)
    targets = torch.multinomial(share, num_rows, replacement=True, generator=generator)
    return torch.randn(num_rows, DIM, generator=generator, requires_grad=True), targets


def gradients(head: ClassHead, hidden: Tensor, loss: Tensor) -> list[Tensor]:
    upstream = torch.linspace(-1, 2, len(hidden), dtype=loss.dtype)
    found = torch.autograd.grad((loss * upstream).sum(), (hidden, *head.parameters()))
    return [gradient.to_dense() if gradient.is_sparse else gradient for gradient in found]


def test_a_softmax_at_each_node_by_hand() -> None:
    head = trained(SIX)
    assert {name: tuple(value.shape) for name, value in head.state_dict().items()} == {
        "output.weight": (8, DIM),
        "output.bias": (8,),
    }
    hidden = torch.randn(4, DIM)
    scores = head.output(hidden)
    root, first, second = (scores[:, edges].log_softmax(-1) for edges in (slice(0, 3), slice(3, 6), slice(6, 8)))
    expected = torch.cat([root[:, 1:2], root[:, :1] + first, root[:, 2:] + second], dim=1)
    torch.testing.assert_close(head.log_probs(hidden), expected)


def test_the_sum_over_units_is_a_sum_over_edges() -> None:
    # Behind the smoothed loss: Σ_v log P(v) = Σ_e leaves(e)·log p(e | its node), with no factor of the depth.
    tree = merge_levels(Tree.huffman(1 / np.arange(1, 60)), 2)
    head = trained(tree).double()
    hidden = torch.randn(3, DIM, dtype=torch.float64)
    scores = F.linear(hidden, head.output.weight, head.output.bias)
    choices = log_softmax_of_nodes(scores, head.edges.offsets, head.edge_nodes)
    leaves = torch.tensor(tree.num_leaves()[tree.children], dtype=torch.float64)
    torch.testing.assert_close(choices @ leaves, head.log_probs(hidden).sum(-1))


def test_a_flat_tree_is_a_softmax() -> None:
    head = trained(NaryTree.frequency_bins(np.ones(9), 1))
    hidden, targets = torch.randn(5, DIM), torch.arange(5)
    torch.testing.assert_close(
        head.nll(hidden, targets), F.cross_entropy(head.output(hidden), targets, reduction="none")
    )


TREES = {
    "bins": NaryTree.frequency_bins(1 / np.arange(1, 601)),
    "top": NaryTree.from_binary(Tree.huffman(1 / np.arange(1, 601))),
    "cut": merge_levels(Tree.huffman(1 / np.arange(1, 601)), 3),
    "zeros": NaryTree.frequency_bins([1.0] * 40 + [0.0] * 560, 5),
}


@pytest.mark.parametrize("kind", ["leaf", "node"])
@pytest.mark.parametrize("route", ["path", "all"])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_kernels_equal_plain_pytorch(tree: NaryTree, route: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head = trained(tree, route=route)
    twin = reference(head, tree)
    hidden, targets = zipf_rows(head, 200)
    for few_rows, few_scores in ((6, 200), (10**9, 0), (0, 0)):  # both kinds of nodes, the kernel alone, BLAS alone
        monkeypatch.setattr(kernels, "MIN_PRODUCT_ROWS", few_rows)
        monkeypatch.setattr(kernels, "MIN_PRODUCT_SCORES", few_scores)
        for smoothing in (0.0, 0.1):
            loss, exact_hidden = head.loss(hidden, targets, smoothing, kind), hidden.detach().double().requires_grad_()  # type: ignore[arg-type]
            exact = twin.loss(exact_hidden, targets, smoothing, kind)  # type: ignore[arg-type]
            torch.testing.assert_close(loss.double(), exact, atol=1e-5, rtol=1e-5)
            found, expected = gradients(head, hidden, loss), gradients(twin, exact_hidden, exact)
            torch.testing.assert_close([g.double() for g in found], expected, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(head.log_probs(hidden).double(), twin.log_probs(exact_hidden), atol=1e-5, rtol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(
                head.log_probs(hidden).double(), twin.log_probs(exact_hidden), atol=1e-5, rtol=1e-5
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sparse_gradients_hold_the_nodes_on_the_paths(dtype: torch.dtype) -> None:
    tree = TREES["bins"]
    head, dense = (trained(tree, sparse_grad=sparse, route="path").to(dtype) for sparse in (True, False))
    hidden, targets = zipf_rows(head, 30)
    hidden = hidden.detach().to(dtype).requires_grad_()
    for smoothing in (0.0, 0.1):
        gradient, bias = torch.autograd.grad(head.loss(hidden, targets, smoothing, "node").sum(), [*head.parameters()])
        gradient = gradient.coalesce()
        assert gradient.is_sparse and not bias.is_sparse
        nodes = np.unique(tree.edge_nodes[head.edges.paths(targets.numpy())[1]])
        assert gradient.indices()[0].tolist() == np.flatnonzero(np.isin(tree.edge_nodes, nodes)).tolist()
        expected = torch.autograd.grad(dense.loss(hidden, targets, smoothing, "node").sum(), [*dense.parameters()])
        torch.testing.assert_close((gradient.to_dense(), bias), expected)
    assert head.sparse_parameters() == [head.output.weight] and dense.sparse_parameters() == []


def test_half_weights_have_dense_gradients() -> None:
    head = trained(TREES["bins"], sparse_grad=True, route="path").to(torch.bfloat16)
    hidden, targets = zipf_rows(head, 10)
    head.nll(hidden, targets).sum().backward()
    assert head.output.weight.grad is not None and not head.output.weight.grad.is_sparse


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def results_of(head: ClassHead) -> list[Tensor]:
    hidden, targets = zipf_rows(head, 50)
    loss = head.loss(hidden, targets, 0.1, "node")
    with torch.no_grad():
        best = head.topk(hidden, 3)
    return [loss, *gradients(head, hidden, loss), *best]


def test_the_bits_do_not_depend_on_threads(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        kernels, "MIN_PRODUCT_ROWS", 10**9
    )  # BLAS may share its sums among threads, the kernels may not
    head = trained(TREES["bins"], route="path", search="best_first")
    many = results_of(head)
    torch.set_num_threads(1)
    for got, expected in zip(many, results_of(head), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_best_first_is_exact(tree: NaryTree, scale: float) -> None:
    head = trained(tree, scale, search="best_first")
    hidden = torch.randn(20, DIM, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        log_probs = head.log_probs(hidden)
        for k in (1, 10, 600):
            values, ids = head.topk(hidden, k)
            torch.testing.assert_close(values, log_probs.topk(k).values, atol=2e-5, rtol=1e-5)
            torch.testing.assert_close(values, log_probs.gather(1, ids), atol=2e-5, rtol=1e-5)
            assert all(len(set(row)) == k for row in ids.tolist())


def test_rows_beyond_the_budget_go_to_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_softmax, "SEARCH_FROM_EDGES", 0)
    head = trained(TREES["bins"], 0.01)  # all but uniform: every class has to be opened
    sharp = trained(TREES["bins"])
    hidden = torch.randn(20, DIM)
    hidden[::2] = 0.0
    with torch.no_grad():
        for tested in (head, sharp):
            expected = tested.log_probs(hidden).topk(5).values
            torch.testing.assert_close(tested.topk(hidden, 5)[0], expected, atol=2e-5, rtol=1e-5)
    assert (head.search_route("cpu", torch.float32, 5), head.search_route("cpu", torch.float32, 500)) == (
        "best_first",
        "all",
    )
    assert head.search_route("cuda", torch.float32, 5) == head.search_route("cpu", torch.float64, 5) == "all"


def test_a_row_that_is_no_number_disturbs_no_other() -> None:
    head = trained(TREES["bins"], search="best_first")
    hidden = torch.randn(3, DIM)
    with torch.no_grad():
        expected = head.topk(hidden, 4)
        hidden[1] = torch.nan
        values, ids = head.topk(hidden, 4)
    assert values[1].isnan().all() and ((ids >= 0) & (ids < 600)).all()
    for got, wanted in zip((values, ids), expected, strict=True):
        assert torch.equal(got[[0, 2]], wanted[[0, 2]])


def test_a_search_that_meets_what_is_no_number_leaves_the_row_to_the_product() -> None:
    head = trained(SIX, search="best_first")
    with torch.no_grad():
        head.output.weight.zero_()
        head.output.bias.copy_(torch.tensor([5.0, 0.0, 4.0, torch.nan, 0.0, 0.0, 0.0, 0.0]))
        hidden = torch.zeros(1, DIM)
        values, ids = head.topk(hidden, 4)  # units 1, 2 and 3 are below the likeliest node, and no numbers
        assert values.isnan().tolist() == [[True, True, True, False]]
        assert sorted(ids[0, :3].tolist()) == [1, 2, 3] and ids[0, 3] in (4, 5)
        assert torch.equal(values[:, 3], head.log_probs(hidden)[0, ids[:, 3]])


@pytest.mark.parametrize("route", ["path", "all"])
def test_only_what_asks_for_a_gradient_gets_one(route: str) -> None:
    head = trained(TREES["bins"], route=route)
    hidden, targets = zipf_rows(head, 12)
    for kind in ("leaf", "node"):
        loss = head.loss(hidden, targets, 0.1, kind).sum()  # type: ignore[arg-type]
        expected = torch.autograd.grad(loss, (hidden, head.output.bias))
        head.requires_grad_(False)
        found = torch.autograd.grad(head.loss(hidden, targets, 0.1, kind).sum(), hidden)[0]  # type: ignore[arg-type]
        assert torch.equal(found, expected[0])
        head.output.bias.requires_grad_(True)
        loss = head.loss(hidden.detach(), targets, 0.1, kind).sum()  # type: ignore[arg-type]
        assert torch.equal(torch.autograd.grad(loss, head.output.bias)[0], expected[1])
        head.requires_grad_(True)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 9), st.data())
def test_ties_go_by_id(counts: list[int], num_classes: int, data: st.DataObject) -> None:
    tree = NaryTree.frequency_bins(counts, num_classes)
    head = ClassHead(2, tree, search="best_first")
    # Scores of few whole values make equal log-probabilities common, across classes as well.
    scores = data.draw(st.lists(st.integers(0, 1), min_size=tree.num_edges, max_size=tree.num_edges))
    with torch.no_grad():
        head.output.weight.zero_()
        head.output.bias.copy_(torch.tensor(scores, dtype=torch.float32))
        k = data.draw(st.integers(1, len(counts)))
        values, ids = (found[0] for found in head.topk(torch.zeros(1, 2), k))
        log_probs = head.log_probs(torch.zeros(1, 2))[0]
    # Equal is what the search finds equal: the product rounds in another order.
    torch.testing.assert_close(values, log_probs[ids], atol=2e-6, rtol=0)
    torch.testing.assert_close(values, log_probs.sort(descending=True).values[:k], atol=2e-6, rtol=0)
    assert list(zip(-values, ids, strict=True)) == sorted(zip(-values, ids, strict=True))
    last = ids[values == values[-1]].tolist()
    nodes = tree.edge_nodes[tree.edges[tree.num_inner :]] if tree.num_edges else [0]
    for unit in set(range(len(counts))) - set(ids.tolist()):
        if any(nodes[unit] == nodes[other] and log_probs[unit] == log_probs[other] for other in last):
            assert unit > max(last)


def test_label_log_probs_build_only_what_is_above_the_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = NaryTree.frequency_bins(1 / np.arange(1, 2001))
    head = trained(tree)
    monkeypatch.setattr(class_softmax, "LABELS_FROM_EDGES", 100)
    seen: list[int] = []
    log_softmax = class_softmax.log_softmax_of_nodes
    spy = lambda scores, *rest: (seen.append(scores.size(1)), log_softmax(scores, *rest))[1]  # noqa: E731
    labels = torch.tensor([[3, 900, 3], [0, 1700, 901]])
    hidden = torch.randn(2, 7, DIM, requires_grad=True)
    expected = head.log_probs(hidden).gather(-1, labels[:, None].expand(-1, 7, -1))
    monkeypatch.setattr(class_softmax, "log_softmax_of_nodes", spy)
    found = head.label_log_probs(hidden, labels)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    inputs = (hidden, *head.parameters())
    upstream = torch.randn(found.shape)
    results = [torch.autograd.grad((values * upstream).sum(), inputs) for values in (found, expected)]
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
    assert head.has_partial_log_probs and len(seen) == 1 and seen[0] < tree.num_edges / 2
    torch.testing.assert_close(head.double().label_log_probs(hidden.double(), labels).float(), found)


def test_groups_of_the_worked_example() -> None:
    groups = group_decisions(ClassHead(2, SIX).edges, np.array([5, 0, 2, 5]))
    assert (groups.first.tolist(), groups.sizes.tolist()) == ([0, 4, 5], [4, 1, 2])
    assert groups.rows.tolist() == [0, 1, 2, 3, 2, 0, 3]
    assert groups.choices.tolist() == [2, 1, 0, 2, 1, 1, 1]
    assert (groups.edges.tolist(), groups.degrees.tolist()) == ([0, 3, 6], [3, 3, 2])


def test_what_print_says_and_what_is_refused() -> None:
    head = ClassHead(4, NaryTree.frequency_bins(1 / np.arange(1, 5001)))
    assert "dim=4, num_units=5000, nodes=" in repr(head)
    assert "depth=2, route=path, search=best_first, sparse_grad=False" in repr(head)
    assert "route=all, search=all" in repr(ClassHead(4, SIX))
    assert (head.cost_route("cpu"), head.cost_route("cuda")) == ("path", "all")
    assert "route=all, search=all" in repr(ClassHead(4, NaryTree.frequency_bins(np.ones(5000)), route="all").double())
    forced = ClassHead(4, SIX, search="best_first").double()
    assert "search=best_first" in repr(forced)
    with torch.no_grad(), pytest.raises(ValueError, match='search: "best_first" .* here is torch.float64 on cpu'):
        forced.topk(torch.zeros(1, 4, dtype=torch.float64), 1)
    for wrong in ({"route": "fast"}, {"search": "greedy"}):
        with pytest.raises(ValueError, match="must be among: route auto, path, all; search auto, best_first, all"):
            ClassHead(4, SIX, **wrong)  # type: ignore[arg-type]


def test_one_unit_costs_nothing() -> None:
    tree = NaryTree.frequency_bins([1.0])
    for dtype in (torch.float32, torch.float64):
        head = ClassHead(4, tree).to(dtype)
        hidden = torch.randn(3, 4, dtype=dtype, requires_grad=True)
        targets = torch.zeros(3, dtype=torch.int64)
        for loss in (
            head.nll(hidden, targets),
            head.loss(hidden, targets, 0.1),
            head.loss(hidden, targets, 0.1, "node"),
        ):
            assert loss.tolist() == [0.0] * 3
            assert torch.autograd.grad(loss.sum(), hidden)[0].tolist() == [[0.0] * 4] * 3
        assert head.topk(hidden, 1)[1].tolist() == [[0]] * 3


def test_moves_and_casts_as_a_module_without_losing_the_tree() -> None:
    head = ClassHead(4, NaryTree.frequency_bins(np.ones(3000)))
    before = head.leaves.clone()
    head.to(torch.bfloat16)
    assert torch.equal(head.leaves, before) and head.leaves.max() > 50
