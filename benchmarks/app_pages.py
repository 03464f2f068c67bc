# SPDX-License-Identifier: Apache-2.0
"""How long the pages of `wenet-hs app` take in a large project, and the waveform of a recording of two hours.

The project has lists of 20,000 utterances, 20,000 findings, 20,000 annotations that are not used, the scores of a test
set of 2,000 and a transcribed recording with 3,000 segments. `first`: after the start of the server, with its files
not read yet; `again`: median of five. Times are those of the whole answer, from the request to its last byte.

Example: python benchmarks/app_pages.py --out benchmarks/notes/app_pages
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import numpy as np
import soundfile
from paired import body_of, publish

from wenet_hs.annotation.recordings import Record, write_record
from wenet_hs.annotation.tiers import TimedText, TranscribedRecording, TranscribedSegment
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.score.tables import markdown_table
from wenet_hs.tree.atomic import write_atomic

RATE, HOURS, UTTERANCES, SEGMENTS = 16_000, 2, 20_000, 3_000
SETS = {"train": UTTERANCES - 4_000, "dev": 2_000, "test": 2_000}
PAGES = {
    "recordings": "recordings",
    "check, a kind of finding": "check?kind=digits",
    "check, its last page": "check?kind=digits&page=1000",
    "annotations that are not used": "rejected?page=300",
    "train": "train",
    "results": "results",
    "transcribe": "transcribe",
    "text of a recording of two hours": "text?name=long",
    "waveform of a recording of two hours": "peaks?name=long",
    "share": "share",
}


def make_project(folder: Path, hours: float = HOURS) -> None:
    """Files of a large project, with one recording of noise."""
    samples = np.random.default_rng(0).integers(-3000, 3000, round(RATE * 3600 * hours), dtype=np.int16)
    media = folder.parents[1] / "long.wav"
    soundfile.write(media, samples, RATE, subtype="PCM_16")
    first = 0
    for name, size in SETS.items():
        keys = range(first, first + size)
        clips = [
            Utterance(
                key=f"u{n:05d}", wav=str(media), txt=f"text {n}", lang="und", duration=0.3, start=n / 3, end=n / 3 + 0.3
            )
            for n in keys
        ]
        write_data_list(folder / "data" / name / "data.list", clips)
        write_atomic(folder / "data" / name / "text", "".join(f"{one.key}\t{one.txt}\n" for one in clips))
        first += size
    rows = [f"train\tu{n:05d}\tdigits\t{n}\n" for n in range(UTTERANCES)]
    write_atomic(folder / "data/check.tsv", "".join(["set\tkey\tkind\tdetails\n", *rows]))
    rows = [f"r{n:05d}\t{media}\tno text\n" for n in range(UTTERANCES)]
    write_atomic(folder / "data/rejected.tsv", "".join(["key\tpath\treason\n", *rows]))
    total = {"hours": {"train": 10.0}, "utterances": SETS}
    write_atomic(folder / "data/stats.json", json.dumps({"total": total}))
    segments = []
    for n in range(SEGMENTS):
        start = n * 3600 * hours / SEGMENTS
        words = tuple(
            TimedText(text=f"w{k}", start=start + k / 5, end=start + (k + 1) / 5, confidence=0.5) for k in range(8)
        )
        text = " ".join(word.text for word in words)
        segments.append(TranscribedSegment(start=start, end=start + 2.0, text=text, words=words, confidence=0.5))
    (folder / "transcribed").mkdir()
    recording = TranscribedRecording(media=media, duration_s=3600.0 * hours, segments=tuple(segments))
    write_record(folder / "transcribed/long.json", Record(recording, media))


def score(folder: Path) -> None:
    """A scored training."""
    reference, hypothesis = folder / "data/test/text", folder / "exp/softmax/test/joint/text"
    write_atomic(folder / "exp/softmax/train.yaml", "head: softmax\n")
    write_atomic(hypothesis, reference.read_text("utf-8").replace("ext", "exit"))
    lists = ["--ref", str(reference), "--data_list", str(folder / "data/test/data.list")]
    command = [sys.executable, "-m", "wenet_hs.bin.main", "score", "--metric", "cer", "--by", "lang", *lists]
    command += ["--hyp", str(hypothesis.parents[1]), "--name", "x"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def serve(projects: Path) -> Iterator[httpx2.Client]:
    """A client of a new server, which has its cookie."""
    command = [sys.executable, "-m", "wenet_hs.bin.main", "app", "--dir", str(projects), "--port", "0"]
    environment = os.environ | {"HOME": str(projects.parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        address = next(line.strip() for line in server.stdout if line.startswith("http"))
        parts = urlsplit(address)
        with httpx2.Client(base_url=f"{parts.scheme}://{parts.netloc}", timeout=120, follow_redirects=True) as client:
            client.get(address).raise_for_status()
            yield client
        server.terminate()


def seconds(client: httpx2.Client, path: str) -> float:
    """Time of one answer."""
    begin = time.perf_counter()
    client.get(f"/p/large/{path}", headers={"Accept": "text/html"}).raise_for_status()
    return time.perf_counter() - begin


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write OUT.md and OUT.json (default: print only)")
    args = parser.parse_args()
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "projects/large"
        make_project(project)
        score(project)
        with serve(project.parent) as client:
            seconds(client, "share")  # templates and modules are loaded
            for name, path in PAGES.items():
                first = seconds(client, path)
                times[name] = (first, statistics.median(seconds(client, path) for _ in range(5)))
    table = [[name, *(f"{1000 * value:.0f}" for value in pair)] for name, pair in times.items()]
    text = f"{body_of(__doc__)}\n\n{markdown_table(['page', 'first, ms', 'again, ms'], table)}"
    publish("Pages of a large project", text, {"seconds": times}, device="cpu", out=args.out)


if __name__ == "__main__":
    main()
