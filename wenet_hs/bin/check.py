# SPDX-License-Identifier: Apache-2.0
"""Everything that is wrong with data lists: audio, transcripts, lengths, and what the sets have in common.

Example: wenet-hs check data/train/data.list data/dev/data.list data/test/data.list --html check.html --out check.tsv

It only reads. Faults are utterances that training leaves out: the exit code is then 3. Remarks may be mistakes, and
the exit code is 0. docs/own-data.md explains every kind.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from wenet_hs.bin.main import check_at_least, main_of
from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.corpus.check import FAULT_RULE, FAULTS, KINDS, REMARK_RULE, Checked, check_lists, read_lists
from wenet_hs.corpus.letters import name_unit
from wenet_hs.corpus.output import hours_of
from wenet_hs.errors import ConfigError, DataError, list_names
from wenet_hs.files import check_replaceable, one_field, write_atomic
from wenet_hs.report.check_page import MAX_PLAYERS, build_check_page
from wenet_hs.score.tables import format_columns

_KEYS_WIDTH = 60
_TITLE = "Check of "
_HEADER = "set\tkey\tkind\tdetails"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    add = parser.add_argument
    add("lists", type=Path, nargs="+", metavar="LIST", help="data.list files: the sets of one corpus, train first")
    unit_help = "units of the transcripts (default: the tokenizer of --config, or char)"
    add("--unit", choices=("char", "phone"), help=unit_help)
    add("--min_count", type=int, default=5, help="units that occur less often are listed (default: 5)")
    config_help = "YAML of the training, for its subsampling, frame shift and filter_conf (default: by 4, 10 ms)"
    add("--config", type=Path, help=config_help)
    add("--out", type=Path, metavar="FILE.tsv", help="write all findings: set, key, kind, details")
    add("--html", type=Path, metavar="FILE", help="write a page with the worst utterances and their audio")
    players_help = f"utterances of the page with audio (default: {MAX_PLAYERS})"
    add("--max_players", type=int, default=MAX_PLAYERS, help=players_help)
    add("--num_workers", type=int, default=cores, help="processes; 0: only this one (default: one per core)")


def run(args: argparse.Namespace) -> None:
    """Check, write, print. Raises DataError if there are faults."""
    check_at_least(args, 0, "num_workers", "max_players", "min_count")
    check_replaceable("--out", args.out, _HEADER)
    check_replaceable("--html", args.html, f"<title>{_TITLE}")
    config = load_config(args.config) if args.config else ExperimentConfig()
    unit = args.unit or config.tokenizer
    if unit == "bpe":
        raise ConfigError(f"{args.config}: tokenizer is bpe; give --unit char or --unit phone")
    sets = read_lists(args.lists)
    checked = check_lists(sets, config=config, unit=unit, min_count=args.min_count, num_workers=args.num_workers)
    facts = [*_facts(checked, args)]
    if args.out:
        findings = (one for found in checked.findings.values() for one in found)
        rows = ("\t".join(map(one_field, (one.set, one.key, one.kind, one.details))) + "\n" for one in findings)
        write_atomic(args.out, f"{_HEADER}\n{''.join(rows)}")
    if args.html:
        title = _TITLE + ", ".join(checked.sets)
        page = build_check_page(checked, facts=facts, title=title, max_players=args.max_players)
        write_atomic(args.html, page)
    print("\n".join([*facts, "", *_summary(checked), *map(str, filter(None, (args.out, args.html)))]))
    if faulty := checked.keys(is_fault=True):
        lists = list_names([str(path) for path in args.lists])
        error = DataError(f"{lists}: {len(faulty):,} utterances have faults; correct them, or leave them out")
        error.exit_code = 3  # the check itself is complete
        raise error


def _facts(checked: Checked, args: argparse.Namespace) -> Iterator[str]:
    """Lines on the sets, the sample rates and the units."""
    for name, utterances in checked.sets.items():
        yield f"{name}: {len(utterances):,} utterances, {hours_of(utterances):.2f} hours"
    rates = [f"{rate} Hz: {count:,}" for rate, count in checked.rates.most_common()]
    yield f"utterances per sample rate: {', '.join(rates) or 'none can be read'}"
    rare = sorted((count, unit) for unit, count in checked.units.items() if count < args.min_count)
    names = list_names([f"{name_unit(unit)}: {count}" for count, unit in rare], most=10)
    yield f"units: {len(checked.units):,}; fewer than {args.min_count} times: {names or 'none'}"
    yield from checked.remarks


def _summary(checked: Checked) -> Iterator[str]:
    """One line per kind, faults first, and the total."""
    num, rows = sum(map(len, checked.sets.values())), list[tuple[str, ...]]()
    for kind, found in checked.findings.items():
        keys = [one.key for one in found[:3]]
        while len(keys) > 1 and len(", ".join(keys)) > _KEYS_WIDTH:
            keys.pop()
        rows.append((kind, f"{len(found):>7,} {len(found) / num:>6.1%}", ", ".join(keys), KINDS[kind]))
    lines = dict(zip(checked.findings, format_columns(rows, num_left=4), strict=True))
    for is_fault, rule in ((True, FAULT_RULE), (False, REMARK_RULE)):
        of_class = [f"  {line}" for kind, line in lines.items() if (kind in FAULTS) == is_fault]
        yield f"{'faults' if is_fault else 'remarks'} ({rule}): {'' if of_class else 'none'}".rstrip()
        yield from of_class
    faulty, remarked = checked.keys(is_fault=True), checked.keys(is_fault=False)
    only = len(remarked - faulty)
    yield f"total: {num:,} utterances, {len(faulty):,} with faults, {only:,} only with remarks"


if __name__ == "__main__":
    main_of(__name__)
