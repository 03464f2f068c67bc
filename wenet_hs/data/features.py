# SPDX-License-Identifier: Apache-2.0
"""Features of an utterance, and the cache that keeps them in a file.

Dimension key: T frames, F features per frame, N utterances, S speeds.
"""

import logging
import mmap
import os
import threading
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.base.files import NO_SPACE
from wenet_hs.data.audio import read_utterance
from wenet_hs.frontends.base import Frontend
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import DataError

logger = logging.getLogger(__name__)

CACHE_FEATURES = "dataset_conf.cache_features"


def utterance_features(
    utterance: Utterance, frontend: Frontend, incomplete: list[str] | None = None
) -> Tensor:
    """The features (T, F) of an utterance without dither.

    Raises ClipError naming the utterance and the file.

    incomplete: see `read_utterance`.
    """
    return frontend.compute(read_utterance(utterance, frontend.rate, incomplete))


class FeatureCache:
    """Features of each utterance at each speed, kept from their first use on by whichever process
    computes them.

    The ranks of a machine and their forked worker processes share the memory; the operating system
    may write it to the file and drop it. Two processes may compute the same features at the same
    time: they write the same values.
    """

    def __init__(
        self,
        path: Path,
        max_frames_NS: NDArray[np.int64],
        width: int,
        *,
        is_half: bool = False,
        setting: str = CACHE_FEATURES,
    ) -> None:
        """Open the file, and reserve its space first if no other process has.

        max_frames_NS: the longest length (N, S) in frames that is kept.
        is_half: keep float16 values.
        setting: what asked for the cache, for messages.
        Raises DataError if the file cannot be made, for instance on a full disk.
        """
        self._max_frames_NS = max_frames_NS
        self._starts_NS = max_frames_NS.cumsum().reshape(max_frames_NS.shape) - max_frames_NS
        num_slots, num_frames = max_frames_NS.size, int(max_frames_NS.sum())
        values = np.dtype(np.float16 if is_half else np.float32)
        self.num_bytes = num_bytes = 8 * num_slots + values.itemsize * num_frames * width
        if (
            path.exists() and path.stat().st_size != num_bytes
        ):  # cut off: the space of its end is not reserved
            path.unlink()
        if not path.exists():
            _reserve(path, num_bytes, setting)
        self._setting, self._has_warned = (
            setting,
            mmap.mmap(-1, 1),
        )  # shared with forked worker processes
        # Frames of each slot: 0 if it is empty, negative if the clip is incomplete. It is written
        # after the features.
        self._lengths_NS = np.memmap(path, np.int32, "r+", shape=max_frames_NS.shape)
        # CRC-32 of each slot: a machine that crashes may write the lengths of a file that stays,
        # but not its features.
        self._sums_NS = np.memmap(
            path, np.uint32, "r+", offset=4 * num_slots, shape=max_frames_NS.shape
        )
        self._frames = np.memmap(
            path, values, "r+", offset=8 * num_slots, shape=(num_frames, width)
        )

    def get(self, index: int, column: int) -> tuple[Tensor, bool] | None:
        """The features (T, F) of an utterance at a speed, not to be changed, and whether its clip
        is incomplete.
        """
        length, start = int(self._lengths_NS[index, column]), int(self._starts_NS[index, column])
        if length == 0:
            return None
        _memory_barrier()
        frames_TF = self._frames[start : start + abs(length)]
        is_intact = crc32(frames_TF.data) == self._sums_NS[index, column]
        return (torch.from_numpy(frames_TF).float(), length < 0) if is_intact else None

    def put(
        self, index: int, column: int, features_TF: Tensor, *, key: str, is_incomplete: bool
    ) -> None:
        """Keep features.

        Those longer than `max_frames_NS` are not kept, and the first such utterance is logged.
        """
        length, start = len(features_TF), int(self._starts_NS[index, column])
        if 0 < length <= self._max_frames_NS[index, column]:
            self._frames[start : start + length] = features_TF.numpy()
            self._sums_NS[index, column] = crc32(self._frames[start : start + length].data)
            _memory_barrier()
            self._lengths_NS[index, column] = -length if is_incomplete else length
        elif length and not self._has_warned[0]:
            self._has_warned[0] = 1
            most = int(self._max_frames_NS[index, column])
            reason = (
                f"has {length} frames, kept are at most {most} by its listed duration"
                if most
                else "is too long"
            )
            logger.warning(
                "%s: %s %s; such clips are computed in each epoch", self._setting, key, reason
            )


def _memory_barrier() -> None:
    """Order the accesses to features and length: ARM may otherwise show another process the length
    first.
    """
    with threading.Lock():
        pass


def _reserve(path: Path, num_bytes: int, setting: str) -> None:
    """Make a file of zeros whose space is reserved, so that no later write can fail; it appears
    when it is complete.
    """
    incomplete = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    logger.info("%s: %s: %.1f MB for features", setting, path, num_bytes / 1e6)
    try:
        with incomplete.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, max(1, num_bytes))
            else:  # macOS
                file.truncate(num_bytes)
        os.link(incomplete, path)
    except FileExistsError:
        pass  # another rank was faster
    except OSError as error:
        remedy = "free disk space" if error.errno in NO_SPACE else "check this folder"
        found = f"{setting}: cannot reserve {num_bytes / 1e6:.1f} MB ({error.strerror})"
        other = (
            "name another one in TMPDIR, or set it to false"
            if setting == CACHE_FEATURES
            else "or name another one"
        )
        raise DataError(path.parent, found, f"{remedy}, {other}") from error
    finally:
        incomplete.unlink(missing_ok=True)
