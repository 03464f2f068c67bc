# SPDX-License-Identifier: Apache-2.0
"""Line, scatter and interval charts as inline SVG.

Positions are pixels from the top left corner, so y grows downwards. CSS classes define the colours
of the light and the dark theme: `c0` to `c5` per experiment, `k0` to `k5` for its translucent dots.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from markupsafe import Markup, escape
from rich.cells import cell_len

from wenet_hs.score.bootstrap import Interval
from wenet_hs.score.error_rate import LanguageScore, MacroScore, Rate, format_interval, percent

WIDTH = 420
HEIGHT = 254
INTERVAL_WIDTH = 440  # of an interval chart, whose height depends on the number of its rows
RIGHT = 18  # margins around the plot; the left one depends on the labels
TOP = 10
BOTTOM = 40
CHARACTER_WIDTH = 7  # about, at 12 px
NUM_COLOURS = 6
MAX_DOTS = 1000  # per experiment in a scatter chart
_MAX_CURVE_POINTS = 200
_MAX_MARKED_POINTS = 40  # a curve with more points has no circles on them
_INTERVAL_BOTTOM = 26  # less than BOTTOM, because the unit is in the ticks
_LABEL_GAP = 8  # between the labels on the left and the plot
_TEXT_DROP = 4  # from the middle of a line of text to its baseline
_DOT_DISTANCE = 6  # between the dots in a row of an interval chart
_CLOUD_SHIFT = 5  # between the dots of two experiments with equal values
_MAX_RADIUS = 7.0  # of a dot in a scatter chart
_RADIUS_OF_ONE_POINT = 1.8  # in a scatter chart
_LEFT_BORDER = 6  # to the left of the labels
_MIN_ROW_HEIGHT = 22  # in an interval chart
_ROW_PADDING = 10  # above and below the dots of a row, together

Point = tuple[float, float]
"""The values on the horizontal and on the vertical axis."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The points of one experiment: a curve of a line chart, or a cloud of a scatter chart."""

    points: Sequence[Point]
    colour: int
    """The index of the experiment."""
    faint: bool = False
    """Only of a curve: a thin pale line, as of the training loss beside the validation loss."""


@dataclass(frozen=True, kw_only=True)
class Dot:
    """One rate with its interval in a row of an interval chart."""

    row: str
    score: Rate | LanguageScore | MacroScore
    colour: int
    """The index of the experiment."""
    label: str


class _Tick(NamedTuple):
    """A labelled value of the vertical axis."""

    value: float
    text: str


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """Map from values to pixels, linear or logarithmic."""

    low: float
    """The value at the pixel `begin`."""
    high: float
    """The value at the pixel `end`."""
    begin: float
    end: float
    is_log: bool = False

    def pixel(self, value: float) -> float:
        """The position of a value: from `begin` for `low` to `end` for `high`.

        If `low` and `high` are equal, it is the middle of the axis.
        """
        low = self.low
        high = self.high
        if self.is_log:
            low = math.log(low)
            high = math.log(high)
            value = math.log(value)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.begin + (self.end - self.begin) * share


# ---- line charts


def line_chart(
    curves: Sequence[Series],
    *,
    label: str,
    format_value: Callable[[float], str] = lambda value: f"{value:g}",
    may_be_log: bool = False,
    unit: str = "steps",
) -> Markup:
    """An SVG of curves over steps or another `unit`; empty without points.

    Long curves are thinned. The horizontal axis begins at 0. A linear vertical axis ends at the
    round numbers around the values, a logarithmic one at the values themselves.

    Args:
        label: the text for screen readers.
        format_value: returns the text of a value on the vertical axis.
        may_be_log: values of more than one decade get a logarithmic axis, which the chart states.
    """
    thinned = [replace(curve, points=thin_curve(curve.points)) for curve in curves if curve.points]
    steps = list[float]()
    values = list[float]()
    for curve in thinned:
        for step, value in curve.points:
            steps.append(step)
            values.append(value)
    if not values:
        return Markup()
    is_log = may_be_log and _spans_more_than_a_decade(values)
    find_ticks = log_ticks if is_log else ticks
    tick_values = find_ticks(min(values), max(values))
    y_ticks = [_Tick(value, format_value(value)) for value in tick_values]
    left = _find_left_margin(tick.text for tick in y_ticks)
    x = _Axis(low=0, high=max(steps), begin=left, end=WIDTH - RIGHT)
    y = _Axis(
        low=min(*values, *tick_values),
        high=max(*values, *tick_values),
        begin=HEIGHT - BOTTOM,
        end=TOP,
        is_log=is_log,
    )
    parts = _draw_frame(left, x, y, y_ticks, unit)
    if is_log:
        parts.append(f'<text class="note" x="{WIDTH - RIGHT}" y="{TOP + 10}">log scale</text>')
    # SVG draws later parts over earlier ones: faint curves come first.
    for curve in sorted(thinned, key=lambda curve: not curve.faint):  # False is before True
        parts += _draw_curve(curve, x, y)
    return _make_svg(parts, WIDTH, HEIGHT, label)


