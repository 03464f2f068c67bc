# SPDX-License-Identifier: Apache-2.0
"""The convolution module: padding has no effect; batch normalization is PyTorch's without padding, and over ranks."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from wenet_hs.nn.conformer import ConvolutionModule, MaskedBatchNorm
from wenet_hs.nn.layers import length_mask


def full_mask(batch: int, time: int) -> torch.Tensor:
    return torch.ones(batch, time, dtype=torch.bool)


def test_batch_norm_is_pytorchs_without_padding() -> None:
    torch.manual_seed(0)
    ours, theirs = MaskedBatchNorm(6), nn.BatchNorm1d(6)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    nn.init.uniform_(theirs.weight), nn.init.uniform_(theirs.bias)
    ours.load_state_dict(theirs.state_dict())
    for training in (True, True, False):
        ours.train(training), theirs.train(training)
        x = torch.randn(4, 9, 6) * 3 + 1
        own, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        out, expected = ours(own, full_mask(4, 9)), theirs(other.transpose(1, 2)).transpose(1, 2)
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
        upstream = torch.randn_like(out)
        (out * upstream).sum().backward()
        (expected * upstream).sum().backward()
        torch.testing.assert_close(own.grad, other.grad, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, atol=1e-4, rtol=1e-4)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(0, 6), min_size=2, max_size=4).filter(lambda ls: sum(ls) > 1), ranks=st.booleans())
def test_batch_norm_uses_only_valid_frames_of_all_ranks(lengths: list[int], ranks: bool) -> None:
    """With `ranks`, the statistics of each utterance are gathered as if each were on a rank of its own."""
    torch.manual_seed(sum(lengths))
    mask = length_mask(torch.tensor(lengths), 6)
    x = torch.randn(len(lengths), 6, 4).masked_fill(~mask[..., None], 1e3)
    ours, theirs = MaskedBatchNorm(4), nn.BatchNorm1d(4)
    if ranks:
        of_ranks: list[torch.Tensor] = []
        for row in range(len(lengths)):
            other = MaskedBatchNorm(4)
            other.across_ranks = lambda own: of_ranks.append(own) or own[None]
            other(x[[row]], mask[[row]])
        ours.across_ranks = lambda own: torch.stack(of_ranks)
    torch.testing.assert_close(ours(x, mask)[mask], theirs(x[mask]), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)


def test_batch_norm_of_no_or_one_frame() -> None:
    norm = MaskedBatchNorm(3)
    assert norm(torch.randn(1, 2, 3), full_mask(1, 2) & False).isfinite().all()
    assert torch.equal(norm.running_mean, torch.zeros(3)) and torch.equal(norm.running_var, torch.ones(3))
    assert norm(torch.randn(1, 1, 3), full_mask(1, 1)).isfinite().all() and norm.running_var.isfinite().all()


def test_module_by_plain_operations() -> None:
    torch.manual_seed(0)
    module = ConvolutionModule(4, 5, norm="layer_norm")
    x = torch.randn(2, 7, 4)
    y = F.glu(module.pointwise_conv1(x.transpose(1, 2)), dim=1)
    y = module.depthwise_conv(F.pad(y, (2, 2)))
    y = F.silu(module.norm(y.transpose(1, 2))).transpose(1, 2)
    expected = module.pointwise_conv2(y).transpose(1, 2)
    torch.testing.assert_close(module(x, full_mask(2, 7)), expected, atol=1e-6, rtol=1e-5)


@settings(max_examples=20, deadline=None)
@given(length=st.integers(1, 9), junk=st.floats(-1e4, 1e4), norm=st.sampled_from(("batch_norm", "layer_norm")))
def test_padding_has_no_effect(length: int, junk: float, norm: str) -> None:
    torch.manual_seed(length)
    module = ConvolutionModule(4, 7, norm=norm)
    nn.init.normal_(module.pointwise_conv1.bias)
    x = torch.randn(1, length, 4)
    alone = module(x, full_mask(1, length))
    batched = module(F.pad(x, (0, 0, 0, 5), value=junk), length_mask(torch.tensor([length]), length + 5))
    torch.testing.assert_close(batched[:, :length], alone, atol=1e-5, rtol=1e-5)
