# SPDX-License-Identifier: Apache-2.0
"""The k best leaves by every method, against a plain sort of all log-probabilities."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wenet_hs.heads.kernels import search
from wenet_hs.heads.kernels.search import SearchMethod, choose_search, expected_opened, limits
from wenet_hs.heads.kernels.tree import TreeTables
from wenet_hs.tree import Tree

METHODS: tuple[SearchMethod, ...] = ("torch", "best_first", "dense")
SHAPES = ("huffman", "balanced", "comb", "random")


def best_leaves(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, children: Tensor, k: int, method: SearchMethod = "auto"
) -> tuple[Tensor, Tensor]:
    """`search.best_leaves` of the tree with these children."""
    num_units = len(children) + 1
    tree = Tree("imported", tuple(map(str, range(num_units))), children.numpy(), np.ones(num_units))
    return search.best_leaves(hidden, weight, bias, TreeTables(tree), k, method=method)


class Case(NamedTuple):
    """Arguments of `best_leaves` and what it should give, from log-probabilities in double precision."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    children: Tensor
    k: int
    log_probs: Tensor


def shaped_tree(shape: str, num_units: int, generator: np.random.Generator) -> Tree:
    """A tree whose leaves' numbers are spread over it, so that nothing follows from their order."""
    order = generator.permutation(num_units)
    if shape == "comb":
        return Tree.huffman(
            np.exp2(-order.astype(float))
        )  # of more than 1,074 units the others are a subtree at its end
    if shape == "random":
        return Tree.huffman(generator.random(num_units) ** 8)
    return Tree.huffman(1.0 / (order + 1.0) if shape == "huffman" else np.ones(num_units))


def plain_log_probs(hidden: Tensor, weight: Tensor, bias: Tensor | None, children: Tensor) -> Tensor:
    """One level of the tree after the other, in double precision."""
    scores = torch.nn.functional.linear(hidden.double(), weight.double(), None if bias is None else bias.double())
    turns = torch.stack([torch.nn.functional.logsigmoid(scores), torch.nn.functional.logsigmoid(-scores)], -1)
    sums = torch.zeros(len(hidden), 2 * len(children) + 1, dtype=torch.float64)
    level = torch.arange(min(1, len(children)))
    while len(level):
        sums[:, children[level]] = sums[:, level, None] + turns[:, level]
        level = children[level].reshape(-1)
        level = level[level < len(children)]
    return sums[:, len(children) :]


def random_case(children: Tensor, num_rows: int, generator: np.random.Generator) -> Case:
    """Width 1 to 24, weights whose node scores have a deviation between 0.01 and 30."""
    num_units, dim = len(children) + 1, int(generator.integers(1, 25))
    scale = float(generator.choice([0.01, 0.3, 1.0, 4.0, 30.0])) / dim**0.5
    hidden, weight, bias = (
        torch.from_numpy(generator.standard_normal(shape).astype(np.float32))
        for shape in ((num_rows, dim), (num_units - 1, dim), (num_units - 1,))
    )
    weight *= scale
    chosen = bias if generator.random() < 0.5 else None
    k = int(generator.integers(1, min(num_units, 100) + 1))
    return Case(hidden, weight, chosen, children, k, plain_log_probs(hidden, weight, chosen, children))


def check(case: Case, method: SearchMethod) -> None:
    """Values as sorted; ids as sorted wherever the next value is far enough away to be told from this one."""
    values, ids = best_leaves(*case[:5], method=method)
    assert ids.dtype == torch.int64 and values.dtype == torch.float32
    best, order = case.log_probs.sort(descending=True, stable=True)
    torch.testing.assert_close(values.double(), best[:, : case.k], rtol=1e-5, atol=1e-6)
    assert bool((values[:, 1:] <= values[:, :-1]).all())
    assert all(len(set(row)) == case.k for row in ids.tolist())
    gap = torch.full((len(best), best.size(1) + 1), torch.inf, dtype=torch.float64)
    gap[:, 1:-1] = best[:, :-1] - best[:, 1:]
    clear = torch.minimum(gap[:, :-1], gap[:, 1:]) > 1e-5 * best.abs() + 2e-6
    assert bool((ids == order[:, : case.k])[clear[:, : case.k]].all())


def check_many(seed: int, units: list[int], cases_a_tree: int, rows: int) -> int:
    generator = np.random.default_rng(seed)
    done = 0
    for num_units in units:
        for shape in SHAPES:
            children = torch.tensor(shaped_tree(shape, num_units, generator).children)
            for _ in range(cases_a_tree):
                case = random_case(children, rows, generator)
                for method in METHODS[1:]:
                    check(case, method)
                done += rows
    return done


def test_equal_to_sorting() -> None:
    assert check_many(1, [1, 2, 3, 17, 100, 700, 3000], 3, 3) > 200


