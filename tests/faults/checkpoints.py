# SPDX-License-Identifier: Apache-2.0
"""Faults of checkpoints: killed saves, full disks."""

import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import torch
from harness import Report, Tally, call_in_child, run_child, run_reporting
from tiny_corpus import bits, cut_back, read_checkpoint, write_tiny_corpus

from wenet_hs.bin import train as train_command
from wenet_hs.model import checkpoint as ckpt
from wenet_hs.model.checkpoint import write_final
from wenet_hs.tree.errors import CheckpointError

KEPT = 2


# ---- killed saves


def save_kills(
    folder: Path, tally: Tally, kills: int, size: int = 200_000, scenarios: int = 3
) -> str:
    """Killed at any instant of a save, the newest checkpoint loads and none that was reported is
    lost.

    The kills come at random instants, and at each change of the disk by a save.
    """
    num_saved = _kill_at_random(folder / "random", kills, size, tally)
    calls = {
        name: kill_at_every_change(folder / name, name, size, tally)
        for name in [*SCENARIOS][-scenarios:]
    }
    total = sum(calls.values())
    by_call = ", ".join(f"{name} {count}" for name, count in calls.items())
    return (
        f"{kills} kills at random instants ({num_saved} checkpoints reported) | {total} kills at every change of the "
        f"disk ({by_call}) | unloadable or lost {len(tally.violations)}/{kills + total}"
    )


@lru_cache(maxsize=8)
def make_contents(step: int, size: int) -> dict[str, bytes]:
    """Files of a checkpoint, different for each step."""
    weights = random.Random(step).randbytes(size)
    state = b'{"progress": {"step": %d}}' % step
    return {
        "model.pt": weights,
        "optimizer.pt": 2 * weights[::-1],
        "rng.pt": weights[:5000],
        "state.json": state,
    }


def save_and_rotate(folder: Path, step: int, size: int, report: Report = lambda step: None) -> None:
    """What a training does at a checkpoint."""
    ckpt.save_checkpoint(folder, step, make_contents(step, size))
    report(step)
    ckpt.rotate(folder, set(ckpt.list_checkpoints(folder)[-KEPT:]))


def _verify(folder: Path, reported: int, size: int, tally: Tally, where: str) -> int:
    """Check the folder after a kill. Returns the step of the newest checkpoint (0: none)."""
    ckpt.remove_incomplete(folder)
    newest = ckpt.newest_intact(folder)
    if newest is None:
        tally.check(not reported, f"{where}: step {reported} was reported and nothing loads")
        return 0
    step = ckpt.step_of(newest)
    tally.check(step >= reported, f"{where}: step {reported} was reported, the newest is {step}")
    tally.check(
        read_checkpoint(newest) == make_contents(step, size),
        f"{where}: {newest.name} has other bytes",
    )
    tally.check(not list(folder.glob("*.bad")), f"{where}: a kill left a damaged checkpoint")
    return step


def _kill_at_random(folder: Path, kills: int, size: int, tally: Tally) -> int:
    started = time.perf_counter()
    run_reporting(
        lambda report: save_and_rotate(folder, 1, size, report)
    )  # with the time of a fork, as below
    longest = 3 * (time.perf_counter() - started)
    newest, num_reported = 1, 0

    def save_forever(report: Report) -> None:
        for step in range(newest + 1, newest + 10_000):
            save_and_rotate(folder, step, size, report)

    for number in range(kills):
        steps, _ = run_reporting(save_forever, kill_after_s=tally.generator.uniform(0, longest))
        num_reported += len(steps)
        newest = _verify(
            folder, steps[-1] if steps else newest, size, tally, f"random kill {number}"
        )
    tally.check(
        kills < 10 or num_reported > 0, "no checkpoint was finished; the kills came too early"
    )
    return num_reported


