# SPDX-License-Identifier: Apache-2.0
"""Charts are well-formed SVG whose points are at the coordinates of their values."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.report.plots import (
    Dot,
    Series,
    interval_chart,
    line_chart,
    log_ticks,
    scatter_chart,
    thin_curve,
    ticks,
)
from wenet_hs.score.bootstrap import Interval
from wenet_hs.score.error_rate import Rate

parse = ElementTree.fromstring


def heights(svg: str) -> list[float]:
    line = next(parse(svg).iter("polyline"))
    return [float(point.split(",")[1]) for point in line.attrib["points"].split()]


def test_values_are_linear_or_logarithmic() -> None:
    ys = heights(line_chart([Series(points=[(0, 0), (50, 1), (100, 2)], colour=0)], label="x"))
    assert ys[0] > ys[1] > ys[2] and ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2)
    svg = line_chart(
        [Series(points=[(1, 100), (2, 10), (3, 1)], colour=0)], label="x", may_be_log=True
    )
    ys = heights(svg)
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=0.2)
    assert "log scale" in svg
    for low in (50, 0):
        assert "log scale" not in line_chart(
            [Series(points=[(1, 100), (2, low)], colour=0)], label="x", may_be_log=True
        )
    lines = [
        Series(points=[(1, 1), (2, 2)], colour=1),
        Series(points=[(1, 1), (2, 2)], colour=0, faint=True),
    ]
    drawn = parse(line_chart(lines, label="<&>", format_value=lambda value: f"<{value:g}>"))
    assert [line.attrib["class"] for line in drawn.iter("polyline")] == ["c0 faint", "c1"], (
        "faint lines are below"
    )
    assert drawn.attrib["aria-label"] == "<&>"


def test_few_or_equal_values() -> None:
    for points in ([(5, 3.0)], [(0, 0.0)], [(1, 2.0), (2, 2.0)], [(1, -1.0), (2, math.nan)]):
        svg = line_chart([Series(points=points, colour=0)], label="x")
        assert len(list(parse(svg).iter("circle"))) == sum(
            math.isfinite(value) for _, value in points
        )
        assert "nan" not in svg
    for none in ([], [(1, math.inf)]):
        assert line_chart([Series(points=none, colour=0)], label="x") == ""
    assert (
        interval_chart([], label="x")
        == scatter_chart([Series(points=[], colour=0)], label="x", unit="phones")
        == ""
    )


def test_intervals_reach_from_low_to_high() -> None:
    first = Dot(row="<ky>", score=Rate(0.2, Interval(0.1, 0.4)), colour=0, label="a")
    second = Dot(row="<ky>", score=Rate(1, None), colour=7, label="b")
    svg = parse(interval_chart([first, second], label="x"))
    line, circle = svg.find("g/line"), svg.find("g/circle")
    assert line is not None and circle is not None
    low, middle, high = (
        float(line.attrib["x1"]),
        float(circle.attrib["cx"]),
        float(line.attrib["x2"]),
    )
    assert (high - middle) == pytest.approx(2 * (middle - low), abs=0.3)
    assert [title.text for title in svg.iter("title")] == [
        "a: 20.00 % [10.00, 40.00]",
        "b: 100.00 % n/a",
    ]
    assert [line.attrib["class"] for line in svg.findall("g/line")] == ["c0", "c1"], (
        "there are six colours"
    )
    assert "<ky>" in [text.text for text in svg.iter("text")]


def test_no_label_is_cut() -> None:
    rates = [Series(points=[(0, 0.0002), (12_500, 0.00084)], colour=0)]
    names = ("a language with a long name", "macro average")
    dots = [Dot(row=name, score=Rate(20, None), colour=0, label="a") for name in names]
    clouds = [Series(points=[(1, 0.1), (1500, 20)], colour=0)]
    charts = [line_chart(rates, label="x"), scatter_chart(clouds, label="x", unit="phones")]
    for svg in (*charts, interval_chart(dots, label="x")):
        width = float(parse(svg).attrib["viewBox"].split()[2])
        for text in parse(svg).iter("text"):
            shown, size = text.text or "", 7 * len(text.text or "")
            x, is_middle = float(text.attrib["x"]), text.attrib["class"] == "tick"
            assert (
                x - size / (2 if is_middle else 1) >= 0
                and x + (size / 2 if is_middle else 0) <= width
            ), shown


@settings(deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_and_enclose_the_range(low: float, width: float) -> None:
    marks = ticks(low, low + width)
    assert 2 <= len(marks) <= 9
    assert marks[0] <= low + 1e-6 * width + 1e-9 * abs(low)
    assert marks[-1] >= low + width - 1e-6 * width - 1e-9 * abs(low)
    assert ticks(3, 17) == [0, 5, 10, 15, 20] and ticks(2, 2) == [1, 1.5, 2, 2.5, 3]
    assert log_ticks(0.3, 30) == [0.5, 1, 2, 5, 10, 20] and log_ticks(1, 1e5) == [
        10**n for n in range(6)
    ]


def test_long_curves_are_means() -> None:
    assert thin_curve([(1, 1.0), (2, 3.0), (3, 5.0), (4, 7.0)], max_points=2) == [
        (2, 2.0),
        (4, 6.0),
    ]
    svg = line_chart([Series(points=[(step, 1.0) for step in range(12_345)], colour=0)], label="x")
    assert len(re.findall(r"\d,\d", svg)) <= 200


def test_equal_dots_are_one_larger_dot_and_clouds_are_separate() -> None:
    clouds = [
        Series(points=[(4, 0.5), (4, 0.5), (8, 1.0)], colour=0),
        Series(points=[(4, 0.5)], colour=1),
    ]
    svg = parse(scatter_chart(clouds, label="x", unit="phones"))
    groups = {group.attrib["class"]: list(group.iter("circle")) for group in svg.iter("g")}
    (twice, once), (other,) = groups["cloud k0"], groups["cloud k1"]
    assert float(twice.attrib["r"]) > float(once.attrib["r"]) == float(other.attrib["r"])
    assert float(other.attrib["cx"]) - float(twice.attrib["cx"]) == pytest.approx(5)
    assert other.attrib["cy"] == twice.attrib["cy"]
    right = max(float(line.attrib["x2"]) for line in svg.iter("line"))
    assert all(
        float(dot.attrib["cx"]) + float(dot.attrib["r"]) <= right for dot in (once, other)
    ), "inside the plot"
    assert {"phones", "100 %"} <= {text.text for text in svg.iter("text")}
    many = scatter_chart(
        [Series(points=[(n, 0.1) for n in range(5000)], colour=0)], label="x", unit="phones"
    )
    assert many.count("<circle") == 1000
