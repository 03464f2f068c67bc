# SPDX-License-Identifier: Apache-2.0
"""Threads by which the ranks of a run see that the others live."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Event, Thread

from torch.distributed.distributed_c10d import Store

BEAT_S, LOST_S = 1.0, 20.0
"""How often a rank on a GPU shows that it lives, and after how long without it the others end."""
_HAS_LEFT = 2**40
"""Beats of a rank that has ended without an error."""


@contextmanager
def beating(store: Store, key: str) -> Iterator[None]:
    """A thread counts the key up each second of the block."""
    own, end = store.clone(), Event()  # type: ignore[attr-defined]  # a connection of its own, as in `Watch`

    def run() -> None:
        with suppress(RuntimeError):  # the store ended with the launcher
            while not end.wait(BEAT_S):
                own.add(key, 1)

    thread = Thread(target=run, name="beats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


class Watch:
    """A thread that looks for the death of another rank while this one may wait for a GPU.

    A collective of nccl whose other rank has died never ends, and the program waits for the GPU in
    it, so that it does not notice. The thread calls `abort`; then the program goes on to its next
    sum, which gloo refuses.
    """

    def __init__(self, rank: int, size: int, store: Store, abort: Callable[[], None]) -> None:
        """`abort`: ends the collectives of this rank."""
        self._rank, self._others = rank, [other for other in range(size) if other != rank]
        # A connection of its own: while one waits for a key, all other calls of the same wait too.
        self._store, self._abort, self._end = store.clone(), abort, Event()  # type: ignore[attr-defined]
        self._store.set_timeout(timedelta(seconds=LOST_S))
        self._thread = Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if error is None:
            with suppress(RuntimeError):
                self._store.add(f"beat/{self._rank}", _HAS_LEFT)

    def _run(self) -> None:
        seen = {rank: (0, time.monotonic()) for rank in self._others}
        while not self._end.wait(BEAT_S):
            try:
                self._store.add(f"beat/{self._rank}", 1)
                beats = {rank: self._store.add(f"beat/{rank}", 0) for rank in self._others}
                is_lost = self._store.check(["error"])
            except RuntimeError:  # the store ended with the launcher
                beats, is_lost = {}, True
            now = time.monotonic()
            for rank, beat in beats.items():
                lives = beat > seen[rank][0] or beat >= _HAS_LEFT
                seen[rank] = (beat, now if lives else seen[rank][1])
            if is_lost or any(now - since > LOST_S for _, since in seen.values()):
                self._abort()
                return
