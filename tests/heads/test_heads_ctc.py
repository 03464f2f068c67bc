# SPDX-License-Identifier: Apache-2.0
"""CTC against a sum over all alignments, utterances without an alignment, and the loss from the
labels only.
"""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wenet_hs.data.sampling import ctc_frames_needed
from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.class_softmax import ClassHead
from wenet_hs.heads.ctc import Ctc, compact_alphabet, constant_output_loss
from wenet_hs.heads.hsoftmax import HSoftmaxHead
from wenet_hs.heads.softmax import SoftmaxHead
from wenet_hs.tree import NaryTree, Tree

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Memory, its lengths, targets, their lengths."""


def small_ctc() -> Ctc:
    torch.manual_seed(1)
    return Ctc(SoftmaxHead(4, 3)).eval()


@settings(max_examples=25, deadline=None)
@given(frames=st.integers(1, 5), targets=st.lists(st.integers(1, 2), max_size=4))
def test_loss_and_feasibility_from_all_alignments(frames: int, targets: list[int]) -> None:
    ctc, memory = (
        small_ctc(),
        torch.randn(1, frames, 4, generator=torch.Generator().manual_seed(frames)),
    )
    log_probs = ctc.log_probs(memory)[0].detach()
    every_path = itertools.product(range(3), repeat=frames)
    paths = [
        path
        for path in every_path
        if [unit for unit, _ in itertools.groupby(path) if unit] == targets
    ]
    target_lengths = torch.tensor([len(targets)])
    loss = ctc.loss(
        memory, torch.tensor([frames]), torch.tensor([targets]).long(), target_lengths
    ).detach()
    assert (ctc_frames_needed(targets) <= frames) == bool(paths)
    if paths:
        total = torch.stack(
            [sum(log_probs[t, unit] for t, unit in enumerate(path)) for path in paths]
        ).logsumexp(0)
        assert float(loss) == pytest.approx(-float(total), abs=1e-4)
    else:
        assert float(loss) == 0.0


def test_the_loss_of_a_batch_is_the_sum_of_its_utterances() -> None:
    ctc = small_ctc()
    memory, lengths = torch.randn(4, 6, 4), torch.tensor([6, 3, 0, 5])
    targets = torch.tensor([[1, 2, 1], [1, 1, -1], [1, -1, -1], [-1, -1, -1]])
    target_lengths = torch.tensor([3, 2, 1, 0])
    loss = ctc.loss(memory, lengths, targets, target_lengths)
    rows = [(lengths[i : i + 1], targets[i : i + 1], target_lengths[i : i + 1]) for i in range(4)]
    singly = [ctc.loss(memory[i : i + 1, : max(1, lengths[i])], *row) for i, row in enumerate(rows)]
    assert loss.shape == ()
    assert float(singly[2].detach()) == 0.0  # no frame for its label
    torch.testing.assert_close(loss, torch.stack(singly).sum(), atol=1e-5, rtol=1e-5)


# ---- the loss from blank and the transcript's labels only


KINDS = ("softmax", "tree", "class")


class PartialSoftmax(SoftmaxHead):
    """A softmax head whose CTC loss is computed from the labels."""

    has_partial_log_probs = True


def make_ctc(kind: str, num_units: int, blank: int = 0) -> Ctc:
    torch.manual_seed(2)
    tree = Tree.huffman(1.0 / torch.arange(1, num_units + 1).double().numpy())
    head: OutputHead = PartialSoftmax(5, num_units)
    if kind != "softmax":
        head = HSoftmaxHead(5, tree) if kind == "tree" else ClassHead(5, NaryTree.from_binary(tree))
    assert head.has_partial_log_probs
    torch.nn.init.normal_(next(head.parameters()))
    return Ctc(head, blank=blank).eval()


def full_and_partial(ctc: Ctc, batch: Batch) -> list[tuple[Tensor, ...]]:
    """Cost, gradient of the memory and of the head's parameters, from all units and from labels
    only.
    """
    memory, *rest = batch
    results = []
    for ctc.head.has_partial_log_probs in (False, True):
        ctc.zero_grad()
        leaf = memory.clone().requires_grad_()
        cost = ctc.loss(leaf, *rest)
        cost.backward()
        assert leaf.grad is not None
        results.append(
            (cost.detach(), leaf.grad, *(p.grad for p in ctc.parameters() if p.grad is not None))
        )
    return results


def random_batch(seed: int, size: int, num_units: int) -> Batch:
    """Utterances with repeats, without labels, without an alignment, without frames; any values in
    the padding.
    """
    generator = torch.Generator().manual_seed(seed)
    memory_lengths = torch.randint(0, 9, (size,), generator=generator)
    target_lengths = torch.randint(0, 6, (size,), generator=generator)
    frames, labels = int(memory_lengths.max().clamp(min=1)), int(target_lengths.max())
    targets = torch.randint(1, num_units, (size, labels), generator=generator)
    targets = torch.where(
        torch.rand(targets.shape, generator=generator) < 0.3, targets[:, :1], targets
    )
    targets[torch.arange(labels) >= target_lengths[:, None]] = -1
    memory = torch.randn(size, frames, 5, generator=generator)
    memory[torch.arange(frames) >= memory_lengths[:, None]] = 7.0
    return memory, memory_lengths, targets, target_lengths


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 5), num_units=st.integers(2, 30))
def test_labels_give_the_cost_and_gradients_of_all_units(
    kind: str, seed: int, size: int, num_units: int
) -> None:
    ctc = make_ctc(kind, num_units)
    full, partial = full_and_partial(ctc, random_batch(seed, size, num_units))
    assert len(full) == len(partial) > 2
    for expected, found in zip(full, partial, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 5),
    num_units=st.integers(2, 30),
    data=st.data(),
)
def test_the_best_unit_of_each_frame_is_that_of_all_probabilities(
    kind: str, seed: int, size: int, num_units: int, data: st.DataObject
) -> None:
    ctc = make_ctc(kind, num_units, blank=data.draw(st.integers(0, num_units - 1)))
    memory, lengths, _, _ = random_batch(seed, size, num_units)
    best = ctc.log_probs(memory).argmax(-1)
    best[torch.arange(best.size(1)) >= lengths[:, None]] = -1
    assert torch.equal(ctc.best_units(memory, lengths), best)


def test_infeasible_utterances_and_padding_frames_have_no_gradient() -> None:
    ctc = make_ctc("tree", 9)
    memory = torch.randn(3, 4, 5)
    memory[0, 2:] = math.nan  # padding
    memory.requires_grad_()
    targets, target_lengths = torch.tensor([[3, 4], [5, 5], [6, -1]]), torch.tensor([2, 2, 1])
    cost = ctc.loss(memory, torch.tensor([2, 2, 0]), targets, target_lengths)
    cost.backward()
    assert memory.grad is not None and memory.grad[0, :2].abs().min() > 0
    assert not memory.grad[0, 2:].any() and not memory.grad[1:].any()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in ctc.parameters())
    expected = ctc.loss(memory[:1, :2], torch.tensor([2]), targets[:1], target_lengths[:1])
    torch.testing.assert_close(cost, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_blank_may_be_any_unit_and_transcripts_may_be_empty(kind: str) -> None:
    ctc = make_ctc(kind, 6, blank=4)
    memory, lengths, targets = (
        torch.randn(2, 3, 5),
        torch.tensor([3, 2]),
        torch.tensor([[0, 5], [0, -1]]),
    )
    full, partial = full_and_partial(ctc, (memory, lengths, targets, torch.tensor([2, 1])))
    torch.testing.assert_close(full[:2], partial[:2], atol=1e-5, rtol=1e-5)
    log_probs = ctc.log_probs(memory)
    empty = ctc.loss(memory, lengths, torch.zeros(2, 0, dtype=torch.int64), torch.tensor([0, 0]))
    torch.testing.assert_close(empty, -(log_probs[0, :, 4].sum() + log_probs[1, :2, 4].sum()))


def test_compact_alphabet_by_hand() -> None:
    targets = torch.tensor([[9, 4, 4, 9, 2], [6, 6, 6, -1, -1], [77, -1, 3, 3, 3]])
    alphabet = compact_alphabet(targets, torch.tensor([5, 3, 0]), blank=1)
    assert alphabet.unit_ids.tolist() == [[1, 2, 4, 9], [1, 6, 1, 1], [1, 1, 1, 1]]
    assert alphabet.is_used.sum(1).tolist() == [4, 2, 1]
    assert alphabet.target_classes.tolist() == [[3, 2, 2, 3, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    assert alphabet.min_frames.tolist() == [6, 5, 0]


def test_autocast_changes_nothing() -> None:
    ctc, batch = make_ctc("tree", 12), random_batch(3, 3, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half, log_probs = ctc.loss(*batch), ctc.log_probs(batch[0])
    assert half.dtype == log_probs.dtype == torch.float32
    assert torch.equal(half, ctc.loss(*batch)) and torch.equal(log_probs, ctc.log_probs(batch[0]))


# ---- the plateau


@settings(max_examples=20, deadline=None)
@given(
    utterances=st.lists(
        st.tuples(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(0, 3)),
        min_size=1,
    ),
    seed=st.integers(0, 99),
)
def test_no_constant_output_has_a_lower_loss_than_the_plateau(
    utterances: list[tuple[list[int], int]], seed: int
) -> None:
    targets = [ids for ids, _ in utterances]
    frames = [ctc_frames_needed(ids) + more for ids, more in utterances]
    plateau = constant_output_loss(targets, frames, 0)
    torch.manual_seed(seed)
    probs = torch.cat(
        [torch.distributions.Dirichlet(torch.ones(4)).sample((200,)), torch.eye(4) * 0.96 + 0.01]
    )
    total = torch.zeros(len(probs))
    for ids, length in zip(targets, frames, strict=True):
        log_probs = probs.log()[None].expand(length, -1, -1)
        rows = torch.tensor([ids]).expand(len(probs), -1), torch.full((len(probs),), length)
        total += torch.nn.functional.ctc_loss(
            log_probs, *rows, torch.full((len(probs),), len(ids)), reduction="none"
        )
    assert plateau <= float(total.min()) / sum(len(ids) + 1 for ids in targets) + 5e-3


def test_plateau_by_hand() -> None:
    # "a" in two frames: aa, a- or -a; always a. "ab" in two frames: a and b, half the frames each:
    # P = 1/4, 3 targets.
    assert constant_output_loss([[1]], [2], 0) == pytest.approx(0, abs=5e-3)
    any_blank = constant_output_loss([[0, 1, 1]], [9], 7)
    assert any_blank == pytest.approx(constant_output_loss([[1, 2, 2]], [9], 0), rel=1e-12)
    assert constant_output_loss([[1, 2]], [2], 0) == pytest.approx(math.log(4) / 3, abs=5e-3)
