# SPDX-License-Identifier: Apache-2.0
"""A scoring for people: the table of a terminal, aligned transcripts, and the layout of WeNet's scorer."""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest

from rich.cells import cell_len

from wenet_hs.score.bootstrap import CONFIDENCE, Interval
from wenet_hs.score.confusions import Confusions
from wenet_hs.score.edit_distance import EditAlignment, Span, align, spans
from wenet_hs.score.error_rate import Report, count_of, name_some
from wenet_hs.score.groups import LENGTH, SPEAKER
from wenet_hs.score.summary import FeatureRate, Grouping, LanguageScore, ScoredUtterance
from wenet_hs.score.units import UNIT_NAMES, Rules, units_of

GAP = "*"  # stands opposite a deleted or an inserted unit
UNDEFINED = "n/a"
_width = lru_cache(maxsize=2**14)(cell_len)


def format_report(report: Report, tables: Sequence[str] = ()) -> str:
    """The conditions, a table a grouping, what is missing, what is confused; at most 100 columns wide.

    `tables`: "lang" and names in `report.by`; none given are all.
    """
    groupings = {"lang": Grouping(report.languages, report.macro, report.micro), **report.by}
    names = {"lang": "language", SPEAKER: SPEAKER, LENGTH: f"{UNIT_NAMES[report.rules.metric]}s"}
    lines = [report.name] if report.name else []
    lines.append(report.signature)
    for name in tables or groupings:
        lines += ["", *_table(groupings[name], names[name], report.rules.metric.upper())]
    lines += _remarks(report)
    if report.confusions is not None:
        lines += ["", *format_confusions(report.confusions.overall, name_scripts=report.rules.metric != "per")]
    return "\n".join(lines) + "\n"


def _table(grouping: Grouping, name: str, metric: str) -> Iterator[str]:
    header = [name, "utts", "N", "S", "D", "I", f"{metric} %", f"{CONFIDENCE:.0%} interval"]
    rows = [[group, *_cells(score)] for group, score in grouping.groups.items()]
    macro = [percent(grouping.macro.rate), format_interval(grouping.macro.interval)]
    rows.append(["macro average", *[""] * 5, *macro, *_feature_cells(grouping.macro.features)])
    rows.append(["micro average", *_cells(grouping.micro)])
    if grouping.micro.features is not None:
        header += ["PFER %", f"{CONFIDENCE:.0%} interval"]
    yield from columns([header, *rows])


def _feature_cells(features: FeatureRate | None) -> list[str]:
    return [] if features is None else [percent(features.rate), format_interval(features.interval)]


def percent(rate: float | None) -> str:
    """A fraction as a percentage of two decimals; n/a where it is undefined."""
    return UNDEFINED if rate is None else f"{100 * rate:.2f}"


def format_interval(interval: Interval | None) -> str:
    """An interval of fractions as percentages in brackets; n/a where there is none."""
    return UNDEFINED if interval is None else f"[{percent(interval.low)}, {percent(interval.high)}]"


def _cells(score: LanguageScore) -> list[str]:
    counts = score.counts
    numbers = (score.utterances, counts.num_units, counts.substitutions, counts.deletions, counts.insertions)
    rate = [percent(score.rate), format_interval(score.interval)]
    return [*(f"{number:,}" for number in numbers), *rate, *_feature_cells(score.features)]


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows with the first column left and the others right aligned."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        gaps = [" " * (width - cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        yield "  ".join([row[0] + gaps[0], *(gap + cell for gap, cell in zip(gaps[1:], row[1:], strict=True))]).rstrip()


def pad(text: str, width: int) -> str:
    """Spaces behind, by the width that a terminal gives the text."""
    return text + " " * (width - cell_len(text))


def script_of(unit: str) -> str:
    """The first word of the name that Unicode gives a letter, which is its script; nothing for other characters."""
    return unicodedata.name(unit[0], "").partition(" ")[0].capitalize() if unit[0].isalpha() else ""


@lru_cache(maxsize=2**14)
def show_unit(unit: str) -> str:
    """A unit that can be seen: a space as ▁, a mark without its letter on ◌, what has no shape by its code point."""
    if unit == " ":
        return "▁"
    if all(unicodedata.category(character) in ("Cc", "Cf") for character in unit):
        return " ".join(f"U+{ord(character):04X}" for character in unit)
    return f"◌{unit}" if unicodedata.category(unit[0]).startswith("M") else unit


