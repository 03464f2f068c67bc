# SPDX-License-Identifier: Apache-2.0
"""Computation of values ahead of their use, in order, by a thread or by worker processes."""

import logging
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from threading import Condition, Thread, get_ident
from typing import TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from wenet_hs.errors import WenetHsError

logger = logging.getLogger(__name__)

AHEAD = 2
"""Values computed ahead by a thread, or by each worker process."""
PARENT_CHECK_S = 1.0
"""Interval at which a worker checks whether its parent is alive."""
FORK_WAIT_S = 30.0
"""Longest wait for the running values of other iterators before workers are forked."""
_PARENT_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}
"""Signals that the training process handles; its workers must not react to them."""
_is_loading: ContextVar[bool] = ContextVar("is_loading", default=False)
"""True in loading threads and in workers."""

Value = TypeVar("Value")


def load_ahead(load: Callable[[int], Value], positions: range, *, num_workers: int = 0) -> Iterator[Value]:
    """`load(position)` for each position, in order, computed ahead. The values do not depend on `num_workers`.

    Called within a `load`, it computes each value when it is asked for, without further threads or processes.

    Args:
        load: a pure function; it must be picklable where processes are spawned.
        num_workers: 0: one thread of this process. Audio is decoded outside Python's lock, so this already overlaps
            with training. More: processes, for the case that one thread is too slow.

    Raises: any error of `load`, at its position in the order. From a worker, errors other than the user's arrive as a
        RuntimeError with the worker's traceback.
    """
    if _is_loading.get():
        return (load(position) for position in positions)
    return _in_processes(load, positions, num_workers) if num_workers else _in_thread(load, positions)


def _in_thread(load: Callable[[int], Value], positions: range) -> Iterator[Value]:
    threads = _threads_of(os.getpid())
    thread = threads.take()
    pending: deque[Future[Value]] = deque()
    try:
        for position in positions:
            pending.append(thread.submit(threads.compute, load, position))
            if len(pending) > AHEAD:
                wait([pending[0]])  # an interrupted wait leaves it in `pending`
                yield pending.popleft().result()
        while pending:
            wait([pending[0]])
            yield pending.popleft().result()
    finally:
        threads.give_back(thread, pending)


class _LoadingThreads:
    """The loading threads of one process: one per unfinished iterator, used again by later iterators.

    MKL, which computes the FFTs of features, holds locks during a computation and while a thread exits. A process
    forked at that moment has copies of the locked locks, and waits for them without end. So these threads never exit,
    and `paused` waits for the values that they compute.
    """

    def __init__(self) -> None:
        self._idle: list[ThreadPoolExecutor] = []
        self._changed = Condition()
        self._computing: set[int] = set()
        self._forking: set[int] = set()

    def take(self) -> ThreadPoolExecutor:
        try:
            return self._idle.pop()
        except IndexError:
            return ThreadPoolExecutor(1, "load-ahead", initializer=_is_loading.set, initargs=(True,))

    def give_back(self, thread: ThreadPoolExecutor, pending: deque[Future[Value]]) -> None:
        """Cancel what is pending. The thread is idle after its running value, for which this does not wait."""
        running = [future for future in pending if not future.cancel()]
        if running:
            running[-1].add_done_callback(lambda _: self._idle.append(thread))
        else:
            self._idle.append(thread)

    def compute(self, load: Callable[[int], Value], position: int) -> Value:
        """`load(position)`, in a loading thread, when no workers are being forked."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            self._computing.add(get_ident())
        try:
            return load(position)
        finally:
            with self._changed:
                self._computing.remove(get_ident())
                self._changed.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No value is computed within, unless one takes longer than FORK_WAIT_S: it probably waits for a disk."""
        try:
            with self._changed:
                self._forking.add(get_ident())
                if not self._changed.wait_for(lambda: self._computing <= {get_ident()}, FORK_WAIT_S):
                    logger.warning(
                        "a loading thread has computed one value for more than %g s; worker processes are started "
                        "now and may hang; if they do, check the disk of the data and start again",
                        FORK_WAIT_S,
                    )
            yield
        finally:
            with self._changed:
                self._forking.discard(get_ident())
                self._changed.notify_all()


@cache
def _threads_of(process_id: int) -> _LoadingThreads:
    """A forked process has none of its parent's threads, so it has an object of its own."""
    return _LoadingThreads()


@dataclass(frozen=True)
class _Failure:
    """An error that a worker returns as a value.

    If it were raised in the worker, torch would add a traceback to the user's message, and the loader would stay alive
    in a reference cycle, whose collection waits 5 s per worker.
    """

    error: Exception


@dataclass(frozen=True)
class _LoadedValues(Dataset[Value | _Failure]):
    load: Callable[[int], Value]

    def __getitem__(self, position: int) -> Value | _Failure:
        try:
            return self.load(position)
        except WenetHsError as error:
            return _Failure(error)
        except Exception:
            return _Failure(RuntimeError(f"a worker process failed:\n{traceback.format_exc()}"))


def _in_processes(load: Callable[[int], Value], positions: range, num_workers: int) -> Iterator[Value]:
    loader: DataLoader[Value | _Failure] = DataLoader(
        _LoadedValues(load),
        batch_size=None,
        sampler=positions,
        num_workers=num_workers,
        prefetch_factor=AHEAD,
        collate_fn=_unchanged,
        worker_init_fn=_init_worker,
        generator=torch.Generator(),  # otherwise DataLoader draws from the global state, and a resumed run differs
    )
    # The iterator is not a local variable: an exception would keep it in a reference cycle, see _Failure.
    for value in _start_workers(loader):
        if isinstance(value, _Failure):
            raise value.error
        yield value


def _unchanged(value: Value) -> Value:
    return value


def _start_workers(loader: DataLoader[Value | _Failure]) -> Iterator[Value | _Failure]:
    """The loader's iterator. Signals stay blocked until the forked workers ignore them."""
    with _threads_of(os.getpid()).paused():
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, _PARENT_SIGNALS)
        try:
            return iter(loader)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _init_worker(worker: int) -> None:
    """Ignore the signals that Ctrl-C and schedulers send to the whole process group: the parent may finish a step."""
    _is_loading.set(True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if hasattr(signal, "sigtimedwait"):  # elsewhere (macOS) SIGTERM ends the worker, whoever sent it
        Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    else:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PARENT_SIGNALS)


def _exit_with_parent(parent: int) -> None:
    """End this worker when its parent sends SIGTERM or is gone. SIGTERM of any other sender is ignored.

    torch checks for the parent only between two values, so a worker stuck in a value would outlive a killed parent.
    """
    while os.getppid() == parent:
        received = signal.sigtimedwait({signal.SIGTERM}, PARENT_CHECK_S)
        if received is not None and received.si_pid == parent:
            break
    os._exit(0)
