# SPDX-License-Identifier: Apache-2.0
"""Subsampling: lengths, and that a frame depends on its own stretch of features alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.nn.positional import NoPositionalEncoding
from wenet_hs.nn.subsampling import Conv2dSubsampling, LinearSubsampling, Subsampling

FORMULA = {
    "conv2d": lambda t: ((t - 1) // 2 - 1) // 2,
    "conv2d6": lambda t: ((t - 1) // 2 - 2) // 3,
    "conv2d8": lambda t: (((t - 1) // 2 - 1) // 2 - 1) // 2,
}
KINDS = tuple(FORMULA)


def make(kind: str, size: int = 4, bins: int = 20) -> Subsampling:
    torch.manual_seed(0)
    if kind == "linear":
        return LinearSubsampling(bins, size, dropout_rate=0.0, positional=NoPositionalEncoding(size, 0.0)).eval()
    return Conv2dSubsampling(kind, bins, size, NoPositionalEncoding(size, 0.0)).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_wenets_formula_and_the_real_shape(kind: str) -> None:
    embed = make(kind)
    lengths = torch.arange(0, 80)
    expected = [max(0, FORMULA[kind](t)) for t in range(80)]
    assert [embed.subsampled_length(t) for t in range(80)] == expected
    assert embed.subsampled_length(lengths).tolist() == expected
    for frames in range(embed.min_frames, 40):
        assert embed(torch.zeros(1, frames, 20))[0].size(1) == expected[frames]
    assert expected[embed.min_frames] == 1
    assert expected[embed.min_frames - 1] == 0


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_frames_behind_the_end_do_not_matter(kind: str, data: st.DataObject) -> None:
    embed = make(kind)
    frames = data.draw(st.integers(embed.min_frames, 60))
    features = torch.randn(1, frames, 20, generator=torch.Generator().manual_seed(frames))
    junk = torch.full((1, data.draw(st.integers(1, 20)), 20), data.draw(st.floats(-1e5, 1e5)))
    alone, batched = embed(features)[0], embed(torch.cat([features, junk], dim=1))[0]
    torch.testing.assert_close(batched[:, : alone.size(1)], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "names"), [
    ("conv2d", {"conv.0", "conv.2", "out.0"}),
    ("conv2d6", {"conv.0", "conv.2", "linear"}),
    ("conv2d8", {"conv.0", "conv.2", "conv.4", "linear"}),
    ("linear", {"out.0", "out.1"}),
])  # fmt: skip
def test_names_are_wenets(kind: str, names: set[str]) -> None:
    assert {name.rpartition(".")[0] for name in make(kind).state_dict()} == names


def test_shapes_are_wenets() -> None:
    def shape(kind: str, name: str) -> tuple[int, ...]:
        return tuple(make(kind, bins=80).state_dict()[name].shape)

    assert shape("conv2d", "out.0.weight") == (4, 19 * 4)
    assert shape("conv2d6", "conv.2.weight") == (4, 4, 5, 5)
    assert shape("conv2d6", "linear.weight") == (4, 4 * (((80 - 1) // 2 - 2) // 3))
    assert shape("conv2d8", "linear.weight") == (4, 4 * 9)


def test_linear_keeps_every_frame() -> None:
    embed = make("linear")
    assert embed.subsampled_length(3) == 3
    assert embed(torch.randn(2, 3, 20))[0].shape == (2, 3, 4)


def test_too_few_features() -> None:
    with pytest.raises(ValueError, match="conv2d cannot subsample 6 features: none would be left"):
        Conv2dSubsampling("conv2d", 6, 4, NoPositionalEncoding(4, 0.0))
