# SPDX-License-Identifier: Apache-2.0
"""Compute the global mean and variance of the features (`global_cmvn`, WeNet's JSON).

Example: wenet-hs cmvn --data_list data/train/data.list --config conf/paper_cv.yaml \\
             --out data/global_cmvn

Clips that cannot be read are all listed with their reasons. They are left out; if they are more
than the share `dataset_conf.max_bad_clips`, nothing is written. A pretrained encoder needs no
statistics: one line says so. Under torchrun it runs on several ranks.
"""

import argparse
import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import islice, zip_longest
from operator import add
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from wenet_hs.bin.main import add_override_argument, check_at_least, main_of, print_failures
from wenet_hs.compute.distributed import World, int_from_environment, join_process_group
from wenet_hs.config.load import make_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.config.yaml_file import read_yaml
from wenet_hs.data.audio import describe_incomplete
from wenet_hs.data.cmvn import CMVN_GROUP, FeatureSums, global_sums, write_cmvn
from wenet_hs.data.shards import DATA_TYPES, open_lists
from wenet_hs.frontends.base import Frontend
from wenet_hs.frontends.build import build_frontend
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.recipes.plan import drop_settings_of_other_heads
from wenet_hs.tree.errors import DataError

_EXCHANGE = 16
"""Groups of utterances that each rank sums between two exchanges.

It is work of seconds, far below the timeout of a rank.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs cmvn`."""
    add = parser.add_argument
    add("--data_list", type=Path, required=True, help="the training list")
    add(
        "--data_type",
        choices=DATA_TYPES,
        default="raw",
        help="the list contains JSON lines or tars (default: raw)",
    )
    add("--config", type=Path, required=True, help="YAML of the experiment, for its dataset_conf")
    add_override_argument(parser, "settings of the YAML to change, as in training")
    add("--out", type=Path, required=True, help="the file to write")
    workers_help = (
        "processes per rank (default: the cores divided by the ranks); does not change the result"
    )
    add("--num_workers", type=int, help=workers_help)


def run(args: argparse.Namespace) -> None:
    """Compute the statistics on all ranks; the first rank writes and prints them.

    A config with a pretrained encoder needs none: the first rank prints this.

    Raises DataError, and nothing is written, if more clips cannot be read than
    `dataset_conf.max_bad_clips` allows. Raises ConfigError if the list or the config differs
    between ranks.
    """
    check_at_least(args, 0, "num_workers")
    num_workers = _default_num_workers() if args.num_workers is None else args.num_workers
    with join_process_group(torch.device("cpu")) as world:
        file_settings = read_yaml(args.config)
        overrides = drop_settings_of_other_heads(file_settings, args.override_config)
        config = make_config(file_settings, overrides, ExperimentConfig)
        if config.encoder == "pretrained":
            if world.is_first:
                reason = "encoder: pretrained normalizes its input itself"
                print(f"{args.config}: {reason}; no statistics are written")
            return
        conf = config.dataset_conf
        frontend = build_frontend(conf)
        utterances = open_lists((args.data_list,), args.data_type, flag="--data_list")
        conf_hash = hashlib.sha256(repr(conf).encode()).hexdigest()
        world.check_equal_across_ranks({"--data_list": utterances.digest, "--config": conf_hash})
        total = reduce(add, _all_sums(utterances, frontend, num_workers, world))
        reason_of_key = {clip.key: f"{clip.wav}: {clip.reason}" for clip in total.bad_clips}
        num_bad = len(reason_of_key)
        if world.is_first:
            print_failures(reason_of_key)
        if num_bad > conf.max_bad_clips * len(utterances):
            fault = (
                f"{num_bad} of {len(utterances)} clips cannot be read, "
                f"more than the share {conf.max_bad_clips:g}"
            )
            to_do = "see the lines above: restore them, or raise dataset_conf.max_bad_clips"
            raise DataError(args.data_list, fault, to_do)
        if world.is_first:
            num_used = len(utterances) - num_bad
            _write_statistics(args.out, total, frame_s=frontend.frame_s, num_utterances=num_used)


def _write_statistics(
    out: Path, total: FeatureSums, *, frame_s: float, num_utterances: int
) -> None:
    """Write the statistics, and print of how much speech they are and which clips had faults.

    Args:
        frame_s: seconds from frame to frame.
        num_utterances: those that could be read.
    """
    write_cmvn(out, total.sums)
    num_frames = int(total.sums[-1])  # the last number of `FeatureSums.sums`
    hours = num_frames * frame_s / 3600
    print(f"{out}: {num_frames} frames, {hours:.2f} hours of {num_utterances} utterances")
    if total.bad_clips:
        print(f"{len(total.bad_clips)} clips cannot be read and are left out")
    if total.num_incomplete:
        print(describe_incomplete(total.num_incomplete))


def _default_num_workers() -> int:
    """The cores of this computer divided by its ranks, at least 1."""
    num_cores = os.cpu_count() or 1
    num_ranks = int_from_environment("LOCAL_WORLD_SIZE", 1, at_least=1)  # torchrun sets it
    return max(1, num_cores // num_ranks)


def _all_sums(
    utterances: Sequence[Utterance], frontend: Frontend, num_workers: int, world: World
) -> Iterator[FeatureSums]:
    """The sums of all groups of utterances, on each rank, in the order of the list.

    Every rank computes a part of them. As the order does not depend on the ranks, the total is the
    same for every number of ranks. The ranks exchange _EXCHANGE groups at a time, so the memory
    does not increase with the list. The first rank shows a progress bar in a terminal.
    """
    num_groups = math.ceil(len(utterances) / CMVN_GROUP)
    groups_per_rank = math.ceil(num_groups / world.size)
    # More processes than groups would be idle. Of a single group it is 0: this process computes it.
    num_workers = min(num_workers, groups_per_rank - 1)
    own_sums = global_sums(
        utterances, frontend, num_workers=num_workers, rank=world.rank, num_ranks=world.size
    )
    console = Console(stderr=True)
    is_hidden = not (console.is_terminal and world.is_first)
    exchanges = range(0, groups_per_rank, _EXCHANGE)
    for _ in track(exchanges, "features", console=console, disable=is_hidden):
        sums_of_ranks = world.all_gather(list(islice(own_sums, _EXCHANGE)))
        # Rank 0 has computed the first group, rank 1 the second, and so on.
        for sums_in_turn in zip_longest(*sums_of_ranks):
            for sums in sums_in_turn:
                if sums is not None:  # this rank has one group less than others
                    yield sums


if __name__ == "__main__":
    main_of(__name__)
