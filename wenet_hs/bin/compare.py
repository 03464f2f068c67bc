# SPDX-License-Identifier: Apache-2.0
"""Compare two systems on the same utterances.

Example: wenet-hs compare --metric cer --ref data/test/text --data_list data/test/data.list \\
             --hyp_a exp/softmax/test/attention_rescoring/text \\
             --hyp_b exp/hsoftmax/test/attention_rescoring/text
         wenet-hs compare --metric per --ref data/test/text \\
             --hyp_a exp/softmax-seed?/test/joint/text --hyp_b exp/hsoftmax-seed?/test/joint/text

A paired bootstrap over utterances and, if known, speakers.

With several files per system, one per seed in the same order: a paired t test over seeds and an
interval over seeds and utterances. If the files are in experiment folders
(MODEL_DIR/test/MODE/text), the trainings must be pairs.

Both systems must have decoded the same utterances. An utterance without a hypothesis of either
counts as deletions for both. docs/scoring.md explains how to compare honestly.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from wenet_hs.bin.main import check_at_least, main_of
from wenet_hs.bin.score import (
    LANG,
    add_common_arguments,
    read_hypothesis,
    read_languages,
    read_reference,
    rules_of,
    speakers_of,
)
from wenet_hs.manifest.data_list import Utterance
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
    """Declare the flags of `wenet-hs compare`."""
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
    """Compare the two systems: one file of each, or one file per seed of each.

    Raises ConfigError for flags that do not fit each other, DataError for data that do not.
    """
    check_at_least(args, 1, "num_resamples")
    rules = rules_of(args)
    reference, utterances = read_reference(args)
    langs = read_languages(args, reference, utterances, required=LANG in args.by)

    def score_file(path: Path, name: str | None) -> Report:
        """The scoring of one file; without a name it is called by its path."""
        hypothesis = read_hypothesis(path)
        refuse_keys_in_brackets(args.ref, reference, path, hypothesis)
        return score(
            reference,
            hypothesis,
            rules=rules,
            langs=langs,
            name=name or str(path),
            names=(str(args.ref), str(path)),
            num_resamples=0,
        )

    if len(args.hyp_a) != len(args.hyp_b):
        fault = f"{len(args.hyp_a)} and {len(args.hyp_b)} files"
        to_do = "give both systems one file per seed, in the same order"
        raise ConfigError("--hyp_a and --hyp_b", fault, to_do)
    if len(args.hyp_a) > 1:
        _compare_seeds(args, score_file)
    else:
        _compare_files(args, score_file, reference.keys(), utterances)


def _compare_files(
    args: argparse.Namespace,
    score_file: Callable[[Path, str | None], Report],
    keys: Iterable[str],
    utterances: Sequence[Utterance],
) -> None:
    """Compare one file of each system, and print the comparison; with --json write it, too.

    The interval over speakers needs the speaker of every key of the reference. Otherwise a line
    says why there is none.
    """
    report_a = score_file(args.hyp_a[0], args.name_a)
    report_b = score_file(args.hyp_b[0], args.name_b)
    speaker_of_key = speakers_of(utterances)
    without_speaker = [key for key in keys if key not in speaker_of_key]
    comparison = compare(
        report_a,
        report_b,
        speakers=None if without_speaker else speaker_of_key,
        num_resamples=args.num_resamples,
    )
    if args.json:
        write_atomic(args.json, comparison_to_json(comparison))
    print(format_comparison(comparison), end="")
    if without_speaker:
        reason = "no --data_list"
        if utterances:
            number = count_of(len(without_speaker), "utterance")
            reason = f"no speaker for {number} ({list_names(without_speaker)})"
        print(
            f"not by speaker: {reason}; utterances of one speaker are similar, so the intervals "
            "may be too narrow"
        )


def _compare_seeds(
    args: argparse.Namespace, score_file: Callable[[Path, str | None], Report]
) -> None:
    """Compare the files of both systems seed by seed, and print it; with --json write it, too.

    A training is known if there is a train.yaml three folders above its file. If both trainings of
    a pair are known, they must fit (`check_pair`), and no system may have a seed twice
    (`check_system`). Lines at the end say what could not be checked. Raises DataError for trainings
    that do not fit.
    """
    trainings_a = [read_training(path) for path in args.hyp_a]
    trainings_b = [read_training(path) for path in args.hyp_b]
    unchecked_facts: dict[str, None] = {}  # a set that keeps the order
    for training_a, training_b in zip(trainings_a, trainings_b, strict=True):
        if training_a and training_b:
            unchecked_facts |= dict.fromkeys(check_pair(training_a, training_b))
    # One training per pair, the known one. Of two known ones `check_pair` has compared the seeds.
    training_of_pair = [a or b for a, b in zip(trainings_a, trainings_b, strict=True)]
    for trainings in (trainings_a, trainings_b, training_of_pair):
        check_system([training for training in trainings if training])
    reports_of_seed = {}
    pairs = zip(training_of_pair, args.hyp_a, args.hyp_b, strict=True)
    for number, (training, path_a, path_b) in enumerate(pairs, start=1):
        seed = f"#{number}"  # stands for a seed that is not known
        if training and training.seed:
            seed = training.seed
        reports_of_seed[seed] = (score_file(path_a, None), score_file(path_b, None))
    and_more = f" and {len(reports_of_seed) - 1} more"
    name_a = args.name_a or f"{args.hyp_a[0]}{and_more}"
    name_b = args.name_b or f"{args.hyp_b[0]}{and_more}"
    comparison = compare_reports(
        reports_of_seed, names=(name_a, name_b), num_resamples=args.num_resamples
    )
    if args.json:
        write_atomic(args.json, comparison_to_json(comparison))
    print(format_seed_comparison(comparison), end="")
    if None in trainings_a or None in trainings_b:
        print(
            "the trainings are not checked: no train.yaml three folders above each hypothesis file"
        )
    if unchecked_facts:
        print(f"not recorded by each train.yaml, so not checked: {', '.join(unchecked_facts)}")


if __name__ == "__main__":
    main_of(__name__)
