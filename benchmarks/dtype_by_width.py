# SPDX-License-Identifier: Apache-2.0
"""From which encoder width on is training in bf16 faster than in fp32 on this processor?

Whole steps of the training loop with the mini recipe's model at several widths, fp32 and bf16 in alternating rounds.
Each round has batches of new lengths, as in training: oneDNN compiles bf16 kernels for each new length. The rule of
`dtype: auto` on a CPU (`MIN_WIDTH_FOR_BF16` in wenet_hs/train/setup.py) rests on this table.

Example: python benchmarks/dtype_by_width.py --threads 1 --out benchmarks/notes/dtype_by_width_intel
"""

import argparse
import statistics

import numpy as np
import torch
from paired import Side, alternate, common_arguments, markdown_table, number, publish, ratios
from training_sides import Size, make_batch, make_state, sizes

from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.train.loop import run_epoch
from wenet_hs.train.state import TrainState

WIDTHS = (96, 144, 192, 256, 384)
BATCHES_PER_CALL = 6


def with_width(mini: Size, width: int) -> Size:
    """The mini recipe's model with another width, and heads of 64 values from width 256 on."""
    heads = max(4, width // 64)
    conf = {"linear_units": 4 * width, "attention_heads": heads}
    encoder = mini.config.encoder_conf.model_copy(update={"output_size": width, **conf})
    decoder = mini.config.decoder_conf.model_copy(update=conf)
    config = mini.config.model_copy(update={"encoder_conf": encoder, "decoder_conf": decoder})
    return Size(f"width {width}", config, mini.num_utterances, mini.seconds)


def step_over_new_batches(state: TrainState, config: ExperimentConfig, size: Size) -> Side:
    """Steps over batches whose lengths no call before had; equal for every state."""
    rng = np.random.default_rng(0)

    def step() -> None:
        lengths = rng.uniform(0.5, 1.5, (BATCHES_PER_CALL, size.num_utterances)) * 100 * size.seconds
        list(run_epoch(state, [make_batch(sorted(map(int, row))) for row in lengths], config))

    return step


def measure(width: int, args: argparse.Namespace) -> dict[str, float]:
    """Seconds of audio per second in fp32 and bf16, and their ratio."""
    size = with_width(sizes(quick=False)[1], width)
    states = {dtype: make_state(size, "softmax", dtype, torch.device(args.device)) for dtype in ("fp32", "bf16")}
    steps = {dtype: step_over_new_batches(*state, size) for dtype, state in states.items()}
    times = alternate(steps, args.rounds, device=args.device, seconds=0.0)
    speed = {
        dtype: BATCHES_PER_CALL * size.audio_seconds / statistics.median(values) for dtype, values in times.items()
    }
    return {"width": width, **speed, "ratio": ratios(times, "fp32")["bf16"]}


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common_arguments(parser, rounds=9)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    records = [measure(width, args) for width in WIDTHS]
    rows = [[str(one["width"]), *(number(one[name]) for name in ("fp32", "bf16", "ratio"))] for one in records]
    text = "Seconds of audio per second of training; the ratio is the median of paired rounds.\n\n"
    text += markdown_table(["encoder width", "fp32", "bf16", "bf16 to fp32"], rows)
    publish("bf16 against fp32 by encoder width", text, {"widths": records}, device=args.device, out=args.out)


if __name__ == "__main__":
    main()
