# SPDX-License-Identifier: Apache-2.0
"""Peaks of a recording, from which its waveform is drawn. They are computed once and kept on disk.

Dimension key: P peaks of 10 ms.
"""

import hashlib
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wenet_hs.data.audio import Samples, iterate_blocks
from wenet_hs.tree.atomic import write_atomic

PEAKS_PER_SECOND = 100
_FULL_SCALE = 255
"""The peak of samples of 1.0 and more."""
_MUTEX = threading.Lock()


def compute_peaks(source: Path) -> NDArray[np.uint8]:
    """The peaks (P,) of a recording: the largest absolute sample of all channels per 10 ms.

    255 is full scale. The audio is read in blocks: two hours need about a second and 100 MB.
    Raises: AudioError.
    """
    parts = [np.empty(0, np.uint8)]  # so that there is a part to concatenate
    for samples, rate in iterate_blocks(source):
        parts.append(_block_peaks(samples, rate))
    return np.concatenate(parts)


def _block_peaks(samples: Samples, rate: int) -> NDArray[np.uint8]:
    """The peaks (P,) of a block of samples (n, C)."""
    if not len(samples):
        return np.empty(0, np.uint8)
    num_peaks = max(1, round(len(samples) * PEAKS_PER_SECOND / rate))  # 1 for less than 10 ms
    starts = (np.arange(num_peaks) * len(samples)) // num_peaks  # the first sample of each peak
    loudest = np.nan_to_num(np.abs(samples).max(axis=1))  # of the channels
    peaks = np.maximum.reduceat(loudest, starts)
    return (_FULL_SCALE * np.minimum(peaks, 1.0)).round().astype(np.uint8)


def read_peaks(source: Path, folder: Path) -> bytes:
    """The peaks of a recording as bytes, each from 0 to 255; see `compute_peaks`.

    They are kept in `folder`, in a file whose name depends on path, size and time of the recording.
    Files of earlier versions of the recording are removed. Raises: AudioError, OSError.
    """
    status = source.stat()
    path_bytes = str(source).encode("utf-8", "surrogateescape")
    name = hashlib.blake2b(path_bytes, digest_size=12).hexdigest()
    path = folder / f"{name}-{status.st_size}-{status.st_mtime_ns}"
    with _MUTEX:  # otherwise two pages would compute the same
        if not path.is_file():
            write_atomic(path, compute_peaks(source).tobytes())
            for outdated in folder.glob(f"{name}-*"):
                if outdated != path:
                    outdated.unlink()
        return path.read_bytes()
