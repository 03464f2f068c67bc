# SPDX-License-Identifier: Apache-2.0
"""Report what is wrong with data lists: audio, transcripts, lengths, and what sets share.

Example: wenet-hs check data/train/data.list data/dev/data.list data/test/data.list \\
             --html check.html --out check.tsv

It only reads. Faults are utterances that training leaves out: the exit code is then 3. Remarks may
be mistakes, and the exit code is 0. With less than --min_minutes of training speech it is 2.
docs/own-data-reference.md explains every kind.
"""

import argparse
from collections.abc import Iterator, Sequence
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

_MAX_KEYS = 3
"""Keys of utterances in a line of the summary."""
_KEYS_WIDTH = 60
"""Characters that these keys may have together. Of long keys fewer are shown, but at least one."""
_TITLE = "Check of "
"""The beginning of the title of a page. Only a file with it may be replaced by a new page."""
_HEADER = "set\tkey\tkind\tdetails"
_EXIT_FAULTS = 3
"""The exit code if utterances have faults. The check itself is complete."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs check`."""
    add = parser.add_argument
    lists_help = "data.list files: the sets of one corpus, train first"
    add("lists", type=Path, nargs="+", metavar="LIST", help=lists_help)
    unit_help = "units of the transcripts (default: the tokenizer of --config, or char)"
    add("--unit", choices=("char", "phone"), help=unit_help)
    table_help = (
        "units.txt of the training: how it divides the transcripts, and which units it does not "
        "know (default: that of --config, if it exists and --unit is not given; else the units of "
        "the transcripts)"
    )
    add("--units", type=Path, metavar="FILE", help=table_help)
    count_help = "units that occur less often are listed (default: 5)"
    add("--min_count", type=int, default=5, help=count_help)
    config_help = (
        "YAML of the training, for its subsampling, frame shift and filter_conf "
        "(default: by 4, 10 ms)"
    )
    add("--config", type=Path, help=config_help)
    add_start_arguments(parser)
    add("--out", type=Path, metavar="FILE.tsv", help="write all findings: set, key, kind, details")
    html_help = "write a page with the worst utterances and their audio"
    add("--html", type=Path, metavar="FILE", help=html_help)
    players_help = f"utterances of the page with audio (default: {MAX_PLAYERS})"
    add("--max_players", type=int, default=MAX_PLAYERS, help=players_help)
    minutes_help = (
        "with less training speech (lists named train) the exit code is 2; 0: any "
        f"(default: {MIN_MINUTES:g})"
    )
    add("--min_minutes", type=float, default=MIN_MINUTES, help=minutes_help)
    workers_help = "processes; 0: only this one (default: one per core)"
    add("--num_workers", type=int, default=NUM_CORES, help=workers_help)


def run(args: argparse.Namespace) -> None:
    """Check the lists, write the findings and the page, and print the summary.

    Raises ConfigError for wrong flags, and DataError for a file that this command must not replace.
    Raises DataError at the end if there are faults or too little training speech.
    """
    check_at_least(args, 0, "num_workers", "max_players", "min_count", "min_minutes")
    check_replaceable("--out", args.out, _HEADER)
    check_replaceable("--html", args.html, f"<title>{_TITLE}")
    config_path, config = _read_config(args)
    unit = args.unit or config.tokenizer
    if unit == "bpe":
        to_do = "give --unit char or --unit phone"
        raise ConfigError(config_path, "tokenizer is bpe", to_do)
    table_path = args.units or _find_table(config, args)
    table = None if table_path is None else read_unit_table(unit, table_path)
    sets = read_lists(args.lists)
    made_sets = read_made_sets(args.lists)
    checked = check_lists(
        sets,
        config=config,
        unit=unit,
        table=table,
        min_count=args.min_count,
        num_workers=args.num_workers,
        made_sets=made_sets,
    )
    notes_of_prepare = dict.fromkeys(made_sets.values())  # each once
    facts = [*_describe_lists(checked, args.min_count, table_path), *notes_of_prepare]
    if args.out:
        write_atomic(args.out, _format_findings(checked))
    if args.html:
        title = _TITLE + ", ".join(checked.sets)
        page = build_check_page(checked, facts=facts, title=title, max_players=args.max_players)
        write_atomic(args.html, page)
    lines = [*facts, "", *_summarize(checked)]
    lines += [str(path) for path in (args.out, args.html) if path is not None]
    print("\n".join(lines))
    _raise_for_faults(checked, args)


def _read_config(args: argparse.Namespace) -> tuple[Path | None, ExperimentConfig]:
    """The config of the training and its YAML, by --config, --base and --encoder.

    Without these flags: the default config and None.
    """
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
    """The unit table that the config names; None if it names none, or one that is not made yet.

    None also if --unit is given, because the table may be one of other units.
    """
    name = config.tokenizer_conf.symbol_table_path
    if args.unit is not None or name is None:
        return None
    path = Path(name)
    return path if path.is_file() else None


