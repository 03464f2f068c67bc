# SPDX-License-Identifier: Apache-2.0
"""Average checkpoints of one training into final.pt.

WeNet's flags are read too (docs/from-wenet.md).

Example: wenet-hs average --model_dir exp/hsoftmax --num 10 --by accuracy
"""

import argparse
from pathlib import Path
from typing import get_args

from wenet_hs.bin.main import check_at_least, main_of
from wenet_hs.config.optim import Metric
from wenet_hs.model.checkpoint import write_final
from wenet_hs.train.average import average_weights, choose_checkpoints, read_validations


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs average`."""
    add = parser.add_argument
    add("--model_dir", type=Path, required=True, help="experiment folder")
    target_help = "file to write (default: final.pt of model_dir)"
    add("--dst_model", type=Path, metavar="FILE", help=target_help)
    add("--num", type=int, default=5, help="number of checkpoints (default: 5)")
    criteria = ("cv_loss", "last", *get_args(Metric))
    by_help = (
        "the best ones by a validation metric (cv_loss is loss), or the last ones "
        "(default: cv_loss)"
    )
    add("--by", choices=criteria, default="cv_loss", help=by_help)


def run(args: argparse.Namespace) -> None:
    """Average the chosen checkpoints, write the model, and print their names."""
    check_at_least(args, 1, "num")
    paths = choose_checkpoints(args.model_dir, args.num, args.by)
    target = args.dst_model or args.model_dir / "final.pt"
    write_final(target, average_weights(paths), read_validations(paths), by=args.by)
    names = sorted(path.name for path in paths)
    print(f"{target}: average of {', '.join(names)}")


if __name__ == "__main__":
    main_of(__name__)
