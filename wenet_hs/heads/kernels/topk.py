# SPDX-License-Identifier: Apache-2.0
"""The k greatest values of a row, with a defined order of equal values (`torch.topk` has none).

Dimension key: V values per row, K kept values.
"""

import torch
from torch import Tensor

KERNEL_MAX_K = 32
"""Up to this k one pass that keeps the best sorted is faster than a partial sort."""


def topk_lowest_id_first(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k greatest values of each row, descending; of equal values the lower index is kept and comes first.

    A NaN counts as the greatest value, as in `torch.topk`; of several any may come first.

    Args:
        scores: (..., V).
        k: 1…V.
    Returns:
        values (..., K), which carry gradients, and indices (..., K) int64.
    """
    if _has_kernel(scores, k):
        from wenet_hs.heads.kernels import numba_common

        found = numba_common.best_of_rows(scores.detach().reshape(-1, scores.shape[-1]).contiguous(), k)
        if found is not None:
            shape = (*scores.shape[:-1], k)
            return found[0].view(shape), found[1].view(shape)
    best, ids = scores.topk(min(k + 1, scores.shape[-1]))
    # Ties are rare. On a CPU the check is cheap. On a GPU it would wait for the device, so ties are always handled.
    if scores.device.type == "cpu" and not _has_ties(best):
        return best[..., :k], ids[..., :k]
    with torch.no_grad():
        ranked = scores.nan_to_num(torch.inf, torch.inf, -torch.inf)  # a NaN is neither above nor equal to anything
        last = best[..., k - 1 : k].nan_to_num(torch.inf, torch.inf, -torch.inf)
        above, equal = ranked > last, ranked == last
        room = k - above.sum(-1, keepdim=True)
        keep = above | (equal & (equal.cumsum(-1) <= room))
        ids = keep.to(torch.float32).topk(k).indices.sort(-1).values
        order = ranked.gather(-1, ids).sort(dim=-1, descending=True, stable=True).indices
        ids = ids.gather(-1, order)
    return scores.gather(-1, ids), ids


def _has_kernel(scores: Tensor, k: int) -> bool:
    if scores.device.type != "cpu" or scores.dtype != torch.float32 or torch.compiler.is_compiling():
        return False
    return k <= KERNEL_MAX_K and not (scores.requires_grad and torch.is_grad_enabled())


def _has_ties(sorted_values: Tensor) -> bool:
    if torch.compiler.is_compiling() or sorted_values.dtype == torch.bfloat16:  # which NumPy does not have
        return bool((sorted_values[..., 1:] == sorted_values[..., :-1]).any())
    values = sorted_values.detach().numpy()  # NumPy takes a third of the time for a few numbers
    return bool((values[..., 1:] == values[..., :-1]).any())
