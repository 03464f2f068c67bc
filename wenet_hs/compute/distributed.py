# SPDX-License-Identifier: Apache-2.0
"""Process group of a command under torchrun: joining it, collectives, and how a run ends after an
error of one rank.

Dimension key: W ranks.
"""

import logging
import os
import re
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not marked so
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.nn.functional import all_reduce

from wenet_hs.compute.heartbeat import Watch, beating
from wenet_hs.heads.gpu import is_gpu
from wenet_hs.tree.errors import ConfigError, WenetHsError

TIMEOUT_VARIABLE = "WENET_HS_RANK_TIMEOUT_S"
"""How long a rank waits for the others, in seconds; 300 if it is not set."""
_POLL_S = 0.02
_GRACE_S = 0.5
"""A rank that ends without a message waits so long: the launcher ends the others as soon as one
rank has ended.
"""

T = TypeVar("T")


class RankLost(WenetHsError):
    """Another rank of this run has died, or does not answer."""


@dataclass(frozen=True)
class World:
    """This rank and its collectives.

    All ranks must call a collective. A single process sends nothing.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where this rank computes."""
    store: Store | None = field(default=None, repr=False, compare=False)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which logs and writes."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks, in float64."""
        if self.size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        return list(sums.tolist())

    def any(self, flag: bool) -> bool:
        """Whether the flag is true on at least one rank."""
        return self.sum([float(flag)])[0] > 0

    def all_gather(self, value: T) -> list[T]:
        """The values of all ranks in the order of the ranks, on every rank."""
        gathered: list[Any] = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(gathered, value)
        return gathered

    def gather_numbers(self, values: Sequence[float]) -> list[list[float]]:
        """The numbers of all ranks, in the order of the ranks; each has as many."""
        zeros, size = [0.0] * len(values), len(values)
        found = self.sum(
            [one for rank in range(self.size) for one in (values if rank == self.rank else zeros)]
        )
        return [found[start : start + size] for start in range(0, len(found), size)]

    def gather_rows(self, values: Tensor) -> Tensor:
        """values (N, …), of the same shape on every rank, as (W · N, …); on a GPU nccl does it."""
        gathered = values.new_empty(self.size * len(values), *values.shape[1:])
        dist.all_gather_into_tensor(gathered, values)
        return gathered

    def stack(self, values: Tensor) -> Tensor:
        """values (…) of every rank as (W, …).

        The gradient of a rank's values is summed over all ranks.
        """
        others = torch.zeros_like(values)
        stacked = torch.stack(
            [values if rank == self.rank else others for rank in range(self.size)]
        )
        reduced: Tensor = all_reduce(stacked)  # type: ignore[no-untyped-call]
        return reduced

    def check_equal_across_ranks(self, values: Mapping[str, str]) -> None:
        """Raises ConfigError on all ranks where a rank has another value (a hash, a version) than
        rank 0 for a name.
        """
        of_ranks = self.all_gather(dict(values))
        for name in sorted({name for values in of_ranks for name in values}):
            others = [
                str(rank)
                for rank, values in enumerate(of_ranks)
                if values.get(name) != of_ranks[0].get(name)
            ]
            if others:
                ranks = (
                    f"rank {others[0]} has"
                    if len(others) == 1
                    else f"ranks {', '.join(others)} have"
                )
                found = f"{ranks} another one than rank 0"
                raise ConfigError(
                    name, found, "start every rank with the same files, flags and versions"
                )

    def barrier(self) -> None:
        """Wait until every rank is here.

        There is no time limit, but an error on another rank raises RankLost.
        """
        if self.store is None:
            return
        key = self._next_key()
        if self.store.add(f"{key}/arrived", 1) == self.size:
            self.store.set(f"{key}/done", "1")
        self._wait_for(f"{key}/done")

    @contextmanager
    def first_before_others(self) -> Iterator[None]:
        """Rank 0 runs the block, then the other ranks do.

        The others wait as long as rank 0 shows that it lives. Rank 0 does not wait: its next
        collective notices within the time limit if one of the others has died.
        """
        if self.store is None:
            yield
            return
        key = self._next_key()
        if not self.is_first:
            self._wait_for(f"{key}/done", beats=f"{key}/beats")
            yield
            return
        with beating(self.store, f"{key}/beats"):
            yield
        self.store.set(f"{key}/done", "1")

    def _next_key(self) -> str:
        """A key of the store, the same on all ranks for the same call."""
        assert self.store is not None
        return f"wait/{self.store.add(f'waits/{self.rank}', 1)}"

    def _wait_for(self, key: str, *, beats: str = "") -> None:
        """Wait until the key is set.

        `beats`: the key that the rank which is waited for counts up; it must, within the time
        limit.
        Raises RankLost if it does not, or if a rank ends with an error in the meantime.
        """
        assert self.store is not None
        num_beats, last_beat = -1, time.monotonic()
        while not self.store.check([key]):
            if self.store.check(["error"]):
                raise RankLost(
                    f"rank {self.rank}", "another rank has ended with an error", "read its message"
                )
            if beats and (now := self.store.add(beats, 0)) != num_beats:
                num_beats, last_beat = now, time.monotonic()
            if beats and time.monotonic() - last_beat > _timeout().total_seconds():
                raise _rank_lost(self.rank, TimeoutError("timed out"))
            time.sleep(_POLL_S)


