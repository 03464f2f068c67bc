# SPDX-License-Identifier: Apache-2.0
"""Error rates of a decoded list, with averages and 95 % intervals.

Example: wenet-hs score --metric cer --ref data/test/text \\
             --hyp exp/hsoftmax/test/attention_rescoring/text \\
             --data_list data/test/data.list --by lang speaker --confusions 10 --align -
         wenet-hs score --metric cer --ref data/test/data.list --hyp exp/hsoftmax/test

The rates are per language, speaker or length, with macro and micro average.

The second example scores every mode of a folder, and writes score.txt, score.json and alignment.txt
beside each text.

An utterance without a hypothesis is scored as if all its units were deleted. A hypothesis without a
reference does not count, and the exit code is 2. Messages list the keys of both. docs/scoring.md
explains every number.
"""

import argparse
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from wenet_hs.base.files import read_lines
from wenet_hs.bin.main import check_at_least, main_of
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.runs.file_names import SCORE_FILE
from wenet_hs.score import METRICS, Report, Rules, report_to_json, score
from wenet_hs.score.alignments import count_confusions, format_alignments, wants_colour
from wenet_hs.score.error_rate import (
    LENGTH,
    SPEAKER,
    by_length,
    by_speaker,
    check_complete,
    check_keys,
)
from wenet_hs.score.pfer import with_pfer
from wenet_hs.score.rules import NORMALIZATIONS, PUNCTUATION, SPACES
from wenet_hs.score.tables import format_report
from wenet_hs.score.transcript_files import (
    parse_transcripts,
    read_transcript_lines,
    read_transcripts,
    refuse_keys_in_brackets,
)
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError, DataError, list_names

LANG = "lang"
TERMINAL = Path("-")
"""The value of --align that prints the alignments instead of writing a file."""
WIDTH_WITHOUT_TERMINAL = 120
"""Columns of alignments that are printed into a pipe."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs score`."""
    add = parser.add_argument
    hyp_help = (
        "hypotheses: a text file, or the --result_dir of `recognize`, whose modes are all scored"
    )
    add("--hyp", type=Path, required=True, help=hyp_help)
    add_common_arguments(parser)
    by_help = "one table each; length in bins of reference units (default: lang)"
    add(
        "--by",
        nargs="+",
        action="extend",
        choices=(LANG, SPEAKER, LENGTH),
        default=[],
        help=by_help,
    )
    add(
        "--features",
        action="store_true",
        help="per: also the phone feature error rate (needs the extra `trees`)",
    )
    add(
        "--confusions",
        type=int,
        metavar="N",
        help="also the N most frequent substitutions, deletions, insertions",
    )
    add(
        "--allow_extra",
        action="store_true",
        help="hypotheses without a reference are not an error (exit code 0)",
    )
    exclude_help = (
        "text or tsv file: leave out the keys in its first column (prepare's implausible.tsv)"
    )
    add("--exclude", type=Path, help=exclude_help)
    add(
        "--num_resamples",
        type=int,
        default=1000,
        help="bootstrap resamples for the intervals (default: 1000)",
    )
    add("--name", default="", help="name of the scoring, printed above the table")
    add("--json", type=Path, help="also write everything, including each utterance, to this file")
    add(
        "--align",
        type=Path,
        help="also write the aligned transcripts, worst first, to this file; - for the terminal",
    )


def run(args: argparse.Namespace) -> None:
    """Score one file of hypotheses and print the tables, or score every mode of a folder.

    Raises ConfigError for flags that do not fit each other, and DataError for data that do not fit
    each other. Raises DataError for hypotheses without a reference, too, but only after all results
    are printed or written.
    """
    _check_flags(args)
    reference, utterances = read_reference(args)
    if args.hyp.is_dir():
        _score_folder(args, reference, utterances)
    else:
        scoring = _score_file(args, reference, utterances)
        print(scoring.text, end="")
        scoring.check_keys()


def _check_flags(args: argparse.Namespace) -> None:
    """Raise ConfigError for numbers out of range, and for --features where it cannot be used."""
    check_at_least(args, 0, "num_resamples")
    check_at_least(args, 1, "confusions")
    if args.features and args.metric != "per":
        fault = f"only phones have features, --metric is {args.metric}"
        raise ConfigError("--features", fault, "use --metric per")
    if args.features and find_spec("panphon") is None:
        to_do = 'run pip install "wenet_hs[trees]"'
        raise ConfigError("--features", "panphon is not installed", to_do)


