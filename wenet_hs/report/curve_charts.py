# SPDX-License-Identifier: Apache-2.0
"""Charts of the training curves of one or more experiments."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from markupsafe import Markup

from wenet_hs.report.plots import Series, line_chart
from wenet_hs.runs.curves import Curves

_CAPTIONS = {
    "ctc_error_rate": "Unit error rate of the validation set, greedy CTC search",
    "loss": "Loss, nats per target",
    "loss_att": "Attention loss, nats per target",
    "loss_ctc": "CTC loss, nats per target",
    "bits_per_unit": "Bits per unit of the attention decoder, without label smoothing",
    "accuracy": "Attention accuracy, teacher-forced",
    "lr": "Learning rate",
}
"""The caption of the chart of each metric, in the order of the charts."""
_METRICS_OVER_MINUTES = ("ctc_error_rate", "loss", "loss_att", "loss_ctc", "accuracy")
_METRICS_IN_PERCENT = ("ctc_error_rate", "accuracy")
_LINEAR_METRICS = (*_METRICS_IN_PERCENT, "lr")  # the axes of the others may be logarithmic
_LOSS_OF_METRIC = {"loss_att": "loss_att", "loss_ctc": "loss_ctc", "accuracy": "loss_att"}
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

    A metric without values is left out. Over minutes there is no chart of the learning rate and of
    the bits per unit. `all_curves` has the curves of each training, which has its own colour.
    """
    charts = list[CurveChart]()
    for metric, caption in _CAPTIONS.items():
        if unit == "minutes" and metric not in _METRICS_OVER_MINUTES:
            continue
        drawn = list[Series]()
        for colour, curves in enumerate(all_curves):
            if unit == "minutes":
                drawn.append(_curve_over_minutes(metric, curves, colour))
            else:
                drawn += _curves_over_steps(metric, curves, colour)
        chart = line_chart(
            drawn,
            label=f"{caption} over {unit}",
            format_value=_format_percent if metric in _METRICS_IN_PERCENT else "{:g}".format,
            may_be_log=metric not in _LINEAR_METRICS,
            unit=unit,
        )
        if chart:
            charts.append(CurveChart(caption, chart))
    return charts


def _curve_over_minutes(metric: str, curves: Curves, colour: int) -> Series:
    """The values of a metric at the validations, over the wall time of the training.

    Records without a time are left out.
    """
    valid = _records_with(metric, curves.get("valid", ()))
    points = [(record["seconds"] / 60, record[metric]) for record in valid if "seconds" in record]
    return Series(points=points, colour=colour)


def _curves_over_steps(metric: str, curves: Curves, colour: int) -> list[Series]:
    """The curves of a metric in training and in validation.

    The one of training is faint if there are validations.
    """
    train = _records_with(metric, curves.get("train", ()))
    valid = _records_with(metric, curves.get("valid", ()))
    return [
        Series(points=_points_over_steps(metric, train), colour=colour, faint=bool(valid)),
        Series(points=_points_over_steps(metric, valid), colour=colour),
    ]


def _records_with(metric: str, records: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """The records in which the metric was computed.

    They have a value of the metric. Some metrics have a loss in _LOSS_OF_METRIC: if it is 0, the
    branch of the metric was not trained in this step, and the value means nothing.
    """
    with_value = [record for record in records if metric in record]
    if metric not in _LOSS_OF_METRIC:
        return with_value
    loss = _LOSS_OF_METRIC[metric]
    return [record for record in with_value if record.get(loss) != 0]


def _points_over_steps(
    metric: str, records: Sequence[Mapping[str, float]]
) -> list[tuple[float, float]]:
    return [(record["step"], record[metric]) for record in records]


def _format_percent(value: float) -> str:
    """A fraction in percent: `12.5 %`."""
    return f"{100 * value:g} %"
