# SPDX-License-Identifier: Apache-2.0
"""Kill `wenet-hs train` at random instants, go on each time, and compare the result with that of a run never killed.

Example: python tests/faults/kill_training.py --kills 10 --seed 1

By default it trains a tiny model on a made-up corpus; with --config, --train_data and --cv_data any other. It prints
one line of figures and exits with 1 if a bit of the weights, the optimizer, the random state or the metrics differs.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_corpus import TinyCorpus, outcome, write_tiny_corpus

TINY = ("max_epoch=12", "save_interval=3", "num_workers=0")
"""48 steps, a checkpoint at every third."""


def main() -> int:
    """Train, kill, compare. Returns the exit code."""
    args = arguments()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.model_dir or Path(scratch)
        corpus = write_tiny_corpus(folder / "corpus")
        if args.config is not None:
            corpus = replace(corpus, config=args.config, train_data=args.train_data, cv_data=args.cv_data)
        overrides = (*(TINY if args.config is None else ()), *args.override_config)
        run_to_its_end(corpus, folder / "whole", overrides)
        num_steps = outcome(folder / "whole")["step"]
        started = time.perf_counter()
        rng = random.Random(args.seed)
        instants = sorted(rng.uniform(0, num_steps) for _ in range(args.kills))
        steps = [kill_at(corpus, folder / "killed", overrides, instant, rng) for instant in instants]
        run_to_its_end(corpus, folder / "killed", overrides)
        seconds = time.perf_counter() - started
        whole, killed = outcome(folder / "whole"), outcome(folder / "killed")
    different = [name for name in whole if whole[name] != killed[name]]
    result = f"different: {', '.join(different)}" if different else "equal bit for bit"
    at = ", ".join("start" if step is None else str(step) for step in steps)
    sys.stdout.write(
        f"seed {args.seed} | {num_steps} steps | {len(steps)} kills (after step {at}) | {len(steps)} restarts | "
        f"{seconds:.0f} s | {result}\n"
    )
    return 1 if different else 0


def arguments() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of the instants")
    parser.add_argument("--model_dir", type=Path, help="where to train; default: a temporary folder")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--train_data", type=Path)
    parser.add_argument("--cv_data", type=Path)
    parser.add_argument("--override_config", nargs="+", default=[])
    return parser.parse_args()


def start(corpus: TinyCorpus, model_dir: Path, overrides: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """The training as a program of its own; it says what it has to say into `train.log`."""
    line = [sys.executable, "-m", "wenet_hs.bin.train", *corpus.arguments(model_dir, *overrides), "--resume", "auto"]
    model_dir.mkdir(parents=True, exist_ok=True)
    with (model_dir / "train.log").open("ab") as log:
        return subprocess.Popen(line, stdout=log, stderr=log)


def run_to_its_end(corpus: TinyCorpus, model_dir: Path, overrides: tuple[str, ...]) -> None:
    """Start it and let it finish."""
    code = start(corpus, model_dir, overrides).wait()
    if code != 0:
        raise SystemExit(f"training ended with exit code {code}:\n{(model_dir / 'train.log').read_text()}")


def kill_at(
    corpus: TinyCorpus, model_dir: Path, overrides: tuple[str, ...], instant: float, rng: random.Random
) -> int | None:
    """Start it and kill it at an instant in steps, wherever in that step it is. Returns the last step it has logged.

    Where the step is reached before the restart is through with its imports, the kill falls somewhere in the start.
    """
    process = start(corpus, model_dir, overrides)
    started = time.perf_counter()
    before = last_step(model_dir)
    late = time.perf_counter() + rng.uniform(0.2, 4.0)
    while (last_step(model_dir) or 0) < int(instant) or (before == last_step(model_dir) and time.perf_counter() < late):
        if process.poll() is not None:
            raise SystemExit(f"it ended before it was killed:\n{(model_dir / 'train.log').read_text()}")
        if time.perf_counter() - started > 120:
            raise SystemExit(f"no progress in two minutes:\n{(model_dir / 'train.log').read_text()}")
        time.sleep(0.001)
    time.sleep((instant - int(instant)) * 0.1)  # a step with its checkpoint takes about as long
    process.kill()
    process.wait()
    return last_step(model_dir)


def last_step(model_dir: Path) -> int | None:
    """The last optimizer step in metrics.jsonl, cut off or not."""
    try:
        lines = (model_dir / "metrics.jsonl").read_bytes().split(b'{"kind": "train", "step": ')
    except FileNotFoundError:
        return None
    digits = lines[-1].partition(b",")[0]
    return int(digits) if len(lines) > 1 and digits.isdigit() else None


if __name__ == "__main__":
    sys.exit(main())
