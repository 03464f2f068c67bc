# SPDX-License-Identifier: Apache-2.0
"""Make the data lists of a corpus: OUT/{train,dev,test}/{data.list,text}, OUT/stats.json and OUT/rejected.tsv.

Example: wenet-hs prepare commonvoice --corpus cv-corpus-11.0 --langs "ca es fr it pt" --out data
         wenet-hs prepare commonvoice --corpus cv-corpus-11.0.json --langs "ca es fr it pt" --table
         wenet-hs prepare ucla --corpus ucla-phonetic-corpus --out data
         wenet-hs prepare synthetic --langs "es fr" --sentences sentences --hours 1 --out data

An interrupted run continues when it is started again: no clip is checked twice.
"""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from wenet_hs.bin.command import main_of
from wenet_hs.corpus import commonvoice, synthetic, ucla
from wenet_hs.corpus.output import SPLITS
from wenet_hs.data.audio import describe_incomplete
from wenet_hs.errors import ConfigError

_PLAIN_WIDTH = 160


@dataclass(frozen=True)
class Corpus:
    """A subcommand of `prepare`."""

    description: str
    example: str
    module: ModuleType
    """Has `add_arguments(parser)`, and `run(args)`, which writes the lists and returns the content of stats.json."""
    has_table: bool = False
    """Whether the module has `read_hours_table(args)` too, for the flag `--table`."""


CORPORA = {
    "commonvoice": Corpus(
        "a Common Voice release as downloaded",
        '--corpus cv-corpus-11.0 --langs "ca es fr" --out data',
        commonvoice,
        has_table=True,
    ),
    "ucla": Corpus("the UCLA Phonetic Corpus", "--corpus ucla-phonetic-corpus --out data", ucla),
    "synthetic": Corpus(
        "sentences spoken by espeak-ng (simulated speech)",
        '--langs "es fr" --sentences sentences --hours 1 --out data',
        synthetic,
    ),
}
"""Every corpus by its subcommand. A new corpus needs one entry."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands and their flags."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="|".join(CORPORA))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for kind, corpus in CORPORA.items():
        text = f"Prepare {corpus.description}.\n\nExample: wenet-hs prepare {kind} {corpus.example}"
        formatter = argparse.RawDescriptionHelpFormatter
        subparser = kinds.add_parser(kind, help=corpus.description, description=text, formatter_class=formatter)
        output = subparser.add_mutually_exclusive_group(required=True)
        output.add_argument("--out", type=Path, help="output folder")
        if corpus.has_table:
            text = "print the hours of each language, λ and the hours to train on, and write nothing"
            output.add_argument("--table", action="store_true", help=text)
        subparser.add_argument("--seed", type=int, default=0, help="seed of every random choice (default: 0)")
        subparser.add_argument(
            "--num_workers", type=int, default=cores, help="processes; 0: none besides this one (default: one per core)"
        )
        corpus.module.add_arguments(subparser)


def run(args: argparse.Namespace) -> None:
    """Prepare the corpus and print its statistics."""
    if args.num_workers < 0:
        raise ConfigError(f"--num_workers {args.num_workers}: must be at least 0 (0: in this process)")
    module = CORPORA[args.kind].module
    console = Console(width=None if os.isatty(1) else _PLAIN_WIDTH, markup=False, highlight=False)
    if args.out is None:
        show_hours(module.read_hours_table(args), console)
        return
    show(module.run(args), console)
    print(f"{args.out / 'stats.json'}: prepared")


def show_hours(hours: Mapping[str, commonvoice.LanguageHours], console: Console) -> None:
    """Print one line per language, and the sums."""
    columns = ("validated h", "λ", "kept h", "test h")
    has_released = any(of_lang.released_test is not None for of_lang in hours.values())
    table = Table(title="hours to train on (Table 1)")
    table.add_column("language")
    for column in (*columns, "released test h") if has_released else columns:
        table.add_column(column, justify="right")
    for lang, of_lang in hours.items():
        released = [] if of_lang.released_test is None else [f"{of_lang.released_test:.2f}"]
        sizes = (f"{of_lang.validated:.2f}", f"{of_lang.ratio:.4f}", f"{of_lang.kept:.2f}", f"{of_lang.test:.2f}")
        table.add_row(lang, *sizes, *released)
    table.add_section()
    validated, kept, test = (
        sum(getattr(one, name) for one in hours.values()) for name in ("validated", "kept", "test")
    )
    table.add_row("all", f"{validated:.2f}", "", f"{kept:.2f}", f"{test:.2f}", *([""] if has_released else []))
    console.print(table)


def show(stats: Mapping[str, Any], console: Console) -> None:
    """Print one line per language, the overlap of the sets, and why clips were left out."""
    console.print(_make_table(stats))
    for lang, of_lang in stats["langs"].items():
        for pair, shared in of_lang["in_both"].items():
            if shared["speakers"] or shared["sentences"]:
                counts = f"{shared['speakers']} speakers and {shared['sentences']} sentences"
                console.print(f"{lang}: {counts} are both in {pair.replace('-', ' and in ')}")
    if stats.get("num_incomplete"):
        console.print(describe_incomplete(stats["num_incomplete"]))
    for title, key in (("faulty", "rejected"), ("left out", "left_out")):
        for kind, count in stats["total"][key].items():
            console.print(f"{title}: {count} {kind}")
    if "phones" in stats:
        unseen = stats["phones"]["unseen_in_test"]
        console.print(f"phones of the test set that no training utterance has: {len(unseen)}: {' '.join(unseen)}")


def _make_table(stats: Mapping[str, Any]) -> Table:
    is_sampled = any("lambda" in of_lang for of_lang in stats["langs"].values())
    sampling = ("before", "λ", "wanted") if is_sampled else ()
    table = Table(title=f"{stats['corpus']}: audio and utterances")
    table.add_column("language")
    for column in (*sampling, *SPLITS, *SPLITS, "faulty", "left out"):
        table.add_column(column, justify="right")
    for lang, of_lang in stats["langs"].items():
        row = _make_row(of_lang)
        if is_sampled:
            hours = (_format_hours(of_lang[name]) for name in ("hours_before", "hours_wanted"))
            row = [next(hours), f"{of_lang['lambda']:.4f}", next(hours), *row]
        table.add_row(lang, *row)
    table.add_section()
    table.add_row("all", *("" for _ in sampling), *_make_row(stats["total"]))
    return table


def _make_row(of_lang: Mapping[str, Any]) -> list[str]:
    sets = [_format_hours(of_lang["hours"].get(name, 0.0)) for name in SPLITS]
    sets += [str(of_lang["utterances"].get(name, 0)) for name in SPLITS]
    return [*sets, str(sum(of_lang["rejected"].values())), str(sum(of_lang["left_out"].values()))]


def _format_hours(hours: float) -> str:
    return f"{hours:.2f} h" if hours >= 1.0 else f"{hours * 60.0:.2f} min"


if __name__ == "__main__":
    main_of(__name__)
