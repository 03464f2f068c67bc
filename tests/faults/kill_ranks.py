# SPDX-License-Identifier: Apache-2.0
"""Kill ranks of a training under `torchrun --max-restarts` and compare the result with that of a run never killed.

Example: python tests/faults/kill_ranks.py --runs 25 --kills 2 --seed 1

Each run trains a tiny model on two ranks (gloo); at random steps one of them, drawn at random, is sent SIGKILL, and
torchrun starts both again. It prints one line of figures and exits with 1 if a run has not finished by itself, or if a
bit of the weights, the optimizer, the random states or the metrics differs.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from kill_training import last_step
from tiny_corpus import TinyCorpus, outcome, write_tiny_corpus

TINY = ("max_epoch=8", "save_interval=2", "num_workers=0")
"""16 steps of two ranks, a checkpoint at every second."""
NUM_STEPS = 16
PATIENCE_S = 180
TIMEOUT_S = 60
"""How long a rank waits for the other."""


def main() -> int:
    """Train, kill, compare. Returns the exit code."""
    args = arguments()
    rng, killed = random.Random(args.seed), [0, 0]
    bad: list[str] = []
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        corpus = write_tiny_corpus(folder / "corpus")
        if Launch(corpus, folder / "whole", max_restarts=0).wait() != 0:
            raise SystemExit((folder / "whole" / "train.log").read_text())
        whole = outcome(folder / "whole")
        for number in range(args.runs):
            model_dir = folder / f"run-{number}"
            victims = kill_in_one_run(corpus, model_dir, args.kills, rng)
            if victims is None:
                bad.append(f"run {number} has not finished")
                continue
            for rank in victims:
                killed[rank] += 1
            different = [name for name, value in outcome(model_dir).items() if value != whole[name]]
            bad += [f"run {number} differs in {', '.join(different)}"] if different else []
    seconds = time.perf_counter() - started
    result = "; ".join(bad) or "all equal bit for bit"
    sys.stdout.write(
        f"seed {args.seed} | 2 ranks | {NUM_STEPS} steps | {args.runs} runs | rank 0 killed {killed[0]} times, rank 1 "
        f"{killed[1]} times | {seconds:.0f} s | {result}\n"
    )
    return 1 if bad else 0


def arguments() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--kills", type=int, default=2, help="in each run")
    parser.add_argument("--seed", type=int, default=1, help="of the steps and the ranks")
    parser.add_argument("--folder", type=Path, help="where to train; default: a temporary folder")
    return parser.parse_args()


class Launch:
    """A torchrun with two ranks; all of them write into `train.log`."""

    def __init__(self, corpus: TinyCorpus, model_dir: Path, *, max_restarts: int) -> None:
        self.log = model_dir / "train.log"
        model_dir.mkdir(parents=True, exist_ok=True)
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        line += ["--max-restarts", str(max_restarts), "-m", "wenet_hs.bin.train", *corpus.arguments(model_dir, *TINY)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "WENET_HS_RANK_TIMEOUT_S": str(TIMEOUT_S)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(line, stdout=log, stderr=log, env=environment)

    def wait(self) -> int | None:
        """The exit code; None where it has to be ended."""
        try:
            return self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.end()
            return None

    def end(self) -> None:
        """With its ranks."""
        self._process.terminate()
        self._process.wait()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def rank_processes(self) -> dict[int, int]:
        """Rank → process id of the ranks that run now."""
        return rank_processes(self._process.pid)


def rank_processes(launcher: int) -> dict[int, int]:
    """Rank → process id of the ranks that a torchrun (its process id) has started and that run now, as Linux knows."""
    tasks = Path(f"/proc/{launcher}/task")
    children = [pid for task in tasks.glob("*/children") for pid in _read(task).split()]
    ranks = {}
    for pid in children:
        variables = dict(item.split("=", 1) for item in _read(Path(f"/proc/{pid}/environ")).split("\0") if "=" in item)
        if "RANK" in variables:
            ranks[int(variables["RANK"])] = int(pid)
    return ranks


def _read(path: Path) -> str:
    """What a process says of itself; nothing where it has just ended."""
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def kill_in_one_run(corpus: TinyCorpus, model_dir: Path, kills: int, rng: random.Random) -> list[int] | None:
    """The ranks that were killed in a training that has finished by itself; None where it has not."""
    launch = Launch(corpus, model_dir, max_restarts=kills)
    victims = []
    for step in sorted(rng.randrange(1, NUM_STEPS) for _ in range(kills)):
        rank, victim = rng.randrange(2), None
        deadline = time.monotonic() + PATIENCE_S
        while victim is None:
            if not launch.is_running() or time.monotonic() > deadline:
                launch.end()
                return None
            time.sleep(0.002)
            if (last_step(model_dir) or 0) >= step and _has_begun(launch, len(victims)):
                victim = launch.rank_processes().get(rank)
        os.kill(victim, signal.SIGKILL)
        victims.append(rank)
    return victims if launch.wait() == 0 else None


def _has_begun(launch: Launch, num_kills: int) -> bool:
    """Whether the ranks are those started after the last kill: each start says once that it has read its list."""
    return _read(launch.log).count("--train_data: all") > num_kills


if __name__ == "__main__":
    sys.exit(main())
