# SPDX-License-Identifier: Apache-2.0
"""The size of the batches of each rank."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wenet_hs.config.dataset import BatchConf
from wenet_hs.config.load import load_config
from wenet_hs.data.divided_batch import divide_batch
from wenet_hs.recipes.conf_files import conf_file
from wenet_hs.tree.errors import ConfigError

BUCKETS: dict[str, Any] = {
    "batch_type": "bucket",
    "bucket_boundaries": (100, 200),
    "bucket_batch_sizes": (8, 5, 2),
}


def divided(num_ranks: int, **settings: Any) -> str:
    return divide_batch(BatchConf(**settings), num_ranks)


def test_each_kind_of_batches() -> None:
    batch = "dataset_conf.batch_conf"
    assert divided(3, batch_type="static", batch_size=16) == f"{batch}.batch_size=5"
    dynamic = {"batch_type": "dynamic", "max_frames_in_batch": 1500}
    assert divided(2, **dynamic) == f"{batch}.max_frames_in_batch=750"
    assert divided(2, **BUCKETS) == f"{batch}.bucket_batch_sizes=[4, 2, 1]"


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"batch_type": "static", "batch_size": 2}, "batch_size: 2"),
        (BUCKETS, "bucket_batch_sizes: (8, 5, 2)"),
    ],
)
def test_a_batch_that_is_too_small_for_the_ranks(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        divided(3, **settings)
    found = f"dataset_conf.batch_conf.{fault} cannot be divided by 3 ranks"
    assert str(caught.value) == f"--divide_batch: {found}; raise it, or use fewer ranks"


@given(more=st.integers(0, 10**6), num_ranks=st.integers(1, 64))
def test_the_ranks_together_have_at_most_the_batch(more: int, num_ranks: int) -> None:
    frames = num_ranks + more
    setting = divided(num_ranks, batch_type="dynamic", max_frames_in_batch=frames)
    of_rank = int(setting.partition("=")[2])
    assert frames - num_ranks < of_rank * num_ranks <= frames


def test_the_setting_is_read_by_a_config() -> None:
    setting = divided(2, **BUCKETS)
    kind = "dataset_conf.batch_conf={batch_type: bucket, bucket_boundaries: [100, 200]}"
    config = load_config(conf_file("mini.yaml"), [kind, setting])
    assert config.dataset_conf.batch_conf.bucket_batch_sizes == (4, 2, 1)
