# SPDX-License-Identifier: Apache-2.0
"""How much of a step is forward, backward and optimizer."""

import time
from types import TracebackType


class Stopwatch:
    """Wall time spent inside `with watch:`, added up.

    It reads the clock and never waits for a GPU. A GPU works behind the clock: what it still has to do is waited for
    where the loop reads the losses of a batch and the norm of the gradient, and both stand inside the watch. Only the
    optimizer's kernels run on into the next step.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds += time.perf_counter() - self._started
