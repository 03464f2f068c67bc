# SPDX-License-Identifier: Apache-2.0
"""Compute the global mean and variance of the features (`global_cmvn`, WeNet's JSON).

Under torchrun, on many ranks.

Example: wenet-hs cmvn --data_list data/train/data.list --config conf/paper_cv.yaml --out data/global_cmvn

Clips that cannot be read are all listed with their reasons. They are left out; if they are more
than the share `dataset_conf.max_bad_clips`, nothing is written. A pretrained encoder needs no
statistics: one line says so.
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

from wenet_hs.bin.main import check_at_least, main_of, print_failures
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
"""Groups of each rank between two exchanges: seconds of work, far below the timeout of a rank."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data_list", type=Path, required=True, help="the training list")
    add(
        "--data_type",
        choices=DATA_TYPES,
        default="raw",
        help="the list contains JSON lines or tars (default: raw)",
    )
    add("--config", type=Path, required=True, help="YAML of the experiment, for its dataset_conf")
    settings_help = "settings of the YAML to change, as in training"
    add(
        "--override_config",
        nargs="*",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help=settings_help,
    )
    add("--out", type=Path, required=True, help="the file to write")
    workers_help = (
        "processes per rank (default: the cores divided by the ranks); does not change the result"
    )
    add("--num_workers", type=int, help=workers_help)


def run(args: argparse.Namespace) -> None:
    check_at_least(args, 0, "num_workers")
    num_workers = args.num_workers
    if num_workers is None:
        num_workers = max(
            1, (os.cpu_count() or 1) // int_from_environment("LOCAL_WORLD_SIZE", 1, at_least=1)
        )
    with join_process_group(torch.device("cpu")) as world:
        file_settings = read_yaml(args.config)
        overrides = drop_settings_of_other_heads(file_settings, args.override_config)
        config = make_config(file_settings, overrides, ExperimentConfig)
        conf = config.dataset_conf
        if config.encoder == "pretrained":
            if world.is_first:
                found = "encoder: pretrained normalizes its input itself"
                print(f"{args.config}: {found}; no statistics are written")
            return
        frontend = build_frontend(conf)
        utterances = open_lists((args.data_list,), args.data_type, flag="--data_list")
        world.check_equal_across_ranks(
            {
                "--data_list": utterances.digest,
                "--config": hashlib.sha256(repr(conf).encode()).hexdigest(),
            }
        )
        total = reduce(add, _all_sums(utterances, frontend, num_workers, world))
        bad = {clip.key: f"{clip.wav}: {clip.reason}" for clip in total.bad_clips}
        if world.is_first:
            print_failures(bad)
        if len(bad) > conf.max_bad_clips * len(utterances):
            found = f"{len(bad)} of {len(utterances)} clips cannot be read, more than the share {conf.max_bad_clips:g}"
            to_do = "see the lines above: restore them, or raise dataset_conf.max_bad_clips"
            raise DataError(args.data_list, found, to_do)
        if world.is_first:
            write_cmvn(args.out, total.sums)
            num_frames, num_used = int(total.sums[-1]), len(utterances) - len(bad)
            hours = num_frames * frontend.frame_s / 3600
            print(f"{args.out}: {num_frames} frames, {hours:.2f} hours of {num_used} utterances")
            if bad:
                print(f"{len(bad)} clips cannot be read and are left out")
            if total.num_incomplete:
                print(describe_incomplete(total.num_incomplete))


def _all_sums(
    utterances: Sequence[Utterance], frontend: Frontend, num_workers: int, world: World
) -> Iterator[FeatureSums]:
    """The sums of all groups in the order of the list, whichever rank computes them, so that their
    total is the same.

    The ranks exchange some groups at a time: memory does not increase with the list.
    """
    num_groups = -(-len(utterances) // CMVN_GROUP)
    groups_per_rank = -(-num_groups // world.size)
    num_workers = min(num_workers, groups_per_rank - 1)
    own = global_sums(
        utterances, frontend, num_workers=num_workers, rank=world.rank, num_ranks=world.size
    )
    console = Console(stderr=True)
    is_hidden = not (console.is_terminal and world.is_first)
    for _ in track(
        range(0, groups_per_rank, _EXCHANGE), "features", console=console, disable=is_hidden
    ):
        of_ranks = world.all_gather(list(islice(own, _EXCHANGE)))
        for of_group in zip_longest(*of_ranks):
            yield from (sums for sums in of_group if sums is not None)


if __name__ == "__main__":
    main_of(__name__)
