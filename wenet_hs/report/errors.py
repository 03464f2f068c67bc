# SPDX-License-Identifier: Apache-2.0
"""Error rates: a table and a chart of the shown mode with paired differences, and a table of all modes."""

from collections.abc import Iterator, Sequence
from html import escape

from wenet_hs.report.collect import ExperimentResults, in_order
from wenet_hs.report.figures import Dot, interval_chart
from wenet_hs.report.markup import missing, section, table
from wenet_hs.report.material import Material
from wenet_hs.report.paired import MACRO, MICRO, Pairs, pair
from wenet_hs.score import Report
from wenet_hs.score.bootstrap import Interval
from wenet_hs.score.compare import MIN_SPEAKERS, Significance
from wenet_hs.score.error_rate import UNDEFINED, LanguageScore, MacroScore, format_interval, percent

QUICK = 1_000  # resamples where a difference decides on bold alone
BOLD = (
    "Bold: the lowest one, where its paired difference to every other has a 95 % interval without 0 and p < 0.05, by "
    "speaker too where speakers are known. Macro average: mean of the languages. Micro average: all utterances pooled."
)


def errors_section(material: Material) -> str:
    """The section; where nothing is scored it says so."""
    if not material.shown:
        return section("errors", "Error rates", missing("No error rates: no experiment has a score.json."))
    pairs = pair(material.experiments, material.mode or "", speakers=_speakers(material))
    return section(
        "errors",
        "Error rates",
        *(missing(fault) for fault in (*unscored(material), *pairs.faults)),
        _shown_table(material, pairs),
        f'<figure class="chart wide">{keys(material.experiments)}'
        f"{interval_chart(_dot_rows(material), label='Error rates by language')}"
        f"<figcaption>{_metrics(material)} by language{material.said}, {escape(material.mode or '')}: "
        "a dot is the rate, its line the 95 % interval.</figcaption></figure>",
        _all_modes(material, pairs),
    )


def unscored(material: Material) -> list[str]:
    """A line for each experiment that was scored, but not in the shown mode."""
    return [
        f"{experiment.name} has no scored {material.mode}."
        for experiment in material.experiments
        if experiment.scores and material.mode not in experiment.scores
    ]


def keys(experiments: Sequence[ExperimentResults]) -> str:
    """The legend of a chart: a coloured dot and a name for each experiment."""
    found = (
        f'<span class="key c{place % 6}"><span>{escape(experiment.name)}</span></span>'
        for place, experiment in enumerate(experiments)
    )
    return f'<p class="keys">{"".join(found)}</p>'


def _speakers(material: Material) -> dict[str, str] | None:
    """The speaker of each scored utterance, where the test list knows them all."""
    wanted = {key for _, _, report in material.shown for key in report.utterances}
    speakers = {key: clip.speaker for key, clip in material.clips.items() if key in wanted and clip.speaker}
    return speakers if wanted and len(speakers) == len(wanted) else None


def _metrics(material: Material) -> str:
    reports = [report for experiment in material.experiments for report in experiment.scores.values()]
    return " and ".join(sorted({report.rules.metric.upper() for report in reports}))


def _groups(reports: Sequence[Report]) -> Iterator[tuple[str, list[LanguageScore | MacroScore | None]]]:
    """Languages by name, then both averages, each with its score in every report."""
    for lang in sorted({lang for report in reports for lang in report.languages}):
        yield lang, [report.languages.get(lang) for report in reports]
    yield MACRO, [report.macro for report in reports]
    yield MICRO, [report.micro for report in reports]


# ---- the shown mode


def _shown_table(material: Material, pairs: Pairs) -> str:
    shown = material.shown
    places = [place for place, _, _ in shown]
    rivals = [place for place in places[1:] if (places[0], place) in pairs.found]
    rows: list[str] = []
    foot: list[str] = []
    for group, scores in _groups([report for _, _, report in shown]):
        cells = "".join(
            _rate_cell(score, bold=pairs.surely_best(place, [other for other in places if other != place], group))
            for place, score in zip(places, scores, strict=True)
        )
        cells += "".join(_difference_cells(pairs, places[0], rival, group) for rival in rivals)
        counts = next((score for score in scores if isinstance(score, LanguageScore)), None)
        sizes = "".join(
            f"<td>{value}</td>"
            for value in (("", "") if counts is None else (f"{counts.utterances:,}", f"{counts.counts.num_units:,}"))
        )
        average = group in (MACRO, MICRO)
        row = f'<tr{_AVERAGE if average else ""}><th scope="row">{escape(group)}</th>{cells}{sizes}</tr>'
        (foot if average else rows).append(row)
    return table(
        _shown_header(material, pairs, rivals),
        rows,
        foot=foot,
        caption=_shown_caption(material, rivals, by_speaker=pairs.by_speaker),
    )


_AVERAGE = ' class="average"'


def _shown_caption(material: Material, rivals: Sequence[int], *, by_speaker: bool) -> str:
    text = (
        f"{_metrics(material)} in %{material.said}, {escape(material.mode or '')}. "
        f"Below each rate its 95 % interval (bootstrap over utterances). {BOLD}"
    )
    if rivals:
        first = escape(material.experiments[material.shown[0][0]].name)
        text += (
            f" Differences are paired, in percentage points: a system minus {first}; below 0, {first} is worse. "
            "p: two-sided, not corrected for the number of rows."
        )
    if by_speaker:
        text += (
            f" n/a by speaker: fewer than {MIN_SPEAKERS} speakers, so nothing is bold, and the averages' intervals by "
            "speaker are too narrow."
        )
    return text


