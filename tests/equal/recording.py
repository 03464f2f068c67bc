# SPDX-License-Identifier: Apache-2.0
"""Runs the cases, several at a time, each in a process and a folder of its own."""

import os
import shutil
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import wenet_program
from case_list import CASES, ERRORS
from case_recorder import CaseRecorder
from records import current_header, write_header
from scratch import scratch_folder


def record_cases(out: Path, names: Sequence[str], num_jobs: int) -> None:
    """Run these cases and write their record into the new folder `out`."""
    if out.exists():
        raise SystemExit(f"{out}: exists; name a new folder")
    out.mkdir(parents=True)
    print(f"wenet_hs of {wenet_program.root()}", flush=True)
    wenet_program.internals().load_commands()
    with scratch_folder() as scratch:
        _run_processes(names, out.resolve(), scratch, num_jobs)
    write_header(out, current_header(names))


def choose_cases(only: Sequence[str], skip: Sequence[str]) -> list[str]:
    """The cases `only`, or all, without those to `skip`, in the order of the list.

    Raises SystemExit for a name that is no case.
    """
    unknown = [name for name in (*only, *skip) if name not in CASES]
    if unknown:
        raise SystemExit(f"no case {', '.join(unknown)}; there are: {' '.join(CASES)}")
    wanted = only or list(CASES)
    return [name for name in CASES if name in wanted and name not in skip]


def _run_processes(names: Sequence[str], out: Path, scratch: Path, num_jobs: int) -> None:
    """Raises SystemExit if a case has failed; the others are run to their end."""
    waiting = list(names)
    running: dict[int, str] = {}
    failed = []
    while waiting or running:
        while waiting and _may_start(waiting[0], len(running), num_jobs):
            name = waiting.pop(0)
            running[_start_case(name, out / name, scratch / name)] = name
        process, status = os.wait()
        name = running.pop(process)
        if status != 0:
            failed.append(name)
    if failed:
        raise SystemExit(f"these cases ended with an exception: {', '.join(failed)}")


def _may_start(name: str, num_running: int, num_jobs: int) -> bool:
    """Whether the next case may begin beside those that run."""
    if name == ERRORS:
        return num_running == 0
    return num_running < num_jobs


def _start_case(name: str, record: Path, folder: Path) -> int:
    """Fork a process that runs the case. Returns its process id."""
    sys.stdout.flush()
    process = os.fork()
    if process != 0:
        return process
    start = time.monotonic()
    exit_code = 1
    try:
        folder.mkdir()
        record.mkdir()
        CASES[name](CaseRecorder(name, folder, record))
        shutil.rmtree(folder)
        exit_code = 0
        seconds = time.monotonic() - start
        times = os.times()
        cpu_seconds = times.user + times.system + times.children_user + times.children_system
        print(f"{name}: {seconds:.1f} s, CPU {cpu_seconds:.1f} s", flush=True)
    except BaseException:
        traceback.print_exc()
    os._exit(exit_code)
