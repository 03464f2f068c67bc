# SPDX-License-Identifier: Apache-2.0
"""Values in order, computed ahead but not far, faults at their place, for a thread and for processes."""

import threading
import time

import pytest
import torch

from wenet_hs.data.loading import AHEAD, load_ahead
from wenet_hs.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def square(position: int) -> int:
    return position * position


def fails_at_3(position: int) -> int:
    if position == 3:
        raise DataError("clip.wav: cut off; restore the file")
    return position


def has_a_bug(position: int) -> int:
    return 1 // position


@pytest.mark.parametrize("num_workers", [0, 2])
def test_values_come_in_order(num_workers: int) -> None:
    assert list(load_ahead(square, range(3, 20), num_workers=num_workers)) == [n * n for n in range(3, 20)]
    assert list(load_ahead(square, range(0), num_workers=num_workers)) == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_users_fault_keeps_its_one_line_and_its_place(num_workers: int) -> None:
    values = []
    with pytest.raises(DataError) as caught:
        for value in load_ahead(fails_at_3, range(10), num_workers=num_workers):
            values.append(value)
    assert values == [0, 1, 2]
    assert str(caught.value) == "clip.wav: cut off; restore the file"


def test_a_bug_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        list(load_ahead(has_a_bug, range(3)))
    with pytest.raises(
        RuntimeError, match=r"a worker process failed:\n(.*\n)*.*return 1 // position(.*\n)*ZeroDivisionError"
    ):
        list(load_ahead(has_a_bug, range(3), num_workers=1))


def test_the_thread_is_ahead_but_not_far() -> None:
    started = []
    values = load_ahead(lambda position: started.append(position), range(100))
    next(values)
    deadline = time.monotonic() + 5
    while len(started) < AHEAD + 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert started == list(range(AHEAD + 1))


def test_leaving_early_ends_the_thread() -> None:
    values = load_ahead(square, range(1000))
    assert next(values) == 0
    values.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("load-ahead")]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_global_random_state_is_not_touched(num_workers: int) -> None:
    before = torch.get_rng_state()
    list(load_ahead(square, range(4), num_workers=num_workers))
    assert torch.equal(torch.get_rng_state(), before)
