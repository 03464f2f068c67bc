# SPDX-License-Identifier: Apache-2.0
"""Runs the stages of `wenet-hs own`: commands one after the other, trainings side by side.

Every command runs below a guard (`guarded_process.py`), so that none outlives this process, however
it ends.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from wenet_hs.base.jobs import tail
from wenet_hs.recipes import guarded_process
from wenet_hs.recipes.folder_options import FolderOptions, portable_values, write_folder_options
from wenet_hs.recipes.own import (
    PROGRAM,
    Command,
    KeptOptions,
    LoggedTraining,
    Stage,
    Step,
    Trainings,
    check_command,
    own_stages,
)
from wenet_hs.recipes.own_options import OwnOptions, option_texts
from wenet_hs.tree.errors import Stopped

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
POLL_S = 0.1
"""Seconds between two checks of which trainings have ended."""
TRAINING_FAILED = 2
"""The exit code if a training fails, whatever its own is."""
LINES_OF_LOG = 3
"""Lines of the log of a failed training that are shown."""
LINES_OF_TORCHRUN = 60
"""The same with torchrun, which prints a table after the error of a process."""


@dataclass(frozen=True, kw_only=True)
class Programs:
    """The programs that the commands call."""

    wenet_hs: tuple[str, ...]
    """The program `wenet-hs`, or a Python with the arguments that run its module."""
    python: str
    """The Python that runs torchrun."""


class StageFailed(Exception):
    """A command has failed. It has printed the cause, unless that is in `lines`."""

    def __init__(self, code: int, lines: Sequence[str] = ()) -> None:
        """
        Args:
            code: the exit code with which `wenet-hs own` ends.
            lines: the end of the log of a failed training.
        """
        super().__init__(code, lines)
        self.code = code
        self.lines = lines


class StopRequested(BaseException):
    """A signal asks this process to end.

    It is no Exception, so that no handler of errors catches it.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def find_programs() -> Programs:
    """The `wenet-hs` beside this Python, or its module if there is no such program.

    So the commands belong to this environment, also if it is not active.
    """
    script = Path(sys.executable).with_name("wenet-hs")
    if script.is_file():
        return Programs(wenet_hs=(str(script),), python=sys.executable)
    module = (sys.executable, "-m", "wenet_hs.bin.main")
    return Programs(wenet_hs=module, python=sys.executable)


def run_own(
    options: OwnOptions,
    programs: Programs,
    show: Callable[[str], None],
) -> None:
    """Check the options, and run the stages that they ask for.

    When it returns or raises, none of its commands runs any more. It handles SIGTERM, SIGINT and
    SIGHUP, and must therefore be called in the main thread. Of these, signals that are ignored stay
    ignored.

    Args:
        options: of `wenet-hs own`.
        programs: that the commands call.
        show: is called with a line for the user at the start of each stage.
    Raises: ConfigError if not exactly one form of recordings is given; StageFailed if a command
        fails, such as the check of the options; Stopped after one of these signals.
    """
    runner = _Runner(options, programs)
    try:
        with _handled_by(_request_stop):
            runner.run_command(check_command(options))
            for stage in own_stages(options):
                show(f"{time.strftime('%H:%M:%S')} stage {stage.number}: {stage.title}")
                runner.run_stage(stage)
    except StopRequested as request:
        name = signal.Signals(request.number).name
        to_do = "give the same command to go on"
        code = guarded_process.SIGNAL_BASE + request.number
        raise Stopped(PROGRAM, f"stopped by {name}", to_do, code) from None
    finally:
        runner.stop()


def _request_stop(number: int, frame: FrameType | None) -> None:
    """A handler of signals that raises StopRequested in the main thread."""
    raise StopRequested(number)


