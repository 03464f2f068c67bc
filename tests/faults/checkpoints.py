# SPDX-License-Identifier: Apache-2.0
"""Faults of checkpoints: killed saves, resumed trainings, damaged files, full disks."""

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
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import cycle, islice
from pathlib import Path

import torch
from harness import Report, Tally, call, call_in_child, log_to, run_child, run_reporting
from tiny_corpus import bits, cut_back, metrics, write_tiny_corpus

from wenet_hs import checkpoint as ckpt
from wenet_hs.bin import train as train_command
from wenet_hs.bin import tree as tree_command
from wenet_hs.errors import CheckpointError
from wenet_hs.train.average import write_final

KEPT = 2


# ---- killed saves


def save_kills(folder: Path, tally: Tally, kills: int, size: int = 200_000, scenarios: int = 3) -> str:
    """Killed at any instant of a save, the newest checkpoint loads and none that was reported is lost.

    The kills come at random instants, and at each change of the disk by a save.
    """
    num_saved = _kill_at_random(folder / "random", kills, size, tally)
    calls = {name: kill_at_every_change(folder / name, name, size, tally) for name in [*SCENARIOS][-scenarios:]}
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
    return {"model.pt": weights, "optimizer.pt": 2 * weights[::-1], "rng.pt": weights[:5000], "state.json": state}


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
    tally.check(ckpt.read_checkpoint(newest) == make_contents(step, size), f"{where}: {newest.name} has other bytes")
    tally.check(not list(folder.glob("*.bad")), f"{where}: a kill left a damaged checkpoint")
    return step


def _kill_at_random(folder: Path, kills: int, size: int, tally: Tally) -> int:
    started = time.perf_counter()
    run_reporting(lambda report: save_and_rotate(folder, 1, size, report))  # with the time of a fork, as below
    longest = 3 * (time.perf_counter() - started)
    newest, num_reported = 1, 0

    def save_forever(report: Report) -> None:
        for step in range(newest + 1, newest + 10_000):
            save_and_rotate(folder, step, size, report)

    for number in range(kills):
        steps, _ = run_reporting(save_forever, kill_after_s=tally.generator.uniform(0, longest))
        num_reported += len(steps)
        newest = _verify(folder, steps[-1] if steps else newest, size, tally, f"random kill {number}")
    tally.check(kills < 10 or num_reported > 0, "no checkpoint was finished; the kills came too early")
    return num_reported


