# SPDX-License-Identifier: Apache-2.0
"""Train a model. An interrupted run resumes from its last checkpoint. Under torchrun it runs on several ranks.

Example: wenet-hs train --config conf/train_conformer.yaml --train_data data/train/data.list \\
             --cv_data data/dev/data.list --model_dir exp/softmax
"""

import argparse
from pathlib import Path

from wenet_hs.bin.command import main_of
from wenet_hs.data.shards import DATA_TYPES
from wenet_hs.distributed import is_first_rank
from wenet_hs.train.trainer import TrainOptions, train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--config", type=Path, required=True, help="YAML of the experiment")
    parser.add_argument("--train_data", type=Path, required=True, nargs="+", help="data.list files to train on")
    parser.add_argument("--cv_data", type=Path, required=True, help="data.list for validation")
    parser.add_argument(
        "--data_type",
        choices=DATA_TYPES,
        default="raw",
        help="format of the lists: raw (JSON lines) or shard (tars); default raw",
    )
    parser.add_argument("--model_dir", type=Path, required=True, help="experiment folder to write")
    parser.add_argument(
        "--override_config",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="settings that replace those of the YAML",
    )
    parser.add_argument(
        "--resume",
        default="auto",
        help="auto: resume from the newest intact checkpoint in model_dir, if any; never; or a checkpoint folder",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        help="start from these weights: a final.pt, a checkpoint or a model folder (or WeNet's)",
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 … (default: cuda if there is one)")


def run(args: argparse.Namespace) -> None:
    """Train to the end of the config."""
    final = train(TrainOptions(**vars(args)))
    if is_first_rank():
        print(f"{final}: trained")


if __name__ == "__main__":
    main_of(__name__)
