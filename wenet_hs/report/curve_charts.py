# SPDX-License-Identifier: Apache-2.0
"""Charts of the curves of trainings."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from markupsafe import Markup

from wenet_hs.report.plots import Line, line_chart
from wenet_hs.runs.curves import Curves

_CURVES = {
    "ctc_error_rate": "Unit error rate of the validation set, greedy CTC search",
    "loss": "Loss, nats per target",
    "loss_att": "Attention loss, nats per target",
    "loss_ctc": "CTC loss, nats per target",
    "bits_per_unit": "Bits per unit of the attention decoder, without label smoothing",
    "accuracy": "Attention accuracy, teacher-forced",
    "lr": "Learning rate",
}
_OVER_TIME = ("ctc_error_rate", "loss", "loss_att", "loss_ctc", "accuracy")
_PERCENT = ("ctc_error_rate", "accuracy")
_LINEAR = (*_PERCENT, "lr")  # the others may be logarithmic
_LOSS_OF = {"loss_att": "loss_att", "loss_ctc": "loss_ctc", "accuracy": "loss_att"}
"""The loss that is 0 in records where the metric was not computed, as the decoder's in
`ctc_only_steps`."""


class CurveChart(NamedTuple):
    """The chart of one metric."""

    caption: str
    svg: Markup


def curve_charts(
    all_curves: Sequence[Curves], unit: Literal["steps", "minutes"]
) -> list[CurveChart]:
    """A chart per metric: training and validation over steps, or validation over minutes.

    A metric that no training has is left out. Each training has its own colour.
    """
    charts = list[CurveChart]()
    for metric, caption in _CURVES.items():
        if unit == "minutes" and metric not in _OVER_TIME:
            continue
        lines = list[Line]()
        for colour, curves in enumerate(all_curves):
            train = _records_with(metric, curves.get("train", ()))
            valid = _records_with(metric, curves.get("valid", ()))
            if unit == "minutes":
                points = [
                    (record["seconds"] / 60, record[metric])
                    for record in valid
                    if "seconds" in record
                ]
                lines.append(Line(points=points, colour=colour))
            else:
                lines.append(
                    Line(points=_over_steps(metric, train), colour=colour, faint=bool(valid))
                )
                lines.append(Line(points=_over_steps(metric, valid), colour=colour))
        chart = line_chart(
            lines,
            label=f"{caption} over {unit}",
            show=_format_percent if metric in _PERCENT else "{:g}".format,
            may_be_log=metric not in _LINEAR,
            unit=unit,
        )
        if chart:
            charts.append(CurveChart(caption, chart))
    return charts


def _records_with(metric: str, records: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """The records in which the metric was computed."""
    loss = _LOSS_OF.get(metric, "")
    return [record for record in records if metric in record and record.get(loss) != 0]


def _over_steps(metric: str, records: Sequence[Mapping[str, float]]) -> list[tuple[float, float]]:
    return [(record["step"], record[metric]) for record in records]


def _format_percent(value: float) -> str:
    return f"{100 * value:g} %"
