# SPDX-License-Identifier: Apache-2.0
"""Error rates of a decoded list, with averages and 95 % intervals.

Example: wenet-hs score --metric cer --ref data/test/text --hyp exp/hsoftmax/test/attention_rescoring/text \\
             --data_list data/test/data.list --by lang speaker --confusions 10 --align -
         wenet-hs score --metric cer --ref data/test/data.list --hyp exp/hsoftmax/test

Per language, speaker or length; macro and micro average.

The second line scores every mode of a folder, and writes score.txt, score.json and alignment.txt
beside each text.

An utterance without a hypothesis is scored as if all its units were deleted. A hypothesis without a
reference does not count, and the exit code is 2. Messages list the keys of both. docs/scoring.md
explains every number.
"""

import argparse
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def run(args: argparse.Namespace) -> None:
    check_at_least(args, 0, "num_resamples")
    check_at_least(args, 1, "confusions")
    if args.features and args.metric != "per":
        raise ConfigError(
            "--features",
            f"only phones have features, --metric is {args.metric}",
            "use --metric per",
        )
    if args.features and find_spec("panphon") is None:
        raise ConfigError(
            "--features", "panphon is not installed", 'run pip install "wenet_hs[trees]"'
        )
    reference, utterances = read_reference(args)
    if not args.hyp.is_dir():
        printed, check = _score(args, reference, utterances)
        print(printed, end="")
        check()
        return
    if args.json or args.align:
        raise ConfigError(
            f"--hyp {args.hyp}",
            "of a folder, score.json and alignment.txt are written beside each text",
        )
    texts = sorted(args.hyp.glob("*/text"))
    if not texts:
        of_mode = args.hyp / "text"
        result_dir = "the --result_dir of `wenet-hs recognize`"
        to_do = f"give {of_mode}, or {result_dir}" if of_mode.is_file() else f"give {result_dir}"
        raise DataError(args.hyp, "contains no MODE/text", to_do)
    checks: list[Callable[[], None]] = []
    for text in texts:
        mode = text.parent
        files = {"hyp": text, "json": mode / SCORE_FILE, "align": mode / "alignment.txt"}
        name = ", ".join((*filter(None, [args.name]), mode.name))
        of_mode = argparse.Namespace(**{**vars(args), **files, "name": name})
        printed, check = _score(of_mode, dict(reference), utterances)
        checks.append(check)
        write_atomic(mode / "score.txt", printed)
        print(mode / "score.txt")
    for check in checks:  # when all modes are written
        check()


def _score(
    args: argparse.Namespace, reference: dict[str, str], utterances: Sequence[Utterance]
) -> tuple[str, Callable[[], None]]:
    """Score one file of hypotheses and write the files of the flags.

    Returns the tables, and a function that raises DataError if the keys do not fit: first the
    tables are printed.
    """
    rules = rules_of(args)
    hypothesis = read_hypothesis(args.hyp)
    refuse_keys_in_brackets(args.ref, reference, args.hyp, hypothesis)
    excluded = _exclude(args, reference, hypothesis) if args.exclude else []
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
        report = replace(report, signature=f"{report.signature}|excluded:{len(excluded)}")
    report = _add_groupings(report, args, utterances)
    confusions = (
        count_confusions(report.utterances.values(), rules, args.confusions)
        if args.confusions
        else None
    )
    if args.json:
        write_atomic(args.json, report_to_json(report, confusions))
    printed = format_report(report, args.by, confusions)
    if args.align == Path("-"):
        width = shutil.get_terminal_size((120, 24)).columns  # 120 in a pipe
        shown = format_alignments(
            report, width=width, colour=wants_colour(sys.stdout), all_shown=False
        )
        printed = f"{shown}\n{printed}"
    elif args.align:
        write_atomic(args.align, f"{report.signature}\n\n{format_alignments(report)}")
    if args.exclude:
        printed += f"excluded, because {args.exclude} has their keys: {list_names(excluded, most=20) or 'none'}\n"
    absent = sorted({u.lang for u in utterances if u.lang is not None} - report.languages.keys())
    if absent and args.data_list:
        printed += f"languages of {args.data_list} without an utterance in {args.ref}: {', '.join(absent)}\n"
    check = partial(
        check_keys, reference.keys(), hypothesis.keys(), names=names, allow_extra=args.allow_extra
    )
    return printed, check


