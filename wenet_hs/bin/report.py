# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page about one or more experiments.

Example: wenet-hs report --exp exp/softmax --exp exp/hsoftmax --stats data/stats.json --out exp/report.html

It shows the error rates a language, the speed, the training curves, the tree and the worst utterances, as far as the
folders have them (metrics.jsonl, tree.json, test/<mode>/score.json of `score --json`, test/rtf.json).
"""

import argparse
import shlex
from datetime import datetime
from pathlib import Path

from wenet_hs.bin.command import main_of
from wenet_hs.files import write_atomic
from wenet_hs.report.collect import collect, is_simulated
from wenet_hs.report.page import build_page
from wenet_hs.report.summary import summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("--exp", type=Path, required=True, action="append", help="experiment folder; once for each experiment")
    add("--out", type=Path, required=True, help="the page to write")
    add("--stats", type=Path, help="stats.json of the data; if it says so, every result is marked as simulated speech")
    add("--test", default="test", help="sub-folder of each experiment with the decoding results (default: test)")
    add("--title", help="heading of the page (default: the experiments' names)")


def run(args: argparse.Namespace) -> None:
    """Collect, write, say where."""
    experiments = collect(args.exp, test=args.test)
    simulated = args.stats is not None and is_simulated(args.stats)
    page = build_page(
        experiments,
        title=args.title or " against ".join(experiment.name for experiment in experiments),
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        command=_command(args),
        simulated=simulated,
    )
    write_atomic(args.out, page)
    text = summary(experiments, said=" (simulated speech)" if simulated else "")
    print(f"{text}\n{args.out}" if text else args.out)


def _command(args: argparse.Namespace) -> str:
    """The command as the user could type it again."""
    words = ["wenet-hs", "report", *(word for folder in args.exp for word in ("--exp", folder)), "--out", args.out]
    words += ["--stats", args.stats] if args.stats else []
    words += ["--test", args.test] if args.test != "test" else []
    words += ["--title", args.title] if args.title else []
    return shlex.join(map(str, words))


if __name__ == "__main__":
    main_of(__name__)
