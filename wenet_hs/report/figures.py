# SPDX-License-Identifier: Apache-2.0
"""Line charts and interval charts as inline SVG. Colours are CSS variables, so both themes of a browser can be read."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 420, 254
WIDE = 440  # of the interval chart
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 40
_SHORT = 26  # below the interval chart, whose numbers bear their unit
NUM_COLOURS = 6
MAX_POINTS = 200
MAX_DOTS = 1000
_ROW = 22
_BESIDE, _LARGEST = 5, 7.0  # of a scatter's dots: from cloud to cloud, and the radius

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve. `faint` draws it thin and pale: the training beside its validation."""

    points: Sequence[Point]
    colour: int
    """Which experiment, from 0."""
    faint: bool = False


@dataclass(frozen=True, kw_only=True)
class Dot:
    """One rate with its interval, all fractions."""

    rate: float
    low: float
    high: float
    colour: int
    label: str


@dataclass(frozen=True)
class _Axis:
    """Values → a length in pixels; `log` for what falls over decades."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.begin + (self.end - self.begin) * ((value - low) / (high - low) if high > low else 0.5)


def line_chart(
    lines: Sequence[Line],
    *,
    label: str,
    show: Callable[[float], str] = lambda value: f"{value:g}",
    decades: bool = False,
    unit: str = "steps",
) -> str:
    """An SVG of curves over steps or another `unit`. `label` is what a screen reader says; `show` writes a value.

    With `decades`, values that span more than one get a logarithmic axis, and the chart says so. No points, no SVG: "".
    """
    shown = [Line(points=thin(line.points), colour=line.colour, faint=line.faint) for line in lines if line.points]
    points = [point for line in shown for point in line.points]
    if not points:
        return ""
    steps, values = zip(*points, strict=True)
    log = decades and min(values) > 0 and max(values) > 10 * min(values)
    y_ticks = log_ticks(min(values), max(values)) if log else ticks(min(values), max(values))
    x_ticks = [tick for tick in ticks(0, max(steps)) if tick <= max(steps)]
    x = _Axis(0, max(steps), LEFT, WIDTH - RIGHT)
    low, high = min(*values, *y_ticks), max(*values, *y_ticks)
    y = _Axis(low, high, HEIGHT - BOTTOM, TOP, log)
    parts = [_grid(y(tick), show(tick)) for tick in y_ticks]
    parts += _x_axis(x, x_ticks, unit)
    if log:
        parts.append(f'<text class="note" x="{WIDTH - RIGHT}" y="{TOP + 10}">log scale</text>')
    for line in sorted(shown, key=lambda line: not line.faint):
        parts.append(_polyline(line, x, y))
    return _svg(parts, (WIDTH, HEIGHT), label)


def scatter_chart(clouds: Sequence[Line], *, label: str, unit: str) -> str:
    """An SVG with a dot for each utterance: x its length in `unit`, y its rate (a fraction). No points, no SVG: "".

    Equal points are one dot, the larger the more. Of more than `MAX_DOTS`, evenly chosen ones are drawn.
    """
    shown = [(cloud.colour, _sample(cloud.points)) for cloud in clouds if cloud.points]
    points = [point for _, some in shown for point in some]
    if not points:
        return ""
    lengths, values = zip(*points, strict=True)
    y_ticks = ticks(0, 100 * max(values) or 1)
    room = _BESIDE * (len(shown) - 1) / 2 + _LARGEST  # the whole of the last dots of all clouds is inside the plot
    x = _Axis(0, max(lengths), LEFT + room, WIDTH - RIGHT - room)
    y = _Axis(0, y_ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = [_grid(y(tick), f"{tick:g} %") for tick in y_ticks]
    parts += _x_axis(x, [tick for tick in ticks(0, max(lengths)) if tick <= max(lengths)], unit)
    for place, (colour, some) in enumerate(shown):
        shift = _BESIDE * (place - (len(shown) - 1) / 2)  # clouds stand beside each other: lengths are whole numbers
        circles = "".join(
            f'<circle cx="{x(a) + shift:.1f}" cy="{y(100 * b):.1f}" r="{min(_LARGEST, 1.8 * count**0.4):.1f}"/>'
            for (a, b), count in sorted(Counter(some).items())
        )
        parts.append(f'<g class="cloud k{colour % NUM_COLOURS}">{circles}</g>')
    return _svg(parts, (WIDTH, HEIGHT), label)


def _sample(points: Sequence[Point]) -> list[Point]:
    step = math.ceil(len(points) / MAX_DOTS)
    return sorted(points)[::step]


def interval_chart(rows: Sequence[tuple[str, Sequence[Dot]]], *, label: str) -> str:
    """An SVG with a row for each language: a dot a system at its rate, and a line over its interval."""
    dots = [dot for _, of_row in rows for dot in of_row]
    if not dots:
        return ""
    marks = ticks(0, 100 * max(dot.high for dot in dots))
    left = 14 + 7 * min(16, max(len(name) for name, _ in rows))
    x = _Axis(0, marks[-1], left, WIDE - RIGHT - 12)
    height = TOP + _ROW * len(rows) + _SHORT
    parts = []
    for tick in marks:
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{height - _SHORT}"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{height - 10}">{tick:g} %</text>')
    for index, (name, of_row) in enumerate(rows):
        middle = TOP + _ROW * (index + 0.5)
        parts.append(f'<text class="row" x="{left - 8}" y="{middle + 4:.1f}">{escape(name)}</text>')
        for place, dot in enumerate(of_row):
            parts.append(_dot(dot, x, middle + 6 * (place - (len(of_row) - 1) / 2)))
    return _svg(parts, (WIDE, height), label)


def thin(points: Sequence[Point], most: int = MAX_POINTS) -> list[Point]:
    """At most `most` points: means of neighbours, so that a long training stays small and its noise readable."""
    known = [point for point in points if math.isfinite(point[1])]
    size = math.ceil(len(known) / most) or 1
    groups = [known[start : start + size] for start in range(0, len(known), size)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from below `low` to above `high`, about `count` of them."""
    if high <= low:
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.999 * rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten inside the range; for more than three decades the powers alone."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    return [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]


