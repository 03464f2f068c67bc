# SPDX-License-Identifier: Apache-2.0
"""The checks of gpu_checks.py of heads, of CTC over them and of the search: a device against the
CPU.
"""

import argparse
import copy
from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from torch import Tensor

from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, SoftmaxHead
from wenet_hs.heads.base import OutputHead, SmoothingKind
from wenet_hs.heads.ctc import Ctc
from wenet_hs.tree import NaryTree, Tree

DIM = 256
SMOOTHINGS: tuple[tuple[float, SmoothingKind], ...] = ((0.0, "leaf"), (0.1, "leaf"), (0.1, "node"))


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference.

    Raises AssertionError if it is not that of float32 arithmetic in another order.
    """
    found, expected = found.detach().cpu(), expected.detach().cpu()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    return float((found - expected).abs().max())


def make_pairs(num_units: int, device: str) -> Iterator[tuple[OutputHead, OutputHead]]:
    """Each head on the device, with dense and with sparse gradients, and the same on the CPU, there
    always dense.
    """
    torch.manual_seed(0)
    counts = 1.0 / np.arange(1, num_units + 1)  # Zipf's law
    tree, classes = Tree.huffman(counts), NaryTree.frequency_bins(counts)
    by_all_nodes = HSoftmaxHead(DIM, tree, route="all", search="all")
    plain = (
        by_all_nodes,
        ClassHead(DIM, classes),
        AdaptiveHead(DIM, counts),
        SoftmaxHead(DIM, num_units),
    )
    others = (
        (HSoftmaxHead(DIM, tree), HSoftmaxHead(DIM, tree, sparse_grad=True)),
        (plain[1], ClassHead(DIM, classes, sparse_grad=True)),
        (plain[2],),
        (plain[3],),
    )
    for head, measured in zip(plain, others, strict=True):
        for one in measured:
            found = copy.deepcopy(one)
            found.load_state_dict(head.state_dict())
            yield found.to(device), head


def costs_and_gradients(
    head: OutputHead, hidden: Tensor, targets: Tensor, smoothing: float, kind: SmoothingKind
) -> list[Tensor]:
    """The cost of each target, and the gradients of the mean cost: of the states and of all
    parameters.
    """
    hidden = hidden.detach().clone().requires_grad_()
    head.zero_grad()
    costs = head.loss(hidden, targets, smoothing, kind)
    costs.mean().backward()
    return [costs, *gradients_of(head, hidden)]


def gradients_of(module: torch.nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Those of the inputs and of all parameters, dense."""
    found = [tensor.grad for tensor in (*inputs, *module.parameters()) if tensor.grad is not None]
    return [grad.to_dense() if grad.is_sparse else grad for grad in found]


def check_heads(args: argparse.Namespace) -> str:
    """Costs, gradients, log-probabilities and best units of every head, for states of several
    shapes.
    """
    found = []
    shapes = ((1,), (3, 5)) if args.small else ((1,), (7, 9), (500,))
    for num_units, shape in product((150,) if args.small else (300, 10_000), shapes):
        generator = torch.Generator().manual_seed(1)
        hidden = torch.randn(*shape, DIM, generator=generator)
        targets = torch.randint(num_units, shape, generator=generator)
        there = hidden.to(args.device), targets.to(args.device)
        for measured, plain in make_pairs(num_units, args.device):
            for smoothing in SMOOTHINGS:
                sides = (
                    costs_and_gradients(head, *data, *smoothing)
                    for head, data in ((measured, there), (plain, (hidden, targets)))
                )
                found += [difference(*pair) for pair in zip(*sides, strict=True)]
            with torch.no_grad():
                log_probs, (values, ids) = plain.log_probs(hidden), measured.topk(there[0], 10)
                found.append(difference(measured.log_probs(there[0]), log_probs))
                found.append(difference(values, plain.topk(hidden, 10)[0]))
                found.append(difference(values, log_probs.gather(-1, ids.cpu())))
    return f"{len(found)} tensors of 4 heads, largest difference {max(found):.1e}"


def ctc_loss_and_gradients(head: OutputHead, memory: Tensor, *given: Tensor) -> list[Tensor]:
    """The mean loss of a frame, and the gradients of the memory and of all parameters."""
    memory = memory.detach().clone().requires_grad_()
    ctc = Ctc(head)
    ctc.zero_grad()
    loss = ctc.loss(memory, *given) / memory.size(1)
    loss.backward()
    return [loss, *gradients_of(ctc, memory)]


def check_ctc(args: argparse.Namespace) -> str:
    """CTC over every head, of utterances of different lengths; one has more labels than frames, one
    has no label.
    """
    found = []
    lengths, labels = torch.tensor([60, 41, 5, 17]), torch.tensor([20, 9, 8, 0])
    for num_units in (
        (150,) if args.small else (300, 600)
    ):  # a tree of 600 units computes those of the labels only
        generator = torch.Generator().manual_seed(1)
        memory = torch.randn(4, 60, DIM, generator=generator)
        targets = torch.randint(1, num_units, (4, 20), generator=generator)
        for measured, plain in make_pairs(num_units, args.device):
            data = memory, lengths, targets, labels
            sides = (
                ctc_loss_and_gradients(measured, *(tensor.to(args.device) for tensor in data)),
                ctc_loss_and_gradients(plain, *data),
            )
            found += [difference(*pair) for pair in zip(*sides, strict=True)]
    return f"{len(found)} tensors of 4 heads, largest difference {max(found):.1e}"


@torch.no_grad()
def check_search(args: argparse.Namespace) -> str:
    """The k best units of the tree head against those that a CPU takes from all log-probabilities."""
    num_equal = num_ids = 0
    for num_units, scale in product(
        (300,) if args.small else (300, 5_000, 50_000, 267_735), (1.0, 10.0)
    ):
        torch.manual_seed(0)
        plain = HSoftmaxHead(DIM, Tree.huffman(1.0 / np.arange(1, num_units + 1)), search="all")
        plain.inner_vector.weight.mul_(scale)
        measured = HSoftmaxHead(DIM, plain.tree).to(args.device)
        measured.load_state_dict(plain.state_dict())
        for num_rows, k in product((1, 10, 160), (1, 10, 32)):
            hidden = torch.randn(num_rows, DIM)
            values, ids = plain.topk(hidden, k)
            found_values, found_ids = measured.topk(hidden.to(args.device), k)
            difference(found_values, values)
            num_equal, num_ids = (
                num_equal + int((found_ids.cpu() == ids).sum()),
                num_ids + ids.numel(),
            )
    if num_equal < 0.99 * num_ids:
        raise AssertionError(f"{num_equal} of {num_ids} units are equal")
    return f"{num_equal:,} of {num_ids:,} units equal"
