# SPDX-License-Identifier: Apache-2.0
"""Helpers of the fault tests: violations, commands in this process or in a child, kills of started
programs.
"""

import contextlib
import io
import logging
import multiprocessing
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.extend(str(Path(__file__).parents[1] / name) for name in (".", "score", "corpus"))

from tiny_corpus import TinyCorpus

from wenet_hs.bin.main import run_command

PATIENCE_S = 180
Report = Callable[[Any], object]


@dataclass
class Tally:
    """The checks and violations of a promise, and the random numbers of a fault."""

    seed: int = 1
    num_checks: int = 0
    violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generator = random.Random(self.seed)

    def check(self, holds: bool, otherwise: str) -> bool:
        """Record a violation unless the promise holds. Returns whether it does."""
        self.num_checks += 1
        if not holds:
            self.violations.append(" ".join(otherwise.split())[:600])
        return holds


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str = ""
    err: str = ""
    log: str = ""
    """Warnings of the log, which `err` does not contain."""
    crash: str | None = None
    """The traceback, if any."""

    def is_user_error(self) -> bool:
        """Whether it was refused properly: exit code 2, at least one line, no traceback."""
        return (
            self.code == 2
            and self.crash is None
            and bool(self.err.strip())
            and "Traceback" not in self.err
        )

    def summary(self) -> str:
        return f"exit {self.code}: {(self.crash or self.err or self.log)[-400:]!r}"


def call(module: ModuleType, *arguments: object) -> Ended:
    """Run a command in this process."""
    out, err, log = io.StringIO(), io.StringIO(), io.StringIO()
    crash = None
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        log_to(log),
        warnings.catch_warnings(),
    ):
        try:
            code = run_command(module, [str(argument) for argument in arguments])
        except SystemExit as exit_:  # argparse
            code = exit_.code if isinstance(exit_.code, int) else 1
        except Exception:
            code, crash = 1, traceback.format_exc()
    return Ended(code, out.getvalue(), err.getvalue(), log.getvalue(), crash)


@contextlib.contextmanager
def log_to(log: io.StringIO) -> Iterator[None]:
    """Write warnings to `log` only; the earlier handlers are restored."""
    root, handler = logging.getLogger(), logging.StreamHandler(log)
    handlers, level = root.handlers, root.level
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers = handlers
        root.setLevel(level)


def run_reporting(
    work: Callable[[Report], object], kill_after_s: float | None = None
) -> tuple[list[Any], int]:
    """Run `work` in a forked process, killed after some seconds if given.

    Returns: the values that it reported, and its exit code or minus signal.
    """
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=work, args=(sender.send,))
    child.start()
    sender.close()
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        child.kill()
    values = []
    with contextlib.suppress(EOFError), receiver:
        while True:
            values.append(receiver.recv())
    child.join()
    return values, child.exitcode or 0


def run_child(work: Callable[[], Any]) -> tuple[Any, int]:
    """The result of `work` in a forked process (None if it has none), and its exit code or minus
    signal.
    """
    values, code = run_reporting(lambda report: report(work()))
    return values[0] if values and code == 0 else None, code


def call_in_child(module: ModuleType, *arguments: object, limit: int | None = None) -> Ended:
    """`call` in a forked process: nothing that it changes remains.

    `limit` is the largest size of a file in bytes; a write beyond it fails as on a full disk.
    """

    def work() -> Ended:
        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return call(module, *arguments)

    ended, code = run_child(work)
    return ended or Ended(code, err="the process died")


# ---- programs


class Program:
    """A command as a program of its own, in its own process group.

    It appends stdout and stderr to a log file.
    """

    def __init__(
        self, log: Path, command: str, *arguments: object, ranks: int = 1, max_restarts: int = 0
    ) -> None:
        self.log, self.ranks = log, ranks
        line = ["-m", f"wenet_hs.bin.{command}", *map(str, arguments)]
        if ranks > 1:
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
            line = [*launch, "--max-restarts", str(max_restarts), *line]
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {"WENET_HS_RANK_TIMEOUT_S": "60", **os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, *line],
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
            )

    def wait(self) -> int:
        """The exit code; a program that hangs is killed with its ranks."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.wait()

    def finish(self) -> None:
        if (code := self.wait()) != 0:
            raise SystemExit(f"exit code {code}:\n{self.log.read_text()}")

    def wait_until(self, is_reached: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
        """Wait for a condition.

        Returns False if the program ended first, or made no progress in time.
        """
        deadline = time.monotonic() + patience_s
        while not is_reached():
            if self.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def rank_processes(self) -> dict[int, int]:
        """Rank → process id of the ranks that torchrun is running, from Linux's /proc."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        pids = [int(pid) for task in tasks for pid in _read(task).split()]
        found = [
            (re.search(r"(?:^|\0)RANK=(\d+)\0", _read(Path(f"/proc/{pid}/environ"))), pid)
            for pid in pids
        ]
        return {int(rank[1]): pid for rank, pid in found if rank is not None}


def _read(path: Path) -> str:
    """The content of a file of /proc; empty if the process has just ended."""
    with contextlib.suppress(OSError):
        return path.read_text("utf-8", errors="replace")
    return ""


def start_training(
    corpus: TinyCorpus, model_dir: Path, *overrides: str, ranks: int = 1, max_restarts: int = 0
) -> Program:
    """`wenet-hs train` as a program; its log is `train.log`."""
    log = model_dir / "train.log"
    return Program(
        log,
        "train",
        *corpus.arguments(model_dir, *overrides),
        ranks=ranks,
        max_restarts=max_restarts,
    )


def last_step(model_dir: Path) -> int:
    """The last optimizer step in metrics.jsonl, whether its line is complete or not; 0 before the
    first one.
    """
    content = _read(model_dir / "metrics.jsonl")
    digits = content.rpartition('{"kind": "train", "step": ')[2].partition(",")[0]
    return int(digits) if digits.isdigit() else 0
