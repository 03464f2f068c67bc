# SPDX-License-Identifier: Apache-2.0
"""Error rates of a decoded list: by language, speaker or length, macro and micro average, 95 % intervals.

Example: wenet-hs score --metric cer --ref data/test/text --hyp exp/hsoftmax/test/attention_rescoring/text \\
             --data_list data/test/data.list --by lang speaker --confusions 10 --align -

An utterance without a hypothesis counts as deletions and is named; a hypothesis without a reference is left out, named,
and makes the exit code 2.
docs/scoring.md says what each number means.
"""

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from wenet_hs.bin.command import main_of
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.files import read_lines, write_atomic
from wenet_hs.manifest import Utterance, read_data_list, read_text
from wenet_hs.score import METRICS, Report, Rules, score
from wenet_hs.score.confusions import count_confusions
from wenet_hs.score.error_rate import check_same_test, count_of, extra_line, name_some
from wenet_hs.score.groups import LENGTH, SPEAKER, by_length, by_speaker
from wenet_hs.score.table import format_alignments
from wenet_hs.score.terminal import terminal_alignments, wants_colour
from wenet_hs.score.units import NORMALIZATIONS, PUNCTUATION, SPACES

LANG = "lang"
TERMINAL = Path("-")
_WIDTH_OF_A_PIPE = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("--hyp", type=Path, required=True, help="hypotheses: a text file")
    add_common_arguments(parser, of_list="data.list with language and speaker of each reference utterance")
    add(
        "--by",
        nargs="+",
        action="extend",
        choices=(LANG, SPEAKER, LENGTH),
        default=[],
        help="a table for each; length in bins of reference units (default: lang)",
    )
    add("--features", action="store_true", help="per: also the phone feature error rate (needs the extra `trees`)")
    add("--confusions", type=int, metavar="N", help="also the N most frequent substitutions, deletions, insertions")
    add("--allow_extra", action="store_true", help="hypotheses without a reference are no fault (exit code 0)")
    add("--num_resamples", type=int, default=1000, help="bootstrap resamples for the intervals (default: 1000)")
    add("--name", default="", help="what is scored, printed above the table")
    add("--json", type=Path, help="also write everything, each utterance too, to this file")
    add("--align", type=Path, help="also write the aligned transcripts, worst first, to this file; - for the terminal")


def add_common_arguments(parser: argparse.ArgumentParser, *, of_list: str) -> None:
    """What `score` and `compare` both ask: the reference and the rules."""
    add = parser.add_argument
    add("--metric", choices=METRICS, required=True, help="grapheme clusters, words, or phones between white space")
    add("--ref", type=Path, required=True, help="reference: a text file (`key transcript` a line) or a data.list")
    add("--data_list", type=Path, help=of_list)
    add("--spaces", choices=SPACES, default="ignore", help="cer: are spaces between words units? (default: ignore)")
    add("--normalize", choices=NORMALIZATIONS, default="nfc", help="done to every transcript (default: nfc)")
    add("--punctuation", choices=PUNCTUATION, default="keep", help="done to every transcript (default: keep)")


def run(args: argparse.Namespace) -> None:
    """Read, score, print."""
    _check(args)
    rules = rules_of(args)
    reference, utterances = read_reference(args.ref)
    hypothesis = read_hypothesis(args.hyp)
    names = str(args.ref), str(args.hyp)
    check_same_test(reference.keys(), hypothesis.keys(), names=names)
    if args.data_list:
        utterances = read_data_list(args.data_list)
    report = score(
        reference,
        hypothesis,
        rules=rules,
        langs=read_languages(args, reference, utterances, required=LANG in args.by),
        name=args.name,
        allow_extra=True,
        num_resamples=args.num_resamples,
    )
    report = _more(report, args, utterances)
    if args.json:
        write_atomic(args.json, report.to_json())
    if args.align == TERMINAL:
        width = shutil.get_terminal_size((_WIDTH_OF_A_PIPE, 24)).columns
        print(terminal_alignments(report, width=width, colour=wants_colour(sys.stdout)))
    elif args.align:
        write_atomic(args.align, format_alignments(report))
    print(report.format(args.by), end="")
    absent = sorted({u.lang for u in utterances if u.lang is not None} - report.languages.keys())
    if absent and args.data_list:
        print(f"languages of {args.data_list} without an utterance in {args.ref}: {', '.join(absent)}")
    if report.extra and not args.allow_extra:
        raise DataError(extra_line(report.extra, names))


