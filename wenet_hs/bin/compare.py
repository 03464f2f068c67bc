# SPDX-License-Identifier: Apache-2.0
"""Is system B better than system A? The paired bootstrap over utterances, and over speakers where they are known.

Example: wenet-hs compare --metric cer --ref data/test/text --data_list data/test/data.list \\
             --hyp_a exp/softmax/test/attention_rescoring/text --hyp_b exp/hsoftmax/test/attention_rescoring/text

Both must have decoded the same utterances. What neither decoded counts as deletions for both.
"""

import argparse
from pathlib import Path

from wenet_hs.bin.command import main_of
from wenet_hs.bin.score import read_languages, read_reference, rules_of
from wenet_hs.errors import ConfigError
from wenet_hs.files import write_atomic
from wenet_hs.manifest import read_data_list, read_text
from wenet_hs.score import METRICS, score
from wenet_hs.score.compare import compare, comparison_json, format_comparison
from wenet_hs.score.error_rate import Report, check_keys
from wenet_hs.score.units import NORMALIZATIONS, SPACES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("--metric", choices=METRICS, required=True, help="grapheme clusters, words, or phones between white space")
    add("--ref", type=Path, required=True, help="reference: a text file (`key transcript` a line) or a data.list")
    add("--hyp_a", type=Path, required=True, help="hypotheses of the first system")
    add("--hyp_b", type=Path, required=True, help="hypotheses of the second system")
    add("--data_list", type=Path, help="data.list with language and speaker of each reference utterance")
    add("--spaces", choices=SPACES, default="ignore", help="cer: are spaces between words units? (default: ignore)")
    add("--normalize", choices=NORMALIZATIONS, default="nfc", help="done to all three (default: nfc)")
    add("--num_resamples", type=int, default=10_000, help="bootstrap resamples (default: 10000)")
    add("--name_a", help="what to call the first system (default: its file)")
    add("--name_b", help="what to call the second system (default: its file)")
    add("--json", type=Path, help="also write everything to this file")


def run(args: argparse.Namespace) -> None:
    """Score both, compare, print."""
    if args.num_resamples < 1:
        raise ConfigError(f"--num_resamples {args.num_resamples}: must be at least 1")
    reference, utterances = read_reference(args.ref)
    langs = read_languages(args.data_list, args.ref, reference, utterances)
    speakers = _speakers(args.data_list or (args.ref if utterances else None), reference)
    reports = [
        _score(args, reference, langs, path=path, name=name or str(path))
        for path, name in ((args.hyp_a, args.name_a), (args.hyp_b, args.name_b))
    ]
    comparison = compare(reports[0], reports[1], speakers=speakers, num_resamples=args.num_resamples)
    if args.json:
        write_atomic(args.json, comparison_json(comparison))
    print(format_comparison(comparison), end="")


def _score(
    args: argparse.Namespace, reference: dict[str, str], langs: dict[str, str] | None, *, path: Path, name: str
) -> Report:
    hypothesis = read_text(path)
    check_keys(reference.keys(), hypothesis.keys(), names=(str(args.ref), str(path)))
    return score(reference, hypothesis, rules=rules_of(args), langs=langs, name=name, num_resamples=0)


def _speakers(data_list: Path | None, reference: dict[str, str]) -> dict[str, str] | None:
    """The speaker of each key, where all have one."""
    if data_list is None:
        return None
    found = {u.key: u.speaker for u in read_data_list(data_list) if u.speaker is not None and u.key in reference}
    return found if found.keys() == reference.keys() else None


if __name__ == "__main__":
    main_of(__name__)
