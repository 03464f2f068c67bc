# SPDX-License-Identifier: Apache-2.0
"""Latency, speed and memory of streaming recognition by chunk size, beside sherpa-onnx with the
exported model.

One thread. The clips of a data list arrive in pieces of 20 ms, as from a microphone: a piece is
computed when it is complete and the one before it is done. `first partial`: from the first sample
above 1 % of the clip's peak to the first partial text. `final`: from the last sample to the final
text, which is `attention_rescoring` here and the greedy text in sherpa-onnx. Both are medians over
the clips. `RTF`: seconds of work per second of audio; both sides take turns, clip by clip.
`memory`: the most that model and stream add to a process that has loaded its libraries and the
clips. `CER`: of the final texts, over all clips. The context before a chunk is 2,560 ms.

Example: python benchmarks/streaming.py --model_dir exp-streaming/softmax --data_list data/test/data.list \
             --out benchmarks/notes/streaming
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from paired import Facts, body_of, in_a_process_of_its_own, number, peak_extra_bytes, publish

import wenet_hs
from wenet_hs.data.audio import read_utterance
from wenet_hs.decode import DecodeOptions
from wenet_hs.decode.stream import EndpointRules
from wenet_hs.manifest.data_list import read_data_list
from wenet_hs.score.edit_distance import count_errors
from wenet_hs.score.tables import markdown_table

RATE, PIECE = 16_000, 320
CHUNKS = {4: 16, 8: 8, 16: 4, 32: 2}
"""Encoder frames of 40 ms per chunk, and chunks before it."""

Wave = NDArray[np.float32]


class Side(Protocol):
    """A recogniser of streams."""

    def start(self) -> None: ...
    def feed(self, piece: Wave) -> str:
        """The partial text."""

    def finish(self) -> str:
        """The final text."""


class Ours:
    def __init__(self, model_dir: str, size: int) -> None:
        options = DecodeOptions(decoding_chunk_size=size, num_decoding_left_chunks=CHUNKS[size])
        self.model = wenet_hs.load_model(model_dir, options=options)

    def start(self) -> None:
        self.stream = self.model.stream(
            endpoints=EndpointRules(silence_s=99, max_segment_s=99, no_speech_s=99)
        )

    def feed(self, piece: Wave) -> str:
        self.stream.feed(piece, RATE)
        return self.stream.partial

    def finish(self) -> str:
        return " ".join(one.text for one in self.stream.finish())


class Sherpa:
    def __init__(self, folder: str, size: int) -> None:
        import sherpa_onnx

        self.tail = np.zeros(
            int((0.04 * size + 0.1) * RATE), np.float32
        )  # without it the last chunk is not computed
        self.recognizer = sherpa_onnx.OnlineRecognizer.from_wenet_ctc(
            tokens=f"{folder}/tokens.txt",
            model=f"{folder}/model.onnx",
            chunk_size=size,
            num_left_chunks=CHUNKS[size],
            num_threads=1,
        )

    def start(self) -> None:
        self.stream = self.recognizer.create_stream()

    def feed(self, piece: Wave) -> str:
        self.stream.accept_waveform(RATE, piece)
        while self.recognizer.is_ready(self.stream):
            self.recognizer.decode_stream(self.stream)
        return self.recognizer.get_result(self.stream)

    def finish(self) -> str:
        self.feed(self.tail)
        return self.end()

    def end(self) -> str:
        """The text of what was given, without silence after it."""
        self.stream.input_finished()
        return self.feed(np.empty(0, np.float32))


@dataclass
class Timing:
    """Seconds of one clip."""

    first_partial: float | None
    final: float
    work: float
    audio: float
    text: str


@dataclass
class Timings:
    """Of all clips."""

    clips: list[Timing] = field(default_factory=list)

    def facts(self) -> Facts:
        first = [one.first_partial for one in self.clips if one.first_partial is not None]
        return {
            "first_partial_s": statistics.median(first) if first else None,
            "final_s": statistics.median(one.final for one in self.clips),
            "rtf": sum(one.work for one in self.clips) / sum(one.audio for one in self.clips),
            "clips": [asdict(one) for one in self.clips],
        }


def stream_clip(side: Side, wave: Wave) -> Timing:
    """Stream one clip, and the times at which texts would have appeared."""
    onset_s = float(np.argmax(np.abs(wave) > 0.01 * np.abs(wave).max())) / RATE
    clock_s, work_s, first_s = 0.0, 0.0, None
    began = time.perf_counter()
    side.start()
    work_s += time.perf_counter() - began
    for begin in range(0, len(wave), PIECE):
        piece = wave[begin : begin + PIECE]
        began = time.perf_counter()
        text = side.feed(piece)
        elapsed_s = time.perf_counter() - began
        clock_s, work_s = max(clock_s, (begin + len(piece)) / RATE) + elapsed_s, work_s + elapsed_s
        if first_s is None and text.strip():
            first_s = clock_s - onset_s
    began = time.perf_counter()
    text = side.finish()
    elapsed_s = time.perf_counter() - began
    audio_s = len(wave) / RATE
    return Timing(first_s, clock_s + elapsed_s - audio_s, work_s + elapsed_s, audio_s, text.strip())


def read_clips(path: str, count: int) -> tuple[list[Wave], list[str]]:
    """Samples and transcripts of the first clips."""
    clips = list(read_data_list(Path(path)))[:count]
    return [read_utterance(one, RATE).numpy() for one in clips], [one.txt for one in clips]


def error_rate(references: Sequence[str], texts: Sequence[str]) -> float:
    """Character errors per character of the references, without spaces."""
    pairs = zip(references, texts, strict=True)
    counts = [
        count_errors([*ref.replace(" ", "")], [*text.replace(" ", "")]) for ref, text in pairs
    ]
    return sum(one.errors for one in counts) / sum(one.num_units for one in counts)


def peak_mb(name: str, model: str, size: int, data_list: str, count: int) -> float:
    """The peak memory of one side, in a process of its own."""
    arguments = ["--memory", name, model, str(size), data_list, str(count)]
    return float(json.loads(in_a_process_of_its_own(Path(__file__), *arguments)))


def run_memory(name: str, model: str, size: str, data_list: str, count: str) -> float:
    torch.set_num_threads(1)
    waves, _ = read_clips(data_list, int(count))

    def run() -> None:
        side = {"ours": Ours, "sherpa": Sherpa}[name](model, int(size))
        for wave in waves:
            stream_clip(side, wave)

    return peak_extra_bytes(run, "cpu") / 1e6


def export(model_dir: str, out: Path, size: int) -> None:
    sizes = ["--chunk", str(size), "--left", str(CHUNKS[size])]
    line = [
        "wenet-hs",
        "export",
        "--model_dir",
        model_dir,
        "--out",
        str(out),
        "--for",
        "sherpa",
        "--streaming",
        *sizes,
    ]
    subprocess.run(line, check=True, stdout=sys.stderr, env=os.environ | {"OMP_NUM_THREADS": "1"})


def measure(model_dir: str, size: int, data_list: str, count: int) -> list[Facts]:
    """The rows of one chunk size."""
    with tempfile.TemporaryDirectory() as name:
        export(model_dir, Path(name) / "exported", size)
        folders = {"ours": model_dir, "sherpa": f"{name}/exported"}
        sides: dict[str, Any] = {
            "ours": Ours(model_dir, size),
            "sherpa": Sherpa(folders["sherpa"], size),
        }
        (waves, references), timings = (
            read_clips(data_list, count),
            {side: Timings() for side in sides},
        )
        for side in sides.values():
            stream_clip(side, waves[0])  # compilation, tables
        for index, wave in enumerate(waves):
            for side in list(sides)[:: -1 if index % 2 else 1]:
                timings[side].clips.append(stream_clip(sides[side], wave))
        peaks = {side: peak_mb(side, folders[side], size, data_list, count) for side in sides}
    errors = {
        side: error_rate(references, [one.text for one in of.clips]) for side, of in timings.items()
    }
    shared = {
        side: {"chunk": size, "error_rate": errors[side], "peak_mb": peaks[side]} for side in sides
    }
    return [{"side": side, **shared[side], **timings[side].facts()} for side in sides]


def row(one: Facts) -> list[str]:
    names = {"ours": "wenet_hs, PyTorch", "sherpa": "sherpa-onnx"}
    first = "" if one["first_partial_s"] is None else number(1000 * one["first_partial_s"])
    times = [first, number(1000 * one["final_s"]), f"{one['rtf']:.4f}", number(one["peak_mb"])]
    times.append(f"{100 * one['error_rate']:.1f}")
    return [number(40 * one["chunk"]), names[one["side"]], *times]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model_dir", required=True, help="a model with chunks and fbank_conf.profile sherpa"
    )
    parser.add_argument("--data_list", required=True, help="clips")
    parser.add_argument(
        "--clips", type=int, default=60, help="the first clips of the list (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="write OUT.md and OUT.json (default: print only)")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    records = [
        one for size in CHUNKS for one in measure(args.model_dir, size, args.data_list, args.clips)
    ]
    columns = [
        "chunk, ms",
        "recogniser",
        "first partial, ms",
        "final, ms",
        "RTF",
        "memory, MB",
        "CER, %",
    ]
    text = f"{body_of(__doc__)}\n\n{markdown_table(columns, [row(one) for one in records])}"
    publish("Streaming by chunk size", text, {"records": records}, device="cpu", out=args.out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        print(json.dumps(run_memory(*sys.argv[2:])))
    else:
        main()
