# SPDX-License-Identifier: Apache-2.0
"""Line, scatter and interval charts as inline SVG.

CSS classes define the colours of the light and dark themes.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup, escape
from rich.cells import cell_len

from wenet_hs.score.bootstrap import Interval
from wenet_hs.score.error_rate import LanguageScore, MacroScore, Rate, format_interval, percent

WIDTH, HEIGHT = 420, 254
INTERVAL_WIDTH = 440
RIGHT, TOP, BOTTOM = 18, 10, 40
CHARACTER_WIDTH = 7  # about, at 12 px
NUM_COLOURS = 6
MAX_DOTS = 1000
_INTERVAL_BOTTOM = (
    26  # the ticks of an interval chart contain their unit, so it needs less space below
)
_CLOUD_SHIFT, _MAX_RADIUS = 5, 7.0  # of a scatter chart

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve. `faint` draws a thin pale line: the training loss beside the validation loss."""

    points: Sequence[Point]
    colour: int
    """The index of the experiment."""
    faint: bool = False


@dataclass(frozen=True, kw_only=True)
class Dot:
    """One rate with its interval in a row of an interval chart."""

    row: str
    score: Rate | LanguageScore | MacroScore
    colour: int
    label: str


@dataclass(frozen=True)
class _Axis:
    """Map from values to pixels, linear or logarithmic."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.begin + (self.end - self.begin) * (
            (value - low) / (high - low) if high > low else 0.5
        )


def line_chart(
    lines: Sequence[Line],
    *,
    label: str,
    show: Callable[[float], str] = lambda value: f"{value:g}",
    may_be_log: bool = False,
    unit: str = "steps",
) -> Markup:
    """An SVG of curves over steps or another `unit`; empty without points.

    `label` is the text for screen readers, `show` formats a value. With `may_be_log`, values of
    more than one decade get a logarithmic axis, which the chart states.
    """
    shown = [replace(line, points=thin(line.points)) for line in lines if line.points]
    points = [point for line in shown for point in line.points]
    if not points:
        return Markup()
    steps, values = zip(*points, strict=True)
    log = may_be_log and max(values) > 10 * min(values) > 0
    y_ticks = log_ticks(min(values), max(values)) if log else ticks(min(values), max(values))
    texts = [(tick, show(tick)) for tick in y_ticks]
    left = _left_margin(text for _, text in texts)
    x = _Axis(0, max(steps), left, WIDTH - RIGHT)
    y = _Axis(min(*values, *y_ticks), max(*values, *y_ticks), HEIGHT - BOTTOM, TOP, log)
    parts = _frame(left, x, y, texts, unit)
    if log:
        parts.append(f'<text class="note" x="{WIDTH - RIGHT}" y="{TOP + 10}">log scale</text>')
    for line in sorted(shown, key=lambda line: not line.faint):
        coordinates = [(x(step), y(value)) for step, value in line.points]
        colour = f"c{line.colour % NUM_COLOURS}"
        if line.faint or len(coordinates) > 1:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in coordinates)
            parts.append(
                f'<polyline class="{colour}{" faint" if line.faint else ""}" points="{path}"/>'
            )
        if not line.faint and len(coordinates) <= 40:
            parts += [
                f'<circle class="{colour}" cx="{a:.1f}" cy="{b:.1f}" r="2.5"/>'
                for a, b in coordinates
            ]
    return _svg(parts, WIDTH, HEIGHT, label)


def scatter_chart(clouds: Sequence[Line], *, label: str, unit: str) -> Markup:
    """An SVG with one dot per utterance: x its length in `unit`, y its rate (a fraction); empty
    without points.

    Equal points are one larger dot. Of more than `MAX_DOTS`, evenly chosen ones are drawn.
    """
    shown = [
        (of.colour, sorted(of.points)[:: math.ceil(len(of.points) / MAX_DOTS)])
        for of in clouds
        if of.points
    ]
    if not shown:
        return Markup()
    points = [point for _, some in shown for point in some]
    lengths, values = zip(*points, strict=True)
    y_ticks = ticks(0, 100 * max(values) or 1)
    margin = (
        _CLOUD_SHIFT * (len(shown) - 1) / 2 + _MAX_RADIUS
    )  # so that all dots are inside the plot
    texts = [(tick, f"{tick:g} %") for tick in y_ticks]
    left = _left_margin(text for _, text in texts)
    x = _Axis(0, max(lengths), left + margin, WIDTH - RIGHT - margin)
    y = _Axis(0, y_ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = _frame(left, x, y, texts, unit)
    for index, (colour, some) in enumerate(shown):
        shift = _CLOUD_SHIFT * (
            index - (len(shown) - 1) / 2
        )  # lengths are integers, so clouds fit beside each other
        circles = "".join(
            f'<circle cx="{x(a) + shift:.1f}" cy="{y(100 * b):.1f}" r="{min(_MAX_RADIUS, 1.8 * count**0.4):.1f}"/>'
            for (a, b), count in sorted(Counter(some).items())
        )
        parts.append(f'<g class="cloud k{colour % NUM_COLOURS}">{circles}</g>')
    return _svg(parts, WIDTH, HEIGHT, label)


def interval_chart(dots: Sequence[Dot], *, label: str) -> Markup:
    """An SVG with a row per language: a dot per system, and a line over its interval; empty without
    a rate.
    """
    rows: dict[str, list[tuple[float, Interval, Dot]]] = {}
    for dot in dots:
        if dot.score.rate is not None:
            interval = dot.score.interval or Interval(dot.score.rate, dot.score.rate)
            rows.setdefault(dot.row, []).append((dot.score.rate, interval, dot))
    if not rows:
        return Markup()
    marks = ticks(
        0, 100 * max(interval.high for of_row in rows.values() for _, interval, _ in of_row)
    )
    left = _left_margin(rows)
    x = _Axis(0, marks[-1], left, INTERVAL_WIDTH - RIGHT - 4)
    row_height = max(22, 10 + 6 * max(map(len, rows.values())))
    height = TOP + row_height * len(rows) + _INTERVAL_BOTTOM
    base = height - _INTERVAL_BOTTOM
    parts = []
    for tick in marks:
        parts.append(
            f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{base}"/>'
        )
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{height - 10}">{tick:g} %</text>')
    for index, (name, of_row) in enumerate(rows.items()):
        middle = TOP + row_height * (index + 0.5)
        parts.append(f'<text class="row" x="{left - 8}" y="{middle + 4:.1f}">{escape(name)}</text>')
        for number, (rate, interval, dot) in enumerate(of_row):
            y = middle + 6 * (number - (len(of_row) - 1) / 2)
            colour = f"c{dot.colour % NUM_COLOURS}"
            low, middle_x, high = (x(100 * value) for value in (interval.low, rate, interval.high))
            title = escape(f"{dot.label}: {percent(rate)} % {format_interval(dot.score.interval)}")
            line = (
                f'<line class="{colour}" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            circle = f'<circle class="{colour}" cx="{middle_x:.1f}" cy="{y:.1f}" r="3.5"/>'
            parts.append(f"<g><title>{title}</title>{line}{circle}</g>")
    return _svg(parts, INTERVAL_WIDTH, height, label)


def thin(points: Sequence[Point], most: int = 200) -> list[Point]:
    """At most `most` points: means of neighbours, so that the curve of a long training stays small
    and readable.
    """
    known = [point for point in points if math.isfinite(point[1])]
    size = math.ceil(len(known) / most) or 1
    groups = [known[start : start + size] for start in range(0, len(known), size)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers (1, 2 or 5 times a power of ten apart) that enclose the range."""
    if high <= low:
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    rough = (high - low) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.999 * rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten inside the range; for more than three decades only the
    powers.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    return [
        factor * 10.0**power
        for power in powers
        for factor in factors
        if low <= factor * 10.0**power <= high
    ]


