# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of a case in its own folder, and records what they print and write."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from commands import CommandResult, run_command
from differences import SET_SUFFIX
from file_texts import text_of_file
from normalisation import is_ignored_file, normalise

PRINTED = "printed.txt"
"""File of a step with its command line, exit code, output and list of files."""


@dataclass(frozen=True)
class FileState:
    """What changes when a file is written again."""

    modified_ns: int
    size: int
    inode: int


class CaseRecorder:
    """A case: `folder` has its inputs and what its commands write, `record` what is compared."""

    def __init__(self, name: str, folder: Path, record: Path) -> None:
        self.name = name
        self.folder = folder
        self.record = record
        self.steps: set[str] = set()

    def make(self, line: str) -> None:
        """Run `wenet-hs LINE` to prepare the next steps, without recording it.

        Raises RuntimeError if it fails: then the case has nothing to record.
        """
        result = self._run_command(line, b"")
        if result.exit_code != 0:
            raise RuntimeError(f"case {self.name}: wenet-hs {line}: {result.stderr}")

    def run(self, step: str, line: str, *, expected: int = 0, stdin: bytes = b"") -> None:
        """Run `wenet-hs LINE` in the folder of the case, and record it as STEP.

        The record gets `STEP/printed.txt`, and below `STEP/files` each file that the command wrote.
        An exit code other than `expected` is printed: the step probably does not test what it
        should. It is no error, because the record has it.
        """
        before = self._file_states()
        result = self._run_command(line, stdin)
        after = self._file_states()
        if result.exit_code != expected:
            self._warn(step, line, result, expected)
        written = [path for path in sorted(after) if before.get(path) != after[path]]
        removed = [path for path in sorted(before) if path not in after]
        self.write(f"{step}/{PRINTED}", _text_of_step(line, result, written, removed))
        for path in written:
            self.write(f"{step}/files/{path}", text_of_file(self.folder / path))
        self.steps.add(step)

    def write(self, name: str, text: str) -> None:
        """Write a text into the record, without what differs between two runs of the same code.

        The lines of a set are sorted, each once.
        """
        path = self.record / name
        if path.exists():
            fault = f"case {self.name}: {name} is recorded twice"
            raise ValueError(f"{fault}; give the step another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        normal = normalise(name, text, self.folder)
        if name.endswith(SET_SUFFIX):
            normal = "".join(f"{line}\n" for line in sorted(set(normal.splitlines())))
        path.write_text(normal, "utf-8")

    def _run_command(self, line: str, stdin: bytes) -> CommandResult:
        printed = self.folder.parent / f"{self.folder.name}-printed"
        return run_command(shlex.split(line), self.folder, printed, stdin)

    def _file_states(self) -> dict[str, FileState]:
        """The files in the folder of the case, except those that are never compared."""
        states = {}
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder).as_posix()
            if path.is_file() and not is_ignored_file(name):
                status = path.stat()
                states[name] = FileState(status.st_mtime_ns, status.st_size, status.st_ino)
        return states

    def _warn(self, step: str, line: str, result: CommandResult, expected: int) -> None:
        last_line = (result.stderr.strip().splitlines() or [""])[-1]
        codes = f"exit code {result.exit_code}, expected {expected}"
        where = f"case {self.name}, step {step}"
        print(f"{where}: {codes}: {last_line} (wenet-hs {line})", file=sys.stderr)


def _text_of_step(line: str, result: CommandResult, written: list[str], removed: list[str]) -> str:
    parts = [f"$ wenet-hs {line}", f"exit code {result.exit_code}", "==== stdout", result.stdout]
    parts += ["==== stderr", result.stderr, "==== files"]
    parts += [f"written: {path}" for path in written]
    parts += [f"removed: {path}" for path in removed]
    return "\n".join(parts) + "\n"
