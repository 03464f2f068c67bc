# SPDX-License-Identifier: Apache-2.0
"""Threads by which the ranks of a run show that they live, and notice the death of another."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Event, Thread

from torch.distributed.distributed_c10d import Store

BEAT_S = 1.0
"""How often a rank shows that it lives, in seconds."""
LOST_S = 20.0
"""After so many seconds without a beat of another rank, a rank on a GPU takes it for dead."""
_HAS_LEFT = 2**40
"""What a rank adds to its beats when it ends without an error.

No run is long enough for so many beats, so the others know that it did not die.
"""


@contextmanager
def beating(store: Store, key: str) -> Iterator[None]:
    """Count a key of the store up each second of the block, in a thread.

    It ends early, without an error, if the store ends, as it does with the launcher.
    """
    # A connection of its own: a call waits while another one on its connection waits for a key.
    own_store = store.clone()  # type: ignore[attr-defined]
    has_ended = Event()

    def count_up() -> None:
        with suppress(RuntimeError):  # the store has ended
            while not has_ended.wait(BEAT_S):
                own_store.add(key, 1)

    thread = Thread(target=count_up, name="beats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


class Watch:
    """A thread that notices the death of another rank while this one may wait for a GPU.

    It runs inside of a `with` block. If another rank dies during a collective of nccl, the
    collective never ends, and the program waits for the GPU and does not notice it. Then this
    thread calls `abort`, once. The program goes on to its next sum by gloo, which raises the error.
    """

    def __init__(self, rank: int, size: int, store: Store, abort: Callable[[], None]) -> None:
        """
        Args:
            rank: of this process, in a group of `size` ranks.
            abort: ends the collectives of this rank.
        """
        self._rank = rank
        self._others = [other for other in range(size) if other != rank]
        # A connection of its own: a call waits while another one on its connection waits for a key.
        self._store = store.clone()  # type: ignore[attr-defined]
        self._store.set_timeout(timedelta(seconds=LOST_S))
        self._abort = abort
        self._has_ended = Event()
        self._thread = Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()
        if error is None:
            with suppress(RuntimeError):  # the store ended with the launcher
                self._store.add(f"beat/{self._rank}", _HAS_LEFT)

    def _run(self) -> None:
        """Each second: beat, and read the beats of the others. Abort and return on a loss.

        It is a loss if a rank has reported an error, if another rank has not beaten for LOST_S, or
        if the store has ended, as it does with the launcher.
        """
        counts = dict.fromkeys(self._others, 0)
        last_beats = dict.fromkeys(self._others, time.monotonic())
        while not self._has_ended.wait(BEAT_S):
            try:
                self._store.add(f"beat/{self._rank}", 1)
                # Adding 0 reads a count.
                new_counts = {rank: self._store.add(f"beat/{rank}", 0) for rank in self._others}
                has_error = self._store.check(["error"])
            except RuntimeError:
                self._abort()
                return
            now = time.monotonic()
            for rank, count in new_counts.items():
                has_left = count >= _HAS_LEFT  # without an error, so it is not lost
                if count > counts[rank] or has_left:
                    last_beats[rank] = now
            counts = new_counts
            is_silent = any(now - last_beat > LOST_S for last_beat in last_beats.values())
            if has_error or is_silent:
                self._abort()
                return
