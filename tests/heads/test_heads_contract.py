# SPDX-License-Identifier: Apache-2.0
"""The promises of every output head, tested for each head over trees of different shape.

A new head needs one line in `make_head` and in `MAIN`, and a branch in `decisions` if a unit has
several on its path.

Dimension key: N rows, D width, V units, K best, B batch, T frames, L labels.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from trees import comb, merge_levels

from wenet_hs.heads import (
    AdaptiveHead,
    ClassHead,
    HSoftmaxHead,
    OutputHead,
    SoftmaxHead,
    class_softmax,
    hsoftmax,
    node_head,
)
from wenet_hs.heads.base import SmoothingKind
from wenet_hs.heads.node_head import NodeHead, Route, SearchMethod
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
        return [
            [*({unit} for unit in ranked[: bounds[0]]), *clusters],
            *([{unit} for unit in c] for c in clusters),
        ]
    if not isinstance(head, HSoftmaxHead | ClassHead):
        return [[{unit} for unit in everything]]
    tree = tree_of(kind, head.num_units)
    rows = tree.rows() if isinstance(tree, NaryTree) else tree.children.tolist()
    below = [set() for _ in rows] + [{unit} for unit in everything]
    for node in reversed(range(len(rows))):
        below[node] = set().union(*(below[child] for child in rows[node]))
    return [[below[child] for child in row] for row in rows]


MAIN = ("softmax", "adaptive", "hsoftmax:zipf", "hsoftmax:skewed+bias", "class:bins")
OTHERS = (
    "hsoftmax:balanced",
    "hsoftmax:random+bias",
    "hsoftmax:comb",
    *(f"class:{c}" for c in CLASSES if c != "bins"),
)
HEADS = MAIN + OTHERS
CASES = [*((kind, v) for kind in MAIN for v in (2, 60)), *((kind, 40) for kind in OTHERS)]
LOSSES: list[tuple[float, SmoothingKind]] = [(0.0, "leaf"), (0.1, "leaf"), (0.1, "node")]


def each_route(head: OutputHead, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The head with each of its routes, by kernels and, as on a GPU, by PyTorch."""
    if not isinstance(head, NodeHead):
        yield
        return
    for route in get_args(Route):
        head.route = route
        for has_kernels in (True, False):
            for module in (node_head, hsoftmax, class_softmax):
                monkeypatch.setattr(module, "can_use_kernels", lambda _, found=has_kernels: found)
            yield
    monkeypatch.undo()


def each_search(head: OutputHead) -> Iterator[None]:
    """The head with each way to find the best units."""
    for search in get_args(SearchMethod) if isinstance(head, NodeHead) else ("auto",):
        head.search = search
        yield


def rows(
    head: OutputHead, num_rows: int = 6, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(num_rows, DIM, generator=generator, dtype=dtype)
    return hidden, torch.randint(head.num_units, (num_rows,), generator=generator)


@pytest.mark.parametrize(("kind", "num_units"), CASES)
def test_log_probs_and_losses_fit_together(kind: str, num_units: int) -> None:
    head = make_head(kind, num_units)
    hidden, targets = rows(head)
    log_probs = head.log_probs(hidden)
    assert log_probs.shape == (6, num_units)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(6), atol=1e-6, rtol=0)
    nll = head.nll(hidden, targets)
    torch.testing.assert_close(
        nll, -log_probs.gather(-1, targets[:, None])[:, 0], atol=1e-5, rtol=1e-5
    )
    for smoothing_kind in ("leaf", "node"):
        torch.testing.assert_close(head.loss(hidden, targets, 0.0, smoothing_kind), nll)  # type: ignore[arg-type]
    loss = head.loss(hidden, targets, 0.9)
    torch.testing.assert_close(loss, divergence(log_probs, targets, 0.9), atol=1e-5, rtol=1e-5)
    assert (loss >= -1e-6).all()


