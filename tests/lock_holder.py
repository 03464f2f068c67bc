# SPDX-License-Identifier: Apache-2.0
"""Another process that locks a folder."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOLD_THE_LOCK = """
import fcntl, os, sys, time
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX)
file.write("process 17 on elsewhere\\n")
file.flush()
child = os.fork()
if child == 0:
    time.sleep(60)
print(child, flush=True)
time.sleep(60)
"""
"""A process that locks a folder, with a worker process that continues after it."""


@contextmanager
def holder(model_dir: Path) -> Iterator[subprocess.Popen[str]]:
    model_dir.mkdir(exist_ok=True)
    command = [sys.executable, "-c", HOLD_THE_LOCK, str(model_dir / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        try:
            yield process
        finally:
            process.kill()
            os.kill(worker, signal.SIGKILL)