@contextmanager
def join_process_group(device: torch.device) -> Iterator[World]:
    """Join the process group that the variables of torchrun describe; a single process makes none.

    One rank reports an error, in one line: the first rank with a user error raises that error, and
    the others raise SystemExit(2) without a message. A rank that died, or did not answer for
    `WENET_HS_RANK_TIMEOUT_S`, is a RankLost. Every DistributedDataParallel must be freed before the
    end of the block: keep none in the calling function itself. One that lives longer would close
    gloo while it holds Python's lock, and gloo's threads may wait for that lock.
    Raises: ConfigError if the variables are incomplete or the device of this rank does not exist.
    """
    size = int_from_environment("WORLD_SIZE", 1, at_least=1)
    if size == 1:
        yield World(device=device)
        return
    rank, device = int_from_environment("RANK", 0), _device_of_rank(device)
    timeout, store = _timeout(), _connect(rank, size)
    # Small values are summed by gloo on the CPU, also where gradients are summed by nccl: they stay
    # exact.
    backend = "cpu:gloo,cuda:nccl" if is_gpu(device) else "gloo"
    try:
        dist.init_process_group(
            backend, store=PrefixStore("group", store), rank=rank, world_size=size, timeout=timeout
        )
    except RuntimeError as error:
        raise _rank_lost(rank, error) from error
    world = World(rank, size, device, store)
    try:
        with (
            _prefixed_log(world),
            Watch(rank, size, store, _abort_nccl) if is_gpu(device) else nullcontext(),
        ):
            yield world
    except BaseException as error:
        _leave(world, error)
        raise
    dist.destroy_process_group()


def _abort_nccl() -> None:
    """End all collectives of nccl on this rank."""
    backend: Any = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
    backend.abort()


def is_first_rank() -> bool:
    """Whether this process is rank 0, also outside of `join_process_group`."""
    return int_from_environment("RANK", 0) == 0


def local_rank() -> int:
    """The number of this process on its machine: of torchrun, or of `srun`."""
    return int_from_environment("LOCAL_RANK", int_from_environment("SLURM_LOCALID", 0))


def int_from_environment(variable: str, default: int, *, at_least: int = 0) -> int:
    """A whole number from the environment, set by the launcher or a user.

    Raises ConfigError if it is none.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or int(text) < at_least:
        found = f"must be a whole number of at least {at_least}"
        raise ConfigError(f"{variable}={text}", found, "set it so, or unset it")
    return int(text)


def _timeout() -> timedelta:
    return timedelta(seconds=int_from_environment(TIMEOUT_VARIABLE, 300, at_least=1))


def _device_of_rank(device: torch.device) -> torch.device:
    """One GPU per process of a machine."""
    if not is_gpu(device):
        return device
    if device.index is not None:
        raise ConfigError(
            f"--device {device}",
            "is one GPU for several processes",
            "use --device cuda, a GPU for each",
        )
    module, local = torch.get_device_module(device), local_rank()
    count = module.device_count()
    if local >= count and count == 1 and "LOCAL_RANK" not in os.environ:
        local = 0  # SLURM shows each task its own GPU only (--gpus-per-task)
    if local >= count:
        found = f"there are {count} CUDA devices here"
        raise ConfigError(
            f"LOCAL_RANK={local}", found, f"use --nproc_per_node {count} or --device cpu"
        )
    device = torch.device(device.type, local)
    module.set_device(device)
    return device


def _connect(rank: int, size: int) -> Store:
    """A store that all ranks of this start share.

    Its keys have a prefix that no earlier start used.

    After a restart torchrun's store still holds the keys of the dead processes, and gloo would connect to those.
    torchrun's count of restarts cannot be the prefix: each machine counts its own restarts.

    Raises: ConfigError if the launcher's variables are incomplete; RankLost if a rank does not come
        within the timeout.
    """
    address, timeout = os.environ.get("MASTER_ADDR"), _timeout()
    port = int_from_environment("MASTER_PORT", 0)
    if not (address and port):
        raise ConfigError(
            f"WORLD_SIZE={size} without MASTER_ADDR and MASTER_PORT", to_do="start it with torchrun"
        )
    is_host = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = TCPStore(
            address, port, size, is_host, timeout, wait_for_workers=False, multi_tenant=True
        )
        shared = PrefixStore(
            _handshake(store, rank, size, time.monotonic() + timeout.total_seconds()), store
        )
    except (dist.DistError, RuntimeError) as error:
        detail = (str(error).splitlines() or [type(error).__name__])[0]
        found = f"cannot reach all ranks through {address}:{port} ({detail})"
        raise RankLost(f"rank {rank}", found, "check the launcher's address") from error
    shared.set_timeout(timeout)
    return shared


def _handshake(store: Store, rank: int, size: int, deadline: float) -> str:
    """Rank 0 draws the prefix of this start and sends it to every other rank until each has
    confirmed it.

    A rank asks under an identifier that it draws. Rank 0 also answers identifiers that dead
    processes left; the live process of that rank overwrites the identifier when it comes. Raises
    RuntimeError at the deadline.
    """
    own = uuid.uuid4().hex
    if rank > 0:
        store.set(f"request/{rank}", own)
        while not store.check([f"reply/{own}"]):
            _pause({0}, deadline)
        prefix: str = store.get(f"reply/{own}").decode()
        store.set(f"{prefix}/confirmed/{rank}", "1")
        return prefix
    missing = set(range(1, size))
    while missing:
        _pause(missing, deadline)
        for peer in sorted(missing):
            if store.check([f"{own}/confirmed/{peer}"]):
                missing.remove(peer)
            elif store.check([f"request/{peer}"]):
                store.set(f"reply/{store.get(f'request/{peer}').decode()}", own)
    return own


def _pause(missing: set[int], deadline: float) -> None:
    if time.monotonic() > deadline:
        raise RuntimeError(f"rank {', '.join(map(str, sorted(missing)))} did not connect")
    time.sleep(_POLL_S)


def _leave(world: World, error: BaseException) -> None:
    """Let one rank report the error.

    Raises what replaces `error`; returns where `error` itself is to be raised.
    """
    words = ("gloo", "Gloo", "NCCL", "Connection closed by peer")
    is_of_group = isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    is_lost = isinstance(error, dist.DistError) or is_of_group
    try:
        is_reporter = world.store is None or world.store.add("error", 1) == 1
    except RuntimeError:  # the store ended with the launcher: no other rank can report
        is_reporter = True
    if not (is_lost or isinstance(error, WenetHsError | OSError)):
        return  # a bug of ours keeps its traceback, and an exit is one
    traceback.clear_frames(error.__traceback__)  # they hold the DistributedDataParallel
    if is_gpu(world.device):  # nccl would wait for the others
        with suppress(RuntimeError):
            _abort_nccl()
            dist.destroy_process_group()
    else:
        dist.destroy_process_group()  # gloo without this may abort at the exit
    if not is_reporter:
        time.sleep(_GRACE_S)
        raise SystemExit(error.exit_code if isinstance(error, WenetHsError) else 2) from None
    if is_lost:
        raise _rank_lost(world.rank, error) from error


def _rank_lost(rank: int, error: BaseException) -> RankLost:
    detail = next(iter(str(error).splitlines()), "")
    if "imed out" in detail or "imeout" in detail:
        found = f"has not answered for {_timeout().total_seconds():.0f} s"
    else:
        detail = re.sub(r"^\[\S+\] ", "", detail)  # gloo begins with a line of its own source
        found = f"has died ({detail})"
    to_do = "read its message, then run the same command again to resume"
    return RankLost(f"rank {rank}", f"another rank {found}", to_do)


@contextmanager
def _prefixed_log(world: World) -> Iterator[None]:
    """Rank 0 logs everything; the other ranks log warnings and errors only, with the rank before
    the message.
    """
    if world.is_first:
        yield
        return
    factory, level = logging.getLogRecordFactory(), logging.root.manager.disable

    def prefixed_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = factory(*args, **kwargs)
        record.msg = f"rank {world.rank}: {record.msg}"
        return record

    logging.setLogRecordFactory(prefixed_record)
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.setLogRecordFactory(factory)
        logging.disable(level)
