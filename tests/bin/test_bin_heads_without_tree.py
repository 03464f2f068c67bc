# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs heads-without-tree`: our heads, those of a package, and wrong names."""

import subprocess
import sys
from pathlib import Path

from command_line import Capsys, error_line
from sample_extension import importable, install_sample, write_metadata

from wenet_hs.bin import heads_without_tree
from wenet_hs.bin.main import run_command
from wenet_hs.config.heads import HEADS, TreeHeadConf


def printed(capsys: Capsys, *heads: str) -> list[str]:
    assert run_command(heads_without_tree, heads) == 0
    return capsys.readouterr().out.splitlines()


def test_heads_of_the_table(capsys: Capsys) -> None:
    assert printed(capsys, "hsoftmax", "softmax", "adaptive", "class") == ["softmax"]
    without = [name for name, settings in HEADS.items() if not issubclass(settings, TreeHeadConf)]
    assert printed(capsys, *HEADS) == without


def test_no_head_and_a_wrong_name(capsys: Capsys) -> None:
    assert printed(capsys) == []
    assert printed(capsys, "sofmax", "base") == []


def test_a_head_of_a_package(tmp_path: Path, capsys: Capsys) -> None:
    assert printed(capsys, "cosine") == []
    with importable(install_sample(tmp_path)):
        assert printed(capsys, "hsoftmax", "cosine") == ["cosine"]


def test_a_package_that_cannot_be_imported(tmp_path: Path, capsys: Capsys) -> None:
    write_metadata(tmp_path, "broken", "1", {"wenet_hs.heads": {"broken": "absent_module:Conf"}})
    with importable(tmp_path):
        line = error_line(run_command(heads_without_tree, ["broken"]), capsys)
    assert line.startswith("head broken of the package broken 1: cannot be imported")


def test_the_command_starts_without_torch() -> None:
    code = "import sys, wenet_hs.bin.heads_without_tree; print([*sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'wenet_hs.config.heads'" in done.stdout
    assert "'torch'" not in done.stdout and "'numpy'" not in done.stdout
