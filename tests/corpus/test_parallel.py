# SPDX-License-Identifier: Apache-2.0
"""Parallel work: order, crashes, endless loops, and a consumer that stops early."""

import multiprocessing
import os
import signal
import time

import pytest

from wenet_hs.corpus import parallel
from wenet_hs.corpus.parallel import parallel_map


def square(number: int) -> int:
    return number * number


def fragile(number: int) -> int:
    """A sudden end at 13 and 60, an endless loop at 77."""
    if number in (13, 60):
        os.kill(os.getpid(), signal.SIGKILL)
    while number == 77:
        time.sleep(0.01)
    return number * number


def refuse(number: int) -> int:
    raise ValueError(f"no {number}")


def crashed(number: int) -> int:
    return -number


@pytest.mark.parametrize("num_workers", [0, 1, 2, 5])
def test_results_come_in_order(num_workers: int) -> None:
    results = parallel_map(square, range(200), num_workers=num_workers, description="squares", on_crash=crashed)
    assert list(results) == [number * number for number in range(200)]


def test_nothing_to_do_starts_nothing() -> None:
    assert list(parallel_map(square, [], num_workers=2, description="none", on_crash=crashed)) == []


@pytest.mark.slow
def test_an_item_that_kills_its_process_is_named_and_no_other_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "ITEM_LIMIT_S", 0.2)
    results = list(parallel_map(fragile, range(100), num_workers=2, description="fragile", on_crash=crashed))
    assert results == [-number if number in (13, 60, 77) else number * number for number in range(100)]


def test_our_own_error_is_not_swallowed() -> None:
    with pytest.raises(ValueError, match="no 0"):
        list(parallel_map(refuse, range(3), num_workers=1, description="refused", on_crash=crashed))


def test_stopping_early_leaves_no_process_behind() -> None:
    results = parallel_map(square, range(1000), num_workers=2, description="squares", on_crash=crashed)
    assert [next(results), next(results)] == [0, 1]
    results.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []
