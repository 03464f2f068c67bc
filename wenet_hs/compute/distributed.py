# SPDX-License-Identifier: Apache-2.0
"""Process group of a command under torchrun: joining it, its collectives, its end after an error.

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
"""Seconds between two looks at a key of the store."""
_GRACE_S = 0.5
"""Seconds that a rank waits before it ends without a message.

The launcher ends all ranks as soon as one has ended, and the rank with the message may still print.
"""
_ERRORS_OF_GROUP = ("gloo", "Gloo", "NCCL", "Connection closed by peer")
"""Parts of the messages of a RuntimeError that a collective raises if a rank is lost."""

T = TypeVar("T")


class RankLost(WenetHsError):
    """Another rank of this run has died, or does not answer."""


@dataclass(frozen=True)
class World:
    """This rank and its collectives.

    A collective ends when all ranks have called it. A single process sends nothing.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where this rank computes."""
    store: Store | None = field(default=None, repr=False, compare=False)
    """Keys that all ranks of this start share; None for a single process."""

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
        """The numbers of all ranks, one list per rank in their order.

        All ranks must give the same number of values.
        """
        num_values = len(values)
        # Each rank has its own part of the list and zeros in the others, so the sum has all parts.
        own_start = self.rank * num_values
        parts = [0.0] * (self.size * num_values)
        parts[own_start : own_start + num_values] = values
        sums = self.sum(parts)
        starts = [rank * num_values for rank in range(self.size)]
        return [sums[start : start + num_values] for start in starts]

    def gather_rows(self, values: Tensor) -> Tensor:
        """The rows of all ranks in their order: values (N, …) as (W · N, …).

        `values` must have the same shape on every rank. It may be on a GPU. It has no gradient.
        """
        gathered = values.new_empty(self.size * len(values), *values.shape[1:])
        dist.all_gather_into_tensor(gathered, values)
        return gathered

    def stack(self, values: Tensor) -> Tensor:
        """The values of all ranks in their order: values (…) as (W, …), with a gradient.

        `values` must have the same shape on every rank. The gradient that a rank's values get is
        summed over all ranks.
        """
        # Row `rank` has the values on that rank and zeros on all others: the sum has all rows.
        rows = [torch.zeros_like(values)] * self.size
        rows[self.rank] = values
        stacked = torch.stack(rows)
        reduced: Tensor = all_reduce(stacked)  # type: ignore[no-untyped-call]
        return reduced

    def check_equal_across_ranks(self, values: Mapping[str, str]) -> None:
        """Raise ConfigError on all ranks if a value (a hash, a version) is not the same on all.

        `values`: what is compared, by the name of each value in the message. The error is about the
        first name in alphabetical order whose values differ. It lists the ranks that have another
        value than rank 0, or none.
        """
        values_of_ranks = self.all_gather(dict(values))
        names = set[str]().union(*values_of_ranks)
        for name in sorted(names):
            expected = values_of_ranks[0].get(name)
            differing_ranks = [
                str(rank)
                for rank, values_of_rank in enumerate(values_of_ranks)
                if values_of_rank.get(name) != expected
            ]
            if differing_ranks:
                raise _unequal_error(name, differing_ranks)

    def barrier(self) -> None:
        """Wait until every rank is here.

        There is no time limit, but an error on another rank raises RankLost.
        """
        if self.store is None:  # a single process
            return
        key = self._next_key()
        num_arrived = self.store.add(f"{key}/arrived", 1)
        if num_arrived == self.size:  # this rank is the last one
            self.store.set(f"{key}/done", "1")
        self._wait_for(f"{key}/done")

    @contextmanager
    def first_before_others(self) -> Iterator[None]:
        """Rank 0 runs the block, then the other ranks do.

        The others wait as long as rank 0 shows that it lives, and raise RankLost if it does not.
        Rank 0 does not wait: its next collective notices within the time limit if one of the
        others has died.
        """
        if self.store is None:  # a single process
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
        """A new key of the store, which is the same on all ranks for the same call.

        Each rank counts its calls. All ranks make the same calls in the same order.
        """
        assert self.store is not None
        num_calls = self.store.add(f"waits/{self.rank}", 1)  # adds 1, and returns the sum
        return f"wait/{num_calls}"

    def _wait_for(self, key: str, *, beats: str = "") -> None:
        """Wait until another rank has set the key in the store.

        `beats`: a key that this other rank counts up as long as it lives. If it is empty, the other
        rank may take any time.
        Raises RankLost if `beats` does not change within the time limit, or if any rank reports an
        error in the meantime.
        """
        assert self.store is not None
        last_count = None
        last_beat = time.monotonic()
        while not self.store.check([key]):
            if self.store.check(["error"]):
                found = "another rank has ended with an error"
                raise RankLost(f"rank {self.rank}", found, "read its message")
            if beats:
                count = self.store.add(beats, 0)  # adding 0 reads it
                now = time.monotonic()
                if count != last_count:
                    last_count, last_beat = count, now
                elif now - last_beat > _timeout().total_seconds():
                    raise _rank_lost(self.rank, TimeoutError("timed out"))
            time.sleep(_POLL_S)


def _unequal_error(name: str, differing_ranks: Sequence[str]) -> ConfigError:
    """The error for a value that is another one on one or more ranks than on rank 0."""
    if len(differing_ranks) == 1:
        found = f"rank {differing_ranks[0]} has another one than rank 0"
    else:
        found = f"ranks {', '.join(differing_ranks)} have another one than rank 0"
    to_do = "start every rank with the same files, flags and versions"
    return ConfigError(name, found, to_do)


@contextmanager
def join_process_group(device: torch.device) -> Iterator[World]:
    """Join the process group that the variables of torchrun describe; a single process makes none.

    Inside of the block, ranks other than 0 log warnings and errors only.
    One rank reports an error, in one line. The first rank with a user error raises that error; the
    others raise SystemExit without a message. A rank that died, or did not answer for
    `WENET_HS_RANK_TIMEOUT_S`, is a RankLost.

    Every DistributedDataParallel must be freed before the end of the block: keep none in the
    calling function itself. One that lives longer would close gloo while it holds Python's lock,
    and gloo's threads may wait for that lock.
    Raises: ConfigError if the variables are incomplete or the device of this rank does not exist;
        RankLost if another rank does not come.
    """
    size = int_from_environment("WORLD_SIZE", 1, at_least=1)
    if size == 1:
        yield World(device=device)
        return
    rank = int_from_environment("RANK", 0)
    device = _device_of_rank(device)
    timeout = _timeout()
    store = _connect(rank, size)
    # Small values are summed by gloo on the CPU, also where gradients are summed by nccl: they stay
    # exact.
    backend = "cpu:gloo,cuda:nccl" if is_gpu(device) else "gloo"
    try:
        dist.init_process_group(
            backend, store=PrefixStore("group", store), rank=rank, world_size=size, timeout=timeout
        )
    except RuntimeError as error:
        raise _rank_lost(rank, error) from error
    world = World(rank=rank, size=size, device=device, store=store)
    try:
        # gloo notices a lost rank itself, nccl does not.
        watch = Watch(rank, size, store, _abort_nccl) if is_gpu(device) else nullcontext()
        with _prefixed_log(world), watch:
            yield world
    except BaseException as error:
        _leave_after_error(world, error)
        raise
    dist.destroy_process_group()


def _abort_nccl() -> None:
    """End all collectives of nccl on this rank.

    torch has no public function for it.
    """
    backend: Any = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
    backend.abort()


def is_first_rank() -> bool:
    """Whether this process is rank 0, also outside of `join_process_group`."""
    return int_from_environment("RANK", 0) == 0


def local_rank() -> int:
    """The number of this process on its machine, from 0: that of torchrun, or else of `srun`."""
    return int_from_environment("LOCAL_RANK", int_from_environment("SLURM_LOCALID", 0))


def int_from_environment(variable: str, default: int, *, at_least: int = 0) -> int:
    """A variable of the environment as whole number; `default` if it is not set.

    Raises ConfigError if it is no whole number, or less than `at_least`.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or int(text) < at_least:
        found = f"must be a whole number of at least {at_least}"
        raise ConfigError(f"{variable}={text}", found, "set it so, or unset it")
    return int(text)


