# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs app`: it listens on this computer only, and mistakes get one line."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from command_line import Capsys, error_line, run_line

from wenet_hs.bin import app


def test_it_listens_on_this_computer_only_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "wenet_hs.bin.main", "app", "--dir", str(tmp_path / "new"), "--port", "0"]
    environment = {**os.environ, "HOME": "/nowhere"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None and server.stdout.readline().startswith("open this address in a browser")
            address = server.stdout.readline().strip()
            page, _, token = address.partition("?token=")
            assert page.startswith("http://127.0.0.1:") and len(token) >= 32
            with pytest.raises(OSError), socket.create_connection(("127.0.0.2", int(page[17:-1])), timeout=5):
                pass
            for wrong in (page, address[:-1]):
                with pytest.raises(HTTPError, match="403") as refused:
                    urlopen(wrong)
                refused.value.close()
            server.send_signal(signal.SIGINT)
            assert server.wait(30) in (0, 130)
        finally:
            server.kill()
    assert (tmp_path / "new").is_dir()


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    assert error_line(run_line(app, "--port 70000"), capsys) == "--port 70000: must be from 0 to 65535"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = error_line(run_line(app, f"--dir {tmp_path} --port {port}"), capsys)
    assert found == f"--port {port}: cannot be used (Address already in use); give another one"
    monkeypatch.delitem(sys.modules, "wenet_hs.app.server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    found = error_line(run_line(app, f"--dir {tmp_path}"), capsys)
    assert found == "wenet-hs app: uvicorn is not installed; run pip install '.[app]' in the folder of wenet_hs"
