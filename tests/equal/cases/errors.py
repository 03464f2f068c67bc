# SPDX-License-Identifier: Apache-2.0
"""Every error line of the tests' wrong inputs: the test suite with the plugin `error_lines`."""

import os
import subprocess
import sys
from pathlib import Path

import wenet_program
from case_recorder import CaseRecorder
from error_lines import FILE
from process_environment import ORIGINAL

HERE = Path(__file__).resolve().parents[1]
CHECKOUT = "CHECKOUT"
"""Stands for the folder of the checkout."""


def record_error_lines(case: CaseRecorder) -> None:
    """Run the tests of the checkout whose wenet_hs is recorded.

    The record has the set of lines: a test may move to another file without a difference.
    `suite.txt` has the exit code of pytest, because a test that fails early may hide lines. Tests
    that fail are run once more, because on a busy machine some that wait for other processes fail.
    """
    root = wenet_program.root()
    lines = case.folder / "lines.txt"
    lines.touch()
    exit_code = _run_tests(case, lines, "t", "-n", "2")
    if exit_code != 0:
        exit_code = _run_tests(case, lines, "t2", "-n", "0", "--last-failed")
    case.write("suite.txt", f"exit code {exit_code}\n")
    text = lines.read_text("utf-8").replace(str(root), CHECKOUT)
    case.write("lines.set.txt", text)


def _run_tests(case: CaseRecorder, lines: Path, basetemp: str, *flags: str) -> int:
    """Run pytest with the plugin; its exit code. The end of its output is printed if it fails."""
    root = wenet_program.root()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "error_lines", "--hypothesis-seed=0"]
    command += ["--basetemp", str(case.folder / basetemp), *flags]
    command += ["-o", f"cache_dir={case.folder / 'cache'}"]
    environment = {
        **ORIGINAL,
        "PYTHONPATH": os.pathsep.join([str(root), str(HERE)]),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(case.folder / "hypothesis"),
        FILE: str(lines),
    }
    done = subprocess.run(
        command,
        cwd=root,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        print(done.stdout[-3000:], file=sys.stderr)
    return done.returncode
