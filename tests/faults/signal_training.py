# SPDX-License-Identifier: Apache-2.0
"""Send SIGTERM, SIGINT or SIGUSR1 to `wenet-hs train` at random instants, and go on each time.

Example: python tests/faults/signal_training.py --signals 50 --seed 1

After each signal: the exit code is 128 and the signal, there is one line on how to go on, and a checkpoint of exactly
the last step that the metrics know. At the end the bits, the metrics and the checkpoints that are kept equal those of
a run that nobody disturbed. The signal goes to the process alone or to its group, as Ctrl-C and schedulers do; data
are loaded by the process or by a worker; a signal that falls into the start is counted apart. One line of figures.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fault_script import Tally, script_parser
from kill_training import last_step, run_to_its_end
from tiny_corpus import TinyCorpus, outcome, write_tiny_corpus

from wenet_hs.checkpoint import damage, list_checkpoints, step_of
from wenet_hs.train.signals import SIGNALS

SETTINGS = ("max_epoch=100", "save_interval=7", "keep_checkpoints=2", "num_workers=0")
"""400 steps, validation and a checkpoint at every seventh, few of which are kept."""

IN_GOOD_ORDER, EARLY, FINISHED = "stopped in good order", "ended before the first step", "finished before the signal"


def main() -> int:
    """Train, signal, compare. Returns the exit code."""
    parser = script_parser(__doc__)
    parser.add_argument("--signals", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=100, help="of 4 steps (default: %(default)s)")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is born deaf to it
    tally, rng, ends = Tally(args.seed), random.Random(args.seed), Counter[str]()
    settings = (*SETTINGS, f"max_epoch={args.epochs}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.scratch or Path(temporary)
        corpus = write_tiny_corpus(folder / "corpus")
        run_to_its_end(corpus, folder / "whole", settings)
        num_steps = outcome(folder / "whole")["step"]
        for number in range(args.signals):
            instant = num_steps * (number + rng.random()) / (args.signals + 1)
            ends[signalled(corpus, folder / "signalled", settings, instant, rng, tally)] += 1
        run_to_its_end(corpus, folder / "signalled", settings)
        compare(folder, tally)
    figures = ", ".join(f"{count} {end}" for end, count in ends.items())
    return tally.conclude(f"{num_steps} steps", f"{args.signals} signals", figures)


def compare(folder: Path, tally: Tally) -> None:
    """The run that was signalled with the one that was not."""
    whole, signalled = outcome(folder / "whole"), outcome(folder / "signalled")
    for name in whole:
        tally.check(whole[name] == signalled[name], f"{name} differs at the end")
    kept = [[path.name for path in list_checkpoints(folder / name / "checkpoints")] for name in ("whole", "signalled")]
    tally.check(kept[0] == kept[1], f"kept checkpoints differ: {kept}")


def start(corpus: TinyCorpus, model_dir: Path, settings: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """The training as a program of its own, in a process group of its own; its lines go into `train.log`."""
    line = [sys.executable, "-m", "wenet_hs.bin.train", *corpus.arguments(model_dir, *settings)]
    model_dir.mkdir(parents=True, exist_ok=True)
    with (model_dir / "train.log").open("wb") as log:
        return subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)


def signalled(
    corpus: TinyCorpus, model_dir: Path, settings: tuple[str, ...], instant: float, rng: random.Random, tally: Tally
) -> str:
    """Start it, signal it at an instant in steps, look at what it leaves. Returns how it ended."""
    number, whole_group, into_the_start = rng.choice(SIGNALS), rng.random() < 0.5, rng.random() < 0.1
    before = last_step(model_dir) or 0
    wanted = 0 if into_the_start else max(int(instant), before + 1)
    process = start(corpus, model_dir, (*settings, f"num_workers={rng.choice((0, 1))}"))
    deadline = time.monotonic() + 120
    while (last_step(model_dir) or 0) < wanted and process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            raise SystemExit(f"no progress in two minutes:\n{(model_dir / 'train.log').read_text()}")
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 2 if into_the_start else 0.05))  # somewhere in a step, a validation or a checkpoint
    if process.poll() is None:
        os.killpg(process.pid, number) if whole_group else process.send_signal(number)
    code, log = process.wait(timeout=120), (model_dir / "train.log").read_text()
    where = f"{number.name} at step {wanted}{' to the group' if whole_group else ''}: exit {code}, {log[-300:]!r}"
    if code == 0:
        return FINISHED
    if "stopped by" not in log:  # it was not listening yet, and had done nothing
        early = code in (-number, 128 + number) or (number == signal.SIGINT and "KeyboardInterrupt" in log)
        tally.check(early, f"{where}: neither stopped in good order nor ended by the signal")
        return EARLY
    tally.check(code == 128 + number, f"{where}: expected {128 + number}")
    checkpoint = list_checkpoints(model_dir / "checkpoints")[-1]
    tally.check(damage(checkpoint) is None, f"{where}: {damage(checkpoint)}")
    tally.check(step_of(checkpoint) == last_step(model_dir), f"{where}: {checkpoint.name}, step {last_step(model_dir)}")
    line = f"{checkpoint}: stopped by {number.name} after step {step_of(checkpoint)}, which is saved; run the same"
    tally.check(line in log and "Traceback" not in log, f"{where}: not the one line expected")
    return IN_GOOD_ORDER


if __name__ == "__main__":
    sys.exit(main())
