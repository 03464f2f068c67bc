# SPDX-License-Identifier: Apache-2.0
"""Triton kernels of the CTC loss on a GPU: one program per utterance, one lane per state.

The loss is that of Graves et al. 2006, by the forward-backward algorithm. The states of an
utterance are blank, and each label with a blank after it: state 2l + 1 is label l, an even state is
blank. A path of states goes on by 0, 1 or 2 states per frame. It may go on by 2 only from a label
to another one, over the blank between them.

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
"""The log-probability of what is impossible; unlike -inf, it has finite differences."""


@triton.jit
def _log_add(a, b):  # type: ignore[no-untyped-def]
    """log(exp(a) + exp(b)) of finite numbers."""
    top = tl.maximum(a, b)
    return top + tl.log(tl.exp(a - top) + tl.exp(b - top))


@triton.jit
def _bounded(x_S, is_state_S):  # type: ignore[no-untyped-def]
    """NEVER in lanes without a state, and at least NEVER in all others; a NaN stays."""
    return tl.where(is_state_S, tl.where(x_S < NEVER, NEVER, x_S), NEVER)


@triton.jit
def _load_utterance(frame_counts, targets, label_counts, max_labels, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """What both kernels need of this program's utterance.

    Returns: its index, its number of frames, its number of states; and per lane the state, whether
    that is a label, a pointer to the label in `targets`, and the class of the state: 0 for blank.
    """
    utterance = tl.program_id(0).to(tl.int64)
    num_states = 2 * tl.load(label_counts + utterance) + 1
    state_S = tl.arange(0, BLOCK)
    is_label_S = ((state_S & 1) == 1) & (state_S < num_states)
    label_S = targets + utterance * max_labels + state_S // 2
    class_S = tl.load(label_S, mask=is_label_S, other=0)
    return (
        utterance,
        tl.load(frame_counts + utterance),
        num_states,
        state_S,
        is_label_S,
        label_S,
        class_S,
    )


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    log_probs,
    frame_counts,
    targets,
    label_counts,
    alphas,
    costs,
    max_frames,
    num_classes,
    max_labels,
    max_states,
    BLOCK: tl.constexpr,
):
    """The forward pass of an utterance: fills its `alphas` (T, S) and its cost.

    alpha[t, s] is the log of the summed probability of all paths that begin with the first frame
    and are in state s at frame t, with the probability of frame t. The cost is minus the log of the
    summed probability of all alignments, or 0 if no alignment is possible.
    """
    utterance, num_frames, num_states, state_S, is_label_S, label_S, class_S = _load_utterance(
        frame_counts, targets, label_counts, max_labels, BLOCK
    )
    is_state_S = state_S < num_states
    # Whether a path may come to the state from the one two before it: not if both are one label.
    may_skip_S = is_label_S & (state_S > 1)
    may_skip_S = may_skip_S & (tl.load(label_S - 1, mask=may_skip_S, other=0) != class_S)
    # Pointers to the log-probabilities and to the alphas of frame t.
    frame = log_probs + utterance * max_frames * num_classes
    row = alphas + utterance * max_frames * max_states
    # A path begins with the first blank or the first label.
    alpha_S = tl.where(is_state_S & (state_S < 2), tl.load(frame + class_S), NEVER)
    tl.store(row + state_S, alpha_S, mask=is_state_S & (num_frames > 0))
    t = 1
    while t < num_frames:
        tl.debug_barrier()  # the sums of the frame before are in memory
        frame += num_classes
        # The alphas of the states one and two before, at the frame before.
        one_back_S = tl.load(row + state_S - 1, mask=is_state_S & (state_S > 0), other=NEVER)
        two_back_S = tl.load(row + state_S - 2, mask=is_state_S & may_skip_S, other=NEVER)
        alpha_S = _log_add(_log_add(alpha_S, one_back_S), two_back_S) + tl.load(frame + class_S)
        alpha_S = _bounded(alpha_S, is_state_S)
        row += max_states
        tl.store(row + state_S, alpha_S, mask=is_state_S)
        t += 1
    # An alignment ends with the last label or the last blank.
    is_end_S = is_state_S & (state_S >= num_states - 2)
    end_S = tl.where(is_end_S, alpha_S, NEVER)
    top = tl.max(end_S, axis=0)
    total = top + tl.log(tl.sum(tl.exp(end_S - top), axis=0))
    # Without an alignment the total is about NEVER.
    tl.store(costs + utterance, tl.where((num_frames == 0) | (total < 0.5 * NEVER), 0.0, -total))


@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    log_probs,
    frame_counts,
    targets,
    label_counts,
    alphas,
    costs,
    betas,
    max_frames,
    num_classes,
    max_labels,
    max_states,
    BLOCK: tl.constexpr,
):
    """The backward pass of an utterance: replaces its `alphas` by the posteriors of the states.

    They are 0 if no alignment is possible. beta[t, s] is the log of the summed probability of all
    ends of alignments that are in state s at frame t, with the probability of frame t. Only those
    of two frames are kept: `betas` is (2, S) per utterance.
    """
    utterance, num_frames, num_states, state_S, is_label_S, label_S, class_S = _load_utterance(
        frame_counts, targets, label_counts, max_labels, BLOCK
    )
    is_state_S = state_S < num_states
    # Whether a path may go on to the state two after it: not if both are one label.
    may_skip_S = is_label_S & (state_S + 2 < num_states)
    may_skip_S = may_skip_S & (tl.load(label_S + 1, mask=may_skip_S, other=0) != class_S)
    cost = tl.load(costs + utterance)
    t = num_frames - 1
    # Pointers to the log-probabilities and to the alphas of frame t.
    frame = log_probs + (utterance * max_frames + t) * num_classes
    row = alphas + (utterance * max_frames + t) * max_states
    buffer = betas + utterance * 2 * max_states
    # The log of the summed probability of the frames after t: at the end 0 for the last two states.
    rest_S = tl.where(
        is_state_S & (state_S >= num_states - 2), tl.zeros((BLOCK,), tl.float32), NEVER
    )
    while t >= 0:
        # A cost of 0 means that no alignment is possible.
        alpha_S = tl.load(row + state_S, mask=is_state_S, other=NEVER)
        posterior_S = tl.where(cost != 0.0, tl.exp(tl.minimum(alpha_S + rest_S + cost, 0.0)), 0.0)
        tl.store(row + state_S, posterior_S, mask=is_state_S)
        beta_S = _bounded(rest_S + tl.load(frame + class_S), is_state_S)
        place = buffer + (t % 2) * max_states
        tl.store(place + state_S, beta_S, mask=is_state_S)
        # The sums are in memory. With two buffers none is overwritten while it is read.
        tl.debug_barrier()
        # The betas of the states one and two after.
        one_on_S = tl.load(place + state_S + 1, mask=state_S + 1 < num_states, other=NEVER)
        two_on_S = tl.load(place + state_S + 2, mask=may_skip_S, other=NEVER)
        rest_S = _bounded(_log_add(_log_add(beta_S, one_on_S), two_on_S), is_state_S)
        frame -= num_classes
        row -= max_states
        t -= 1


class _CtcCost(torch.autograd.Function):
    """`ctc_cost`; keeps the alphas for the gradient."""

    @staticmethod
    def forward(
        ctx: Any, log_probs: Tensor, frame_counts: Tensor, targets: Tensor, label_counts: Tensor
    ) -> Tensor:
        log_probs = log_probs.contiguous()
        frame_counts = frame_counts.contiguous()
        targets = targets.contiguous()
        label_counts = label_counts.contiguous()
        num_rows, max_frames, num_classes = log_probs.shape
        max_labels = targets.size(1)
        max_states = 2 * max_labels + 1
        alphas_BTS = log_probs.new_zeros(num_rows, max_frames, max_states)
        costs_B = log_probs.new_empty(num_rows)
        launch(
            forward_kernel,
            (num_rows,),
            log_probs,
            frame_counts,
            targets,
            label_counts,
            alphas_BTS,
            costs_B,
            max_frames,
            num_classes,
            max_labels,
            max_states,
            BLOCK=block_size(max_states),
        )
        ctx.save_for_backward(log_probs, frame_counts, targets, label_counts, alphas_BTS, costs_B)
        return costs_B

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of the log-probabilities: minus the posterior of each class (B, T, C)."""
        log_probs, frame_counts, targets_BL, label_counts, alphas_BTS, costs_B = ctx.saved_tensors
        num_rows, max_frames, num_classes = log_probs.shape
        max_labels = targets_BL.size(1)
        max_states = alphas_BTS.size(2)
        posteriors_BTS = alphas_BTS.clone()  # the alphas until the kernel replaces them
        betas_B2S = log_probs.new_empty(num_rows, 2, max_states)
        launch(
            backward_kernel,
            (num_rows,),
            log_probs,
            frame_counts,
            targets_BL,
            label_counts,
            posteriors_BTS,
            costs_B,
            betas_B2S,
            max_frames,
            num_classes,
            max_labels,
            max_states,
            BLOCK=block_size(max_states),
        )
        classes_BS = targets_BL.new_zeros(num_rows, max_states)
        classes_BS[:, 1::2] = targets_BL
        is_of_class_BSC = F.one_hot(classes_BS, num_classes).to(log_probs.dtype)
        grad_BTC = -(posteriors_BTS @ is_of_class_BSC) * grads[0][:, None, None]
        return grad_BTC, None, None, None


def block_size(num_states: int) -> int:
    """The constant BLOCK of the kernels, their number of lanes: a power of 2, at least 2."""
    return int(triton.next_power_of_2(max(2, num_states)))


def ctc_cost(
    log_probs: Tensor, frame_counts: Tensor, targets: Tensor, label_counts: Tensor
) -> Tensor:
    """The CTC loss of each utterance (B,) in nats; differentiable once in the log-probabilities.

    Loss and gradient are 0 for an utterance with fewer frames than its labels need.

    Args:
        log_probs: (B, T, C) float32 on a GPU; class 0 is blank.
        frame_counts: (B,) the number of frames of each utterance.
        targets: (B, L) int64 classes, 0 in the padding.
        label_counts: (B,) the number of labels of each utterance.
    """
    cost: Tensor = _CtcCost.apply(log_probs, frame_counts, targets, label_counts)  # type: ignore[no-untyped-call]
    return cost