def _timeout() -> timedelta:
    """How long a rank waits for the others."""
    return timedelta(seconds=int_from_environment(TIMEOUT_VARIABLE, 300, at_least=1))


def _device_of_rank(device: torch.device) -> torch.device:
    """The device of this rank: the CPU for all, or the GPU with the number of this local rank.

    The GPU becomes the current one of this process. Where a process sees only one GPU and torchrun
    did not start it, it is this one.
    Raises ConfigError if `device` is one numbered GPU, or if the machine has too few GPUs.
    """
    if not is_gpu(device):
        return device
    if device.index is not None:
        found = "is one GPU for several processes"
        raise ConfigError(f"--device {device}", found, "use --device cuda, a GPU for each")
    module = torch.get_device_module(device)
    index = local_rank()
    num_gpus = module.device_count()
    if num_gpus == 1 and "LOCAL_RANK" not in os.environ:
        index = 0  # SLURM shows each task its own GPU only (--gpus-per-task)
    if index >= num_gpus:
        found = f"there are {num_gpus} CUDA devices here"
        to_do = f"use --nproc_per_node {num_gpus} or --device cpu"
        raise ConfigError(f"LOCAL_RANK={index}", found, to_do)
    device = torch.device(device.type, index)
    module.set_device(device)
    return device


