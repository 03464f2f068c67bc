# SPDX-License-Identifier: Apache-2.0
"""The place of this process among those that train together. One process for now; the loop asks only this object."""

import os
from dataclasses import dataclass

from wenet_hs.errors import ConfigError


@dataclass(frozen=True)
class World:
    """Which of `size` processes this is; rank 0 logs and saves."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process logs, validates and writes checkpoints."""
        return self.rank == 0


def this_world() -> World:
    """The world that the launcher describes. Raises ConfigError under a launcher with several processes."""
    size = os.environ.get("WORLD_SIZE", "1")
    if size != "1":
        raise ConfigError(f"WORLD_SIZE={size}: training runs in one process in this version; start it without torchrun")
    return World()
