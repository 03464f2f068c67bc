# SPDX-License-Identifier: Apache-2.0
"""How many seconds of audio does training take in a second, and what does each option gain?

Whole steps of the training loop at the paper's size and at the mini recipe's: each option against
the plain path in alternating rounds. Then what padding costs, what of the real loop is not forward,
backward or optimizer, and how much faster than the steps the data are made.

Example: python benchmarks/training_speed.py --threads 2 --out benchmarks/notes/training_speed_cpu
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from paired import (
    Facts,
    Side,
    alternate,
    in_a_process_of_its_own,
    make_parser,
    number,
    peak_extra_bytes,
    publish,
    ratios,
)
from training_sides import (
    Size,
    batch_of,
    make_batch,
    make_dataset,
    make_state,
    options,
    sizes,
    speech_lengths,
    training_step,
    write_corpus,
)

from wenet_hs.config.dataset import BatchConf, DatasetConf
from wenet_hs.data.batching import plan_epoch
from wenet_hs.data.dataset import SpeechDataset, batches
from wenet_hs.heads.gpu import is_gpu
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.runs.record import Steps
from wenet_hs.score.tables import markdown_table
from wenet_hs.train.monitor import Monitor
from wenet_hs.train.speech_steps import run_epoch

WENET = "WeNet at the paper's size on 2 cores: 7 to 11 audio seconds a second (from earlier notes: not paired)."


def measure_options(size: Size, head: str, args: argparse.Namespace) -> Facts:
    """Audio seconds a second of each option, and its ratio to the plain path."""
    device, batch = torch.device(args.device), batch_of(size)
    steps: dict[str, Side] = {}
    first = {}
    for side in options(size, head, device, compiled=not (args.quick or args.no_compile)):
        steps[side] = training_step(*make_state(size, head, side, device), [batch])
        start = time.perf_counter()
        steps[side]()
        first[side] = time.perf_counter() - start
    times = alternate(steps, args.rounds, device=args.device)
    record: Facts = {
        "size": size.name,
        "head": head,
        "ratio": ratios(times, "plain"),
        "first_step_s": first,
    }
    record["audio_seconds_a_second"] = {
        side: size.audio_seconds / statistics.median(values) for side, values in times.items()
    }
    if head == "softmax" and not (args.quick and size.name == "mini"):
        record["peak_extra_mb"] = {
            side: memory(size, side, args) for side in ("fp32", "checkpointing")
        }
    print(record, flush=True)
    return record


def memory(size: Size, side: str, args: argparse.Namespace) -> float:
    """Megabytes that a step holds above what stood before it, in a process of its own."""
    flags = [
        "--memory",
        side,
        "--size",
        size.name,
        "--device",
        args.device,
        "--threads",
        str(args.threads),
    ]
    return float(
        in_a_process_of_its_own(Path(__file__), *flags, *(["--quick"] if args.quick else []))
    )


def print_memory(args: argparse.Namespace) -> None:
    """The child of `memory`."""
    (size,) = (size for size in sizes(quick=args.quick) if size.name == args.size)
    state, config = make_state(size, "softmax", args.memory, torch.device(args.device))
    training_step(
        state, config, [make_batch([60])]
    )()  # libraries and kernels load, the optimizer's state is made
    print(peak_extra_bytes(training_step(state, config, [batch_of(size)]), args.device) / 1e6)


def measure_padding(size: Size, args: argparse.Namespace) -> Facts:
    """Utterances of unequal lengths, as the plan groups them and padded in the order they come."""
    device = torch.device(args.device)
    frames = (100 * speech_lengths(16 if args.quick else 48)).astype(int)
    conf = BatchConf(batch_type="dynamic", max_frames_in_batch=4000)
    planned = [
        frames[group].tolist() for group in plan_epoch(frames.tolist(), conf, seed=0, epoch=0)
    ]
    arrival = [group.tolist() for group in np.array_split(frames, len(planned))]
    state, config = make_state(size, "softmax", "fp32", device)
    sides = {
        name: training_step(state, config, [make_batch(group) for group in groups])
        for name, groups in (("arrival", arrival), ("planned", planned))
    }
    gain = ratios(alternate(sides, args.rounds, device=args.device), "arrival")["planned"]
    many = (100 * speech_lengths(1_000 if args.quick else 100_000)).astype(int)
    conf = BatchConf(batch_type="dynamic", max_frames_in_batch=12000)
    waste = padding(
        [many[group].tolist() for group in plan_epoch(many.tolist(), conf, seed=0, epoch=0)]
    )
    return {
        "gain": gain,
        "waste_arrival": padding(arrival),
        "waste_planned": padding(planned),
        "num_utterances": len(many),
        "waste_of_plan": waste,
    }


def padding(groups: Sequence[Sequence[int]]) -> float:
    """The share of frames behind the end of an utterance."""
    return 1 - sum(map(sum, groups)) / sum(len(group) * max(group) for group in groups)


def measure_loop(
    size: Size, utterances: Sequence[Utterance], args: argparse.Namespace
) -> dict[str, float]:
    """What of the wall time of the real loop, log included, is not forward, backward or optimizer."""
    dtype = options(size, "hsoftmax", torch.device(args.device), compiled=False)[-1]
    conf = DatasetConf(
        batch_conf=BatchConf(
            batch_type="dynamic", max_frames_in_batch=round(100 * size.audio_seconds)
        )
    )
    return run_loop(size, dtype, make_dataset(utterances, conf, {}), torch.device(args.device))


def run_loop(
    size: Size, dtype: str, dataset: SpeechDataset, device: torch.device, *, num_workers: int = 0
) -> dict[str, float]:
    """An epoch as in every training: files are read, features computed and batches made beside the
    steps.
    """
    state, config = make_state(size, "softmax", dtype, device)
    list(run_epoch(state, [batch_of(size)], config))
    loaded = batches(dataset, dataset.plan(0), 0, num_workers=num_workers, pin=is_gpu(device))
    with (
        tempfile.TemporaryDirectory() as folder,
        Monitor(
            Path(folder),
            state.progress,
            config,
            steps=Steps(planned=0, per_epoch=1, warmup=0),
            device=device,
        ) as monitor,
    ):
        start, busy, waited, steps = time.perf_counter(), 0.0, 0.0, 0
        for stats in run_epoch(state, loaded, config):
            monitor.record_step(stats)
            busy, waited, steps = (
                busy + stats.compute_seconds,
                waited + stats.wait_seconds,
                steps + 1,
            )
        wall = time.perf_counter() - start
    return {"steps": steps, "outside": 1 - busy / wall, "wait": waited / wall}


def measure_data(
    utterances: Sequence[Utterance], folder: Path, args: argparse.Namespace
) -> dict[str, float]:
    """Audio seconds a second of reading, features and batches: in a thread, in two processes, and
    from the cache.
    """
    total = sum(utterance.duration or 0.0 for utterance in utterances)
    conf = DatasetConf(batch_conf=BatchConf(batch_type="dynamic", max_frames_in_batch=4000))
    plain, cached = (
        make_dataset(utterances, conf, {}),
        make_dataset(utterances, conf, {"cache_features": True}),
    )
    cached.cache_in(folder / "features.bin")
    sides: dict[str, Side] = {
        "thread": lambda: sum(1 for _ in batches(plain, plain.plan(0), 0)),
        "2 workers": lambda: sum(1 for _ in batches(plain, plain.plan(0), 0, num_workers=2)),
        "cached": lambda: sum(1 for _ in batches(cached, cached.plan(0), 0)),
    }
    times = alternate(sides, args.rounds)
    return {name: total / statistics.median(values) for name, values in times.items()}


def options_table(records: Sequence[Facts]) -> str:
    """A row for each size, head and option."""
    rows = []
    for record in records:
        speed, ratio, first = (
            record[name] for name in ("audio_seconds_a_second", "ratio", "first_step_s")
        )
        held = record.get("peak_extra_mb", {})
        for side in speed:
            row = [
                str(record["size"]),
                str(record["head"]),
                side,
                number(speed[side]),
                f"{number(ratio[side])}×",
            ]
            rows.append([*row, number(first[side]), number(held[side]) if side in held else "–"])
    return markdown_table(
        [
            "size",
            "head",
            "option",
            "audio s/s",
            "to plain",
            "first step, s",
            "memory of a step, MB",
        ],
        rows,
    )


def text_of(facts: Facts) -> str:
    """The note."""
    records, waste, loop, data = (facts[name] for name in ("options", "padding", "loop", "data"))
    fastest = {
        record["size"]: max(record["audio_seconds_a_second"].values())
        for record in records
        if record["head"] == "softmax"
    }
    loops = [
        f"{name}: {one['outside']:.1%} of {one['steps']} steps outside forward, backward and optimizer, of it "
        f"{one['wait']:.1%} waiting for data"
        for name, one in loop.items()
    ]
    speeds = [_speed(name, speed, fastest) for name, speed in data.items()]
    return "\n\n".join(
        [
            "Whole steps: forward, backward, clipping, Adam. `plain`: float32 with torch's dropout, what WeNet "
            "computes; `fp32`: with our dropout; every other option changes one thing of `fp32`. Ratios are medians of "
            f"paired rounds. {WENET}",
            options_table(records),
            f"Padding: in batches of the plan the same utterances train {number(waste['gain'])}× as fast as in the "
            f"order they come ({waste['waste_planned']:.1%} of the frames are padding instead of "
            f"{waste['waste_arrival']:.1%}); a plan of {waste['num_utterances']:,} utterances and 12,000 frames a "
            f"batch: {waste['waste_of_plan']:.1%}.",
            "The real loop, files to log lines: " + "; ".join(loops) + ".",
            "Audio to batches (and how many times the fastest step of a size): "
            + ", ".join(speeds)
            + ".",
        ]
    )


def _speed(name: str, speed: float, fastest: Mapping[str, float]) -> str:
    times = ", ".join(f"{number(speed / fast)}× {size}" for size, fast in fastest.items())
    return f"{name} {number(speed)} audio s/s ({times})"


def measure(args: argparse.Namespace) -> Facts:
    """All facts of the note."""
    paper, mini = sizes(quick=args.quick)
    records = [
        measure_options(size, head, args)
        for size in (paper, mini)
        for head in ("softmax", "hsoftmax")
    ]
    with tempfile.TemporaryDirectory() as folder:
        utterances = write_corpus(
            Path(folder), speech_lengths(12 if args.quick else 60, seed=3).tolist()
        )
        loop = {size.name: measure_loop(size, utterances, args) for size in (paper, mini)}
        data = measure_data(utterances, Path(folder), args)
    return {"options": records, "padding": measure_padding(mini, args), "loop": loop, "data": data}


def main() -> None:
    """Measure and publish."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small models and one round: whether it runs, no figures",
    )
    parser.add_argument(
        "--no_compile", action="store_true", help="without the option compile, which takes minutes"
    )
    parser.add_argument("--memory", choices=("fp32", "checkpointing"), help=argparse.SUPPRESS)
    parser.add_argument("--size", choices=("paper", "mini"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory:
        print_memory(args)
        return
    if args.quick:
        args.rounds = 1
    facts = measure(args)
    publish("Speed of training", text_of(facts), facts, device=args.device, out=args.out)


if __name__ == "__main__":
    main()
