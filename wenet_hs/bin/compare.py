# SPDX-License-Identifier: Apache-2.0
"""Compare two systems on the same utterances.

Example: wenet-hs compare --metric cer --ref data/test/text --data_list data/test/data.list \\
             --hyp_a exp/softmax/test/attention_rescoring/text --hyp_b
             exp/hsoftmax/test/attention_rescoring/text
         wenet-hs compare --metric per --ref data/test/text --hyp_a exp/softmax-seed?/test/joint/text \\
             --hyp_b exp/hsoftmax-seed?/test/joint/text

A paired bootstrap over utterances and, if known, speakers.

With several files per system, one per seed in the same order: a paired t test over seeds and an
interval over seeds and utterances. If the files are in experiment folders
(MODEL_DIR/test/MODE/text), the trainings must be pairs.

Both systems must have decoded the same utterances. An utterance without a hypothesis of either
counts as deletions for both. docs/scoring.md explains how to compare honestly.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from wenet_hs.bin.main import check_at_least, main_of
from wenet_hs.bin.score import (
    LANG,
    add_common_arguments,
    read_hypothesis,
    read_languages,
    read_reference,
    rules_of,
)
from wenet_hs.results.experiment import read_training
from wenet_hs.results.pairing import check_pair, check_system
from wenet_hs.score import score
from wenet_hs.score.compare import compare
from wenet_hs.score.error_rate import Report, count_of
from wenet_hs.score.seeds import compare_reports
from wenet_hs.score.tables import comparison_to_json, format_comparison, format_seed_comparison
from wenet_hs.score.transcript_files import refuse_keys_in_brackets
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError, list_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--hyp_a",
        type=Path,
        nargs="+",
        required=True,
        help="hypotheses of the first system, one file per seed",
    )
    add(
        "--hyp_b",
        type=Path,
        nargs="+",
        required=True,
        help="those of the second system, seeds in the same order",
    )
    add_common_arguments(parser)
    add(
        "--by",
        nargs="+",
        choices=(LANG,),
        default=[],
        help="lang: one row per language, which the list must name",
    )
    add("--num_resamples", type=int, default=10_000, help="bootstrap resamples (default: 10000)")
    add("--name_a", help="name of the first system (default: its file)")
    add("--name_b", help="name of the second system (default: its file)")
    add("--json", type=Path, help="also write everything to this file")


def run(args: argparse.Namespace) -> None:
    check_at_least(args, 1, "num_resamples")
    rules = rules_of(args)
    reference, utterances = read_reference(args)
    langs = read_languages(args, reference, utterances, required=LANG in args.by)

    def score_file(path: Path, name: str | None) -> Report:
        names = str(args.ref), str(path)
        hypothesis = read_hypothesis(path)
        refuse_keys_in_brackets(args.ref, reference, path, hypothesis)
        return score(
            reference,
            hypothesis,
            rules=rules,
            langs=langs,
            name=name or names[1],
            names=names,
            num_resamples=0,
        )

    if len(args.hyp_a) != len(args.hyp_b):
        found = f"{len(args.hyp_a)} and {len(args.hyp_b)} files"
        raise ConfigError(
            "--hyp_a and --hyp_b", found, "give both systems one file per seed, in the same order"
        )
    if len(args.hyp_a) > 1:
        _run_seeds(args, score_file)
        return
    reports = score_file(args.hyp_a[0], args.name_a), score_file(args.hyp_b[0], args.name_b)
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


def _run_seeds(args: argparse.Namespace, score_file: Callable[[Path, str | None], Report]) -> None:
    """Check the pairs, score all files, compare, print."""
    trainings = [[read_training(path) for path in paths] for paths in (args.hyp_a, args.hyp_b)]
    unknown = dict.fromkeys(
        what for a, b in zip(*trainings, strict=True) if a and b for what in check_pair(a, b)
    )
    known = [a or b for a, b in zip(*trainings, strict=True)]
    for system in (*trainings, known):
        check_system([training for training in system if training])
    pairs = {
        found.seed if found and found.seed else f"#{i}": (
            score_file(path_a, None),
            score_file(path_b, None),
        )
        for i, (found, path_a, path_b) in enumerate(
            zip(known, args.hyp_a, args.hyp_b, strict=True), start=1
        )
    }
    more = f" and {len(pairs) - 1} more"
    names = args.name_a or f"{args.hyp_a[0]}{more}", args.name_b or f"{args.hyp_b[0]}{more}"
    comparison = compare_reports(pairs, names=names, num_resamples=args.num_resamples)
    if args.json:
        write_atomic(args.json, comparison_to_json(comparison))
    print(format_seed_comparison(comparison), end="")
    if not all(map(all, trainings)):
        print(
            "the trainings are not checked: no train.yaml three folders above each hypothesis file"
        )
    if unknown:
        print(f"not recorded by each train.yaml, so not checked: {', '.join(unknown)}")


if __name__ == "__main__":
    main_of(__name__)
