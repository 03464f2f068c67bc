# SPDX-License-Identifier: Apache-2.0
"""The chart of a study over seeds, as an SVG file."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from wenet_hs.results.study import ChartSpec, StudyTable

CAPTION = "Macro average in the first mode in %: mean and standard deviation over the seeds"
_SHIFT = 0.98
"""Each line is this factor to the left of the one before, so that their intervals are beside each
other."""


@dataclass(frozen=True)
class _ChartPoint:
    """The rates of one system over the seeds, in %."""

    x: float
    rates: Sequence[float]

    @property
    def mean(self) -> float:
        return fmean(self.rates)

    @property
    def deviation(self) -> float:
        """The standard deviation; 0 for one seed."""
        return stdev(self.rates) if len(self.rates) > 1 else 0.0


def draw_chart(table: StudyTable, spec: ChartSpec) -> bytes:
    """The lines of `spec` as SVG: mean and standard deviation over the seeds of each point.

    Points without results are left out. Both axes are logarithmic if all their values are positive.
    Equal results give equal bytes.
    """
    # matplotlib takes half a second to import.
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import AutoLocator

    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    all_means = list[float]()
    x_values = set[float]()
    for number, (label, systems) in enumerate(spec.lines.items()):
        points = _points_of_line(table, systems)
        shifted = [point.x * _SHIFT**number for point in points]
        means = [point.mean for point in points]
        deviations = [point.deviation for point in points]
        axes.errorbar(shifted, means, deviations, label=label, marker="o", markersize=4, capsize=2)
        all_means += means
        x_values |= systems.keys()
    x_ticks = sorted(x_values)
    x_scale = _choose_scale(x_ticks)
    y_scale = _choose_scale(all_means)
    axes.set(
        xscale=x_scale,
        yscale=y_scale,
        xlabel=f"{spec.x}, {x_scale} scale",
        ylabel=f"%, {y_scale} scale",
    )
    axes.set_xticks(x_ticks, [f"{x:g}" for x in x_ticks])
    axes.yaxis.set_major_locator(AutoLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    file = io.BytesIO()
    # None: left out, because date and version of matplotlib would change the bytes.
    metadata = {"Title": f"{table.spec.title}: {CAPTION}", "Date": None, "Creator": None}
    # By default the ids in an SVG are random; with a fixed salt they depend on the content only.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": table.spec.title}):
        figure.savefig(file, format="svg", metadata=metadata)
    return file.getvalue()


def _points_of_line(table: StudyTable, systems: Mapping[float, str]) -> list[_ChartPoint]:
    """The points of one line that have results, from left to right.

    They have the rates in the first mode, over the seeds that all systems of the table have.

    `systems`: by their value on the horizontal axis.
    """
    mode = table.columns[0]
    points = list[_ChartPoint]()
    for x, system in sorted(systems.items()):
        all_numbers = [training.numbers() for training in table.common.get(system, ())]
        rates = [numbers[mode] for numbers in all_numbers if mode in numbers]
        if rates:
            points.append(_ChartPoint(x, rates))
    return points


def _choose_scale(values: Sequence[float]) -> str:
    """`log` if all values are positive, otherwise `linear`; `linear` without values."""
    return "log" if min(values, default=0) > 0 else "linear"
