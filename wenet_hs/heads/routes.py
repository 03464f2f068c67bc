# SPDX-License-Identifier: Apache-2.0
"""Which of the exact ways to a tree head's cost is the cheapest: one pure function that returns a name."""

from typing import Literal

import torch

Route = Literal["path", "nodes", "torch-path", "torch-nodes"]
"""How a cost is computed: with the vectors on the targets' paths, or with those of all nodes; by Numba's kernels on
a CPU in float32, or by PyTorch anywhere."""

RouteOption = Literal["auto", "torch", "path", "nodes", "torch-path", "torch-nodes"]
"""What a user may ask for: "auto" and "torch" choose, of all ways and of PyTorch's."""

ROUTE_OPTIONS = ("auto", "torch", "path", "nodes", "torch-path", "torch-nodes")

NODES_A_DECISION = 2
"""On a CPU all nodes' product takes as long for two nodes as the path kernels for a decision: a path is slower only in
a comb whose deep leaves occur often (1,000 rows of width 256, one thread: equal at V = 60 with 31 decisions a target,
path 1.5 times as fast at V = 10 with 3, 2 times at V = 30 with 4)."""
TORCH_NODES_A_DECISION = 40
"""The same of PyTorch's two ways on a CPU: at V = 300 with 6.6 decisions a target they are equal."""


def choose_route(
    num_units: int,
    *,
    mean_path: float,
    max_path: int,
    dim: int,
    every_unit: bool,
    device: torch.device,
    dtype: torch.dtype,
    wanted: RouteOption = "auto",
) -> Route:
    """The way to the cost of targets; how many there are does not matter, for all ways are linear in it.

    Args:
        num_units: V.
        mean_path, max_path: decisions on the path of a unit, weighted by the units' frequencies, and the most.
        dim: D, the width of the vectors.
        every_unit: whether the cost touches all units, as leaf smoothing does; then a path is not enough.
        device, dtype: of the computation, float32 or float64.
        wanted: a way to be taken; its product of all nodes where a path is not enough.
    Raises:
        ValueError: a kernel is wanted where none can run.
    """
    can_run = device.type == "cpu" and dtype == torch.float32
    if wanted in ("path", "nodes") and not can_run:
        raise ValueError(f'route: "{wanted}" is a Numba kernel for float32 on a CPU, here is {dtype} on {device.type}')
    prefix = "" if can_run and not wanted.startswith("torch") else "torch-"
    if every_unit or wanted.endswith("nodes"):
        return "torch-nodes" if prefix else "nodes"
    if wanted.endswith("path"):
        return "torch-path" if prefix else "path"
    if not prefix:
        return "path" if num_units > NODES_A_DECISION * mean_path else "nodes"
    if device.type == "cpu":
        return "torch-path" if num_units > TORCH_NODES_A_DECISION * mean_path else "torch-nodes"
    # A GPU gathers P · D numbers a target for the path and makes V for the product: the smaller also needs less memory.
    return "torch-path" if num_units > max_path * dim else "torch-nodes"
