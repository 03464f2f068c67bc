# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share: their flags, their one line of figures, commands and children to watch."""

import argparse
import contextlib
import io
import json
import logging
import os
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from wenet_hs.bin.command import run_command

MAX_SHOWN = 10


def script_parser(docstring: str | None, *, seed: int = 1) -> argparse.ArgumentParser:
    """A parser with the flags that every script has."""
    parser = argparse.ArgumentParser(description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=seed, help="of everything random (default: %(default)s)")
    parser.add_argument("--scratch", type=Path, help="folder to work in, which is kept (default: a temporary one)")
    return parser


@dataclass
class Tally:
    """What was tried and what went wrong."""

    seed: int
    started: float = field(default_factory=time.perf_counter)
    violations: list[str] = field(default_factory=list)

    def check(self, holds: bool, otherwise: str) -> bool:
        """Note a violation if the promise does not hold; whether it does."""
        if not holds:
            self.violations.append(" ".join(otherwise.split()))
        return holds

    def conclude(self, *figures: str) -> int:
        """Print the line of figures, and the first violations on stderr. Returns the exit code."""
        for violation in self.violations[:MAX_SHOWN]:
            sys.stderr.write(f"violation: {violation[:600]}\n")
        seconds = time.perf_counter() - self.started
        verdict = f"{len(self.violations)} violations" if self.violations else "no violation"
        sys.stdout.write(" | ".join((f"seed {self.seed}", *figures, f"{seconds:.0f} s", verdict)) + "\n")
        return 1 if self.violations else 0


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    """Its lines on stderr, without the log."""
    log: str
    """Warnings of the log."""
    crash: str | None = None
    """The traceback, where there is one."""

    def clean_fault(self) -> bool:
        """Whether it was refused as a user's fault should be: exit code 2, a line or some, no traceback."""
        return self.code == 2 and self.crash is None and bool(self.err.strip()) and "Traceback" not in self.err

    def shown(self) -> str:
        """For a violation."""
        return f"exit {self.code}: {(self.crash or self.err or self.log)[-400:]!r}"


def call(module: ModuleType, *arguments: object) -> Ended:
    """Run a command in this process, as its program would."""
    out, err, log = io.StringIO(), io.StringIO(), io.StringIO()
    crash = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _logging_to(log), warnings.catch_warnings():
        try:
            code = run_command(module, [str(argument) for argument in arguments])
        except SystemExit as exit_:  # argparse
            code = exit_.code if isinstance(exit_.code, int) else 1
        except Exception:
            code, crash = 1, traceback.format_exc()
    return Ended(code, out.getvalue(), err.getvalue(), log.getvalue(), crash)


@contextlib.contextmanager
def _logging_to(log: io.StringIO) -> Iterator[None]:
    """Warnings go into `log` alone; what the tests or another command had set up comes back."""
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


def child(work: Callable[[], object]) -> int:
    """Run `work` in a forked process; its exit code (70 after an exception), or minus the signal that ended it."""
    pid = fork()
    if pid == 0:
        code = 70
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork() -> int:
    """`os.fork`, which some versions of Python warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def result_of_child(work: Callable[[], Any]) -> Any:
    """What `work` returns in a forked process, by way of JSON; None if the process died."""
    reader, writer = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            os.close(reader)
            with os.fdopen(writer, "w") as pipe:
                json.dump(work(), pipe)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        content = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(content) if content else None


def call_in_child(module: ModuleType, *arguments: object) -> Ended:
    """`call` in a forked process: what it may change or break is gone with it."""
    record = result_of_child(lambda: asdict(call(module, *arguments)))
    return Ended(**record) if record else Ended(-1, "", "", "", "the process died")


def one_thread() -> None:
    """Torch in one thread: the models are so small that two only wait for each other, and threads forbid forks."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


def forget_fsync() -> Callable[[], None]:
    """Nobody pulls the plug while a script counts bits: make fsync nothing, which is faster. Returns the way back."""
    original = os.fsync
    os.fsync = lambda fd: None

    def back() -> None:
        os.fsync = original

    return back


def fresh_copy(source: Path, target: Path) -> Path:
    """A copy of a folder, in the place of an earlier one."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def spread(total: int, parts: int) -> list[int]:
    """`total` as `parts` numbers that differ by one at most."""
    return [total * (i + 1) // parts - total * i // parts for i in range(parts)]


def names(violations: Sequence[str]) -> str:
    """The first few, for a line."""
    return ", ".join(violations[:5])
