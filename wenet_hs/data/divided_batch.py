# SPDX-License-Identifier: Apache-2.0
"""Size of the batches of each rank, so that a step has as much speech with any number of ranks."""

from wenet_hs.config.dataset import BatchConf
from wenet_hs.tree.errors import ConfigError

BATCH_CONF = "dataset_conf.batch_conf"
SIZE_SETTINGS = {
    "static": "batch_size",
    "dynamic": "max_frames_in_batch",
    "bucket": "bucket_batch_sizes",
}
"""Kind of batches → the setting of their size."""


def divide_batch(conf: BatchConf, num_ranks: int) -> str:
    """The setting for batches that have 1 / `num_ranks` of the size in `conf`, as `key=value`.

    Sizes are rounded down. For example `dataset_conf.batch_conf.batch_size=8` for 16 and 2 ranks.

    Raises ConfigError if a batch would be empty.
    """
    name = SIZE_SETTINGS[conf.batch_type]
    size = getattr(conf, name)
    key = f"{BATCH_CONF}.{name}"
    if isinstance(size, tuple):
        sizes_per_rank = [bucket_size // num_ranks for bucket_size in size]
        smallest = min(sizes_per_rank)
        value = str(sizes_per_rank)
    else:
        smallest = size // num_ranks
        value = str(smallest)
    if smallest == 0:
        found = f"{key}: {size} cannot be divided by {num_ranks} ranks"
        raise ConfigError("--divide_batch", found, "raise it, or use fewer ranks")
    return f"{key}={value}"