def _spans_more_than_a_decade(values: Sequence[float]) -> bool:
    """Whether all values are positive, and the largest is more than ten times the smallest."""
    return min(values) > 0 and max(values) > 10 * min(values)


def _draw_curve(curve: Series, x: _Axis, y: _Axis) -> list[str]:
    """The SVG elements of one curve: a line, and a circle on each point.

    A faint curve has no circles, nor has one with more than _MAX_MARKED_POINTS points. A curve of
    one point has no line, unless it is faint.
    """
    colour = f"c{curve.colour % NUM_COLOURS}"
    positions = [(x.pixel(step), y.pixel(value)) for step, value in curve.points]
    parts = list[str]()
    if curve.faint or len(positions) > 1:
        css_class = f"{colour} faint" if curve.faint else colour
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top in positions)
        parts.append(f'<polyline class="{css_class}" points="{path}"/>')
    if not curve.faint and len(positions) <= _MAX_MARKED_POINTS:
        for left, top in positions:
            parts.append(f'<circle class="{colour}" cx="{left:.1f}" cy="{top:.1f}" r="2.5"/>')
    return parts


def thin_curve(points: Sequence[Point], max_points: int = _MAX_CURVE_POINTS) -> list[Point]:
    """At most `max_points` points, so that the curve of a long training stays small and readable.

    Each is the mean value of some neighbours, at the last one of their steps. Values that are not
    finite are left out.
    """
    finite = [point for point in points if math.isfinite(point[1])]
    group_size = max(1, math.ceil(len(finite) / max_points))  # `range` refuses a step of 0
    means = list[Point]()
    for start in range(0, len(finite), group_size):
        group = finite[start : start + group_size]
        last_step, _ = group[-1]
        mean = sum(value for _, value in group) / len(group)
        means.append((last_step, mean))
    return means


# ---- scatter charts


def scatter_chart(clouds: Sequence[Series], *, label: str, unit: str) -> Markup:
    """An SVG with one dot per utterance; empty without points.

    x is the length of the utterance in `unit`, y its error rate, a fraction that is shown in %.
    Equal points are one larger dot. Of more than `MAX_DOTS` points, evenly chosen ones are drawn.

    `label`: the text for screen readers.
    """
    drawn = list[Series]()
    for cloud in clouds:
        if cloud.points:
            by_length = sorted(cloud.points)
            drawn.append(replace(cloud, points=_choose_evenly(by_length)))
    if not drawn:
        return Markup()
    lengths = list[float]()
    rates = list[float]()
    for cloud in drawn:
        for length, rate in cloud.points:
            lengths.append(length)
            rates.append(rate)
    highest_percent = 100 * max(rates)
    if highest_percent == 0:
        highest_percent = 1  # without any error the axis ends at 1 %
    tick_values = ticks(0, highest_percent)
    y_ticks = [_Tick(value, f"{value:g} %") for value in tick_values]
    left = _find_left_margin(tick.text for tick in y_ticks)
    middle_cloud = (len(drawn) - 1) / 2  # an index, or halfway between two
    margin = _CLOUD_SHIFT * middle_cloud + _MAX_RADIUS  # so that all dots are inside the plot
    x = _Axis(low=0, high=max(lengths), begin=left + margin, end=WIDTH - RIGHT - margin)
    y = _Axis(low=0, high=tick_values[-1], begin=HEIGHT - BOTTOM, end=TOP)
    parts = _draw_frame(left, x, y, y_ticks, unit)
    for index, cloud in enumerate(drawn):
        # Lengths are integers, so clouds fit beside each other.
        shift = _CLOUD_SHIFT * (index - middle_cloud)
        parts.append(_draw_cloud(cloud, x, y, shift))
    return _make_svg(parts, WIDTH, HEIGHT, label)


