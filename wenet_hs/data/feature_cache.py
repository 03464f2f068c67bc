# SPDX-License-Identifier: Apache-2.0
"""Features of the utterances of a training, in a file that all processes of a machine map into memory.

Dimension key: N utterances, S speeds, T frames, F Mel bins.
"""

import logging
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.errors import DataError

logger = logging.getLogger(__name__)


class FeatureCache:
    """Room for the features of each utterance at each speed, computed at first use by whichever process needs them.

    The ranks of a machine and their worker processes share the memory; the operating system may write it to the file
    and drop it. Two processes may compute the same features at the same time: they write the same values.
    """

    def __init__(self, path: Path, max_frames_NS: NDArray[np.int64], num_bins: int) -> None:
        """Open the file, and reserve its space first if no other process has. Raises DataError if the disk is full.

        max_frames_NS: the longest length (N, S) in frames that is kept.
        """
        self._path, self._max_frames_NS, self._num_bins = path, max_frames_NS, num_bins
        ends_NS = max_frames_NS.cumsum().reshape(max_frames_NS.shape)
        self._starts_NS = ends_NS - max_frames_NS
        num_slots, num_frames = max_frames_NS.size, int(max_frames_NS.sum())
        if not path.exists():
            _reserve(path, 4 * (num_slots + num_frames * num_bins))
        # Frames of each slot: 0 if it is empty, negative if the clip is incomplete. It is written after the features.
        self._lengths_NS = np.memmap(path, np.int32, "r+", shape=max_frames_NS.shape)
        self._frames = np.memmap(path, np.float32, "r+", offset=4 * num_slots, shape=(num_frames, num_bins))

    def __reduce__(self) -> tuple[object, ...]:
        """A process that is not forked opens the file again."""
        return FeatureCache, (self._path, self._max_frames_NS, self._num_bins)

    def get(self, place: int, speed: int) -> tuple[Tensor, bool] | None:
        """The features (T, F) of an utterance at a speed, not to be changed, and whether its clip is incomplete."""
        length, start = int(self._lengths_NS[place, speed]), int(self._starts_NS[place, speed])
        if length == 0:
            return None
        return torch.from_numpy(self._frames[start : start + abs(length)]), length < 0

    def put(self, place: int, speed: int, features_TF: Tensor, *, is_incomplete: bool) -> None:
        """Keep features. Those of a clip that is longer than its list states are not kept."""
        length, start = len(features_TF), int(self._starts_NS[place, speed])
        if 0 < length <= self._max_frames_NS[place, speed]:
            self._frames[start : start + length] = features_TF.numpy()
            self._lengths_NS[place, speed] = -length if is_incomplete else length


def _reserve(path: Path, num_bytes: int) -> None:
    """Make a file of zeros whose space is reserved, so that no later write can fail; it appears when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    incomplete = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    logger.info("cache_features: %s: %.2f GB for features", path, num_bytes / 1e9)
    try:
        with incomplete.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            else:  # macOS
                file.truncate(num_bytes)
        incomplete.replace(path)
    except OSError as error:
        incomplete.unlink(missing_ok=True)
        size = f"cache_features needs {num_bytes / 1e9:.2f} GB there"
        raise DataError(
            f"{path}: {size} ({error.strerror}); make room, or set dataset_conf.cache_features: false"
        ) from error
