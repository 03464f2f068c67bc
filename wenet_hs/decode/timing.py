# SPDX-License-Identifier: Apache-2.0
"""Seconds spent in each stage of recognition."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class StageTimes:
    """Wall-clock seconds by stage; on a GPU the queue is emptied before the clock is read."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the time of the block to `stage`."""
        start = self._now()
        yield
        self.seconds[stage] += self._now() - start

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