def _choose_evenly(points: Sequence[Point]) -> Sequence[Point]:
    """Every point, or every second one, and so on, so that there are at most MAX_DOTS."""
    distance = math.ceil(len(points) / MAX_DOTS)
    return points[::distance]


def _draw_cloud(cloud: Series, x: _Axis, y: _Axis, shift: float) -> str:
    """A circle per different point, `shift` pixels to the right; larger for several equal points.

    Its area grows a little slower than the number of equal points. The rates of the points are
    fractions, the values of the axis percentages.
    """
    circles = list[str]()
    for (length, rate), num_equal in Counter(cloud.points).items():
        left = x.pixel(length) + shift
        top = y.pixel(100 * rate)
        radius = min(_MAX_RADIUS, _RADIUS_OF_ONE_POINT * num_equal**0.4)
        circles.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="{radius:.1f}"/>')
    return f'<g class="cloud k{cloud.colour % NUM_COLOURS}">{"".join(circles)}</g>'


# ---- interval charts


@dataclass(frozen=True)
class _RatedDot:
    """A dot whose rate is known, and what is drawn of it. The numbers are fractions."""

    dot: Dot
    rate: float
    interval: Interval
    """From the rate to the rate if the interval is not known."""


def interval_chart(dots: Sequence[Dot], *, label: str) -> Markup:
    """An SVG with a dot per rate and a line over its interval; empty if no dot has a rate.

    Dots with the same name of a row are in one row, below each other. Dots without a rate are left
    out. A dot without an interval has no visible line. `label` is the text for screen readers.
    """
    rows = _group_by_row(dots)
    if not rows:
        return Markup()
    highest = max(max(rated.interval.high for rated in row) for row in rows.values())
    tick_values = ticks(0, 100 * highest)
    left = _find_left_margin(rows)
    x = _Axis(low=0, high=tick_values[-1], begin=left, end=INTERVAL_WIDTH - RIGHT - 4)
    most_dots = max(len(row) for row in rows.values())
    row_height = max(_MIN_ROW_HEIGHT, _ROW_PADDING + _DOT_DISTANCE * most_dots)
    plot_bottom = TOP + row_height * len(rows)
    height = plot_bottom + _INTERVAL_BOTTOM
    parts = list[str]()
    for value in tick_values:
        tick_x = f"{x.pixel(value):.1f}"
        parts.append(
            f'<line class="grid" x1="{tick_x}" x2="{tick_x}" y1="{TOP}" y2="{plot_bottom}"/>'
        )
        parts.append(f'<text class="tick" x="{tick_x}" y="{height - 10}">{value:g} %</text>')
    for index, (name, row) in enumerate(rows.items()):
        middle = TOP + row_height * (index + 0.5)  # of the row, from the top
        text_x = left - _LABEL_GAP
        text_y = middle + _TEXT_DROP
        parts.append(f'<text class="row" x="{text_x}" y="{text_y:.1f}">{escape(name)}</text>')
        middle_dot = (len(row) - 1) / 2  # an index, or halfway between two
        for number, rated in enumerate(row):
            y = middle + _DOT_DISTANCE * (number - middle_dot)
            parts.append(_draw_interval(rated, x, y))
    return _make_svg(parts, INTERVAL_WIDTH, height, label)


def _group_by_row(dots: Iterable[Dot]) -> dict[str, list[_RatedDot]]:
    """The dots with a rate by the name of their row, both in the given order."""
    rows: dict[str, list[_RatedDot]] = {}
    for dot in dots:
        rate = dot.score.rate
        if rate is not None:
            interval = dot.score.interval or Interval(rate, rate)
            rows.setdefault(dot.row, []).append(_RatedDot(dot, rate, interval))
    return rows


