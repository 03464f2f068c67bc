# SPDX-License-Identifier: Apache-2.0
"""CPU fast paths: linear layers equal torch's; dropout has the right distribution and uses torch's
random state.
"""

import pytest
import torch
from torch import nn

from wenet_hs.heads.products import Linear
from wenet_hs.nn.dropout import MANY_VALUES, Dropout
from wenet_hs.nn.layers import ACTIVATIONS


def test_gradients_beside_frozen_parameters() -> None:
    layer, x = Linear(4, 3), torch.ones(2, 4, requires_grad=True)
    layer.weight.requires_grad_(False)
    layer(x.detach()).sum().backward()
    assert layer.bias.grad is not None and layer.bias.grad.tolist() == [2.0, 2.0, 2.0]
    layer.requires_grad_(False)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(2, 4))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 0, 7), (2, 3, 7)], ids=str)
def test_a_layer_with_any_activation_is_torchs(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer, x = Linear(7, 5, bias=bias), 3 * torch.randn(shape)
    linear = nn.functional.linear(x, layer.weight, layer.bias)
    for activation in (None, nn.Softsign(), *(make() for make in ACTIVATIONS.values())):
        expected = linear if activation is None else activation(linear)
        with torch.no_grad():
            torch.testing.assert_close(layer(x, activation), expected)
            turned = x.transpose(0, -1).contiguous().transpose(0, -1)
            torch.testing.assert_close(layer(turned, activation), expected)
        torch.testing.assert_close(layer(x, activation), expected)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        assert layer.double()(x.double()).dtype == torch.float64


MANY = (3, MANY_VALUES // 3 + 1)


@pytest.mark.parametrize(("dtype", "rate"), [(torch.float32, 0.1), (torch.bfloat16, 0.5)])
def test_values_are_dropped_independently_and_the_others_scaled(
    dtype: torch.dtype, rate: float
) -> None:
    torch.manual_seed(1)
    ones = torch.ones(31, 17, 1001, dtype=dtype, requires_grad=True)
    out = Dropout(rate)(ones)
    out.sum().backward()
    assert ones.grad is not None
    assert torch.equal(ones.grad, out.detach()), "the same values are dropped from the gradient"
    kept = out.detach() != 0
    assert out.detach()[kept].unique().tolist() == pytest.approx([1 / (1 - rate)], rel=1e-4)
    bound = 4.5 * (rate * (1 - rate) / ones.numel()) ** 0.5
    flat = kept.flatten().double() - (1 - rate)
    assert abs(float(flat.mean())) < bound, "the rate"
    for shift in (1, 2, 3, 4, 5, 8, 1001, 17 * 1001):
        assert abs(float((flat[shift:] * flat[:-shift]).mean())) < bound, "values are independent"
    for axis in (0, 1, 2):
        along = kept.double().mean(tuple({0, 1, 2} - {axis}))
        deviation = (rate * (1 - rate) * len(along) / ones.numel()) ** 0.5
        assert float((along - (1 - rate)).abs().max()) < 5 * deviation, "at every index"


def test_torchs_random_state_determines_the_values() -> None:
    dropout, ones = Dropout(0.3), torch.ones(MANY)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first, second = dropout(ones), dropout(ones)
    torch.set_rng_state(state)
    assert torch.equal(dropout(ones), first)
    assert torch.equal(dropout(ones), second)
    agree = ((first != 0) == (second != 0)).double().mean()
    assert float(agree) == pytest.approx(0.7**2 + 0.3**2, abs=0.01), (
        "draws are independent of each other"
    )


def test_small_tensors_and_rates_0_and_1_are_torchs() -> None:
    few, many = torch.ones(10), torch.ones(MANY)
    torch.manual_seed(3)
    expected = torch.nn.functional.dropout(few, 0.5)
    torch.manual_seed(3)
    assert torch.equal(Dropout(0.5)(few), expected)
    assert torch.equal(Dropout(0.0)(many), many)
    assert not Dropout(1.0)(many).any()
    assert torch.equal(Dropout(0.5).eval()(many), many)
    assert Dropout(0.5)(many.double()).dtype == torch.float64
