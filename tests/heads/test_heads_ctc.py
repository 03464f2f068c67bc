# SPDX-License-Identifier: Apache-2.0
"""CTC against a sum over all alignments, and utterances that have none."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.heads.ctc import Ctc, ctc_feasible
from wenet_hs.heads.softmax import SoftmaxHead


def collapse(path: tuple[int, ...]) -> list[int]:
    return [unit for unit, _ in itertools.groupby(path) if unit != 0]


def small_ctc(num_units: int = 3, dropout_rate: float = 0.0) -> Ctc:
    torch.manual_seed(1)
    return Ctc(SoftmaxHead(4, num_units), dropout_rate=dropout_rate).eval()


@settings(max_examples=30, deadline=None)
@given(frames=st.integers(1, 5), targets=st.lists(st.integers(1, 2), max_size=4))
def test_loss_and_feasibility_by_all_alignments(frames: int, targets: list[int]) -> None:
    ctc, memory = small_ctc(), torch.randn(1, frames, 4, generator=torch.Generator().manual_seed(frames))
    log_probs = ctc.log_probs(memory)[0].detach()
    paths = [path for path in itertools.product(range(3), repeat=frames) if collapse(path) == targets]
    loss = ctc.loss(
        memory, torch.tensor([frames]), torch.tensor([targets]).long(), torch.tensor([len(targets)])
    ).detach()
    assert ctc_feasible(targets, frames) == bool(paths)
    if paths:
        total = torch.stack([sum(log_probs[t, unit] for t, unit in enumerate(path)) for path in paths]).logsumexp(0)
        assert float(loss) == pytest.approx(-float(total), abs=1e-4)
    else:
        assert float(loss) == 0.0


def test_sum_over_a_batch_with_every_hard_case() -> None:
    ctc = small_ctc()
    memory, lengths = torch.randn(4, 6, 4, requires_grad=True), torch.tensor([6, 3, 0, 5])
    targets = torch.tensor([[1, 2, 1], [1, 1, -1], [1, -1, -1], [-1, -1, -1]])
    target_lengths = torch.tensor([3, 2, 1, 0])
    loss = ctc.loss(memory, lengths, targets, target_lengths)
    singly = [
        ctc.loss(
            memory[i : i + 1, : max(1, lengths[i])], lengths[i : i + 1], targets[i : i + 1], target_lengths[i : i + 1]
        )
        for i in range(4)
    ]
    assert loss.shape == ()
    assert float(singly[2].detach()) == 0.0  # no frame for its label
    torch.testing.assert_close(loss, torch.stack(singly).sum(), atol=1e-5, rtol=1e-5)
    loss.backward()
    assert memory.grad is not None
    assert memory.grad.isfinite().all()
    assert not memory.grad[2].any()


def test_feasible_by_hand() -> None:
    assert ctc_feasible([5, 6], 2)
    assert not ctc_feasible([5, 5], 2)
    assert ctc_feasible([5, 5], 3)
    assert ctc_feasible([], 0)
    assert not ctc_feasible([5], 0)


def test_log_probs_are_float32_under_autocast_and_without_dropout_in_eval() -> None:
    ctc = small_ctc(dropout_rate=0.5)
    memory = torch.randn(2, 3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = ctc.log_probs(memory)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs, ctc.log_probs(memory), rtol=0, atol=0)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(2, 3))
