# SPDX-License-Identifier: Apache-2.0
"""Batches of a rank, so that a step of several ranks has as much speech as one of a single rank."""

from wenet_hs.config.dataset import BatchConf
from wenet_hs.tree.errors import ConfigError

BATCH_CONF = "dataset_conf.batch_conf"
SIZES = {
    "static": "batch_size",
    "dynamic": "max_frames_in_batch",
    "bucket": "bucket_batch_sizes",
}
"""Kind of batches → the setting with their size."""


def divide_batch(conf: BatchConf, num_ranks: int) -> str:
    """The setting of the batches of each rank, as `key=value`; remainders are left out.

    Raises ConfigError if a rank would have no batch.
    """
    name = SIZES[conf.batch_type]
    size = getattr(conf, name)
    key = f"{BATCH_CONF}.{name}"
    if isinstance(size, tuple):
        of_rank = [one // num_ranks for one in size]
        smallest = min(of_rank)
        value = str(of_rank)
    else:
        smallest = size // num_ranks
        value = str(smallest)
    if smallest == 0:
        found = f"{key}: {size} cannot be divided by {num_ranks} ranks"
        raise ConfigError("--divide_batch", found, "raise it, or use fewer ranks")
    return f"{key}={value}"
