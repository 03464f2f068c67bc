# SPDX-License-Identifier: Apache-2.0
"""Compute the global mean and variance of the features (`global_cmvn`, WeNet's JSON).

Example: wenet-hs cmvn --data_list data/train/data.list --config conf/train_conformer.yaml --out data/global_cmvn
"""

import argparse
import os
from functools import reduce
from operator import add
from pathlib import Path

from rich.console import Console
from rich.progress import track

from wenet_hs.bin.command import main_of
from wenet_hs.config.load import load_config
from wenet_hs.data.cmvn import CMVN_GROUP, global_sums, write_cmvn
from wenet_hs.data.listing import DATA_TYPES, open_lists
from wenet_hs.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--data_list", type=Path, required=True, help="the training list")
    parser.add_argument(
        "--data_type", choices=DATA_TYPES, default="raw", help="what the list is: JSON lines, or tars (default: raw)"
    )
    parser.add_argument("--config", type=Path, required=True, help="the experiment, for its dataset_conf")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument(
        "--num_workers", type=int, default=os.cpu_count() or 1, help="processes; the result is the same for any number"
    )


def run(args: argparse.Namespace) -> None:
    """Compute and write the statistics; say what they are made of."""
    if args.num_workers < 0:
        raise ConfigError(f"--num_workers {args.num_workers}: must be 0 or more; 0 uses this process alone")
    conf = load_config(args.config).dataset_conf
    utterances = open_lists((args.data_list,), args.data_type, flag="--data_list")
    num_groups = -(-len(utterances) // CMVN_GROUP)
    groups = global_sums(utterances, conf, num_workers=min(args.num_workers, num_groups - 1))
    console = Console(stderr=True)
    shown = track(groups, "features", num_groups, console=console, disable=not console.is_terminal)
    sums = reduce(add, shown)
    write_cmvn(args.out, sums.sum, sums.sum_squares, sums.num_frames)
    hours = sums.num_frames * conf.fbank_conf.frame_shift / 1000 / 3600
    print(f"{args.out}: {sums.num_frames} frames, {hours:.2f} hours of {len(utterances)} utterances")


if __name__ == "__main__":
    main_of(__name__)
