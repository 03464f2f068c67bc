# SPDX-License-Identifier: Apache-2.0
"""Your own recordings: from annotations to a recogniser, its error rates and a report.

Example: wenet-hs own --elan fieldwork --lang mdw --prepare '--tier "utterance@*"'

  wenet-hs own --corpus my.tsv --lang mdw
                                                reads a table; --elan, --praat, --kaldi, --folder:
                                                other forms of recordings
  wenet-hs own --corpus my.tsv --base exp/of_another_language --exp exp-adapted
                                                adapts a trained model
  wenet-hs own --corpus my.tsv --encoder whisper-base --exp exp-whisper
                                                starts from a published encoder

Stages: 0 lists and their check, 1 units, 2 trees, 3 feature statistics, 4 training, 5 averaging, 6
decoding, 7 scores, 8 report. They and the options are those of examples/own/s0/run.sh, without
bash. A stopped command goes on when it is given again.
"""

import argparse
import sys
from collections.abc import Sequence

from wenet_hs.bin.main import main_of
from wenet_hs.config.heads import HEADS
from wenet_hs.recipes.own import PROGRAM
from wenet_hs.recipes.own_options import OPTION_NAMES, OwnOptions, option_texts, parse_own_options
from wenet_hs.recipes.run_stages import StageFailed, find_programs, run_own
from wenet_hs.tree.errors import ConfigError

HELP = {
    "corpus": "table: CSV, TSV or JSON Lines",
    "elan": "or an .eaf file, or a folder with them",
    "praat": "or a .TextGrid file, or a folder with them",
    "kaldi": "or a data folder of Kaldi",
    "folder": "or a folder of audio files with transcripts",
    "lang": "language, by code or name: decides how text is normalised",
    "prepare": "more options of `wenet-hs prepare`, such as '--columns \"text=Words\"'",
    "min_minutes": "stop with less training speech than this; 0: never",
    "size": (
        "of model and training: tiny, small, medium, large (conf/own_sizes.yaml); "
        "auto: by the hours"
    ),
    "base_steps": (
        "of the first part of training, by CTC, from which all heads start; 0: none "
        "(default: by size)"
    ),
    "base": "folder of a trained model to start from, instead of the first part of training",
    "encoder": (
        "folder of a pretrained encoder; config and steps follow from it (docs/pretrained.md)"
    ),
    "only_time": (
        "yes: stage 4 only measures how long a training takes on this computer, in about 20 s"
    ),
    "head": f"{', '.join(HEADS)}: one experiment per head and seed",
    "modes": (
        "of decoding (wenet-hs recognize --help); auto: of CTC, and with a decoder "
        "attention_rescoring and joint"
    ),
    "config": "YAML of the experiment (default: conf/own.yaml of wenet_hs)",
    "stage": "the first stage that runs",
    "stop_stage": "the last one",
    "tree": (
        "of heads that have one: a kind (wenet-hs tree build --help), or the path of a tree.json"
    ),
    "unit": "char, phone, or bpe:N with N pieces",
    "seeds": 'of training; several, as in "777 778 779", train every head once per seed',
    "data_seed": "of the random choices that stage 0 makes",
    "override": 'more settings for training, as "key=value key=value"',
    "average_num": (
        "checkpoints whose mean is the final model, the best of those that are kept "
        "(wenet-hs average)"
    ),
    "eval_set": "the list that stages 6 to 8 decode, score and report: test, or dev for choices",
    "chunk": (
        "of a model that streams: encoder frames per chunk, and chunks before it, "
        'as "16 4" (docs/streaming.md)'
    ),
    "nproc": "processes of training, statistics and decoding; above 1 by torchrun",
    "jobs": "trainings at a time (one at a time if nproc is above 1)",
    "threads": "cores of each training",
    "data": "folder for lists, units, trees and statistics",
    "exp": "folder for experiments",
    "results": "folder for a small results file of each experiment, for the tables of a study",
}
"""Option → its help."""
assert tuple(sorted(HELP)) == tuple(sorted(OPTION_NAMES))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the recipe; all values are texts, as in run.sh."""
    defaults = option_texts(OwnOptions())
    for name, help_text in HELP.items():
        default = defaults[name]
        if default and "(default" not in help_text:
            help_text = f"{help_text} (default: {default})"
        escaped_help = help_text.replace("%", "%%")  # argparse reads a single % as a format
        parser.add_argument(f"--{name}", default=default, help=escaped_help)


def translate_arguments(argv: Sequence[str]) -> list[str]:
    """The arguments in a form that argparse reads as run.sh does: `--option=value`.

    A dash in the name of an option becomes an underscore: `--stop-stage 4` is `--stop_stage=4`.
    Joined by `=`, a value may begin with a dash, as in `--prepare '--tier "a"'`. Other arguments,
    such as `--help`, stay as they are. An option at the end without a value gets none, and argparse
    says that it needs one.
    """
    translated = []
    remaining = iter(argv)
    for argument in remaining:
        flag, equals, value = argument.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        is_option = argument.startswith("--") and name in OPTION_NAMES
        if not is_option:
            translated.append(argument)
            continue
        if not equals:
            next_argument = next(remaining, None)
            if next_argument is None:
                translated.append(f"--{name}")
                break
            value = next_argument
        translated.append(f"--{name}={value}")
    return translated


def run(args: argparse.Namespace) -> None:
    """Run the stages, and print their lines.

    If a command fails, prints what failed and ends the process with its exit code, or with 2 for a
    training. Raises ConfigError, which begins with the name of the program, for a wrong option.
    """
    texts = {name: getattr(args, name) for name in OPTION_NAMES}
    try:
        options = parse_own_options(texts)
    except ConfigError as error:
        raise ConfigError(f"{PROGRAM}: {error.where}", error.found, error.to_do) from error
    try:
        run_own(options, find_programs(), _print_line)
    except StageFailed as failure:
        for line in failure.lines:
            print(line, file=sys.stderr)
        sys.exit(failure.code)


def _print_line(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


if __name__ == "__main__":
    main_of(__name__)
