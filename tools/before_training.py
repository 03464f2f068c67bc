#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `run.sh` needs to know before a training: how long it will take, and the config of a pretrained encoder.

Examples: python tools/before_training.py config --encoder whisper-base --outputs data/outputs --config conf/own.yaml
          python tools/before_training.py time --hours 0.8 wenet-hs train --config conf/finetune_whisper.yaml …

`config` prints the YAML and its settings, one per line. `time` measures one batch of noise on this
machine, with random weights.
"""

import argparse
import sys
from pathlib import Path

import torch

from wenet_hs.config.load import load_config
from wenet_hs.errors import WenetHsError
from wenet_hs.recipes import config_choice
from wenet_hs.recipes.expected_time import describe_expected_time, measure_expected_time


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("action", choices=["config", "time"])
    add("--encoder", type=Path, metavar="DIR", help="folder in Hugging Face's layout")
    add("--chosen", type=Path, metavar="FILE", help="with the name of the config that was chosen for a training before")
    add("--outputs", metavar="DIR", help="folder for the outputs of a frozen encoder")
    add(
        "--config",
        type=Path,
        required=True,
        metavar="YAML",
        help="of the training; conf/own.yaml: the one for this kind of encoder",
    )
    add("--hours", type=float, help="time: hours of training speech")
    add("--first_steps", type=int, default=0, help="time: steps of a first part, by CTC only")
    add("--override_config", nargs="*", action="extend", default=[], metavar="KEY=VALUE")
    args, _ = parser.parse_known_args()  # `time` gets the whole command of the training
    try:
        if args.action == "config":
            print(*choose_config(args.encoder, args.outputs, args.config, args.chosen), sep="\n")
        else:
            expected = measure_expected_time(
                load_config(args.config, args.override_config),
                args.config,
                hours=args.hours,
                first_steps=args.first_steps,
                num_threads=torch.get_num_threads(),
            )
            print(describe_expected_time(expected))
    except WenetHsError as error:
        sys.exit(f"{error}")


def choose_config(encoder: Path, outputs: str, given: Path, chosen: Path | None = None) -> list[str]:
    """The YAML for an encoder on this machine if `given` is conf/own.yaml, and settings with its folder.

    `chosen`: a file with the name of the one that another machine chose before, if there is one.
    """
    chosen_before = None
    if chosen is not None and chosen.is_file():
        chosen_before = chosen.read_text("utf-8").strip()
    choice = config_choice.choose_config(
        given,
        encoder=encoder,
        outputs=Path(outputs),
        chosen_before=chosen_before,
    )
    return [str(choice.path), *choice.settings]


if __name__ == "__main__":
    main()
