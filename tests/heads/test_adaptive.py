# SPDX-License-Identifier: Apache-2.0
"""The adaptive head: PyTorch's numbers under our ids, its clusters, and the contract at its edges.

Dimension key: N rows, D width, V units.
"""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wenet_hs.heads.adaptive import AdaptiveHead, default_cutoffs, ranking

DIM = 8
SIZES = (1, 2, 3, 7, 50, 300)


def make(num_units: int, cutoffs: list[int] | None = None, div_value: float = 4.0, dim: int = DIM) -> AdaptiveHead:
    """Zipf's frequencies in a random order of ids, weights of some size."""
    torch.manual_seed(num_units)
    frequencies = np.random.default_rng(num_units).permutation(1.0 / np.arange(1, num_units + 1))
    head = AdaptiveHead(dim, frequencies, cutoffs, div_value)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head


def rows(head: AdaptiveHead, num_rows: int = 9, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(num_rows, head.dim, generator=generator, dtype=dtype)
    return hidden, torch.randint(head.num_units, (num_rows,), generator=generator)


def test_units_are_ranked_by_falling_frequency_and_ties_by_id() -> None:
    assert ranking(np.array([1.0, 5.0, 0.0, 5.0, 1.0])).tolist() == [1, 3, 0, 4, 2]
    head = AdaptiveHead(4, [1, 5, 0, 5, 1])
    assert head.rank_of_unit.tolist() == [2, 0, 4, 1, 3]
    assert set(head.state_dict()) == set(dict(head.named_parameters())), "the ranking is no part of the weights"


@pytest.mark.parametrize(
    ("frequencies", "cutoffs"),
    [
        ([1], []),
        ([3, 1], [1]),
        ([0, 0], [1]),
        ([1, 1, 1], [2]),
        ([8, 4, 2, 1, 1], [1, 2, 3]),
        ([1, 2, 8, 4, 1], [1, 2, 3]),
        ([1] * 8, [4, 6, 7]),
        ([100, 1, 1, 1, 1], [1]),
        ([0] * 100, [50, 75, 88]),
    ],
)
def test_clusters_begin_after_half_three_quarters_and_seven_eighths_of_the_mass(
    frequencies: list[float], cutoffs: list[int]
) -> None:
    assert AdaptiveHead(4, frequencies).cutoffs == cutoffs


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=60))
def test_default_cutoffs_are_valid_for_any_frequencies(frequencies: list[float]) -> None:
    cutoffs = default_cutoffs(np.array(frequencies))
    assert cutoffs == sorted(set(cutoffs))
    assert all(1 <= cutoff < len(frequencies) for cutoff in cutoffs)
    assert bool(cutoffs) == (len(frequencies) > 1)


def test_its_numbers_are_pytorchs_under_our_ids() -> None:
    head = make(50)
    assert head.adaptive is not None
    hidden, targets = rows(head)
    expected_NV = head.adaptive.log_prob(hidden)[:, head.rank_of_unit]
    torch.testing.assert_close(head.log_probs(hidden), expected_NV)
    torch.testing.assert_close(head.nll(hidden, targets), -expected_NV.gather(1, targets[:, None])[:, 0])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("num_units", SIZES)
def test_every_cost_follows_from_the_log_probabilities(num_units: int, smoothing: float) -> None:
    head = make(num_units)
    hidden, targets = rows(head)
    log_probs = head.log_probs(hidden)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(9), atol=1e-6, rtol=0)
    wanted_NV = torch.full((9, num_units), smoothing / max(num_units - 1, 1))
    wanted_NV.scatter_(1, targets[:, None], 1 - smoothing if num_units > 1 else 1.0)
    expected = F.kl_div(log_probs, wanted_NV, reduction="none").sum(-1)
    torch.testing.assert_close(head.loss(hidden, targets, smoothing), expected, atol=1e-5, rtol=1e-5)


