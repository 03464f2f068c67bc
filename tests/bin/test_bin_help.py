# SPDX-License-Identifier: Apache-2.0
"""`--help` does not import the libraries that take seconds, and has the same text as if it did."""

import argparse
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from wenet_hs.bin import main as command_line
from wenet_hs.bin.main import COMMANDS
from wenet_hs.bin.stand_ins import SLOW_LIBRARIES, StandIn

IN_STAND_INS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from wenet_hs.bin import stand_ins
stand_ins.install()
from test_bin_help import help_texts
import torch
print(json.dumps([help_texts(), type(torch).__name__]))
"""


def help_texts() -> dict[str, str]:
    """The help of every command and of its subcommands."""
    texts = {}
    for name in COMMANDS:
        parser = argparse.ArgumentParser(prog=name)
        import_module(f"wenet_hs.bin.{name.replace('-', '_')}").add_arguments(parser)
        texts[name] = parser.format_help()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                texts |= {
                    f"{name} {kind}": sub.format_help() for kind, sub in action.choices.items()
                }
    return texts


def test_the_help_of_every_command_is_complete_without_the_slow_libraries() -> None:
    command = [sys.executable, "-c", IN_STAND_INS, __file__.rpartition("/")[0]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    texts, kind = json.loads(done.stdout)
    assert texts == help_texts() and len(texts) > 30
    assert kind == StandIn.__name__, "torch alone takes longer than a user waits for a help text"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "--help"], True),
        (["tree", "build", "-h"], True),
        (["train", "--model_dir", "x"], False),
        (["transcribe", "--model_dir", "x", "--", "--help"], False),
    ],
    ids=str,
)
def test_only_a_help_text_is_printed_without_the_libraries(
    arguments: list[str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(sys, "argv", ["wenet-hs", *arguments])
    monkeypatch.setattr(command_line.stand_ins, "install", lambda: calls.append("install"))
    monkeypatch.setattr(command_line, "run_command", lambda module, argv: 0)
    with pytest.raises(SystemExit):
        command_line.main()
    assert bool(calls) is expected
    assert "torch" in SLOW_LIBRARIES


@pytest.mark.slow
def test_the_help_of_a_corpus_of_a_package_imports_the_libraries(tmp_path: Path) -> None:
    from sample_extension import install_sample  # the program above imports this file without it

    site = install_sample(tmp_path)
    corpus = site / "wenet_hs_sample/wav_txt.py"
    text = corpus.read_text("utf-8").replace(
        "from typing", "import torch\nassert torch.__version__ > '2'\nfrom typing"
    )
    corpus.write_text(text, "utf-8")
    code = "import sys; from wenet_hs.bin.main import main; sys.argv = ['wenet-hs', *sys.argv[1:]]; main()"
    command = [sys.executable, "-c", code, "prepare", "wav_txt", "--help"]
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    assert "Folders of recordings with a text beside each" in done.stdout