@pytest.mark.slow
def test_equal_to_sorting_ten_thousand_cases() -> None:
    generator = np.random.default_rng(2)
    units = [int(num) for num in np.exp(generator.uniform(0, np.log(50_000), 60))] + [1, 2, 50_000]
    assert check_many(3, units, 8, 5) >= 10_000


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.sampled_from(SHAPES), st.integers(0, 2**32 - 1))
def test_the_reference_is_a_sort(num_units: int, shape: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    children = torch.tensor(shaped_tree(shape, num_units, generator).children)
    check(random_case(children, 2, generator), "torch")


@pytest.mark.parametrize("method", METHODS)
def test_worked_example(method: SearchMethod) -> None:
    # Node 0: unit 2 left with 3/4, else node 1: unit 0 left with 1/3, unit 1 with 2/3.
    children = torch.tensor([[4, 1], [2, 3]])
    weight = torch.tensor([[3.0], [0.5]]).log()
    values, ids = best_leaves(torch.ones(1, 1), weight, None, children, 3, method=method)
    assert ids.tolist() == [[2, 1, 0]]
    torch.testing.assert_close(values.exp(), torch.tensor([[3 / 4, 1 / 6, 1 / 12]]))
    values, ids = best_leaves(torch.ones(1, 1), weight * 0, weight[:, 0], children, 2, method=method)
    assert ids.tolist() == [[2, 1]]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [1, 3, 8])
def test_ties_go_to_the_lower_unit(method: SearchMethod, k: int) -> None:
    children = torch.tensor(Tree.huffman(np.ones(8)).children.copy())
    shuffled = torch.where(children >= 7, 7 + (children - 7) * 3 % 8, children)
    values, ids = best_leaves(torch.ones(2, 4), torch.zeros(7, 4), None, shuffled, k, method=method)
    assert ids.tolist() == [list(range(k))] * 2
    torch.testing.assert_close(values.exp(), torch.full((2, k), 1 / 8))


@pytest.mark.parametrize("method", METHODS)
def test_a_tie_below_an_inner_node_of_the_same_score(method: SearchMethod) -> None:
    # The root is sure to go right. Node 1 gives a half to unit 3, its left leaf, and a half to node 2, which is sure of
    # unit 0: found later, but the lower unit.
    children = torch.tensor([[4, 1], [6, 2], [3, 5]])
    weight = torch.tensor([[-200.0], [0.0], [200.0]])
    values, ids = best_leaves(torch.ones(1, 1), weight, None, children, 2, method=method)
    assert ids.tolist() == [[0, 3]]
    assert values[0, 0] == values[0, 1]


@pytest.mark.parametrize("method", METHODS)
def test_extreme_scores_are_exact(method: SearchMethod) -> None:
    children = torch.tensor([[2, 1], [3, 4]])
    weight = torch.tensor([[1e4], [-1e4]])
    values, ids = best_leaves(torch.ones(1, 1), weight, None, children, 3, method=method)
    assert ids.tolist() == [[0, 2, 1]]
    torch.testing.assert_close(values, torch.tensor([[0.0, -1e4, -2e4]]), atol=1e-37, rtol=0)


def peaked(num_rows: int, num_units: int, shape: str = "huffman") -> Case:
    generator = np.random.default_rng(7)
    children = torch.tensor(shaped_tree(shape, num_units, generator).children)
    hidden, weight = (
        torch.from_numpy(generator.standard_normal((rows, 16)).astype(np.float32)) for rows in (num_rows, num_units - 1)
    )
    return Case(hidden, weight, None, children, 10, plain_log_probs(hidden, weight, None, children))


@pytest.mark.parametrize("method", METHODS)
def test_a_nan_row_comes_back_as_nan_and_harms_no_other(method: SearchMethod) -> None:
    case = peaked(6, 300)
    clean = best_leaves(*case[:5], method=method)
    case.hidden[2, 3] = torch.nan
    values, ids = best_leaves(*case[:5], method=method)
    assert bool(values[2].isnan().all()) and len(set(ids[2].tolist())) == 10
    others = [0, 1, 3, 4, 5]
    torch.testing.assert_close(values[others], clean[0][others])
    assert torch.equal(ids[others], clean[1][others])


def test_a_row_beyond_its_room_goes_to_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    case = peaked(40, 500)
    alone = best_leaves(*case[:5], method="best_first")
    asked = []
    dense = search._dense
    monkeypatch.setattr(search, "_dense", lambda hidden, *rest: asked.append(len(hidden)) or dense(hidden, *rest))
    monkeypatch.setattr(search, "limits", lambda num_units, k: (30, 30))
    values, ids = best_leaves(*case[:5], method="best_first")
    assert len(asked) == 1 and 0 < asked[0] < 40
    torch.testing.assert_close(values, alone[0])
    assert torch.equal(ids, alone[1])


def test_a_tree_of_equal_leaves_is_given_up_early() -> None:
    from wenet_hs.heads.kernels import search_numba

    children = torch.tensor(Tree.huffman(np.ones(2048)).children)
    hidden, weight = torch.ones(320, 4), torch.zeros(2047, 4)
    for num_rows, tried in ((320, 2), (20, 20)):
        found = search_numba.search(hidden[:num_rows], weight, None, children, k=10, limits=limits(2048, 10))
        assert found[3] == num_rows
        assert (found[2] == -limits(2048, 10)[1] - 1).sum() == tried
    values, ids = best_leaves(hidden, weight, None, children, 10)
    assert ids.tolist() == [list(range(10))] * 320


