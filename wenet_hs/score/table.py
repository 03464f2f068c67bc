# SPDX-License-Identifier: Apache-2.0
"""A scoring for people: the table of a terminal, aligned transcripts, and the layout of WeNet's scorer."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from wenet_hs.score.align import Alignment, ErrorCounts, align
from wenet_hs.score.bootstrap import CONFIDENCE, Interval
from wenet_hs.score.error_rate import LanguageScore, Report, ScoredUtterance, count_of, name_some
from wenet_hs.score.units import Rules, split_by

GAP = "*"  # stands opposite a deleted or an inserted unit
UNDEFINED = "n/a"
_RULE = "=" * 75


def format_report(report: Report) -> str:
    """The conditions, a line for each language, the averages, and what is missing; at most 100 columns wide."""
    header = ["language", "utts", "N", "S", "D", "I", f"{report.rules.metric.upper()} %", f"{CONFIDENCE:.0%} interval"]
    rows = [[lang, *_cells(score)] for lang, score in report.languages.items()]
    macro = [*[""] * 5, percent(report.macro.rate), format_interval(report.macro.interval)]
    rows += [["macro average", *macro], ["micro average", *_cells(report.micro)]]
    lines = [report.name] if report.name else []
    lines += [report.signature, "", *columns([header, *rows]), *_remarks(report)]
    return "\n".join(lines) + "\n"


def percent(rate: float | None) -> str:
    """A fraction as a percentage of two decimals; n/a where it is undefined."""
    return UNDEFINED if rate is None else f"{100 * rate:.2f}"


def format_interval(interval: Interval | None) -> str:
    """An interval of fractions as percentages in brackets; n/a where there is none."""
    return UNDEFINED if interval is None else f"[{percent(interval.low)}, {percent(interval.high)}]"


def _cells(score: LanguageScore) -> list[str]:
    counts = score.counts
    numbers = (score.utterances, counts.num_units, counts.substitutions, counts.deletions, counts.insertions)
    return [*(f"{number:,}" for number in numbers), percent(score.rate), format_interval(score.interval)]


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows with the first column left and the others right aligned."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        gaps = [" " * (width - cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        yield "  ".join([row[0] + gaps[0], *(gap + cell for gap, cell in zip(gaps[1:], row[1:], strict=True))]).rstrip()


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
    undefined = [lang for lang, score in report.languages.items() if score.rate is None]
    if undefined:
        yield f"no reference units, so no rate, and not in the macro average: {', '.join(undefined)}"


def worst_first(report: Report) -> list[tuple[str, ScoredUtterance]]:
    """Keys and utterances by falling error rate, then by falling number of errors, then by key."""

    def order(item: tuple[str, ScoredUtterance]) -> tuple[float, int, str]:
        counts = item[1].counts
        rate = counts.rate if counts.rate is not None else float(counts.errors)
        return -rate, -counts.errors, item[0]

    return sorted(report.utterances.items(), key=order)


def align_texts(utterance: ScoredUtterance, rules: Rules) -> Alignment:
    """The alignment of one scored utterance."""
    return align(split_by(utterance.ref, rules), split_by(utterance.hyp or "", rules))


def format_alignments(report: Report) -> str:
    """Every utterance with its rate and its two transcripts one above the other, worst first."""
    name = report.rules.metric.upper()
    blocks = []
    for key, utterance in worst_first(report):
        ref, hyp = aligned_lines(align_texts(utterance, report.rules))
        remark = "  (no hypothesis)" if utterance.hyp is None else ""
        rate = f"{name} {percent(utterance.counts.rate)} %  {_letters(utterance.counts)}"
        blocks.append(f"{key}  {utterance.lang}  {rate}{remark}\nref: {ref}\nhyp: {hyp}\n")
    return f"{report.signature}\n\n" + "\n".join(blocks)


def aligned_lines(alignment: Alignment, *, gap: str = GAP) -> tuple[str, str]:
    """Reference and hypothesis with each pair of units in one column, by the width that a terminal gives them."""
    refs, hyps = [], []
    for operation in alignment.operations:
        ref, hyp = (gap if unit is None else unit.replace(" ", "▁") for unit in (operation.ref, operation.hyp))
        width = max(cell_len(ref), cell_len(hyp))
        refs.append(ref + " " * (width - cell_len(ref)))
        hyps.append(hyp + " " * (width - cell_len(hyp)))
    return " ".join(refs).rstrip(), " ".join(hyps).rstrip()


def _letters(counts: ErrorCounts) -> str:
    return f"N={counts.num_units} S={counts.substitutions} D={counts.deletions} I={counts.insertions}"


def format_wenet(report: Report, *, verbose: bool = True) -> str:
    """The same numbers in the layout of WeNet's compute-cer.py, for scripts that read it. An undefined rate is 0.00."""
    lines = []
    for key, utterance in report.utterances.items() if verbose else ():
        ref, hyp = aligned_lines(align_texts(utterance, report.rules), gap="")
        lines += ["", f"utt: {key}", f"WER: {_wenet_counts(utterance.counts)}", f"lab: {ref}", f"rec: {hyp}", ""]
    overall = f"Overall -> {_wenet_counts(report.micro.counts)}"
    if not verbose:
        return f"{overall}\n\n"
    return "\n".join([*lines, _RULE, "", overall, "", _RULE]) + "\n"


def _wenet_counts(counts: ErrorCounts) -> str:
    correct = counts.num_units - counts.substitutions - counts.deletions
    numbers = f"N={counts.num_units} C={correct} S={counts.substitutions} D={counts.deletions} I={counts.insertions}"
    return f"{100 * (counts.rate or 0.0):4.2f} % {numbers}"
