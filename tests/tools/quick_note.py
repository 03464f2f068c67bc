# SPDX-License-Identifier: Apache-2.0
"""A benchmark run with --quick, from one end to the other."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def quick_note(script: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """The note that benchmarks/SCRIPT writes, as text and as facts."""
    line = [sys.executable, str(BENCHMARKS / script), "--quick", "--threads", "1", "--out", str(folder / "note")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return (folder / "note.md").read_text("utf-8"), json.loads((folder / "note.json").read_text("utf-8"))