def test_it_opens_few_nodes() -> None:
    from wenet_hs.heads.kernels import search_numba

    case = peaked(50, 5000)
    opened = search_numba.search(case.hidden, case.weight, None, case.children, k=10, limits=(5000, 32))[2]
    assert opened.min() >= 10 and opened.mean() < 1.5 * expected_opened(5000, 10)


@pytest.mark.parametrize("method", ["best_first", "dense"])
@pytest.mark.parametrize("num_rows", [2, 67])
def test_the_number_of_threads_changes_no_bit(method: SearchMethod, num_rows: int) -> None:
    case = peaked(num_rows, 400)
    one = best_leaves(*case[:5], method=method)
    torch.set_num_threads(2)
    try:
        two = best_leaves(*case[:5], method=method)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(one[1], two[1])
    if method == "best_first":  # the product is the library's
        assert torch.equal(one[0], two[0])


@pytest.mark.parametrize("method", METHODS)
def test_no_rows_one_unit_and_strided_rows(method: SearchMethod) -> None:
    case = peaked(4, 50)
    values, ids = best_leaves(case.hidden[:0], *case[1:5], method=method)
    assert values.shape == ids.shape == (0, 10)
    values, ids = best_leaves(
        case.hidden, torch.empty(0, 16), None, torch.empty(0, 2, dtype=torch.int64), 1, method=method
    )
    assert values.tolist() == [[0.0]] * 4 and ids.tolist() == [[0]] * 4
    strided = case.hidden.T.contiguous().T
    assert torch.equal(best_leaves(strided, *case[1:5], method=method)[1], best_leaves(*case[:5], method=method)[1])


def test_parameters_and_double_precision() -> None:
    case = peaked(3, 600)
    weight = torch.nn.Parameter(case.weight)
    values, ids = best_leaves(case.hidden.requires_grad_(), weight, None, case.children, 5)
    assert not values.requires_grad
    double = best_leaves(case.hidden.double(), weight.double(), None, case.children, 5)
    assert double[0].dtype == torch.float64 and torch.equal(double[1], ids)
    torch.testing.assert_close(double[0], case.log_probs.sort(descending=True).values[:, :5])
    with pytest.raises(ValueError, match='method "best_first" needs float32, got torch.float64; use "dense"'):
        best_leaves(case.hidden.double(), weight.double(), None, case.children, 5, method="best_first")


def test_the_product_is_cut_to_bound_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    case = peaked(11, 90)
    whole = best_leaves(*case[:5], method="dense")
    monkeypatch.setattr(search, "DENSE_MAX_SCORES", 4 * 90)
    parts = best_leaves(*case[:5], method="dense")
    assert torch.equal(whole[1], parts[1])
    torch.testing.assert_close(whole[0], parts[0])


def test_many_best_leaves_than_insertion_is_good_for() -> None:
    case = peaked(3, 200)._replace(k=200)
    check(case, "dense")
    check(case, "best_first")


def test_wrong_calls() -> None:
    case = peaked(3, 50)
    with pytest.raises(ValueError, match=r"hidden \(3, 16\), weight \(49, 16\), k 51, 50 units do not fit together"):
        best_leaves(*case[:4], 51)
    with pytest.raises(ValueError, match="weight"):
        best_leaves(case.hidden, case.weight[:-1], None, case.children, 3)
    with pytest.raises(ValueError, match="search: must be one of auto, torch, best_first, dense, got 'fast'"):
        best_leaves(*case[:5], method="fast")  # type: ignore[arg-type]


def test_choice() -> None:
    def cpu(num_rows: int, num_units: int, k: int = 10) -> str:
        return choose_search(num_rows, num_units, k, "cpu", torch.float32)

    assert [cpu(1, 150), cpu(10, 150), cpu(160, 150), cpu(4000, 150)] == ["best_first"] * 2 + ["dense"] * 2
    assert cpu(160, 1000) == cpu(4000, 267_735) == cpu(1, 10_000) == "best_first"
    assert cpu(10, 1000, k=500) == cpu(10, 2) == cpu(10, 1, k=1) == "dense"
    assert choose_search(10, 10_000, 10, "cpu", torch.float64) == "dense"
    assert choose_search(10, 267_735, 10, "mps", torch.float32) == "dense"
    assert choose_search(10, 267_735, 100, "cuda", torch.float32) == "dense"
    assert choose_search(10, 150, 10, torch.device("cuda", 1), torch.float32) == "dense"
    assert choose_search(10, 267_735, 10, "cuda", torch.float32) == ("best_first" if search.has_triton() else "dense")


@given(st.integers(2, 10**6), st.integers(1, 1000))
def test_limits(num_units: int, k: int) -> None:
    k = min(k, num_units)
    in_all, before_a_leaf = limits(num_units, k)
    assert min(num_units, 1.5 * expected_opened(num_units, k)) <= in_all <= num_units
    assert before_a_leaf >= 32