def _score_folder(
    args: argparse.Namespace, reference: dict[str, str], utterances: Sequence[Utterance]
) -> None:
    """Score FOLDER/MODE/text of every mode, and write three files beside each.

    Prints the path of each score.txt. Raises ConfigError for --json and --align, whose files have
    these names, and DataError if there is no mode. Keys are checked when all modes are written.
    """
    if args.json or args.align:
        fault = "of a folder, score.json and alignment.txt are written beside each text"
        raise ConfigError(f"--hyp {args.hyp}", fault)
    texts = sorted(args.hyp.glob("*/text"))
    if not texts:
        text_of_mode = args.hyp / "text"  # the folder of a mode was given
        to_do = "give the --result_dir of `wenet-hs recognize`"
        if text_of_mode.is_file():
            to_do = f"give {text_of_mode}, or the --result_dir of `wenet-hs recognize`"
        raise DataError(args.hyp, "contains no MODE/text", to_do)
    scorings = []
    for text in texts:
        mode_folder = text.parent
        mode = mode_folder.name
        changes = {
            "hyp": text,
            "json": mode_folder / SCORE_FILE,
            "align": mode_folder / "alignment.txt",
            "name": f"{args.name}, {mode}" if args.name else mode,
        }
        args_of_mode = argparse.Namespace(**{**vars(args), **changes})
        # With a copy, because --exclude removes utterances from the reference.
        scoring = _score_file(args_of_mode, dict(reference), utterances)
        scorings.append(scoring)
        write_atomic(mode_folder / "score.txt", scoring.text)
        print(mode_folder / "score.txt")
    for scoring in scorings:
        scoring.check_keys()


@dataclass(frozen=True)
class _ScoredFile:
    """What `wenet-hs score` prints about one file of hypotheses."""

    text: str
    check_keys: Callable[[], None]
    """Raises DataError if the keys do not fit those of the reference.

    It is called when the text is printed: the results are then complete.
    """


def _score_file(
    args: argparse.Namespace, reference: dict[str, str], utterances: Sequence[Utterance]
) -> _ScoredFile:
    """Score one file of hypotheses, and write the files of --json and --align.

    The utterances of --exclude are removed from `reference`.
    """
    rules = rules_of(args)
    hypothesis = read_hypothesis(args.hyp)
    refuse_keys_in_brackets(args.ref, reference, args.hyp, hypothesis)
    excluded_keys = _exclude(args, reference, hypothesis) if args.exclude else []
    names = str(args.ref), str(args.hyp)
    langs = read_languages(args, reference, utterances, required=LANG in args.by)
    report = score(
        reference,
        hypothesis,
        rules=rules,
        langs=langs,
        name=args.name,
        names=names,
        allow_extra=True,
        num_resamples=args.num_resamples,
    )
    if args.exclude:
        report = replace(report, signature=f"{report.signature}|excluded:{len(excluded_keys)}")
    report = _add_groupings(report, args, utterances)
    confusions = None
    if args.confusions:
        confusions = count_confusions(report.utterances.values(), rules, args.confusions)
    if args.json:
        write_atomic(args.json, report_to_json(report, confusions))
    text = format_report(report, args.by, confusions)
    if args.align == TERMINAL:
        text = f"{_alignments_for_terminal(report)}\n{text}"
    elif args.align:
        write_atomic(args.align, f"{report.signature}\n\n{format_alignments(report)}")
    if args.exclude:
        keys = list_names(excluded_keys, most=20) or "none"
        text += f"excluded, because {args.exclude} has their keys: {keys}\n"
    absent_langs = _find_absent_languages(report, utterances)
    if absent_langs and args.data_list:
        langs_text = ", ".join(absent_langs)
        text += f"languages of {args.data_list} without an utterance in {args.ref}: {langs_text}\n"
    return _ScoredFile(
        text=text,
        check_keys=partial(
            check_keys,
            reference.keys(),
            hypothesis.keys(),
            names=names,
            allow_extra=args.allow_extra,
        ),
    )


def _alignments_for_terminal(report: Report) -> str:
    """The aligned transcripts with errors, worst first, as wide as the terminal."""
    num_lines = 24  # without a terminal; not used here
    width = shutil.get_terminal_size((WIDTH_WITHOUT_TERMINAL, num_lines)).columns
    colour = wants_colour(sys.stdout)
    return format_alignments(report, width=width, colour=colour, all_shown=False)


def _find_absent_languages(report: Report, utterances: Sequence[Utterance]) -> list[str]:
    """The languages of the data list that no utterance of the report has, sorted."""
    langs = {utterance.lang for utterance in utterances if utterance.lang is not None}
    return sorted(langs - report.languages.keys())


