# SPDX-License-Identifier: Apache-2.0
"""How the processes of a launcher find each other: one store, and in it a place of this start's own.

After a restart the keys of the processes that died are still in torchrun's store, and gloo would connect to them. So
the ranks agree on a prefix at each start. torchrun's count of restarts would not do: each machine counts its own.
"""

import os
import time
import uuid
from datetime import timedelta

from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # torch.distributed's own, with their types

from wenet_hs.errors import ConfigError, WenetHsError

TIMEOUT_VARIABLE = "WENET_HS_RANK_TIMEOUT_S"
"""How long a rank waits for the others before it gives up, in seconds."""
DEFAULT_TIMEOUT_S = 300
_POLL_S = 0.02


class RankLost(WenetHsError):
    """Another process of this run has died, or does not answer."""


def number_in(variable: str, default: int, *, at_least: int = 0) -> int:
    """A whole number that the launcher (or a user) put into the environment. Raises ConfigError if it is none."""
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or int(text) < at_least:
        raise ConfigError(f"{variable}={text}: must be a whole number of at least {at_least}; set it so, or unset it")
    return int(text)


def rank_timeout() -> timedelta:
    """How long a rank waits for the others."""
    return timedelta(seconds=number_in(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT_S, at_least=1))


def meet(rank: int, size: int) -> Store:
    """A store that all ranks of this start share, and no process of an earlier one.

    Raises: ConfigError if the launcher's variables are not complete; RankLost if the others do not come in time.
    """
    address, timeout = os.environ.get("MASTER_ADDR"), rank_timeout()
    port = number_in("MASTER_PORT", 0)
    if not (address and port):
        raise ConfigError(f"WORLD_SIZE={size} without MASTER_ADDR and MASTER_PORT; start it with torchrun")
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = TCPStore(
            address, port, size, not hosted and rank == 0, timeout, wait_for_workers=False, multi_tenant=True
        )
        deadline = time.monotonic() + timeout.total_seconds()
        name = _welcome_all(store, size, deadline) if rank == 0 else _be_welcomed(store, rank, deadline)
    except (dist.DistError, RuntimeError) as error:
        detail = (str(error).splitlines() or [type(error).__name__])[0]
        raise RankLost(
            f"rank {rank}: no meeting at {address}:{port} ({detail}); check the launcher's address"
        ) from error
    shared = PrefixStore(name, store)
    shared.set_timeout(timeout)
    return shared


def _welcome_all(store: Store, size: int, deadline: float) -> str:
    """Rank 0 names the place to every rank that has come, until each has answered.

    What a dead process left under the key of its rank is answered too, and overwritten when the live one comes.
    """
    name, missing, greeted = uuid.uuid4().hex, set(range(1, size)), set[str]()
    while missing:
        for rank in sorted(missing):
            if store.check([f"{name}/here/{rank}"]):
                missing.remove(rank)
            elif store.check([f"coming/{rank}"]):
                guest = store.get(f"coming/{rank}").decode()
                if guest not in greeted:
                    store.set(f"welcome/{guest}", name)
                    greeted.add(guest)
        _pause(deadline, missing)
    return name


def _be_welcomed(store: Store, rank: int, deadline: float) -> str:
    guest = uuid.uuid4().hex
    store.set(f"coming/{rank}", guest)
    while not store.check([f"welcome/{guest}"]):
        _pause(deadline, {0})
    name: str = store.get(f"welcome/{guest}").decode()
    store.set(f"{name}/here/{rank}", "1")
    return name


def _pause(deadline: float, missing: set[int]) -> None:
    if missing and time.monotonic() > deadline:
        raise RuntimeError(f"rank {', '.join(map(str, sorted(missing)))} did not come in time")
    time.sleep(_POLL_S if missing else 0)
