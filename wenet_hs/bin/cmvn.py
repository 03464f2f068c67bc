# SPDX-License-Identifier: Apache-2.0
"""Compute the global mean and variance of the features (`global_cmvn`, WeNet's JSON). Under torchrun, on many ranks.

Example: wenet-hs cmvn --data_list data/train/data.list --config conf/train_conformer.yaml --out data/global_cmvn
"""

import argparse
import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import islice, zip_longest
from operator import add
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from wenet_hs.bin.command import main_of
from wenet_hs.config.dataset import DatasetConf
from wenet_hs.config.load import load_config
from wenet_hs.data.cmvn import CMVN_GROUP, FeatureSums, global_sums, write_cmvn
from wenet_hs.data.listing import DATA_TYPES, open_lists
from wenet_hs.distributed import World, int_from_environment, join_process_group
from wenet_hs.errors import ConfigError
from wenet_hs.manifest import Utterance

_ROUND = 16
"""Groups of each rank between two exchanges: seconds of work, far below the time after which a rank is given up."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--data_list", type=Path, required=True, help="the training list")
    parser.add_argument(
        "--data_type", choices=DATA_TYPES, default="raw", help="what the list is: JSON lines, or tars (default: raw)"
    )
    parser.add_argument("--config", type=Path, required=True, help="the experiment, for its dataset_conf")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument(
        "--num_workers", type=int, help="processes (default: the cores, shared by the ranks); never changes the result"
    )


def run(args: argparse.Namespace) -> None:
    """Compute and write the statistics; say what they are made of."""
    num_workers = _cores() if args.num_workers is None else args.num_workers
    if num_workers < 0:
        raise ConfigError(f"--num_workers {num_workers}: must be 0 or more; 0 uses this process alone")
    with join_process_group(torch.device("cpu")) as world:
        conf = load_config(args.config).dataset_conf
        utterances = open_lists((args.data_list,), args.data_type, flag="--data_list")
        world.check_equal_across_ranks(
            {"--data_list": utterances.digest, "--config": hashlib.sha256(repr(conf).encode()).hexdigest()}
        )
        sums = reduce(add, _all_groups(utterances, conf, num_workers, world))
        if world.is_first:
            write_cmvn(args.out, sums.sum, sums.sum_squares, sums.num_frames)
            hours = sums.num_frames * conf.fbank_conf.frame_shift / 1000 / 3600
            print(f"{args.out}: {sums.num_frames} frames, {hours:.2f} hours of {len(utterances)} utterances")


def _all_groups(
    utterances: Sequence[Utterance], conf: DatasetConf, num_workers: int, world: World
) -> Iterator[FeatureSums]:
    """The sums of all groups in the order of the list, whichever rank computes them: so they add up to the same bits.

    The ranks tell each other of a round of groups at a time: memory does not grow with the list.
    """
    num_groups = -(-len(utterances) // CMVN_GROUP)
    most = -(-num_groups // world.size)
    mine = global_sums(utterances, conf, num_workers=min(num_workers, most - 1), rank=world.rank, num_ranks=world.size)
    console = Console(stderr=True)
    is_shown = console.is_terminal and world.is_first
    rounds = range(0, most, _ROUND)
    for first in track(rounds, "features", console=console, disable=not is_shown):
        of_ranks = world.all_gather(list(islice(mine, min(_ROUND, most - first))))
        for next_groups in zip_longest(*of_ranks):
            yield from (sums for sums in next_groups if sums is not None)


def _cores() -> int:
    return max(1, (os.cpu_count() or 1) // int_from_environment("LOCAL_WORLD_SIZE", 1, at_least=1))


if __name__ == "__main__":
    main_of(__name__)
