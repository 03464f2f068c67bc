# SPDX-License-Identifier: Apache-2.0
"""The choice of a route: what is cheap where, and who may overrule it."""

import pytest
import torch

from wenet_hs.heads.hsoftmax import Route, RouteOption, choose_route

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def choose(
    num_units: int,
    mean_path: float = 8.0,
    *,
    every_unit: bool = False,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
    wanted: RouteOption = "auto",
) -> Route:
    return choose_route(
        num_units,
        mean_path=mean_path,
        max_path=20,
        dim=256,
        every_unit=every_unit,
        device=device,
        dtype=dtype,
        wanted=wanted,
    )


def test_a_path_where_it_is_short_and_all_nodes_where_a_cost_needs_them() -> None:
    assert choose(10_000) == choose(150) == "path"
    assert choose(150, 75.0) == "nodes"  # a comb
    assert choose(10_000, every_unit=True) == "nodes"


def test_pytorch_elsewhere() -> None:
    assert choose(10_000, dtype=torch.float64) == "torch-path"
    assert choose(150, dtype=torch.float64) == "torch-nodes"
    assert choose(10_000, device=GPU) == "torch-path"
    assert choose(5_000, device=GPU) == "torch-nodes"  # 20 · 256 numbers for a path
    assert choose(10_000, device=GPU, every_unit=True) == "torch-nodes"


def test_the_user_overrules() -> None:
    assert choose(10_000, wanted="nodes") == "nodes"
    assert choose(150, 75.0, wanted="path") == "path"
    assert choose(10_000, wanted="path", every_unit=True) == "nodes"
    assert choose(10_000, wanted="torch") == "torch-path"
    assert choose(10_000, wanted="torch-path", every_unit=True) == "torch-nodes"
    assert choose(10_000, wanted="torch-nodes") == "torch-nodes"


@pytest.mark.parametrize("wanted", ["path", "nodes"])
def test_kernels_are_not_replaced_in_silence(wanted: RouteOption) -> None:
    with pytest.raises(ValueError, match=f'route: "{wanted}" is a Numba kernel .* here is torch.float32 on cuda'):
        choose(100, device=GPU, wanted=wanted)
    with pytest.raises(ValueError, match=r"here is torch.float64 on cpu"):
        choose(100, dtype=torch.float64, wanted=wanted)
