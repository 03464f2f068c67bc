# SPDX-License-Identifier: Apache-2.0
"""Write a self-contained HTML page about experiments, or the Markdown tables of a study over seeds.

Example: wenet-hs report --exp exp/softmax --exp exp/hsoftmax --stats data/stats.json --out exp/report.html
         wenet-hs report --tables examples/ucla/s0/results/* --markdown examples/ucla/s0/RESULTS.md

The page begins with a verdict in words. It shows error rates per language with paired differences,
the worst utterances with their audio, confusions, error against length, the speed if it can be
compared, the curves, the tree, the corpora, and the conditions. It reads what the folders have of
train.yaml, metrics.jsonl, tree.json, TEST/<mode>/score.json of `score --json`,
TEST/<mode>/hyps.jsonl, TEST/rtf.json. `--results` stores the results of each experiment, also of
language models, in one small file. A folder of such files is a table of a study (docs/scoring.md);
`--published` compares it with the one of this name in another folder.
"""

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from wenet_hs.base.files import read_lines
from wenet_hs.bin.main import check_at_least, main_of
from wenet_hs.model.modes import DEFAULT_MODE
from wenet_hs.report.page import build_page
from wenet_hs.report.summary import format_summary
from wenet_hs.report.tables import write_markdown
from wenet_hs.report.utterances import AUDIO_MB, MAX_UTTERANCES
from wenet_hs.results.collect import collect_lm_results, collect_results
from wenet_hs.results.experiment import ExperimentResults, read_experiments
from wenet_hs.results.folder import DEFAULT_TEST, ExperimentFolder
from wenet_hs.results.report_data import gather_data
from wenet_hs.results.results_file import write_results
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--exp",
        type=Path,
        action="append",
        default=[],
        help="experiment folder; once for each experiment",
    )
    add("--out", type=Path, help="the page to write")
    add(
        "--results",
        type=Path,
        metavar="DIR",
        help="write a results file of each experiment into this folder",
    )
    text = "tables of a study: folders of results files, with a table.yaml if they have one"
    add("--tables", type=Path, nargs="+", default=[], metavar="DIR", help=text)
    add("--markdown", type=Path, metavar="FILE", help="Markdown file with the --tables")
    add(
        "--published",
        type=Path,
        metavar="DIR",
        help="folder of published tables, for the --tables of the same names",
    )
    add("--intro", type=Path, metavar="FILE", help="Markdown file before the --tables")
    add(
        "--more",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="Markdown files after the --tables",
    )
    add(
        "--stats",
        type=Path,
        help="stats.json of the data (default: the one beside the lists of the training)",
    )
    add(
        "--data_list",
        type=Path,
        help="list that was decoded, for audio (default: test/data.list beside stats.json)",
    )
    add(
        "--mode",
        help=f"decoding mode to show (default: {DEFAULT_MODE}, or another mode that all experiments have)",
    )
    add(
        "--audio_mb",
        type=float,
        default=AUDIO_MB,
        help=f"MB of audio in the page, 0 = none (default: {AUDIO_MB:g})",
    )
    utterances_help = (
        f"maximum number of utterances, the worst ones are shown (default: {MAX_UTTERANCES})"
    )
    add("--utterances", type=int, default=MAX_UTTERANCES, help=utterances_help)
    add(
        "--test",
        default=DEFAULT_TEST,
        help="sub-folder of each experiment with the decoding results (default: test)",
    )
    add(
        "--title",
        help="heading of the page (default: the names of the experiments, or systems with several seeds)",
    )


def run(args: argparse.Namespace) -> None:
    check_at_least(args, 0, "audio_mb", "utterances", hint="; 0 is none")
    if bool(args.tables) != bool(args.markdown) or not args.exp + args.tables:
        raise ConfigError(
            "give --exp with --out for a page or --results, or --tables with --markdown for a study"
        )
    if bool(args.exp) != bool(args.out or args.results):
        found = "needs --out for a page, or --results for results files, and these need --exp"
        raise ConfigError("--exp", found, "give both")
    models = [folder for folder in args.exp if ExperimentFolder(folder).is_language_model()]
    if args.out and models:
        raise ConfigError(
            f"--exp {models[0]}", "a language model, of which there is no page", "leave --out out"
        )
    for folder in models:
        print(write_results(collect_lm_results(folder), args.results))
    if experiments := [folder for folder in args.exp if folder not in models]:
        _report(args, experiments)
    if args.tables:
        intro, *more = (
            "\n".join(read_lines(path)) if path else "" for path in (args.intro, *args.more)
        )
        texts = {"intro": intro, "more": "\n\n".join(more), "command": _command()}
        compared = write_markdown(args.markdown, args.tables, published=args.published, **texts)
        print(compared + str(args.markdown))


def _command() -> str:
    return shlex.join(["wenet-hs", "report", *sys.argv[1 + (sys.argv[1:2] == ["report"]) :]])


def _report(args: argparse.Namespace, folders: Sequence[Path]) -> None:
    """The page and the results files of recognisers."""
    experiments = read_experiments(folders, test=args.test)
    _check_scored(experiments, args.test)
    data = gather_data(experiments, mode=args.mode, stats=args.stats, data_list=args.data_list)
    if args.results:
        for experiment in experiments:
            write_results(collect_results(experiment, data.folders), args.results)
    if args.out:
        names = dict.fromkeys(system.name for system in data.systems) or [
            experiment.name for experiment in experiments
        ]
        title = args.title or " against ".join(names)
        options = {"max_utterances": args.utterances, "audio_mb": args.audio_mb}
        write_atomic(args.out, build_page(data, title=title, command=_command(), **options))
        summary = format_summary(data)
        print(f"{summary}\n{args.out}" if summary else args.out)


def _check_scored(experiments: Sequence[ExperimentResults], test: str) -> None:
    """Warn about each experiment without error rates; refuse a --test that no experiment has."""
    unscored = [experiment for experiment in experiments if not experiment.scores]
    if len(unscored) == len(experiments) and test != DEFAULT_TEST:
        folders = [ExperimentFolder(experiment.folder) for experiment in experiments]
        scored = sorted({test.name for folder in folders for test in folder.scored_tests()})
        known = ", ".join(scored) or "none, run `wenet-hs score --json`"
        what = f"no experiment has a {test}/<mode>/score.json to read"
        raise ConfigError(f"--test {test}", what, f"scored are: {known}")
    for found in unscored:
        message = (
            "%s: no %s/<mode>/score.json to read, so no error rates; run `wenet-hs score --json`"
        )
        logger.warning(message, found.folder, test)


if __name__ == "__main__":
    main_of(__name__)
