# SPDX-License-Identifier: Apache-2.0
"""Make the data lists of a corpus: OUT/{train,dev,test}/{data.list,text}, OUT/stats.json and OUT/rejected.tsv.

Example: wenet-hs prepare commonvoice --corpus cv-corpus-11.0 --langs "ca es fr it pt" --out data
         wenet-hs prepare ucla --corpus ucla-phonetic-corpus --out data
         wenet-hs prepare synthetic --langs "es fr" --sentences sentences --hours 1 --out data

A run that was stopped goes on where it was: clips that were looked at are not looked at again.
"""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from wenet_hs.bin.command import main_of
from wenet_hs.corpus.audio_check import AudioFunctions, ClipChecker
from wenet_hs.corpus.commonvoice import CommonVoiceOptions, prepare_commonvoice
from wenet_hs.corpus.output import MEMORY_NAME, SPLITS
from wenet_hs.corpus.ucla import PAPER_TEST_LANGS, UclaOptions, prepare_ucla
from wenet_hs.data.audio import check_clip, probe_audio
from wenet_hs.errors import ConfigError

AUDIO = AudioFunctions(check=check_clip, probe=probe_audio)
_PLAIN_WIDTH = 160
_KINDS = {
    "commonvoice": ("a Common Voice release as downloaded", '--corpus cv-corpus-11.0 --langs "ca es fr" --out data'),
    "ucla": ("the UCLA Phonetic Corpus", "--corpus ucla-phonetic-corpus --out data"),
    "synthetic": (
        "sentences spoken by espeak-ng (simulated speech)",
        '--langs "es fr" --sentences sentences --hours 1 --out data',
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of each corpus."""
    # Imported here because it is the one corpus that needs an extra.
    from wenet_hs.corpus import synthetic

    kinds = parser.add_subparsers(dest="kind", required=True, metavar="commonvoice|ucla|synthetic")
    declare = {"commonvoice": _add_commonvoice, "ucla": _add_ucla, "synthetic": synthetic.add_arguments}
    for kind, (what, example) in _KINDS.items():
        text = f"Prepare {what}.\n\nExample: wenet-hs prepare {kind} {example}"
        formatter = argparse.RawDescriptionHelpFormatter
        declare[kind](kinds.add_parser(kind, help=what, description=text, formatter_class=formatter))


def run(args: argparse.Namespace) -> None:
    """Prepare the corpus and print what came of it."""
    match args.kind:
        case "commonvoice":
            stats = prepare_commonvoice(_commonvoice_options(args), _checker(args))
        case "ucla":
            stats = prepare_ucla(_ucla_options(args), _checker(args))
        case _:
            from wenet_hs.corpus import synthetic

            stats = synthetic.run(args)
    show(stats, Console(width=None if os.isatty(1) else _PLAIN_WIDTH, markup=False, highlight=False))
    print(f"{args.out / 'stats.json'}: prepared")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--corpus", type=Path, required=True, help="folder of the corpus; nothing is written there")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="of every random choice (default 0)")
    parser.add_argument(
        "--num_workers",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="processes that look at clips (default: one a core)",
    )
    parser.add_argument(
        "--check_audio",
        choices=("full", "exists"),
        default="full",
        help="full: decode every clip that is used (default); exists: only see that the file is there",
    )
    parser.add_argument(
        "--max_rejected", type=float, default=0.5, help="share of faulty clips that is accepted (default 0.5)"
    )


def _add_commonvoice(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--langs", required=True, help='languages, as their folders are called: "ca es"')
    parser.add_argument(
        "--alpha", type=float, default=0.5, help="smoothing of the languages' sizes: 1 keeps them (default 0.5)"
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--ratio", type=float, default=0.082, help="share of all hours to train on (default 0.082)")
    size.add_argument("--hours", type=float, help="hours to train on, all languages together")
    parser.add_argument(
        "--split",
        choices=("paper", "released"),
        default="paper",
        help="paper: share out validated.tsv (default); released: take train.tsv, dev.tsv and test.tsv",
    )
    parser.add_argument("--test_fraction", type=float, default=0.1, help="of a language's utterances (default 0.1)")
    parser.add_argument("--max_test", type=int, default=10_000, help="test utterances of a language (default 10000)")
    parser.add_argument(
        "--dev_utterances", type=int, help="of a language (default: 5 %% of what is trained on, at most 1000)"
    )


def _add_ucla(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument(
        "--test_langs", default=" ".join(PAPER_TEST_LANGS), help="languages to test on (default: those of the paper)"
    )
    parser.add_argument(
        "--dev_fraction", type=float, default=0.05, help="share of the training languages' utterances (default 0.05)"
    )


def _checker(args: argparse.Namespace) -> ClipChecker:
    if args.num_workers < 0:
        raise ConfigError(f"--num_workers {args.num_workers}: must be at least 0 (0: in this process)")
    return ClipChecker(AUDIO, args.out / MEMORY_NAME, mode=args.check_audio, num_workers=args.num_workers)


def _commonvoice_options(args: argparse.Namespace) -> CommonVoiceOptions:
    return CommonVoiceOptions(
        corpus=args.corpus.absolute(),
        langs=tuple(args.langs.split()),
        out=args.out,
        alpha=args.alpha,
        ratio=args.ratio,
        hours=args.hours,
        seed=args.seed,
        split=args.split,
        test_fraction=args.test_fraction,
        max_test=args.max_test,
        dev_utterances=args.dev_utterances,
        max_rejected=args.max_rejected,
    )


def _ucla_options(args: argparse.Namespace) -> UclaOptions:
    return UclaOptions(
        corpus=args.corpus.absolute(),
        out=args.out,
        test_langs=tuple(args.test_langs.split()),
        dev_fraction=args.dev_fraction,
        seed=args.seed,
        max_rejected=args.max_rejected,
    )


def show(stats: Mapping[str, Any], console: Console) -> None:
    """Print a line a language, what stands in two sets, and why clips were left out."""
    console.print(_table(stats))
    for lang, of_lang in stats["langs"].items():
        for pair, shared in of_lang["in_both"].items():
            if shared["speakers"] or shared["sentences"]:
                counts = f"{shared['speakers']} speakers and {shared['sentences']} sentences"
                console.print(f"{lang}: {counts} are both in {pair.replace('-', ' and in ')}")
    for title, key in (("faulty", "rejected"), ("left out", "left_out")):
        for kind, count in stats["total"][key].items():
            console.print(f"{title}: {count} {kind}")
    if "phones" in stats:
        unseen = stats["phones"]["unseen_in_test"]
        console.print(f"phones of the test set that no training utterance has: {len(unseen)}: {' '.join(unseen)}")


def _table(stats: Mapping[str, Any]) -> Table:
    is_sampled = any("lambda" in of_lang for of_lang in stats["langs"].values())
    table = Table(title=f"{stats['corpus']}: audio and utterances")
    for column in (
        "language",
        *(("before", "λ", "wanted") if is_sampled else ()),
        *SPLITS,
        *SPLITS,
        "faulty",
        "left out",
    ):
        table.add_column(column, justify="left" if column == "language" else "right")
    for lang, of_lang in stats["langs"].items():
        table.add_row(lang, *(_sampling(of_lang) if is_sampled else ()), *_row(of_lang))
    table.add_section()
    table.add_row("all", *(("", "", "") if is_sampled else ()), *_row(stats["total"]))
    return table


def _sampling(of_lang: Mapping[str, Any]) -> list[str]:
    return [_time(of_lang["hours_before"]), f"{of_lang['lambda']:.4f}", _time(of_lang["hours_wanted"])]


def _row(of_lang: Mapping[str, Any]) -> list[str]:
    sets = [_time(of_lang["hours"].get(name, 0.0)) for name in SPLITS]
    sets += [str(of_lang["utterances"].get(name, 0)) for name in SPLITS]
    return [*sets, str(sum(of_lang["rejected"].values())), str(sum(of_lang["left_out"].values()))]


def _time(hours: float) -> str:
    return f"{hours:.2f} h" if hours >= 1.0 else f"{hours * 60.0:.2f} min"


if __name__ == "__main__":
    main_of(__name__)
