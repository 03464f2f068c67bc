# SPDX-License-Identifier: Apache-2.0
"""Write a self-contained HTML page about experiments, or the Markdown tables of a study over seeds.

Example: wenet-hs report --exp exp/softmax --exp exp/hsoftmax --stats data/stats.json \\
             --out exp/report.html
         wenet-hs report --tables examples/ucla/s0/results/* \\
             --markdown examples/ucla/s0/RESULTS.md

The page begins with a verdict in words. It shows error rates per language with paired differences,
the worst utterances with their audio, confusions, error against length, the speed if it can be
compared, the curves, the tree, the corpora, and the conditions.

It reads these files of the experiments, if they have them: train.yaml, metrics.jsonl, tree.json,
TEST/<mode>/score.json of `score --json`, TEST/<mode>/hyps.jsonl, TEST/rtf.json.

`--results` stores the results of each experiment, also of language models, in one small file. A
folder of such files is a table of a study (docs/scoring.md). `--published` compares it with the
table of the same name in another folder.
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
from wenet_hs.results.report_data import ReportData, gather_data
from wenet_hs.results.results_file import write_results
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs report`: those of a page, and those of a study."""
    add = parser.add_argument
    exp_help = "experiment folder; once for each experiment"
    add("--exp", type=Path, action="append", default=[], help=exp_help)
    add("--out", type=Path, help="the page to write")
    results_help = "write a results file of each experiment into this folder"
    add("--results", type=Path, metavar="DIR", help=results_help)
    tables_help = "tables of a study: folders of results files, with a table.yaml if they have one"
    add("--tables", type=Path, nargs="+", default=[], metavar="DIR", help=tables_help)
    add("--markdown", type=Path, metavar="FILE", help="Markdown file with the --tables")
    published_help = "folder of published tables, for the --tables of the same names"
    add("--published", type=Path, metavar="DIR", help=published_help)
    add("--intro", type=Path, metavar="FILE", help="Markdown file before the --tables")
    more_help = "Markdown files after the --tables"
    add("--more", type=Path, nargs="+", default=[], metavar="FILE", help=more_help)
    stats_help = "stats.json of the data (default: the one beside the lists of the training)"
    add("--stats", type=Path, help=stats_help)
    list_help = "list that was decoded, for audio (default: test/data.list beside stats.json)"
    add("--data_list", type=Path, help=list_help)
    mode_help = (
        f"decoding mode to show (default: {DEFAULT_MODE}, "
        "or another mode that all experiments have)"
    )
    add("--mode", help=mode_help)
    audio_help = f"MB of audio in the page, 0 = none (default: {AUDIO_MB:g})"
    add("--audio_mb", type=float, default=AUDIO_MB, help=audio_help)
    utterances_help = (
        f"maximum number of utterances, the worst ones are shown (default: {MAX_UTTERANCES})"
    )
    add("--utterances", type=int, default=MAX_UTTERANCES, help=utterances_help)
    test_help = "sub-folder of each experiment with the decoding results (default: test)"
    add("--test", default=DEFAULT_TEST, help=test_help)
    title_help = (
        "heading of the page (default: the names of the experiments, or systems with several seeds)"
    )
    add("--title", help=title_help)


def run(args: argparse.Namespace) -> None:
    """Write the page or the results files of experiments, or the tables of a study.

    Raises ConfigError for flags that do not fit each other.
    """
    _check_flags(args)
    lm_folders = [folder for folder in args.exp if ExperimentFolder(folder).is_language_model()]
    if args.out and lm_folders:
        fault = "a language model, of which there is no page"
        raise ConfigError(f"--exp {lm_folders[0]}", fault, "leave --out out")
    for folder in lm_folders:
        print(write_results(collect_lm_results(folder), args.results))
    recogniser_folders = [folder for folder in args.exp if folder not in lm_folders]
    if recogniser_folders:
        _report_recognisers(args, recogniser_folders)
    if args.tables:
        _write_tables(args)


