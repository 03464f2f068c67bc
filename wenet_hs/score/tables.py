# SPDX-License-Identifier: Apache-2.0
"""Scorings and comparisons as plain-text tables; comparisons as JSON, in which rates are fractions;
Markdown tables.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import fmean

from rich.cells import cell_len

from wenet_hs.score.alignments import GAP, ConfusionReport, Confusions, show_pair
from wenet_hs.score.bootstrap import CONFIDENCE
from wenet_hs.score.compare import MACRO, MICRO, MIN_SPEAKERS, Comparison
from wenet_hs.score.error_rate import (
    LENGTH,
    SPEAKER,
    UNDEFINED,
    Grouping,
    LanguageScore,
    MacroScore,
    Report,
    count_of,
    format_interval,
    percent,
)
from wenet_hs.score.rules import UNIT_NAMES
from wenet_hs.score.seeds import FIXED_LANGUAGES, MIN_SEEDS, POWER, SeedComparison, SeedDifference
from wenet_hs.tree.errors import list_names

TableRecord = dict[str, str]
"""One row of a table: name of the column → text."""
_INTERVAL = f"{CONFIDENCE:.0%} interval"


def format_report(
    report: Report, tables: Sequence[str] = (), confusions: ConfusionReport | None = None
) -> str:
    """The signature, one table per grouping, notes on what is missing, and confusions; at most 100
    columns wide.

    `tables` are "lang" and names in `report.by`; the default is all of them.
    """
    groupings = {"lang": Grouping(report.languages, report.macro, report.micro), **report.by}
    names = {"lang": "language", SPEAKER: SPEAKER, LENGTH: f"{UNIT_NAMES[report.rules.metric]}s"}
    lines = [report.name] if report.name else []
    lines.append(report.signature)
    for name in tables or groupings:
        lines += ["", *_format_grouping(groupings[name], names[name], report.rules.metric.upper())]
    lines += _notes(report)
    if confusions is not None:
        lines += [
            "",
            *format_confusions(confusions.overall, name_scripts=report.rules.metric != "per"),
        ]
    return "\n".join(lines) + "\n"


def format_confusions(confusions: Confusions, *, name_scripts: bool = True) -> Iterator[str]:
    """One line per substitution, deletion and insertion, shares in %.

    `name_scripts` adds the scripts of two units from different scripts: `a (Latin)`, `а
    (Cyrillic)`.
    """
    kinds = (
        ("S", confusions.substitutions),
        ("D", confusions.deletions),
        ("I", confusions.insertions),
    )
    rows = [["error", "ref", "hyp", "count", "of errors", "of the unit"]]
    for kind, found in kinds:
        for pair in found:
            units = show_pair(pair, gap=GAP, name_scripts=name_scripts)
            of_unit = "" if pair.of_unit is None else f"{percent(pair.of_unit)} %"
            rows.append([kind, *units, f"{pair.count:,}", f"{percent(pair.share)} %", of_unit])
    yield f"most frequent of {count_of(confusions.num_errors, 'error')}"
    if len(rows) > 1:
        yield from format_columns(rows)


def format_comparison(comparison: Comparison) -> str:
    """The comparison as a plain-text table, rates and differences in %."""
    name_a, name_b = comparison.names
    speakers = comparison.num_speakers
    header = [
        "language",
        "A %",
        "B %",
        "B - A",
        _INTERVAL,
        "p",
        *(["by speaker", "p"] if speakers is not None else []),
    ]
    rows = []
    for lang, found in comparison.differences.items():
        rows.append(
            [lang, percent(found.rate_a), percent(found.rate_b), format_points(found.difference)]
        )
        for significance in filter(None, (found.by_utterance, found.by_speaker)):
            rows[-1] += [format_signed(significance.interval), format_p(significance.p)]
    resampled = count_of(comparison.num_utterances, "utterance")
    resampled += "" if speakers is None else f", and of {count_of(speakers, 'speaker')}"
    lines = [
        f"A: {name_a}",
        f"B: {name_b}",
        comparison.signature,
        "",
        *format_columns([header, *rows]),
        "",
    ]
    lines.append(f"paired bootstrap of {resampled}; below 0, B is better")
    if comparison.num_missing:
        lines.append(
            f"decoded by neither, deletions for both: {count_of(comparison.num_missing, 'utterance')}"
        )
    if comparison.few_speakers:
        by_speaker = comparison.differences[MACRO].by_speaker
        narrow = (
            ""
            if by_speaker is None or by_speaker.interval is None
            else ", and the averages' are too narrow"
        )
        langs = ", ".join(comparison.few_speakers)
        lines.append(
            f"fewer than {MIN_SPEAKERS} speakers, so no interval by speaker{narrow}: {langs}"
        )
    return "\n".join(lines) + "\n"


def format_seed_comparison(comparison: SeedComparison) -> str:
    """The comparison over seeds as two plain-text tables, rates and differences in %."""
    (name_a, name_b), seeds = comparison.names, comparison.seeds
    rows = [["language", "A %", "B %", "B - A", "deviation", _INTERVAL, "p", "detectable"]]
    of_seeds = [["language", "", *(f"seed {seed}" for seed in seeds)]]
    for name, found in comparison.differences.items():
        means = (
            percent(fmean(found.rates_a)),
            percent(fmean(found.rates_b)),
            format_points(found.mean),
        )
        spread = percent(found.deviation), format_signed(found.interval), format_p(found.p)
        rows.append([name, *means, *spread, percent(found.detectable)])
        of_seeds += [
            [name, "A", *map(percent, found.rates_a)],
            ["", "B", *map(percent, found.rates_b)],
        ]
    lines = [f"A: {name_a}", f"B: {name_b}", comparison.signature, "", *format_columns(rows), ""]
    lines += [*format_columns(of_seeds, num_left=2), ""]
    lines.append(
        f"means of {count_of(len(seeds), 'seed')}; deviation: of B - A over the seeds; below 0, B is better"
    )
    if len(seeds) >= MIN_SEEDS:
        lines.append(
            "p: paired t test over the seeds, for these utterances, not corrected for the number of rows"
        )
        lines.append(
            f"interval: over seeds and the {count_of(comparison.num_utterances, 'utterance')}"
        )
        lines.append(
            f"detectable: the difference that these seeds show with probability {POWER:.0%} at p < 0.05"
        )
    else:
        lines.append(f"fewer than {MIN_SEEDS} seeds: no interval and no p")
    return "\n".join([*lines, FIXED_LANGUAGES]) + "\n"


def seed_difference_cells(found: SeedDifference, adjusted_p: float | None) -> list[str]:
    """Seeds, mean difference, interval, p, corrected p and detectable difference, in percentage
    points.
    """
    numbers = [
        format_points(found.mean),
        format_signed(found.interval),
        format_p(found.p),
        format_p(adjusted_p),
    ]
    return [str(len(found.differences)), *numbers, percent(found.detectable)]


def format_columns(rows: Sequence[Sequence[str]], num_left: int = 1) -> Iterator[str]:
    """Rows as columns two spaces apart.

    The first `num_left` are left-aligned, the others right-aligned.
    """
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        gaps = [" " * (width - cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        left = [cell + gap for cell, gap in zip(row[:num_left], gaps, strict=False)]
        right = [gap + cell for cell, gap in zip(row[num_left:], gaps[num_left:], strict=True)]
        yield "  ".join(left + right).rstrip()


def header_and_rows(records: Sequence[TableRecord]) -> tuple[list[str], list[list[str]]]:
    """The names of all columns in the order in which they first occur, and the cells of each
    record.
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    return names, [[record.get(name, UNDEFINED) for name in names] for record in records]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns whose cells are all empty or begin with a digit or sign are aligned
    right.
    """
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(header)
    lines = [
        "--:" if cells and all(cell[:1] in "0123456789+-<n" for cell in cells) else "---"
        for cells in columns
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, lines, *rows))


def format_p(p: float | None) -> str:
    """A p value with four decimals."""
    return UNDEFINED if p is None else "<0.0001" if p < 0.0001 else f"{p:.4f}"


def format_points(difference: float) -> str:
    """A difference of fractions as signed percentage points."""
    return f"{100 * difference:+.2f}"


def format_signed(interval: tuple[float, float] | None) -> str:
    """An interval of differences as signed percentage points; n/a if there is none."""
    return (
        UNDEFINED if interval is None else f"[{100 * interval[0]:+.2f}, {100 * interval[1]:+.2f}]"
    )


def _format_grouping(grouping: Grouping, name: str, metric: str) -> Iterator[str]:
    header = [name, "utts", "N", "S", "D", "I", f"{metric} %", _INTERVAL]
    if grouping.micro.features is not None:
        header += ["PFER %", _INTERVAL]
    averages: list[tuple[str, LanguageScore | MacroScore]] = [
        (MACRO, grouping.macro),
        (MICRO, grouping.micro),
    ]
    scores = [*grouping.groups.items(), *averages]
    yield from format_columns([header, *([group, *_score_cells(score)] for group, score in scores)])


def _score_cells(score: LanguageScore | MacroScore) -> Iterator[str]:
    if isinstance(score, MacroScore):
        yield from [""] * 5
    else:
        counts = score.counts
        numbers = (
            score.utterances,
            counts.num_units,
            counts.substitutions,
            counts.deletions,
            counts.insertions,
        )
        yield from map("{:,}".format, numbers)
    for found in (score, score.features):
        if found is not None:
            yield from (percent(found.rate), format_interval(found.interval))


def _notes(report: Report) -> Iterator[str]:
    total = len(report.utterances)
    if report.missing:
        yield (
            f"scored {total - len(report.missing):,} of {count_of(total, 'utterance')}; "
            f"{len(report.missing):,} missing, counted as deletions: {list_names(report.missing)}"
        )
    if report.extra:
        number = count_of(len(report.extra), "hypothesis", "hypotheses")
        yield f"{number} without reference left out: {list_names(report.extra)}"
    undefined = [lang for lang, found in report.languages.items() if found.rate is None]
    if undefined:
        yield f"no reference units, so no rate, and not in the macro average: {', '.join(undefined)}"


# ---- JSON


def comparison_to_json(comparison: Comparison | SeedComparison) -> str:
    """The comparison as JSON text; rates are fractions."""
    head = {"format": "wenet_hs.compare/1"}
    if isinstance(comparison, SeedComparison):
        head = {"format": "wenet_hs.compare_seeds/1", "languages": FIXED_LANGUAGES}
    return json.dumps({**head, **asdict(comparison)}, ensure_ascii=False, indent=1) + "\n"
