# SPDX-License-Identifier: Apache-2.0
"""Fill the disk at every point of a checkpoint: what was finished loads, the text says disk, nothing is left over.

RLIMIT_FSIZE is swept over the size of the checkpoint of a real training; every limit is met by the real save code in a
process of its own, some of them by a whole `wenet-hs train`, which then goes on without the limit and ends with the
bits of a training that nothing disturbed. Where this user may mount one, a small tmpfs is filled as well: its size is
swept, once with the free space known beforehand and once with a disk that fills while the checkpoint is written.

Example: python tests/faults/full_disk.py --limits 200
"""

import contextlib
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fault_script import Tally, child, fork, one_thread, result_of_child, script_parser
from tiny_corpus import TinyCorpus, bits, write_tiny_corpus

from wenet_hs import checkpoint as ckpt
from wenet_hs.bin import train as train_command
from wenet_hs.bin.command import run_command
from wenet_hs.errors import CheckpointError

PAGE = 4096


def main(argv: Sequence[str] | None = None) -> int:
    """Fill, look, count. Returns the exit code."""
    parser = script_parser(__doc__)
    parser.add_argument("--limits", type=int, default=200, help="of file size (default: %(default)s)")
    parser.add_argument(
        "--trainings", type=int, default=8, help="limits met by a whole training (default: %(default)s)"
    )
    parser.add_argument("--disks", type=int, default=40, help="sizes of a small disk, twice each (default: 40)")
    args = parser.parse_args(argv)
    one_thread()
    tally = Tally(args.seed)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = args.scratch or Path(temporary)
        corpus = write_tiny_corpus(scratch / "corpus")
        whole = corpus.train(scratch / "whole", "max_epoch=1")
        files = ckpt.read_checkpoint(ckpt.list_checkpoints(whole / "checkpoints")[-1])
        sweep_limits(scratch / "limits", files, args.limits, tally)
        sweep_trainings(corpus, whole, scratch, args.trainings, tally)
        with small_disk(scratch / "disk") as resize:
            disks = sweep_disks(scratch / "disk", resize, files, args.disks, tally) if resize else 0
    return tally.conclude(
        f"{args.limits} limits over the {max(map(len, files.values()))} bytes of a checkpoint's largest file",
        f"{args.trainings} whole trainings",
        f"{disks} full disks" if resize else "no disk can be mounted here",
        f"last good one loads, text names the disk, no litter: {args.limits + args.trainings + disks} tried",
    )


def sweep_limits(folder: Path, files: dict[str, bytes], num_limits: int, tally: Tally) -> None:
    """Save a second checkpoint under each limit, from nothing to just too little."""
    first = ckpt.save_checkpoint(folder, 1, files)
    largest = max(map(len, files.values()))
    for number in range(num_limits):
        limit = largest * number // num_limits
        message = result_of_child(lambda limit=limit: message_of_save(folder, files, limit))  # type: ignore[misc]
        check_message(message, first, f"limit {limit}", tally)
        check_folder(folder, first, f"limit {limit}", tally)


def message_of_save(folder: Path, files: dict[str, bytes], limit: int | None) -> str:
    """What the save of step 2 has to say, in this process, which is under the limit from now on."""
    if limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        ckpt.save_checkpoint(folder, 2, files)
    except CheckpointError as error:
        return str(error)
    return ""


def check_message(message: str | None, first: Path, where: str, tally: Tally) -> None:
    """One line that says disk, and which checkpoint is good."""
    named = message is not None and "disk full while writing" in message and f"checkpoint: {first.name};" in message
    tally.check(named and "\n" not in str(message), f"{where}: said {message!r}")


def check_folder(folder: Path, first: Path, where: str, tally: Tally) -> None:
    """The first checkpoint is intact, and alone."""
    tally.check(ckpt.damage(first) is None, f"{where}: {first.name}: {ckpt.damage(first)}")
    left = [path.name for path in folder.iterdir()]
    tally.check(left == [first.name], f"{where}: left over: {left}")


