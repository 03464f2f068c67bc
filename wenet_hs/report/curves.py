# SPDX-License-Identifier: Apache-2.0
"""Training: what each run came to, its curves over steps and over wall time, and the settings that differ."""

from collections.abc import Callable, Sequence
from html import escape

from wenet_hs.report.collect import ExperimentResults
from wenet_hs.report.errors import keys
from wenet_hs.report.figures import Line, line_chart
from wenet_hs.report.markup import missing, number, plain_table, section, show_setting
from wenet_hs.report.material import Material
from wenet_hs.score.error_rate import UNDEFINED, percent


def _general(value: float) -> str:
    return f"{value:g}"


def _per_cent(value: float) -> str:
    return f"{100 * value:g} %"


CURVES: tuple[
    tuple[str, str, Callable[[float], str], bool], ...
] = (  # metric, caption, how a value is written, log axis
    ("loss", "Loss, nats a target", _general, True),
    ("loss_att", "Attention loss, nats a target", _general, True),
    ("loss_ctc", "CTC loss, nats a target", _general, True),
    ("bits_per_unit", "Bits a unit of the attention decoder, without label smoothing", _general, True),
    ("accuracy", "Attention accuracy, teacher-forced", _per_cent, False),
    ("lr", "Learning rate", _general, False),
)
OVER_TIME = ("loss", "loss_att", "loss_ctc", "accuracy")  # what is compared at equal time


def training_section(material: Material) -> str:
    """The section; without metrics.jsonl it says so."""
    experiments = material.experiments
    said = material.said
    differing = settings_table(experiments, caption="Settings in which the experiments differ")
    charts = _charts(experiments, said)
    if not charts:
        text = "No curves: no experiment has a metrics.jsonl with records."
        return section("training", "Training", missing(text), differing)
    over_time = _charts(experiments, said, over_time=True)
    return section(
        "training",
        "Training",
        training_table(experiments, caption=f"Training{said}. Minutes: wall time at the last validation"),
        keys(experiments),
        '<h3>Over training steps</h3>\n<p class="quiet">Thick: validation; thin and pale: training.</p>',
        f'<div class="charts chart">{charts}</div>',
        over_time
        and f'<h3>Over wall time</h3>\n<p class="quiet">Validation.</p><div class="charts chart">{over_time}</div>',
        differing,
    )


def _charts(experiments: Sequence[ExperimentResults], said: str, *, over_time: bool = False) -> str:
    figures = []
    unit = "minutes" if over_time else "steps"
    for metric, caption, show, decades in CURVES:
        if over_time and metric not in OVER_TIME:
            continue
        lines = [line for i, found in enumerate(experiments) for line in _lines(found, i, metric, over_time=over_time)]
        chart = line_chart(lines, label=f"{caption} over {unit}", show=show, decades=decades, unit=unit)
        if chart:
            figures.append(f"<figure>{chart}<figcaption>{caption}{said}</figcaption></figure>")
    return "".join(figures)


def _lines(experiment: ExperimentResults, index: int, metric: str, *, over_time: bool) -> list[Line]:
    if over_time:
        records = [record for record in experiment.curves.get("valid", ()) if metric in record and "seconds" in record]
        return [Line(points=[(record["seconds"] / 60, record[metric]) for record in records], colour=index)]
    train, valid = (_points(experiment, kind, metric) for kind in ("train", "valid"))
    return [Line(points=train, colour=index, faint=bool(valid)), Line(points=valid, colour=index)]


def _points(experiment: ExperimentResults, kind: str, metric: str) -> list[tuple[float, float]]:
    return [(record["step"], record[metric]) for record in experiment.curves.get(kind, ()) if metric in record]


def training_table(experiments: Sequence[ExperimentResults], *, caption: str) -> str:
    """What each training came to; "" where no experiment has curves."""
    rows = []
    for experiment in experiments:
        valid, train = (experiment.curves.get(kind, []) for kind in ("valid", "train"))
        if not (valid or train):
            continue
        last = max(valid + train, key=lambda record: record["step"])
        minutes = valid[-1]["seconds"] / 60 if valid and "seconds" in valid[-1] else None
        losses = [record["loss"] for record in valid if "loss" in record]
        row = [experiment.name, experiment.head, f"{last['step']:,.0f}", number(last.get("epoch"), 0)]
        row += [number(minutes, 1), number(min(losses) if losses else None, 3)]
        row += [number(valid[-1].get("bits_per_unit"), 3) if valid else UNDEFINED]
        row += [percent(valid[-1].get("accuracy")) if valid else UNDEFINED]
        rows.append(row)
    names = ["experiment", "head", "steps", "epoch", "minutes", "lowest validation loss, nats a target"]
    names += ["last validation, bits a unit", "last validation accuracy, %"]
    return plain_table(names, rows, caption=caption) if rows else ""


def settings_table(experiments: Sequence[ExperimentResults], *, caption: str) -> str:
    """The settings in which the experiments differ; "" for a single one, or where nothing differs."""
    flat = [flatten(experiment.settings) for experiment in experiments]
    names = sorted({key for settings in flat for key in settings})
    rows = [[key, *(show_setting(settings.get(key)) for settings in flat)] for key in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    header = ["setting", *(experiment.name for experiment in experiments)]
    return plain_table(header, rows, caption=escape(caption)) if rows else ""


def flatten(settings: dict[str, object], prefix: str = "") -> dict[str, object]:
    """Nested settings under dotted keys."""
    flat: dict[str, object] = {}
    for key, value in settings.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