def _format_findings(checked: Checked) -> str:
    """All findings as a table with tabs: set, key, kind, details."""
    lines = [_HEADER]
    for findings in checked.findings.values():
        for finding in findings:
            fields = (finding.set, finding.key, finding.kind, finding.details)
            lines.append("\t".join(map(one_field, fields)))
    return "\n".join(lines) + "\n"


def _describe_lists(checked: Checked, min_count: int, table_path: Path | None) -> Iterator[str]:
    """Lines about the sets, the expected results, the sample rates, the units and the languages.

    Args:
        min_count: units with fewer occurrences are listed.
        table_path: the unit table by which the transcripts were divided; None: they were divided
            without one.
    """
    for name, utterances in checked.sets.items():
        yield f"{name}: {len(utterances):,} utterances, {hours_of(utterances):.2f} hours"
    training_hours = _training_hours(checked)
    if training_hours is not None:
        yield describe_results(training_hours)
    sample_rates = [f"{rate} Hz: {count:,}" for rate, count in checked.rates.most_common()]
    yield f"utterances per sample rate: {', '.join(sample_rates) or 'none can be read'}"
    rare_units = sorted((count, unit) for unit, count in checked.units.items() if count < min_count)
    rare_texts = [f"{name_unit(unit)}: {count}" for count, unit in rare_units]
    rare = list_names(rare_texts, most=10) or "none"
    division = "" if table_path is None else f" as {table_path} divides them"
    yield f"units{division}: {len(checked.units):,}; fewer than {min_count} times: {rare}"
    yield from checked.remarks


def _training_hours(checked: Checked) -> float | None:
    """The hours of the sets that are named train, or are in a folder train; None without such."""
    hours = []
    for name, utterances in checked.sets.items():
        if "train" in (name, Path(name).parent.name):
            hours.append(hours_of(utterances))
    return sum(hours) if hours else None


def _summarize(checked: Checked) -> Iterator[str]:
    """One line per kind of finding, faults first, and a line with the totals.

    A line has the number and the share of the utterances, some keys, and what to do.
    """
    num_utterances = sum(map(len, checked.sets.values()))
    rows = []
    for kind, findings in checked.findings.items():
        # Both have a fixed width, so that they are aligned in a column of texts.
        count_and_share = f"{len(findings):>7,} {len(findings) / num_utterances:>6.1%}"
        keys = _first_keys([finding.key for finding in findings])
        rows.append((kind, count_and_share, keys, KINDS[kind]))
    lines = format_columns(rows, num_left=4)  # all four columns
    line_of_kind = dict(zip(checked.findings, lines, strict=True))
    fault_lines = [line for kind, line in line_of_kind.items() if kind in FAULTS]
    remark_lines = [line for kind, line in line_of_kind.items() if kind not in FAULTS]
    yield from _list_section(f"faults ({FAULT_RULE}):", fault_lines)
    yield from _list_section(f"remarks ({REMARK_RULE}):", remark_lines)
    with_faults = checked.keys(is_fault=True)
    with_remarks_only = checked.keys(is_fault=False) - with_faults
    yield (
        f"total: {num_utterances:,} utterances, {len(with_faults):,} with faults, "
        f"{len(with_remarks_only):,} only with remarks"
    )


def _first_keys(keys: Sequence[str]) -> str:
    """At most _MAX_KEYS keys in a text of at most _KEYS_WIDTH characters, but at least one key."""
    shown_keys = list(keys[:_MAX_KEYS])
    while len(shown_keys) > 1 and len(", ".join(shown_keys)) > _KEYS_WIDTH:
        shown_keys.pop()
    return ", ".join(shown_keys)


def _list_section(heading: str, lines: Sequence[str]) -> Iterator[str]:
    """A heading and its lines, indented; `none` after the heading if there are no lines."""
    yield heading if lines else f"{heading} none"
    for line in lines:
        yield f"  {line}"


def _raise_for_faults(checked: Checked, args: argparse.Namespace) -> None:
    """Raise DataError if utterances have faults, or there is too little training speech.

    The exit code is 3 for faults only, and 2 for too little speech, with or without faults. The
    error has a line for each of the two.
    """
    messages = []
    num_faulty = len(checked.keys(is_fault=True))
    if num_faulty:
        messages.append(f"{num_faulty:,} utterances have faults; correct them, or leave them out")
    hours = _training_hours(checked)
    too_little = "" if hours is None else find_too_little(hours, args.min_minutes)
    if too_little:
        messages.append(too_little)
    if messages:
        lists = list_names([str(path) for path in args.lists])
        error = DataError("\n".join(f"{lists}: {message}" for message in messages))
        if not too_little:
            error.exit_code = _EXIT_FAULTS
        raise error


if __name__ == "__main__":
    main_of(__name__)
