# SPDX-License-Identifier: Apache-2.0
"""The processes that work together under a launcher, and the few things they tell each other.

Dimension key: W ranks.
"""

import json
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store  # torch.distributed's own, with their types

from wenet_hs.errors import ConfigError, WenetHsError
from wenet_hs.train.rendezvous import RankLost, meet, number_in, rank_timeout

_POLL_S = 0.05
_GRACE_S = 0.5
"""A rank that ends in silence waits: the launcher ends the others, and the one that speaks must have spoken."""


@dataclass(frozen=True)
class World:
    """Which of `size` processes this is. Alone, nothing is sent and every answer is what was asked with."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where this rank computes."""
    store: Store | None = field(default=None, repr=False, compare=False)

    @property
    def is_first(self) -> bool:
        """Whether this process logs, and writes the folder."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks, in float64."""
        if self.size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        summed: list[float] = sums.tolist()
        return summed

    def any(self, flag: bool) -> bool:
        """Whether the flag is up on one of the ranks at least; the same answer on all."""
        return self.sum([float(flag)])[0] > 0

    def barrier(self) -> None:
        """Go on when every rank is here."""
        self.sum([0.0])

    def wait_for_all(self) -> None:
        """Go on when every rank is here, however long the slowest takes: a `barrier` gives up after the timeout."""
        if self.store is None:
            return
        turn = f"turn/{self.store.add(f'turns/{self.rank}', 1)}"
        if self.store.add(f"arrived/{turn}", 1) == self.size:
            self.store.set(turn, "done")
        self._wait_for(turn)

    def gather(self, content: bytes) -> list[bytes]:
        """What every rank has given, in the order of the ranks, on all of them."""
        if self.size == 1:
            return [content]
        lengths = [
            int(length) for length in self.sum([len(content) * (rank == self.rank) for rank in range(self.size)])
        ]
        padded = np.zeros(max(1, *lengths), dtype=np.uint8)
        padded[: len(content)] = np.frombuffer(content, dtype=np.uint8)
        parts = [torch.zeros(len(padded), dtype=torch.uint8) for _ in lengths]
        dist.all_gather(parts, torch.from_numpy(padded))
        return [part[:length].numpy().tobytes() for part, length in zip(parts, lengths, strict=True)]

    def agree(self, what: Mapping[str, str]) -> None:
        """Raises ConfigError, on all ranks, where one has another value (a hash, a version) than rank 0 for a name."""
        all_of_them: list[dict[str, str]] = [json.loads(part) for part in self.gather(json.dumps(dict(what)).encode())]
        first = all_of_them[0]
        for name in sorted({name for one in all_of_them for name in one}):
            others = [str(rank) for rank, one in enumerate(all_of_them) if one.get(name) != first.get(name)]
            if others:
                ranks = f"rank {others[0]} has" if len(others) == 1 else f"ranks {', '.join(others)} have"
                raise ConfigError(
                    f"{name}: {ranks} another one than rank 0; start every rank with the same files, flags and versions"
                )

    @contextmanager
    def first_before_others(self) -> Iterator[None]:
        """Rank 0 runs the block alone, then the others do, however long that takes: it may have to read a corpus."""
        if self.store is None:
            yield
            return
        turn = f"turn/{self.store.add(f'turns/{self.rank}', 1)}"
        if not self.is_first:
            self._wait_for(turn)
        yield
        if self.is_first:
            self.store.set(turn, "done")

    def _wait_for(self, key: str) -> None:
        """Until the key is set. Raises RankLost if a rank has ended with a fault in the meantime."""
        assert self.store is not None
        while not self.store.check([key]):
            if self.store.check(["fault"]):
                raise RankLost(f"rank {self.rank}: another rank has ended with a fault; see what it says")
            time.sleep(_POLL_S)

    def stack(self, values: Tensor) -> Tensor:
        """values (…) of every rank as (W, …), in a graph: the gradient of what each rank makes of them is summed."""
        stacked: Tensor = _Stack.apply(values, self.rank, self.size)  # type: ignore[no-untyped-call]
        return stacked

    def _claim(self) -> bool:
        """Note that this run ends with a fault. Returns whether this rank is the first to say so."""
        try:
            return self.store is None or self.store.add("fault", 1) == 1
        except RuntimeError:  # the store went with the launcher: nobody else can speak
            return True


