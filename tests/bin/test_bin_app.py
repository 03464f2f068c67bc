# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs app`: it listens on this computer only, and mistakes get one line."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import webbrowser
from configparser import RawConfigParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from command_line import Capsys, error_line, run_line

from wenet_hs.bin import app
from wenet_hs.tree.errors import DataError


@pytest.mark.slow
def test_it_listens_on_this_computer_only_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "wenet_hs.bin.main",
        "app",
        "--dir",
        str(tmp_path / "new"),
        "--port",
        "0",
    ]
    environment = {**os.environ, "HOME": "/nowhere"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None and server.stdout.readline().startswith(
                "open this address in a browser"
            )
            address = server.stdout.readline().strip()
            page, _, token = address.partition("?token=")
            assert page.startswith("http://127.0.0.1:") and len(token) >= 32
            with (
                pytest.raises(OSError),
                socket.create_connection(("127.0.0.2", int(page[17:-1])), timeout=5),
            ):
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
    assert (
        error_line(run_line(app, "--port 70000"), capsys) == "--port 70000: must be from 0 to 65535"
    )
    (tmp_path / "file").touch()
    found = error_line(run_line(app, f"--dir {tmp_path / 'file'}"), capsys)
    assert found == f"--dir {tmp_path / 'file'}: not a folder; name another one"
    program = Path(app.__file__).parents[2]
    found = error_line(run_line(app, f"--dir {program}"), capsys)
    assert (
        found
        == f"--dir {program}: the folder of the program, which an update replaces; name another one"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = error_line(run_line(app, f"--dir {tmp_path} --port {port}"), capsys)
    assert found == f"--port {port}: cannot be used (Address already in use); give another one"
    monkeypatch.delitem(sys.modules, "wenet_hs.app.server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    found = error_line(run_line(app, f"--dir {tmp_path}"), capsys)
    assert found == "wenet-hs app: uvicorn is not installed; run pip install 'wenet_hs[app]'"


@pytest.mark.slow
def test_it_opens_the_browser_and_a_second_start_opens_the_page_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    command = [
        sys.executable,
        "-m",
        "wenet_hs.bin.main",
        "app",
        "--dir",
        str(tmp_path / "p"),
        "--open",
    ]
    environment = {**os.environ, "BROWSER": "echo opened %s", "HOME": str(tmp_path)}
    opened = list[str]()
    monkeypatch.setattr(webbrowser, "open", opened.append)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
        [*command, "--port", str(port)], stdout=subprocess.PIPE, text=True, env=environment
    ) as server:
        try:
            assert server.stdout is not None
            lines = [server.stdout.readline().strip() for _ in range(3)]
            page = tmp_path / "p/wenet_hs-open.html"  # the arguments of programs are not secret
            assert lines[2] == f"opened {page.as_uri()}" and page.stat().st_mode & 0o777 == 0o600
            assert f'content="0;url={lines[1]}"' in page.read_text("utf-8")
            address = tmp_path / "p/.wenet_hs-address"
            assert (
                address.read_text("utf-8") == lines[1] and address.stat().st_mode & 0o777 == 0o600
            )
            assert run_line(app, f"--dir {tmp_path / 'p'} --port {port} --open") == 0
            assert (
                opened == [page.as_uri()]
                and capsys.readouterr().out == f"the page is open already: {lines[1]}\n"
            )
            assert "cannot be used" in error_line(
                run_line(app, f"--dir {tmp_path / 'p'} --port {port}"), capsys
            )
            assert "cannot be used" in error_line(
                run_line(app, f"--dir {tmp_path} --port {port} --open"), capsys
            )
        finally:
            server.kill()
    assert app.find_running(tmp_path / "p", port) == "", "it does not run"


def test_the_address_of_an_earlier_server_is_not_opened_if_another_program_has_the_port(
    tmp_path: Path,
) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        (tmp_path / ".wenet_hs-address").write_text(
            f"http://127.0.0.1:{other.server_port}/?token=abc\n", "utf-8"
        )
        assert app.find_running(tmp_path, other.server_port) == ""
        thread.join()
    (tmp_path / ".wenet_hs-address").write_text("http://other.example:1/?token=abc", "utf-8")
    assert app.find_running(tmp_path, 1) == ""


def words_of(entry: str) -> list[str]:
    """The words of a key Exec; after its own escapes the quoting is that of a shell."""
    line = entry.replace("\\\\", "\\").replace("%%", "%")
    done = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("desktop", ["Desktop", "Schreibtisch", None])
def test_icons_on_linux(
    desktop: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    home, folder = tmp_path / "home", tmp_path / 'my $HOME "100 %" \\ `x`'
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(sys, "platform", "linux")
    if desktop:
        (home / desktop).mkdir(parents=True)
    if desktop == "Schreibtisch":
        (home / ".config").mkdir()
        (home / ".config/user-dirs.dirs").write_text(
            '# made\nXDG_DESKTOP_DIR="$HOME/Schreibtisch"\n', "utf-8"
        )
    assert run_line(app, f"--install-shortcut --dir {shlex.quote(str(folder))} --port 9000") == 0
    paths = [home / ".local/share/applications/wenet_hs.desktop"]
    paths += [home / desktop / "wenet_hs.desktop"] if desktop else []
    assert [line.partition(": written")[0] for line in capsys.readouterr().out.splitlines()] == [
        *map(str, paths)
    ]
    for path in paths:
        parser = RawConfigParser()
        parser.read(path, "utf-8")
        entry = parser["Desktop Entry"]
        program = str(Path(sys.executable).with_name("wenet-hs"))
        assert words_of(entry["Exec"]) == [
            program,
            "app",
            f"--dir={folder}",
            "--port=9000",
            "--open",
        ]
        assert (
            Path(entry["Icon"]).is_file()
            and entry["Type"] == "Application"
            and os.access(path, os.X_OK)
        )
    assert not folder.exists()


def test_icon_on_macos_and_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    program = tmp_path / "my programs/wenet-hs"
    with pytest.raises(
        DataError, match=r"wenet-hs: no such program; install wenet_hs with pip first"
    ):
        app.install_shortcut([str(program)], tmp_path)
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    program.chmod(0o755)
    (path,) = app.install_shortcut([str(program), "app", "--dir=a 'b'"], tmp_path)
    assert path == tmp_path / "Desktop/wenet_hs.command"
    assert (
        subprocess.run([path], capture_output=True, text=True, check=True).stdout
        == "app\n--dir=a 'b'\n"
    )
    with pytest.raises(DataError, match="has a control character; choose another folder"):
        app.quote_exec("a\nExec=evil")


def test_windows_is_told_about_wsl_in_one_line() -> None:
    code = "import sys; sys.platform = 'win32'; import wenet_hs.bin.main"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    found = "wenet-hs: runs on Linux and macOS, not in Windows itself; install it in WSL (docs/app.md)\n"
    assert (done.returncode, done.stderr) == (1, found)
