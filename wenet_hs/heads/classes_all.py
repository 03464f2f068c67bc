# SPDX-License-Identifier: Apache-2.0
"""The class head over all edges: a softmax at every node at once, and costs from it.

Dimension key: N rows, D width, V units, I inner nodes, E edges, B nodes of similar size, C children of the widest.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from wenet_hs.heads.classes_plan import Edges, Ints


def sibling_tables(offsets: Ints) -> list[Ints]:
    """The edges of each node as rows of a few tables (B, C), padded with E; a node fills more than half of its row."""
    degrees = np.diff(offsets)
    widths = np.ceil(np.log2(degrees)).astype(np.int64)
    tables = []
    for width in np.unique(widths):
        nodes = np.flatnonzero(widths == width)
        child_C = np.arange(degrees[nodes].max())
        edges_BC = offsets[nodes, None] + child_C
        tables.append(np.where(child_C < degrees[nodes, None], edges_BC, offsets[-1]))
    return tables


def log_softmax_siblings(scores: Tensor, tables: list[Tensor]) -> Tensor:
    """Scores of edges (N, E) to log-probabilities of children given their node (N, E), in plain PyTorch.

    `tables` are those of `sibling_tables` on the device of the scores.
    """
    if not tables:  # one unit, no edge
        return scores
    padded = torch.nn.functional.pad(scores, (0, 1), value=-torch.inf)
    flat = torch.cat([table.reshape(-1) for table in tables])
    parts = [
        padded.index_select(1, table.reshape(-1)).view(-1, *table.shape).log_softmax(-1).flatten(1) for table in tables
    ]
    # Where each edge stands among the parts; padding all goes to a place behind the edges that is cut off.
    places = torch.empty(scores.size(1) + 1, dtype=torch.int64, device=scores.device)
    places[flat] = torch.arange(len(flat), device=scores.device)
    return torch.cat(parts, dim=1).index_select(1, places[:-1])


def log_softmax_siblings_kernel(scores: Tensor, offsets: Ints) -> Tensor:
    """The same in place and without a gradient: float32 on a CPU."""
    from wenet_hs.heads.kernels import classes as classes_kernels
    from wenet_hs.heads.kernels import numba_math as threads

    threads.use_torch_threads()
    classes_kernels.log_softmax(scores.detach().numpy(), offsets)
    return scores


class _AllEdgesCost(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_ED: Tensor, bias_E: Tensor, *plan: Any) -> Tensor:
        from wenet_hs.heads.kernels import classes as classes_kernels
        from wenet_hs.heads.kernels import numba_math as threads

        threads.use_torch_threads()
        tree, leaves_E, targets_N, weights = plan
        slopes_NE = torch.addmm(bias_E, hidden_ND, weight_ED.T)
        maps = tree.offsets, tree.edge_nodes, tree.node_edges
        numbers = leaves_E.numpy(), targets_N.contiguous().numpy(), tuple(map(np.float32, weights))
        costs = classes_kernels.all_edges_cost(slopes_NE.numpy(), maps, *numbers)
        ctx.save_for_backward(hidden_ND, weight_ED, slopes_NE)
        return torch.from_numpy(costs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_ED, slopes_NE = ctx.saved_tensors
        (upstream_N,) = grads
        grad_ND = grad_ED = grad_E = None
        if ctx.needs_input_grad[0]:
            grad_ND = (slopes_NE @ weight_ED).mul_(upstream_N[:, None])
        if ctx.needs_input_grad[1]:
            grad_ED = slopes_NE.T @ (upstream_N[:, None] * hidden_ND)
        if ctx.needs_input_grad[2]:
            grad_E = slopes_NE.T @ upstream_N
        return grad_ND, grad_ED, grad_E, None, None, None, None


def all_edges_cost_kernel(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    *,
    tree: Edges,
    leaves: Tensor,
    weights: tuple[float, float, float],
) -> Tensor:
    """The costs (N,) of the targets from the scores of all edges, which become their derivatives in place.

    Args:
        hidden, weight, bias, targets: (N, D), (E, D), (E,) float32 and (N,) int64 on a CPU.
        leaves: (E,) float32, how many are below each edge.
        weights: target, every and smoothing: -target·log P(its unit) - every·Σ_v log P(v); or, with every 0, target
            times the cross-entropies of the decisions on the path, smoothed by that ε.
    """
    plan = tree, leaves, targets, weights
    cost: Tensor = _AllEdgesCost.apply(hidden, weight, bias, *plan)  # type: ignore[no-untyped-call]
    return cost
