# SPDX-License-Identifier: Apache-2.0
"""How much time and memory do `wenet-hs transcribe` and `wenet-hs align` need for a recording of an
hour?

The recordings are the utterances of data lists in random order, with pauses of 0.3 to 1.5 s of
quiet noise before each. `transcribe` writes all formats, `align` ELAN files; each runs in a process
of its own, on one core. Of the aligned words, those are counted that lie within 0.3 s of the
utterance that they belong to.

Example: python benchmarks/long_recordings.py --model_dir exp/softmax --data_lists data/train/data.list \
             --out benchmarks/notes/long_recordings
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import torch
from paired import Facts, in_a_process_of_its_own, number, publish

from wenet_hs.data.audio import read_utterance
from wenet_hs.manifest.data_list import Utterance, read_data_list, write_data_list
from wenet_hs.score.tables import markdown_table

RATE = 16_000
PAUSE_S = (0.3, 1.5)
NOISE_AMPLITUDE = 1e-3  # -60 dB of full scale
TOLERANCE_S = 0.3


class Clip(NamedTuple):
    """An utterance in a long recording, from `start` to `end` in seconds."""

    txt: str
    start: float
    end: float


def write_recording(path: Path, utterances: Sequence[Utterance], minutes: float) -> list[Clip]:
    """Write a recording and say what is in it. It ends with the last utterance that fits.

    Utterances are repeated if the lists have less speech.
    """
    rng, noise = random.Random(2), np.random.default_rng(0)
    order = rng.sample(utterances, len(utterances))
    clips: list[Clip] = []
    num_samples = 0
    with soundfile.SoundFile(path, "w", RATE, 1) as file:
        while True:
            utterance = order[len(clips) % len(order)]
            speech = read_utterance(utterance, RATE).numpy()
            pause = noise.normal(0, NOISE_AMPLITUDE, round(RATE * rng.uniform(*PAUSE_S)))
            end = num_samples + len(pause) + len(speech)
            if end > 60 * minutes * RATE:
                return clips
            file.write(np.concatenate([pause, speech]))
            clips.append(Clip(utterance.txt, (num_samples + len(pause)) / RATE, end / RATE))
            num_samples = end


def run_command(arguments: Sequence[str]) -> dict[str, float]:
    """Seconds and peak memory of `wenet-hs`.

    The peak is that of all children, so each call needs its own process.
    """
    start = time.perf_counter()
    subprocess.run(
        ["wenet-hs", *arguments],
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=sys.stderr,
    )
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"seconds": time.perf_counter() - start, "peak_mb": peak_mb}


def measure(command: str, arguments: Sequence[str]) -> dict[str, float]:
    """`run_command` in a process of its own."""
    return json.loads(in_a_process_of_its_own(Path(__file__), "--run", command, *arguments))


def count_words_in_place(aligned: Path, clips: Sequence[Clip]) -> tuple[int, int]:
    """How many aligned words lie within 0.3 s of their utterance, and how many there are."""
    words = json.loads(aligned.read_text("utf-8"))["words"]
    owners = [clip for clip in clips for _ in clip.txt.split()]
    pairs = list(zip(words, owners, strict=True))
    in_place = sum(
        clip.start - TOLERANCE_S <= word["start"] and word["end"] <= clip.end + TOLERANCE_S
        for word, clip in pairs
    )
    return in_place, len(pairs)


def measure_recording(
    model_dir: str, utterances: Sequence[Utterance], minutes: float
) -> list[Facts]:
    """The rows of one recording: transcribe, align."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        audio, tapes, aligned = folder / "tape.wav", folder / "tapes.list", folder / "aligned.jsonl"
        clips = write_recording(audio, utterances, minutes)
        text = " ".join(clip.txt for clip in clips)
        write_data_list(tapes, [Utterance(key="tape", wav=str(audio), txt=text)])
        formats = [f for form in ("elan", "textgrid", "srt") for f in (f"--{form}", name)]
        formats += ["--ctm", f"{name}/all.ctm", "--tsv", f"{name}/all.tsv"]
        transcribed = measure("transcribe", ["--model_dir", model_dir, *formats, str(audio)])
        lines = (folder / "all.tsv").read_text("utf-8").splitlines()[1:]
        longest_s = max(
            float(end) - float(start) for _, start, end, *_ in (line.split("\t") for line in lines)
        )
        result = f"{len(lines)} segments of at most {longest_s:.1f} s for {len(clips)} utterances"
        data = ["--data_list", str(tapes), "--out", str(aligned), "--elan", f"{name}/aligned"]
        alignment = measure("align", ["--model_dir", model_dir, *data])
        in_place, total = count_words_in_place(aligned, clips)
    return [
        {"minutes": minutes, "command": "transcribe", "result": result, **transcribed},
        {
            "minutes": minutes,
            "command": "align",
            "result": f"{in_place} of {total} words in their utterance",
            **alignment,
        },
    ]


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model_dir", required=True, help="experiment folder of a model with CTC")
    parser.add_argument(
        "--data_lists", nargs="+", required=True, help="whose utterances the recordings are made of"
    )
    parser.add_argument(
        "--minutes", type=float, nargs="+", default=[10, 60], help="lengths of the recordings"
    )
    parser.add_argument("--out", type=Path, help="write OUT.md and OUT.json (default: print only)")
    args = parser.parse_args()
    torch.set_num_threads(1)  # as in the measured commands
    utterances = [utterance for path in args.data_lists for utterance in read_data_list(path)]
    records = [
        one
        for minutes in args.minutes
        for one in measure_recording(args.model_dir, utterances, minutes)
    ]
    rows = [
        [
            number(one["minutes"]),
            one["command"],
            one["result"],
            number(one["seconds"]),
            number(one["peak_mb"]),
        ]
        for one in records
    ]
    text = markdown_table(["minutes", "command", "result", "seconds", "peak memory (MB)"], rows)
    publish("An hour in one recording", text, {"records": records}, device="cpu", out=args.out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(run_command(sys.argv[2:])))
    else:
        main()