def test_node_smoothing_adds_the_divergence_of_each_softmax_on_the_path() -> None:
    head = make(6, cutoffs=[2, 4], div_value=2.0)
    assert head.adaptive is not None
    hidden = rows(head)[0]
    first = F.log_softmax(head.adaptive.head(hidden), -1)
    tails = [F.log_softmax(tail(hidden), -1) for tail in head.adaptive.tail]
    paths = [[(first, 0)], [(first, 1)], [(first, 2), (tails[0], 0)], [(first, 2), (tails[0], 1)]]
    paths += [[(first, 3), (tails[1], 0)], [(first, 3), (tails[1], 1)]]
    for rank, path in enumerate(paths):
        expected = torch.zeros(len(hidden))
        for log_probs, choice in path:
            wanted = torch.full_like(log_probs, 0.2 / (log_probs.size(-1) - 1))
            wanted[:, choice] = 0.8
            expected = expected + F.kl_div(log_probs, wanted, reduction="none").sum(-1)
        targets = head.ranked_units[rank].expand(len(hidden))
        torch.testing.assert_close(head.loss(hidden, targets, 0.2, "node"), expected)
        torch.testing.assert_close(head.loss(hidden, targets, 0.0, "node"), head.nll(hidden, targets))


def test_a_cluster_of_one_unit_has_nothing_to_smooth() -> None:
    head = make(2)
    hidden, targets = rows(head)
    torch.testing.assert_close(head.loss(hidden, targets, 0.1, "node"), head.loss(hidden, targets, 0.1, "leaf"))
    assert make(1).loss(torch.randn(3, DIM), torch.zeros(3, dtype=torch.int64), 0.1, "node").tolist() == [0, 0, 0]


@settings(max_examples=30, deadline=None)
@given(num_units=st.integers(1, 60), seed=st.integers(0, 99), scale=st.sampled_from([0.0, 0.3, 3.0]))
def test_judge_says_what_the_log_probabilities_say(num_units: int, seed: int, scale: float) -> None:
    head = make(num_units)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(scale)
    hidden = torch.randn(40, DIM, generator=torch.Generator().manual_seed(seed))
    log_probs = head.log_probs(hidden)
    best = log_probs.max(-1).values
    targets = torch.randint(num_units, (40,), generator=torch.Generator().manual_seed(seed))
    targets[:20] = log_probs.argmax(-1)[:20]
    nll, is_best = head.eval_metrics(hidden, targets)
    torch.testing.assert_close(nll, head.nll(hidden, targets))
    found = log_probs.gather(1, targets[:, None])[:, 0]
    for row in range(40):  # but for what rounding may decide
        rivals = int((log_probs[row] > best[row] - 1e-5).sum())
        assert rivals > 1 or bool(is_best[row]) == bool(found[row] == best[row])
    assert not nll.requires_grad


def test_of_equally_probable_units_the_lowest_id_is_the_best() -> None:
    head = AdaptiveHead(4, [1, 2, 9, 9, 2], cutoffs=[2], div_value=1.0)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    hidden, targets = torch.zeros(5, 4), torch.arange(5)
    assert head.eval_metrics(hidden, targets)[1].tolist() == [False, False, True, False, False]
    assert head.topk(torch.zeros(4), 5)[1].tolist() == [2, 3, 0, 1, 4]


@pytest.mark.parametrize(
    ("dim", "num_clusters", "div_value", "widths"),
    [
        (64, 3, 4.0, [16, 4, 1]),
        (16, 3, 4.0, [6, 2, 1]),
        (8, 3, 4.0, [4, 2, 1]),
        (1, 2, 4.0, [1, 1]),
        (9, 1, 100.0, [1]),
        (8, 2, 1.0, [8, 8]),
    ],
)
def test_every_cluster_keeps_a_width(dim: int, num_clusters: int, div_value: float, widths: list[int]) -> None:
    head = make(10, cutoffs=[2, 4, 6][:num_clusters], div_value=div_value, dim=dim)
    assert head.adaptive is not None
    assert [next(tail.parameters()).size(0) for tail in head.adaptive.tail] == widths
    assert f"div_value={head.div_value:g}" in repr(head)