@contextmanager
def _handled_by(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let a function handle the stop signals as long as the block runs; then restore the handlers.

    A signal that this process ignores stays ignored.
    """
    handlers_before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    handled = [number for number in STOP_SIGNALS if handlers_before[number] is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, handlers_before[number])


@dataclass(frozen=True)
class _RunningTraining:
    process: "subprocess.Popen[bytes]"
    """The guard, whose exit code is that of the training."""
    log: Path


class _Runner:
    """Runs the steps of stages, and can stop all processes that it has started."""

    def __init__(self, options: OwnOptions, programs: Programs) -> None:
        self._options = options
        self._programs = programs
        self._trainings: list[_RunningTraining] = []
        self._progress: subprocess.Popen[bytes] | None = None
        """`wenet-hs progress`, the live line of the trainings; None: it does not run."""
        self._others: list[subprocess.Popen[bytes]] = []
        """The processes that are no trainings: the live line, and the command of a step."""
        self._pipe_reader, self._pipe_writer = os.pipe()
        """A pipe that tells the guards when this process has ended.

        The guards inherit its reading end. Only this process has the writing end, which the system
        closes when it ends.
        """
        os.set_inheritable(self._pipe_reader, True)

    def run_stage(self, stage: Stage) -> None:
        """Run the steps one after the other. Raises StageFailed if a command fails."""
        for step in stage.make_steps():
            self._run_step(step)
        self._end_progress()

    def _run_step(self, step: Step) -> None:
        if isinstance(step, Command):
            self.run_command(step)
        elif isinstance(step, Trainings):
            self._run_trainings(step)
        else:
            self._keep_options(step)

    def run_command(self, command: Command) -> None:
        """Run a command until it ends. Raises StageFailed for an exit code it does not accept."""
        output = subprocess.DEVNULL if command.is_quiet else None
        process = self._start(command, output=output)
        self._others.append(process)
        code = process.wait()
        self._others.remove(process)
        if code not in command.accepted_codes:
            raise StageFailed(code)

    def _keep_options(self, step: KeptOptions) -> None:
        """Write some options of the recipe into the folder that was made with them."""
        texts = option_texts(self._options)
        values = {name: texts[name] for name in step.names}
        kept = FolderOptions(recipe="own", values=portable_values(values, step.folder))
        write_folder_options(step.folder, kept)

    # ---- trainings

    @property
    def _num_at_a_time(self) -> int:
        """How many trainings run at the same time: --jobs, but one if it has several processes."""
        return self._options.jobs if self._options.nproc == 1 else 1

    def _run_trainings(self, step: Trainings) -> None:
        """Run trainings side by side until all have ended, with a live line about them.

        Raises StageFailed as soon as one has failed; the others still run then.
        """
        for training in step.trainings:
            self._wait_until_fewer_run_than(self._num_at_a_time)
            self._start_training(training)
            self._show_progress(step.model_dirs)
        self._wait_until_fewer_run_than(1)  # until all have ended

    def _start_training(self, training: LoggedTraining) -> None:
        """Start a training that writes to its log.

        The log of an earlier run is kept as NAME.log.old.
        """
        log = training.log
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.is_file():
            log.replace(log.with_name(f"{log.name}.old"))
        threads = {"OMP_NUM_THREADS": str(self._options.threads)}
        with log.open("wb") as output:
            process = self._start(
                training.command,
                output=output,
                error=subprocess.STDOUT,
                environment=threads,
            )
        self._trainings.append(_RunningTraining(process, log))

    def _wait_until_fewer_run_than(self, number: int) -> None:
        """Wait until fewer than `number` trainings run.

        Raises StageFailed with the end of its log for a training that has failed.
        """
        while True:
            for training in [*self._trainings]:
                has_ended = training.process.poll() is not None
                if has_ended:
                    self._end_training(training)
            if len(self._trainings) < number:
                return
            time.sleep(POLL_S)

    def _end_training(self, training: _RunningTraining) -> None:
        """Forget a training that has ended. Raises StageFailed if it has failed."""
        self._trainings.remove(training)
        if training.process.returncode == 0:
            return
        num_lines = LINES_OF_LOG if self._options.nproc == 1 else LINES_OF_TORCHRUN
        lines = [f"==> {training.log} <==", *tail(training.log, num_lines)]
        raise StageFailed(TRAINING_FAILED, lines)

    def _show_progress(self, model_dirs: Sequence[Path]) -> None:
        """Start the live line of all trainings of the stage, if it does not run yet."""
        if self._progress is not None:
            return
        command = Command(
            words=("progress", *map(str, model_dirs)),
            flags={"--jobs": self._num_at_a_time},
        )
        self._progress = self._start(command)
        self._others.append(self._progress)

    def _end_progress(self) -> None:
        """End the live line, if it runs, and wait until it has printed the last warnings."""
        if self._progress is None:
            return
        self._progress.terminate()
        self._progress.wait()
        self._others.remove(self._progress)
        self._progress = None

    # ---- processes

    def _start(
        self,
        command: Command,
        *,
        output: int | IO[bytes] | None = None,
        error: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> "subprocess.Popen[bytes]":
        """Start a command below a guard, and return the guard.

        The guard ends the command if this process ends without doing so.

        Args:
            command: the call of `wenet-hs`.
            output: where its standard output goes; None: where that of this process goes.
            error: likewise for its standard error.
            environment: variables beside those of this process.
        """
        # -I and -S: it starts faster without the variables and packages of the user.
        guard = [sys.executable, "-IS", guarded_process.__file__, str(self._pipe_reader)]
        # No command imports a module from the folder in which the user works.
        variables = {**os.environ, "PYTHONSAFEPATH": "1", **(environment or {})}
        return subprocess.Popen(
            [*guard, *self._command_line(command)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=error,
            close_fds=False,  # commands inherit what this process inherited, such as a job's lock
            env=variables,
        )

    def _command_line(self, command: Command) -> list[str]:
        """The whole command; with torchrun if several processes share its work."""
        nproc = self._options.nproc
        if not command.is_shared or nproc == 1:
            return [*self._programs.wenet_hs, *command.arguments]
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(nproc)]
        main = ["-m", "wenet_hs.bin.main"]
        return [self._programs.python, *torchrun, *main, *command.arguments]

    def stop(self) -> None:
        """Ask all processes to save their work and end, and wait for them.

        A further stop signal asks them again, after which a training ends at once. It does not
        interrupt the waiting.
        """
        processes = [training.process for training in self._trainings]
        processes += self._others

        def terminate_all() -> None:
            for process in processes:
                process.terminate()  # has no effect on one that has ended

        terminate_all()
        with _handled_by(lambda number, frame: terminate_all()):
            for process in processes:
                process.wait()
        self._trainings.clear()
        self._others.clear()
        for descriptor in (self._pipe_reader, self._pipe_writer):
            os.close(descriptor)