def _left_margin(labels: Iterable[str]) -> int:
    """The begin of the plot, for labels that end 8 pixels to the left of it."""
    return 14 + CHARACTER_WIDTH * max(map(cell_len, labels))


def _frame(
    left: float, x: _Axis, y: _Axis, y_ticks: Sequence[tuple[float, str]], unit: str
) -> list[str]:
    """Horizontal grid lines with their values, and the x axis with its unit."""
    parts = []
    for tick, text in y_ticks:
        parts.append(
            f'<line class="grid" x1="{left}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        )
        parts.append(
            f'<text class="row" x="{left - 8}" y="{y(tick) + 4:.1f}">{escape(text)}</text>'
        )
    base = HEIGHT - BOTTOM + 16
    for tick in [tick for tick in ticks(0, x.high) if tick <= x.high]:
        text = f"{tick / 1000:g}k" if tick >= 1000 else f"{tick:g}"
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{base}">{text}</text>')
    return [*parts, f'<text class="note" x="{WIDTH - RIGHT}" y="{base + 15}">{escape(unit)}</text>']


def _svg(parts: Sequence[str], width: float, height: float, label: str) -> Markup:
    body = "\n".join(parts)
    return Markup(  # nosec: all text in `parts` is escaped
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">\n{body}\n</svg>'
    )
