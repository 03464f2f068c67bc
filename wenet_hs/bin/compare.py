# SPDX-License-Identifier: Apache-2.0
"""Is system B better than system A? The paired bootstrap over utterances, and over speakers where they are known.

Example: wenet-hs compare --metric cer --ref data/test/text --data_list data/test/data.list \\
             --hyp_a exp/softmax/test/attention_rescoring/text --hyp_b exp/hsoftmax/test/attention_rescoring/text

Both must have decoded the same utterances. What neither decoded counts as deletions for both.
docs/scoring.md says how to compare honestly.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from wenet_hs.bin.command import main_of
from wenet_hs.bin.score import add_common_arguments, read_hypothesis, read_languages, read_reference, rules_of
from wenet_hs.errors import ConfigError
from wenet_hs.files import write_atomic
from wenet_hs.manifest import Utterance, read_data_list
from wenet_hs.score import Report, score
from wenet_hs.score.compare import compare, comparison_json, format_comparison
from wenet_hs.score.error_rate import check_keys, count_of, name_some


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("--hyp_a", type=Path, required=True, help="hypotheses of the first system")
    add("--hyp_b", type=Path, required=True, help="hypotheses of the second system")
    add_common_arguments(parser, of_list="data.list with language and speaker of each reference utterance")
    add("--num_resamples", type=int, default=10_000, help="bootstrap resamples (default: 10000)")
    add("--name_a", help="what to call the first system (default: its file)")
    add("--name_b", help="what to call the second system (default: its file)")
    add("--json", type=Path, help="also write everything to this file")


def run(args: argparse.Namespace) -> None:
    """Score both, compare, print."""
    if args.num_resamples < 1:
        raise ConfigError(f"--num_resamples {args.num_resamples}: must be at least 1")
    rules_of(args)
    reference, utterances = read_reference(args.ref)
    if args.data_list:
        utterances = read_data_list(args.data_list)
    langs = read_languages(args, reference, utterances)
    speakers = {u.key: u.speaker for u in utterances if u.speaker is not None and u.key in reference}
    reports = [
        _score(args, reference, langs, path=path, name=name or str(path))
        for path, name in ((args.hyp_a, args.name_a), (args.hyp_b, args.name_b))
    ]
    known = speakers if speakers.keys() == reference.keys() else None
    comparison = compare(reports[0], reports[1], speakers=known, num_resamples=args.num_resamples)
    if args.json:
        write_atomic(args.json, comparison_json(comparison))
    print(format_comparison(comparison), end="")
    if known is None:
        print(_why_not_by_speaker([key for key in reference if key not in speakers], utterances))


def _score(
    args: argparse.Namespace, reference: dict[str, str], langs: dict[str, str] | None, *, path: Path, name: str
) -> Report:
    hypothesis = read_hypothesis(path)
    names = str(args.ref), str(path)
    check_keys(reference.keys(), hypothesis.keys(), names=names, remedy="give the --ref of both, or take them out")
    return score(reference, hypothesis, rules=rules_of(args), langs=langs, name=name, num_resamples=0)


def _why_not_by_speaker(unknown: Sequence[str], utterances: Sequence[Utterance]) -> str:
    """Said, for the intervals by utterance are too narrow where people have said several."""
    why = (
        f"no speaker for {count_of(len(unknown), 'utterance')} ({name_some(unknown)})"
        if utterances
        else "no --data_list"
    )
    return f"not by speaker: {why}; utterances of one speaker are alike, so the intervals may be too narrow"


if __name__ == "__main__":
    main_of(__name__)
