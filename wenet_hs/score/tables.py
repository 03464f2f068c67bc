# SPDX-License-Identifier: Apache-2.0
"""Scorings and comparisons as plain-text tables, comparisons as JSON, and tables in Markdown.

Printed rates are percentages; rates in JSON are fractions.
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
    """The signature, one table per grouping, notes on what is missing, and confusions.

    Tables are at most 100 columns wide, if the names of groups are short.

    Args:
        tables: "lang" and names in `report.by`; the default is all of them.
        confusions: of which those of all languages together are shown; None: none are.
    """
    metric = report.rules.metric
    by_language = Grouping(report.languages, report.macro, report.micro)
    groupings = {"lang": by_language, **report.by}
    headings = {"lang": "language", SPEAKER: "speaker", LENGTH: f"{UNIT_NAMES[metric]}s"}
    lines = [report.name] if report.name else []
    lines.append(report.signature)
    for name in tables or groupings:
        lines.append("")
        lines += _format_grouping(groupings[name], headings[name], metric.upper())
    lines += _format_notes(report)
    if confusions is not None:
        lines.append("")
        lines += format_confusions(confusions.overall, name_scripts=metric != "per")
    return "\n".join(lines) + "\n"


def _format_grouping(grouping: Grouping, heading: str, metric: str) -> Iterator[str]:
    """The lines of a table: one row per group, then one for each average."""
    header = [heading, "utts", "N", "S", "D", "I", f"{metric} %", _INTERVAL]
    if grouping.micro.features is not None:
        header += ["PFER %", _INTERVAL]
    rows = [header]
    for group, score in grouping.groups.items():
        rows.append([group, *_count_cells(score), *_rate_cells(score)])
    no_counts = [""] * 5  # a mean of rates has no utterances, N, S, D and I of its own
    rows.append([MACRO, *no_counts, *_rate_cells(grouping.macro)])
    rows.append([MICRO, *_count_cells(grouping.micro), *_rate_cells(grouping.micro)])
    yield from format_columns(rows)


def _count_cells(score: LanguageScore) -> list[str]:
    """The number of utterances, N, S, D and I."""
    counts = score.counts
    numbers = (
        score.utterances,
        counts.num_units,
        counts.substitutions,
        counts.deletions,
        counts.insertions,
    )
    return [f"{number:,}" for number in numbers]


def _rate_cells(score: LanguageScore | MacroScore) -> list[str]:
    """The rate and its interval, and those of the phone features if the score has them."""
    cells = [percent(score.rate), format_interval(score.interval)]
    if score.features is not None:
        cells += [percent(score.features.rate), format_interval(score.features.interval)]
    return cells


def _format_notes(report: Report) -> Iterator[str]:
    """A line on missing hypotheses, one on additional ones, one on languages without a rate.

    A line is left out if there are none.
    """
    total = len(report.utterances)
    num_missing = len(report.missing)
    if num_missing:
        scored = f"scored {total - num_missing:,} of {count_of(total, 'utterance')}"
        missing = f"{num_missing:,} missing, counted as deletions: {list_names(report.missing)}"
        yield f"{scored}; {missing}"
    if report.extra:
        extra = count_of(len(report.extra), "hypothesis", "hypotheses")
        yield f"{extra} without reference left out: {list_names(report.extra)}"
    undefined = [lang for lang, score in report.languages.items() if score.rate is None]
    if undefined:
        note = "no reference units, so no rate, and not in the macro average"
        yield f"{note}: {', '.join(undefined)}"


def format_confusions(confusions: Confusions, *, name_scripts: bool = True) -> Iterator[str]:
    """A line with the number of all errors, then a table with one row per confusion.

    There is no table if there are no confusions. Shares are in %.

    `name_scripts`: add the scripts of two units that are of different scripts, which may look
    alike: `a (Latin)`, `а (Cyrillic)`.
    """
    by_kind = {
        "S": confusions.substitutions,
        "D": confusions.deletions,
        "I": confusions.insertions,
    }
    header = ["error", "ref", "hyp", "count", "of errors", "of the unit"]
    rows = list[list[str]]()
    for kind, pairs in by_kind.items():
        for pair in pairs:
            units = show_pair(pair, gap=GAP, name_scripts=name_scripts)
            of_unit = "" if pair.of_unit is None else f"{percent(pair.of_unit)} %"
            rows.append([kind, *units, f"{pair.count:,}", f"{percent(pair.share)} %", of_unit])
    yield f"most frequent of {count_of(confusions.num_errors, 'error')}"
    if rows:
        yield from format_columns([header, *rows])


def format_comparison(comparison: Comparison) -> str:
    """The comparison as a plain-text table with notes, rates and differences in %.

    It has columns of the test over speakers if they are known.
    """
    name_a, name_b = comparison.names
    num_speakers = comparison.num_speakers
    header = ["language", "A %", "B %", "B - A", _INTERVAL, "p"]
    if num_speakers is not None:
        header += ["by speaker", "p"]
    rows = [header]
    for lang, difference in comparison.differences.items():
        row = [
            lang,
            percent(difference.rate_a),
            percent(difference.rate_b),
            format_points(difference.difference),
        ]
        for significance in (difference.by_utterance, difference.by_speaker):
            if significance is not None:
                row += [format_signed(significance.interval), format_p(significance.p)]
        rows.append(row)
    resampled = count_of(comparison.num_utterances, "utterance")
    if num_speakers is not None:
        resampled += f", and of {count_of(num_speakers, 'speaker')}"
    lines = [f"A: {name_a}", f"B: {name_b}", comparison.signature, ""]
    lines += format_columns(rows)
    lines.append("")
    lines.append(f"paired bootstrap of {resampled}; below 0, B is better")
    if comparison.num_missing:
        missing = count_of(comparison.num_missing, "utterance")
        lines.append(f"decoded by neither, deletions for both: {missing}")
    if comparison.few_speakers:
        langs = ", ".join(comparison.few_speakers)
        have_intervals = comparison.differences[MACRO].has_speaker_interval
        averages = ", and the averages' are too narrow" if have_intervals else ""
        no_interval = f"fewer than {MIN_SPEAKERS} speakers, so no interval by speaker"
        lines.append(f"{no_interval}{averages}: {langs}")
    return "\n".join(lines) + "\n"


def format_seed_comparison(comparison: SeedComparison) -> str:
    """The comparison over seeds as two plain-text tables, rates and differences in %.

    The first has the means over the seeds and the tests, the second the rates of each seed. Notes
    below say what the columns are.
    """
    name_a, name_b = comparison.names
    num_seeds = len(comparison.seeds)
    rows = [["language", "A %", "B %", "B - A", "deviation", _INTERVAL, "p", "detectable"]]
    seed_rows = [["language", "", *(f"seed {seed}" for seed in comparison.seeds)]]
    for name, difference in comparison.differences.items():
        row = [
            name,
            percent(fmean(difference.rates_a)),
            percent(fmean(difference.rates_b)),
            format_points(difference.mean),
            percent(difference.deviation),
            format_signed(difference.interval),
            format_p(difference.p),
            percent(difference.detectable),
        ]
        rows.append(row)
        seed_rows.append([name, "A", *map(percent, difference.rates_a)])
        seed_rows.append(["", "B", *map(percent, difference.rates_b)])
    lines = [f"A: {name_a}", f"B: {name_b}", comparison.signature, ""]
    lines += format_columns(rows)
    lines.append("")
    lines += format_columns(seed_rows, num_left=2)
    lines.append("")
    seeds = count_of(num_seeds, "seed")
    lines.append(f"means of {seeds}; deviation: of B - A over the seeds; below 0, B is better")
    if num_seeds >= MIN_SEEDS:
        utterances = count_of(comparison.num_utterances, "utterance")
        lines += [
            "p: paired t test over the seeds, for these utterances, not corrected for the number of rows",
            f"interval: over seeds and the {utterances}",
            f"detectable: the difference that these seeds show with probability {POWER:.0%} at p < 0.05",
        ]
    else:
        lines.append(f"fewer than {MIN_SEEDS} seeds: no interval and no p")
    lines.append(FIXED_LANGUAGES)
    return "\n".join(lines) + "\n"


def seed_difference_cells(difference: SeedDifference, adjusted_p: float | None) -> list[str]:
    """Number of seeds, mean difference, interval, p, corrected p and detectable difference.

    Differences are percentage points; n/a stands for a value that is not known.
    """
    return [
        str(len(difference.differences)),
        format_points(difference.mean),
        format_signed(difference.interval),
        format_p(difference.p),
        format_p(adjusted_p),
        percent(difference.detectable),
    ]


# ---- tables and cells


def format_columns(rows: Sequence[Sequence[str]], num_left: int = 1) -> Iterator[str]:
    """Rows as lines with columns two spaces apart.

    The first `num_left` columns are left-aligned, the others right-aligned. Columns are as wide as
    a terminal shows their longest cells.
    """
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = []
        for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
            padding = " " * (width - cell_len(cell))
            is_left_aligned = index < num_left
            cells.append(cell + padding if is_left_aligned else padding + cell)
        yield "  ".join(cells).rstrip()


def header_and_rows(records: Sequence[TableRecord]) -> tuple[list[str], list[list[str]]]:
    """The names of all columns, and the cells of each record; n/a where a record has no value.

    Columns are in the order in which the records first name them.
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    rows = [[record.get(name, UNDEFINED) for name in names] for record in records]
    return names, rows


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns of numbers (`_is_numeric`) are aligned right, others left."""
    columns = list(zip(*rows, strict=True))
    if not rows:
        columns = [()] * len(header)  # each column has no cells
    alignments = ["--:" if _is_numeric(cells) else "---" for cells in columns]
    lines = [f"| {' | '.join(row)} |" for row in (header, alignments, *rows)]
    return "\n".join(lines)


def _is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column has cells, and each is a number, a p value such as `<0.0001`, or n/a.

    Only the first character of a cell is looked at. Empty cells count as numbers.
    """
    # Of an empty cell it is the empty string, which every string contains.
    return bool(cells) and all(cell[:1] in "0123456789+-<n" for cell in cells)


def format_p(p: float | None) -> str:
    """A p value with four decimals; `<0.0001` if it is smaller, n/a if there is none."""
    if p is None:
        return UNDEFINED
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def format_points(difference: float) -> str:
    """A difference of fractions as signed percentage points."""
    return f"{100 * difference:+.2f}"


def format_signed(interval: tuple[float, float] | None) -> str:
    """An interval of differences as signed percentage points; n/a if there is none."""
    if interval is None:
        return UNDEFINED
    low, high = interval
    return f"[{format_points(low)}, {format_points(high)}]"


# ---- JSON


def comparison_to_json(comparison: Comparison | SeedComparison) -> str:
    """The comparison as JSON text; rates are fractions.

    A comparison over seeds has a note too: for which languages the result holds.
    """
    if isinstance(comparison, SeedComparison):
        head = {"format": "wenet_hs.compare_seeds/1", "languages": FIXED_LANGUAGES}
    else:
        head = {"format": "wenet_hs.compare/1"}
    record = {**head, **asdict(comparison)}
    return json.dumps(record, ensure_ascii=False, indent=1) + "\n"
