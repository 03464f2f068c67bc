# SPDX-License-Identifier: Apache-2.0
"""All commands: an example in --help, one line per user error, Ctrl-C, pipes and terminals without
UTF-8.
"""

import argparse
import errno
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest
from command_line import Capsys, error_line

from wenet_hs.bin import lm, tree, units
from wenet_hs.bin.main import COMMANDS, main, run_command
from wenet_hs.tree.errors import DataError

CORPORA = ("prepare commonvoice", "prepare ucla", "prepare synthetic")


def command_that_raises(error: BaseException) -> ModuleType:
    def run(args: argparse.Namespace) -> None:
        raise error

    module = ModuleType("made_up", "A command.\n\nExample: wenet-hs made_up")
    module.add_arguments = lambda parser: None  # type: ignore[attr-defined]
    module.run = run  # type: ignore[attr-defined]
    return module


ACTIONS = (
    *(f"tree {action}" for action in tree.ACTIONS),
    *(f"lm {action}" for action in lm.ACTIONS),
)


@pytest.mark.parametrize("line", [*COMMANDS, *ACTIONS, *CORPORA])
def test_every_help_opens_with_an_example(line: str, capsys: Capsys) -> None:
    name, *action = line.split()
    with pytest.raises(SystemExit, match="0"):
        run_command(
            importlib.import_module(f"wenet_hs.bin.{name.replace('-', '_')}"), [*action, "--help"]
        )
    shown = capsys.readouterr().out
    assert re.search(rf"^usage: .*?\n\n[^\n]*\n\nExample: wenet-hs {line} ", shown, re.DOTALL), (
        shown
    )


def test_the_list_of_commands(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["wenet-hs", "--help"])
    with pytest.raises(SystemExit, match="0"):
        main()
    shown = capsys.readouterr().out
    assert "Example: wenet-hs recognize " in shown
    assert all(f"  {name} " in shown for name in COMMANDS)
    monkeypatch.setattr(sys, "argv", ["wenet-hs", "recognise"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.startswith(
        "wenet-hs: no command 'recognise'; there are: prepare check units "
    )


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (DataError("a: b; c"), 2, "a: b; c"),
        (
            OSError(errno.ENOSPC, "No space left on device", "x/text"),
            2,
            "x/text: No space left on device; check the ",
        ),
        (
            OSError(errno.EMFILE, "Too many open files", "x.wav"),
            2,
            "x.wav: too many open files; raise their limit with ",
        ),
        (
            OSError(errno.EIO, "Input/output error"),
            2,
            "wenet-hs made-up: Input/output error; check the path, its perm",
        ),
        (
            UnicodeEncodeError("utf-8", "é/\udce9.wav", 2, 3, "surrogates not allowed"),
            2,
            r"'\xe9/\udce9.wav': cannot be ",
        ),
        (KeyboardInterrupt(), 130, "wenet-hs made-up: stopped\n"),
        (KeyboardInterrupt("go on"), 130, "wenet-hs made-up: stopped; go on\n"),
    ],
)
def test_a_fault_is_one_line(error: BaseException, code: int, line: str, capsys: Capsys) -> None:
    assert run_command(command_that_raises(error), []) == code
    shown = capsys.readouterr().err
    assert shown.startswith(line)
    assert shown.count("\n") == 1
    with pytest.raises(ZeroDivisionError):  # a bug keeps its traceback
        run_command(command_that_raises(ZeroDivisionError()), [])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--kind huffmann",
            "wenet-hs tree build: argument --kind: invalid choice: 'huffmann' (choose from ",
        ),
        ("--unit u", "wenet-hs tree build: the following arguments are required: "),
    ],
)
def test_a_mistake_in_the_flags_is_one_line(line: str, message: str, capsys: Capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_command(tree, ["build", *line.split()])
    shown = capsys.readouterr().err
    assert (
        shown.startswith(message) and shown.endswith(" (try --help)\n") and shown.count("\n") == 1
    )


@pytest.mark.parametrize("out", ["", "a.list/units.txt", "/proc/nowhere/units.txt"])
def test_an_output_that_cannot_be_written_is_one_line(
    out: str, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "a.list").write_text('{"key": "a", "wav": "a.wav", "txt": "x"}\n')
    arguments = [
        "--data_list",
        str(tmp_path / "a.list"),
        "--kind",
        "char",
        "--out",
        str(tmp_path / out),
    ]
    shown = error_line(run_command(units, arguments), capsys)
    assert re.fullmatch(
        r"\S+: [A-Z][a-z ]+; check the path, its permissions and the disk", shown
    ), shown
    assert sorted(path.name for path in tmp_path.parent.glob(".*.tmp")) == []


# ---- in a process of its own


def run_program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-m", "wenet_hs.bin.main", *arguments]
    return subprocess.run(line, capture_output=True, timeout=120, env={**os.environ, **environment})


def test_ctrl_c_during_the_import_of_a_library_is_one_line(tmp_path: Path) -> None:
    """An exception would be caught there, as by libraries in the middle of their import."""
    (tmp_path / "torch.py").write_text(
        "import os, signal, time\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(9)\n"
        "except BaseException as error:\n    raise ImportError('initialization failed') from error\n"
    )
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = run_program("recognize", PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (130, b"wenet-hs recognize: stopped\n")


def test_a_terminal_without_utf8(tmp_path: Path) -> None:
    (tmp_path / "é.list").write_text('{"key": "a", "wav": "a.wav", "txt": "й"}\n', encoding="utf-8")
    flags = ["--kind", "char", "--out", str(tmp_path / "ünits.txt")]
    done = run_program(
        "units", "--data_list", str(tmp_path / "é.list"), *flags, PYTHONIOENCODING="ascii"
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\xfcnits.txt: 4 units" in done.stdout
    assert "й 3" in (tmp_path / "ünits.txt").read_text("utf-8")
    missing = run_program("units", "--data_list", "où", *flags, PYTHONIOENCODING="ascii")
    assert missing.returncode == 2
    assert missing.stderr == b"o\\xf9: cannot be read (No such file or directory); check the path\n"


def test_the_list_of_commands_in_a_closed_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["wenet-hs"])
    monkeypatch.setattr("builtins.print", Mock(side_effect=BrokenPipeError))
    with pytest.raises(SystemExit, match="0"):
        main()


def test_a_closed_pipe_is_no_error() -> None:
    """`wenet-hs … | head -0`: no traceback, neither of the print nor of the flush at exit."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    code = (
        "import sys\nfrom types import ModuleType\nfrom wenet_hs.bin.main import run_command\n"
        "m = ModuleType('m', 'x')\nm.add_arguments = lambda p: None\n"
        "m.run = lambda a: [print('x' * 1000) for _ in range(1000)]\nsys.exit(run_command(m, []))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=write_end, stderr=subprocess.PIPE, timeout=60
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")