def _draw_interval(rated: _RatedDot, x: _Axis, y: float) -> str:
    """A line over the interval and a circle at the rate, with a title that a browser shows."""
    dot = rated.dot
    colour = f"c{dot.colour % NUM_COLOURS}"
    low = x.pixel(100 * rated.interval.low)
    middle = x.pixel(100 * rated.rate)
    high = x.pixel(100 * rated.interval.high)
    title = escape(f"{dot.label}: {percent(rated.rate)} % {format_interval(dot.score.interval)}")
    line = f'<line class="{colour}" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
    circle = f'<circle class="{colour}" cx="{middle:.1f}" cy="{y:.1f}" r="3.5"/>'
    return f"<g><title>{title}</title>{line}{circle}</g>"


# ---- axes and frames


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers that enclose the range, 1, 2 or 5 times a power of ten apart.

    If `high` is not above `low`, the range is widened by half of its value on each side, and by 0.5
    around 0.
    """
    if high <= low:
        low -= 0.5 if low == 0 else abs(low) / 2
        high += 0.5 if high == 0 else abs(high) / 2
    fifth = (high - low) / 5
    power = 10 ** math.floor(math.log10(fifth))
    round_steps = [factor * power for factor in (1, 2, 5, 10)]
    # 0.999 and 1e-9: a rounding error must not choose a larger step or add a tick.
    step = next(step for step in round_steps if step >= 0.999 * fifth)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    # Twelve digits: 0.3 instead of 0.30000000000000004.
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times each power of ten inside the range.

    Only the powers themselves if the range touches more than three decades. `low` must be positive.
    """
    lowest_power = math.floor(math.log10(low))
    highest_power = math.ceil(math.log10(high))
    powers = range(lowest_power, highest_power + 1)
    num_decades = highest_power - lowest_power
    factors = (1, 2, 5) if num_decades <= 3 else (1,)
    inside = list[float]()
    for power in powers:
        for factor in factors:
            value = factor * 10.0**power
            if low <= value <= high:
                inside.append(value)
    return inside


def _find_left_margin(labels: Iterable[str]) -> int:
    """The left end of the plot, for labels that end _LABEL_GAP to the left of it."""
    widest = max(map(cell_len, labels))
    return _LEFT_BORDER + CHARACTER_WIDTH * widest + _LABEL_GAP


def _draw_frame(
    left: float, x: _Axis, y: _Axis, y_ticks: Sequence[_Tick], x_unit: str
) -> list[str]:
    """Horizontal grid lines with their values, and the values of the x axis with its unit.

    `left`: the left end of the plot. Values of the x axis from 1000 on are shown as `1k`.
    """
    right = WIDTH - RIGHT
    parts = list[str]()
    for tick in y_ticks:
        top = y.pixel(tick.value)
        text_x = left - _LABEL_GAP
        text_y = top + _TEXT_DROP
        text = escape(tick.text)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{top:.1f}" y2="{top:.1f}"/>')
        parts.append(f'<text class="row" x="{text_x}" y="{text_y:.1f}">{text}</text>')
    values_y = HEIGHT - BOTTOM + 16  # a line of text below the plot
    unit_y = values_y + 15  # and another line below it
    for value in ticks(0, x.high):
        if value <= x.high:  # the last round number may be beyond the end of the axis
            number = f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
            tick_x = f"{x.pixel(value):.1f}"
            parts.append(f'<text class="tick" x="{tick_x}" y="{values_y}">{number}</text>')
    parts.append(f'<text class="note" x="{right}" y="{unit_y}">{escape(x_unit)}</text>')
    return parts


def _make_svg(parts: Sequence[str], width: float, height: float, label: str) -> Markup:
    """The SVG element with these parts, which are inserted as they are: their text is escaped."""
    body = "\n".join(parts)
    start = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">'
    return Markup(f"{start}\n{body}\n</svg>")  # nosec: all text in `parts` is escaped
