# SPDX-License-Identifier: Apache-2.0
"""Open a page on this computer for all steps from recordings to transcripts, without a shell.

Example: wenet-hs app --dir projects

It prints an address, which only works on this computer: open it in a browser. A project is a folder
below --dir with the layout of examples/own/s0, so shell commands work in it too. Trainings go on
when the page or this command is ended.
"""

import argparse
import os
import re
import shlex
import sys
import threading
import webbrowser
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from wenet_hs.bin.main import main_of
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError, DataError

_PORT = 8642
_ADDRESS = ".wenet_hs-address"
"""File in --dir with the address of the server that runs, which only its user can read."""
_OPENED = "wenet_hs-open.html"
"""File in --dir that sends the browser to this address, which only its user can read; not hidden,
or snaps cannot.
"""
_OPENED_HTML = (
    '<!DOCTYPE html><title>wenet_hs</title><meta http-equiv="refresh" content="0;url={address}">\n'
)
_ENTRY = """[Desktop Entry]
Type=Application
Name=wenet_hs
Comment=From recordings to a speech recogniser
Exec={command}
Icon={icon}
Terminal=true
Categories=AudioVideo;Education;
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    folder = Path("~/wenet_hs_projects")
    parser.add_argument(
        "--dir", type=Path, default=folder, help=f"folder of the projects (default: {folder})"
    )
    port_help = f"port of the address on this computer (default: {_PORT}; 0: any free one)"
    parser.add_argument("--port", type=int, default=_PORT, help=port_help)
    parser.add_argument(
        "--open",
        action="store_true",
        help="also open the page in the browser, if it runs already too",
    )
    shortcut_help = "only put an icon into the menu and on the desktop (Linux, macOS) that does this with --open"
    parser.add_argument("--install-shortcut", action="store_true", help=shortcut_help)


def run(args: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C."""
    if not 0 <= args.port < 1 << 16:
        raise ConfigError(f"--port {args.port}", "must be from 0 to 65535")
    folder: Path = args.dir.expanduser().absolute()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--dir {args.dir}", "not a folder", "name another one")
    if (folder / "wenet_hs" / "__init__.py").exists():
        found = "the folder of the program, which an update replaces"
        raise ConfigError(f"--dir {args.dir}", found, "name another one")
    try:
        from wenet_hs.app.server import serve
    except ImportError as error:
        if (error.name or "wenet_hs").startswith("wenet_hs"):
            raise
        to_do = "run pip install 'wenet_hs[app]'"
        raise ConfigError("wenet-hs app", f"{error.name} is not installed", to_do) from error
    if args.install_shortcut:
        command = [
            str(Path(sys.executable).with_name("wenet-hs")),
            "app",
            f"--dir={folder}",
            f"--port={args.port}",
        ]
        for path in install_shortcut([*command, "--open"], Path.home()):
            print(f"{path}: written; the desktop may ask once whether it may be started")
        return

    def show(address: str) -> None:
        write_private(folder / _ADDRESS, address)
        print(
            f"open this address in a browser; Ctrl-C ends the page, not the trainings:\n{address}",
            flush=True,
        )
        if args.open:  # in a thread: a browser in the terminal would hold up the server
            threading.Thread(target=open_page, args=(folder, address), daemon=True).start()

    try:
        serve(folder, args.port, show)
    except ConfigError:
        if not args.open or not (address := find_running(folder, args.port)):
            raise
        print(f"the page is open already: {address}", flush=True)
        open_page(folder, address)


def open_page(folder: Path, address: str) -> None:
    """Open the address in the browser through a file: all users of the computer can see the
    arguments of programs.
    """
    write_private(folder / _OPENED, _OPENED_HTML.format(address=address))
    webbrowser.open((folder / _OPENED).as_uri())


def write_private(path: Path, text: str) -> None:
    """Write a file that only its user can read."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.touch(0o600)
    temporary.write_text(text, "utf-8")
    temporary.replace(path)


def find_running(folder: Path, port: int) -> str:
    """The address of the server of this folder that runs at the port; empty if there is none."""
    path = folder / _ADDRESS
    address = path.read_text("utf-8").strip() if path.is_file() else ""
    if not re.fullmatch(rf"http://127\.0\.0\.1:{port}/\?token=[\w-]+", address):
        return ""
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", address[address.index("/?") :])
        cookie = connection.getresponse().headers.get("Set-Cookie", "")
    except (OSError, HTTPException):
        return ""
    finally:
        connection.close()
    return address if cookie.startswith(f"wenet_hs_{port}=") else ""


def install_shortcut(command: list[str], home: Path) -> list[Path]:
    """Write icons that run the command, and return their paths.

    Raises DataError without the program it names.
    """
    if not Path(command[0]).is_file():
        raise DataError(command[0], "no such program", "install wenet_hs with pip first")
    if sys.platform == "darwin":
        paths, text = (
            [home / "Desktop/wenet_hs.command"],
            f"#!/bin/sh\nexec {shlex.join(command)}\n",
        )
    else:
        icon = Path(__file__).parents[1] / "app/static/icon.svg"
        text = _ENTRY.format(
            command=" ".join(map(quote_exec, command)), icon=str(icon).replace("\\", "\\\\")
        )
        data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
        paths = [data / "applications/wenet_hs.desktop"]
        paths += [one / "wenet_hs.desktop" for one in [find_desktop(home)] if one.is_dir()]
    for path in paths:
        write_atomic(path, text)
        path.chmod(0o755)  # desktops refuse others
    return paths


def find_desktop(home: Path) -> Path:
    """The folder of the desktop, which has a name in the user's language on Linux."""
    path = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "user-dirs.dirs"
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    found = re.search(r'^XDG_DESKTOP_DIR="(?:\$HOME/)?(.+)"$', text, re.MULTILINE)
    return home / (found[1] if found else "Desktop")


def quote_exec(word: str) -> str:
    """A word of the key Exec, by the Desktop Entry Specification: quoted, and then escaped as any
    text of the file.
    """
    if re.search(r"[\0-\x1f]", word):
        raise DataError(ascii(word), "has a control character", "choose another folder")
    quoted = re.sub(r'(["`$\\])', r"\\\1", word)
    return f'"{quoted}"'.replace("\\", "\\\\").replace("%", "%%")


if __name__ == "__main__":
    main_of(__name__)