def short(value: float) -> str:
    """A count in little room: 12000 is 12k."""
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"


def _x_axis(x: _Axis, marks: Sequence[float], unit: str) -> list[str]:
    """The numbers below a chart, and on a line of its own their unit."""
    base = HEIGHT - BOTTOM + 16
    texts = [f'<text class="tick" x="{x(tick):.1f}" y="{base}">{short(tick)}</text>' for tick in marks]
    return [*texts, f'<text class="note" x="{WIDTH - RIGHT}" y="{base + 15}">{escape(unit)}</text>']


def _grid(y: float, text: str) -> str:
    line = f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text class="row" x="{LEFT - 6}" y="{y + 4:.1f}">{escape(text)}</text>'


def _polyline(line: Line, x: _Axis, y: _Axis) -> str:
    places = [(x(step), y(value)) for step, value in line.points]
    kind = f"c{line.colour % NUM_COLOURS}"
    if line.faint or len(places) > 1:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        drawn = f'<polyline class="{kind}{" faint" if line.faint else ""}" points="{path}"/>'
    else:
        drawn = ""
    if not line.faint and len(places) <= 40:
        drawn += "".join(f'<circle class="{kind}" cx="{a:.1f}" cy="{b:.1f}" r="2.5"/>' for a, b in places)
    return drawn


def _dot(dot: Dot, x: _Axis, y: float) -> str:
    kind = f"c{dot.colour % NUM_COLOURS}"
    low, middle, high = (x(100 * value) for value in (dot.low, dot.rate, dot.high))
    return (
        f'<g><title>{escape(dot.label)}</title><line class="{kind}" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" '
        f'y2="{y:.1f}"/><circle class="{kind}" cx="{middle:.1f}" cy="{y:.1f}" r="3.5"/></g>'
    )


def _svg(parts: Sequence[str], size: Point, label: str) -> str:
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {size[0]:g} {size[1]:g}" role="img" aria-label="{escape(label)}">\n{body}\n</svg>'
