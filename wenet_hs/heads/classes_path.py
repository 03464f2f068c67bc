# SPDX-License-Identifier: Apache-2.0
"""The class head's cost on the targets' paths: a product a node that is on a path, gradients written by hand.

The forward pass makes the derivatives as well, while the vectors are in the cache: the gradient of the hidden states
is then one multiplication, and that of the weight reads no vector again. The nodes are shared among parts: on a CPU
in float32 `FewRows` (Numba) takes the many nodes where few rows meet and `OneNode` (BLAS) each of the others;
elsewhere a `Batch` is padded nodes of similar size in one batched product, which is the reference of both.

Dimension key: N rows, D width, E edges, G nodes on a path, B nodes of a batch, R rows at a node, C its children,
M pairs of row and node, K rows of the weight's gradient: E, or the touched ones alone.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from wenet_hs.heads.classes_plan import Groups, Ints
from wenet_hs.heads.kernels.reference import sparse_rows

FEW_ROWS, FEW_SCORES = 6, 4096
"""A node where fewer rows meet, or that has fewer scores for all of them, is left to the kernel: there a call of BLAS
and of what surrounds it costs more than it saves."""
BATCH_CELLS = 2**24
"""Numbers in the largest tensor of a padded batch, which bounds its memory."""


class Inputs(NamedTuple):
    """What the cost is a function of."""

    hidden_ND: Tensor
    weight_ED: Tensor
    bias_E: Tensor
    smoothing: float


class Part(Protocol):
    """A share of the nodes."""

    def forward(self, inputs: Inputs, cost_N: Tensor, grad_ND: Tensor) -> None:
        """Add its nodes to the costs, and to their derivatives by the hidden states."""

    def backward(self, hidden_ND: Tensor, upstream_N: Tensor, grad_KD: Tensor, grad_E: Tensor) -> None:
        """Write, into zeros, the gradients of its vectors and biases."""


class _PathCost(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_ED: Tensor, bias_E: Tensor, *plan: Any) -> Tensor:
        groups, smoothing, ctx.sparse = plan
        kernel = hidden_ND.device.type == "cpu" and hidden_ND.dtype == torch.float32
        ctx.parts = list((_nodes_and_kernel if kernel else _batches)(groups, hidden_ND))
        cost_N, grad_ND = hidden_ND.new_zeros(len(hidden_ND)), torch.zeros_like(hidden_ND)
        for part in ctx.parts:
            part.forward(Inputs(hidden_ND, weight_ED, bias_E, smoothing), cost_N, grad_ND)
        ctx.touched = groups.all_edges() if ctx.sparse else None
        ctx.shape = weight_ED.shape
        ctx.save_for_backward(hidden_ND, grad_ND)
        return cost_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, grad_ND = ctx.saved_tensors
        upstream_N = grads[0].contiguous()
        grad_hidden = upstream_N[:, None] * grad_ND if ctx.needs_input_grad[0] else None
        if not any(ctx.needs_input_grad[1:3]):  # frozen
            return grad_hidden, None, None, None, None, None
        num_edges, dim = ctx.shape
        grad_KD = _zeros(hidden_ND, len(ctx.touched) if ctx.sparse else num_edges, dim)
        grad_E = hidden_ND.new_zeros(num_edges)
        for part in ctx.parts:
            part.backward(hidden_ND, upstream_N, grad_KD, grad_E)
        if ctx.sparse:
            touched = torch.from_numpy(ctx.touched).to(hidden_ND.device)
            grad_KD = sparse_rows(touched, grad_KD, ctx.shape)
        return grad_hidden, grad_KD, grad_E, None, None, None


def path_cost(
    hidden: Tensor, weight: Tensor, bias: Tensor, groups: Groups, *, smoothing: float, sparse: bool
) -> Tensor:
    """The cross-entropies of the decisions on each row's path, added up.

    Args:
        hidden: (N, D) float32 or float64.
        weight, bias: (E, D), (E,) of the same dtype.
        groups: the pairs of rows and nodes; compact if `sparse`.
        smoothing: ε; at each node the right child has 1-ε and each other one the same share of ε.
        sparse: give the weight a sparse gradient with the edges of the nodes on the paths alone.
    Returns:
        (N,) nats; differentiable once.
    """
    cost: Tensor = _PathCost.apply(hidden, weight, bias, groups, smoothing, sparse)  # type: ignore[no-untyped-call]
    return cost


def _zeros(like: Tensor, *shape: int) -> Tensor:
    """Zeros of its dtype and device. On a CPU numpy's: fresh pages are zero already, and are large ones."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    return torch.from_numpy(np.zeros(shape, np.float64 if like.dtype == torch.float64 else np.float32))