def _connect(rank: int, size: int) -> Store:
    """Connect to the store that all ranks of this start share.

    Its keys have a prefix that no earlier start used. After a restart torchrun's store still holds
    the keys of the dead processes, and gloo would connect to those. torchrun's count of restarts
    cannot be the prefix: each machine counts its own restarts.

    Raises: ConfigError if the launcher's variables are incomplete; RankLost if a rank does not come
        within the timeout.
    """
    address = os.environ.get("MASTER_ADDR")
    timeout = _timeout()
    port = int_from_environment("MASTER_PORT", 0)  # 0: not set
    if not (address and port):
        where = f"WORLD_SIZE={size} without MASTER_ADDR and MASTER_PORT"
        raise ConfigError(where, to_do="start it with torchrun")
    # torchrun may run the store in its own process. Otherwise rank 0 runs it.
    is_host = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = TCPStore(
            address, port, size, is_host, timeout, wait_for_workers=False, multi_tenant=True
        )
        deadline = time.monotonic() + timeout.total_seconds()
        prefix = _handshake(store, rank, size, deadline)
    except (dist.DistError, RuntimeError) as error:
        detail = _first_line(error) or type(error).__name__
        found = f"cannot reach all ranks through {address}:{port} ({detail})"
        raise RankLost(f"rank {rank}", found, "check the launcher's address") from error
    shared = PrefixStore(prefix, store)
    shared.set_timeout(timeout)
    return shared


def _handshake(store: Store, rank: int, size: int, deadline: float) -> str:
    """The prefix of this start, which rank 0 draws and all other ranks have confirmed.

    Every rank draws an identifier. That of rank 0 is the prefix; the other ranks ask for it under
    theirs, so that no rank takes the reply to a dead process. Rank 0 replies to the identifiers of
    dead processes too; the live process of that rank overwrites the identifier when it comes.
    Raises RuntimeError at the deadline, which is a time of `time.monotonic`.
    """
    own_identifier = uuid.uuid4().hex
    if rank == 0:
        _send_prefix(store, own_identifier, size, deadline)
        return own_identifier
    store.set(f"request/{rank}", own_identifier)
    while not store.check([f"reply/{own_identifier}"]):
        _pause(missing={0}, deadline=deadline)
    prefix: str = store.get(f"reply/{own_identifier}").decode()
    store.set(f"{prefix}/confirmed/{rank}", "1")
    return prefix