def _exclude(
    args: argparse.Namespace, reference: dict[str, str], hypothesis: dict[str, str]
) -> list[str]:
    """Remove the utterances of --exclude from both. Returns the keys that the reference had.

    A key is the first word of a line. Raises DataError if no utterance is left.
    """
    keys = {line.split()[0] for line in read_lines(args.exclude) if line.strip()}
    excluded_keys = [key for key in reference if key in keys]
    if len(excluded_keys) == len(reference):
        fault = f"has the keys of all utterances of {args.ref}"
        raise DataError(args.exclude, fault, "give a list of a part of them")
    for key in keys:
        reference.pop(key, None)
        hypothesis.pop(key, None)
    return excluded_keys


def _add_groupings(
    report: Report, args: argparse.Namespace, utterances: Sequence[Utterance]
) -> Report:
    """The report with the phone feature error rate of --features, and with the tables of --by.

    Raises ConfigError for --by speaker without a data list.
    """
    if args.features:
        report = with_pfer(report)
    if SPEAKER in args.by:
        if not utterances:
            to_do = "give --data_list the data.list of the reference"
            raise ConfigError("--by speaker", "needs the speakers", to_do)
        where = str(args.data_list or args.ref)
        report = by_speaker(report, speakers_of(utterances), where=where)
    if LENGTH in args.by:
        report = by_length(report)
    return report


# ---- shared with `wenet-hs compare`


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `score` and `compare`: the reference and the rules."""
    add = parser.add_argument
    add(
        "--metric",
        choices=METRICS,
        required=True,
        help="grapheme clusters, words, or phones between white space",
    )
    forms = "a text file (`key transcript` per line), a data.list, or NIST's trn, ctm or stm"
    add("--ref", type=Path, required=True, help=f"reference: {forms}")
    add(
        "--data_list",
        type=Path,
        help="data.list with language and speaker of each reference utterance",
    )
    add(
        "--spaces",
        choices=SPACES,
        default="ignore",
        help="cer: whether spaces are units (default: ignore)",
    )
    add(
        "--normalize",
        choices=NORMALIZATIONS,
        default="nfc",
        help="applied to every transcript (default: nfc)",
    )
    add(
        "--punctuation",
        choices=PUNCTUATION,
        default="keep",
        help="applied to every transcript (default: keep)",
    )


def rules_of(args: argparse.Namespace) -> Rules:
    """The rules that the flags select. Raises ConfigError if they contradict each other.

    The error names --metric, and --normalize or --punctuation: one of the two contradicts it.
    """
    try:
        return Rules(
            metric=args.metric,
            spaces=args.spaces,
            normalization=args.normalize,
            punctuation=args.punctuation,
        )
    except ValueError as error:
        flag = f"--punctuation {args.punctuation}"
        if args.normalize != "nfc":  # the default, which contradicts nothing
            flag = f"--normalize {args.normalize}"
        raise ConfigError(f"--metric {args.metric} {flag}", str(error)) from error


def read_reference(args: argparse.Namespace) -> tuple[dict[str, str], list[Utterance]]:
    """Transcripts of --ref by key, and utterances with their languages and speakers.

    The utterances are those of --data_list, or those of a reference that is a data.list itself,
    whose lines are JSON. Without both there are none.
    """
    lines = read_transcript_lines(args.ref)
    first_line = next((line.strip() for line in lines if line.strip()), "")
    if first_line.startswith("{"):
        utterances = read_data_list(args.ref)
        reference = {utterance.key: utterance.txt for utterance in utterances}
    else:
        utterances = []
        reference = parse_transcripts(args.ref, lines)
    if args.data_list:
        utterances = read_data_list(args.data_list)
    return reference, utterances


def read_hypothesis(path: Path) -> dict[str, str]:
    """Transcripts by key.

    Raises DataError if there are none: an error rate of 100 % would look like a result.
    """
    hypothesis = read_transcripts(path)
    if not hypothesis:
        to_do = "decode again, or check that it is the right file"
        raise DataError(path, "contains no hypotheses", to_do)
    return hypothesis


def read_languages(
    args: argparse.Namespace,
    reference: Mapping[str, str],
    utterances: Sequence[Utterance],
    *,
    required: bool = False,
) -> dict[str, str] | None:
    """The language of each reference key; None if no utterance has one and none is `required`.

    Raises ConfigError if they are required and there is no data list, DataError if only some keys
    have a language.
    """
    if not utterances and required:
        to_do = "give --data_list the data.list of the reference"
        raise ConfigError("--by lang", "needs the languages", to_do)
    langs = {
        utterance.key: utterance.lang for utterance in utterances if utterance.lang is not None
    }
    if not langs and not required:
        return None
    check_complete(langs, reference, what="language", where=str(args.data_list or args.ref))
    return langs


def speakers_of(utterances: Sequence[Utterance]) -> dict[str, str]:
    """The speaker by key, of the utterances that have one."""
    return {
        utterance.key: utterance.speaker
        for utterance in utterances
        if utterance.speaker is not None
    }


if __name__ == "__main__":
    main_of(__name__)
