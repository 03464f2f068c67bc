# SPDX-License-Identifier: Apache-2.0
"""Kill `wenet-hs recognize` at random instants, start it again each time, and compare its results with those of a run
never killed.

Example: python tests/faults/kill_recognition.py --kills 50 --seed 1 --ranks 2

It decodes noise with a small random model, in many batches; with --ranks under torchrun, of which one rank, drawn at
random, is killed. Where a list is decoded before the kills are used up, it is decoded anew. It prints one line of
figures and exits with 1 if a byte of `text` or `hyps.jsonl` differs, or if a batch that was kept was decoded again.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from kill_ranks import rank_processes
from model_folders import write_clip, write_model_folder

from wenet_hs.manifest import write_data_list

NUM_CLIPS = 240
PATIENCE_S = 180
MODES = ("ctc_greedy_search", "ctc_prefix_beam_search", "attention", "attention_rescoring")


@dataclass(frozen=True)
class Bed:
    """A model, a list, and how to decode it."""

    folder: Path
    ranks: int

    def prepare(self) -> None:
        """Make the model and the list."""
        write_model_folder(self.folder / "model", encoder_conf={"num_blocks": 2})
        rng = random.Random(0)
        clips = [write_clip(self.folder / f"clips/u{i}.wav", rng.uniform(0.5, 3.0), seed=i) for i in range(NUM_CLIPS)]
        write_data_list(self.folder / "data.list", clips)

    def start(self, result_dir: Path) -> subprocess.Popen[bytes]:
        """The command as a program of its own, which says into a log what it has to say."""
        arguments = ["--model_dir", self.folder / "model", "--test_data", self.folder / "data.list", "--device", "cpu"]
        arguments += ["--result_dir", result_dir, "--batch_size", "4", "--modes", *MODES]
        line = [sys.executable, "-m", "wenet_hs.bin.recognize", *map(str, arguments)]
        if self.ranks > 1:
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(self.ranks)]
            line = [sys.executable, *launch, *line[1:]]
        with self.log(result_dir).open("ab") as log:
            return subprocess.Popen(line, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def log(self, result_dir: Path) -> Path:
        """What all runs into a folder have said."""
        return result_dir.with_suffix(".log")

    def run_to_its_end(self, result_dir: Path) -> None:
        """Start it and let it finish."""
        if self.start(result_dir).wait(PATIENCE_S) != 0:
            raise SystemExit(self.log(result_dir).read_text())


def main() -> int:
    """Decode, kill, compare. Returns the exit code."""
    args = arguments()
    rng, started = random.Random(args.seed), time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        bed = Bed(args.folder or Path(scratch), args.ranks)
        bed.prepare()
        bed.run_to_its_end(bed.folder / "whole")
        whole, bad, kills, rounds, kept = results(bed.folder / "whole"), [], 0, 0, 0
        while kills < args.kills:
            result_dir = bed.folder / f"killed-{rounds}"
            rounds += 1
            at = kill_until_done(bed, result_dir, args.kills - kills, rng)
            kills += len(at)
            kept += max(at, default=0)
            bad += [f"{rounds}: {fault}" for fault in faults(bed, result_dir, at, whole)]
    seconds = time.perf_counter() - started
    rank = f"{args.ranks} ranks | " if args.ranks > 1 else ""
    sys.stdout.write(
        f"seed {args.seed} | {rank}{NUM_CLIPS} clips in {NUM_CLIPS // 4} batches | {kills} kills in {rounds} lists | "
        f"{kept} batches kept over the last kills | {seconds:.0f} s | {'; '.join(bad) or 'equal byte for byte'}\n"
    )
    return 1 if bad else 0


def arguments() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1, help="of the instants and the ranks")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to decode; default: a temporary folder")
    return parser.parse_args()


def kill_until_done(bed: Bed, result_dir: Path, kills: int, rng: random.Random) -> list[int]:
    """Kill it up to so many times, or until the list is decoded; then let it finish.

    Returns how many batches were kept at each kill.
    """
    at: list[int] = []
    for _ in range(kills):
        process = bed.start(result_dir)
        if not kill_one(process, bed.ranks, result_dir, rng):
            return at
        at.append(num_kept(result_dir))
    bed.run_to_its_end(result_dir)
    return at


def kill_one(process: subprocess.Popen[bytes], num_ranks: int, result_dir: Path, rng: random.Random) -> bool:
    """Kill a process (or one of its ranks) a few batches after it began to work. Returns whether it was still there."""
    wanted = num_kept(result_dir) + rng.randrange(12)
    late = time.monotonic() + rng.uniform(1.0, 60.0)  # no batch may be left: then the kill meets the end, or the start
    while num_kept(result_dir) < wanted and time.monotonic() < late and process.poll() is None:
        time.sleep(0.0005)
    time.sleep(rng.uniform(0, 0.02))
    victims = [process.pid] if num_ranks == 1 else []
    while not victims and process.poll() is None:
        victims = sorted(rank_processes(process.pid).values())
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.kill(rng.choice(victims), signal.SIGKILL)
    return process.wait(PATIENCE_S) != 0


def num_kept(result_dir: Path) -> int:
    """Whole lines in the files of the batches."""
    files = list((result_dir / "partial").glob("batches-*.jsonl"))
    try:
        return sum(file.read_bytes().count(b"\n") for file in files)
    except FileNotFoundError:  # it has just come to its end
        return 0


def results(result_dir: Path) -> dict[str, bytes]:
    """The bytes of what is read by others."""
    return {
        f"{mode}/{name}": (result_dir / mode / name).read_bytes() for mode in MODES for name in ("text", "hyps.jsonl")
    }


def faults(bed: Bed, result_dir: Path, kept: list[int], whole: dict[str, bytes]) -> list[str]:
    """What differs, and whether a restart found less than what was kept at the kill before it."""
    found = results(result_dir)
    bad = [f"{name} differs" for name in whole if found[name] != whole[name]]
    going_on = re.findall(r"(\d+) of \d+ batches are decoded already", bed.log(result_dir).read_text("utf-8"))
    lost = [number for number in kept if number and number > max(map(int, going_on), default=0)]
    bad += [f"{lost[0]} batches were kept, of which a restart found fewer"] if lost else []
    return bad + (["partial is left"] if (result_dir / "partial").exists() else [])


if __name__ == "__main__":
    sys.exit(main())
