# SPDX-License-Identifier: Apache-2.0
"""Peaks of a recording, from which its waveform is drawn; computed once and kept on disk.

Dimension key: P peaks of 10 ms.
"""

import hashlib
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wenet_hs.data.audio import iterate_blocks
from wenet_hs.tree.atomic import write_atomic

PEAKS_PER_SECOND = 100
_MUTEX = threading.Lock()


def compute_peaks(source: Path) -> NDArray[np.uint8]:
    """The largest absolute sample of all channels per 10 ms (P,), where 255 is full scale.

    The audio is read in blocks: two hours need about a second and 100 MB. Raises: AudioError.
    """
    parts = [np.empty(0, np.uint8)]
    for samples, rate in iterate_blocks(source):
        num = max(1, round(len(samples) * PEAKS_PER_SECOND / rate))
        bounds = (np.arange(num) * len(samples)) // num
        high = (
            np.maximum.reduceat(np.nan_to_num(np.abs(samples).max(axis=1)), bounds)
            if len(samples)
            else np.empty(0)
        )
        parts.append((255 * np.minimum(high, 1.0)).round().astype(np.uint8))
    return np.concatenate(parts)


def read_peaks(source: Path, folder: Path) -> bytes:
    """The peaks of `compute_peaks`, kept in a folder by path, size and time of the recording.

    Raises: AudioError.
    """
    status = source.stat()
    name = hashlib.blake2b(
        str(source).encode("utf-8", "surrogateescape"), digest_size=12
    ).hexdigest()
    path = folder / f"{name}-{status.st_size}-{status.st_mtime_ns}"
    with _MUTEX:  # two pages would compute the same
        if not path.is_file():
            write_atomic(path, compute_peaks(source).tobytes())
            for outdated in folder.glob(f"{name}-*"):
                if outdated != path:
                    outdated.unlink()
        return path.read_bytes()
