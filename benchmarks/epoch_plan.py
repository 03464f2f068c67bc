# SPDX-License-Identifier: Apache-2.0
"""How long, and how much memory, from a data list of millions of utterances to the first batch of an epoch?

Made-up lists: five languages, 1 to 20 s an utterance, transcripts of 10 to 60 letters, 200 clips of noise behind them.
Each stage runs in a process of its own: what it takes is not hidden by the one before.

- index: the first start, which makes the columns of the list and of its transcripts, with a process a core
- open: any later start, up to the dataset
- plan: an epoch with speeds drawn, dynamic batches; sampled: the same with languages balanced at temperature 2
- batch: a plan and its first batch of 12,000 frames
- arrays: what `plan` computes, of durations in memory, for lists that are too long to write here

Seconds are of the processor (all processes together), so that what else runs on the machine does not matter.

Example: python benchmarks/epoch_plan.py --millions 0.1 1 5 --arrays 10 50 --out benchmarks/notes/epoch_plan
"""

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile
from paired import in_a_process_of_its_own, markdown_table, number, publish

from wenet_hs.config.dataset import BatchConf, DatasetConf, SamplingConf
from wenet_hs.data.augment import SPEED_FACTORS
from wenet_hs.data.batching import plan_epoch
from wenet_hs.data.dataset import SpeechDataset, batches
from wenet_hs.data.frame_counts import FrameCounts, conv2d_length
from wenet_hs.data.listing import open_lists
from wenet_hs.data.plan_kernels import numbered_hashes
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable

RATE = 16000
NUM_CLIPS = 200
LANGS = ("ca", "es", "fr", "it", "pt")
LANG_SHARES = (0.02, 0.08, 0.15, 0.25, 0.5)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
STAGES = ("index", "open", "plan", "sampled", "batch")
LINES_AT_ONCE = 100_000
ROWS_AT_ONCE = 1 << 20


def write_list(folder: Path, num_utterances: int) -> Path:
    """The clips and a list of so many utterances of them."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    seconds = np.clip(rng.lognormal(1.6, 0.5, NUM_CLIPS), 1.0, 20.0).round(2)
    for i, duration_s in enumerate(seconds):
        noise = 0.1 * rng.normal(size=round(duration_s * RATE))
        soundfile.write(folder / f"{i}.flac", noise.clip(-1, 1), RATE)
    path = folder / "data.list"
    with path.open("w", encoding="utf-8") as file:
        for line in _lines(folder, seconds.tolist(), num_utterances, rng):
            file.write(line)
    return path


def _lines(folder: Path, seconds: list[float], num_utterances: int, rng: np.random.Generator) -> Iterator[str]:
    text = "".join(rng.choice(list(LETTERS + "  "), size=100_000))
    for first in range(0, num_utterances, LINES_AT_ONCE):
        count = min(LINES_AT_ONCE, num_utterances - first)
        clips = rng.integers(NUM_CLIPS, size=count).tolist()
        starts, sizes = rng.integers(99_000, size=count).tolist(), rng.integers(10, 60, size=count).tolist()
        langs = rng.choice(LANGS, p=LANG_SHARES, size=count).tolist()
        for i in range(count):
            record = {"key": f"utterance_{first + i:09d}", "wav": f"{folder}/{clips[i]}.flac"}
            txt = text[starts[i] : starts[i] + min(sizes[i], int(10 * seconds[clips[i]]))]
            yield json.dumps({**record, "txt": txt, "lang": langs[i], "duration": seconds[clips[i]]}) + "\n"


def make_dataset(path: Path, *, sampled: bool = False) -> SpeechDataset:
    """The dataset of training."""
    conf = DatasetConf(
        speed_perturb=True,
        batch_conf=BatchConf(batch_type="dynamic", max_frames_in_batch=12000),
        sampling=SamplingConf(temperature=2.0) if sampled else None,
    )
    tokenizer = make_tokenizer("char", UnitTable.from_units([*LETTERS, "▁"]))
    return SpeechDataset(open_lists((path,)), tokenizer, conf, training=True, seed=0)


def run_stage(stage: str, path: Path) -> None:
    """Do one stage; print its seconds, the most memory of this process in MB, and how much it made."""
    if stage != "index":
        dataset = make_dataset(path, sampled=stage == "sampled")
    start, cpu, made = time.perf_counter(), cpu_seconds(), 0
    if stage in ("index", "open"):
        made = len(make_dataset(path))
    else:
        plan = dataset.plan(1)
        made = len(plan)
        if stage == "batch":
            made = len(next(iter(batches(dataset, plan, 1))).keys)
    report(start, cpu, made)


def plan_arrays(num_utterances: int) -> None:
    """Draw speeds, count frames and plan an epoch of so many utterances; print as `run_stage` does."""
    rng = np.random.default_rng(0)
    durations = rng.choice(np.clip(rng.lognormal(1.6, 0.5, NUM_CLIPS), 1.0, 20.0).round(2), num_utterances)
    start, cpu = time.perf_counter(), cpu_seconds()
    counts = FrameCounts(DatasetConf(), conv2d_length)
    frames = np.empty(num_utterances, np.int64)
    for first in range(0, num_utterances, ROWS_AT_ONCE):
        items = np.arange(first, min(first + ROWS_AT_ONCE, num_utterances))
        draws = numbered_hashes("(0, 'speed', 1, ", items, num_all=num_utterances) % len(SPEED_FACTORS)
        frames[items] = counts.of(durations[items], np.array(SPEED_FACTORS)[draws])
    conf = BatchConf(batch_type="dynamic", max_frames_in_batch=12000)
    report(start, cpu, len(plan_epoch(frames, conf, seed=0, epoch=1)))


def cpu_seconds() -> float:
    """Of this process and its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def report(start: float, cpu: float, made: int) -> None:
    """Print what it took since then, the most memory of this process, and of one of its children."""
    facts = {
        "seconds": cpu_seconds() - cpu,
        "wall_s": time.perf_counter() - start,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "child_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "made": made,
    }
    print(json.dumps(facts))