def decide(logits: Tensor, choices: Tensor, other: Tensor | float, valid: Tensor) -> Tensor:
    """The cost of decisions (...); the logits become its derivatives in place.

    Args:
        logits: (..., C); -inf where not valid.
        choices: (...) int64, the right ones.
        other: the smoothed target of each but the right one, broadcast to (..., 1); 0.0 without smoothing.
        valid: (..., C) or broadcast to it, 1 for children that are there, 0 for padding.
    """
    logits.sub_(logits.amax(-1, keepdim=True))
    right = 1.0 - other * valid.sum(-1, keepdim=True)
    cost = -right * logits.gather(-1, choices[..., None])
    if isinstance(other, Tensor) or other:
        cost = cost - other * logits.masked_fill(valid == 0, 0.0).sum(-1, keepdim=True)
    logits.exp_()
    total = logits.sum(-1, keepdim=True)
    cost = cost + total.log()
    logits.div_(total)
    if isinstance(other, Tensor) or other:
        logits.sub_(other * valid)
    logits.scatter_add_(-1, choices[..., None], -right.expand(choices[..., None].shape))
    return cost[..., 0]


class OneNode:
    """One node for BLAS: `rows` (R,) whose right children are `choices` (R,)."""

    def __init__(self, groups: Groups, group: int, num_rows: int) -> None:
        pairs = slice(groups.starts[group], groups.starts[group + 1])
        self.degree = int(groups.degrees[group])
        self.edges = slice(int(groups.edges[group]), int(groups.edges[group]) + self.degree)
        self.outs = slice(int(groups.outs[group]), int(groups.outs[group]) + self.degree)
        self.rows, self.choices = torch.from_numpy(groups.rows[pairs]), torch.from_numpy(groups.choices[pairs])
        self.has_all = len(self.rows) == num_rows

    def forward(self, inputs: Inputs, cost_N: Tensor, grad_ND: Tensor) -> None:
        hidden_ND, weight_ED, bias_E, smoothing = inputs
        weight_CD = weight_ED[self.edges]
        logits_RC = torch.addmm(bias_E[self.edges], self._of(hidden_ND), weight_CD.T)
        cost_R = decide(logits_RC, self.choices, smoothing / (self.degree - 1), logits_RC.new_ones(self.degree))
        self.slopes_RC = logits_RC
        if self.has_all:
            cost_N += cost_R
            grad_ND.addmm_(logits_RC, weight_CD)
        else:
            cost_N.index_add_(0, self.rows, cost_R)
            grad_ND.index_add_(0, self.rows, logits_RC @ weight_CD)

    def backward(self, hidden_ND: Tensor, upstream_N: Tensor, grad_KD: Tensor, grad_E: Tensor) -> None:
        upstream_R = self._of(upstream_N)
        torch.mm(self.slopes_RC.T, upstream_R[:, None] * self._of(hidden_ND), out=grad_KD[self.outs])
        torch.mv(self.slopes_RC.T, upstream_R, out=grad_E[self.edges])

    def _of(self, values: Tensor) -> Tensor:
        return values if self.has_all else values.index_select(0, self.rows)


class FewRows:
    """All nodes for the kernel."""

    def __init__(self, groups: Groups) -> None:
        self.rows = torch.from_numpy(groups.rows)
        ends = np.cumsum(np.repeat(groups.degrees, groups.sizes))
        places = np.append(0, ends[:-1])
        self.num_slopes = int(ends[-1])
        self.pairs = np.stack([groups.rows, groups.choices, places], axis=1)
        # Dealt out by falling work, as each thread takes one stretch of the nodes; their order changes no result.
        falling = np.argsort(-groups.degrees * groups.sizes, kind="stable")
        num_threads = torch.get_num_threads()
        dealt = np.concatenate([falling[thread::num_threads] for thread in range(num_threads)])
        per_node = groups.starts[:-1], groups.starts[1:], groups.edges, groups.degrees, groups.outs
        self.nodes = np.stack(per_node, axis=1)[dealt]

    def forward(self, inputs: Inputs, cost_N: Tensor, grad_ND: Tensor) -> None:
        from wenet_hs.heads.kernels import classes as classes_kernels
        from wenet_hs.heads.kernels import numba_math as threads

        threads.use_torch_threads()
        arrays = [tensor.detach().contiguous().numpy() for tensor in inputs[:3]]
        plan = self.nodes, self.pairs, self.num_slopes
        costs, self.slopes, grads = classes_kernels.few_rows_cost(*arrays, *plan, inputs.smoothing)
        cost_N.index_add_(0, self.rows, torch.from_numpy(costs))
        grad_ND.index_add_(0, self.rows, torch.from_numpy(grads))

    def backward(self, hidden_ND: Tensor, upstream_N: Tensor, grad_KD: Tensor, grad_E: Tensor) -> None:
        from wenet_hs.heads.kernels import classes as classes_kernels
        from wenet_hs.heads.kernels import numba_math as threads

        threads.use_torch_threads()
        arrays = [tensor.detach().numpy() for tensor in (grad_KD, grad_E, hidden_ND.contiguous(), upstream_N)]
        classes_kernels.few_rows_gradient(*arrays, self.nodes, self.pairs, self.slopes)


