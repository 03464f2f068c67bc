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
    """The features (T, F) of an utterance, without dither.

    incomplete: the list to which `read_utterance` appends the key of a clip that lacks some audio.

    Raises: ClipError naming the utterance and the file.
    """
    waveform = read_utterance(utterance, frontend.rate, incomplete)
    return frontend.compute(waveform)


class FeatureCache:
    """Features of each utterance at each speed, in a file from their first use on.

    The ranks of a machine and their forked worker processes share the memory of the file, and each
    of them writes features that it computes. The operating system may write the memory to the disk
    and drop it. Two processes may compute the same features at the same time: they write the same
    values.

    An utterance (`index`) at a speed (`column`) has a slot of the file with a length, a checksum
    and the features.
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

        A file of another size is removed: it was cut off, so the space of its end is not reserved.

        Args:
            max_frames_NS: the longest length (N, S) in frames that is kept.
            width: features per frame.
            is_half: keep float16 values.
            setting: what asked for the cache, for messages.
        Raises: DataError if the file cannot be made, for instance on a full disk.
        """
        num_frames = int(max_frames_NS.sum())
        values = np.dtype(np.float16 if is_half else np.float32)
        # Of all slots first the lengths, then the checksums, then the features.
        lengths_size = 4 * max_frames_NS.size  # bytes
        checksums_size = 4 * max_frames_NS.size
        features_size = values.itemsize * num_frames * width
        self.num_bytes = lengths_size + checksums_size + features_size
        if path.exists() and path.stat().st_size != self.num_bytes:
            path.unlink()
        if not path.exists():
            _reserve(path, self.num_bytes, setting)
        self._setting = setting
        self._has_warned = mmap.mmap(-1, 1)  # one byte that forked worker processes share
        self._max_frames_NS = max_frames_NS
        # The row of _frames at which each slot begins.
        self._starts_NS = max_frames_NS.cumsum().reshape(max_frames_NS.shape) - max_frames_NS
        # Frames of each slot: 0 if it is empty; negative if its clip is incomplete, -100 for 100
        # frames. The length is written after the features.
        self._lengths_NS = np.memmap(path, np.int32, "r+", shape=max_frames_NS.shape)
        # CRC-32 of the features of each slot: a machine that crashes may have written the lengths
        # to the disk, but not the features.
        self._checksums_NS = np.memmap(
            path, np.uint32, "r+", offset=lengths_size, shape=max_frames_NS.shape
        )
        self._frames = np.memmap(
            path,
            values,
            "r+",
            offset=lengths_size + checksums_size,
            shape=(num_frames, width),
        )

    def get(self, index: int, column: int) -> tuple[Tensor, bool] | None:
        """The features (T, F) of a slot, not to be changed, and whether their clip is incomplete.

        None: the slot is empty, or its features are damaged.
        """
        length = int(self._lengths_NS[index, column])
        if length == 0:
            return None
        is_incomplete = length < 0  # how `put` marks it
        _memory_barrier()
        start = int(self._starts_NS[index, column])
        frames_TF = self._frames[start : start + abs(length)]
        if crc32(frames_TF.data) != self._checksums_NS[index, column]:
            return None
        return torch.from_numpy(frames_TF).float(), is_incomplete

    def put(
        self, index: int, column: int, features_TF: Tensor, *, key: str, is_incomplete: bool
    ) -> None:
        """Keep the features (T, F) of an utterance (`key`) in a slot.

        Features longer than the slot are not kept; a warning names the first such utterance.
        Features without frames are not kept either.
        """
        length = len(features_TF)
        if length == 0:  # such a length marks an empty slot
            return
        max_length = int(self._max_frames_NS[index, column])
        if length > max_length:
            self._warn_about_length(key, length, max_length)
            return
        start = int(self._starts_NS[index, column])
        frames_TF = self._frames[start : start + length]
        frames_TF[:] = features_TF.numpy()
        self._checksums_NS[index, column] = crc32(frames_TF.data)
        _memory_barrier()
        # The sign marks an incomplete clip. The length is written last: the slot is then complete.
        self._lengths_NS[index, column] = -length if is_incomplete else length

    def _warn_about_length(self, key: str, length: int, max_length: int) -> None:
        """Warn that an utterance is too long to be kept; only once in all processes.

        max_length: of its slot; 0: the utterance has none, as its listed duration is too long.
        """
        if self._has_warned[0]:
            return
        self._has_warned[0] = 1
        reason = "is too long"
        if max_length:
            reason = f"has {length} frames, kept are at most {max_length} by its listed duration"
        message = "%s: %s %s; such clips are computed in each epoch"
        logger.warning(message, self._setting, key, reason)


def _memory_barrier() -> None:
    """Complete what was read and written before this call, before anything that comes after it.

    Without it, another process may see the length of a slot before its features, on processors such
    as ARM. Python has no function for this, but locking does it.
    """
    with threading.Lock():
        pass


def _reserve(path: Path, num_bytes: int, setting: str) -> None:
    """Make a file of zeros whose space is reserved, so that no later write can fail.

    The file appears when it is complete. It is no error if another rank makes it first.

    `setting`: see `FeatureCache`. Raises DataError if the space cannot be reserved.
    """
    incomplete = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    logger.info("%s: %s: %.1f MB for features", setting, path, num_bytes / 1e6)
    try:
        with incomplete.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, max(1, num_bytes))  # it refuses 0 bytes
            else:  # macOS
                file.truncate(num_bytes)
        os.link(incomplete, path)
    except FileExistsError:
        pass  # another rank was faster
    except OSError as error:
        found = f"{setting}: cannot reserve {num_bytes / 1e6:.1f} MB ({error.strerror})"
        remedy = "free disk space" if error.errno in NO_SPACE else "check this folder"
        alternative = "or name another one"
        if setting == CACHE_FEATURES:
            alternative = "name another one in TMPDIR, or set it to false"
        raise DataError(path.parent, found, f"{remedy}, {alternative}") from error
    finally:
        incomplete.unlink(missing_ok=True)
