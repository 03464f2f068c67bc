# SPDX-License-Identifier: Apache-2.0
"""Plain-text tables of a scoring, of confusions and of a comparison."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from wenet_hs.score.bootstrap import CONFIDENCE
from wenet_hs.score.compare import MACRO, MICRO, MIN_SPEAKERS, Comparison, Difference
from wenet_hs.score.confusions import ConfusionReport, Confusions, show_pair
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
    name_some,
    percent,
)
from wenet_hs.score.units import UNIT_NAMES

GAP = "*"  # printed opposite a deleted or an inserted unit
_INTERVAL = f"{CONFIDENCE:.0%} interval"


def format_report(report: Report, tables: Sequence[str] = (), confusions: ConfusionReport | None = None) -> str:
    """The signature, one table per grouping, notes on what is missing, and confusions; at most 100 columns wide.

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
        lines += ["", *format_confusions(confusions.overall, name_scripts=report.rules.metric != "per")]
    return "\n".join(lines) + "\n"


def format_confusions(confusions: Confusions, *, name_scripts: bool = True) -> Iterator[str]:
    """One line per substitution, deletion and insertion, shares in %.

    `name_scripts` adds the scripts of two units from different scripts: `a (Latin)`, `а (Cyrillic)`.
    """
    kinds = (("S", confusions.substitutions), ("D", confusions.deletions), ("I", confusions.insertions))
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
    header = ["language", "A %", "B %", "B - A", _INTERVAL, "p", *(["by speaker", "p"] if speakers is not None else [])]
    rows = [[lang, *_difference_cells(difference)] for lang, difference in comparison.differences.items()]
    resampled = count_of(comparison.num_utterances, "utterance")
    resampled += "" if speakers is None else f", and of {count_of(speakers, 'speaker')}"
    lines = [f"A: {name_a}", f"B: {name_b}", comparison.signature, "", *format_columns([header, *rows]), ""]
    lines.append(f"paired bootstrap of {resampled}; below 0, B is better")
    if comparison.num_missing:
        lines.append(f"decoded by neither, deletions for both: {count_of(comparison.num_missing, 'utterance')}")
    if comparison.few_speakers:
        by_speaker = comparison.differences[MACRO].by_speaker
        narrow = "" if by_speaker is None or by_speaker.interval is None else ", and the averages' are too narrow"
        langs = ", ".join(comparison.few_speakers)
        lines.append(f"fewer than {MIN_SPEAKERS} speakers, so no interval by speaker{narrow}: {langs}")
    return "\n".join(lines) + "\n"


def format_columns(rows: Sequence[Sequence[str]], num_left: int = 1) -> Iterator[str]:
    """Rows as columns two spaces apart. The first `num_left` are left-aligned, the others right-aligned."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        gaps = [" " * (width - cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        left = [cell + gap for cell, gap in zip(row[:num_left], gaps, strict=False)]
        right = [gap + cell for cell, gap in zip(row[num_left:], gaps[num_left:], strict=True)]
        yield "  ".join(left + right).rstrip()


def format_p(p: float | None) -> str:
    """A p value with four decimals."""
    return UNDEFINED if p is None else "<0.0001" if p < 0.0001 else f"{p:.4f}"


def format_signed(interval: tuple[float, float] | None) -> str:
    """An interval of differences as signed percentage points; n/a if there is none."""
    return UNDEFINED if interval is None else f"[{100 * interval[0]:+.2f}, {100 * interval[1]:+.2f}]"


def _difference_cells(found: Difference) -> Iterator[str]:
    yield from (percent(found.rate_a), percent(found.rate_b), f"{100 * found.difference:+.2f}")
    for significance in (found.by_utterance, found.by_speaker):
        if significance is not None:
            yield from (format_signed(significance.interval), format_p(significance.p))


def _format_grouping(grouping: Grouping, name: str, metric: str) -> Iterator[str]:
    header = [name, "utts", "N", "S", "D", "I", f"{metric} %", _INTERVAL]
    if grouping.micro.features is not None:
        header += ["PFER %", _INTERVAL]
    rows = [[group, *_count_cells(score), *_rate_cells(score)] for group, score in grouping.groups.items()]
    rows.append([MACRO, *[""] * 5, *_rate_cells(grouping.macro)])
    rows.append([MICRO, *_count_cells(grouping.micro), *_rate_cells(grouping.micro)])
    yield from format_columns([header, *rows])


def _count_cells(score: LanguageScore) -> list[str]:
    counts = score.counts
    numbers = (score.utterances, counts.num_units, counts.substitutions, counts.deletions, counts.insertions)
    return [f"{number:,}" for number in numbers]


def _rate_cells(score: LanguageScore | MacroScore) -> list[str]:
    rates = [score] if score.features is None else [score, score.features]
    return [cell for found in rates for cell in (percent(found.rate), format_interval(found.interval))]


def _notes(report: Report) -> Iterator[str]:
    total = len(report.utterances)
    if report.missing:
        yield (
            f"scored {total - len(report.missing):,} of {count_of(total, 'utterance')}; "
            f"{len(report.missing):,} missing, counted as deletions: {name_some(report.missing)}"
        )
    if report.extra:
        number = count_of(len(report.extra), "hypothesis", "hypotheses")
        yield f"{number} without reference left out: {name_some(report.extra)}"
    undefined = [lang for lang, found in report.languages.items() if found.rate is None]
    if undefined:
        yield f"no reference units, so no rate, and not in the macro average: {', '.join(undefined)}"
