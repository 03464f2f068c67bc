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
"""File in --dir with the address of the server that runs. Only its user can read it."""
_OPENED = "wenet_hs-open.html"
"""File in --dir that sends the browser to this address. Only its user can read it.

It is not a hidden file, because browsers that are installed as snaps cannot open such files.
"""
_OPENED_HTML = (
    '<!DOCTYPE html><title>wenet_hs</title><meta http-equiv="refresh" content="0;url={address}">\n'
)
_DESKTOP_ENTRY = """[Desktop Entry]
Type=Application
Name=wenet_hs
Comment=From recordings to a speech recogniser
Exec={command}
Icon={icon}
Terminal=true
Categories=AudioVideo;Education;
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs app`."""
    add = parser.add_argument
    folder = Path("~/wenet_hs_projects")
    add("--dir", type=Path, default=folder, help=f"folder of the projects (default: {folder})")
    port_help = f"port of the address on this computer (default: {_PORT}; 0: any free one)"
    add("--port", type=int, default=_PORT, help=port_help)
    open_help = "also open the page in the browser, if it runs already too"
    add("--open", action="store_true", help=open_help)
    shortcut_help = (
        "only put an icon into the menu and on the desktop (Linux, macOS) that does this with "
        "--open"
    )
    add("--install-shortcut", action="store_true", help=shortcut_help)


def run(args: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C, or only install icons with --install-shortcut.

    If the page of this folder is served already, --open opens it and nothing else is done.
    Raises ConfigError for a wrong folder or port, without the packages of the page, or if the port
    is in use.
    """
    folder = _check_folder(args)
    try:
        from wenet_hs.app.server import serve
    except ImportError as error:
        is_package_missing = error.name is not None and not error.name.startswith("wenet_hs")
        if not is_package_missing:  # a fault of this package
            raise
        to_do = "run pip install 'wenet_hs[app]'"
        raise ConfigError("wenet-hs app", f"{error.name} is not installed", to_do) from error
    if args.install_shortcut:
        program = Path(sys.executable).with_name("wenet-hs")
        command = [str(program), "app", f"--dir={folder}", f"--port={args.port}", "--open"]
        for path in install_shortcut(command, Path.home()):
            print(f"{path}: written; the desktop may ask once whether it may be started")
        return

    def on_start(address: str) -> None:
        """Save and print the address when the server runs; with --open, open it."""
        write_private(folder / _ADDRESS, address)
        print(
            f"open this address in a browser; Ctrl-C ends the page, not the trainings:\n{address}",
            flush=True,
        )
        if args.open:  # in a thread: a browser in the terminal would hold up the server
            threading.Thread(target=open_page, args=(folder, address), daemon=True).start()

    try:
        serve(folder, args.port, on_start)
    except ConfigError:
        running_address = find_running(folder, args.port) if args.open else ""
        if not running_address:
            raise
        print(f"the page is open already: {running_address}", flush=True)
        open_page(folder, running_address)


def _check_folder(args: argparse.Namespace) -> Path:
    """The absolute path of --dir. Raises ConfigError for a wrong --dir or --port."""
    if not 0 <= args.port <= 65535:
        raise ConfigError(f"--port {args.port}", "must be from 0 to 65535")
    folder: Path = args.dir.expanduser().absolute()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--dir {args.dir}", "not a folder", "name another one")
    if (folder / "wenet_hs" / "__init__.py").exists():
        fault = "the folder of the program, which an update replaces"
        raise ConfigError(f"--dir {args.dir}", fault, "name another one")
    return folder


# ---- the page in the browser


def open_page(folder: Path, address: str) -> None:
    """Open the address in the browser, through a file that sends the browser there.

    The address has a token. All users of the computer can see the arguments of programs, but not
    the file.
    """
    file = folder / _OPENED
    write_private(file, _OPENED_HTML.format(address=address))
    webbrowser.open(file.as_uri())


def write_private(path: Path, text: str) -> None:
    """Write a file that only its user can read; a file that exists is replaced as a whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.touch(0o600)  # before there is a text to read
    temporary.write_text(text, "utf-8")
    temporary.replace(path)


def find_running(folder: Path, port: int) -> str:
    """The address of the server of this folder that runs at the port; empty if there is none.

    The saved address may be that of a server that has ended, and the port be used by another
    program. Our server answers with a cookie that is named after the port.
    """
    file = folder / _ADDRESS
    address = file.read_text("utf-8").strip() if file.is_file() else ""
    is_address = re.fullmatch(rf"http://127\.0\.0\.1:{port}/\?token=[\w-]+", address)
    if not is_address:
        return ""
    path_and_token = address[address.index("/?") :]
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path_and_token)
        cookie = connection.getresponse().headers.get("Set-Cookie", "")
    except (OSError, HTTPException):
        return ""
    finally:
        connection.close()
    return address if cookie.startswith(f"wenet_hs_{port}=") else ""


# ---- icons that start it


def install_shortcut(command: list[str], home: Path) -> list[Path]:
    """Write icons that run the command, and return their paths.

    On macOS it is a script on the desktop; elsewhere an entry of the menu and, if there is a
    desktop folder, an icon on it. Raises DataError if the program, the first word of the command,
    does not exist.
    """
    if not Path(command[0]).is_file():
        raise DataError(command[0], "no such program", "install wenet_hs with pip first")
    if sys.platform == "darwin":
        paths = [home / "Desktop/wenet_hs.command"]
        text = f"#!/bin/sh\nexec {shlex.join(command)}\n"
    else:
        data_home = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
        paths = [data_home / "applications/wenet_hs.desktop"]
        desktop = find_desktop(home)
        if desktop.is_dir():
            paths.append(desktop / "wenet_hs.desktop")
        icon = Path(__file__).parents[1] / "app/static/icon.svg"
        text = _DESKTOP_ENTRY.format(
            command=" ".join(map(quote_exec, command)), icon=escape_entry(str(icon))
        )
    for path in paths:
        write_atomic(path, text)
        path.chmod(0o755)  # desktops start only files that may be executed
    return paths


def find_desktop(home: Path) -> Path:
    """The folder of the desktop on Linux, whose name is in the language of the user.

    The file user-dirs.dirs has its path, absolute or below $HOME: `XDG_DESKTOP_DIR="$HOME/Bureau"`.
    Without it: HOME/Desktop.
    """
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    file = config_home / "user-dirs.dirs"
    text = file.read_text("utf-8", errors="replace") if file.is_file() else ""
    setting = re.search(r'^XDG_DESKTOP_DIR="(?:\$HOME/)?(.+)"$', text, re.MULTILINE)
    return home / (setting[1] if setting else "Desktop")  # an absolute path replaces `home`


def quote_exec(word: str) -> str:
    """A word of the key Exec of a desktop entry, by the Desktop Entry Specification.

    The word is quoted for the command line, then escaped as any text of the file; `%` is doubled,
    because it begins a field code. Raises DataError for a control character.
    """
    if re.search(r"[\0-\x1f]", word):
        raise DataError(ascii(word), "has a control character", "choose another folder")
    quoted = re.sub(r'(["`$\\])', r"\\\1", word)
    return escape_entry(f'"{quoted}"').replace("%", "%%")


def escape_entry(text: str) -> str:
    """A text as a value of a desktop entry, where a backslash is written as two."""
    return text.replace("\\", "\\\\")


if __name__ == "__main__":
    main_of(__name__)
