# SPDX-License-Identifier: Apache-2.0
"""The linear layer without gradients is the one with them."""

import pytest
import torch
from torch import nn

from wenet_hs.nn.cpu import Linear, linear
from wenet_hs.nn.layers import ACTIVATIONS, make_activation


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 0, 7), (2, 3, 7)], ids=str)
def test_it_is_torchs(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer, x = Linear(7, 5, bias=bias), torch.randn(shape)
    expected = nn.functional.linear(x, layer.weight, layer.bias)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected)
        turned = x.transpose(0, -1).contiguous().transpose(0, -1)
        torch.testing.assert_close(layer(turned), expected)
    torch.testing.assert_close(layer(x), expected)
    assert layer(x).requires_grad


def test_other_dtypes_and_autocast_go_torchs_way() -> None:
    layer = Linear(4, 3)
    with torch.no_grad():
        assert layer.double()(torch.ones(2, 4, dtype=torch.float64)).dtype == torch.float64
        with torch.autocast("cpu", torch.bfloat16):
            assert layer.float()(torch.ones(2, 4)).dtype == torch.bfloat16


def test_gradients_of_a_frozen_layer_still_reach_its_input() -> None:
    layer, x = Linear(4, 3).requires_grad_(False), torch.ones(2, 4, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(2, 4))


def test_a_bias_beside_a_frozen_weight_is_trained() -> None:
    layer = Linear(4, 3)
    layer.weight.requires_grad_(False)
    layer(torch.ones(2, 4)).sum().backward()
    assert layer.bias.grad is not None and layer.bias.grad.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("name", [*ACTIVATIONS, "another"])
def test_an_activation_behind_it_is_torchs(name: str) -> None:
    torch.manual_seed(0)
    layer, x = Linear(7, 5), 3 * torch.randn(2, 3, 7)
    activation = nn.Softsign() if name == "another" else make_activation(name)
    expected = activation(nn.functional.linear(x, layer.weight, layer.bias))
    with torch.no_grad():
        torch.testing.assert_close(layer(x, activation), expected)
    torch.testing.assert_close(layer(x, activation), expected)


def test_a_layer_without_outputs_has_none() -> None:
    with torch.no_grad():
        assert linear(torch.ones(2, 4), torch.ones(0, 4)).shape == (2, 0)
