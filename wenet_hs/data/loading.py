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
from functools import partial
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
_MAX_THREADS = 10_000
"""Numbers in the names of threads: the operating system truncates names to 15 characters."""
_EXIT_TOO_MANY_FILES = 0
"""Exit code of a worker that had too many open files.

With 0, torch raises an error where the parent waits for a value. With another code it would raise
one in a handler of signals, which may be in the middle of a step.
"""

_TOO_MANY_FILES = os.strerror(errno.EMFILE)
_thread_numbers = count()

Value = TypeVar("Value")


def load_ahead(
    load: Callable[[int], Value], positions: range, *, num_workers: int = 0, pin: bool = False
) -> Iterator[Value]:
    """The values `load(position)` of all positions, in order, computed ahead of their use.

    The values do not depend on `num_workers`.

    Args:
        load: a pure function; it must be picklable where processes are spawned.
        num_workers: 0: one thread of this process. Audio is decoded outside Python's lock, so this
            already overlaps with training. More: so many worker processes, if one thread is too
            slow.
        pin: call `pin_memory` of each value, in a thread of this process.

    Raises: any error of `load`, at its position in the order. From a worker process, errors other
        than the user's arrive as a RuntimeError with the traceback of the worker.
    """
    if num_workers:
        return _in_processes(load, positions, num_workers, pin=pin)
    return _in_thread(partial(_load_pinned, load) if pin else load, positions)


def _load_pinned(load: Callable[[int], Value], position: int) -> Value:
    """The value of a position in pinned memory."""
    return load(position).pin_memory()  # type: ignore[attr-defined, no-any-return]


def _in_thread(load: Callable[[int], Value], positions: range) -> Iterator[Value]:
    """See `load_ahead`; one thread computes up to AHEAD values ahead.

    When the iterator is closed, the thread has exited.
    """
    name = f"load-ahead-{next(_thread_numbers) % _MAX_THREADS}"
    pool = ThreadPoolExecutor(
        max_workers=1, thread_name_prefix=name, initializer=_set_system_name, initargs=(name,)
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
    holds all locks of its memory. A worker that is forked at that moment would wait for these locks
    in its first FFT, without end. After _EXIT_S seconds it returns anyway.
    """
    deadline = time.monotonic() + _EXIT_S
    while name in _thread_names() and time.monotonic() < deadline:
        time.sleep(0.0001)


def _thread_names() -> set[str]:
    """The names of all threads of this process in the operating system; none without /proc."""
    names = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # the thread ended
            names.add(path.read_text().rstrip("\n"))
    return names


@dataclass(frozen=True)
class _Failure:
    """An error that a worker process returns as a value.

    If the worker raised it, torch would add a traceback to the user's message. The loader would
    also stay alive in a reference cycle, whose collection waits 5 s per worker.
    """

    error: Exception


class _LoadedValues(Dataset[Value | _Failure]):
    """The values of a function as a dataset of torch; errors are values too."""

    def __init__(self, load: Callable[[int], Value]) -> None:
        self._load = load

    def __getitem__(self, position: int) -> Value | _Failure:
        """The value of a position, or the error of computing it.

        User errors stay as they are. Too many open files are one of them. Every other error becomes
        a RuntimeError with its traceback.
        """
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
    """See `load_ahead`; each worker process computes up to AHEAD values ahead.

    Raises: also ConfigError if there are too many open files for so many workers.
    """
    loader: DataLoader[Value | _Failure] = DataLoader(
        _LoadedValues(load),
        batch_size=None,
        sampler=positions,
        num_workers=num_workers,
        prefetch_factor=AHEAD,
        collate_fn=_return_unchanged,
        pin_memory=pin,
        worker_init_fn=_init_worker,
        # Without it DataLoader draws from the global state, and a resumed run would differ.
        generator=torch.Generator(),
    )
    failure: Exception | None = None  # raised after the block, without its context: see _Failure
    try:
        # The iterator has no local variable: an exception would keep it in a reference cycle.
        for value in _start_workers(loader):
            if isinstance(value, _Failure):
                failure = value.error
                break
            yield value
    except (OSError, EOFError, RuntimeError) as error:
        if not _is_lack_of_files(error):
            raise
        failure = too_many_files(f"num_workers {num_workers}")
    if failure is not None:
        raise failure


def _is_lack_of_files(error: Exception) -> bool:
    """Whether a value was not sent by a worker, or not received, because of too many open files.

    A worker that crashed is none of these cases, even if its error has one of their texts.
    """
    # A worker could not open the file of a tensor again, so the connection was closed.
    is_connection_lost = isinstance(error, EOFError | ConnectionError)
    # Python's "received 0 items of ancdata": a worker sent an open file that cannot be opened here.
    texts = (_TOO_MANY_FILES, "ancdata", "exited unexpectedly")
    has_text = any(text in str(error) for text in texts)
    is_of_crashed_worker = any(text in str(error) for text in ("exit code", "signal"))
    return is_connection_lost or (has_text and not is_of_crashed_worker)


def _return_unchanged(value: Value) -> Value:
    """The value itself: DataLoader would convert arrays to tensors."""
    return value


def _start_workers(loader: DataLoader[Value | _Failure]) -> Iterator[Value | _Failure]:
    """Start the worker processes of a loader, and return its iterator.

    The signals of _PARENT_SIGNALS are blocked meanwhile, so that none reaches a forked worker
    before `_init_worker` makes it ignore them.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _PARENT_SIGNALS)
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _init_worker(worker: int) -> None:
    """Prepare a worker process: it ends with its parent, and ignores signals meant for the parent.

    Ctrl-C and schedulers send signals to the whole process group, but the parent may finish a step
    and needs its workers. A worker that cannot send a value ends too; see `_end_worker`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # This private hook is called in a worker when its queue cannot send a value.
    Queue._on_queue_feeder_error = staticmethod(_end_worker)  # type: ignore[attr-defined]
    can_see_sender = hasattr(signal, "sigtimedwait")
    if can_see_sender:  # SIGTERM stays blocked: the thread reads who sent it
        Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    else:  # macOS: SIGTERM ends the worker, whoever sent it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PARENT_SIGNALS)


def _end_worker(error: Exception, value: object) -> None:
    """End this worker process because it cannot send a value.

    Python's queue would only lose the value, and the parent would wait for it without end. The
    traceback is printed, except for too many open files: then the parent raises the error.

    The arguments are those of the hook of the queue that is replaced; see `_init_worker`.
    """
    if _TOO_MANY_FILES in str(error):  # an OSError, or a RuntimeError of torch
        os._exit(_EXIT_TOO_MANY_FILES)
    traceback.print_exception(error)
    os._exit(1)


def _exit_with_parent(parent: int) -> None:
    """End this worker process when its parent sends SIGTERM or is gone.

    SIGTERM of any other sender is ignored. torch checks for the parent only between two values, so
    a worker that computes a value would outlive a parent that was killed.

    parent: its process ID.
    """
    while os.getppid() == parent:
        received = signal.sigtimedwait({signal.SIGTERM}, PARENT_CHECK_S)
        if received is not None and received.si_pid == parent:
            break
    os._exit(0)