def _exclude(
    args: argparse.Namespace, reference: dict[str, str], hypothesis: dict[str, str]
) -> list[str]:
    """Remove the utterances of --exclude from both. Returns the keys that the reference had."""
    keys = {line.split()[0] for line in read_lines(args.exclude) if line.strip()}
    excluded = [key for key in reference if key in keys]
    if len(excluded) == len(reference):
        raise DataError(
            args.exclude,
            f"has the keys of all utterances of {args.ref}",
            "give a list of a part of them",
        )
    for key in keys:
        reference.pop(key, None)
        hypothesis.pop(key, None)
    return excluded


def _add_groupings(
    report: Report, args: argparse.Namespace, utterances: Sequence[Utterance]
) -> Report:
    if args.features:
        report = with_pfer(report)
    if SPEAKER in args.by:
        if not utterances:
            raise ConfigError(
                "--by speaker",
                "needs the speakers",
                "give --data_list the data.list of the reference",
            )
        speakers = {
            utterance.key: utterance.speaker
            for utterance in utterances
            if utterance.speaker is not None
        }
        report = by_speaker(report, speakers, where=str(args.data_list or args.ref))
    return by_length(report) if LENGTH in args.by else report


def rules_of(args: argparse.Namespace) -> Rules:
    """The rules that the flags select. Raises ConfigError if they contradict each other."""
    try:
        return Rules(
            metric=args.metric,
            spaces=args.spaces,
            normalization=args.normalize,
            punctuation=args.punctuation,
        )
    except ValueError as error:
        flags = f"--metric {args.metric}"
        flags += (
            f" --normalize {args.normalize}"
            if args.normalize != "nfc"
            else f" --punctuation {args.punctuation}"
        )
        raise ConfigError(flags, str(error)) from error


def read_reference(args: argparse.Namespace) -> tuple[dict[str, str], list[Utterance]]:
    """Transcripts by key, and the utterances of --data_list or of a reference that is a data.list."""
    lines = read_transcript_lines(args.ref)
    first_line = next((line.strip() for line in lines if line.strip()), "")
    if first_line.startswith("{"):
        utterances = read_data_list(args.ref)
        reference = {utterance.key: utterance.txt for utterance in utterances}
    else:
        utterances = []
        reference = parse_transcripts(args.ref, lines)
    return reference, read_data_list(args.data_list) if args.data_list else utterances


def read_hypothesis(path: Path) -> dict[str, str]:
    """Transcripts by key.

    Raises DataError if there are none: an error rate of 100 % would look like a result.
    """
    hypothesis = read_transcripts(path)
    if not hypothesis:
        raise DataError(
            path, "contains no hypotheses", "decode again, or check that it is the right file"
        )
    return hypothesis


def read_languages(
    args: argparse.Namespace,
    reference: Mapping[str, str],
    utterances: Sequence[Utterance],
    *,
    required: bool = False,
) -> dict[str, str] | None:
    """The language of each reference key; None if no utterance has one and none is `required`."""
    if not utterances and required:
        raise ConfigError(
            "--by lang", "needs the languages", "give --data_list the data.list of the reference"
        )
    langs = {
        utterance.key: utterance.lang for utterance in utterances if utterance.lang is not None
    }
    if not langs and not required:
        return None
    check_complete(langs, reference, what="language", where=str(args.data_list or args.ref))
    return langs


if __name__ == "__main__":
    main_of(__name__)
