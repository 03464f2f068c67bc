# SPDX-License-Identifier: Apache-2.0
"""Pack the audio and transcripts of a data list into tars, and write a list of the tars.

Example: wenet-hs shards --data_list data/train/data.list --num_utts_per_shard 1000 \\
             --out data/train/shards

OUT/data.list is a list for --data_type shard: the path of one tar per line. Write URLs instead if
you move the tars to a server. The batches are the same as those of the data list.
"""

import argparse
import math
from pathlib import Path

from rich.console import Console
from rich.progress import track

from wenet_hs.base.options import NUM_CORES
from wenet_hs.bin.main import check_at_least, main_of
from wenet_hs.data.shards import open_list, write_shards


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs shards`."""
    add = parser.add_argument
    add("--data_list", type=Path, required=True, help="the list to pack")
    size_help = "utterances per tar (default: 1000)"
    add("--num_utts_per_shard", type=int, default=1000, help=size_help)
    workers_help = "processes, which write a tar each; 0: only this one (default: one per core)"
    add("--num_workers", type=int, default=NUM_CORES, help=workers_help)
    add("--out", type=Path, required=True, help="folder to write")


def run(args: argparse.Namespace) -> None:
    """Write the tars and their list, with a progress bar in a terminal, and print the size."""
    check_at_least(args, 1, "num_utts_per_shard")
    check_at_least(args, 0, "num_workers")
    utterances = open_list(args.data_list)
    num_shards = math.ceil(len(utterances) / args.num_utts_per_shard)
    shards = write_shards(
        utterances,
        args.out,
        num_utts_per_shard=args.num_utts_per_shard,
        num_workers=args.num_workers,
    )
    console = Console(stderr=True)
    tracked_shards = track(
        shards, "shards", num_shards, console=console, disable=not console.is_terminal
    )
    # The tars are written while this loop asks for them.
    num_bytes = sum(path.stat().st_size for path in tracked_shards)
    print(
        f"{args.out / 'data.list'}: {num_shards} shards, {len(utterances)} utterances, "
        f"{num_bytes / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    main_of(__name__)
