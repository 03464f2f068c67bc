# SPDX-License-Identifier: Apache-2.0
"""Error rates of a decoded list: a line a language, macro and micro average, 95 % intervals.

Example: wenet-hs score --metric cer --ref data/test/text --hyp exp/hsoftmax/test/attention_rescoring/text \\
             --data_list data/test/data.list --by lang --json exp/hsoftmax/test/attention_rescoring/score.json

An utterance without a hypothesis counts as deletions and is named; a hypothesis without a reference is an error.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from wenet_hs.bin.command import main_of
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.files import read_lines, write_atomic
from wenet_hs.manifest import Utterance, read_data_list, read_text
from wenet_hs.score import METRICS, Rules, score
from wenet_hs.score.error_rate import check_keys, count_of, name_some
from wenet_hs.score.table import format_alignments
from wenet_hs.score.units import NORMALIZATIONS, SPACES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("--metric", choices=METRICS, required=True, help="grapheme clusters, words, or phones between white space")
    add("--ref", type=Path, required=True, help="reference: a text file (`key transcript` a line) or a data.list")
    add("--hyp", type=Path, required=True, help="hypotheses: a text file")
    add("--data_list", type=Path, help="data.list with the language of each reference utterance")
    add("--by", choices=("lang",), help="a line for each language; implied by --data_list")
    add("--spaces", choices=SPACES, default="ignore", help="cer: are spaces between words units? (default: ignore)")
    add("--normalize", choices=NORMALIZATIONS, default="nfc", help="done to reference and hypothesis (default: nfc)")
    add("--allow_extra", action="store_true", help="leave hypotheses without a reference out instead of stopping")
    add("--num_resamples", type=int, default=1000, help="bootstrap resamples for the intervals (default: 1000)")
    add("--name", default="", help="what is scored, printed above the table")
    add("--json", type=Path, help="also write everything, each utterance too, to this file")
    add("--align", type=Path, help="also write the aligned transcripts, worst first, to this file")


def run(args: argparse.Namespace) -> None:
    """Read, score, print."""
    if args.num_resamples < 0:
        raise ConfigError(f"--num_resamples {args.num_resamples}: must be at least 0")
    rules = rules_of(args)
    reference, utterances = read_reference(args.ref)
    hypothesis = read_text(args.hyp)
    check_keys(reference.keys(), hypothesis.keys(), names=(str(args.ref), str(args.hyp)), allow_extra=args.allow_extra)
    report = score(
        reference,
        hypothesis,
        rules=rules,
        langs=read_languages(args.data_list, args.ref, reference, utterances, required=args.by is not None),
        name=args.name,
        allow_extra=args.allow_extra,
        num_resamples=args.num_resamples,
    )
    if args.json:
        write_atomic(args.json, report.to_json())
    if args.align:
        write_atomic(args.align, format_alignments(report))
    print(report.format(), end="")


def rules_of(args: argparse.Namespace) -> Rules:
    """The rules that --metric, --spaces and --normalize make. Raises ConfigError where they do not go together."""
    try:
        return Rules(metric=args.metric, spaces=args.spaces, normalization=args.normalize)
    except ValueError as error:
        raise ConfigError(f"--metric {args.metric} --normalize {args.normalize}: {error}") from error


def read_reference(path: Path) -> tuple[dict[str, str], list[Utterance]]:
    """Transcripts by key, and the utterances where the file is a data.list."""
    first = next((line.strip() for line in read_lines(path) if line.strip()), "")
    if not first.startswith("{"):
        return read_text(path), []
    utterances = read_data_list(path)
    return {utterance.key: utterance.txt for utterance in utterances}, utterances


def read_languages(
    data_list: Path | None,
    ref: Path,
    reference: dict[str, str],
    utterances: Sequence[Utterance],
    *,
    required: bool = False,
) -> dict[str, str] | None:
    """The language of each reference key; None where the user gave no list and asked for none (`required`)."""
    path = data_list or ref
    if data_list:
        utterances = read_data_list(path)
    elif not utterances:
        if required:
            raise ConfigError("--by lang: needs the languages; give --data_list the data.list of the reference")
        return None
    langs = {utterance.key: utterance.lang for utterance in utterances if utterance.lang is not None}
    if not langs and not data_list and not required:
        return None  # a WeNet list as reference: it never has languages, and nobody asked for them
    unknown = [key for key in reference if key not in langs]
    if unknown:
        raise DataError(
            f"{path}: no language for {count_of(len(unknown), 'utterance')} of {ref} ({name_some(unknown)}); "
            "give --data_list the data.list that the reference was made from"
        )
    return langs


if __name__ == "__main__":
    main_of(__name__)
