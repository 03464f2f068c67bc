# SPDX-License-Identifier: Apache-2.0
"""Length against error: each utterance as a dot, and the rate of each bin of lengths with its interval."""

from html import escape

from wenet_hs.report.errors import keys
from wenet_hs.report.figures import Dot, Line, interval_chart, scatter_chart
from wenet_hs.report.markup import missing, section
from wenet_hs.report.material import Material
from wenet_hs.score.error_rate import LENGTH, by_length, format_interval, percent
from wenet_hs.score.units import UNIT_NAMES

HIGHEST = 2.0  # a rate above it is drawn at it: one utterance of many insertions would press all others flat


def lengths_section(material: Material) -> str:
    """The section; without scores it says so."""
    shown = material.shown
    if not shown:
        return section("lengths", "Length against error", missing("No lengths: no experiment has a score.json."))
    unit = UNIT_NAMES[shown[0][2].rules.metric]
    metric = shown[0][2].rules.metric.upper()
    mode = escape(material.mode or "")
    scatter = scatter_chart(
        _clouds(material), label=f"Error rate of each utterance by its length in {unit}s", unit=f"{unit}s"
    )
    bins = interval_chart(_bins(material, unit), label=f"Error rates by length of the reference in {unit}s")
    return section(
        "lengths",
        "Length against error",
        keys(material.experiments),
        f'<div class="charts chart"><figure>{bins}<figcaption>{metric} by length of the reference{material.said}, '
        f"{mode}; a dot is the pooled rate of a bin, its line the 95 % interval.</figcaption></figure>"
        f"<figure>{scatter}<figcaption>{metric} of each utterance over the length of its reference{material.said}, "
        f"{mode}{_cut(material)}.</figcaption></figure></div>",
    )


def _cut(material: Material) -> str:
    """How many dots are not where their rate is; "" for none."""
    rates = [found.counts.rate for _, _, report in material.shown for found in report.utterances.values()]
    higher = sum(rate is not None and rate > HIGHEST for rate in rates)
    return f"; {higher:,} above {100 * HIGHEST:g} % drawn at {100 * HIGHEST:g} %" if higher else ""


def _clouds(material: Material) -> list[Line]:
    """The dots of each experiment; utterances without a reference have no rate."""
    return [
        Line(
            points=[
                (float(found.counts.num_units), min(HIGHEST, found.counts.rate))
                for found in report.utterances.values()
                if found.counts.rate is not None
            ],
            colour=place,
        )
        for place, _, report in material.shown
    ]


def _bins(material: Material, unit: str) -> list[tuple[str, list[Dot]]]:
    rows: dict[str, list[Dot]] = {}
    for place, experiment, report in material.shown:
        for name, score in by_length(report).by[LENGTH].groups.items():
            if score.rate is None:
                continue
            low, high = score.interval or (score.rate, score.rate)
            told = f"{experiment.name}, {name} {unit}s, {score.utterances:,} utterances: {percent(score.rate)} % "
            dot = Dot(rate=score.rate, low=low, high=high, colour=place, label=told + format_interval(score.interval))
            rows.setdefault(f"{name} (n={score.utterances:,})", []).append(dot)
    return list(rows.items())
