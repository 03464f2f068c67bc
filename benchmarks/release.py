# SPDX-License-Identifier: Apache-2.0
"""From a release of Common Voice to the plan of an epoch: time and memory of each command of the
recipe's lists.

The release is made up: 15 languages of equal size, names that are hard links to short mp3 clips
(wav where libsndfile writes no mp3), sentences of random letters. `prepare` takes all hours
(`--alpha 1 --ratio 1`), so that the training list has most of the rows. Time is that of all
processes of a command together (processor) and on the clock; memory is the peak of its largest
process. Each number of rows is measured; the last columns continue the straight line through the
smallest and the largest to `--millions` rows and are extrapolated.

Example: python benchmarks/release.py --rows 30000 300000 --out benchmarks/notes/release
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import soundfile
from paired import body_of, number, publish

from wenet_hs.score.tables import markdown_table

LANGS = "ca es fr it pt be cs pl ru uk ba ky tr tt uz"
NUM_CLIPS, NUM_SOUNDS = 5000, 100
"""Files that names are linked to, and different contents of them."""
LATIN, CYRILLIC = "abcdefghijklmnopqrstuvwxyz", "абвгдежзийклмнопрстуфхцчшщыэюя"
WENET_HS = (sys.executable, "-m", "wenet_hs.bin.main")
LAUNCH = """
import resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
seconds, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, seconds, used.ru_maxrss / 1024)
sys.exit(done.stdout[-1000:] if done.returncode else 0)
"""
"""Runs a command and prints its cost.