def show_pair(ref: str | None, hyp: str | None, *, gap: str, name_scripts: bool) -> list[str]:
    """Two units as `show_unit`, `gap` for none. Units of two scripts may look alike, so their scripts are named."""
    units = [gap if unit is None else show_unit(unit) for unit in (ref, hyp)]
    scripts = [script_of(unit) for unit in (ref, hyp) if unit is not None]
    if name_scripts and len(set(scripts)) == 2 and all(scripts):
        return [f"{unit} ({script})" for unit, script in zip(units, scripts, strict=True)]
    return units


def format_confusions(confusions: Confusions, *, name_scripts: bool = True) -> Iterator[str]:
    """A line for each of the most frequent substitutions, deletions and insertions, shares in %.

    `name_scripts` tells units of two scripts apart, which may look alike: `a (Latin)`, `а (Cyrillic)`.
    """
    kinds = (("S", confusions.substitutions), ("D", confusions.deletions), ("I", confusions.insertions))
    rows = [["error", "ref", "hyp", "count", "of errors", "of the unit"]]
    for kind, found in kinds:
        for pair in found:
            units = show_pair(pair.ref, pair.hyp, gap=GAP, name_scripts=name_scripts)
            of_unit = "" if pair.of_unit is None else f"{percent(pair.of_unit)} %"
            rows.append([kind, *units, f"{pair.count:,}", f"{percent(pair.share)} %", of_unit])
    yield f"most frequent of {count_of(confusions.num_errors, 'error')}"
    if len(rows) > 1:
        yield from columns(rows)


def _remarks(report: Report) -> Iterator[str]:
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


def worst_first(report: Report) -> list[tuple[str, ScoredUtterance]]:
    """Keys and utterances by falling error rate, then by falling number of errors, then by key."""

    def order(item: tuple[str, ScoredUtterance]) -> tuple[float, int, str]:
        counts = item[1].counts
        rate = counts.rate if counts.rate is not None else float(counts.errors)
        return -rate, -counts.errors, item[0]

    return sorted(report.utterances.items(), key=order)


def align_texts(utterance: ScoredUtterance, rules: Rules) -> EditAlignment:
    """The alignment of one scored utterance."""
    return align(*both_units(utterance, rules))


def both_units(utterance: ScoredUtterance, rules: Rules) -> tuple[Sequence[str], Sequence[str]]:
    """The units of the reference and of the hypothesis, none where there is no hypothesis."""
    return units_of(utterance.ref, rules, utterance.lang), units_of(utterance.hyp or "", rules, utterance.lang)


def format_alignments(report: Report) -> str:
    """Every utterance with its rate and its two transcripts one above the other, worst first."""
    blocks = []
    for key, utterance in worst_first(report):
        ref, hyp = aligned_lines(*both_units(utterance, report.rules))
        blocks.append(f"{heading(report, key, utterance)}\nref: {ref}\nhyp: {hyp}\n")
    return f"{report.signature}\n\n" + "\n".join(blocks)


def heading(report: Report, key: str, utterance: ScoredUtterance) -> str:
    """Key, language, rate and counts of one utterance."""
    counts, name = utterance.counts, report.rules.metric.upper()
    letters = f"N={counts.num_units} S={counts.substitutions} D={counts.deletions} I={counts.insertions}"
    rate = UNDEFINED if counts.rate is None else f"{percent(counts.rate)} %"
    remark = "  (no hypothesis)" if utterance.hyp is None else ""
    return f"{key}  {utterance.lang}  {name} {rate}  {letters}{remark}"


def aligned_lines(ref: Sequence[str], hyp: Sequence[str], *, gap: str = GAP) -> tuple[str, str]:
    """Both lists of units, each pair of the alignment in one column, by the width that a terminal gives them."""
    refs, hyps = aligned_cells(spans(ref, hyp), gap=gap)
    return " ".join(refs).rstrip(), " ".join(hyps).rstrip()


def aligned_cells(runs: Iterable[Span], *, gap: str = GAP, padding: str = " ") -> tuple[list[str], list[str]]:
    """The units of both sides of an alignment, `gap` for none, the narrower of each pair filled up with `padding`."""
    refs: list[str] = []
    hyps: list[str] = []
    for ref_run, hyp_run in runs:
        if ref_run == hyp_run:
            shown = [*map(show_unit, ref_run)]
            refs += shown
            hyps += shown
            continue
        for unit, other in zip_longest(ref_run, hyp_run, fillvalue=gap):
            above, below = show_unit(unit), show_unit(other)
            wider = _width(above) - _width(below)
            refs.append(above + padding * -wider)
            hyps.append(below + padding * wider)
    return refs, hyps
