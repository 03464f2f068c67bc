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
import time
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from harness import Report, Tally, call, call_in_child, limit_files, log_to, run_child, run_reporting, without_fsync
from tiny_corpus import TinyCorpus, bits, cut_back, metrics, write_tiny_corpus

from wenet_hs import checkpoint as ckpt
from wenet_hs.bin import train as train_command
from wenet_hs.bin import tree as tree_command
from wenet_hs.errors import CheckpointError
from wenet_hs.train.average import write_final

KEPT = 2
CHANGING = ("mkdir", "rename", "replace", "unlink", "remove", "rmdir", "fsync")
"""Functions of `os` by which a save changes the disk; `io.open` is intercepted too."""


# ---- killed saves


def save_kills(folder: Path, tally: Tally, kills: int, size: int = 200_000, scenarios: int = 4) -> str:
    """Kill a save at random instants and at each of its system calls: the newest checkpoint always loads."""
    num_saved = _kill_at_random(folder / "random", kills, size, tally)
    calls = {name: kill_at_every_call(folder / name, name, size, tally) for name in [*SCENARIOS][-scenarios:]}
    total = sum(calls.values())
    by_call = ", ".join(f"{name} {count}" for name, count in calls.items())
    return (
        f"{kills} kills at random instants ({num_saved} checkpoints reported) | {total} kills at every call ({by_call})"
        f" | unloadable or lost {len(tally.violations)}/{kills + total}"
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
    """Returns how many checkpoints were reported in total."""
    started = time.perf_counter()
    save_and_rotate(folder, 1, size)
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


class CallCounter:
    """Counts the calls of this process that change the disk, and kills it at call number `at`."""

    def __init__(self, at: int | None = None) -> None:
        self.count, self._at = 0, at
        for name in CHANGING:
            setattr(os, name, self._intercept(getattr(os, name)))
        open_file = io.open

        def open_counted(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            if mode != "wb":
                return open_file(file, mode, *arguments, **named)
            self.pass_or_die()
            return io.BufferedWriter(CountedFile(file, self))

        io.open = open_counted

    def pass_or_die(self, before: Callable[[], object] = lambda: None) -> None:
        """Count a call. At number `at`, run `before` and die."""
        self.count += 1
        if self.count - 1 == self._at:
            before()
            os.kill(os.getpid(), signal.SIGKILL)

    def _intercept(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.pass_or_die()
            return function(*arguments, **named)

        return counted


class CountedFile(io.FileIO):
    """A file whose writes count twice: before the write, and in the middle of it."""

    def __init__(self, path: Any, calls: CallCounter) -> None:
        super().__init__(path, "wb")
        self._calls = calls

    def write(self, content: Any) -> int:
        """Write, unless this process is killed before or half way."""
        self._calls.pass_or_die()
        self._calls.pass_or_die(lambda: super(CountedFile, self).write(bytes(content)[: len(content) // 2]))
        return super().write(content)


def _write_final(folder: Path, step: int, size: int) -> None:
    weights = torch.frombuffer(bytearray(make_contents(step, size)["model.pt"]), dtype=torch.uint8)
    write_final(folder.parent / "final.pt", {"w": weights}, [ckpt.checkpoint_path(folder, step)], by="last")


def _save_after_a_kill(folder: Path, size: int, report: Report) -> None:
    for name in (".step-00000003.tmp", ".step-00000001.doomed"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "model.pt").write_bytes(b"half")
    ckpt.remove_incomplete(folder)
    save_and_rotate(folder, 3, size, report)


SCENARIOS: dict[str, Callable[[Path, int, Report], None]] = {
    "save and rotate": lambda folder, size, report: save_and_rotate(folder, 3, size, report),
    "the same step again": lambda folder, size, report: save_and_rotate(folder, 2, size, report),
    "after a kill": _save_after_a_kill,
    "final.pt": lambda folder, size, report: _write_final(folder, 1, size),
}


def kill_at_every_call(folder: Path, name: str, size: int, tally: Tally) -> int:
    """Kill a scenario once at each of its calls. Returns their number."""
    work, checkpoints, final, finals = SCENARIOS[name], folder / "checkpoints", folder / "final.pt", [b"", b""]

    def prepare() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        for step in (1, 2):
            ckpt.save_checkpoint(checkpoints, step, make_contents(step, size))
            _write_final(checkpoints, step, size)
            finals[step - 1] = final.read_bytes()

    def work_until(number: int | None, report: Report) -> int:
        calls = CallCounter(at=number)
        work(checkpoints, size, report)
        return calls.count

    prepare()
    num_calls, _ = run_child(lambda: work_until(None, lambda step: None))
    for number in range(num_calls):
        prepare()
        steps, code = run_reporting(partial(work_until, number))
        where = f"{name}, killed at call {number} of {num_calls}"
        tally.check(code == -signal.SIGKILL, f"{where}: the call was never made (exit code {code})")
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
    return int(num_calls)


# ---- resumed trainings

VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "softmax": ("softmax", ()),
    "softmax a2": ("softmax", ("accum_grad=2",)),
    "softmax w2": ("softmax", ("num_workers=2",)),
    "hsoftmax": ("hsoftmax", ()),
    "hsoftmax a2 w2": ("hsoftmax", ("accum_grad=2", "num_workers=2")),
    "class": ("class", ()),
    "adaptive": ("adaptive", ()),
}
"""Name → head and overrides. w2: two processes load data; a2: a step has two batches."""


def resume_sweep(folder: Path, tally: Tally, steps: int, every: int = 1, variants: int = len(VARIANTS)) -> str:
    """Stop a training after every k-th step and resume it: all losses and all bits equal the uninterrupted training."""
    figures, corpus = [], write_tiny_corpus(folder / "corpus")
    with without_fsync(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        for name, (head, settings) in [*VARIANTS.items()][:variants]:
            started, stopped = time.perf_counter(), folder / "stopped"
            steps_per_epoch = 2 if "accum_grad=2" in settings else 4
            overrides = (*settings, *_head_overrides(corpus, head), f"max_epoch={-(-steps // steps_per_epoch)}")
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


def _head_overrides(corpus: TinyCorpus, head: str) -> tuple[str, ...]:
    """Overrides for a head; its file of classes is built on first use."""
    if head == "softmax":
        return ()
    tree = corpus.folder / ("tree.json" if head == "hsoftmax" else "classes.json")
    if not tree.exists():
        line = ["build", "--kind", "classes", "--num_classes", "3", "--units", corpus.folder / "units.txt"]
        ended = call(tree_command, *line, "--data_list", corpus.train_data, "--out", tree)
        assert ended.code == 0, ended.summary()
    return (f"head={head}", f"head_conf.tree={tree}")


def _read_end(model_dir: Path) -> dict[str, object]:
    """The bits at the end, and the record of each training step (the number of validations may differ)."""
    return {**bits(model_dir), "records": [record for record in metrics(model_dir) if record["kind"] == "train"]}


# ---- damaged files


def damaged_checkpoints(folder: Path, tally: Tally, flips: int, cuts: int = 300, trainings: int = 12) -> str:
    """Flip bits, cut and delete files of the newest checkpoint: it is not loaded, the fault is named, the one before
    is used. Some damages are followed by a real training, which must end with the bits of an undisturbed one.

    A flip in white space of the manifest changes no checksum. Such a checkpoint is intact and counted separately.
    """
    corpus = write_tiny_corpus(folder / "corpus")
    whole = corpus.train(folder / "whole", "max_epoch=1")
    newest = ckpt.list_checkpoints(whole / "checkpoints")[-1]
    originals = {path.name: path.read_bytes() for path in sorted(newest.iterdir())}
    damages = [*_make_damages(originals, flips, cuts, tally.generator)]
    with without_fsync():
        harmless = sum(_is_harmless(newest, *damage, tally) for damage in damages)
        for name, what, content in damages[:: -(-len(damages) // trainings)] if trainings else []:
            again = folder / "again"
            shutil.rmtree(again, ignore_errors=True)
            cut_back(whole, again, ckpt.step_of(newest))
            _apply(again / "checkpoints" / newest.name / name, content)
            ended = call(train_command, *corpus.arguments(again, "max_epoch=1"))
            is_equal = ended.code == 0 and bits(again) == bits(whole)
            tally.check(is_equal, f"training after {name} {what}: {ended.summary()}")
            tally.check("using step-" in ended.log or name == "manifest.json", f"{name} {what}: {ended.log!r}")
    num = len(damages)
    return (
        f"{flips} flipped bits, {cuts} cuts, {len(originals)} deletions in {len(originals)} files of "
        f"{sum(map(len, originals.values()))} bytes | named, and the checkpoint before used, {num - harmless} of {num};"
        f" {harmless} flips in the manifest changed no sum and loaded the same bytes | {trainings} trainings went on "
        "from the one before"
    )


def _make_damages(
    originals: dict[str, bytes], flips: int, cuts: int, generator: random.Random
) -> Iterator[tuple[str, str, bytes | None]]:
    """(file, what, new content or None for a deletion): deletions, cuts and flips, each file equally often."""
    names = list(originals)
    yield from ((name, "deleted", None) for name in names)
    for number in range(cuts):
        name = names[number % len(names)]
        length = generator.randrange(len(originals[name]))
        yield name, f"cut at byte {length}", originals[name][:length]
    for number in range(flips):
        name = names[number % len(names)]
        content = bytearray(originals[name])
        position, bit = generator.randrange(len(content)), generator.randrange(8)
        content[position] ^= 1 << bit
        yield name, f"bit {bit} of byte {position} flipped", bytes(content)


def _apply(path: Path, content: bytes | None) -> None:
    path.unlink()
    if content is not None:
        path.write_bytes(content)


def _is_harmless(newest: Path, name: str, what: str, content: bytes | None, tally: Tally) -> bool:
    """Damage, look for the newest good checkpoint, restore. Returns whether no checksum had changed."""
    before, original = ckpt.list_checkpoints(newest.parent)[-2], (newest / name).read_bytes()
    intact = ckpt.read_checkpoint(newest)
    _apply(newest / name, content)
    log = io.StringIO()
    try:
        with log_to(log):
            found = ckpt.newest_intact(newest.parent)
        if found == newest:
            is_same = name == "manifest.json" and ckpt.read_checkpoint(newest) == intact
            return tally.check(is_same, f"{name} {what}: not noticed")
        named = [newest.name, before.name, *([name] if name != "manifest.json" else [])]
        is_named = all(part in log.getvalue() for part in named)
        tally.check(found == before and is_named, f"{name} {what}: {found} was used, logged {log.getvalue()}")
        return False
    finally:
        set_aside = newest.with_name(newest.name + ".bad")
        if set_aside.exists():
            set_aside.rename(newest)
        (newest / name).write_bytes(original)


# ---- full disks


def full_disk(folder: Path, tally: Tally, limits: int, trainings: int = 8, disks: int = 40) -> str:
    """Fill the disk at every point of a checkpoint: the last good one loads, the message names the disk.

    RLIMIT_FSIZE sweeps the size of a real checkpoint, for the save alone and for whole trainings. Where a small tmpfs
    can be mounted, it is filled too: with known free space, and while the checkpoint is written.
    """
    corpus = write_tiny_corpus(folder / "corpus")
    whole = corpus.train(folder / "whole", "max_epoch=1")
    files = ckpt.read_checkpoint(ckpt.list_checkpoints(whole / "checkpoints")[-1])
    first, largest = ckpt.save_checkpoint(folder / "limits", 1, files), max(map(len, files.values()))
    for number in range(limits):
        limit = largest * number // limits
        _check_save(first, files, f"limit {limit}", tally, limit=limit)
    again, line = folder / "training", corpus.arguments(folder / "training", "max_epoch=1")
    for number in range(trainings):
        shutil.rmtree(again, ignore_errors=True)
        where = f"limit {1000 + (largest - 1000) * number // trainings}"
        ended = call_in_child(train_command, *line, limit=int(where.split()[1]))
        is_line = ended.is_user_error() and ended.err.count("\n") == 1 and ": disk full while writing" in ended.err
        tally.check(is_line, f"training, {where}: {ended.summary()}")
        ended = call_in_child(train_command, *line)  # continues without the limit
        is_equal = ended.code == 0 and bits(again) == bits(whole)
        tally.check(is_equal, f"training after {where}: {ended.summary()} or other bits")
    num_disks = _fill_disks(folder / "disk", files, disks, tally)
    full = f"{num_disks} full disks" if num_disks else "no disk can be mounted here"
    tried = limits + trainings + num_disks
    return (
        f"{limits} limits over the {largest} bytes of a checkpoint's largest file | {trainings} whole trainings | "
        f"{full} | last good one loads, message names the disk, no incomplete files: {tried} tried"
    )


def _fill_disks(disk: Path, files: dict[str, bytes], num_sizes: int, tally: Tally) -> int:
    """Save a second checkpoint on a tmpfs with room for the first and a part of the second.

    Returns the number of disks, 0 if none can be mounted.
    """
    disk.mkdir()

    def mount(options: str) -> bool:
        line = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
        return subprocess.run(line, capture_output=True, check=False).returncode == 0

    if os.geteuid() != 0 or not shutil.which("mount") or not mount("size=64m"):
        return 0
    try:
        first = ckpt.save_checkpoint(disk / "checkpoints", 1, files)
        used, needed, page = shutil.disk_usage(disk).used, sum(map(len, files.values())), 4096
        for number in range(2 * num_sizes):
            size = used + (needed * (number // 2) // num_sizes) // page * page
            where = f"disk of {size} bytes{' that fills while writing' if number % 2 else ''}"
            tally.check(mount(f"remount,size={size}"), f"{where}: cannot be made")
            _check_save(first, files, where, tally, hide=bool(number % 2))
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    return 2 * num_sizes


def _check_save(
    first: Path, files: dict[str, bytes], where: str, tally: Tally, *, limit: int | None = None, hide: bool = False
) -> None:
    """Save a second checkpoint on a full disk: one line names the disk, the first checkpoint stays.

    `limit` is the largest file size; with `hide`, the free space seems sufficient before the save.
    """

    def save() -> str:
        limit_files(limit)
        if hide:
            actual, calls = shutil.disk_usage, iter([shutil.disk_usage("/")._replace(free=2**60)])
            shutil.disk_usage = lambda path: next(calls, None) or actual(path)  # type: ignore[assignment]
        try:
            ckpt.save_checkpoint(first.parent, 2, files)
        except CheckpointError as error:
            return str(error)
        return ""

    message, _ = run_child(save)
    is_named = "disk full while writing" in str(message) and f"checkpoint: {first.name};" in str(message)
    tally.check(is_named and "\n" not in str(message), f"{where}: message {message!r}")
    left = [path.name for path in first.parent.iterdir()]
    fault = ckpt.verification_error(first)
    tally.check(left == [first.name] and fault is None, f"{where}: left {left}, {fault}")
