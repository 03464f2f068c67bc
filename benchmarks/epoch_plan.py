# SPDX-License-Identifier: Apache-2.0
"""Processor time and memory from a data list to the first epoch's plan, per number of utterances.

The lists are synthetic: five languages, 1 to 20 s per utterance, transcripts of 10 to 60 letters.
The audio does not exist; it is not read. Each length is measured in a process of its own, which
opens the list, makes the dataset, and plans an epoch with drawn speeds and balanced languages.

Example: python benchmarks/epoch_plan.py --millions 0.1 1 --out benchmarks/notes/epoch_plan
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from paired import in_a_process_of_its_own, number, publish

from wenet_hs.config.dataset import BatchConf, DatasetConf, SamplingConf
from wenet_hs.data.dataset import SpeechDataset
from wenet_hs.data.shards import open_lists
from wenet_hs.score.tables import markdown_table
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable

LANGS = ("ca", "es", "fr", "it", "pt")
LANG_SHARES = (0.02, 0.08, 0.15, 0.25, 0.5)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
LINES_AT_ONCE = 100_000


def write_list(path: Path, num_utterances: int) -> None:
    """Write a data list of synthetic utterances."""
    rng = np.random.default_rng(0)
    text = "".join(rng.choice(list(LETTERS + "  "), size=100_000))
    with path.open("w", encoding="utf-8") as file:
        for first in range(0, num_utterances, LINES_AT_ONCE):
            count = min(LINES_AT_ONCE, num_utterances - first)
            seconds = np.clip(rng.lognormal(1.6, 0.5, count), 1.0, 20.0).round(2).tolist()
            starts, sizes = (
                rng.integers(99_000, size=count).tolist(),
                rng.integers(10, 60, size=count).tolist(),
            )
            langs = rng.choice(LANGS, p=LANG_SHARES, size=count).tolist()
            for i in range(count):
                key = f"utterance_{first + i:09d}"
                txt = text[starts[i] : starts[i] + min(sizes[i], int(10 * seconds[i]))]
                record = {
                    "key": key,
                    "wav": f"/data/clips/{key}.flac",
                    "txt": txt,
                    "lang": langs[i],
                }
                file.write(json.dumps({**record, "duration": seconds[i]}) + "\n")


def measure(path: Path, units: UnitTable) -> dict[str, float]:
    """Processor seconds and memory of each stage."""
    conf = DatasetConf(
        speed_perturb=True,
        batch_conf=BatchConf(batch_type="dynamic", max_frames_in_batch=12000),
        sampling=SamplingConf(temperature=2.0),
    )
    tokenizer = make_tokenizer("char", units)
    facts, before_mb, start = {}, resident_mb(), time.process_time()
    table = open_lists((path,))
    facts["open_s"], start = time.process_time() - start, time.process_time()
    facts["table_mb"] = resident_mb() - before_mb
    dataset = SpeechDataset(
        table, tokenizer, conf, training=True, seed=0, output_length=lambda n: n // 4
    )
    facts["dataset_s"], start = time.process_time() - start, time.process_time()
    facts["dataset_mb"] = resident_mb() - before_mb
    facts["batches"] = len(dataset.plan(1))
    facts["plan_s"] = time.process_time() - start
    return facts | {
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb
    }


def resident_mb() -> float:
    """Memory of this process."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize() / 2**20


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--millions", type=float, nargs="+", default=[0.1, 1.0], help="lengths of the lists"
    )
    parser.add_argument(
        "--folder", type=Path, help="where to write the lists (default: a temporary folder)"
    )
    parser.add_argument("--out", type=Path, help="write OUT.md and OUT.json (default: print only)")
    parser.add_argument(
        "--list", type=Path, help="measure this list, in this process, and print its record only"
    )
    parser.add_argument("--units", type=Path, help="unit table of --list (default: letters)")
    args = parser.parse_args()
    if args.list:
        units = UnitTable.read(args.units) if args.units else UnitTable.from_units([*LETTERS, "▁"])
        print(json.dumps(measure(args.list, units)))
        return
    records = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for millions in args.millions:
            path = Path(folder) / "data.list"
            write_list(path, round(millions * 1e6))
            list_mb = path.stat().st_size / 2**20
            measured = json.loads(in_a_process_of_its_own(Path(__file__), "--list", str(path)))
            records[millions] = {"list_mb": list_mb, **measured}
    columns = (
        "list_mb",
        "table_mb",
        "dataset_mb",
        "peak_mb",
        "open_s",
        "dataset_s",
        "plan_s",
        "batches",
    )
    rows = [
        [number(millions), *(f"{facts[name]:.1f}" for name in columns)]  # one row per list
        for millions, facts in records.items()
    ]
    text = markdown_table(["million utterances", *columns], rows)
    publish(
        "From a list to the plan of an epoch",
        text,
        {"records": records},
        device="cpu",
        out=args.out,
    )


if __name__ == "__main__":
    main()
