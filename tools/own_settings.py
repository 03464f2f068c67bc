# SPDX-License-Identifier: Apache-2.0
"""Print the size of the model and the steps of training for examples/own, chosen by the hours of training speech.

Three lines: what was chosen, the settings of the first part of training, and those of the second part and of both.

Example: python tools/own_settings.py --stats data/stats.json --size auto
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from wenet_hs.corpus.expectations import MIN_MINUTES, find_too_little


class Size(NamedTuple):
    """A model and its training."""

    max_hours: float
    """Chosen for less training speech than this."""
    width: int
    blocks: int
    dropout: float
    first_steps: int
    """Of the first part, by CTC alone."""
    second_steps: int
    """With the decoder; from a trained model these alone."""


SIZES = {
    "tiny": Size(0.5, 96, 6, 0.2, 3000, 3000),
    "small": Size(3.0, 144, 6, 0.1, 6000, 4800),
    "medium": Size(20.0, 192, 8, 0.1, 12_000, 9600),
    "large": Size(float("inf"), 256, 12, 0.1, 20_000, 16_000),
}
NUM_SAVED = 12
"""Checkpoints of the second part; the last ones are averaged."""
ADAPTATION = {
    "optim_conf.lr": 1e-3,
    "freeze": "[]",
    "scheduler": "warmup_cosine",
    "model_conf.ctc_only_steps": 0,
    "max_epoch": 100_000,
    "max_minutes": "null",
    "early_stopping": "null",
}
"""Settings of --base besides the steps. docs/design/0011-own-data.md has the choice of rate and frozen layers."""
WARMUP_STEPS = 400


def main() -> None:
    """Print the three lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stats", type=Path, required=True, help="stats.json of `wenet-hs prepare`")
    size_help = "of the model and its training; auto: by the hours (default: auto)"
    parser.add_argument("--size", choices=("auto", *SIZES), default="auto", help=size_help)
    minutes_help = f"stop with less training speech; 0: never (default: {MIN_MINUTES:g})"
    parser.add_argument("--min_minutes", type=float, default=MIN_MINUTES, help=minutes_help)
    parser.add_argument("--base", help="folder of a trained model from which the second part starts")
    args = parser.parse_args()
    try:
        hours = json.loads(args.stats.read_text("utf-8"))["total"]["hours"]["train"]
    except (OSError, ValueError, KeyError):
        parser.exit(2, f"{args.stats}: no statistics of prepared lists; run stage 0 again\n")
    if too_little := find_too_little(hours, args.min_minutes):
        parser.exit(2, f"{args.stats}: {too_little}\n")
    name = args.size if args.size != "auto" else next(name for name, one in SIZES.items() if hours < one.max_hours)
    size = SIZES[name]
    found = f"{hours} hours of training speech: "
    steps = size.second_steps
    if args.base:
        schedule = f'{{"warmup_steps":{WARMUP_STEPS},"total_steps":{steps}}}'
        print(f"{found}{steps} steps from {args.base}, whose size stays\n")
        print(format_settings({**ADAPTATION, "scheduler_conf": schedule, "save_interval": steps // NUM_SAVED}))
        return
    second = {"scheduler_conf.total_steps": steps, "save_interval": steps // NUM_SAVED}
    first = {"model_conf.ctc_only_steps": size.first_steps, "scheduler_conf.total_steps": size.first_steps}
    model = f"{size.blocks} layers of width {size.width}, dropout {size.dropout}"
    print(f"{found}size {name} ({model}, {size.first_steps} + {size.second_steps} steps)")
    print(format_settings(first), format_settings(second | model_settings(size)), sep="\n")


def model_settings(size: Size) -> dict[str, float]:
    """The settings of the model, which both parts of training share."""
    return {
        "encoder_conf.output_size": size.width,
        "encoder_conf.linear_units": 4 * size.width,
        "encoder_conf.num_blocks": size.blocks,
        "encoder_conf.dropout_rate": size.dropout,
        "decoder_conf.linear_units": 4 * size.width,
        "decoder_conf.dropout_rate": size.dropout,
        "model_conf.interctc_layer": size.blocks // 2,
    }


def format_settings(settings: Mapping[str, float | str]) -> str:
    """`key=value` separated by spaces, for --override_config."""
    return " ".join(f"{key}={value}" for key, value in settings.items())


if __name__ == "__main__":
    main()
