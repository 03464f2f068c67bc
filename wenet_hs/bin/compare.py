# SPDX-License-Identifier: Apache-2.0
"""Difference of two systems on the same utterances: a paired bootstrap over utterances and, if known, speakers.

Example: wenet-hs compare --metric cer --ref data/test/text --data_list data/test/data.list \\
             --hyp_a exp/softmax/test/attention_rescoring/text --hyp_b exp/hsoftmax/test/attention_rescoring/text

Both systems must have decoded the same utterances. An utterance without a hypothesis of either counts as deletions for
both. docs/scoring.md explains how to compare honestly.
"""

import argparse
from pathlib import Path

from wenet_hs.bin.main import check_at_least, main_of
from wenet_hs.bin.score import LANG, add_common_arguments, read_hypothesis, read_languages, read_reference, rules_of
from wenet_hs.errors import list_names
from wenet_hs.files import write_atomic
from wenet_hs.score import score
from wenet_hs.score.compare import compare, comparison_to_json
from wenet_hs.score.error_rate import count_of
from wenet_hs.score.tables import format_comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("--hyp_a", type=Path, required=True, help="hypotheses of the first system")
    add("--hyp_b", type=Path, required=True, help="hypotheses of the second system")
    add_common_arguments(parser)
    add("--by", nargs="+", choices=(LANG,), default=[], help="lang: one row per language, which the list must name")
    add("--num_resamples", type=int, default=10_000, help="bootstrap resamples (default: 10000)")
    add("--name_a", help="name of the first system (default: its file)")
    add("--name_b", help="name of the second system (default: its file)")
    add("--json", type=Path, help="also write everything to this file")


def run(args: argparse.Namespace) -> None:
    """Score both, compare, print."""
    check_at_least(args, 1, "num_resamples")
    rules = rules_of(args)
    reference, utterances = read_reference(args)
    langs = read_languages(args, reference, utterances, required=LANG in args.by)
    reports = []
    for path, name in ((args.hyp_a, args.name_a), (args.hyp_b, args.name_b)):
        hypothesis = read_hypothesis(path)
        names = str(args.ref), str(path)
        found = score(
            reference, hypothesis, rules=rules, langs=langs, name=name or names[1], names=names, num_resamples=0
        )
        reports.append(found)
    speakers = {u.key: u.speaker for u in utterances if u.speaker is not None}
    unknown = [key for key in reference if key not in speakers]
    known = None if unknown else speakers
    comparison = compare(reports[0], reports[1], speakers=known, num_resamples=args.num_resamples)
    if args.json:
        write_atomic(args.json, comparison_to_json(comparison))
    print(format_comparison(comparison), end="")
    if unknown:
        why = f"no speaker for {count_of(len(unknown), 'utterance')} ({list_names(unknown)})"
        print(
            f"not by speaker: {why if utterances else 'no --data_list'}; utterances of one speaker are similar, so the "
            "intervals may be too narrow"
        )


if __name__ == "__main__":
    main_of(__name__)