def _nodes_and_kernel(groups: Groups, hidden_ND: Tensor) -> Iterator[Part]:
    sizes = groups.sizes
    few = (sizes < FEW_ROWS) | (sizes * groups.degrees < FEW_SCORES)
    for group in np.flatnonzero(~few):
        yield OneNode(groups, int(group), len(hidden_ND))
    if few.any():
        yield FewRows(groups.selected(few))


class Batch:
    """Nodes of similar size, padded to one.

    Args:
        nodes: (4, B) int64: first pair, first edge, number of edges, first row of the gradient; `sizes` (B,) pairs.
        pairs: (2, M) rows and choices of all pairs, of this batch or not.
        shape: R and C, the greatest numbers of pairs and of edges among the nodes.
    """

    def __init__(self, nodes: Tensor, sizes: Tensor, pairs: Tensor, shape: tuple[int, int]) -> None:
        starts, edges, degrees, outs = nodes[:, :, None]
        pair_R, child_C = (torch.arange(size, device=nodes.device) for size in shape)
        self.present_BR = pair_R < sizes[:, None]
        self.rows_BR, self.choices_BR = pairs[:, starts + torch.minimum(pair_R, sizes[:, None] - 1)]
        self.valid_BC = child_C < degrees
        # Padding stands on the last child: its slope is zero, so what it adds is nothing.
        child_BC = torch.minimum(child_C, degrees - 1)
        self.edges_BC, self.outs_BC, self.degrees_B1 = edges + child_BC, outs + child_BC, degrees

    def forward(self, inputs: Inputs, cost_N: Tensor, grad_ND: Tensor) -> None:
        hidden_ND, weight_ED, bias_E, smoothing = inputs
        weight_BCD = weight_ED[self.edges_BC]
        logits_BRC = torch.baddbmm(bias_E[self.edges_BC][:, None], hidden_ND[self.rows_BR], weight_BCD.mT)
        logits_BRC.masked_fill_(~self.valid_BC[:, None], -torch.inf)
        other = smoothing / (self.degrees_B1[:, None].to(logits_BRC.dtype) - 1) if smoothing else 0.0
        cost_BR = decide(logits_BRC, self.choices_BR, other, self.valid_BC[:, None].to(logits_BRC.dtype))
        self.slopes_BRC = logits_BRC.mul_(self.present_BR[..., None])
        rows = self.rows_BR.reshape(-1)
        cost_N.index_add_(0, rows, (cost_BR * self.present_BR).reshape(-1))
        grad_ND.index_add_(0, rows, torch.bmm(self.slopes_BRC, weight_BCD).flatten(0, 1))

    def backward(self, hidden_ND: Tensor, upstream_N: Tensor, grad_KD: Tensor, grad_E: Tensor) -> None:
        slopes_BCR = (self.slopes_BRC * upstream_N[self.rows_BR][..., None]).mT
        grad_KD.index_add_(0, self.outs_BC.reshape(-1), torch.bmm(slopes_BCR, hidden_ND[self.rows_BR]).flatten(0, 1))
        grad_E.index_add_(0, self.edges_BC.reshape(-1), slopes_BCR.sum(-1).reshape(-1))


def _batches(groups: Groups, hidden_ND: Tensor) -> Iterator[Part]:
    degrees, sizes = groups.degrees, groups.sizes
    # Within a factor of 2 in the number of children, and of 8 in that of the mostly few rows.
    like = 64 * np.ceil(np.log2(degrees)).astype(np.int64) + np.log2(sizes).astype(np.int64) // 3
    order = np.argsort(like, kind="stable")
    nodes = _to(np.stack([groups.starts[:-1], groups.edges, degrees, groups.outs])[:, order], hidden_ND)
    sizes_G, pairs = _to(sizes[order], hidden_ND), _to(np.stack([groups.rows, groups.choices]), hidden_ND)
    ends = np.append(np.flatnonzero(np.diff(like[order])) + 1, len(order)) if len(order) else order
    start = 0
    for end in ends.tolist():
        shape = int(sizes[order[start:end]].max()), int(degrees[order[start:end]].max())
        step = max(1, BATCH_CELLS // max(shape[0] * shape[1], max(shape) * hidden_ND.shape[1]))
        for first in range(start, end, step):
            chosen = slice(first, min(first + step, end))
            yield Batch(nodes[:, chosen], sizes_G[chosen], pairs, shape)
        start = end


def _to(values: Ints, like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device)
