# SPDX-License-Identifier: Apache-2.0
"""The `wenet-hs` of the other tests, whose commands run in forks of a server."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
from forked_commands import forked_commands


@pytest.mark.recipe
def test_a_command_ends_with_its_caller(tmp_path: Path) -> None:
    """Also if it was only asked to: what it writes to has an end, and its exit code arrives."""
    with forked_commands(tmp_path) as folder:
        # A server of the page runs until it is stopped.
        command = [folder / "wenet-hs", "app", "--dir", str(tmp_path / "projects"), "--port", "0"]
        for number, code in ((signal.SIGTERM, None), (signal.SIGKILL, -signal.SIGKILL)):
            begin = time.monotonic()
            with subprocess.Popen(command, stdout=subprocess.PIPE) as caller:
                time.sleep(0.5)
                assert caller.poll() is None
                caller.send_signal(number)
                caller.communicate(timeout=20)  # until the command has closed its output
            assert time.monotonic() - begin < 20
            assert code is None or caller.returncode == code