def _check(args: argparse.Namespace) -> None:
    if args.num_resamples < 0:
        raise ConfigError(f"--num_resamples {args.num_resamples}: must be at least 0")
    if args.confusions is not None and args.confusions < 1:
        raise ConfigError(f"--confusions {args.confusions}: must be at least 1")
    if args.features and args.metric != "per":
        raise ConfigError(f"--features: phones have features, --metric is {args.metric}; score with --metric per")
    if args.features and find_spec("panphon") is None:
        raise ConfigError('--features: panphon is not installed; run pip install "wenet_hs[trees]"')


def _more(report: Report, args: argparse.Namespace, utterances: Sequence[Utterance]) -> Report:
    """What only some ask for."""
    if args.features:
        from wenet_hs.score.features import with_features

        report = with_features(report)
    if SPEAKER in args.by:
        report = by_speaker(report, _speakers(args, report, utterances))
    if LENGTH in args.by:
        report = by_length(report)
    if args.confusions:
        confusions = count_confusions(report.utterances.values(), report.rules, args.confusions)
        report = replace(report, confusions=confusions)
    return report


def _speakers(args: argparse.Namespace, report: Report, utterances: Sequence[Utterance]) -> dict[str, str]:
    if not utterances:
        raise ConfigError("--by speaker: needs the speakers; give --data_list the data.list of the reference")
    speakers = {utterance.key: utterance.speaker for utterance in utterances if utterance.speaker is not None}
    unknown = [key for key in report.utterances if key not in speakers]
    if unknown:
        raise DataError(
            f"{args.data_list or args.ref}: no speaker for {count_of(len(unknown), 'utterance')} of {args.ref} "
            f"({name_some(unknown)}); complete the list, or score without --by speaker"
        )
    return speakers


def rules_of(args: argparse.Namespace) -> Rules:
    """The rules that the flags make. Raises ConfigError where they do not go together."""
    try:
        return Rules(metric=args.metric, spaces=args.spaces, normalization=args.normalize, punctuation=args.punctuation)
    except ValueError as error:
        flags = f"--metric {args.metric}"
        flags += f" --normalize {args.normalize}" if args.normalize != "nfc" else f" --punctuation {args.punctuation}"
        raise ConfigError(f"{flags}: {error}") from error


def read_reference(path: Path) -> tuple[dict[str, str], list[Utterance]]:
    """Transcripts by key, and the utterances where the file is a data.list."""
    first = next((line.strip() for line in read_lines(path) if line.strip()), "")
    if not first.startswith("{"):
        return read_text(path), []
    utterances = read_data_list(path)
    return {utterance.key: utterance.txt for utterance in utterances}, utterances


def read_hypothesis(path: Path) -> dict[str, str]:
    """Transcripts by key. Raises DataError where there are none: 100 % would look like a result."""
    hypothesis = read_text(path)
    if not hypothesis:
        raise DataError(f"{path}: no hypotheses in it; decode again, or check that it is the right file")
    return hypothesis


def read_languages(
    args: argparse.Namespace,
    reference: Mapping[str, str],
    utterances: Sequence[Utterance],
    *,
    required: bool = False,
) -> dict[str, str] | None:
    """The language of each reference key; None where no list has any, unless they were asked for (`required`)."""
    if not utterances:
        if required:
            raise ConfigError("--by lang: needs the languages; give --data_list the data.list of the reference")
        return None
    langs = {utterance.key: utterance.lang for utterance in utterances if utterance.lang is not None}
    if not langs and not required:
        return None  # WeNet's lists never have languages, lists of one language need none; nobody asked for them
    unknown = [key for key in reference if key not in langs]
    if unknown:
        raise DataError(
            f"{args.data_list or args.ref}: no language for {count_of(len(unknown), 'utterance')} of {args.ref} "
            f"({name_some(unknown)}); give --data_list the data.list that the reference was made from"
        )
    return langs


if __name__ == "__main__":
    main_of(__name__)
