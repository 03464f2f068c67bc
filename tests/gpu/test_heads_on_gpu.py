# SPDX-License-Identifier: Apache-2.0
"""Every head on the device of `fake_gpu`: the values of the CPU, no mixing of devices, few launches
and no waiting.
"""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from fake_gpu import DEVICE, RECORD, on_gpu, to_cpu
from torch import Tensor

from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, OutputHead, SoftmaxHead, softmax
from wenet_hs.heads.base import SmoothingKind
from wenet_hs.heads.ctc import Ctc
from wenet_hs.tree import NaryTree, Tree

pytestmark = pytest.mark.slow
DIM, NUM_UNITS = 16, 40
COUNTS = 1.0 / np.arange(1, NUM_UNITS + 1)
HEADS: dict[str, Callable[[], OutputHead]] = {
    "softmax": lambda: SoftmaxHead(DIM, NUM_UNITS),
    "softmax, many units": lambda: SoftmaxHead(DIM, NUM_UNITS),
    "hsoftmax": lambda: HSoftmaxHead(DIM, Tree.huffman(COUNTS), route="all"),
    "hsoftmax, bias, paths": lambda: HSoftmaxHead(
        DIM, Tree.huffman(COUNTS), bias=True, route="path"
    ),
    "hsoftmax, sparse": lambda: HSoftmaxHead(
        DIM, Tree.huffman(COUNTS), sparse_grad=True, route="path"
    ),
    "class": lambda: ClassHead(DIM, NaryTree.frequency_bins(COUNTS), route="all"),
    "class, paths": lambda: ClassHead(DIM, NaryTree.frequency_bins(COUNTS), route="path"),
    "adaptive": lambda: AdaptiveHead(DIM, COUNTS),
}
SMOOTHINGS: tuple[tuple[float, SmoothingKind], ...] = ((0.0, "leaf"), (0.1, "leaf"), (0.1, "node"))
LAUNCHES = {  # of loss and gradients: without smoothing, of kind "leaf", of kind "node"
    "softmax": (14, 21, 21),
    "softmax, many units": (32, 42, 42),
    "hsoftmax": (23, 41, 32),
    "hsoftmax, bias, paths": (26, 42, 35),
    "hsoftmax, sparse": (24, 46, 33),
    "class": (46, 53, 71),
    "class, paths": (137, 53, 183),
    "adaptive": (57, 64, 117),
}
WAITS = {"class, paths": 1, "adaptive": 1}
"""Those that need the targets on the CPU."""


def costs_and_gradients(
    head: OutputHead, hidden: Tensor, targets: Tensor, smoothing: float, kind: SmoothingKind
) -> list[Tensor]:
    """The cost of each target, and the gradients of their sum."""
    hidden = hidden.detach().clone().requires_grad_()
    head.zero_grad()
    RECORD.clear()
    costs = head.loss(hidden, targets, smoothing, kind)
    costs.sum().backward()
    gradients = [tensor.grad for tensor in (hidden, *head.parameters()) if tensor.grad is not None]
    return [costs.detach(), *(grad.to_dense() if grad.is_sparse else grad for grad in gradients)]


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_that_of_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "softmax, many units":
        monkeypatch.setattr(softmax, "MANY_UNITS", NUM_UNITS)
        monkeypatch.setattr(softmax, "BLOCK_VALUES", 3 * NUM_UNITS)
    torch.manual_seed(0)
    head = HEADS[name]()
    hidden, targets = torch.randn(3, 5, DIM), torch.randint(NUM_UNITS, (3, 5))
    expected = [costs_and_gradients(head, hidden, targets, *smoothing) for smoothing in SMOOTHINGS]
    with torch.no_grad():
        results = [
            head.log_probs(hidden),
            *head.topk(hidden, 7),
            *head.eval_metrics(hidden, targets),
        ]
    with on_gpu() as record:
        there, hidden, targets = (
            copy.deepcopy(head).to(DEVICE),
            hidden.to(DEVICE),
            targets.to(DEVICE),
        )
        costs_and_gradients(there, hidden, targets, 0.1, "node")  # tables are copied once
        for smoothing, one, budget in zip(SMOOTHINGS, expected, LAUNCHES[name], strict=True):
            found = costs_and_gradients(there, hidden, targets, *smoothing)
            assert sum(record.launches.values()) <= budget, (smoothing, str(record))
            assert sum(record.waits.values()) <= WAITS.get(name, 0), (smoothing, str(record))
            assert not record.unpinned, str(record)
            torch.testing.assert_close(to_cpu(found), one, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            found = [
                there.log_probs(hidden),
                *there.topk(hidden, 7),
                *there.eval_metrics(hidden, targets),
            ]
        torch.testing.assert_close(to_cpu(found), results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_ctc_over_a_head(name: str) -> None:
    torch.manual_seed(0)
    ctc = Ctc(HEADS[name]())
    memory, targets = torch.randn(3, 20, DIM), torch.randint(1, NUM_UNITS, (3, 5))
    sizes = torch.tensor([20, 17, 9]), torch.tensor([5, 4, 2])

    def loss_and_gradients(ctc: Ctc, memory: Tensor, *given: Tensor) -> list[Tensor]:
        memory = memory.detach().clone().requires_grad_()
        ctc.zero_grad()
        RECORD.clear()
        loss = ctc.loss(memory, *given)
        loss.backward()
        gradients = [
            tensor.grad for tensor in (memory, *ctc.parameters()) if tensor.grad is not None
        ]
        return [loss.detach(), *(grad.to_dense() if grad.is_sparse else grad for grad in gradients)]

    given = sizes[0], targets, sizes[1]
    expected = loss_and_gradients(ctc, memory, *given)
    with on_gpu() as record:
        there = (
            copy.deepcopy(ctc).to(DEVICE),
            memory.to(DEVICE),
            *(tensor.to(DEVICE) for tensor in given),
        )
        loss_and_gradients(*there)
        found = loss_and_gradients(*there)
        lengths = 2  # read by torch's loss; the kernel needs none
        assert sum(record.waits.values()) <= lengths + WAITS.get(name, 0) and not record.unpinned, (
            str(record)
        )
    torch.testing.assert_close(to_cpu(found), expected, rtol=1e-4, atol=1e-5)
