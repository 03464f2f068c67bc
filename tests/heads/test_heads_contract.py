# SPDX-License-Identifier: Apache-2.0
"""The promises of every output head, tested for each head over trees of different shape.

A new head needs one line in `make_head` and in `MAIN`, and its decisions in `decisions`.

Dimension key: N rows, D width, V units, K best, B batch, T frames, L labels.
"""

import functools
import math
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from trees import comb, merge_levels

from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, OutputHead, SoftmaxHead
from wenet_hs.heads.base import smoothing_weights
from wenet_hs.heads.hsoftmax import RouteOption
from wenet_hs.tree import NaryTree, Tree

DIM = 8


def zipf(num_units: int) -> np.ndarray:
    return 1.0 / np.arange(1, num_units + 1)


TREES: dict[str, Callable[[int], Tree]] = {
    "zipf": lambda v: Tree.huffman(zipf(v)),
    "skewed": lambda v: Tree.huffman(2.0 ** -np.arange(v, dtype=np.float64)),
    "balanced": lambda v: Tree.balanced(zipf(v)),
    "random": lambda v: Tree.random(zipf(v), seed=1),
    "comb": comb,
}
CLASSES: dict[str, Callable[[int], NaryTree]] = {
    "bins": lambda v: NaryTree.frequency_bins(zipf(v)),
    "zero_bins": lambda v: NaryTree.frequency_bins(np.where(np.arange(v) % 10 == 0, 1.0, 0.0)),
    "cut": lambda v: merge_levels(Tree.huffman(zipf(v)), 2),
    "comb_cut": lambda v: merge_levels(comb(v), 3),
    "flat": lambda v: NaryTree.frequency_bins(zipf(v), 1),
}
"""Ten trees of different shape: even, skewed, as deep as possible, of two and more levels, flat."""


@functools.cache
def tree_of(kind: str, num_units: int) -> Tree | NaryTree:
    name, _, shape = kind.removesuffix("+bias").partition(":")
    return (CLASSES if name == "class" else TREES)[shape](num_units)


def make_head(kind: str, num_units: int) -> OutputHead:
    torch.manual_seed(num_units)
    if kind == "softmax":
        return SoftmaxHead(DIM, num_units)
    if kind == "adaptive":
        return AdaptiveHead(DIM, zipf(num_units))
    tree = tree_of(kind, num_units)
    is_nary = isinstance(tree, NaryTree)
    head = ClassHead(DIM, tree) if is_nary else HSoftmaxHead(DIM, tree, bias=kind.endswith("+bias"))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head


def decisions(kind: str, head: OutputHead) -> list[list[set[int]]]:
    """Each choice that a head makes, as the units below each of its alternatives."""
    everything = set(range(head.num_units))
    if isinstance(head, AdaptiveHead):
        ranked = head.ranked_units.tolist()
        bounds = [*head.cutoffs, head.num_units]
        clusters = [set(ranked[start:end]) for start, end in zip(bounds, bounds[1:], strict=False)]
        return [[*({unit} for unit in ranked[: bounds[0]]), *clusters], *([{unit} for unit in c] for c in clusters)]
    if not isinstance(head, HSoftmaxHead | ClassHead):
        return [[{unit} for unit in everything]]
    tree = tree_of(kind, head.num_units)
    rows = tree.rows() if isinstance(tree, NaryTree) else tree.children.tolist()
    below = [set() for _ in rows] + [{unit} for unit in everything]
    for node in reversed(range(len(rows))):
        below[node] = set().union(*(below[child] for child in rows[node]))
    return [[below[child] for child in row] for row in rows]


MAIN = ("softmax", "adaptive", "hsoftmax:zipf", "hsoftmax:skewed+bias", "class:bins")
OTHERS = ("hsoftmax:balanced", "hsoftmax:random+bias", "hsoftmax:comb", *(f"class:{c}" for c in CLASSES if c != "bins"))
HEADS = MAIN + OTHERS
CASES = [*((kind, v) for kind in MAIN for v in (1, 2, 7, 60, 300)), *((kind, 40) for kind in OTHERS)]
SMALL = [*((kind, v) for kind in MAIN for v in (1, 2, 7)), *((kind, 5) for kind in OTHERS)]


def rows(head: OutputHead, num_rows: int = 6, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(num_rows, DIM, generator=generator, dtype=dtype)
    return hidden, torch.randint(head.num_units, (num_rows,), generator=generator)


@pytest.mark.parametrize(("kind", "num_units"), CASES)
def test_each_row_is_a_distribution(kind: str, num_units: int) -> None:
    head = make_head(kind, num_units)
    log_probs = head.log_probs(rows(head)[0])
    assert log_probs.shape == (6, num_units)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(6), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("kind", "num_units"), CASES)
