# SPDX-License-Identifier: Apache-2.0
"""Parallel map with ordered results and a progress bar. An item that crashes its process loses only its own result."""

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

ITEM_LIMIT_S: float = 120
"""A worker that needs longer for one item is killed (a decoder in an endless loop)."""
_MAX_CHUNK = 64
_REFRESH_S = 0.2
# Forking takes milliseconds, but is only safe on Linux.
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
        function: must be picklable.
        num_workers: processes. 0 runs in this process, where crashes and endless loops are not caught.
        description: text before the progress bar.
        on_crash: returns the result of an item that ends its process (a segmentation fault, or more than 120 s).
    """
    results = _run_pool(function, items, num_workers, on_crash) if num_workers else map(function, items)
    yield from _show_progress(results, len(items), description)


def _run_pool(
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
            # Any of the running chunks may have killed its process: run the items of the first one separately.
            for item in pending[num_done]:
                try:
                    yield from next(_run_chunks(function, [[item]], 1))
                except BrokenProcessPool:
                    yield on_crash(item)
            pending = pending[num_done + 1 :]


def _run_chunks(
    function: Callable[[Item], Result], chunks: Sequence[Sequence[Item]], num_workers: int
) -> Iterator[list[Result]]:
    pool = ProcessPoolExecutor(
        min(num_workers, len(chunks)), mp_context=get_context(_START_METHOD), initializer=_start_worker
    )
    try:
        futures = [pool.submit(_run_chunk, function, chunk) for chunk in chunks]
        for future in futures:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, also inside C code


def _run_chunk(function: Callable[[Item], Result], chunk: Sequence[Item]) -> list[Result]:
    results = []
    for item in chunk:
        signal.setitimer(signal.ITIMER_REAL, ITEM_LIMIT_S)
        results.append(function(item))
    signal.setitimer(signal.ITIMER_REAL, 0)
    return results


def _show_progress(results: Iterable[Result], total: int, description: str) -> Iterator[Result]:
    """Yield the results and show their number. Uses no thread, because the pool may fork meanwhile."""
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