def measure(millions: float, folder: Path) -> dict[str, object]:
    """Every stage for a list of so many utterances, which is removed again."""
    start = time.perf_counter()
    path = write_list(folder / str(millions), round(millions * 1e6))
    record: dict[str, object] = {"millions": millions, "list_gb": path.stat().st_size / 1e9}
    record["write_s"] = time.perf_counter() - start
    for stage in STAGES:
        record[stage] = json.loads(in_a_process_of_its_own(Path(__file__), "--stage", stage, "--list", str(path)))
    index_bytes = sum(file.stat().st_size for file in path.parent.glob("data.list.index*/*"))
    record["index_gb"] = index_bytes / 1e9
    shutil.rmtree(path.parent)
    return record


def slope(records: list[dict[str, object]], stage: str, what: str) -> float:
    """More of it a million more utterances, by the two longest lists."""
    (few, low), (many, high) = [(r["millions"], r[stage][what]) for r in records[-2:]]  # type: ignore[index]
    return float((high - low) / (many - few))


def table(records: list[dict[str, object]]) -> str:
    """Seconds and memory of each stage and list."""
    rows = []
    for record in records:
        cells = [number(float(str(record["millions"]))), f"{record['list_gb']:.2f}", f"{record['index_gb']:.2f}"]
        for stage in STAGES:
            facts = record[stage]
            cells.append(f"{facts['seconds']:.1f} s, {facts['peak_mb']:.0f} MB")  # type: ignore[index]
        rows.append(cells)
    if len(records) > 1:
        slopes = [f"{slope(records, s, 'seconds'):.2f} s, {slope(records, s, 'peak_mb'):.0f} MB" for s in STAGES]
        rows.append(["a million more", "", "", *slopes])
    return markdown_table(["million utterances", "list, GB", "columns, GB", *STAGES], rows)


def table_of_arrays(records: dict[float, dict[str, float]]) -> str:
    """The same of plans alone."""
    rows = [
        [number(millions), f"{facts['seconds']:.1f} s", f"{facts['peak_mb']:.0f} MB", f"{facts['made']:.0f}"]
        for millions, facts in records.items()
    ]
    return markdown_table(["million utterances", "arrays", "most memory", "batches"], rows)


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[0.1, 1.0, 5.0], help="lengths of the lists")
    parser.add_argument("--arrays", type=float, nargs="*", default=[], help="lengths of plans without a list")
    parser.add_argument("--folder", type=Path, help="where to write the lists (default: a temporary folder)")
    parser.add_argument("--out", type=Path, help="write OUT.md and OUT.json (default: print only)")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--list", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--plan", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stage:
        run_stage(args.stage, args.list)
        return
    if args.plan:
        plan_arrays(round(args.plan * 1e6))
        return
    alone = {n: json.loads(in_a_process_of_its_own(Path(__file__), "--plan", str(n))) for n in args.arrays}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        records = [measure(millions, Path(folder)) for millions in args.millions]
    facts = {"records": records, "arrays": alone}
    publish(
        "From a list to the first batch",
        f"{table(records)}\n\n{table_of_arrays(alone)}",
        facts,
        device="cpu",
        out=args.out,
    )


if __name__ == "__main__":
    main()
