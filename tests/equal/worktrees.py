# SPDX-License-Identifier: Apache-2.0
"""Records of another commit and of this checkout, each in a new process."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SHARED = "shared"
"""Folder beside a checkout with reference material, which some tests read."""


def record_checkout(out: Path, names: Sequence[str], num_jobs: int, root: Path = CHECKOUT) -> None:
    """Record the code of the checkout `root` with the case scripts beside this file."""
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "record"]
    command += ["--out", str(out), "--jobs", str(num_jobs), "--only", *names]
    environment = os.environ | {"PYTHONPATH": str(root)}
    if subprocess.run(command, env=environment, check=False).returncode != 0:
        raise SystemExit(f"{root}: cannot be recorded")


def record_commit(commit: str, out: Path, names: Sequence[str], num_jobs: int) -> None:
    """The same for a commit of this repository. The worktree is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="equal-worktree-"))
    root = folder / "checkout"
    _git("worktree", "add", "--quiet", "--detach", str(root), commit)
    try:
        shared = CHECKOUT.parent / SHARED
        if shared.is_dir():
            (folder / SHARED).symlink_to(shared)
        record_checkout(out, names, num_jobs, root)
    finally:
        _git("worktree", "remove", "--force", str(root))
        shutil.rmtree(folder)


def _git(*arguments: str) -> None:
    """Run git in this checkout. Raises SystemExit if it fails; git has then printed the reason."""
    command = ["git", "-C", str(CHECKOUT), *arguments]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"git {arguments[0]} failed")
