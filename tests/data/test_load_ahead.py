# SPDX-License-Identifier: Apache-2.0
"""Values in order, computed at most AHEAD, errors at their position, for a thread and for
processes.
"""

import contextlib
import errno
import os
import resource
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from waiting import is_running, within

from wenet_hs.data import loading
from wenet_hs.data.loading import AHEAD, load_ahead
from wenet_hs.tree.errors import ConfigError, DataError

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def fails_at_3(position: int) -> int:
    if position == 3:
        raise DataError("clip.wav: cut off; restore the file")
    return position


def has_a_bug(position: int) -> int:
    return 1 // position


def threads_after_fft(position: int) -> set[Path]:
    torch.set_num_threads(2)
    torch.ones(4000, 512).log()
    torch.fft.rfft(torch.ones(1500, 512))
    return set(Path("/proc/self/task").iterdir())


def stuck(path: Path, position: int) -> None:
    path.write_text(f"{os.getpid()}\n")
    time.sleep(60)


def many_tensors(position: int) -> list[torch.Tensor]:
    return [torch.zeros(10) for _ in range(10)]  # each needs an open file on its way to the parent


def no_files_left(position: int) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "noise.wav")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_values_come_in_order_and_a_users_fault_in_its_place(num_workers: int) -> None:
    state, values = torch.get_rng_state(), []
    assert list(load_ahead(fails_at_3, range(4, 20), num_workers=num_workers)) == [*range(4, 20)]
    assert torch.equal(torch.get_rng_state(), state)
    assert list(load_ahead(fails_at_3, range(0), num_workers=num_workers)) == []
    with pytest.raises(DataError, match=r"^clip\.wav: cut off; restore the file$"):
        for value in load_ahead(fails_at_3, range(10), num_workers=num_workers):
            values.append(value)
    assert values == [0, 1, 2]


def test_a_bug_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        list(load_ahead(has_a_bug, range(3)))
    with pytest.raises(
        RuntimeError, match=r"a worker process failed:\n(.*\n)*.*return 1 // position(.*\n)*ZeroDiv"
    ):
        list(load_ahead(has_a_bug, range(3), num_workers=1))


def test_the_thread_is_ahead_but_not_far() -> None:
    started = list[int]()
    values = load_ahead(started.append, range(100))
    next(values)
    assert within(5, lambda: len(started) > AHEAD)
    time.sleep(0.02)
    assert started == list(range(AHEAD + 1))
    values.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("load-ahead")]


@linux_only
def test_its_threads_are_gone_before_a_fork_could_copy_their_locks() -> None:
    """MKL's are taken while a thread exits, which Python does not wait for, nor anybody for
    OpenMP's threads.
    """
    threads = torch.get_num_threads()
    before = set(Path("/proc/self/task").iterdir())
    try:
        for _ in range(8):
            (during,) = load_ahead(threads_after_fft, range(1))
            assert len(during - before) >= 1
            assert not (during - before) & set(Path("/proc/self/task").iterdir())
    finally:
        torch.set_num_threads(threads)


@linux_only
def test_a_stuck_worker_ends_with_its_killed_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert within(5, lambda: not is_running(int(path.read_text())))


# torch's iterator that could not open its pipes raises once more when it is deleted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@linux_only
@pytest.mark.parametrize("num_free", [6, 10, 17, 24, 40])
def test_too_few_open_files_end_the_training_in_one_line(
    num_free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    monkeypatch.setattr(
        _MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,)
    )  # seconds
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    kept = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + num_free, limits[1]))
    try:
        with pytest.raises(
            ConfigError,
            match=r"num_workers 2: too many open files; raise .* with `ulimit -n 65536`",
        ):
            kept += load_ahead(many_tensors, range(100), num_workers=2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_file_that_cannot_be_opened_for_too_many_others_is_named() -> None:
    with pytest.raises(
        ConfigError,
        match=r"noise.wav: too many open files; raise their limit with `ulimit -n 65536`",
    ):
        list(load_ahead(no_files_left, range(3), num_workers=1))
