# SPDX-License-Identifier: Apache-2.0
"""Report what is wrong with data lists: audio, transcripts, lengths, and what sets share.

Example: wenet-hs check data/train/data.list data/dev/data.list data/test/data.list --html check.html --out check.tsv

It only reads. Faults are utterances that training leaves out: the exit code is then 3. Remarks may
be mistakes, and the exit code is 0. With less than --min_minutes of training speech it is 2.
docs/own-data-reference.md explains every kind.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from wenet_hs.base.files import check_replaceable, one_field
from wenet_hs.base.options import NUM_CORES
from wenet_hs.bin.main import add_start_arguments, check_at_least, main_of, path_or_none
from wenet_hs.config.load import make_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.corpus.check import (
    FAULT_RULE,
    FAULTS,
    KINDS,
    REMARK_RULE,
    Checked,
    check_lists,
    read_lists,
    read_made_sets,
)
from wenet_hs.corpus.expectations import MIN_MINUTES, describe_results, find_too_little
from wenet_hs.corpus.letters import name_unit
from wenet_hs.corpus.output import hours_of
from wenet_hs.recipes.conf_files import OWN, conf_file
from wenet_hs.recipes.config_choice import choose_config
from wenet_hs.report.check_page import MAX_PLAYERS, build_check_page
from wenet_hs.score.tables import format_columns
from wenet_hs.text.tokenizer import read_unit_table
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError, DataError, list_names

_KEYS_WIDTH = 60
_TITLE = "Check of "
_HEADER = "set\tkey\tkind\tdetails"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "lists",
        type=Path,
        nargs="+",
        metavar="LIST",
        help="data.list files: the sets of one corpus, train first",
    )
    unit_help = "units of the transcripts (default: the tokenizer of --config, or char)"
    add("--unit", choices=("char", "phone"), help=unit_help)
    table_help = "units.txt of the training: how it divides the transcripts, and which units it does not know"
    table_default = (
        "that of --config, if it exists and --unit is not given; else the units of the transcripts"
    )
    add("--units", type=Path, metavar="FILE", help=f"{table_help} (default: {table_default})")
    add(
        "--min_count",
        type=int,
        default=5,
        help="units that occur less often are listed (default: 5)",
    )
    config_help = "YAML of the training, for its subsampling, frame shift and filter_conf (default: by 4, 10 ms)"
    add("--config", type=Path, help=config_help)
    add_start_arguments(parser)
    add("--out", type=Path, metavar="FILE.tsv", help="write all findings: set, key, kind, details")
    add(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page with the worst utterances and their audio",
    )
    players_help = f"utterances of the page with audio (default: {MAX_PLAYERS})"
    add("--max_players", type=int, default=MAX_PLAYERS, help=players_help)
    minutes_help = "with less training speech (lists named train) the exit code is 2; 0: any"
    add(
        "--min_minutes",
        type=float,
        default=MIN_MINUTES,
        help=f"{minutes_help} (default: {MIN_MINUTES:g})",
    )
    add(
        "--num_workers",
        type=int,
        default=NUM_CORES,
        help="processes; 0: only this one (default: one per core)",
    )


def run(args: argparse.Namespace) -> None:
    """Check, write, print. Raises DataError if there are faults."""
    check_at_least(args, 0, "num_workers", "max_players", "min_count", "min_minutes")
    check_replaceable("--out", args.out, _HEADER)
    check_replaceable("--html", args.html, f"<title>{_TITLE}")
    path, config = _read_config(args)
    unit = args.unit or config.tokenizer
    if unit == "bpe":
        raise ConfigError(path, "tokenizer is bpe", "give --unit char or --unit phone")
    table_path = args.units or _find_table(config, args)
    table = None if table_path is None else read_unit_table(unit, table_path)
    sets = read_lists(args.lists)
    made = read_made_sets(args.lists)
    checked = check_lists(
        sets,
        config=config,
        unit=unit,
        table=table,
        min_count=args.min_count,
        num_workers=args.num_workers,
        made_sets=made,
    )
    facts = [*_facts(checked, args, table_path), *dict.fromkeys(made.values())]
    if args.out:
        findings = (one for found in checked.findings.values() for one in found)
        rows = (
            "\t".join(map(one_field, (one.set, one.key, one.kind, one.details))) + "\n"
            for one in findings
        )
        write_atomic(args.out, f"{_HEADER}\n{''.join(rows)}")
    if args.html:
        title = _TITLE + ", ".join(checked.sets)
        page = build_check_page(checked, facts=facts, title=title, max_players=args.max_players)
        write_atomic(args.html, page)
    print(
        "\n".join([*facts, "", *_summary(checked), *map(str, filter(None, (args.out, args.html)))])
    )
    lists = list_names([str(path) for path in args.lists])
    faulty, hours = checked.keys(is_fault=True), _training_hours(checked)
    faults = (
        [f"{len(faulty):,} utterances have faults; correct them, or leave them out"]
        if faulty
        else []
    )
    too_little = "" if hours is None else find_too_little(hours, args.min_minutes)
    if messages := [*faults, *filter(None, [too_little])]:
        error = DataError("\n".join(f"{lists}: {message}" for message in messages))
        error.exit_code = 2 if too_little else 3  # the check itself is complete
        raise error


def _read_config(args: argparse.Namespace) -> tuple[Path | None, ExperimentConfig]:
    """The YAML of the training and its config; no YAML and the default config if none is given."""
    is_given = args.config or args.base or args.encoder
    if not is_given:
        return None, ExperimentConfig()
    choice = choose_config(
        args.config or conf_file(OWN),
        base=path_or_none(args.base),
        encoder=path_or_none(args.encoder),
    )
    config = make_config(choice.file_settings, choice.settings, ExperimentConfig)
    return choice.path, config


def _find_table(config: ExperimentConfig, args: argparse.Namespace) -> Path | None:
    """The unit table that the config of --config names; None if another --unit is given, or before
    it is made.
    """
    named = config.tokenizer_conf.symbol_table_path
    if named is None or args.unit is not None or not Path(named).is_file():
        return None
    return Path(named)


def _training_hours(checked: Checked) -> float | None:
    """The speech of the sets that are named train; None if there is none."""
    names = [name for name in checked.sets if "train" in (name, Path(name).parent.name)]
    return sum(hours_of(checked.sets[name]) for name in names) if names else None


def _facts(checked: Checked, args: argparse.Namespace, table_path: Path | None) -> Iterator[str]:
    """Lines on the sets, the sample rates and the units."""
    for name, utterances in checked.sets.items():
        yield f"{name}: {len(utterances):,} utterances, {hours_of(utterances):.2f} hours"
    if (hours := _training_hours(checked)) is not None:
        yield describe_results(hours)
    rates = [f"{rate} Hz: {count:,}" for rate, count in checked.rates.most_common()]
    yield f"utterances per sample rate: {', '.join(rates) or 'none can be read'}"
    rare = sorted((count, unit) for unit, count in checked.units.items() if count < args.min_count)
    names = list_names([f"{name_unit(unit)}: {count}" for count, unit in rare], most=10)
    source = "" if table_path is None else f" as {table_path} divides them"
    yield f"units{source}: {len(checked.units):,}; fewer than {args.min_count} times: {names or 'none'}"
    yield from checked.remarks


def _summary(checked: Checked) -> Iterator[str]:
    """One line per kind, faults first, and the total."""
    num, rows = sum(map(len, checked.sets.values())), list[tuple[str, ...]]()
    for kind, found in checked.findings.items():
        keys = [one.key for one in found[:3]]
        while len(keys) > 1 and len(", ".join(keys)) > _KEYS_WIDTH:
            keys.pop()
        rows.append(
            (kind, f"{len(found):>7,} {len(found) / num:>6.1%}", ", ".join(keys), KINDS[kind])
        )
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
