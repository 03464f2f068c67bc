# SPDX-License-Identifier: Apache-2.0
"""What all commands share: an example in --help, one line for a fault, no traceback whatever the terminal is."""

import argparse
import errno
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from model_folders import TABLE, noise, write_model_folder
from soundfile import write as write_audio

from wenet_hs.bin import units
from wenet_hs.bin.command import run_command
from wenet_hs.bin.main import COMMANDS, main
from wenet_hs.errors import DataError


def command_of(run: Callable[[argparse.Namespace], None]) -> ModuleType:
    module = ModuleType("made_up", "A command.\n\nExample: wenet-hs made_up")
    module.add_arguments = lambda parser: None  # type: ignore[attr-defined]
    module.run = run  # type: ignore[attr-defined]
    return module


def raising(error: BaseException) -> ModuleType:
    def run(args: argparse.Namespace) -> None:
        raise error

    return command_of(run)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_opens_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_command(importlib.import_module(f"wenet_hs.bin.{name}"), ["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert re.search(rf"^usage: .*?\n\n[^\n]*\n\nExample: wenet-hs {name} ", shown, re.DOTALL), shown


@pytest.mark.parametrize("action", ["build", "show"])
def test_the_help_of_an_action_too(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command(importlib.import_module("wenet_hs.bin.tree"), [action, "--help"])
    assert f"Example: wenet-hs tree {action} " in capsys.readouterr().out


def test_the_list_of_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["wenet-hs", "--help"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert "Example: wenet-hs recognize " in shown
    assert all(f"  {name} " in shown for name in COMMANDS)
    monkeypatch.setattr(sys, "argv", ["wenet-hs", "recognise"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("wenet-hs: no command 'recognise'; there are: prepare units ")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (DataError("a: b; c"), 2, "a: b; c"),
        (OSError(errno.ENOSPC, "No space left on device", "x/text"), 2, "x/text: No space left on device; check the "),
        (OSError(errno.EIO, "Input/output error"), 2, "wenet-hs made_up: Input/output error; check the path, its perm"),
        (KeyboardInterrupt(), 130, "wenet-hs made_up: stopped\n"),
        (KeyboardInterrupt("go on"), 130, "wenet-hs made_up: stopped; go on\n"),
    ],
)
def test_a_fault_is_one_line(error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(raising(error), []) == code
    shown = capsys.readouterr().err
    assert shown.startswith(line)
    assert shown.count("\n") == 1


def test_ctrl_c_while_the_libraries_load_is_one_line(tmp_path: Path) -> None:
    """Where an exception would be swallowed, as libraries do in the middle of their import."""
    (tmp_path / "torch.py").write_text(
        "import os, signal, time\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(9)\n"
        "except BaseException as error:\n    raise ImportError('initialization failed') from error\n"
    )
    line = [sys.executable, "-m", "wenet_hs.bin.main", "recognize", "--help"]
    done = subprocess.run(line, capture_output=True, timeout=60, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (130, b"wenet-hs recognize: stopped\n")


def test_our_own_bugs_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command(raising(ZeroDivisionError()), [])


@pytest.mark.parametrize("out", ["", "a.list/units.txt", "/proc/nowhere/units.txt"])
def test_an_output_that_cannot_be_written_is_one_line(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.list").write_text('{"key": "a", "wav": "a.wav", "txt": "x"}\n')
    arguments = ["--data_list", str(tmp_path / "a.list"), "--kind", "char", "--out", str(tmp_path / out)]
    assert run_command(units, arguments) == 2
    shown = capsys.readouterr().err
    assert re.fullmatch(r"\S+: [A-Z][a-z ]+; check the path, its permissions and the disk\n", shown), shown
    assert sorted(path.name for path in tmp_path.parent.glob(".*.tmp")) == []


def program(*arguments: str, encoding: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "wenet_hs.bin.main", *arguments]
    return subprocess.run(line, capture_output=True, env=environment, timeout=120)


def test_a_terminal_without_utf8_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "é.list").write_text('{"key": "a", "wav": "a.wav", "txt": "й"}\n', encoding="utf-8")
    out = str(tmp_path / "ünits.txt")
    done = program("units", "--data_list", str(tmp_path / "é.list"), "--kind", "char", "--out", out, encoding="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\xfcnits.txt: 4 units" in done.stdout
    assert "й 3" in Path(out).read_text("utf-8")
    missing = program("units", "--data_list", "où", "--kind", "char", "--out", out, encoding="ascii")
    assert missing.returncode == 2
    assert missing.stderr == b"o\\xf9: cannot be read (No such file or directory); check the path\n"


@pytest.mark.slow
def test_a_transcript_on_a_terminal_without_utf8(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "m")
    text = (folder / "units.txt").read_text("utf-8")
    (folder / "units.txt").write_text(re.sub(r"^([a-g]) ", lambda m: f"{chr(ord(m[1]) + 1000)} ", text, flags=re.M))
    write_audio(tmp_path / "a.wav", noise(1.0), 16000)
    done = program("transcribe", "--model_dir", str(folder), str(tmp_path / "a.wav"), encoding="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "a.wav").encode() + b": ")
    assert len(TABLE) == 11
    assert b"Traceback" not in done.stderr


def test_nobody_reads_on(tmp_path: Path) -> None:
    """`wenet-hs … | head -0`: no traceback, neither of the print nor of the flush at exit."""
    code = (
        "import sys\nfrom types import ModuleType\nfrom wenet_hs.bin.command import run_command\n"
        "m = ModuleType('m', 'x')\nm.add_arguments = lambda p: None\n"
        "m.run = lambda a: [print('x' * 1000) for _ in range(1000)]\nsys.exit(run_command(m, []))\n"
    )
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run([sys.executable, "-c", code], stdout=write_end, stderr=subprocess.PIPE, timeout=60)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")