def test_nll_and_unsmoothed_loss_are_the_log_prob_of_the_target(kind: str, num_units: int) -> None:
    head = make_head(kind, num_units)
    hidden, targets = rows(head)
    expected = -head.log_probs(hidden).gather(-1, targets[:, None])[:, 0]
    torch.testing.assert_close(head.nll(hidden, targets), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(head.loss(hidden, targets, 0.0), head.nll(hidden, targets))


@pytest.mark.parametrize("smoothing", [0.1, 0.9])
@pytest.mark.parametrize(("kind", "num_units"), SMALL)
def test_loss_is_the_divergence_from_the_smoothed_target(kind: str, num_units: int, smoothing: float) -> None:
    head = make_head(kind, num_units)
    hidden, targets = rows(head)
    loss = head.loss(hidden, targets, smoothing)
    wanted_NV = torch.full((6, num_units), smoothing / max(num_units - 1, 1))
    wanted_NV.scatter_(1, targets[:, None], 1 - smoothing if num_units > 1 else 1.0)
    expected = F.kl_div(head.log_probs(hidden), wanted_NV, reduction="none").sum(-1)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    assert (loss >= -1e-6).all()


def assert_are_best(log_probs: Tensor, values: Tensor, ids: Tensor) -> None:
    """The k greatest of each row (N, V), in order; units whose log-probabilities all but agree may change places."""
    best = log_probs.sort(dim=-1, descending=True, stable=True)
    k = ids.size(-1)
    torch.testing.assert_close(values, best.values[:, :k], atol=1e-5, rtol=1e-5)
    gaps = -best.values.diff(dim=-1) > 1e-4 * best.values[:, 1:].abs().clamp(min=0.1)
    edge = torch.ones(len(gaps), 1, dtype=torch.bool)
    clear = (torch.cat([edge, gaps], dim=-1) & torch.cat([gaps, edge], dim=-1))[:, :k]
    assert torch.equal(ids[clear], best.indices[:, :k][clear])
    torch.testing.assert_close(log_probs.gather(-1, ids), values, atol=1e-5, rtol=1e-5)
    assert all(len(set(row)) == k for row in ids.tolist())


@pytest.mark.parametrize(("kind", "num_units"), CASES)
def test_topk_is_the_sorted_distribution(kind: str, num_units: int) -> None:
    head = make_head(kind, num_units)
    hidden, _ = rows(head)
    for k in {1, min(5, num_units), num_units}:
        for with_gradients in (True, False):
            with torch.set_grad_enabled(with_gradients):
                assert_are_best(head.log_probs(hidden).detach(), *head.topk(hidden, k))


@pytest.mark.parametrize("kind", HEADS)
def test_equal_units_come_in_the_order_of_their_ids(kind: str) -> None:
    head = make_head(kind, 50)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    log_probs = head.log_probs(torch.zeros(DIM)).tolist()
    order = sorted(range(50), key=lambda unit: (-log_probs[unit], unit))
    for search in ("auto", *SEARCHES.get(type(head), ())):
        head.search = search  # type: ignore[assignment]
        for with_gradients in (True, False):
            with torch.set_grad_enabled(with_gradients):
                values, ids = head.topk(torch.zeros(2, DIM), 20)
            assert ids.tolist() == [order[:20]] * 2
            assert (values[:, :-1] >= values[:, 1:]).all()


@pytest.mark.parametrize(("kind", "num_units"), CASES)
def test_node_smoothing_smooths_each_decision_of_the_path(kind: str, num_units: int) -> None:
    head = make_head(kind, num_units)
    hidden, targets = rows(head)
    loss = head.loss(hidden, targets, 0.2, "node")
    twin = make_head(kind, num_units).double()
    expected = expected_node_cost(kind, twin, hidden, targets, 0.2)
    torch.testing.assert_close(twin.loss(hidden.double(), targets, 0.2, "node"), expected, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(loss, expected.float(), atol=1e-4, rtol=1e-4)
    assert (loss >= -1e-6).all()
    torch.testing.assert_close(head.loss(hidden, targets, 0.0, "node"), head.nll(hidden, targets))


def expected_node_cost(kind: str, head: OutputHead, hidden: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    log_probs = head.log_probs(hidden.double()).detach()
    costs = torch.zeros(len(targets), dtype=torch.float64)
    for choices in decisions(kind, head):
        scores = torch.stack([log_probs[:, sorted(units)].logsumexp(-1) for units in choices], dim=-1).log_softmax(-1)
        weights = smoothing_weights(smoothing, len(choices))
        for row, target in enumerate(targets.tolist()):
            for choice, units in enumerate(choices):
                if target in units:
                    every = weights.every * scores[row].sum()
                    costs[row] += weights.constant - weights.target * scores[row, choice] - every
    return costs


@pytest.mark.parametrize("kind", MAIN)
def test_a_single_decision_knows_one_smoothing(kind: str) -> None:
    head = make_head(kind, 2)
    hidden, targets = rows(head)
    if len(decisions(kind, head)) == 1:
        torch.testing.assert_close(head.loss(hidden, targets, 0.3, "node"), head.loss(hidden, targets, 0.3, "leaf"))
    with pytest.raises(ValueError, match='kind: must be "leaf" or "node", got \'path\''):
        head.loss(hidden, targets, 0.1, "path")  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "num_units"), CASES)
def test_metrics_are_nll_and_the_first_of_topk(kind: str, num_units: int) -> None:
    head = make_head(kind, num_units)
    hidden, targets = rows(head)
    first = head.log_probs(hidden).argmax(-1)
    targets = torch.where(torch.arange(len(targets)) % 2 == 0, first, targets)
    nll, is_best = head.eval_metrics(hidden, targets)
    torch.testing.assert_close(nll, head.nll(hidden, targets).detach(), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        assert torch.equal(is_best, head.topk(hidden, 1)[1][:, 0] == targets)
    assert is_best[::2].all() and not nll.requires_grad
    for smoothing, where in ((0.0, "leaf"), (0.1, "leaf"), (0.1, "node")):
        loss, nll_again, is_best_again = head.loss_and_metrics(hidden, targets, smoothing, where)  # type: ignore[arg-type]
        torch.testing.assert_close(loss, head.loss(hidden, targets, smoothing, where))  # type: ignore[arg-type]
        torch.testing.assert_close(nll_again, nll)  # a product that needs no gradient may add in another order
        assert torch.equal(is_best_again, is_best) and not nll_again.requires_grad


@pytest.mark.parametrize(("kind", "num_units"), CASES)
def test_label_log_probs_are_those_of_the_labels(kind: str, num_units: int) -> None:
    head = make_head(kind, num_units)
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(2, 5, DIM, generator=generator, requires_grad=True)
    labels = torch.randint(num_units, (2, 4), generator=generator)
    expected = head.log_probs(hidden).gather(-1, labels[:, None].expand(-1, 5, -1))
    found = head.label_log_probs(hidden, labels)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    upstream = torch.randn(found.shape, generator=generator)
    inputs = (hidden, *head.parameters())
    gradients = [
        torch.autograd.grad((values * upstream).sum(), inputs, allow_unused=True) for values in (found, expected)
    ]
    for got, wanted in zip(*gradients, strict=True):
        if got is not None or wanted is not None:
            torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


ROUTES: dict[type, tuple[str, ...]] = {HSoftmaxHead: get_args(RouteOption), ClassHead: ("path", "all")}
SEARCHES: dict[type, tuple[str, ...]] = {ClassHead: ("best_first", "all")}


@pytest.mark.parametrize("kind", HEADS)
def test_every_route_gives_the_same(kind: str) -> None:
    head = make_head(kind, 60)
    hidden, targets = rows(head, 30)
    hidden.requires_grad_()
    for smoothing, where in ((0.0, "leaf"), (0.1, "leaf"), (0.1, "node")):
        results = []
        for route in ("auto", *ROUTES.get(type(head), ())):
            head.route = route  # type: ignore[assignment]
            loss = head.loss(hidden, targets, smoothing, where)  # type: ignore[arg-type]
            upstream = torch.linspace(-1, 2, 30)
            results.append((loss, *torch.autograd.grad((loss * upstream).sum(), (hidden, *head.parameters()))))
        for result in results[1:]:
            torch.testing.assert_close(result, results[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(), (2, 3), (2, 0, 3)])
@pytest.mark.parametrize(("kind", "num_units"), SMALL)
def test_any_leading_shape(kind: str, num_units: int, shape: tuple[int, ...]) -> None:
    head = make_head(kind, num_units)
    hidden, targets = torch.randn(*shape, DIM), torch.zeros(shape, dtype=torch.int32)
    assert head.log_probs(hidden).shape == (*shape, num_units)
    assert head.nll(hidden, targets).shape == head.loss(hidden, targets, 0.1).shape == shape
    values, ids = head.topk(hidden, 1)
    assert values.shape == ids.shape == (*shape, 1)
    assert ids.dtype == torch.int64


@pytest.mark.parametrize("kind", MAIN)
def test_rows_do_not_see_each_other(kind: str) -> None:
    head = make_head(kind, 300)
    hidden, targets = rows(head)
    for smoothing in (0.0, 0.1):
        alone = torch.cat([head.loss(hidden[i : i + 1], targets[i : i + 1], smoothing) for i in range(len(hidden))])
        torch.testing.assert_close(head.loss(hidden, targets, smoothing), alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", MAIN)
def test_autocast_and_half_inputs_change_nothing(kind: str, low: torch.dtype) -> None:
    head = make_head(kind, 50)
    hidden, targets = rows(head)
    hidden = hidden.to(low)
    exact = head.log_probs(hidden.float()), head.loss(hidden.float(), targets, 0.1), head.nll(hidden.float(), targets)
    with torch.autocast("cpu", dtype=low):
        found = head.log_probs(hidden), head.loss(hidden, targets, 0.1), head.nll(hidden, targets)
        values, _ = head.topk(hidden, 3)
    for got, expected in zip(found, exact, strict=True):
        assert got.dtype == torch.float32
        assert torch.equal(got, expected)
    assert values.dtype == torch.float32


@pytest.mark.parametrize("kind", MAIN)
def test_half_weights_are_computed_in_float32(kind: str) -> None:
    head = make_head(kind, 50).to(torch.bfloat16)
    hidden, targets = rows(head)
    twin = make_head(kind, 50)
    twin.load_state_dict({name: value.float() for name, value in head.state_dict().items()})
    for smoothing in (0.0, 0.1):
        assert torch.equal(head.loss(hidden, targets, smoothing), twin.loss(hidden, targets, smoothing))


@pytest.mark.parametrize("kind", MAIN)
def test_float64_stays_float64(kind: str) -> None:
    head = make_head(kind, 7).double()
    hidden, targets = rows(head, dtype=torch.float64)
    log_probs = head.log_probs(hidden)
    assert log_probs.dtype == head.loss(hidden, targets, 0.1).dtype == torch.float64
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(6, dtype=torch.float64), atol=1e-14, rtol=0)


@pytest.mark.parametrize(("smoothing", "where"), [(0.0, "leaf"), (0.1, "leaf"), (0.1, "node")])
@pytest.mark.parametrize(("kind", "num_units"), SMALL)
def test_gradients_stay_finite_at_extreme_scores(kind: str, num_units: int, smoothing: float, where: str) -> None:
    head = make_head(kind, num_units)
    hidden, targets = rows(head)
    hidden = (1e4 * hidden).requires_grad_()
    loss = head.loss(hidden, targets, smoothing, where).sum()  # type: ignore[arg-type]
    loss.backward()
    assert math.isfinite(loss.item())
    assert hidden.grad is not None and hidden.grad.isfinite().all()
    for parameter in head.parameters():
        untouched = parameter.grad is None and kind == "adaptive"  # a cluster that no target is in
        assert untouched or (parameter.grad is not None and parameter.grad.isfinite().all())
    assert head.log_probs(hidden).isfinite().all()


@pytest.mark.parametrize(("kind", "num_units"), SMALL)
def test_gradients_are_right(kind: str, num_units: int) -> None:
    head = make_head(kind, num_units).double()
    hidden, targets = rows(head, 3, torch.float64)
    # gradcheck moves its inputs in place, so handing it the parameters checks their gradients as well.
    inputs = (hidden.requires_grad_(), *(parameter for parameter in head.parameters() if parameter.numel()))
    check = functools.partial(torch.autograd.gradcheck, fast_mode=True)
    assert check(lambda hidden, *_: head.log_probs(hidden), inputs)
    for smoothing, where in ((0.0, "leaf"), (0.1, "leaf"), (0.1, "node")):
        cost = functools.partial(head.loss, targets=targets, smoothing=smoothing, kind=where)  # type: ignore[arg-type]
        assert check(lambda hidden, *_: cost(hidden), inputs)  # noqa: B023


@pytest.mark.parametrize("kind", HEADS)
def test_smoothed_gradients_equal_those_of_the_explicit_divergence(kind: str) -> None:
    head = make_head(kind, 300).double()
    hidden, targets = rows(head, dtype=torch.float64)
    hidden.requires_grad_()
    wanted_NV = torch.full((6, 300), 0.1 / 299, dtype=torch.float64).scatter_(1, targets[:, None], 0.9)
    explicit = F.kl_div(head.log_probs(hidden), wanted_NV, reduction="sum")
    expected = torch.autograd.grad(explicit, (hidden, *head.parameters()))
    found = torch.autograd.grad(head.loss(hidden, targets, 0.1).sum(), (hidden, *head.parameters()))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("num_units", [2, 60])
@pytest.mark.parametrize("kind", HEADS)
def test_topk_values_carry_the_gradients_of_their_units(kind: str, num_units: int) -> None:
    head = make_head(kind, num_units)
    hidden = rows(head)[0].requires_grad_()
    values, ids = head.topk(hidden, 2)
    upstream = torch.linspace(-1, 2, values.numel()).view_as(values)
    inputs = (hidden, *head.parameters())
    expected = torch.autograd.grad((head.log_probs(hidden).gather(-1, ids) * upstream).sum(), inputs)
    torch.testing.assert_close(torch.autograd.grad((values * upstream).sum(), inputs), expected, atol=1e-4, rtol=1e-4)
    for parameter in list(head.parameters())[:-1]:  # what is frozen takes none from the rest
        parameter.requires_grad_(False)
    last = list(head.parameters())[-1:]
    (alone,) = torch.autograd.grad((head.topk(hidden.detach(), 2)[0] * upstream).sum(), last)
    torch.testing.assert_close(alone, expected[-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", MAIN)
def test_the_state_dict_holds_parameters_alone(kind: str) -> None:
    head = make_head(kind, 7)
    assert set(head.state_dict()) == {name for name, _ in head.named_parameters()}


@pytest.mark.parametrize("kind", MAIN)
def test_wrong_calls_are_refused(kind: str) -> None:
    head = make_head(kind, 7)
    hidden, targets = rows(head)
    with pytest.raises(ValueError, match="topk: k is 8; with 7 units it must be 1…7"):
        head.topk(hidden, 8)
    with pytest.raises(ValueError, match="topk: k is 0"):
        head.topk(hidden, 0)
    with pytest.raises(ValueError, match="targets: values from -1 to [0-9], expected 0…6; remove padding before"):
        head.loss(hidden, targets.index_fill(0, torch.tensor([0]), -1))
    with pytest.raises(ValueError, match="targets: values from [0-9] to 7, expected 0…6"):
        head.nll(hidden, targets.index_fill(0, torch.tensor([0]), 7))
    with pytest.raises(
        ValueError, match=r"targets: expected integers of shape \(6,\), one per row of hidden, got \(5,\)"
    ):
        head.nll(hidden, targets[:5])
    with pytest.raises(ValueError, match="targets: expected integers"):
        head.nll(hidden, targets.float())
    with pytest.raises(ValueError, match=r"hidden: expected \(..., 8\) of a float dtype, got \(6, 9\) torch.float32"):
        head.log_probs(torch.zeros(6, 9))
    with pytest.raises(ValueError, match="hidden: expected"):
        head.log_probs(torch.zeros(6, 8, dtype=torch.int64))
    for smoothing in (-0.1, 1.0):
        with pytest.raises(ValueError, match=r"smoothing: must be in \[0, 1\), got"):
            head.loss(hidden, targets, smoothing)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("kind", ["hsoftmax:zipf", "class:bins"])
def test_compiles_in_a_model(kind: str) -> None:
    head = make_head(kind, 3000)
    hidden, targets = torch.randn(2, 6, DIM), torch.randint(3000, (2, 6))
    weight = torch.randn(DIM, DIM, requires_grad=True)
    costs: list[Callable[[Tensor], Tensor]] = [
        lambda hidden: head.loss(torch.tanh(hidden @ weight), targets, 0.1),
        lambda hidden: head.nll(torch.tanh(hidden @ weight), targets),
        lambda hidden: head.loss(torch.tanh(hidden @ weight), targets, 0.1, "node"),
        lambda hidden: head.log_probs(torch.tanh(hidden @ weight)),
        lambda hidden: head.label_log_probs(torch.tanh(hidden @ weight), targets),
        lambda hidden: head.topk(torch.tanh(hidden @ weight), 3)[0],
    ]
    for cost in costs:
        compiled = torch.compile(cost, backend="aot_eager")
        results = []
        for value in (compiled(hidden), cost(hidden)):
            results.append((value, *torch.autograd.grad(value.sum(), (weight, next(head.parameters())))))
        torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