def _shown_header(material: Material, pairs: Pairs, rivals: Sequence[int]) -> list[str]:
    names = [experiment.name for _, experiment, _ in material.shown]
    extra = ["by speaker, points", "p by speaker"] if pairs.by_speaker else []
    columns = ["difference, points", "p", *extra]
    groups = f'<th class="group" scope="colgroup" colspan="{len(names)}">{_metrics(material)}, %</th>'
    groups += "".join(
        f'<th class="group" scope="colgroup" colspan="{len(columns)}">'
        f"{escape(material.experiments[rival].name)} − {escape(names[0])}</th>"
        for rival in rivals
    )
    second = ["language", *names, *(columns * len(rivals)), "utterances", "units"]
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in second)
    return [f'<tr><td></td>{groups}<td colspan="2"></td></tr>', f"<tr>{cells}</tr>"]


def _rate_cell(score: LanguageScore | MacroScore | None, *, bold: bool) -> str:
    rate, interval = (None, None) if score is None else (score.rate, score.interval)
    value = "" if rate is None else f' data-value="{rate}"'
    bounds = "" if interval is None else f'<span class="interval">{format_interval(interval)}</span>'
    return f"<td{_BEST if bold else ''}{value}>{percent(rate)}{bounds}</td>"


_BEST = ' class="best"'


def _difference_cells(pairs: Pairs, one: int, other: int, group: str) -> str:
    found = pairs.difference(one, other, group)
    width = 4 if pairs.by_speaker else 2
    if found is None:
        return f"<td>{UNDEFINED}</td>" * width
    cells = _significance(f"{100 * found.difference:+.2f}", found.difference, found.by_utterance)
    return cells + (_significance("", found.difference, found.by_speaker) if pairs.by_speaker else "")


def _significance(text: str, value: float, found: Significance | None) -> str:
    interval, p = (None, None) if found is None else (found.interval, found.p)
    bounds = UNDEFINED if interval is None else _signed(interval)
    shown = f'{text}<span class="interval">{bounds}</span>' if text else bounds
    probability = UNDEFINED if p is None else "<0.0001" if p < 0.0001 else f"{p:.4f}"
    order = "" if p is None else f' data-value="{p}"'
    return f'<td data-value="{value}">{shown}</td><td{order}>{escape(probability)}</td>'


def _signed(interval: Interval) -> str:
    return f"[{100 * interval.low:+.2f}, {100 * interval.high:+.2f}]"


# ---- all modes


def _all_modes(material: Material, shown: Pairs) -> str:
    columns = _columns(material.experiments)
    if len({mode for mode, _ in columns}) < 2:
        return ""
    speakers = _speakers(material)
    pairs = {
        mode: shown
        if mode == material.mode
        else pair(material.experiments, mode, speakers=speakers, num_resamples=QUICK)
        for mode in dict.fromkeys(mode for mode, _ in columns)
    }
    rows: list[str] = []
    foot: list[str] = []
    for group, scores in _groups([material.experiments[place].scores[mode] for mode, place in columns]):
        cells = ""
        for (mode, place), score in zip(columns, scores, strict=True):
            rivals = [other for name, other in columns if name == mode and other != place]
            cells += _rate_cell(score, bold=pairs[mode].surely_best(place, rivals, group))
        average = group in (MACRO, MICRO)
        row = f'<tr{_AVERAGE if average else ""}><th scope="row">{escape(group)}</th>{cells}</tr>'
        (foot if average else rows).append(row)
    caption = f"All decoding modes, {_metrics(material)} in %{material.said}, with 95 % intervals. Bold: as above."
    return table(_modes_header(material.experiments, columns), rows, foot=foot, caption=caption)


def _columns(experiments: Sequence[ExperimentResults]) -> list[tuple[str, int]]:
    """Mode and place of an experiment, mode by mode."""
    modes = in_order({mode for experiment in experiments for mode in experiment.scores})
    return [(mode, place) for mode in modes for place, found in enumerate(experiments) if mode in found.scores]


def _modes_header(experiments: Sequence[ExperimentResults], columns: Sequence[tuple[str, int]]) -> list[str]:
    modes = [mode for mode, _ in columns]
    groups = "".join(
        f'<th class="group" scope="colgroup" colspan="{modes.count(mode)}">{escape(mode)}</th>'
        for mode in dict.fromkeys(modes)
    )
    names = "".join(f'<th scope="col">{escape(experiments[place].name)}</th>' for _, place in columns)
    return [f"<tr><td></td>{groups}</tr>", f'<tr><th scope="col">language</th>{names}</tr>']


# ---- the chart


def _dot_rows(material: Material) -> list[tuple[str, list[Dot]]]:
    rows: dict[str, list[Dot]] = {}
    for place, experiment, report in material.shown:
        for group, (score,) in _groups([report]):
            if group == MICRO or score is None or score.rate is None:
                continue
            low, high = score.interval or (score.rate, score.rate)
            label = f"{experiment.name}, {group}: {percent(score.rate)} % {format_interval(score.interval)}"
            dot = Dot(rate=score.rate, low=low, high=high, colour=place, label=label)
            rows.setdefault(group, []).append(dot)
    return sorted(rows.items(), key=lambda row: (row[0] == MACRO, row[0]))
