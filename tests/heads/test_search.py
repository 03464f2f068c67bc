# SPDX-License-Identifier: Apache-2.0
"""The k best units of the tree head by every search, against a plain sort of all log-probabilities.

Dimension key: N rows, D width, V units, I = V-1 inner nodes, K best.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wenet_hs.heads import HSoftmaxHead, base
from wenet_hs.heads.kernels import search, search_numba
from wenet_hs.heads.kernels.numba_common import SERIAL_MAX_VALUES
from wenet_hs.heads.kernels.search import (
    KERNEL_MAX_K,
    expected_opened,
    is_search_faster,
    topk_lowest_id_first,
)
from wenet_hs.heads.kernels.search_result import OpenLimits
from wenet_hs.tree import Tree

METHODS = ("plain", "best_first", "all")
SHAPES = ("huffman", "balanced", "comb", "random")


def shaped_tree(shape: str, num_units: int, generator: np.random.Generator) -> Tree:
    """A tree whose leaves have shuffled ids, so that nothing follows from their order."""
    order = generator.permutation(num_units)
    if shape == "comb":
        return Tree.huffman(np.exp2(-order.astype(float)))
    if shape == "random":
        return Tree.huffman(generator.random(num_units) ** 8)
    return Tree.huffman(1.0 / (order + 1.0) if shape == "huffman" else np.ones(num_units))


def head_over(
    tree: Tree | list[list[int]], weight: Tensor, bias: Tensor | None = None
) -> HSoftmaxHead:
    """The head with these vectors over a tree, or over the tree with these children."""
    if not isinstance(tree, Tree):
        names = tuple(map(str, range(len(tree) + 1)))
        tree = Tree("test", names, np.array(tree), np.ones(len(names)))
    head = HSoftmaxHead(weight.size(1), tree, bias is not None).requires_grad_(False)
    head.inner_vector.weight.copy_(weight)
    if bias is not None:
        head.inner_vector.bias.copy_(bias)
    return head


def random_head(
    shape: str, num_units: int, seed: int = 7, dim: int = 16, scale: float = 1.0
) -> HSoftmaxHead:
    generator = np.random.default_rng(seed)
    tree = shaped_tree(shape, num_units, generator)
    weight, bias = (
        torch.from_numpy(generator.standard_normal(size))
        for size in ((num_units - 1, dim), num_units - 1)
    )
    return head_over(tree, scale * weight.float(), bias.float() if seed % 2 else None)


def topk(head: HSoftmaxHead, hidden: Tensor, k: int, method: str) -> tuple[Tensor, Tensor]:
    if method == "plain":
        return topk_lowest_id_first(head.plain_log_probs(hidden), k)
    head.search = method  # type: ignore[assignment]
    return head.topk(hidden, k)


def check(head: HSoftmaxHead, hidden: Tensor, k: int, method: str) -> None:
    """Values as sorted in float64; ids too where the neighbouring values differ clearly."""
    values, ids = topk(head, hidden, k, method)
    twin = (
        HSoftmaxHead(head.dim, head.tree, head.inner_vector.bias is not None)
        .double()
        .requires_grad_(False)
    )
    twin.load_state_dict(head.state_dict())
    best, order = twin.log_probs(hidden.double()).sort(descending=True, stable=True)
    assert ids.dtype == torch.int64 and values.dtype == torch.float32
    torch.testing.assert_close(values.double(), best[:, :k], rtol=1e-5, atol=1e-6)
    assert bool((values[:, 1:] <= values[:, :-1]).all())
    assert all(len(set(row)) == k for row in ids.tolist())
    gap = torch.full((len(best), best.size(1) + 1), torch.inf, dtype=torch.float64)
    gap[:, 1:-1] = best[:, :-1] - best[:, 1:]
    is_clear = torch.minimum(gap[:, :-1], gap[:, 1:]) > 1e-5 * best.abs() + 2e-6
    assert bool((ids == order[:, :k])[is_clear[:, :k]].all())


def check_random(
    seed: int, num_units: int, shape: str, num_rows: int, methods: tuple[str, ...]
) -> None:
    generator = np.random.default_rng(seed)
    dim = int(generator.integers(1, 25))
    scale = float(generator.choice([0.01, 0.3, 1.0, 4.0, 30.0])) / dim**0.5
    head = random_head(shape, num_units, seed, dim, scale)
    hidden = torch.from_numpy(generator.standard_normal((num_rows, dim))).float()
    for method in methods:
        check(head, hidden, int(generator.integers(1, min(num_units, 100) + 1)), method)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 700),
    st.sampled_from(SHAPES),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 3, 5]),
)
def test_equal_to_sorting(num_units: int, shape: str, seed: int, num_rows: int) -> None:
    check_random(seed, num_units, shape, num_rows, METHODS if num_units < 60 else METHODS[1:])


@pytest.mark.slow
def test_equal_to_sorting_two_thousand_cases() -> None:
    generator = np.random.default_rng(2)
    for num_units in [2, 50_000] + [
        max(2, int(num)) for num in np.exp(generator.uniform(0, np.log(50_000), 60))
    ]:
        for shape in SHAPES:
            check_random(int(generator.integers(2**32)), num_units, shape, 8, METHODS[1:])


@pytest.mark.parametrize("method", METHODS)
def test_worked_examples(method: str) -> None:
    # Node 0: unit 2 left with 3/4, else node 1: unit 0 left with 1/3, unit 1 with 2/3.
    weight = torch.tensor([[3.0], [0.5]]).log()
    values, ids = topk(head_over([[4, 1], [2, 3]], weight), torch.ones(1, 1), 3, method)
    assert ids.tolist() == [[2, 1, 0]]
    torch.testing.assert_close(values.exp(), torch.tensor([[3 / 4, 1 / 6, 1 / 12]]))
    with_bias = head_over([[4, 1], [2, 3]], weight * 0, weight[:, 0])
    assert topk(with_bias, torch.ones(1, 1), 2, method)[1].tolist() == [[2, 1]]
    extreme = head_over([[2, 1], [3, 4]], torch.tensor([[1e4], [-1e4]]))
    values, ids = topk(extreme, torch.ones(1, 1), 3, method)
    assert ids.tolist() == [[0, 2, 1]]
    torch.testing.assert_close(values, torch.tensor([[0.0, -1e4, -2e4]]), atol=1e-37, rtol=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_tie_with_a_lower_unit_below_a_node_of_the_same_score(method: str) -> None:
    # The root always goes right. Node 1 gives 1/2 to unit 3 and 1/2 to node 2, which gives all to
    # unit 0.
    head = head_over([[4, 1], [6, 2], [3, 5]], torch.tensor([[-200.0], [0.0], [200.0]]))
    values, ids = topk(head, torch.ones(1, 1), 2, method)
    assert ids.tolist() == [[0, 3]]
    assert values[0, 0] == values[0, 1]


def test_rows_beyond_the_limits_are_computed_by_the_dense_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head, hidden = random_head("huffman", 500), torch.randn(40, 16)
    expected = topk(head, hidden, 10, "best_first")
    monkeypatch.setattr(search, "limits", lambda num_units, k: OpenLimits(30, 30))
    given_up = head._best_first(hidden, 10)[2]
    assert given_up is not None and 0 < len(given_up) < 40
    values, ids = topk(head, hidden, 10, "best_first")
    torch.testing.assert_close(values, expected[0])
    assert torch.equal(ids, expected[1])


def test_a_tree_of_equal_leaves_is_given_up_early() -> None:
    head = head_over(Tree.huffman(np.ones(2048)), torch.zeros(2047, 4))
    given_up = head._best_first(torch.ones(20, 4), 10)[2]
    assert given_up is not None and given_up.tolist() == list(range(20))
    assert topk(head, torch.ones(320, 4), 10, "auto")[1].tolist() == [list(range(10))] * 320


def test_few_nodes_are_opened() -> None:
    head = random_head("huffman", 5000)
    # Fixed: of 4,000 other draws six have a row that finds its first leaf after more than 32 nodes.
    hidden = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))
    few = int(2.5 * expected_opened(5000, 10))
    found = search_numba.search(
        hidden,
        head.inner_vector.weight,
        None,
        head.node_children,
        k=10,
        limits=OpenLimits(few, 32),
    )
    assert found[2] is None


def test_many_rows_are_cut_into_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    head, hidden = random_head("huffman", 90), torch.randn(11, 16)
    whole = topk(head, hidden, 10, "all")
    monkeypatch.setattr(base, "TOPK_MAX_SCORES", 4 * 90)
    parts = topk(head, hidden, 10, "all")
    assert torch.equal(whole[1], parts[1])
    torch.testing.assert_close(whole[0], parts[0])


def test_choice_of_a_search() -> None:
    with pytest.raises(ValueError, match='"best_first" cannot run for torch.float64 on cpu'):
        topk(random_head("huffman", 50).double(), torch.randn(2, 16).double(), 5, "best_first")
    assert [is_search_faster(rows, 150, 10) for rows in (1, 10, 160, 4000)] == [
        True,
        True,
        False,
        False,
    ]
    for sizes in ((160, 1000, 10), (4000, 267_735, 10), (1, 10_000, 10)):
        assert is_search_faster(*sizes)
    for sizes in ((10, 1000, 500), (10, 2, 10), (10, 1, 1)):
        assert not is_search_faster(*sizes)


def test_a_gpu_takes_the_best_of_all_log_probabilities() -> None:
    head = random_head("huffman", 50)
    on_gpu: Any = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32)
    assert not head.uses_search(on_gpu, 5)
    head.search = "best_first"
    with pytest.raises(ValueError, match='"best_first" cannot run for torch.float32 on cuda'):
        head.uses_search(on_gpu, 5)


# ---- the k greatest values of a row, by the kernel and by torch

KERNEL_AND_TORCH = (torch.float32, torch.float64)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.data())
def test_the_k_greatest_values_are_those_of_a_stable_sort(
    values: list[int], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(values)))
    order = sorted(range(len(values)), key=lambda index: (-values[index], index))[:k]
    for dtype in KERNEL_AND_TORCH:
        best, ids = topk_lowest_id_first(torch.tensor(values, dtype=dtype), k)
        assert ids.tolist() == order
        assert best.tolist() == [values[index] for index in order]


@pytest.mark.parametrize("dtype", KERNEL_AND_TORCH)
def test_infinities_and_nans(dtype: torch.dtype) -> None:
    inf, nan = torch.inf, torch.nan
    best, ids = topk_lowest_id_first(torch.tensor([-inf, 1.0, -inf, -inf], dtype=dtype), 2)
    assert (best.tolist(), ids.tolist()) == ([1.0, -inf], [1, 0])
    best, ids = topk_lowest_id_first(
        torch.tensor([[1.0, nan, 3.0, 3.0], [2.0, 1.0, nan, 0.0]], dtype=dtype), 2
    )
    assert ids.tolist() == [[1, 2], [2, 0]]  # a NaN is the greatest value
    assert best.isnan().tolist() == [[True, False], [True, False]]
    assert len(set(topk_lowest_id_first(torch.full((5,), nan), 3)[1].tolist())) == 3


def test_tied_values_carry_gradients_to_the_chosen_ones() -> None:
    scores = torch.tensor([2.0, 7.0, 7.0, 7.0], requires_grad=True)
    best, _ = topk_lowest_id_first(scores, 2)
    best.sum().backward()
    assert scores.grad is not None and scores.grad.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("num_rows", [1, 9, SERIAL_MAX_VALUES // 40 + 9])
@pytest.mark.parametrize("k", [1, KERNEL_MAX_K, KERNEL_MAX_K + 1])
def test_many_rows_are_as_single_rows(num_rows: int, k: int) -> None:
    scores = (
        torch.randint(0, 30, (40, num_rows), generator=torch.Generator().manual_seed(k)).float().T
    )
    order = scores.argsort(dim=-1, descending=True, stable=True)[:, :k]
    best, ids = topk_lowest_id_first(scores, k)
    assert torch.equal(ids, order) and torch.equal(best, scores.gather(1, order))
