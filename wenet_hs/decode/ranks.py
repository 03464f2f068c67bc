# SPDX-License-Identifier: Apache-2.0
"""The processes that share a list, as far as recognition needs to know them."""

from dataclasses import dataclass
from typing import Protocol


class Ranks(Protocol):
    """Which of `size` processes this is, and how they talk; `train.distributed.World` is one."""

    @property
    def rank(self) -> int:
        """From 0; the first one merges and writes."""

    @property
    def size(self) -> int:
        """How many there are."""

    def gather(self, content: bytes) -> list[bytes]:
        """What every rank has given, in the order of the ranks, on all of them."""

    def wait_for_all(self) -> None:
        """Go on when every rank is here, however long the slowest takes."""


@dataclass(frozen=True)
class Alone:
    """One process."""

    rank: int = 0
    size: int = 1

    def gather(self, content: bytes) -> list[bytes]:
        """What it has given."""
        return [content]

    def wait_for_all(self) -> None:
        """At once."""
