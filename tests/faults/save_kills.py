# SPDX-License-Identifier: Apache-2.0
"""Kill the saving of checkpoints: at random instants, and at each of its system calls. The newest one always loads.

A forked process saves, reports the step, and rotates, as training does; SIGKILL comes uniformly over a few of these
rounds. Then the calls that change the disk are counted (mkdir, open, write, fsync, rename, replace, unlink, rmdir), and
the process is killed before call i for every i, and in the middle of every write. In each case the newest checkpoint
must verify and hold its own bytes, and be no older than the last one reported; nothing is set aside as damaged; and
the next save leaves no litter. `final.pt` must be the old or the new one.

Example: python tests/faults/save_kills.py --kills 1000
"""

import io
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from fault_script import Tally, child, fork, one_thread, result_of_child, script_parser

from wenet_hs import checkpoint as ckpt
from wenet_hs.files import write_atomic

CHANGING = ("mkdir", "rename", "replace", "unlink", "remove", "rmdir", "fsync")
"""Functions of `os` by which a save changes the disk; opening and writing a file are seen in `io.open`."""
KEPT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Kill, look, count. Returns the exit code."""
    parser = script_parser(__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="at random instants (default: %(default)s)")
    parser.add_argument("--bytes", type=int, default=200_000, help="of a checkpoint's weights (default: %(default)s)")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), metavar="NAME")
    args = parser.parse_args(argv)
    one_thread()
    tally = Tally(args.seed)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = args.scratch or Path(temporary)
        saved = random_kills(scratch / "random", args.kills, args.bytes, tally)
        calls = {name: kills_at_every_call(scratch / name, name, args.bytes, tally) for name in args.scenarios}
    by_call = ", ".join(f"{name} {count}" for name, count in calls.items())
    return tally.conclude(
        f"{args.kills} kills at random instants ({saved} checkpoints reported)",
        f"{sum(calls.values())} kills at every call ({by_call})",
        f"unloadable or lost {len(tally.violations)}/{args.kills + sum(calls.values())}",
    )


@lru_cache(maxsize=8)
def contents(step: int, num_bytes: int) -> dict[str, bytes]:
    """The files of a step: as many as a training writes, and never equal to those of another step."""
    weights = random.Random(step).randbytes(num_bytes)
    return {
        "model.pt": weights,
        "optimizer.pt": 2 * weights[::-1],
        "rng.pt": weights[:5000],
        "state.json": b'{"step": %d}' % step,
    }


def save_and_rotate(folder: Path, step: int, num_bytes: int, report: Callable[[int], object]) -> None:
    """What training does at a checkpoint."""
    ckpt.save_checkpoint(folder, step, contents(step, num_bytes))
    report(step)
    ckpt.rotate(folder, set(ckpt.list_checkpoints(folder)[-KEPT:]))


def verify(folder: Path, reported: int, num_bytes: int, tally: Tally, where: str) -> int:
    """Check what is left after a kill; the step of the newest checkpoint (0: none)."""
    ckpt.remove_litter(folder)
    newest = ckpt.newest_good(folder)
    if newest is None:
        tally.check(not reported, f"{where}: step {reported} was reported and nothing loads")
        return 0
    step = ckpt.step_of(newest)
    tally.check(step >= reported, f"{where}: step {reported} was reported, the newest is {step}")
    tally.check(ckpt.read_checkpoint(newest) == contents(step, num_bytes), f"{where}: {newest.name} holds other bytes")
    tally.check(not list(folder.glob("*.bad")), f"{where}: a kill left a damaged checkpoint")
    return step


# ---- at random instants


def random_kills(folder: Path, num_kills: int, num_bytes: int, tally: Tally) -> int:
    """How many checkpoints were reported altogether."""
    generator = random.Random(tally.seed)
    started = time.perf_counter()
    child(lambda: save_and_rotate(folder, 1, num_bytes, lambda step: None))
    longest = 3 * (time.perf_counter() - started)
    newest, num_reported = 1, 0
    for number in range(num_kills):
        steps = killed_after(folder, newest, num_bytes, generator.uniform(0, longest))
        num_reported += len(steps)
        newest = verify(folder, steps[-1] if steps else newest, num_bytes, tally, f"random kill {number}")
    tally.check(num_kills == 0 or num_reported > 0, "no checkpoint was ever finished; the kills came too early")
    return num_reported


def killed_after(folder: Path, newest: int, num_bytes: int, seconds: float) -> list[int]:
    """The steps that a process reported which was killed so long after its start."""
    reader, writer = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            for step in range(newest + 1, newest + 10_000):
                save_and_rotate(folder, step, num_bytes, lambda step: os.write(writer, step.to_bytes(4, "big")))
        finally:
            os._exit(70)
    os.close(writer)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(reader, "rb") as pipe:
        content = pipe.read()
    return [int.from_bytes(content[at : at + 4], "big") for at in range(0, len(content), 4)]


# ---- at every call


class Calls:
    """Counts the calls that change the disk, and kills this process at the one with the number `at`."""

    def __init__(self, at: int | None = None) -> None:
        self.count, self._at = 0, at

    def due(self) -> bool:
        """Count one; whether it is the one."""
        self.count += 1
        return self.count - 1 == self._at

    def watch(self) -> None:
        """From now on, in this process."""
        for name in CHANGING:
            setattr(os, name, self._watched(getattr(os, name)))
        open_file = io.open

        def opened(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            if mode != "wb":
                return open_file(file, mode, *arguments, **named)
            self.pass_or_die()
            return io.BufferedWriter(WatchedFile(file, self))

        io.open = opened

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            self.pass_or_die()
            return function(*arguments, **named)

        return watched

    def pass_or_die(self) -> None:
        """Count a call that is about to be made."""
        if self.due():
            os.kill(os.getpid(), signal.SIGKILL)


class WatchedFile(io.FileIO):
    """A file whose writes are counted: before, and in the middle."""

    def __init__(self, path: Any, calls: Calls) -> None:
        super().__init__(path, "wb")
        self._calls = calls

    def write(self, content: Any) -> int:
        """Write, unless it is time to die, before it or half way."""
        self._calls.pass_or_die()
        if self._calls.due():
            super().write(bytes(content)[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(content)


def _save_another(folder: Path, num_bytes: int, report: Callable[[int], object]) -> None:
    save_and_rotate(folder, 3, num_bytes, report)


def _save_again(folder: Path, num_bytes: int, report: Callable[[int], object]) -> None:
    save_and_rotate(folder, 2, num_bytes, report)


def _save_over_litter(folder: Path, num_bytes: int, report: Callable[[int], object]) -> None:
    for name in (".step-00000003.tmp", ".step-00000001.doomed"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "model.pt").write_bytes(b"half")
    ckpt.remove_litter(folder)
    save_and_rotate(folder, 3, num_bytes, report)


def _write_final(folder: Path, num_bytes: int, report: Callable[[int], object]) -> None:
    write_atomic(folder.parent / "final.pt", contents(3, num_bytes)["model.pt"])


SCENARIOS: dict[str, Callable[[Path, int, Callable[[int], object]], None]] = {
    "save and rotate": _save_another,
    "the same step again": _save_again,
    "after a kill": _save_over_litter,
    "final.pt": _write_final,
}


def kills_at_every_call(folder: Path, name: str, num_bytes: int, tally: Tally) -> int:
    """How many calls the scenario makes; at each of them it was killed once."""
    work = SCENARIOS[name]

    start_anew(folder, num_bytes)
    num_calls = result_of_child(lambda: count_calls(folder / "checkpoints", work, num_bytes))
    for number in range(num_calls):
        checkpoints = start_anew(folder, num_bytes)
        reported = killed_at(checkpoints, work, number, num_bytes)
        where = f"{name}, killed at call {number} of {num_calls}"
        verify(checkpoints, max(2, reported), num_bytes, tally, where)
        allowed = [contents(step, num_bytes)["model.pt"] for step in (2, 3)]
        tally.check((folder / "final.pt").read_bytes() in allowed, f"{where}: final.pt is neither the old nor the new")
        goes_on(checkpoints, num_bytes, tally, where)
    return int(num_calls)


def start_anew(folder: Path, num_bytes: int) -> Path:
    """Two checkpoints and a `final.pt`; the folder of the checkpoints."""
    shutil.rmtree(folder, ignore_errors=True)
    for step in (1, 2):
        ckpt.save_checkpoint(folder / "checkpoints", step, contents(step, num_bytes))
    (folder / "final.pt").write_bytes(contents(2, num_bytes)["model.pt"])
    return folder / "checkpoints"


def count_calls(folder: Path, work: Callable[..., None], num_bytes: int) -> int:
    """How many calls that change the disk `work` makes."""
    calls = Calls()
    calls.watch()
    work(folder, num_bytes, lambda step: None)
    return calls.count


def killed_at(folder: Path, work: Callable[..., None], number: int, num_bytes: int) -> int:
    """Run `work` in a process that is killed at its call `number`; the step it reported before, or 0."""
    reader, writer = os.pipe()

    def doomed() -> None:
        Calls(at=number).watch()
        work(folder, num_bytes, lambda step: os.write(writer, bytes([step])))

    code = child(doomed)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        steps = pipe.read()
    if code != -signal.SIGKILL:
        raise RuntimeError(f"call {number} was never made (exit code {code})")
    return steps[-1] if steps else 0


def goes_on(folder: Path, num_bytes: int, tally: Tally, where: str) -> None:
    """The run that follows saves as if nothing had been, and leaves nothing behind."""
    newest = ckpt.newest_good(folder)
    save_and_rotate(folder, 1 + (ckpt.step_of(newest) if newest else 0), num_bytes, lambda step: None)
    left = sorted(path.name for path in folder.iterdir())
    tally.check(left == [path.name for path in ckpt.list_checkpoints(folder)] and len(left) == KEPT, f"{where}: {left}")


if __name__ == "__main__":
    sys.exit(main())
