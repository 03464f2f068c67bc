# SPDX-License-Identifier: Apache-2.0
"""Writes the note of gpu.sh: one table, and the notes of the benchmarks below it.

Example: python benchmarks/gpu_note.py --rows rows.tsv --notes notes --device cuda --command gpu.sh --out gpu
"""

import argparse
import json
from pathlib import Path

from paired import publish

from wenet_hs.score.tables import markdown_table

GPU_ONLY = "not measured (small form on the CPU: {})"


def main() -> None:
    """Write OUT.md and OUT.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="part, result, seconds, finding; separated by tabs")
    parser.add_argument("--notes", type=Path, required=True, help="folder of the benchmarks' notes")
    parser.add_argument("--device", required=True, help="cpu or cuda")
    parser.add_argument("--command", required=True, help="the command that made the rows")
    parser.add_argument("--out", type=Path, required=True, help="write OUT.md and OUT.json")
    args = parser.parse_args()
    rows = [line.split("\t") for line in args.rows.read_text("utf-8").splitlines()]
    if args.device == "cpu":
        rows = [[name, GPU_ONLY.format(result), *others] for name, result, *others in rows]
    cells = [[cell.replace("|", "/") for cell in row] for row in rows]
    texts, notes = [], {}
    for path in sorted(args.notes.glob("*.md")):
        texts.append(path.read_text("utf-8").replace("\n## ", "\n### ").replace("# ", "## ", 1))
        notes[path.stem] = json.loads(path.with_suffix(".json").read_text("utf-8"))
    text = "\n\n".join([markdown_table(["part", "on a GPU", "seconds", "found"], cells), *texts])
    facts = {"parts": rows, "notes": notes}
    publish("On a GPU", text, facts, device=args.device, out=args.out, command=args.command)


if __name__ == "__main__":
    main()
