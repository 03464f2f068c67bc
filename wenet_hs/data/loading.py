# SPDX-License-Identifier: Apache-2.0
"""Computation of values ahead of their use, in order, by a thread or by worker processes."""

import errno
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
from multiprocessing.queues import Queue
from pathlib import Path
from threading import Thread, get_native_id
from typing import TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from wenet_hs.base.files import too_many_files
from wenet_hs.tree.errors import WenetHsError

AHEAD = 2
"""Values computed ahead by the thread, or by each worker process."""
PARENT_CHECK_S = 1.0
"""Interval at which a worker checks whether its parent is alive."""
_EXIT_S = 1.0
"""Longest wait for threads to exit; a thread that a library keeps never exits."""
_PARENT_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}
"""Signals that the training process handles; its workers must not react to them."""

_TOO_MANY = os.strerror(errno.EMFILE)
_thread_numbers = count()

Value = TypeVar("Value")


def load_ahead(
    load: Callable[[int], Value], positions: range, *, num_workers: int = 0, pin: bool = False
) -> Iterator[Value]:
    """`load(position)` for each position, in order, computed ahead.

    The values do not depend on `num_workers`.

    Args:
        load: a pure function; it must be picklable where processes are spawned.
        num_workers: 0: one thread of this process. Audio is decoded outside Python's lock, so this
            already overlaps with training. More: processes, for the case that one thread is too
            slow.
        pin: call `pin_memory` of each value, in a thread of this process.

    Raises: any error of `load`, at its position in the order. From a worker, errors other than the
        user's arrive as a RuntimeError with the worker's traceback.
    """
    if num_workers:
        return _in_processes(load, positions, num_workers, pin=pin)
    return _in_thread((lambda position: load(position).pin_memory()) if pin else load, positions)  # type: ignore[attr-defined]


def _in_thread(load: Callable[[int], Value], positions: range) -> Iterator[Value]:
    name = (
        f"load-ahead-{next(_thread_numbers) % 10000}"  # the system truncates names to 15 characters
    )
    pool = ThreadPoolExecutor(
        1, thread_name_prefix=name, initializer=_set_system_name, initargs=(name,)
    )
    pending: deque[Future[Value]] = deque()
    try:
        for position in positions:
            pending.append(pool.submit(load, position))
            if len(pending) > AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        _wait_for_exit(name)


def _set_system_name(name: str) -> None:
    """Name this thread in the operating system; OpenMP threads that it starts inherit the name."""
    with suppress(OSError):  # no /proc
        Path(f"/proc/self/task/{get_native_id()}/comm").write_text(name)


def _wait_for_exit(name: str) -> None:
    """Wait until the operating system has ended all threads of this name, OpenMP threads included.

    Python's join returns earlier. While a thread exits, MKL (which computes the FFTs of features)
    holds all locks of its memory. A worker forked at that moment would wait for these locks in its
    first FFT without end.
    """
    deadline = time.monotonic() + _EXIT_S
    while name in _thread_names() and time.monotonic() < deadline:
        time.sleep(0.0001)


def _thread_names() -> set[str]:
    names = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # the thread ended
            names.add(path.read_text().rstrip("\n"))
    return names


@dataclass(frozen=True)
class _Failure:
    """An error that a worker returns as a value.

    If it were raised in the worker, torch would add a traceback to the user's message, and the
    loader would stay alive in a reference cycle, whose collection waits 5 s per worker.
    """

    error: Exception


class _LoadedValues(Dataset[Value | _Failure]):
    def __init__(self, load: Callable[[int], Value]) -> None:
        self._load = load

    def __getitem__(self, position: int) -> Value | _Failure:
        try:
            return self._load(position)
        except WenetHsError as error:
            return _Failure(error)
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                return _Failure(too_many_files(error.filename or "a worker process"))
            return _Failure(RuntimeError(f"a worker process failed:\n{traceback.format_exc()}"))


def _in_processes(
    load: Callable[[int], Value], positions: range, num_workers: int, *, pin: bool
) -> Iterator[Value]:
    loader: DataLoader[Value | _Failure] = DataLoader(
        _LoadedValues(load),
        batch_size=None,
        sampler=positions,
        num_workers=num_workers,
        prefetch_factor=AHEAD,
        collate_fn=_unchanged,
        pin_memory=pin,
        worker_init_fn=_init_worker,
        generator=torch.Generator(),  # otherwise DataLoader draws from the global state, and a resumed run differs
    )
    failure: Exception | None = None  # raised after the block, without its context: see _Failure
    try:
        for value in _start_workers(
            loader
        ):  # no local variable: an exception would keep it in a reference cycle
            if isinstance(value, _Failure):
                failure = value.error
                break
            yield value
    except (OSError, EOFError, RuntimeError) as error:
        if not _lacks_files(error):
            raise
        failure = too_many_files(f"num_workers {num_workers}")
    if failure is not None:
        raise failure


def _lacks_files(error: Exception) -> bool:
    """Whether a worker could not send a value, or this process could not receive it, because of
    open files.
    """
    is_lost = isinstance(
        error, EOFError | ConnectionError
    )  # a worker could not open the file of a tensor again
    texts = (_TOO_MANY, "ancdata", "exited unexpectedly")
    is_killed = any(text in str(error) for text in ("exit code", "signal"))  # a worker that crashed
    return is_lost or (any(text in str(error) for text in texts) and not is_killed)


def _unchanged(value: Value) -> Value:
    return value


def _start_workers(loader: DataLoader[Value | _Failure]) -> Iterator[Value | _Failure]:
    """The loader's iterator. Signals stay blocked until the forked workers ignore them."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _PARENT_SIGNALS)
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _init_worker(worker: int) -> None:
    """Ignore the signals that Ctrl-C and schedulers send to the whole process group: the parent may
    finish a step.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    Queue._on_queue_feeder_error = staticmethod(_end_worker)  # type: ignore[attr-defined]
    if hasattr(
        signal, "sigtimedwait"
    ):  # elsewhere (macOS) SIGTERM ends the worker, whoever sent it
        Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    else:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PARENT_SIGNALS)


def _end_worker(error: Exception, value: object) -> None:
    """End a worker that cannot send a value.

    Python's queue would lose it, and the parent wait for it without end.

    Exit code 0 is for too many open files: torch then raises an error where the parent waits, not
    in the midst of a step.
    """
    if _TOO_MANY in str(error):  # an OSError, or a RuntimeError of torch
        os._exit(0)
    traceback.print_exception(error)
    os._exit(1)


def _exit_with_parent(parent: int) -> None:
    """End this worker when its parent sends SIGTERM or is gone.

    SIGTERM of any other sender is ignored.

    torch checks for the parent only between two values, so a worker stuck in a value would outlive
    a killed parent.
    """
    while os.getppid() == parent:
        received = signal.sigtimedwait({signal.SIGTERM}, PARENT_CHECK_S)
        if received is not None and received.si_pid == parent:
            break
    os._exit(0)
