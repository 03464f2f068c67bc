# SPDX-License-Identifier: Apache-2.0
"""Writes the note of gpu.sh: one table of all parts, and the notes of the benchmarks below it.

Example: python benchmarks/gpu_note.py --out notes/gpu --device cuda --command gpu.sh
"""

import argparse
import json
from pathlib import Path

from paired import publish

from wenet_hs.score.tables import markdown_table

GPU_ONLY = "not measured (small form on the CPU: {})"


def main() -> None:
    """Write OUT.md and OUT.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of parts/ and notes/; gpu.md and gpu.json"
    )
    parser.add_argument("--device", required=True, help="cpu or cuda")
    parser.add_argument("--command", required=True, help="the command that measured")
    args = parser.parse_args()
    parts = [
        json.loads(path.read_text("utf-8"))
        for path in sorted(args.out.glob("parts/*.json"), key=_time)
    ]
    if args.device == "cpu":
        parts = [part | {"result": GPU_ONLY.format(part["result"])} for part in parts]
    cells = [
        [str(part[name]).replace("|", "/") for name in ("part", "result", "seconds", "found")]
        for part in parts
    ]
    texts, notes = [], {}
    for path in sorted(args.out.glob("notes/*.md"), key=_time):
        texts.append(path.read_text("utf-8").replace("\n## ", "\n### ").replace("# ", "## ", 1))
        notes[path.stem] = json.loads(path.with_suffix(".json").read_text("utf-8"))
    text = "\n\n".join([markdown_table(["part", "on a GPU", "seconds", "found"], cells), *texts])
    facts = {"parts": parts, "notes": notes}
    publish("On a GPU", text, facts, device=args.device, out=args.out / "gpu", command=args.command)


def _time(path: Path) -> int:
    """When a part ended."""
    return path.stat().st_mtime_ns


if __name__ == "__main__":
    main()
