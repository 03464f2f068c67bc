# SPDX-License-Identifier: Apache-2.0
"""Triton kernels of the CTC loss (Graves et al.

2006) on a GPU: one program per utterance, one lane per state.

torch's own loss copies the lengths to the device in its forward and in its backward pass, and waits
for the device each time. Here the lengths stay on the device. The sums over states are made in a
fixed order: the bits are the same in each run.

Tested with Triton's interpreter and by compilation for sm_80, sm_90 and sm_100. They have not run
on a GPU.

Dimension key: B utterances, T frames, C classes (0 is blank), L labels, S = 2 L + 1 states: blank,
and each label and a blank after it.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from wenet_hs.heads.kernels.triton_launch import launch

NEVER = tl.constexpr(-1e30)
"""The log-probability of what cannot be: its differences are finite."""


@triton.jit
def _log_add(a, b):  # type: ignore[no-untyped-def]
    top = tl.maximum(a, b)
    return top + tl.log(tl.exp(a - top) + tl.exp(b - top))


@triton.jit
def _bounded(x_S, is_state_S):  # type: ignore[no-untyped-def]
    """NEVER for what is no state, and at least NEVER; a NaN stays."""
    return tl.where(is_state_S, tl.where(x_S < NEVER, NEVER, x_S), NEVER)


@triton.jit
def _open(frames, targets, labels, max_labels, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """This program's utterance, its numbers of frames and states; per state where its label is, and
    its class.
    """
    utterance = tl.program_id(0).to(tl.int64)
    num_states = 2 * tl.load(labels + utterance) + 1
    state_S = tl.arange(0, BLOCK)
    is_label_S = ((state_S & 1) == 1) & (state_S < num_states)
    label_S = targets + utterance * max_labels + state_S // 2
    class_S = tl.load(label_S, mask=is_label_S, other=0)
    return utterance, tl.load(frames + utterance), num_states, state_S, is_label_S, label_S, class_S


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    log_probs,
    frames,
    targets,
    labels,
    alphas,
    costs,
    max_frames,
    num_classes,
    max_labels,
    max_states,
    BLOCK: tl.constexpr,
):
    """The log sums over the beginnings of alignments, (T, S), and the cost; 0 where no alignment is
    possible.
    """
    utterance, num_frames, num_states, state_S, is_label_S, label_S, class_S = _open(
        frames, targets, labels, max_labels, BLOCK
    )
    is_state_S = state_S < num_states
    # Whether the state may follow the one two before it.
    may_skip_S = is_label_S & (state_S > 1)
    may_skip_S = may_skip_S & (tl.load(label_S - 1, mask=may_skip_S, other=0) != class_S)
    frame = log_probs + utterance * max_frames * num_classes
    row = alphas + utterance * max_frames * max_states
    alpha_S = tl.where(is_state_S & (state_S < 2), tl.load(frame + class_S), NEVER)
    tl.store(row + state_S, alpha_S, mask=is_state_S & (num_frames > 0))
    t = 1
    while t < num_frames:
        tl.debug_barrier()  # the sums of the frame before are in memory
        frame += num_classes
        one_S = tl.load(row + state_S - 1, mask=is_state_S & (state_S > 0), other=NEVER)
        two_S = tl.load(row + state_S - 2, mask=is_state_S & may_skip_S, other=NEVER)
        alpha_S = _log_add(_log_add(alpha_S, one_S), two_S) + tl.load(frame + class_S)
        alpha_S = _bounded(alpha_S, is_state_S)
        row += max_states
        tl.store(row + state_S, alpha_S, mask=is_state_S)
        t += 1
    is_end_S = is_state_S & (state_S >= num_states - 2)
    end_S = tl.where(is_end_S, alpha_S, NEVER)
    top = tl.max(end_S, axis=0)
    total = top + tl.log(tl.sum(tl.exp(end_S - top), axis=0))
    tl.store(costs + utterance, tl.where((num_frames == 0) | (total < 0.5 * NEVER), 0.0, -total))


@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    log_probs,
    frames,
    targets,
    labels,
    alphas,
    costs,
    betas,
    max_frames,
    num_classes,
    max_labels,
    max_states,
    BLOCK: tl.constexpr,
):
    """Replace the sums in `alphas` by the posteriors of the states; 0 where no alignment is
    possible.

    `betas` (2, S) per utterance: sums over the rest of alignments, with the frame itself, of this
    frame and the next.
    """
    utterance, num_frames, num_states, state_S, is_label_S, label_S, class_S = _open(
        frames, targets, labels, max_labels, BLOCK
    )
    is_state_S = state_S < num_states
    # Whether the state two after it may follow the state.
    may_skip_S = is_label_S & (state_S + 2 < num_states)
    may_skip_S = may_skip_S & (tl.load(label_S + 1, mask=may_skip_S, other=0) != class_S)
    cost = tl.load(costs + utterance)
    t = num_frames - 1
    frame = log_probs + (utterance * max_frames + t) * num_classes
    row = alphas + (utterance * max_frames + t) * max_states
    buffer = betas + utterance * 2 * max_states
    rest_S = tl.where(
        is_state_S & (state_S >= num_states - 2), tl.zeros((BLOCK,), tl.float32), NEVER
    )
    while t >= 0:
        alpha_S = tl.load(row + state_S, mask=is_state_S, other=NEVER)
        share_S = tl.where(cost != 0.0, tl.exp(tl.minimum(alpha_S + rest_S + cost, 0.0)), 0.0)
        tl.store(row + state_S, share_S, mask=is_state_S)
        here_S = _bounded(rest_S + tl.load(frame + class_S), is_state_S)
        place = buffer + (t % 2) * max_states
        tl.store(place + state_S, here_S, mask=is_state_S)
        tl.debug_barrier()  # the sums are in memory; two buffers, so that none is overwritten while it is read
        one_S = tl.load(place + state_S + 1, mask=state_S + 1 < num_states, other=NEVER)
        two_S = tl.load(place + state_S + 2, mask=may_skip_S, other=NEVER)
        rest_S = _bounded(_log_add(_log_add(here_S, one_S), two_S), is_state_S)
        frame -= num_classes
        row -= max_states
        t -= 1


class _CtcCost(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, log_probs: Tensor, frames: Tensor, targets: Tensor, labels: Tensor
    ) -> Tensor:
        log_probs, given = (
            log_probs.contiguous(),
            (frames.contiguous(), targets.contiguous(), labels.contiguous()),
        )
        num_rows, max_frames, num_classes = log_probs.shape
        max_states = 2 * targets.size(1) + 1
        alphas_BTS, costs_B = (
            log_probs.new_zeros(num_rows, max_frames, max_states),
            log_probs.new_empty(num_rows),
        )
        sizes = max_frames, num_classes, targets.size(1), max_states
        launch(
            forward_kernel,
            (num_rows,),
            log_probs,
            *given,
            alphas_BTS,
            costs_B,
            *sizes,
            BLOCK=block_size(max_states),
        )
        ctx.save_for_backward(log_probs, *given, alphas_BTS, costs_B)
        return costs_B

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        log_probs, *given, alphas_BTS, costs_B = ctx.saved_tensors
        num_rows, max_frames, num_classes = log_probs.shape
        posteriors_BTS, targets_BL, max_states = alphas_BTS.clone(), given[1], alphas_BTS.size(2)
        betas_B2S = log_probs.new_empty(num_rows, 2, max_states)
        sizes = max_frames, num_classes, targets_BL.size(1), max_states
        tensors = log_probs, *given, posteriors_BTS, costs_B, betas_B2S
        launch(backward_kernel, (num_rows,), *tensors, *sizes, BLOCK=block_size(max_states))
        classes_BS = targets_BL.new_zeros(num_rows, max_states)
        classes_BS[:, 1::2] = targets_BL
        of_class_BSC = F.one_hot(classes_BS, num_classes).to(log_probs.dtype)
        return -(posteriors_BTS @ of_class_BSC) * grads[0][:, None, None], None, None, None


def block_size(num_states: int) -> int:
    """Lanes of the kernels."""
    return int(triton.next_power_of_2(max(2, num_states)))


def ctc_cost(log_probs: Tensor, frames: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """(B,) nats; 0, with gradient 0, where there are fewer frames than the labels need.

    Args:
        log_probs: (B, T, C) float32, class 0 is blank; frames: (B,) in T.
        targets: (B, L) int64 classes, 0 in the padding; labels: (B,) in L.
    """
    cost: Tensor = _CtcCost.apply(log_probs, frames, targets, labels)  # type: ignore[no-untyped-call]
    return cost
