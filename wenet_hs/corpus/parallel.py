# SPDX-License-Identifier: Apache-2.0
"""A function over many items in several processes: results in order, a progress bar, no loss when a process dies."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

ITEM_LIMIT_S: float = 120
"""A worker that spends this long on one item is taken for dead (a decoder in an endless loop)."""
_MAX_CHUNK = 64
_REFRESH_S = 0.2
# A forked child starts in milliseconds; elsewhere than on Linux forking is not safe.
_START_METHOD = "fork" if sys.platform == "linux" else "spawn"

Item = TypeVar("Item")
Result = TypeVar("Result")


def parallel_map(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    num_workers: int,
    description: str,
    on_crash: Callable[[Item], Result],
) -> Iterator[Result]:
    """Yield `function(item)` for each item, in order.

    Args:
        function: a module-level function, or an instance of a class, that can be sent to a process.
        num_workers: processes; 0 works in this process, where a crash or an endless loop is not caught.
        description: what stands before the progress bar.
        on_crash: gives the result of an item that ends its process (a segmentation fault, or more than 120 s).
    """
    results = _serial(function, items) if num_workers == 0 else _pooled(function, items, num_workers, on_crash)
    yield from _with_progress(results, len(items), description)


def _serial(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    for item in items:
        yield function(item)


def _pooled(
    function: Callable[[Item], Result], items: Sequence[Item], num_workers: int, on_crash: Callable[[Item], Result]
) -> Iterator[Result]:
    size = min(_MAX_CHUNK, len(items) // (4 * num_workers) + 1)
    pending = [items[start : start + size] for start in range(0, len(items), size)]
    while pending:
        num_done = 0
        try:
            for results in _run_chunks(function, pending, num_workers):
                num_done += 1
                yield from results
            return
        except BrokenProcessPool:
            # Which of the running chunks killed its process is not known: go through the first of them one by one.
            for item in pending[num_done]:
                yield _isolated(function, item, on_crash)
            pending = pending[num_done + 1 :]


def _run_chunks(
    function: Callable[[Item], Result], chunks: Sequence[Sequence[Item]], num_workers: int
) -> Iterator[list[Result]]:
    pool = _pool(min(num_workers, len(chunks)))
    try:
        futures = [pool.submit(_run_chunk, function, chunk) for chunk in chunks]
        for future in futures:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _isolated(function: Callable[[Item], Result], item: Item, on_crash: Callable[[Item], Result]) -> Result:
    """The result of one item, worked out in a process of its own."""
    pool = _pool(1)
    try:
        return pool.submit(_run_chunk, function, [item]).result()[0]
    except BrokenProcessPool:
        return on_crash(item)
    finally:
        pool.shutdown()


def _pool(num_workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(num_workers, mp_context=get_context(_START_METHOD), initializer=_start_worker)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process, in the middle of C code too


def _run_chunk(function: Callable[[Item], Result], chunk: Sequence[Item]) -> list[Result]:
    results = []
    for item in chunk:
        signal.setitimer(signal.ITIMER_REAL, ITEM_LIMIT_S)
        results.append(function(item))
    signal.setitimer(signal.ITIMER_REAL, 0)
    return results


def _with_progress(results: Iterator[Result], total: int, description: str) -> Iterator[Result]:
    """Pass the results on and show how many there are. Without a thread, so that processes can be forked meanwhile."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), auto_refresh=False) as progress:
        task = progress.add_task(description, total=total)
        shown_s = 0.0
        for result in results:
            progress.advance(task)
            if time.monotonic() - shown_s > _REFRESH_S:
                progress.refresh()
                shown_s = time.monotonic()
            yield result
        progress.refresh()