def test_gradients_are_right_and_finite() -> None:
    head = make(12).double()
    hidden, targets = rows(head, dtype=torch.float64)
    assert head.nll(hidden, targets).dtype == torch.float64
    for kind in ("leaf", "node"):
        for smoothing in (0.0, 0.1):
            torch.autograd.gradcheck(
                lambda values, s=smoothing, k=kind: head.loss(values, targets, s, k), hidden.clone().requires_grad_()
            )
    large = (1e4 * torch.randn(9, DIM, dtype=torch.float32)).requires_grad_()
    head = head.float()
    for kind in ("leaf", "node"):
        head.loss(large, targets, 0.1, kind).sum().backward()
    assert large.grad is not None
    assert torch.isfinite(large.grad).all()
    assert all(torch.isfinite(value.grad).all() for value in head.parameters())


def test_half_weights_and_autocast_compute_in_float32() -> None:
    head = make(50)
    hidden, targets = rows(head)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(head.nll(hidden, targets), head.nll(hidden, targets))
        inside = head.loss(hidden, targets, 0.1), head.log_probs(hidden)
    assert torch.equal(inside[0], head.loss(hidden, targets, 0.1))
    assert torch.equal(inside[1], head.log_probs(hidden))
    half = make(50).half()
    rounded = make(50)
    rounded.load_state_dict({name: value.float() for name, value in half.state_dict().items()})
    assert torch.equal(half.nll(hidden.half(), targets), rounded.nll(hidden.half(), targets))
    assert torch.equal(half.log_probs(hidden), rounded.log_probs(hidden))
    half.nll(hidden, targets).sum().backward()
    assert all(parameter.grad.dtype == torch.float16 for parameter in half.parameters())


@pytest.mark.parametrize("num_units", [1, 2, 7])
@pytest.mark.parametrize("shape", [(), (4,), (2, 0, 3)])
def test_any_leading_shape_and_a_backward_pass(num_units: int, shape: tuple[int, ...]) -> None:
    head = make(num_units)
    hidden, targets = torch.randn(*shape, DIM, requires_grad=True), torch.zeros(shape, dtype=torch.int64)
    for smoothing, kind in ((0.0, "leaf"), (0.1, "leaf"), (0.1, "node")):
        loss = head.loss(hidden, targets, smoothing, kind)
        assert loss.shape == shape
        loss.sum().backward()
    assert head.eval_metrics(hidden, targets)[1].shape == shape
    assert head.topk(hidden, 1)[1].shape == (*shape, 1)


def test_one_unit_is_certain() -> None:
    head = make(1)
    assert list(head.parameters()) == []
    assert head.log_probs(torch.randn(3, DIM)).tolist() == [[0.0]] * 3
    nll, is_best = head.eval_metrics(torch.randn(2, DIM), torch.zeros(2, dtype=torch.int64))
    assert (nll.tolist(), is_best.tolist()) == ([0.0, 0.0], [True, True])


def test_labels_alone_are_columns_of_the_whole() -> None:
    head = make(30)
    hidden, labels = torch.randn(2, 5, DIM), torch.tensor([[0, 7, 7], [29, 1, 3]])
    expected = head.log_probs(hidden).gather(-1, labels[:, None].expand(-1, 5, -1))
    torch.testing.assert_close(head.label_log_probs(hidden, labels), expected)


@pytest.mark.parametrize(
    ("frequencies", "cutoffs", "div_value", "message"),
    [
        ([1, -1], None, 4.0, "frequencies: unit 1 has -1.0; each must be finite"),
        ([1, math.nan], None, 4.0, "frequencies: unit 1 has nan"),
        ([], None, 4.0, "frequencies: the list is empty"),
        ([1, 2], [2], 4.0, "cutoffs should be"),
        ([1], [1], 4.0, r"cutoffs: one unit has no clusters, got \[1\]"),
        ([1, 2], None, 0.5, "div_value: must be at least 1, got 0.5"),
    ],
)
def test_wrong_calls(frequencies: list[float], cutoffs: list[int] | None, div_value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdaptiveHead(DIM, frequencies, cutoffs, div_value)
