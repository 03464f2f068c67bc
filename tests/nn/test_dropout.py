# SPDX-License-Identifier: Apache-2.0
"""Our dropout drops what it says, and draws from torch's random state alone."""

import pytest
import torch

from wenet_hs.nn.cpu import MANY_VALUES, Dropout

MANY = (3, MANY_VALUES // 3 + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_each_value_is_dropped_alone_and_the_others_make_up_for_it(dtype: torch.dtype, rate: float) -> None:
    torch.manual_seed(1)
    ones = torch.ones(31, 17, 1001, dtype=dtype, requires_grad=True)
    out = Dropout(rate)(ones)
    out.sum().backward()
    assert ones.grad is not None
    assert torch.equal(ones.grad, out.detach()), "the same values are dropped from the gradient"
    kept = out.detach() != 0
    assert out.detach()[kept].unique().tolist() == pytest.approx(
        [1 / (1 - rate)], rel=4e-3 if dtype != torch.float32 else 1e-4
    )
    bound = 4.5 * (rate * (1 - rate) / ones.numel()) ** 0.5
    flat = kept.flatten().double() - (1 - rate)
    assert abs(float(flat.mean())) < bound, "the rate"
    for shift in (1, 2, 3, 4, 5, 8, 1001, 17 * 1001):
        assert abs(float((flat[shift:] * flat[:-shift]).mean())) < bound, "a value says nothing of another"
    for axis in (0, 1, 2):
        along = kept.double().mean(tuple({0, 1, 2} - {axis}))
        deviation = (rate * (1 - rate) * len(along) / ones.numel()) ** 0.5
        assert float((along - (1 - rate)).abs().max()) < 5 * deviation, "at every place"


def test_the_random_state_decides_and_advances() -> None:
    dropout, ones = Dropout(0.3), torch.ones(MANY)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first, second = dropout(ones), dropout(ones)
    torch.set_rng_state(state)
    assert torch.equal(dropout(ones), first)
    assert torch.equal(dropout(ones), second)
    agree = ((first != 0) == (second != 0)).double().mean()
    assert float(agree) == pytest.approx(0.7**2 + 0.3**2, abs=0.01), "draws are independent of each other"


def test_small_tensors_and_the_ends_of_the_scale_are_torchs() -> None:
    few, many = torch.ones(10), torch.ones(MANY)
    torch.manual_seed(3)
    expected = torch.nn.functional.dropout(few, 0.5)
    torch.manual_seed(3)
    assert torch.equal(Dropout(0.5)(few), expected)
    assert torch.equal(Dropout(0.0)(many), many)
    assert not Dropout(1.0)(many).any()
    assert torch.equal(Dropout(0.5).eval()(many), many)
    assert Dropout(0.5)(many.double()).dtype == torch.float64