A small process: the peak of a child begins with the memory of its parent.
"""


@dataclass(frozen=True)
class Cost:
    """What a command needed."""

    processor_s: float
    clock_s: float
    peak_mb: float


def write_clips(folder: Path, num_clips: int) -> list[tuple[Path, float]]:
    """Clips of 1 to 10 s and their seconds: noise in mp3 at 48 kHz, a few contents copied to all
    files.
    """
    suffix = "mp3" if "MP3" in soundfile.available_formats() else "wav"
    rng = np.random.default_rng(0)
    folder.mkdir()
    sounds = []
    for i in range(min(NUM_SOUNDS, num_clips)):
        samples = round(48000 * float(np.clip(rng.lognormal(1.6, 0.4), 1.0, 10.0)))
        path = folder / f"sound_{i}.{suffix}"
        soundfile.write(path, 0.1 * rng.standard_normal(samples), 48000)
        sounds.append((path.read_bytes(), samples / 48000))
    clips = []
    for i in range(num_clips):
        content, seconds = sounds[i % len(sounds)]
        (folder / f"clip_{i}.{suffix}").write_bytes(content)
        clips.append((folder / f"clip_{i}.{suffix}", seconds))
    return clips


def write_release(folder: Path, num_rows: int, clips: list[tuple[Path, float]]) -> None:
    """Write `validated.tsv`, `clip_durations.tsv` and `clips/` of each language."""
    rng = np.random.default_rng(1)
    for number_of_lang, lang in enumerate(LANGS.split()):
        letters = CYRILLIC if lang in ("be", "ru", "uk", "ba", "ky", "tt") else LATIN
        text = "".join(rng.choice(list(letters + "    "), size=100_000))
        (folder / lang / "clips").mkdir(parents=True)
        rows, durations = ["client_id\tpath\tsentence\tup_votes\tlocale"], ["clip\tduration[ms]"]
        count = num_rows // len(LANGS.split())
        starts, sizes = (
            rng.integers(99_000, size=count).tolist(),
            rng.integers(20, 80, size=count).tolist(),
        )
        speakers = (
            np.floor(count / 40 * rng.random(count) ** 2).astype(int).tolist()
        )  # some speak much more than others
        for i in range(count):
            path, seconds = clips[(i + number_of_lang * count) % len(clips)]
            name = f"common_voice_{lang}_{20_000_000 + i}{path.suffix}"
            os.link(path, folder / lang / "clips" / name)
            sentence = text[starts[i] : starts[i] + sizes[i]].strip() or "a"
            rows.append(f"{lang}{speakers[i]:0100d}\t{name}\t{sentence}\t2\t{lang}")
            durations.append(f"{name}\t{round(1000 * seconds)}")
        (folder / lang / "validated.tsv").write_text("\n".join(rows) + "\n", "utf-8")
        (folder / lang / "clip_durations.tsv").write_text("\n".join(durations) + "\n", "utf-8")


def run(*command: str | Path) -> Cost:
    """Run a command. Raises RuntimeError where it fails."""
    line = [sys.executable, "-c", LAUNCH, *map(str, command)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(line[3:])}: {done.stderr.strip().splitlines()[-1]}")
    return Cost(*map(float, done.stdout.split()))


def measure(folder: Path, num_rows: int, num_clips: int) -> Iterator[tuple[str, Cost]]:
    """The cost of each command on a release of so many rows."""
    release, trained = folder / "release", folder / "stated-none" / "train" / "data.list"
    write_release(release, num_rows, write_clips(folder / "clips", num_clips))
    for stated in ("stated", "not stated"):
        for check in ("none", "exists"):
            out = folder / f"{stated.split()[0]}-{check}"
            yield (
                f"prepare, durations {stated}, `--check_audio {check}`",
                prepare(release, out, check),
            )
        for path in release.glob("*/clip_durations.tsv"):
            path.unlink()
    units, tree = folder / "units.txt", folder / "tree.json"
    yield "units", run(*WENET_HS, "units", "--data_list", trained, "--kind", "char", "--out", units)
    lists = ("--data_list", trained, "--units", units)
    yield (
        "tree build, Huffman",
        run(*WENET_HS, "tree", "build", "--kind", "huffman", *lists, "--out", tree),
    )
    plan = (sys.executable, Path(__file__).with_name("epoch_plan.py"), "--units", units, "--list")
    yield "open the training list, plan an epoch", run(*plan, trained)
    unknown = folder / "unknown.list"
    with trained.open(encoding="utf-8") as known, unknown.open("w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps({**json.loads(line), 'duration': None})}\n" for line in known)
    yield "the same, durations from the headers", run(*plan, unknown)


def prepare(release: Path, out: Path, check: str) -> Cost:
    """Cost of `wenet-hs prepare commonvoice`."""
    options = (
        "--corpus",
        release,
        "--langs",
        LANGS,
        "--alpha",
        "1",
        "--ratio",
        "1",
        "--check_audio",
        check,
    )
    return run(*WENET_HS, "prepare", "commonvoice", *options, "--out", out)


def extrapolate(costs: dict[int, Cost], name: str, num_rows: float) -> float:
    """The value of a cost at a number of rows, on the line through the fewest and the most rows
    measured.
    """
    fewest, most = min(costs), max(costs)
    low, high = getattr(costs[fewest], name), getattr(costs[most], name)
    slope = high / most if fewest == most else (high - low) / (most - fewest)
    return float(high + slope * (num_rows - most))


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[30_000, 300_000], help="rows of the release"
    )
    parser.add_argument(
        "--clips", type=int, default=NUM_CLIPS, help="files that the rows are linked to"
    )
    parser.add_argument("--millions", type=float, default=4.0, help="rows to extrapolate to")
    parser.add_argument(
        "--folder", type=Path, help="where to write the release (default: a temporary folder)"
    )
    parser.add_argument("--out", type=Path, help="write OUT.md and OUT.json (default: print only)")
    args = parser.parse_args()
    costs: dict[str, dict[int, Cost]] = {}
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
    for num_rows in args.rows:
        folder = Path(tempfile.mkdtemp(dir=args.folder))
        try:
            for name, cost in measure(folder, num_rows, args.clips):
                costs.setdefault(name, {})[num_rows] = cost
                print(f"{num_rows} rows: {name}: {cost}", file=sys.stderr, flush=True)
        finally:
            shutil.rmtree(folder)
    columns = ["command", "rows", "processor, s", "clock, s", "peak, MB"]
    columns += [
        f"processor at {args.millions:g} million rows (extrapolated), s",
        "peak there (extrapolated), GB",
    ]
    table = []
    for name, of_rows in costs.items():
        for num_rows, cost in of_rows.items():
            numbers = [number(value) for value in asdict(cost).values()]
            more = [number(extrapolate(of_rows, "processor_s", 1e6 * args.millions))]
            more.append(f"{extrapolate(of_rows, 'peak_mb', 1e6 * args.millions) / 1024:.1f}")
            table.append(
                [name, f"{num_rows:,}", *numbers, *(more if num_rows == max(of_rows) else ["", ""])]
            )
    text = f"{body_of(__doc__)}\n\n{markdown_table(columns, table)}"
    records = {
        name: {rows: asdict(cost) for rows, cost in of_rows.items()}
        for name, of_rows in costs.items()
    }
    publish(
        "From a release of Common Voice to a plan",
        text,
        {"records": records},
        device="cpu",
        out=args.out,
    )


if __name__ == "__main__":
    main()