# ---- whole trainings


def sweep_trainings(corpus: TinyCorpus, whole: Path, scratch: Path, number: int, tally: Tally) -> None:
    """Trainings that meet the limit somewhere, and go on without it."""
    if not number:
        return
    folder, log = scratch / "training", scratch / "log"
    largest = max(path.stat().st_size for path in (whole / "checkpoints").rglob("*") if path.is_file())
    for index in range(number):
        limit = 1000 + (largest - 1000) * index // number
        shutil.rmtree(folder, ignore_errors=True)
        code = train_in_child([*corpus.arguments(folder, "max_epoch=1")], log, limit=limit)
        said = log.read_text()
        tally.check(
            code == 2 and ": disk full while writing" in said, f"training, limit {limit}: exit {code}, {said!r}"
        )
        tally.check("Traceback" not in said and said.count("\n") == 1, f"training, limit {limit}: {said!r}")
        code = child(lambda: os._exit(quietly_train(corpus, folder, log)))
        tally.check(code == 0 and bits(folder) == bits(whole), f"training after limit {limit}: exit {code}, other bits")


def quietly_train(corpus: TinyCorpus, folder: Path, log: Path) -> int:
    """The same training without a limit; its log goes into the file."""
    with log.open("w") as file, contextlib.redirect_stderr(file), contextlib.redirect_stdout(file):
        return run_command(train_command, corpus.arguments(folder, "max_epoch=1"))


def train_in_child(arguments: list[str], log: Path, *, limit: int) -> int:
    """The exit code of the command in a process whose files may not outgrow `limit` bytes; its errors go to `log`."""
    pid = fork()
    if pid == 0:
        code = 70
        try:
            sys.stderr = log.open("w", buffering=1)
            os.dup2(sys.stderr.fileno(), 2)
            logging.getLogger().handlers = [logging.NullHandler()]
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            code = run_command(train_command, arguments)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ---- a disk that is really full


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[int], bool] | None]:
    """A tmpfs under `folder` with a function that gives it a size in bytes; None where none can be mounted."""
    folder.mkdir(parents=True, exist_ok=True)

    def mount(options: str) -> bool:
        line = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        return subprocess.run(line, capture_output=True, check=False).returncode == 0

    if os.geteuid() != 0 or not shutil.which("mount") or not mount("size=64m"):
        yield None
        return
    try:
        yield lambda size: mount(f"remount,size={size}")
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def sweep_disks(
    disk: Path, resize: Callable[[int], bool], files: dict[str, bytes], num_sizes: int, tally: Tally
) -> int:
    """Save a second checkpoint on disks that hold the first and a part of the second; how many disks."""
    first = ckpt.save_checkpoint(disk / "checkpoints", 1, files)
    whole_disk = os.statvfs(disk)
    used = (whole_disk.f_blocks - whole_disk.f_bfree) * whole_disk.f_frsize
    needed = sum(map(len, files.values()))
    for number in range(2 * num_sizes):
        size = used + (needed * (number // 2) // num_sizes) // PAGE * PAGE
        where = f"disk of {size} bytes" + (" that fills while writing" if number % 2 else "")
        tally.check(resize(size), f"{where}: cannot be made")
        save = save_unwarned if number % 2 else message_of_save
        message = result_of_child(lambda save=save: save(disk / "checkpoints", files, None))  # type: ignore[misc]
        check_message(message, first, where, tally)
        check_folder(disk / "checkpoints", first, where, tally)
    return 2 * num_sizes


def save_unwarned(folder: Path, files: dict[str, bytes], limit: None) -> str:
    """The save where the free space seems to suffice at its begin."""
    honest, calls = shutil.disk_usage, iter((True,))

    def lying(path: Path) -> object:
        return honest("/")._replace(free=2**60) if next(calls, False) else honest(path)

    shutil.disk_usage = lying  # type: ignore[assignment]
    return message_of_save(folder, files, limit)


if __name__ == "__main__":
    sys.exit(main())
