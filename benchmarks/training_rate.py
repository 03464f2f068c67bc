# SPDX-License-Identifier: Apache-2.0
"""How near to the matrix rate of its device is a training step of the paper's networks, and does it
wait for data?

Whole steps in bfloat16 and in float32 (on a GPU with TF32, as trainings there) of the networks and
batches of conf/paper_ucla.yaml (words of 1 s) and conf/paper_cv.yaml (clips of 5 s), random
weights, no padding. The share of the matrix rate: the multiplications and additions of the products
that a step has, per second, as a share of those of a product of two 8192 × 8192 matrices of
bfloat16 in the same rounds. Then an epoch of the real loop over noise: files, speed perturbation,
features and masks as the YAML has them, with one thread or four processes that make the batches.

Example: python benchmarks/training_rate.py --device cuda --out benchmarks/notes/training_rate_gpu
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import torch
from paired import Facts, Side, alternate, body_of, make_parser, number, publish, ratios
from torch.utils.flop_counter import FlopCounterMode
from training_sides import (
    Size,
    batch_of,
    changed,
    make_dataset,
    make_state,
    options,
    speech_lengths,
    training_step,
    write_corpus,
)
from training_speed import run_loop

from wenet_hs.config.load import load_config
from wenet_hs.heads.gpu import is_gpu
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.score.tables import markdown_table

CONF = Path(__file__).parents[1] / "conf"
SECONDS = {"paper_ucla": 1.0, "paper_cv": 5.0}
"""Of an utterance."""
HEADS = ("softmax", "hsoftmax")
PRODUCT = "product"
SMALL = {"num_blocks": 1, "linear_units": 128}


def make_sizes(*, quick: bool) -> list[Size]:
    """The networks of the paper, each with a full batch; networks of one layer and short batches if
    quick.
    """
    sizes = []
    for name, seconds in SECONDS.items():
        config = load_config(CONF / f"{name}.yaml")
        if quick:
            encoder = config.encoder_conf.model_dump() | SMALL | {"output_size": 64}
            config = changed(
                config, encoder_conf=encoder, decoder_conf=config.decoder_conf.model_dump() | SMALL
            )
        frames = config.dataset_conf.batch_conf.max_frames_in_batch
        sizes.append(Size(name, config, 2 if quick else round(frames / (100 * seconds)), seconds))
    return sizes


def count_operations(step: Side) -> int:
    """The multiplications and additions of its products."""
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


def measure_steps(size: Size, args: argparse.Namespace) -> list[Facts]:
    """Audio hours an hour of each head and dtype, and the share of the rate of a large product."""
    device, steps, batch = torch.device(args.device), dict[str, Side](), batch_of(size)
    if is_gpu(device):
        batch = batch.pin_memory()  # as the loop has them
    dtypes = [
        side
        for side in options(size, "hsoftmax", device, compiled=False)
        if side in ("bf16", "fp32")
    ]
    for head, dtype in product(HEADS, dtypes):
        state, config = make_state(size, head, dtype, device)
        steps[f"{head}, {dtype}"] = training_step(state, config, [batch] * config.accum_grad)
    operations = {name: count_operations(step) for name, step in steps.items()}
    width = 256 if args.quick else 8192
    wide = torch.randn(width, width, device=device, dtype=torch.bfloat16)
    times = alternate({**steps, PRODUCT: lambda: wide @ wide}, args.rounds, device=args.device)
    rate = 2 * width**3 / median(times[PRODUCT])
    to_fp32 = ratios(times, "softmax, fp32")
    records = []
    for name, count in operations.items():
        seconds = median(times[name])
        hours = size.audio_seconds * size.config.accum_grad / seconds
        record = {
            "size": size.name,
            "side": name,
            "audio_hours_an_hour": hours,
            "to_fp32": to_fp32[name],
        }
        records.append(
            record | {"share_of_matrix_rate": count / seconds / rate, "matrix_tflops": rate / 1e12}
        )
        print(records[-1], flush=True)
    return records


def measure_loops(size: Size, folder: Path, args: argparse.Namespace) -> list[Facts]:
    """The share of the wall time that the loop waits for data, with a thread and with processes
    that make batches.
    """
    device = torch.device(args.device)
    dtype = options(size, "hsoftmax", device, compiled=False)[-1]
    num = 8 if args.quick else 300
    seconds = np.full(num, 1.0) if size.name == "paper_ucla" else speech_lengths(num)
    folder.mkdir()
    clips = repeated(write_corpus(folder, seconds.tolist()), 1 if args.quick else 4)
    dataset = make_dataset(clips, size.config.dataset_conf, {})
    records = []
    for num_workers in (0, 2 if args.quick else 4):
        found = run_loop(size, dtype, dataset, device, num_workers=num_workers)
        records.append({"size": size.name, "dtype": dtype, "num_workers": num_workers, **found})
        print(records[-1], flush=True)
    return records


def repeated(utterances: Sequence[Utterance], times: int) -> list[Utterance]:
    """Each one so many times, under other names."""
    return [replace(one, key=f"{turn}-{one.key}") for turn in range(times) for one in utterances]


def text_of(facts: Mapping[str, list[Facts]]) -> str:
    """Both tables."""
    steps = [
        [
            str(record["size"]),
            str(record["side"]),
            number(record["audio_hours_an_hour"]),
            f"{number(record['to_fp32'])}×",
            f"{100 * record['share_of_matrix_rate']:.1f} %",
            number(record["matrix_tflops"]),
        ]
        for record in facts["steps"]
    ]
    loops = [
        [
            *(str(record[name]) for name in ("size", "dtype", "num_workers", "steps")),
            f"{record['wait']:.1%}",
        ]
        for record in facts["loops"]
    ]
    header = [
        "shape",
        "side",
        "audio hours an hour",
        "to softmax, fp32",
        "share of the matrix rate",
        "matrix TFLOP/s",
    ]
    of_loops = ["shape", "dtype", "num_workers", "steps", "of the time waiting for data"]
    return f"{markdown_table(header, steps)}\n\n{markdown_table(of_loops, loops)}"


def main() -> None:
    """Measure and publish."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small models and one round: whether it runs, no figures",
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.device != "cpu":
        torch.set_float32_matmul_precision("high")  # as `matmul_precision: auto` does
    if args.quick:
        args.rounds = 1
    sizes = make_sizes(quick=args.quick)
    facts = {"steps": [record for size in sizes for record in measure_steps(size, args)]}
    with tempfile.TemporaryDirectory() as name:
        facts["loops"] = [
            record for size in sizes for record in measure_loops(size, Path(name) / size.name, args)
        ]
    text = f"{body_of(__doc__)}\n\n{text_of(facts)}"
    publish("Rate of training", text, facts, device=args.device, out=args.out)


if __name__ == "__main__":
    main()
