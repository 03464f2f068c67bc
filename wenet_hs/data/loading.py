# SPDX-License-Identifier: Apache-2.0
"""Values computed ahead of their use, in order, by a thread or by worker processes; how many changes no value."""

import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Thread, get_native_id
from typing import TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from wenet_hs.errors import WenetHsError

AHEAD = 2
"""Values kept ready by the thread, or by each worker process."""

PARENT_CHECK_S = 1.0
"""How often a worker looks whether its parent is still there."""

_EXIT_S = 1.0
"""How long to wait for threads to exit, at most: one that a library keeps for later never does."""

_thread_numbers = count()

_PARENTS = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}
"""Signals that are for the process that trains, not for those that load its data."""

Value = TypeVar("Value")


def load_ahead(load: Callable[[int], Value], positions: range, *, num_workers: int = 0) -> Iterator[Value]:
    """`load(position)` for each position, in order, computed before it is asked for.

    Args:
        load: a pure function; with worker processes it must be picklable where processes are spawned.
        num_workers: 0 is one thread of this process: audio is decoded and transformed outside Python's lock, so it
            still overlaps with training. More are processes, for when one thread does not keep up.

    Raises: whatever `load` raises, at its place in the order. From a worker a user's fault comes as it is, in its one
        line; anything else as a RuntimeError with the worker's traceback.
    """
    return _in_processes(load, positions, num_workers) if num_workers else _in_thread(load, positions)


def _in_thread(load: Callable[[int], Value], positions: range) -> Iterator[Value]:
    name = f"load-ahead-{next(_thread_numbers) % 10000}"  # the system cuts off names after 15 characters
    pool = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=_tell_name_to_system, initargs=(name,))
    ahead: deque[Future[Value]] = deque()
    try:
        for position in positions:
            ahead.append(pool.submit(load, position))
            if len(ahead) > AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        _wait_for_exit(name)


def _tell_name_to_system(name: str) -> None:
    """So that this thread and those which OpenMP starts from it, to which the name passes on, can be told apart."""
    with suppress(OSError):  # no /proc
        Path(f"/proc/self/task/{get_native_id()}/comm").write_text(name)


def _wait_for_exit(name: str) -> None:
    """Until the operating system too has done with a thread that Python has joined, and with OpenMP's threads of it.

    Their C libraries clean up behind them. For that MKL, which computes the FFTs of features, takes every lock of its
    memory: a worker forked meanwhile finds them taken by a thread that it does not have, and spins in its first FFT
    for ever.
    """
    deadline = time.monotonic() + _EXIT_S
    while name in _thread_names() and time.monotonic() < deadline:
        time.sleep(0.0001)


def _thread_names() -> set[str]:
    names = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # ended in between
            names.add(path.read_text().rstrip("\n"))
    return names


@dataclass(frozen=True)
class _Fault:
    """An exception on its way out of a worker, as a value.

    Raised in the worker, torch would bury a user's one line in a traceback, and the exception it raises here keeps the
    loader alive in a cycle whose collection waits 5 s for each worker.
    """

    kind: type[Exception]
    message: str


class _Positions(Dataset[Value | _Fault]):
    def __init__(self, load: Callable[[int], Value]) -> None:
        self._load = load

    def __getitem__(self, position: int) -> Value | _Fault:
        try:
            return self._load(position)
        except WenetHsError as error:
            return _Fault(type(error), str(error))
        except Exception:
            return _Fault(RuntimeError, f"a worker process failed:\n{traceback.format_exc()}")


def _in_processes(load: Callable[[int], Value], positions: range, num_workers: int) -> Iterator[Value]:
    loader: DataLoader[Value | _Fault] = DataLoader(
        _Positions(load),
        batch_size=None,
        sampler=positions,
        num_workers=num_workers,
        prefetch_factor=AHEAD,
        collate_fn=_unchanged,
        worker_init_fn=_leave_signals_to_parent,
        generator=torch.Generator(),  # or DataLoader draws from the global state, and a resumed run differs
    )
    # Never a local variable: an exception would keep it in a cycle, see _Fault.
    for value in _started(loader):
        if isinstance(value, _Fault):
            raise value.kind(value.message)
        yield value


def _started(loader: DataLoader[Value | _Fault]) -> Iterator[Value | _Fault]:
    """Its iterator, with the signals blocked until the workers that are forked here ignore them."""
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, _PARENTS)
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _leave_signals_to_parent(worker: int) -> None:
    """Ctrl-C and a scheduler's signals reach the whole process group; the parent may have a step to finish with these
    workers, and they end when it does. Here its signals are blocked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if hasattr(signal, "sigtimedwait"):  # elsewhere (macOS) torch's handler ends the worker, whoever sent it
        Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    else:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PARENTS)


def _end_with_parent(parent: int) -> None:
    """SIGTERM is how a parent ends its worker; from anybody else it is for the parent. No handler knows the sender.

    A parent that was killed sends none, and torch looks for it between two values only, not while one takes for ever.
    """
    while os.getppid() == parent:
        sent = signal.sigtimedwait({signal.SIGTERM}, PARENT_CHECK_S)
        if sent is not None and sent.si_pid == parent:
            break
    os._exit(0)


def _unchanged(value: Value) -> Value:
    return value
