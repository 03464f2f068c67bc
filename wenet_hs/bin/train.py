# SPDX-License-Identifier: Apache-2.0
"""Train a model. An interrupted run resumes from its last checkpoint. Under torchrun it runs on several ranks.

Example: wenet-hs train --config conf/paper_cv.yaml --train_data data/train/data.list \\
             --cv_data data/dev/data.list --units data/units.txt --cmvn data/global_cmvn \\
             --head hsoftmax --tree data/tree-huffman.json --model_dir exp/hsoftmax

WeNet's flags are read as ours, or the message says what to do instead (docs/from-wenet.md).
"""

import argparse
import logging
from pathlib import Path

from wenet_hs.bin.main import add_setting_arguments, main_of, read_settings
from wenet_hs.compute.distributed import int_from_environment, is_first_rank
from wenet_hs.config.load import load_config, read_setting
from wenet_hs.data.divided_batch import divide_batch
from wenet_hs.data.shards import DATA_TYPES
from wenet_hs.train.speech import train
from wenet_hs.train.start import TrainOptions

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", type=Path, required=True, help="YAML of the experiment")
    add("--train_data", type=Path, required=True, nargs="+", help="data.list files to train on")
    add("--cv_data", type=Path, required=True, help="data.list for validation")
    add("--data_type", choices=DATA_TYPES, default="raw", help="the lists contain JSON lines or tars (default: raw)")
    add("--model_dir", type=Path, required=True, help="experiment folder to write")
    resume_help = "auto: resume from the newest intact checkpoint in model_dir, if any; never; or a checkpoint folder"
    add("--resume", default="auto", help=f"{resume_help} (default: auto)")
    checkpoint_help = "start from these weights: a file, a checkpoint, a model folder (or WeNet's), a packed model"
    add("--checkpoint", type=Path, help=checkpoint_help)
    add("--device", default="auto", help="cpu, cuda, cuda:1 … (default: cuda if there is one)")
    divide_help = "divide the size of batches by the number of ranks; a step keeps its speech"
    add("--divide_batch", action="store_true", help=divide_help)
    add_setting_arguments(parser)


def run(args: argparse.Namespace) -> None:
    names = ("config", "train_data", "cv_data", "data_type", "model_dir", "resume", "checkpoint", "device")
    options = {name: getattr(args, name) for name in names}
    settings = _read_settings(args)
    final = train(TrainOptions(**options, override_config=settings))
    if is_first_rank():
        print(f"{final}: trained")


def _read_settings(args: argparse.Namespace) -> list[str]:
    """The settings that the flags give.

    Statistics for a pretrained encoder are left out. With --divide_batch the batches are those of a
    rank, which a resumed run must have again.
    """
    settings = read_settings(_without_unused_statistics(args))
    num_ranks = int_from_environment("WORLD_SIZE", 1, at_least=1)
    if args.divide_batch and num_ranks > 1:
        conf = load_config(args.config, settings).dataset_conf.batch_conf
        settings.append(divide_batch(conf, num_ranks))
    return settings


def _without_unused_statistics(args: argparse.Namespace) -> argparse.Namespace:
    """The flags without --cmvn if the encoder is pretrained, which a line of the log states."""
    if args.cmvn is None or not _has_pretrained_encoder(args):
        return args
    found = "not used, a pretrained encoder normalizes its input itself"
    logger.info("--cmvn %s: %s", args.cmvn, found)
    return argparse.Namespace(**{**vars(args), "cmvn": None})


def _has_pretrained_encoder(args: argparse.Namespace) -> bool:
    return bool(read_setting(args.config, args.override_config, "encoder") == "pretrained")


if __name__ == "__main__":
    main_of(__name__)
