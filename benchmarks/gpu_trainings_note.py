# SPDX-License-Identifier: Apache-2.0
"""Writes the note of gpu_trainings.sh: what was changed of the paper's training, errors and speed,
and what is missing.

Example: python benchmarks/gpu_trainings_note.py --out DIR --device cuda --planned "softmax huffman 777" \\
    --changes max_epoch=60
"""

import argparse
from pathlib import Path

from gpu_note import GPU_ONLY
from paired import Facts, publish

from wenet_hs.config.load import config_changes, load_config
from wenet_hs.model.modes import MODES
from wenet_hs.results.folder import read_decoding_record
from wenet_hs.results.results_file import read_results
from wenet_hs.score.compare import MACRO
from wenet_hs.score.tables import markdown_table

PAPER = Path(__file__).parents[1] / "conf" / "paper_ucla.yaml"
MISSING = "missing: not done in the time, or failed (its log)"


def read_training(folder: Path, planned: str) -> Facts:
    """What is known of a training, from its results file and its speed of recognition."""
    head, tree, seed = planned.split()
    system = head if head == "softmax" or tree == "huffman" else f"{head}-{tree}"
    record: Facts = {
        "training": f"{head}, {tree} tree" if head != "softmax" else head,
        "seed": int(seed),
    }
    path = folder / "results" / f"{system}-seed{seed}.json"
    if not path.is_file():
        return record | {"result": MISSING}
    results = read_results(path)
    name = system if seed == "777" else f"{system}-seed{seed}"
    speed = folder / f"{name}.rtf.json"
    record |= {"result": "ok", "steps": results.steps, "train_seconds": results.train_seconds}
    record["dev_loss"], record["train_hours"] = results.dev_loss, results.train_hours
    record["per"] = {mode: 100 * results.rates(mode)[MACRO] for mode in results.modes}
    record["rtf"] = {}
    if speed.is_file():
        record["rtf"] = read_decoding_record(speed).model_dump(exclude_unset=True)
    return record


def row_of(record: Facts, device: str) -> list[str]:
    """Cells of a training; – where something is missing."""
    result = GPU_ONLY.format(record["result"]) if device == "cpu" else str(record["result"])
    per, numbers = record.get("per", {}), ("steps", "train_seconds", "dev_loss")
    cells = [
        record["training"],
        record["seed"],
        result,
        *(record.get(name) or "–" for name in numbers),
    ]
    return [*map(str, cells), *(f"{per[mode]:.1f}" if mode in per else "–" for mode in MODES)]


def main() -> None:
    """Write OUT/gpu_trainings.md and .json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder of results/ and NAME.rtf.json; what it writes",
    )
    parser.add_argument("--device", required=True, help="cpu or cuda")
    parser.add_argument(
        "--planned", nargs="+", required=True, help="the trainings in their order: head, tree, seed"
    )
    parser.add_argument("--changes", nargs="+", required=True, help="overrides of the YAML")
    args = parser.parse_args()
    records = [read_training(args.out, planned) for planned in args.planned]
    changes = config_changes(load_config(PAPER), load_config(PAPER, args.changes))
    header = ["training", "seed", "result", "steps", "seconds", "dev loss, nats", *MODES]
    text = "\n\n".join(
        [
            f"PER in % (macro average over the test languages). {len(records)} trainings were planned; the later ones "
            "are of further seeds and run while there is time. One with fewer steps than another was ended by "
            "`max_minutes`.",
            markdown_table(header, [row_of(record, args.device) for record in records]),
            f"Settings that are not those of conf/{PAPER.name}, and why: its schedule lies wholly in the warm-up at "
            "this size, and a step on a GPU takes about as long with more frames.",
            markdown_table(
                ["setting", "paper", "here"], [[str(cell) for cell in change] for change in changes]
            ),
        ]
    )
    facts = {"trainings": records, "changes": changes}
    publish("Trainings on a GPU", text, facts, device=args.device, out=args.out / "gpu_trainings")


if __name__ == "__main__":
    main()
