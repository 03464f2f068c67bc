# SPDX-License-Identifier: Apache-2.0
"""tools/parse_options.sh under bash: options set variables, and everything else ends the script with 2."""

import os
import subprocess
from pathlib import Path

import pytest

OPTIONS = Path(__file__).parents[2] / "tools/parse_options.sh"
SCRIPT = f"""#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A demonstration.
#   ./run.sh --stage 2     second stage
set -euo pipefail
# not part of the help
stage=0
stop_stage=7
langs="ca es"
dir=
. "{OPTIONS}"
echo "$stage|$stop_stage|$langs|$dir"
"""


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = folder / "run.sh"
    script.write_text(SCRIPT)
    environment = os.environ | {"http_proxy": "x", "PS4": "+ "}
    return subprocess.run(["bash", script, *arguments], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ([], "0|7|ca es|"),
        (["--stage", "3", "--stop-stage", "4", "--langs", "ba ky tt", "--dir", "exp/a b"], "3|4|ba ky tt|exp/a b"),
        (["--langs", "", "--stage", "-1", "--stage", "2", "--stop_stage", "99"], "2|99||"),
        (["--dir", "$(touch x); `id` \\n *"], "0|7|ca es|$(touch x); `id` \\n *"),
    ],
)
def test_options_set_variables(arguments: list[str], output: str, tmp_path: Path) -> None:
    done = call(tmp_path, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{output}\n", "")


def test_help_is_the_comment_that_opens_the_script(tmp_path: Path) -> None:
    done = call(tmp_path, "--stage", "2", "--help")
    assert call(tmp_path, "-h").stdout == done.stdout
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "A demonstration.\n  ./run.sh --stage 2     second stage\nOptions and their defaults:\n"
        '  --stage 0\n  --stop_stage 7\n  --langs "ca es"\n  --dir \n'
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--stage 8", "there is no stage 8; the last one is 7"),
        ("--stage 5 --stop_stage 4", "nothing to do from --stage 5 to --stop_stage 4"),
        ("--stage abc", "--stage and --stop_stage are numbers, got 'abc'"),
        ("--http_proxy 1", "unknown option '--http_proxy' (try --help)"),
        ("--langs[0] 1", "unknown option '--langs[0]' (try --help)"),
        ("--PATH 1", "expected --name value, got '--PATH' (try --help)"),
        ("stage 1", "expected --name value, got 'stage' (try --help)"),
        ("--stage=1", "write '--stage 1' instead of '--stage=1'"),
        ("--stage", "option '--stage' needs a value"),
        ("--dir x --stage --langs ca", "option '--stage' needs a value"),
    ],
)
def test_everything_else_is_refused(arguments: str, message: str, tmp_path: Path) -> None:
    done = call(tmp_path, *arguments.split())
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{tmp_path}/run.sh: {message}\n")
