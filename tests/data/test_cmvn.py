# SPDX-License-Identifier: Apache-2.0
"""Global statistics by hand, and faulty files."""

import json
from functools import reduce
from operator import add
from pathlib import Path

import pytest
import torch
from noise_clips import write_clips

from wenet_hs.data.cmvn import CMVN_GROUP, global_sums, read_cmvn, write_cmvn
from wenet_hs.data.features import utterance_features
from wenet_hs.frontends import Fbank
from wenet_hs.tree.errors import DataError


def row_of(features: torch.Tensor) -> torch.Tensor:
    """Sums, sums of squares and number of frames."""
    wide = features.double()
    return torch.cat([wide.sum(0), wide.square().sum(0), torch.tensor([len(wide)]).double()])


def test_sums_are_those_of_features_without_dither(tmp_path: Path) -> None:
    utterances = write_clips(tmp_path, [0.1 + 0.002 * i for i in range(CMVN_GROUP + 3)])
    frontend = Fbank(num_mel_bins=23, dither=1.0)
    features = torch.cat([utterance_features(utterance, frontend) for utterance in utterances])
    torch.testing.assert_close(
        reduce(add, global_sums(utterances, frontend)).sums, row_of(features), rtol=1e-12, atol=0
    )


def test_mean_and_inverse_deviation_by_hand(tmp_path: Path) -> None:
    write_cmvn(tmp_path / "c", row_of(torch.tensor([[1.0, 10.0], [3.0, 10.0], [5.0, 10.0]])))
    assert json.loads((tmp_path / "c").read_text()) == {
        "mean_stat": [9, 30],
        "var_stat": [35, 300],
        "frame_num": 3,
    }
    mean, istd = read_cmvn(tmp_path / "c")
    assert mean.tolist() == [3.0, 10.0]
    assert float(istd[0]) == pytest.approx((35 / 3 - 9) ** -0.5)
    assert float(istd[1]) == pytest.approx(1e10)  # a variance of 0 is floored at 1e-20
    assert mean.dtype == istd.dtype == torch.float32
    with pytest.raises(DataError, match="no frames to compute statistics from"):
        write_cmvn(tmp_path / "none", torch.zeros(3))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[1, 2]", r"Input should be a valid dictionary, found \[1, 2\]; compute it again with"),
        ("{", r"not JSON \(.* line 1 .*\); compute it again with"),
        (
            '{"mean_stat": [1], "var_stat": [true], "frame_num": 3}',
            "var_stat: 0: .* number, found True; compute",
        ),
        ("[" * 100_000, "not JSON"),
        ('{"mean_stat": [1, 2], "var_stat": [1], "frame_num": 2}', "2 sums and 1 sums of squares"),
        ('{"mean_stat": [1], "var_stat": [1], "frame_num": -3}', "statistics of -3 frames"),
        ('{"mean_stat": [1], "var_stat": [NaN], "frame_num": 3}', "values that are not finite"),
    ],
)
def test_wrong_json_is_refused(tmp_path: Path, content: str, text: str) -> None:
    (tmp_path / "c").write_text(content)
    with pytest.raises(DataError, match=f"^{tmp_path}/c: {text}"):
        read_cmvn(tmp_path / "c")
