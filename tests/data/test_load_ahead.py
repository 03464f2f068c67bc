# SPDX-License-Identifier: Apache-2.0
"""Values in order, computed at most AHEAD, errors at their position, for a thread and for processes."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from wenet_hs.data import loading
from wenet_hs.data.loading import AHEAD, load_ahead
from wenet_hs.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:.*use of fork:DeprecationWarning")


def square(position: int) -> int:
    return position * position


def fails_at_3(position: int) -> int:
    if position == 3:
        raise DataError("clip.wav: cut off; restore the file")
    return position


def has_a_bug(position: int) -> int:
    return 1 // position


def total_of_squares(num_workers: int, position: int) -> int:
    return sum(load_ahead(square, range(position), num_workers=num_workers))


def compute_ffts(position: int) -> float:
    return sum(float(torch.fft.rfft(torch.ones(20, 400 + size)).abs().sum()) for size in range(100))


def load_in_threads_and_workers(rounds: int) -> None:
    unfinished = []
    for _ in range(rounds):
        list(load_ahead(compute_ffts, range(3)))
        unfinished.append(load_ahead(compute_ffts, range(100)))
        next(unfinished[-1])
        assert len(set(load_ahead(compute_ffts, range(4), num_workers=2))) == 1


def stuck(path: Path, position: int) -> None:
    """Never returns."""
    path.write_text(f"{os.getpid()}\n")
    time.sleep(600)


def is_running(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    return False


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_values_are_in_order(num_workers: int) -> None:
    state = torch.get_rng_state()
    assert list(load_ahead(square, range(3, 20), num_workers=num_workers)) == [n * n for n in range(3, 20)]
    assert torch.equal(torch.get_rng_state(), state)
    assert list(load_ahead(square, range(0), num_workers=num_workers)) == []


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_is_raised_at_its_position(num_workers: int) -> None:
    values = load_ahead(fails_at_3, range(10), num_workers=num_workers)
    assert [next(values) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DataError, match="^clip.wav: cut off; restore the file$"):
        next(values)
    in_worker = r"a worker process failed:\n(.*\n)*.*return 1 // position(.*\n)*ZeroDivisionError"
    error, message = (RuntimeError, in_worker) if num_workers else (ZeroDivisionError, "by zero")
    with pytest.raises(error, match=message):
        list(load_ahead(has_a_bug, range(3), num_workers=num_workers))


def test_at_most_two_values_are_computed_ahead_in_one_thread() -> None:
    """The thread does not exit between lists: a process forked at that moment would deadlock in MKL."""
    started: list[int] = []
    threads = set()

    def load(position: int) -> None:
        started.append(position)
        threads.add(threading.current_thread())

    for _ in range(2):
        started.clear()
        values = load_ahead(load, range(100))
        next(values)
        assert within(5, lambda: len(started) > AHEAD)
        time.sleep(0.02)
        assert started == list(range(AHEAD + 1))
        values.close()  # type: ignore[attr-defined]
    (thread,) = threads
    assert thread.is_alive()


@pytest.mark.parametrize("outer", [0, 1])
@pytest.mark.parametrize("inner", [0, 1])
def test_load_may_call_load_ahead(outer: int, inner: int) -> None:
    assert list(load_ahead(partial(total_of_squares, inner), range(5), num_workers=outer)) == [0, 0, 1, 5, 14]


def test_an_unfinished_iterator_does_not_delay_another() -> None:
    release = threading.Event()
    unfinished = load_ahead(lambda position: position == 0 or release.wait(60), range(10))
    next(unfinished)
    assert list(load_ahead(square, range(3))) == [0, 1, 4]
    unfinished.close()  # type: ignore[attr-defined]
    assert list(load_ahead(square, range(3))) == [0, 1, 4]
    release.set()


def test_workers_are_forked_after_the_running_value_of_an_unfinished_iterator() -> None:
    """Else they would have copies of the locks that MKL holds during an FFT, and wait for them without end."""
    started: list[int] = []
    computing: list[int] = []

    def slow(position: int) -> None:
        started.append(position)
        computing.append(position)
        time.sleep(0.1)
        computing.clear()

    unfinished = load_ahead(slow, range(10))
    next(unfinished)
    assert within(5, lambda: bool(computing))
    before = len(started)
    assert list(load_ahead(lambda _: (len(computing), len(started)), range(1), num_workers=1)) == [(0, before)]
    assert within(5, lambda: len(started) == AHEAD + 1)


def test_a_stuck_value_delays_workers_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_stuck, release = threading.Event(), threading.Event()

    def load(position: int) -> bool:
        if position:
            is_stuck.set()
            release.wait(60)
        return True

    unfinished = load_ahead(load, range(10))
    next(unfinished)
    assert is_stuck.wait(5)
    begin = time.monotonic()
    try:
        threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            list(load_ahead(square, range(3), num_workers=1))
        monkeypatch.setattr(loading, "FORK_WAIT_S", 0.1)
        assert list(load_ahead(square, range(3), num_workers=1)) == [0, 1, 4]
        assert "computed one value for more than 0.1 s" in caplog.text
        process = multiprocessing.get_context("fork").Process(target=square, args=(1,))  # a fork of a user's own
        process.start()
        process.join(20)
        assert process.exitcode == 0
        assert time.monotonic() - begin < 20
    finally:
        release.set()
    assert list(unfinished) == [True] * 9


@pytest.mark.slow
def test_ffts_in_threads_and_in_workers_do_not_hang() -> None:
    process = multiprocessing.get_context("fork").Process(target=load_in_threads_and_workers, args=(30,))
    process.start()
    process.join(120)
    process.kill()
    process.join()
    assert process.exitcode == 0


def test_a_forked_process_has_a_thread_of_its_own() -> None:
    assert list(load_ahead(square, range(3))) == [0, 1, 4]
    process = multiprocessing.get_context("fork").Process(target=lambda: list(load_ahead(square, range(3))))
    process.start()
    process.join(20)
    assert process.exitcode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stuck_worker_ends_when_its_parent_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "PARENT_CHECK_S", 0.05)
    path = tmp_path / "worker"
    parent = os.fork()
    if parent == 0:
        with contextlib.suppress(BaseException):
            list(load_ahead(partial(stuck, path), range(1), num_workers=1))
        os._exit(70)
    try:
        assert within(20, lambda: path.exists() and path.read_text().endswith("\n"))
    finally:
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
    worker = int(path.read_text())
    try:
        assert within(5, lambda: not is_running(worker))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
