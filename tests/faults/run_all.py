# SPDX-License-Identifier: Apache-2.0
"""Test the promises of docs/training-reference.md with faults, and write one dated note of the
figures.

Example: python tests/faults/run_all.py --out benchmarks/notes/faults
         python tests/faults/run_all.py kill_training --trials 10

All faults take about 45 minutes on two idle cores, with --quick about two minutes. With names, only
these are tested; the other rows of an existing note are kept. The exit code is 1 if any promise is
violated.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.extend(str(Path(__file__).parents[2] / name) for name in ("tests/faults", "benchmarks"))

import checkpoints
import corpora
import hostile
import processes
import torch
import user_errors
from harness import Tally, run_child
from paired import conditions, publish

from wenet_hs.score.tables import markdown_table

Row = dict[str, Any]
"""A row of the note: column → value."""


class Fault(NamedTuple):
    """A fault; its promise is the first line of the function's docstring."""

    test: Callable[..., str]
    """(folder, tally, trials, …) → figures."""
    trials: int
    quick: int
    quick_options: Mapping[str, object]

    @property
    def promise(self) -> str:
        return (self.test.__doc__ or "").splitlines()[0].rstrip(".")


FAULTS = {
    fault.test.__name__: fault
    for fault in (
        Fault(checkpoints.save_kills, 1000, 20, {"size": 20_000, "scenarios": 1}),
        Fault(processes.kill_training, 50, 1, {}),
        Fault(checkpoints.full_disk, 60, 4, {"disks": 3}),
        Fault(hostile.hostile_files, 100, 8, {"yamls": 8, "arrays": 8}),
        Fault(corpora.mutate_clips, 2000, 40, {}),
        Fault(processes.kill_ranks, 25, 1, {"kills": 1, "epochs": 5}),
        Fault(processes.kill_recognition, 50, 1, {"batches": 12}),
        Fault(processes.signal_training, 50, 2, {"epochs": 6}),
        Fault(user_errors.user_mistakes, 500, 40, {}),
    )
}

NOT_COVERED = (
    "power loss, and disks that ignore fsync: SIGKILL does not touch the kernel's buffers",
    "network file systems, whose renames may be seen late",
    "equal bits on a GPU, and between releases of torch, processors or numbers of threads",
    "several machines: the ranks of these runs share one",
    "kills in the middle of a prepare or a cmvn: their outputs are written whole, untested here",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Test the chosen faults. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "faults", nargs="*", metavar="FAULT", help=f"default: all of {' '.join(FAULTS)}"
    )
    parser.add_argument("--trials", type=int, help="number of trials (default: as in the note)")
    parser.add_argument(
        "--quick", action="store_true", help="few trials: do the tests work at all?"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of everything random (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="write OUT.md and OUT.json (default: print only)")
    args = parser.parse_args(argv)
    if unknown := set(args.faults) - set(FAULTS):
        parser.error(f"no such fault: {' '.join(unknown)}; choose from {' '.join(FAULTS)}")
    out = None if args.out is None else args.out.with_suffix("")
    results: dict[str, Row] = {}
    if args.faults and out is not None and out.with_suffix(".json").exists():
        results = {
            row["promise"]: row
            for row in json.loads(out.with_suffix(".json").read_text("utf-8"))["results"]
        }
    for name in args.faults or FAULTS:
        results[FAULTS[name].promise] = run(
            name, trials=args.trials, quick=args.quick, seed=args.seed
        )
        if out is not None:
            write_note(
                results, out, quick=args.quick
            )  # after each one: an interrupted run keeps its results
    write_note(results, out, quick=args.quick)
    return 1 if any(row["exit_code"] for row in results.values()) else 0


def run(name: str, *, trials: int | None, quick: bool, seed: int) -> Row:
    """Test one fault in a process of its own, and print its figures."""
    fault = FAULTS[name]
    options = [*(["--trials", str(trials)] if trials else []), *(["--quick"] if quick else [])]
    options += ["--seed", str(seed)] if seed != 1 else []
    command = " ".join(["python tests/faults/run_all.py", name, *options])

    def test() -> tuple[str, list[str]]:
        os.fsync = lambda descriptor: None  # faster; no power loss is tested
        tally, number = Tally(seed), trials or (fault.quick if quick else fault.trials)
        figure = fault.test(Path(folder), tally, number, **(fault.quick_options if quick else {}))
        return figure, tally.violations

    sys.stderr.write(f"$ {command}\n")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found, code = run_child(test)
    seconds = round(time.perf_counter() - started)
    figure, violations = found or ("no figures", [f"the test itself ended with exit code {code}"])
    for violation in violations[:10]:
        sys.stderr.write(f"violation: {violation}\n")
    verdict = f"{len(violations)} violations" if violations else "no violation"
    figure = f"seed {seed} | {figure} | {seconds} s | {verdict}"
    sys.stderr.write(figure + "\n")
    commit, figure = str(conditions("cpu")["git"]), figure.replace(" | ", " · ")
    return {
        **{"promise": fault.promise, "command": command, "figure": figure},
        **{"seconds": seconds, "exit_code": 1 if violations else 0, "commit": commit},
    }


def write_note(results: Mapping[str, Row], out: Path | None, *, quick: bool) -> None:
    """Print the results in the order of FAULTS, and write them as OUT.md and OUT.json if given."""
    found = [results[fault.promise] for fault in FAULTS.values() if fault.promise in results]
    failed = [row["command"] for row in found if row["exit_code"]]
    rows = [
        [str(cell) for cell in {**row, "command": f"`{row['command']}`"}.values()] for row in found
    ]
    total = sum(row["seconds"] for row in found)
    verdict = f"violations in: {', '.join(failed)}" if failed else "no violation"
    text = (
        f"{len(found)} faults, {total} s, {verdict}.{' Few trials (--quick).' if quick else ''}\n\n"
    )
    text += markdown_table(("promise", "command", "figures", "s", "exit code", "commit"), rows)
    text += "\n\nNot covered:\n\n" + "\n".join(f"- {gap}" for gap in NOT_COVERED)
    publish("Faults", text, {"results": found, "not_covered": NOT_COVERED}, device="cpu", out=out)


if __name__ == "__main__":
    torch.set_num_threads(1)  # small models; threads also forbid forks
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a background job of a shell ignores it
    sys.exit(main())