def _send_prefix(store: Store, prefix: str, size: int, deadline: float) -> None:
    """On rank 0: reply to the requests of the other ranks until each has confirmed the prefix.

    Raises RuntimeError with the missing ranks at the deadline, a time of `time.monotonic`.
    """
    missing = set(range(1, size))
    while missing:
        _pause(missing, deadline)
        for peer in sorted(missing):
            if store.check([f"{prefix}/confirmed/{peer}"]):
                missing.remove(peer)
            elif store.check([f"request/{peer}"]):
                identifier = store.get(f"request/{peer}").decode()
                store.set(f"reply/{identifier}", prefix)


def _pause(missing: set[int], deadline: float) -> None:
    """Wait until the store is to be read again.

    Raises RuntimeError with the ranks that are still missing after the deadline, which is a time of
    `time.monotonic`.
    """
    if time.monotonic() > deadline:
        raise RuntimeError(f"rank {', '.join(map(str, sorted(missing)))} did not connect")
    time.sleep(_POLL_S)


def _leave_after_error(world: World, error: BaseException) -> None:
    """Leave the process group after an error, so that only one rank reports an error.

    If this function returns, the caller raises `error`. It first counts up the key `error` of the
    store, by which waiting ranks notice the error.
    After a bug or an exit it only returns, so that the traceback stays complete.
    After an error of the user, of the system or of a collective it destroys the group, and then
    - raises SystemExit, without a message, if another rank had an error before;
    - raises RankLost if `error` shows that another rank is lost;
    - returns otherwise.
    """
    is_lost = _is_lost_rank(error)
    try:
        is_first_error = world.store is None or world.store.add("error", 1) == 1
    except RuntimeError:  # the store ended with the launcher: no other rank can report
        is_first_error = True
    if not is_lost and not isinstance(error, WenetHsError | OSError):
        return  # a bug, or an exit
    traceback.clear_frames(error.__traceback__)  # they hold the DistributedDataParallel
    if is_gpu(world.device):
        with suppress(RuntimeError):
            _abort_nccl()  # it would wait for the other ranks
            dist.destroy_process_group()
    else:
        dist.destroy_process_group()  # gloo without this may abort at the exit
    if not is_first_error:
        time.sleep(_GRACE_S)
        if isinstance(error, WenetHsError):
            raise SystemExit(error.exit_code) from None
        raise SystemExit(WenetHsError.exit_code) from None
    if is_lost:
        raise _rank_lost(world.rank, error) from error


def _is_lost_rank(error: BaseException) -> bool:
    """Whether a collective has raised the error because another rank has died or is silent."""
    if isinstance(error, dist.DistError):
        return True
    message = str(error)
    return isinstance(error, RuntimeError) and any(part in message for part in _ERRORS_OF_GROUP)


def _rank_lost(rank: int, error: BaseException) -> RankLost:
    """The error of this rank for another one that, by the message of `error`, is silent or dead."""
    detail = _first_line(error)
    if "imed out" in detail or "imeout" in detail:  # in any case of the first letter
        found = f"another rank has not answered for {_timeout().total_seconds():.0f} s"
    else:
        detail = re.sub(r"^\[\S+\] ", "", detail)  # gloo begins with a line of its own source
        found = f"another rank has died ({detail})"
    to_do = "read its message, then run the same command again to resume"
    return RankLost(f"rank {rank}", found, to_do)


def _first_line(error: BaseException) -> str:
    """The first line of the message of an exception; empty if it has none."""
    return next(iter(str(error).splitlines()), "")


@contextmanager
def _prefixed_log(world: World) -> Iterator[None]:
    """In the block, ranks other than 0 log warnings and errors only, with the rank before each.

    Rank 0 logs everything as it is.
    """
    if world.is_first:
        yield
        return
    record_factory = logging.getLogRecordFactory()
    disabled_level = logging.root.manager.disable

    def prefixed_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = record_factory(*args, **kwargs)
        record.msg = f"rank {world.rank}: {record.msg}"
        return record

    logging.setLogRecordFactory(prefixed_record)
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.setLogRecordFactory(record_factory)
        logging.disable(disabled_level)
