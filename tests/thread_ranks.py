# SPDX-License-Identifier: Apache-2.0
"""Ranks that are threads of one process."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

from wenet_hs.compute.distributed import World

R = TypeVar("R")
T = TypeVar("T")


def run_on_ranks(work: Callable[[World], R], size: int) -> list[R]:
    """What `work` returns on each rank."""
    rendezvous, gathered = Barrier(size), dict[int, Any]()

    class ThreadRank(World):
        def all_gather(self, value: T) -> list[T]:
            gathered[self.rank] = value
            self.barrier()
            values = [gathered[rank] for rank in range(size)]
            self.barrier()
            return values

        def any(self, flag: bool) -> bool:
            return any(self.all_gather(flag))

        def barrier(self) -> None:
            rendezvous.wait(60)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, [ThreadRank(rank, size) for rank in range(size)]))
