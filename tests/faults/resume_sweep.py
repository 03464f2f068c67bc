# SPDX-License-Identifier: Apache-2.0
"""Stop a training after every step and resume it: every loss and every bit at the end is that of the unbroken one.

For each variant a tiny model is trained for --steps optimizer steps without a break. Then for every k it stands where a
run killed after step k would, goes on to the end, and is compared: all records of metrics.jsonl (losses, gradient
norms, learning rates of each step), and the SHA-256 of the last weights, moments, random state and of final.pt.
Dropout, dither, speeds and masks are on. In w2 two processes read the
data, in a2 a step has two batches.

Example: python tests/faults/resume_sweep.py --steps 60
"""

import argparse
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fault_script import Tally, call, forget_fsync, one_thread, script_parser
from tiny_corpus import TinyCorpus, bits, metrics, write_tiny_corpus

from wenet_hs.bin import tree as tree_command
from wenet_hs.checkpoint import list_checkpoints, step_of

VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "softmax": ("softmax", ()),
    "softmax a2": ("softmax", ("accum_grad=2",)),
    "softmax w2": ("softmax", ("num_workers=2",)),
    "hsoftmax": ("hsoftmax", ()),
    "hsoftmax a2 w2": ("hsoftmax", ("accum_grad=2", "num_workers=2")),
    "class": ("class", ()),
    "adaptive": ("adaptive", ()),
}
"""Name → head and overrides."""
BATCHES_PER_EPOCH = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Stop everywhere, compare, count. Returns the exit code."""
    parser = script_parser(__doc__)
    parser.add_argument("--steps", type=int, default=60, help="of the unbroken training (default: %(default)s)")
    parser.add_argument("--every", type=int, default=1, help="stop after each K-th step (default: %(default)s)")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME")
    args = parser.parse_args(argv)
    one_thread()
    back = forget_fsync()
    tally = Tally(args.seed)
    figures = []
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        scratch = args.scratch or Path(temporary)
        corpus = write_tiny_corpus(scratch / "corpus")
        for name in args.variants:
            started = time.perf_counter()
            equal, cuts = sweep(corpus, scratch / name.replace(" ", "-"), name, args, tally)
            figures.append(f"{name} {equal}/{cuts} ({time.perf_counter() - started:.0f} s)")
            sys.stderr.write(f"{figures[-1]}\n")
    back()
    return tally.conclude(f"stopped at and resumed bit for bit: {', '.join(figures)}")


def sweep(corpus: TinyCorpus, folder: Path, name: str, args: argparse.Namespace, tally: Tally) -> tuple[int, int]:
    """(places it was stopped at with an equal end, places it was stopped at)."""
    head, overrides = VARIANTS[name]
    steps_per_epoch = BATCHES_PER_EPOCH // (2 if "accum_grad=2" in overrides else 1)
    overrides = (*overrides, *tree_of(corpus, head), f"max_epoch={-(-args.steps // steps_per_epoch)}")
    whole = corpus.train(folder / "whole", *overrides)
    num_steps = step_of(list_checkpoints(whole / "checkpoints")[-1])
    tally.check(num_steps >= args.steps, f"{name}: {num_steps} steps instead of {args.steps}")
    expected, equal = ends_with(whole), 0
    cuts = range(1, num_steps + 1, args.every)
    for step in cuts:
        stopped = stopped_after(whole, folder / "stopped", step)
        resumed = ends_with(corpus.train(stopped, *overrides, f"save_interval={10**6}"))
        different = [fact for fact in expected if resumed[fact] != expected[fact]]
        equal += tally.check(not different, f"{name}: stopped after step {step}, different: {different}")
    shutil.rmtree(folder)
    return equal, len(cuts)


def tree_of(corpus: TinyCorpus, head: str) -> tuple[str, ...]:
    """The overrides that choose a head; its tree of classes is made where it is not there yet."""
    if head == "softmax":
        return ()
    tree = corpus.folder / ("tree.json" if head == "hsoftmax" else "classes.json")
    if not tree.exists():
        line = ["build", "--kind", "classes", "--num_classes", "3", "--units", corpus.folder / "units.txt"]
        made = call(tree_command, *line, "--data_list", corpus.train_data, "--out", tree)
        if made.code:
            raise RuntimeError(f"{tree}: cannot be made: {made.shown()}")
    return (f"head={head}", f"head_conf.tree={tree}")


def stopped_after(whole: Path, copy: Path, step: int) -> Path:
    """The folder of a finished training as one killed after its checkpoint `step` would have left it."""
    shutil.rmtree(copy, ignore_errors=True)
    finished = {path.name for path in list_checkpoints(whole / "checkpoints") if step_of(path) != step}
    finished |= {"finished.json", "final.pt"}
    return Path(shutil.copytree(whole, copy, ignore=lambda folder, names: finished & set(names)))


def ends_with(model_dir: Path) -> dict[str, object]:
    """The bits at the end, and the record of each training step (how often it validates may differ)."""
    records = [record for record in metrics(model_dir) if record["kind"] == "train"]
    return {**bits(model_dir), "records": records}


if __name__ == "__main__":
    sys.exit(main())