def die_at_change(number: int | None) -> Callable[[], int]:
    """Kill this process before change `number` of the disk, counted from 0. Returns a function that counts them so far.

    A file that is opened for writing is two changes: after the first, half of its content is written.
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
    return {"w": torch.frombuffer(bytearray(make_contents(step, size)["model.pt"]), dtype=torch.uint8)}


def _write_final(folder: Path, step: int, size: int) -> None:
    write_final(folder.parent / "final.pt", _weights(step, size), [ckpt.checkpoint_path(folder, step)], by="last")


SCENARIOS: dict[str, Callable[[Path, int, Report], None]] = {
    "save and rotate": lambda folder, size, report: save_and_rotate(folder, 3, size, report),
    "the same step again": lambda folder, size, report: save_and_rotate(folder, 2, size, report),
    "final.pt": lambda folder, size, report: _write_final(folder, 1, size),
}


def kill_at_every_change(folder: Path, name: str, size: int, tally: Tally) -> int:
    """Kill a scenario once before each of its changes of the disk. Returns their number."""
    checkpoints, final = folder / "checkpoints", folder / "final.pt"
    finals = [ckpt.dump_dict(_weights(step, size)) for step in (1, 2)]

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
        tally.check(code == -signal.SIGKILL, f"{where}: the change was never made (exit code {code})")
        newest = _verify(checkpoints, max([2, *steps]), size, tally, where)
        tally.check(final.read_bytes() in finals, f"{where}: final.pt is neither the old nor the new")
        beside = final.with_suffix(".json")
        recorded = json.loads(beside.read_text())["sha256"] if beside.exists() else None
        sums = (None, hashlib.sha256(final.read_bytes()).hexdigest())
        tally.check(recorded in sums, f"{where}: final.json describes another final.pt")
        save_and_rotate(checkpoints, newest + 1, size)  # the next run
        left = sorted(path.name for path in checkpoints.iterdir())
        expected = [path.name for path in ckpt.list_checkpoints(checkpoints)]
        tally.check(left == expected and len(left) == KEPT, f"{where}: left {left}")
    return int(num_changes)


# ---- resumed trainings

VARIANTS = {
    "softmax": "",
    "softmax a2": "accum_grad=2",
    "hsoftmax w2": "head=hsoftmax head_conf.tree={0}/tree.json num_workers=2",
    "class": "head=class head_conf.tree={0}/classes.json",
    "adaptive": "head=adaptive head_conf.tree={0}/classes.json",
}
"""Name → overrides; {0} is the folder of the corpus. w2: two processes load data; a2: a step has two batches."""


def resume_sweep(folder: Path, tally: Tally, steps: int, every: int = 1, variants: int = len(VARIANTS)) -> str:
    """A resumed run ends with the same bits as an unbroken one (CPU, same torch, same threads).

    It is stopped after every k-th step. All losses are equal, too.
    """
    figures, corpus = [], write_tiny_corpus(folder / "corpus")
    line = ["build", "--kind", "classes", "--num_classes", "3", "--units", corpus.folder / "units.txt"]
    line += ["--data_list", corpus.train_data, "--out", corpus.folder / "classes.json"]
    ended = call(tree_command, *line)
    tally.check(ended.code == 0, ended.summary())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        for name, settings in [*VARIANTS.items()][:variants]:
            started, stopped = time.perf_counter(), folder / "stopped"
            steps_per_epoch = 2 if "accum_grad=2" in settings else 4
            overrides = (*settings.format(corpus.folder).split(), f"max_epoch={-(-steps // steps_per_epoch)}")
            whole = corpus.train(folder / name.replace(" ", "-"), *overrides)
            num_steps = ckpt.step_of(ckpt.list_checkpoints(whole / "checkpoints")[-1])
            tally.check(num_steps >= steps, f"{name}: {num_steps} steps instead of {steps}")
            expected, num_equal, cuts = _read_end(whole), 0, range(1, num_steps + 1, every)
            for step in cuts:
                shutil.rmtree(stopped, ignore_errors=True)
                others = [p.name for p in ckpt.list_checkpoints(whole / "checkpoints") if ckpt.step_of(p) != step]
                shutil.copytree(whole, stopped, ignore=shutil.ignore_patterns("finished.json", "final.pt", *others))
                resumed = _read_end(corpus.train(stopped, *overrides, f"save_interval={10**6}"))
                different = [fact for fact in expected if resumed[fact] != expected[fact]]
                num_equal += tally.check(not different, f"{name}: stopped after step {step}, different: {different}")
            shutil.rmtree(whole)
            figures.append(f"{name} {num_equal}/{len(cuts)} ({time.perf_counter() - started:.0f} s)")
    return f"stopped at and resumed bit for bit: {', '.join(figures)}"


def _read_end(model_dir: Path) -> dict[str, object]:
    """The bits at the end, and the record of each training step (the number of validations may differ)."""
    return {**bits(model_dir), "records": [record for record in metrics(model_dir) if record["kind"] == "train"]}


# ---- damaged files


def damaged_checkpoints(folder: Path, tally: Tally, flips: int, cuts: int = 300, trainings: int = 12) -> str:
    """A damaged checkpoint is never loaded: what is wrong is named and the one before is used.

    Flips bits, cuts and deletes files of the newest checkpoint. Some damages are followed by a real training, which
    must end with the bits of an undisturbed one. A flip in white space of the manifest changes no checksum. Such a
    checkpoint is intact and counted separately.
    """
    corpus, overrides = write_tiny_corpus(folder / "corpus"), ("max_epoch=1", "keep_checkpoints=2")
    whole, again = corpus.train(folder / "whole", *overrides), folder / "again"
    before, newest = ckpt.list_checkpoints(whole / "checkpoints")
    originals = {path.name: path.read_bytes() for path in sorted(newest.iterdir())}
    damages = [*_make_damages(originals, flips, cuts, tally.generator)]
    trained, harmless = range(0, len(damages), -(-len(damages) // trainings)), 0
    for number, (name, what, content) in enumerate(damages):
        shutil.rmtree(again, ignore_errors=True)
        cut_back(whole, again, ckpt.step_of(newest))
        damaged, where = again / "checkpoints" / newest.name, f"{name} {what}"
        (damaged / name).write_bytes(content) if content is not None else (damaged / name).unlink()
        is_harmless = ckpt.verification_error(damaged) is None
        if is_harmless:
            is_same = ckpt.read_checkpoint(damaged) == ckpt.read_checkpoint(newest)
            harmless += tally.check(name == "manifest.json" and is_same, f"{where}: not noticed")
        log = io.StringIO()
        if number in trained:
            ended = call(train_command, *corpus.arguments(again, *overrides))
            log.write(ended.log)
            is_equal = ended.code == 0 and bits(again) == bits(whole)
            tally.check(is_equal, f"training after {where}: {ended.summary()}")
        else:
            with log_to(log):
                found = ckpt.newest_intact(damaged.parent)
            is_right = found is not None and found.name == (newest if is_harmless else before).name
            tally.check(is_right, f"{where}: {found} was used")
        named = [newest.name, f"using {before.name}", *([name] if name != "manifest.json" else [])]
        is_named = is_harmless or all(part in log.getvalue() for part in named)
        tally.check(is_named, f"{where}: logged {log.getvalue()}")
    num = len(damages)
    return (
        f"{flips} flipped bits, {cuts} cuts, {len(originals)} deletions in {len(originals)} files of "
        f"{sum(map(len, originals.values()))} bytes | named, and the checkpoint before used, {num - harmless} of {num};"
        f" {harmless} flips in the manifest changed no sum and loaded the same bytes | {len(trained)} trainings went on"
        " from the one before"
    )


def _make_damages(
    originals: dict[str, bytes], flips: int, cuts: int, generator: random.Random
) -> Iterator[tuple[str, str, bytes | None]]:
    """(file, what, new content or None for a deletion): deletions, cuts and flips, each file equally often."""
    yield from ((name, "deleted", None) for name in originals)
    for number, name in enumerate(islice(cycle(originals), cuts + flips)):
        content = bytearray(originals[name])
        position, bit = generator.randrange(len(content)), generator.randrange(8)
        if number < cuts:
            yield name, f"cut at byte {position}", bytes(content[:position])
        else:
            content[position] ^= 1 << bit
            yield name, f"bit {bit} of byte {position} flipped", bytes(content)


# ---- full disks


def full_disk(folder: Path, tally: Tally, trainings: int, disks: int = 40) -> str:
    """A full disk costs no finished checkpoint, and the message says disk.

    RLIMIT_FSIZE sweeps the size of a checkpoint's largest file in whole trainings. Where a small tmpfs can be mounted,
    it is filled too: with known free space, and while the checkpoint is written.
    """
    corpus, again = write_tiny_corpus(folder / "corpus"), folder / "training"
    whole, line = corpus.train(folder / "whole", "max_epoch=1"), corpus.arguments(again, "max_epoch=1")
    files = ckpt.read_checkpoint(ckpt.list_checkpoints(whole / "checkpoints")[-1])
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
    """Save a second checkpoint on a tmpfs with room for the first and a part of the second. Returns how many disks."""
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
            is_named = "disk full while writing" in str(message) and f"checkpoint: {first.name};" in str(message)
            tally.check(is_named and "\n" not in str(message), f"{where}: message {message!r}")
            left, fault = [path.name for path in first.parent.iterdir()], ckpt.verification_error(first)
            tally.check(left == [first.name] and fault is None, f"{where}: left {left}, {fault}")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    return 2 * num_sizes
