# SPDX-License-Identifier: Apache-2.0
"""Run every script of this folder, one after the other, and write one dated note of what they found.

Each line is a promise of docs/training.md with the command that tests it, the figures that it printed, its seconds and
its exit code. It takes some 20 minutes on two quiet cores; --quick is a minute and a half with small sizes. The exit
code is 1 if any script found a violation. --only runs some again and keeps the note's other rows.

Example: OMP_NUM_THREADS=1 python tests/faults/run_all.py --out benchmarks/notes/faults
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from paired import conditions, markdown_table, publish

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]


@dataclass(frozen=True)
class Script:
    """A script, the promise it tests, and how it is run."""

    file: str
    promise: str
    full: str
    quick: str


@dataclass(frozen=True)
class Result:
    """What a script had to say."""

    promise: str
    command: str
    figure: str
    seconds: float
    exit_code: int
    commit: str


SCRIPTS = (
    Script(
        "save_kills.py",
        "Killed at any instant of a save, the newest checkpoint loads and none that was reported is lost",
        "--kills 1000",
        "--kills 20 --bytes 20000 --scenarios 'save and rotate'",
    ),
    Script(
        "resume_sweep.py",
        "A resumed run ends with the same bits as an unbroken one (CPU, same torch, same threads)",
        "--steps 60",
        "--steps 8 --every 4 --variants softmax hsoftmax",
    ),
    Script(
        "kill_training.py",
        "Real trainings killed at random and started again end with the same bits",
        "--kills 50",
        "--kills 2",
    ),
    Script(
        "damaged_checkpoints.py",
        "A damaged checkpoint is never loaded: what is wrong is named and the one before is used",
        "--flips 1000 --cuts 300",
        "--flips 50 --cuts 20 --trainings 2",
    ),
    Script(
        "full_disk.py",
        "A full disk costs no finished checkpoint, and the message says disk",
        "--limits 200",
        "--limits 10 --trainings 1 --disks 3",
    ),
    Script(
        "hostile_files.py",
        "Loading a model, a config or an array never runs code",
        "--pickles 100 --yamls 50 --arrays 20",
        "--pickles 12 --yamls 8 --arrays 8",
    ),
    Script(
        "mutate_tables.py",
        "Every row of a table is used or rejected with a reason",
        "--tables 2000",
        "--tables 20",
    ),
    Script(
        "mutate_clips.py",
        "Every clip is used or quarantined with a reason",
        "--clips 2000",
        "--clips 40",
    ),
    Script(
        "kill_ranks.py",
        "Kill a rank: torchrun starts again and the result is the same bits",
        "--runs 25 --kills 2",
        "--runs 1 --kills 1",
    ),
    Script(
        "kill_recognition.py",
        "A killed recognition goes on with what is left, and its results are the same bytes",
        "--kills 50",
        "--kills 1",
    ),
    Script(
        "signal_training.py",
        "A signal ends a training after its step, with a checkpoint of that step",
        "--signals 50",
        "--signals 2",
    ),
    Script(
        "mistakes.py",
        "Files that do not belong together are refused before step 1; no mistake of a user ends in a traceback",
        "--mismatches 200 --mistakes 500",
        "--mismatches 20 --mistakes 40",
    ),
    Script(
        "scored_sets.py",
        "A score is never printed over a different set of utterances than asked for",
        "--mutations 200 --pairs 5000",
        "--mutations 20 --pairs 100",
    ),
)

NOT_COVERED = (
    "power loss, and disks that lie about fsync: SIGKILL leaves the kernel's buffers alone",
    "network file systems, whose renames may be seen late",
    "equal bits on a GPU, and between releases of torch, processors or numbers of threads",
    "several machines: the ranks of these runs share one",
    "kills in the middle of a prepare or a cmvn: their outputs are written whole, untested here",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run them all. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write OUT.md and OUT.json (default: print only)")
    parser.add_argument("--only", nargs="+", metavar="SCRIPT", choices=[script.file for script in SCRIPTS])
    parser.add_argument("--quick", action="store_true", help="small sizes: do the scripts work at all?")
    args = parser.parse_args(argv)
    chosen = [script for script in SCRIPTS if args.only is None or script.file in args.only]
    out = None if args.out is None else args.out.with_suffix("")
    results = {} if args.only is None else earlier_results(out)
    for script in chosen:
        results[script.promise] = run(script, script.quick if args.quick else script.full)
        if out is not None:
            write_note(results, out, quick=args.quick)  # after each one: what was found outlives a run that is cut off
    write_note(results, out, quick=args.quick)
    return 1 if any(result.exit_code for result in results.values()) else 0


def earlier_results(out: Path | None) -> dict[str, Result]:
    """Those of the note that --only adds to, by promise."""
    path = None if out is None else out.with_suffix(".json")
    if path is None or not path.exists():
        return {}
    return {row["promise"]: Result(**row) for row in json.loads(path.read_text("utf-8"))["results"]}


def write_note(results: Mapping[str, Result], out: Path | None, *, quick: bool) -> None:
    """Print the results in the order of SCRIPTS, and write them as OUT.md and OUT.json where asked."""
    found = [results[script.promise] for script in SCRIPTS if script.promise in results]
    failed = [result.command for result in found if result.exit_code]
    rows = [[r.promise, f"`{r.command}`", r.figure, f"{r.seconds:.0f}", str(r.exit_code), r.commit] for r in found]
    total = sum(result.seconds for result in found)
    verdict = f"violations in: {', '.join(failed)}" if failed else "no violation"
    text = f"{len(found)} scripts, {total:.0f} s, {verdict}.{' Small sizes (--quick).' if quick else ''}\n\n"
    text += markdown_table(("promise", "command", "figures", "s", "exit code", "commit"), rows)
    text += "\n\nNot covered:\n\n" + "\n".join(f"- {gap}" for gap in NOT_COVERED)
    facts = {"results": [asdict(result) for result in found], "not_covered": NOT_COVERED}
    publish("Faults", text, facts, device="cpu", out=out)


def run(script: Script, arguments: str) -> Result:
    """Run one; what it prints is passed on, and its last line is the figure."""
    command = f"python tests/faults/{script.file} {arguments}"
    sys.stderr.write(f"$ {command}\n")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    line = [sys.executable, str(FOLDER / script.file), *shlex.split(arguments)]
    started = time.perf_counter()
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as process:
        assert process.stdout is not None
        printed = []
        for text in process.stdout:
            sys.stderr.write(text)
            printed.append(text.strip())
    seconds = time.perf_counter() - started
    figure = next((text for text in reversed(printed) if text), "nothing was printed").replace("|", "·")
    commit = str(conditions("cpu")["git"])
    return Result(script.promise, command, figure, seconds, process.returncode, commit)


if __name__ == "__main__":
    sys.exit(main())
