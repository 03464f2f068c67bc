# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page about one or more experiments.

Example: wenet-hs report --exp exp/softmax --exp exp/hsoftmax --stats data/stats.json --out exp/report.html

It shows error rates by language with paired differences, the corpora, the speed, the training curves, the tree, the
confusions, error against length, utterances to browse with their audio, and the conditions, as far as the folders have
them (train.yaml, metrics.jsonl, tree.json, TEST/<mode>/score.json of `score --json`, hyps.jsonl, TEST/rtf.json).
"""

import argparse
import logging
import math
import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from wenet_hs.bin.command import main_of
from wenet_hs.errors import ConfigError
from wenet_hs.files import write_atomic
from wenet_hs.report import ExperimentResults, Heading, build_page, collect, gather
from wenet_hs.report.material import DEFAULT_MODE
from wenet_hs.report.summary import summary
from wenet_hs.report.utterances import AUDIO_MB, MOST

logger = logging.getLogger(__name__)

DEFAULT_TEST = "test"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("--exp", type=Path, required=True, action="append", help="experiment folder; once for each experiment")
    add("--out", type=Path, required=True, help="the page to write")
    add("--stats", type=Path, help="stats.json of the data (default: beside the lists of the training, if still there)")
    add("--data_list", type=Path, help="list that was decoded, for audio (default: test/data.list beside stats.json)")
    add("--mode", help=f"decoding mode that is shown (default: {DEFAULT_MODE}, or another that all were scored in)")
    add("--audio_mb", type=float, default=AUDIO_MB, help=f"MB of audio in the page, 0 = none (default: {AUDIO_MB:g})")
    add("--utterances", type=int, default=MOST, help=f"utterances to browse, the worst ones (default: {MOST})")
    add("--test", default=DEFAULT_TEST, help="sub-folder of each experiment with the decoding results (default: test)")
    add("--title", help="heading of the page (default: the experiments' names)")


def run(args: argparse.Namespace) -> None:
    """Collect, write, say where."""
    for flag in ("audio_mb", "utterances"):
        if not 0 <= getattr(args, flag) < math.inf:
            raise ConfigError(f"--{flag} {getattr(args, flag)}: must be at least 0; 0 is none")
    experiments = collect(args.exp, test=args.test)
    _check_scored(experiments, args.test)
    material = gather(experiments, mode=args.mode, stats=args.stats, data_list=args.data_list)
    heading = Heading(
        title=args.title or " against ".join(experiment.name for experiment in experiments),
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        command=_command(args),
    )
    write_atomic(args.out, build_page(material, heading, most_utterances=args.utterances, audio_mb=args.audio_mb))
    text = summary(experiments, said=" (simulated speech)" if material.simulated else "")
    print(f"{text}\n{args.out}" if text else args.out)


def _check_scored(experiments: Sequence[ExperimentResults], test: str) -> None:
    """A line for each experiment without error rates; a --test that gives none at all is a typo."""
    unscored = [experiment for experiment in experiments if not experiment.scores]
    if len(unscored) == len(experiments) and test != DEFAULT_TEST:
        paths = (path for experiment in experiments for path in experiment.folder.glob("*/*/score.json"))
        known = ", ".join(sorted({path.parent.parent.name for path in paths})) or "none, run `wenet-hs score --json`"
        raise ConfigError(f"--test {test}: no experiment has a {test}/<mode>/score.json to read; scored are: {known}")
    for found in unscored:
        logger.warning(
            "%s: no %s/<mode>/score.json to read, so no error rates; run `wenet-hs score --json`", found.folder, test
        )


def _command(args: argparse.Namespace) -> str:
    """The command as the user could type it again."""
    words = ["wenet-hs", "report", *(word for folder in args.exp for word in ("--exp", folder)), "--out", args.out]
    given = {
        "stats": None,
        "data_list": None,
        "mode": None,
        "audio_mb": AUDIO_MB,
        "utterances": MOST,
        "test": DEFAULT_TEST,
    }
    for flag, default in {**given, "title": None}.items():
        value = getattr(args, flag)
        words += [f"--{flag}", value] if value != default else []
    return shlex.join(map(str, words))


if __name__ == "__main__":
    main_of(__name__)