def _check_flags(args: argparse.Namespace) -> None:
    """Raise ConfigError unless the flags ask for something to write from something to read.

    A page or results files are written from --exp, a Markdown file from --tables.
    """
    check_at_least(args, 0, "audio_mb", "utterances", hint="; 0 is none")
    has_input = bool(args.exp or args.tables)
    is_study_incomplete = bool(args.tables) != bool(args.markdown)
    if is_study_incomplete or not has_input:
        raise ConfigError(
            "give --exp with --out for a page or --results, or --tables with --markdown for a study"
        )
    has_output_of_exp = bool(args.out or args.results)
    if bool(args.exp) != has_output_of_exp:
        fault = "needs --out for a page, or --results for results files, and these need --exp"
        raise ConfigError("--exp", fault, "give both")


def _report_recognisers(args: argparse.Namespace, folders: Sequence[Path]) -> None:
    """Write the results files of recognisers with --results, and their page with --out.

    Prints the summary and the path of the page.
    """
    experiments = read_experiments(folders, test=args.test)
    _check_scored(experiments, args.test)
    data = gather_data(experiments, mode=args.mode, stats=args.stats, data_list=args.data_list)
    if args.results:
        for experiment in experiments:
            write_results(collect_results(experiment, data.folders), args.results)
    if args.out:
        page = build_page(
            data,
            title=args.title or _default_title(data, experiments),
            command=_command(),
            max_utterances=args.utterances,
            audio_mb=args.audio_mb,
        )
        write_atomic(args.out, page)
        summary = format_summary(data)
        if summary:
            print(summary)
        print(args.out)


def _default_title(data: ReportData, experiments: Sequence[ExperimentResults]) -> str:
    """The names of the systems, if they have several seeds, otherwise those of the experiments."""
    names = list(dict.fromkeys(system.name for system in data.systems))
    if not names:
        names = [experiment.name for experiment in experiments]
    return " against ".join(names)


def _check_scored(experiments: Sequence[ExperimentResults], test: str) -> None:
    """Warn about each experiment without error rates.

    Raises ConfigError if --test names a test set for which no experiment has error rates. Without
    --test, the page can do without them.
    """
    unscored = [experiment for experiment in experiments if not experiment.scores]
    if len(unscored) == len(experiments) and test != DEFAULT_TEST:
        scored_tests: set[str] = set()
        for experiment in experiments:
            scored_tests.update(
                path.name for path in ExperimentFolder(experiment.folder).scored_tests()
            )
        known = ", ".join(sorted(scored_tests)) or "none, run `wenet-hs score --json`"
        fault = f"no experiment has a {test}/<mode>/score.json to read"
        raise ConfigError(f"--test {test}", fault, f"scored are: {known}")
    for experiment in unscored:
        logger.warning(
            "%s: no %s/<mode>/score.json to read, so no error rates; run `wenet-hs score --json`",
            experiment.folder,
            test,
        )


def _write_tables(args: argparse.Namespace) -> None:
    """Write the Markdown file of a study.

    Prints how the tables compare with those of --published, and the path.
    """
    intro = _read_text(args.intro) if args.intro else ""
    comparison = write_markdown(
        args.markdown,
        args.tables,
        published=args.published,
        intro=intro,
        more="\n\n".join(_read_text(path) for path in args.more),
        command=_command(),
    )
    print(comparison + str(args.markdown))  # the comparison is empty or ends with a line break


def _read_text(path: Path) -> str:
    """The lines of a file, without the line break at the end."""
    return "\n".join(read_lines(path))


def _command() -> str:
    """The command line of this process, as a shell reads it, for the page and the tables."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["report"]:  # it is absent with `python -m wenet_hs.bin.report`
        arguments = arguments[1:]
    return shlex.join(["wenet-hs", "report", *arguments])


if __name__ == "__main__":
    main_of(__name__)