def divergence(log_probs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """KL(q ‖ p) of the explicit smoothed target q, WeNet's: ε/(V-1) beside the target."""
    num_units = log_probs.size(-1)
    wanted_NV = torch.full_like(log_probs, smoothing / max(num_units - 1, 1))
    wanted_NV.scatter_(1, targets[:, None], 1 - smoothing if num_units > 1 else 1.0)
    return F.kl_div(log_probs, wanted_NV, reduction="none").sum(-1)


def assert_are_best(log_probs: Tensor, values: Tensor, ids: Tensor) -> None:
    """The k greatest of each row (N, V), in order; units of nearly equal log-probabilities may be
    exchanged.
    """
    best = log_probs.sort(dim=-1, descending=True, stable=True)
    k = ids.size(-1)
    torch.testing.assert_close(values, best.values[:, :k], atol=1e-5, rtol=1e-5)
    gaps = -best.values.diff(dim=-1) > 1e-4 * best.values[:, 1:].abs().clamp(min=0.1)
    edge = torch.ones(len(gaps), 1, dtype=torch.bool)
    clear = (torch.cat([edge, gaps], dim=-1) & torch.cat([gaps, edge], dim=-1))[:, :k]
    assert torch.equal(ids[clear], best.indices[:, :k][clear])
    torch.testing.assert_close(log_probs.gather(-1, ids), values, atol=1e-5, rtol=1e-5)
    assert all(len(set(row)) == k for row in ids.tolist())


@pytest.mark.parametrize(("kind", "num_units"), [*CASES, *((kind, 300) for kind in MAIN)])
def test_topk_is_the_sorted_distribution(kind: str, num_units: int) -> None:
    head = make_head(kind, num_units)
    hidden, _ = rows(head)
    for k in {1, min(5, num_units), num_units}:
        for with_gradients in (True, False):
            with torch.set_grad_enabled(with_gradients):
                assert_are_best(head.log_probs(hidden).detach(), *head.topk(hidden, k))


@pytest.mark.parametrize("kind", HEADS)
@torch.no_grad()
def test_equal_units_come_in_the_order_of_their_ids(kind: str) -> None:
    head = make_head(kind, 50)
    for parameter in head.parameters():
        parameter.zero_()
    log_probs = head.log_probs(torch.zeros(DIM)).tolist()
    order = sorted(range(50), key=lambda unit: (-log_probs[unit], unit))
    for _ in each_search(head):
        values, ids = head.topk(torch.zeros(2, DIM), 20)
        assert ids.tolist() == [order[:20]] * 2
        assert (values[:, :-1] >= values[:, 1:]).all()


@pytest.mark.parametrize(("kind", "num_units"), CASES)
def test_node_smoothing_smooths_each_decision_of_the_path(kind: str, num_units: int) -> None:
    head, twin = make_head(kind, num_units), make_head(kind, num_units).double()
    hidden, targets = rows(head)
    loss = head.loss(hidden, targets, 0.2, "node")
    log_probs = twin.log_probs(hidden.double()).detach()
    expected = torch.zeros(len(targets), dtype=torch.float64)
    for choices in decisions(kind, head):
        scores = torch.stack(
            [log_probs[:, sorted(units)].logsumexp(-1) for units in choices], dim=-1
        ).log_softmax(-1)
        for row, target in enumerate(targets.tolist()):
            for choice, units in enumerate(choices):
                if target in units:
                    expected[row] += divergence(scores[row : row + 1], torch.tensor([choice]), 0.2)[
                        0
                    ]
    torch.testing.assert_close(
        twin.loss(hidden.double(), targets, 0.2, "node"), expected, atol=1e-9, rtol=1e-9
    )
    torch.testing.assert_close(loss, expected.float(), atol=1e-4, rtol=1e-4)
    if len(decisions(kind, head)) == 1:
        torch.testing.assert_close(head.loss(hidden, targets, 0.2, "leaf"), loss)


@pytest.mark.parametrize(("kind", "num_units"), CASES)
def test_metrics_are_nll_and_the_first_of_topk(kind: str, num_units: int) -> None:
    head = make_head(kind, num_units)
    hidden, targets = rows(head)
    targets[::2] = head.log_probs(hidden).argmax(-1)[::2]
    nll, is_best = head.eval_metrics(hidden, targets)
    torch.testing.assert_close(nll, head.nll(hidden, targets).detach(), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        assert torch.equal(is_best, head.topk(hidden, 1)[1][:, 0] == targets)
    assert is_best[::2].all() and not nll.requires_grad
    for smoothing, smoothing_kind in LOSSES:
        loss, nll_again, is_best_again = head.loss_and_metrics(
            hidden, targets, smoothing, smoothing_kind
        )
        torch.testing.assert_close(loss, head.loss(hidden, targets, smoothing, smoothing_kind))
        torch.testing.assert_close(
            nll_again, nll
        )  # a product that needs no gradient may add in another order
        assert torch.equal(is_best_again, is_best) and not nll_again.requires_grad


def gradients(head: OutputHead, hidden: Tensor, values: Tensor) -> tuple[Tensor, ...]:
    upstream = torch.linspace(-1, 2, values.numel(), dtype=values.dtype).view_as(values)
    inputs = (hidden, *head.parameters())
    return torch.autograd.grad(
        (values * upstream).sum(), inputs, allow_unused=True, materialize_grads=True
    )


@pytest.mark.parametrize(
    ("kind", "num_units"), [*CASES, ("hsoftmax:skewed+bias", 600), ("class:bins", 600)]
)
def test_label_log_probs_are_those_of_the_labels(
    kind: str, num_units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = make_head(kind, num_units)
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(2, 5, DIM, generator=generator, requires_grad=True)
    labels = torch.randint(num_units, (2, 4), generator=generator)
    labels[1] = labels[1, 0]  # a label that repeats
    expected = head.log_probs(hidden).gather(-1, labels[:, None].expand(-1, 5, -1))
    assert head.label_log_probs(hidden, labels[:, :0]).shape == (2, 5, 0)
    assert head.label_log_probs(hidden[:0], labels[:0]).shape == (0, 5, 4)
    if num_units == 600:  # only the nodes above the labels are computed
        monkeypatch.delattr(NodeHead, "_log_probs")
    found = head.label_log_probs(hidden, labels)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        gradients(head, hidden, found), gradients(head, hidden, expected), atol=1e-4, rtol=1e-4
    )
    exact = head.double().label_log_probs(hidden.double(), labels).float()
    torch.testing.assert_close(exact, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("kind", [kind for kind in HEADS if ":" in kind])
def test_every_route_gives_the_values_and_gradients_of_float64(
    kind: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, twin = make_head(kind, 60), make_head(kind, 60).double()
    hidden, targets = rows(head, 30)
    hidden = (scale * hidden).requires_grad_()
    exact_hidden = hidden.detach().double().requires_grad_()
    for loss in LOSSES:
        exact = twin.loss(exact_hidden, targets, *loss)
        expected = exact, *gradients(twin, exact_hidden, exact)
        for _ in each_route(head, monkeypatch):
            found = head.loss(hidden, targets, *loss)
            for value, wanted in zip(
                (found, *gradients(head, hidden, found)), expected, strict=True
            ):
                size = max(1.0, wanted.abs().max().item())
                torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=5e-6 * size)


@pytest.mark.parametrize("kind", HEADS)
@torch.no_grad()
def test_a_nan_row_stays_nan_and_changes_no_other_row(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = make_head(kind, 60)
    hidden, targets = rows(head)
    for _ in each_search(head):
        hidden[2] = 0.0
        clean = head.topk(hidden, 10)
        hidden[2, 3] = torch.nan
        values, ids = head.topk(hidden, 10)
        assert values[2].isnan().all() and len(set(ids[2].tolist())) == 10
        others = [0, 1, 3, 4, 5]
        torch.testing.assert_close(values[others], clean[0][others])
        assert torch.equal(ids[others], clean[1][others])
    assert head.log_probs(hidden[2]).isnan().all()
    for _ in each_route(head, monkeypatch):
        for loss in LOSSES:
            assert head.loss(hidden, targets, *loss).isnan().tolist() == [
                False,
                False,
                True,
                False,
                False,
                False,
            ]


@pytest.mark.parametrize("shape", [(), (2, 3), (2, 0, 3)])
@pytest.mark.parametrize("kind", MAIN)
def test_any_leading_shape(kind: str, shape: tuple[int, ...]) -> None:
    head = make_head(kind, 7)
    hidden, targets = (
        torch.randn(*shape, DIM, requires_grad=True),
        torch.zeros(shape, dtype=torch.int32),
    )
    assert head.log_probs(hidden).shape == (*shape, 7)
    assert head.nll(hidden, targets).shape == head.loss(hidden, targets, 0.1).shape == shape
    assert all(
        gradient.isfinite().all() for gradient in gradients(head, hidden, head.nll(hidden, targets))
    )
    values, ids = head.topk(hidden, 1)
    assert values.shape == ids.shape == (*shape, 1)
    assert ids.dtype == torch.int64
    strided = hidden.transpose(0, -1).contiguous().transpose(0, -1)
    assert torch.equal(head.topk(strided, 2)[1][..., :1], ids)


@pytest.mark.parametrize("kind", MAIN)
def test_the_loss_of_a_row_does_not_depend_on_other_rows(kind: str) -> None:
    head = make_head(kind, 300)
    hidden, targets = rows(head)
    for smoothing in (0.0, 0.1):
        singly = torch.cat(
            [
                head.loss(hidden[i : i + 1], targets[i : i + 1], smoothing)
                for i in range(len(hidden))
            ]
        )
        torch.testing.assert_close(
            head.loss(hidden, targets, smoothing), singly, atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("kind", MAIN)
def test_autocast_and_half_inputs_do_not_change_the_results(kind: str) -> None:
    head = make_head(kind, 50)
    hidden, targets = rows(head)
    hidden = hidden.to(torch.bfloat16)
    exact = (
        head.log_probs(hidden.float()),
        head.loss(hidden.float(), targets, 0.1),
        head.nll(hidden.float(), targets),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = head.log_probs(hidden), head.loss(hidden, targets, 0.1), head.nll(hidden, targets)
        values, _ = head.topk(hidden, 3)
    assert values.dtype == torch.float32 and all(got.dtype == torch.float32 for got in found)
    assert all(map(torch.equal, found, exact))


@pytest.mark.parametrize("kind", MAIN)
def test_half_weights_are_computed_in_float32_and_float64_in_float64(kind: str) -> None:
    head = make_head(kind, 600).to(
        torch.bfloat16
    )  # which rounds integers above 256, but not those of the tables
    hidden, targets = rows(head)
    twin = make_head(kind, 600)
    assert set(head.state_dict()) == {name for name, _ in head.named_parameters()}
    twin.load_state_dict({name: value.float() for name, value in head.state_dict().items()})
    for smoothing in (0.0, 0.1):
        assert torch.equal(
            head.loss(hidden, targets, smoothing), twin.loss(hidden, targets, smoothing)
        )
    log_probs = twin.double().log_probs(hidden.double())
    assert log_probs.dtype == twin.loss(hidden.double(), targets, 0.1).dtype == torch.float64
    torch.testing.assert_close(
        log_probs.exp().sum(-1), torch.ones(6, dtype=torch.float64), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize(("smoothing", "smoothing_kind"), LOSSES)
@pytest.mark.parametrize("kind", HEADS)
def test_gradients_stay_finite_at_extreme_scores(
    kind: str, smoothing: float, smoothing_kind: SmoothingKind
) -> None:
    head = make_head(kind, 7)
    hidden, targets = rows(head)
    hidden = (1e4 * hidden).requires_grad_()
    loss = head.loss(hidden, targets, smoothing, smoothing_kind).sum()
    assert math.isfinite(loss.item())
    assert all(gradient.isfinite().all() for gradient in gradients(head, hidden, loss))
    assert head.log_probs(hidden).isfinite().all()


@pytest.mark.parametrize("kind", HEADS)
def test_gradients_are_right(kind: str) -> None:
    head = make_head(kind, 7).double()
    hidden, targets = rows(head, 3, torch.float64)
    # gradcheck changes its inputs in place: with the parameters among them it checks their
    # gradients too.
    inputs = (
        hidden.requires_grad_(),
        *(parameter for parameter in head.parameters() if parameter.numel()),
    )
    check = functools.partial(torch.autograd.gradcheck, fast_mode=True)
    assert check(lambda hidden, *_: head.log_probs(hidden), inputs)
    for loss in LOSSES:
        assert check(lambda hidden, *_, loss=loss: head.loss(hidden, targets, *loss), inputs)


@pytest.mark.parametrize("kind", HEADS)
def test_topk_values_have_the_gradients_of_their_units(kind: str) -> None:
    head = make_head(kind, 60)
    hidden = rows(head)[0].requires_grad_()
    values, ids = head.topk(hidden, 2)
    expected = gradients(head, hidden, head.log_probs(hidden).gather(-1, ids))
    torch.testing.assert_close(gradients(head, hidden, values), expected, atol=1e-4, rtol=1e-4)
    for parameter in list(head.parameters())[:-1]:
        parameter.requires_grad_(False)
    assert head.topk(hidden.detach(), 2)[0].requires_grad


@pytest.mark.parametrize(
    ("kind", "num_units"), [("hsoftmax:zipf+bias", 600), ("class:bins", 7), ("class:bins", 600)]
)
def test_every_cost_of_a_sparse_head_has_a_sparse_gradient(
    kind: str, num_units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in each_route(head := make_head(kind, num_units), monkeypatch):
        check_sparse_gradients(head)


def check_sparse_gradients(head: OutputHead) -> None:
    head.float().sparse_grad = True  # type: ignore[assignment]
    hidden, labels = torch.randn(2, 3, DIM), torch.tensor([[1, 2, 1], [0, 1, 5]])
    (weight,) = head.sparse_parameters()
    for dtype in (
        torch.float32,
        torch.bfloat16,
    ):  # gradients are dense after a conversion of half weights
        head.to(dtype)
        for cost in (
            *(head.loss(hidden, labels, *loss) for loss in LOSSES),
            head.log_probs(hidden),
            head.label_log_probs(hidden, labels),
            head.topk(hidden, 3)[0],
        ):
            head.zero_grad()
            cost.sum().backward()
            for parameter in head.parameters():
                is_sparse = parameter is weight and dtype == torch.float32
                assert parameter.grad is not None and parameter.grad.is_sparse == is_sparse
        if dtype == torch.float32:
            torch.optim.SparseAdam([weight]).step()


@pytest.mark.parametrize("kind", MAIN)
def test_wrong_calls_are_refused(kind: str) -> None:
    head = make_head(kind, 7)
    hidden, targets = rows(head)
    zeros, low, high = torch.zeros(6, 9), targets - 7, targets + 7
    shape = r"targets: expected integers of shape \(6,\), one per row of hidden, got "
    calls: list[tuple[str, Callable[[], object]]] = [
        ("topk: k is 8; with 7 units it must be 1…7", lambda: head.topk(hidden, 8)),
        ("topk: k is 0", lambda: head.topk(hidden, 0)),
        ("targets: values from -[0-9] to -[0-9], exp", lambda: head.loss(hidden, low)),
        ("expected 0…6; remove padding bef", lambda: head.nll(hidden, high)),
        (shape + r"\(5,\)", lambda: head.nll(hidden, targets[:5])),
        (shape + r"\(6,\) torch.float32", lambda: head.nll(hidden, targets.float())),
        ("head: dim 0 must be at least 1, and num_units 3 at", lambda: SoftmaxHead(0, 3)),
        (
            r"hidden: expected \(..., 8\) of a float dtype, got \(6, 9\)",
            lambda: head.log_probs(zeros),
        ),
        ("hidden: expected .* torch.int64", lambda: head.log_probs(zeros[:, :8].long())),
        (
            r"label_log_probs: expected hidden \(B, T, D\) and labels",
            lambda: head.label_log_probs(hidden, targets),
        ),
        (r"smoothing: must be in \[0, 1\), got -0.1", lambda: head.loss(hidden, targets, -0.1)),
        (r"smoothing: must be in \[0, 1\), got 1.0", lambda: head.loss(hidden, targets, 1.0)),
        (
            'kind: must be "leaf" or "node", got \'path\'',
            lambda: head.loss(hidden, targets, 0.1, "path"),
        ),  # type: ignore[arg-type]
    ]
    for message, call in calls:
        with pytest.raises(ValueError, match=message):
            call()


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
            results.append(
                (value, *torch.autograd.grad(value.sum(), (weight, next(head.parameters()))))
            )
        torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