def die_at_change(number: int | None) -> Callable[[], int]:
    """Kill this process before change `number` of the disk, counted from 0.

    Returns a function that counts them so far.

    A file that is opened for writing is two changes: after the first, half of its content is
    written.
    """
    count, written = 0, None

    def pass_or_die() -> None:
        nonlocal count
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    def on_event(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal written
        is_written = event == "open" and arguments[1] == "w"
        if is_written or event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            if written is not None:
                if count == number:
                    os.truncate(written, Path(written).stat().st_size // 2)
                pass_or_die()
            written = str(arguments[0]) if is_written else None
            pass_or_die()

    sys.addaudithook(on_event)
    return lambda: count


def _weights(step: int, size: int) -> dict[str, torch.Tensor]:
    return {
        "w": torch.frombuffer(bytearray(make_contents(step, size)["model.pt"]), dtype=torch.uint8)
    }


def _bytes_of(content: ckpt.Content) -> bytes:
    ckpt.write_hashed(file := io.BytesIO(), content)
    return file.getvalue()


def _write_final(folder: Path, step: int, size: int) -> None:
    write_final(
        folder.parent / "final.pt",
        _weights(step, size),
        {ckpt.checkpoint_path(folder, step): {}},
        by="last",
    )


SCENARIOS: dict[str, Callable[[Path, int, Report], None]] = {
    "save and rotate": lambda folder, size, report: save_and_rotate(folder, 3, size, report),
    "the same step again": lambda folder, size, report: save_and_rotate(folder, 2, size, report),
    "final.pt": lambda folder, size, report: _write_final(folder, 1, size),
}


def kill_at_every_change(folder: Path, name: str, size: int, tally: Tally) -> int:
    """Kill a scenario once before each of its changes of the disk. Returns their number."""
    checkpoints, final = folder / "checkpoints", folder / "final.pt"
    finals = [_bytes_of(_weights(step, size)) for step in (1, 2)]

    def work_until(number: int | None, report: Report) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        for step in (1, 2):
            ckpt.save_checkpoint(checkpoints, step, make_contents(step, size))
            _write_final(checkpoints, step, size)
        count = die_at_change(number)
        SCENARIOS[name](checkpoints, size, report)
        report(count())

    num_changes = run_reporting(partial(work_until, None))[0][-1]
    for number in range(num_changes):
        steps, code = run_reporting(partial(work_until, number))
        where = f"{name}, killed at change {number} of {num_changes}"
        tally.check(
            code == -signal.SIGKILL, f"{where}: the change was never made (exit code {code})"
        )
        newest = _verify(checkpoints, max([2, *steps]), size, tally, where)
        tally.check(
            final.read_bytes() in finals, f"{where}: final.pt is neither the old nor the new"
        )
        beside = final.with_suffix(".json")
        recorded = json.loads(beside.read_text())["sha256"] if beside.exists() else None
        sums = (None, hashlib.sha256(final.read_bytes()).hexdigest())
        tally.check(recorded in sums, f"{where}: final.json describes another final.pt")
        save_and_rotate(checkpoints, newest + 1, size)  # the next run
        left = sorted(path.name for path in checkpoints.iterdir())
        expected = [path.name for path in ckpt.list_checkpoints(checkpoints)]
        tally.check(left == expected and len(left) == KEPT, f"{where}: left {left}")
    return int(num_changes)


# ---- full disks


def full_disk(folder: Path, tally: Tally, trainings: int, disks: int = 40) -> str:
    """A full disk costs no finished checkpoint, and the message says disk.

    RLIMIT_FSIZE sweeps the size of a checkpoint's largest file in whole trainings. Where a small
    tmpfs can be mounted, it is filled too: with known free space, and while the checkpoint is
    written.
    """
    corpus, again = write_tiny_corpus(folder / "corpus"), folder / "training"
    whole, line = (
        corpus.train(folder / "whole", "max_epoch=1"),
        corpus.arguments(again, "max_epoch=1"),
    )
    files = read_checkpoint(ckpt.list_checkpoints(whole / "checkpoints")[-1])
    largest = max(map(len, files.values()))
    for number in range(trainings):
        shutil.rmtree(again, ignore_errors=True)
        last_good = "no checkpoint was written before"
        if number % 2:  # a training that goes on
            cut_back(whole, again, 2)
            last_good = "last good checkpoint: step-00000002"
        limit = 500 + (largest - 500) * number // trainings
        where, ended = f"limit {limit}", call_in_child(train_command, *line, limit=limit)
        is_named = ": disk full while writing" in ended.err and last_good in ended.err
        is_line = ended.is_user_error() and ended.err.count("\n") == 1
        tally.check(is_line and is_named, f"{where}: {ended.summary()}")
        tally.check(not list(again.glob("checkpoints/.*")), f"{where}: incomplete files are left")
        ended = call_in_child(train_command, *line)  # continues without the limit
        is_equal = ended.code == 0 and bits(again) == bits(whole)
        tally.check(is_equal, f"{where}, and again without it: {ended.summary()} or other bits")
    num_disks = _fill_disks(folder / "disk", files, disks, tally)
    full = f"{num_disks} full disks" if num_disks else "no disk can be mounted here"
    return (
        f"{trainings} trainings with limits over the {largest} bytes of a checkpoint's largest file | {full} | last "
        f"good one loads, message names the disk, no incomplete files: {trainings + num_disks} tried"
    )


def _fill_disks(disk: Path, files: dict[str, bytes], num_sizes: int, tally: Tally) -> int:
    """Save a second checkpoint on a tmpfs with room for the first and a part of the second.

    Returns how many disks.
    """
    disk.mkdir()

    def mount(options: str) -> bool:
        line = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
        return subprocess.run(line, capture_output=True, check=False).returncode == 0

    def save(seems_free: int | None) -> str:
        if seems_free is not None:
            usage = shutil.disk_usage("/")._replace(free=seems_free)
            shutil.disk_usage = lambda path: usage
        try:
            ckpt.save_checkpoint(disk / "checkpoints", 2, files)
        except CheckpointError as error:
            return str(error)
        return ""

    if os.geteuid() != 0 or not shutil.which("mount") or not mount("size=64m"):
        return 0
    try:
        first = ckpt.save_checkpoint(disk / "checkpoints", 1, files)
        used, needed, page = shutil.disk_usage(disk).used, sum(map(len, files.values())), 4096
        for number in range(2 * num_sizes):
            size = used + (needed * (number // 2) // num_sizes) // page * page
            where = f"disk of {size} bytes{' that fills while writing' if number % 2 else ''}"
            tally.check(mount(f"remount,size={size}"), f"{where}: cannot be made")
            message, _ = run_child(partial(save, 2**60 if number % 2 else None))
            is_named = "disk full while writing" in str(
                message
            ) and f"checkpoint: {first.name};" in str(message)
            tally.check(is_named and "\n" not in str(message), f"{where}: message {message!r}")
            left, fault = (
                [path.name for path in first.parent.iterdir()],
                ckpt.verification_error(first),
            )
            tally.check(left == [first.name] and fault is None, f"{where}: left {left}, {fault}")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    return 2 * num_sizes
