# SPDX-License-Identifier: Apache-2.0
"""Decide size, steps and settings of a training by the hours of speech, and measure its time here.

Example: wenet-hs plan --data data --config conf/own.yaml --out exp

It writes EXP/plan.yaml, a complete config with comments: read it, edit it, and train with
`wenet-hs train --config EXP/plan.yaml`. A plan that was edited is never replaced.
EXP/first_part.yaml is the config of the first part of training, if there is one; it follows from
plan.yaml.

The expected time is measured in some seconds, with random weights. An empty option counts as one
that was not given.
"""

import argparse
from pathlib import Path

from wenet_hs.bin.main import (
    add_override_argument,
    add_start_arguments,
    check_at_least,
    main_of,
    path_or_none,
)
from wenet_hs.recipes.plan import PlanOptions
from wenet_hs.recipes.plan_files import describe_plan, update_plan
from wenet_hs.recipes.sizes import AUTO
from wenet_hs.tree.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs plan`."""
    add = parser.add_argument
    data_help = "folder with the lists of `prepare`"
    add("--data", type=Path, required=True, metavar="DIR", help=data_help)
    config_help = "YAML of the trainings; conf/own.yaml: the one for the encoder of --encoder"
    add("--config", type=Path, required=True, metavar="YAML", help=config_help)
    size_help = "of conf/own_sizes.yaml: tiny, small, medium, large; auto: by the hours"
    add("--size", default=AUTO, help=f"{size_help} (default: {AUTO})")
    add_start_arguments(parser)
    steps_help = "of the first part of training, by CTC only; 0: none (default: by size)"
    add("--base_steps", default="", metavar="N", help=steps_help)
    add("--unit", default="", help="char, phone, or bpe:N with N pieces (default: as in the YAML)")
    add_override_argument(parser, "settings of the YAML to change, as in training")
    threads_help = "CPU threads of a training, for the expected time (default: 1)"
    add("--threads", type=int, default=1, help=threads_help)
    add("--only_time", action="store_true", help="print the expected time, and write nothing")
    json_help = "with --only_time: also write what is decided and measured there, as JSON"
    add("--json", type=Path, metavar="FILE", help=json_help)
    add("--out", type=Path, required=True, metavar="EXP", help="folder of the experiment")


def run(args: argparse.Namespace) -> None:
    """Write the plan and print it, or with --only_time only print the expected time.

    Raises ConfigError for wrong flags.
    """
    check_at_least(args, 1, "threads")
    options = PlanOptions(
        data=args.data,
        config=args.config,
        out=args.out,
        size=args.size or AUTO,
        base=path_or_none(args.base),
        encoder=path_or_none(args.encoder),
        base_steps=_read_base_steps(args.base_steps),
        unit=args.unit or None,
        overrides=args.override_config,
        num_threads=args.threads,
    )
    if args.json is not None and not args.only_time:
        to_do = "add --only_time, or leave it out"
        raise ConfigError(f"--json {args.json}", "has no effect without --only_time", to_do)
    if args.only_time:
        lines = describe_plan(options, args.json)
    else:
        lines = update_plan(options)
    print("\n".join(lines))


def _read_base_steps(text: str) -> int | None:
    """The value of --base_steps as a number; None if it is empty.

    Raises ConfigError for anything but the digits 0 to 9.
    """
    if not text:
        return None
    is_number = text.isascii() and text.isdecimal()
    if not is_number:
        raise ConfigError(f"--base_steps {text}", "must be a whole number")
    return int(text)


if __name__ == "__main__":
    main_of(__name__)