class _Stack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, rank: int, size: int) -> Tensor:
        ctx.rank = rank
        stacked = values.new_zeros(size, *values.shape)
        stacked[rank] = values
        dist.all_reduce(stacked)
        return stacked

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        grad = grads[0].contiguous().clone()
        dist.all_reduce(grad)
        return grad[ctx.rank], None, None


@contextmanager
def join_world(device: torch.device) -> Iterator[World]:
    """The world that the launcher's variables (torchrun's) describe; a process alone makes no group.

    Of a fault on any rank one line is printed: a user's fault leaves as it came where it was first, and where another
    rank was faster as SystemExit(2), in silence. A rank that died or is silent for `WENET_HS_RANK_TIMEOUT_S` is a
    RankLost.
    Raises: ConfigError if the variables, or the device of this rank, are not there.
    """
    size = number_in("WORLD_SIZE", 1, at_least=1)
    if size == 1:
        yield World(device=device)
        return
    world = _join(device, number_in("RANK", 0), size)
    try:
        with _log_of(world):
            yield world
    except BaseException as error:
        _leave(world, error)
        raise
    dist.destroy_process_group()


def is_first_rank() -> bool:
    """Whether this process is the one that speaks for all, before and after the world as well."""
    return number_in("RANK", 0) == 0


def _join(device: torch.device, rank: int, size: int) -> World:
    device = _device_of_rank(device)
    timeout, store = rank_timeout(), meet(rank, size)
    # Small things go by gloo also where the gradients go by nccl: they are numbers of the CPU, and stay exact.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, store=PrefixStore("group", store), rank=rank, world_size=size, timeout=timeout)
    except RuntimeError as error:
        raise RankLost(_lost(rank, error)) from error
    return World(rank, size, device, store)


def _device_of_rank(device: torch.device) -> torch.device:
    """One GPU for each process of a machine."""
    if device.type != "cuda":
        return device
    if device.index is not None:
        raise ConfigError(f"--device {device}: is one GPU for several processes; use --device cuda, a GPU for each")
    local, count = number_in("LOCAL_RANK", 0), torch.cuda.device_count()
    if local >= count:
        raise ConfigError(
            f"LOCAL_RANK={local}: there are {count} CUDA devices here; use --nproc_per_node {count} or --device cpu"
        )
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    return device


def _leave(world: World, error: BaseException) -> None:
    """Let one rank speak. Raises what leaves in place of `error`, if it is not `error` itself."""
    is_lost = isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and _is_of_the_group(error))
    speaks = world._claim()
    if not (is_lost or isinstance(error, WenetHsError | OSError)):
        return  # a bug of ours keeps its traceback, and an exit is one
    if world.device.type != "cuda":  # nccl would wait for the others; gloo without this may abort at the exit
        dist.destroy_process_group()
    if not speaks:
        time.sleep(_GRACE_S)
        raise SystemExit(error.exit_code if isinstance(error, WenetHsError) else 2) from None
    if is_lost:
        raise RankLost(_lost(world.rank, error)) from error


def _is_of_the_group(error: RuntimeError) -> bool:
    return any(word in str(error) for word in ("gloo", "Gloo", "NCCL", "Connection closed by peer"))


def _lost(rank: int, error: BaseException) -> str:
    detail = next(iter(str(error).splitlines()), "")
    if "imed out" in detail or "imeout" in detail:
        seconds = rank_timeout().total_seconds()
        return (
            f"rank {rank}: another rank has not answered for {seconds:.0f} s; see what it says, then run the same "
            "command again: it goes on with what is saved"
        )
    detail = re.sub(r"^\[\S+\] ", "", detail)  # gloo opens with a line of its own source
    return (
        f"rank {rank}: another rank has died ({detail}); see what it says, then run the same command again: it goes on "
        "with what is saved"
    )


@contextmanager
def _log_of(world: World) -> Iterator[None]:
    """Rank 0 logs as ever; the others their warnings and errors alone, with the rank in front."""
    if world.is_first:
        yield
        return
    make, level = logging.getLogRecordFactory(), logging.root.manager.disable

    def make_named(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        record.msg = f"rank {world.rank}: {record.msg}"
        return record

    logging.setLogRecordFactory(make_named)
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.setLogRecordFactory(make)
        logging.disable(level)
