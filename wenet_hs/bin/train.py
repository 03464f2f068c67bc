# SPDX-License-Identifier: Apache-2.0
"""Train a model.

Example: wenet-hs train --config conf/paper_cv.yaml --train_data data/train/data.list \\
             --cv_data data/dev/data.list --units data/units.txt --cmvn data/global_cmvn \\
             --head hsoftmax --tree data/tree-huffman.json --model_dir exp/hsoftmax

An interrupted run resumes from its last checkpoint. Under torchrun it runs on several ranks.

WeNet's flags are read as ours, or the message says what to do instead (docs/from-wenet.md).
"""

import argparse
from pathlib import Path

from wenet_hs.bin.main import (
    add_device_argument,
    add_model_dir_arguments,
    add_setting_arguments,
    main_of,
    read_settings,
)
from wenet_hs.compute.distributed import is_first_rank
from wenet_hs.data.shards import DATA_TYPES
from wenet_hs.train.speech import train
from wenet_hs.train.start import TrainOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs train`."""
    add = parser.add_argument
    add("--config", type=Path, required=True, help="YAML of the experiment")
    add("--train_data", type=Path, required=True, nargs="+", help="data.list files to train on")
    add("--cv_data", type=Path, required=True, help="data.list for validation")
    type_help = "the lists contain JSON lines or tars (default: raw)"
    add("--data_type", choices=DATA_TYPES, default="raw", help=type_help)
    add_model_dir_arguments(parser)
    checkpoint_help = (
        "start from these weights: a file, a checkpoint, a model folder (or WeNet's), "
        "a packed model"
    )
    add("--checkpoint", type=Path, help=checkpoint_help)
    add_device_argument(parser)
    divide_help = "divide the size of batches by the number of ranks; a step keeps its speech"
    add("--divide_batch", action="store_true", help=divide_help)
    add_setting_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Train the model, or resume its training; the first rank prints the path of final.pt."""
    # `train` decides whether --cmvn becomes a setting: not with a pretrained encoder.
    without_cmvn = argparse.Namespace(**{**vars(args), "cmvn": None})
    options = TrainOptions(
        config=args.config,
        train_data=args.train_data,
        cv_data=args.cv_data,
        data_type=args.data_type,
        model_dir=args.model_dir,
        override_config=read_settings(without_cmvn),
        cmvn=args.cmvn,
        divide_batch=args.divide_batch,
        resume=args.resume,
        checkpoint=args.checkpoint,
        device=args.device,
    )
    final = train(options)
    if is_first_rank():
        print(f"{final}: trained")


if __name__ == "__main__":
    main_of(__name__)
