# SPDX-License-Identifier: Apache-2.0
"""The tables of the page. Every text from outside is escaped here."""

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from wenet_hs.report.collect import Experiment, in_order
from wenet_hs.report.utterances import letters
from wenet_hs.score import Interval
from wenet_hs.score.table import UNDEFINED, format_interval, percent

_NUMBER = re.compile(r"-?[0-9][0-9,.]*(e-?[0-9]+)?")
_LONG = 30  # characters

Column = tuple[str, Experiment]  # a decoding mode of an experiment


def table(header: str, rows: Sequence[str], *, caption: str) -> str:
    """A table that scrolls by itself where the page is narrow; all arguments are HTML."""
    body = "\n".join(f"<tr{row}</tr>" for row in rows)
    return (
        f'<figure><figcaption>{caption}</figcaption><div class="scroll"><table>\n<thead>{header}</thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div></figure>"
    )


def plain_table(names: Sequence[str], rows: Sequence[Sequence[object]], *, caption: str) -> str:
    """A table of plain values: text left, numbers right, long text wrapped. `caption` is HTML."""
    cells = [[str(value) for value in row] for row in rows]
    kinds = [_kind(column) for column in zip(*cells, strict=True)]
    header = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(names, kinds, strict=True))
    lines = []
    for row in cells:
        values = "".join(f"<td{kind}>{escape(value)}</td>" for value, kind in zip(row[1:], kinds[1:], strict=True))
        lines.append(f"><th>{escape(row[0])}</th>{values}")
    return table(f"<tr>{header}</tr>", lines, caption=caption)


def _kind(column: Sequence[str]) -> str:
    """The class of a column by what stands in it."""
    if all(value == UNDEFINED or _NUMBER.fullmatch(value) for value in column):
        return ""
    return ' class="text long"' if max(map(len, column)) > _LONG else ' class="text"'


def error_table(experiments: Sequence[Experiment], *, caption: str) -> str:
    """Languages × (mode, experiment): rate and interval in percent, the lowest of each mode in bold."""
    columns = _columns(experiments)
    langs = sorted({lang for mode, experiment in columns for lang in experiment.scores[mode].languages})
    rows = []
    for lang in langs:
        found = [experiment.scores[mode].languages.get(lang) for mode, experiment in columns]
        rates = [(score.rate, score.interval) if score else (None, None) for score in found]
        rows.append(f"><th>{escape(lang)}</th>{_cells(columns, rates)}")
    macro = [experiment.scores[mode].macro for mode, experiment in columns]
    micro = [experiment.scores[mode].micro for mode, experiment in columns]
    rows.append(f' class="average"><th>macro average</th>{_cells(columns, [(m.rate, m.interval) for m in macro])}')
    rows.append(f"><th>micro average</th>{_cells(columns, [(m.rate, m.interval) for m in micro])}")
    return table(_error_header(columns), rows, caption=caption)


def _columns(experiments: Sequence[Experiment]) -> list[Column]:
    modes = in_order({mode for experiment in experiments for mode in experiment.scores})
    return [(mode, experiment) for mode in modes for experiment in experiments if mode in experiment.scores]


def _error_header(columns: Sequence[Column]) -> str:
    modes = [mode for mode, _ in columns]
    groups = "".join(
        f'<th class="group" colspan="{modes.count(mode)}">{escape(mode)}</th>' for mode in dict.fromkeys(modes)
    )
    names = "".join(f"<th>{escape(experiment.name)}</th>" for _, experiment in columns)
    return f"<tr><th></th>{groups}</tr><tr><th>language</th>{names}</tr>"


def _cells(columns: Sequence[Column], rates: Sequence[tuple[float | None, Interval | None]]) -> str:
    cells = []
    for (mode, _), (rate, interval) in zip(columns, rates, strict=True):
        rivals = [
            other for (name, _), (other, _) in zip(columns, rates, strict=True) if name == mode and other is not None
        ]
        best = ' class="best"' if len(rivals) > 1 and rate == min(rivals) else ""
        bounds = "" if interval is None else f'<span class="interval">{format_interval(interval)}</span>'
        cells.append(f"<td{best}>{percent(rate)}{bounds}</td>")
    return "".join(cells)


def speed_table(experiments: Sequence[Experiment], *, caption: str) -> str:
    """Seconds of speech, seconds of decoding and their ratio; "" where no experiment has an rtf.json."""
    conditions = sorted({name for experiment in experiments for name in experiment.speed_conditions})
    rows = [
        [experiment.name, mode, _number(speed.get("audio_seconds"), 1), _number(speed.get("wall_seconds"), 1)]
        + [_number(speed.get("rtf"), 3)]
        + [experiment.speed_conditions.get(name, UNDEFINED) for name in conditions]
        for experiment in experiments
        for mode, speed in experiment.speeds.items()
    ]
    names = ["experiment", "mode", "speech, s", "decoding, s", "RTF", *(name.replace("_", " ") for name in conditions)]
    return plain_table(names, rows, caption=caption) if rows else ""


def training_table(experiments: Sequence[Experiment], *, caption: str) -> str:
    """What each training came to; "" where no experiment has curves."""
    rows = []
    for experiment in experiments:
        valid, train = (experiment.curves.get(kind, []) for kind in ("valid", "train"))
        if not (valid or train):
            continue
        last = max(valid + train, key=lambda record: record["step"])
        minutes = valid[-1]["seconds"] / 60 if valid and "seconds" in valid[-1] else None
        losses = [record["loss"] for record in valid if "loss" in record]
        rows.append(
            [
                experiment.name,
                experiment.head,
                f"{last['step']:,.0f}",
                _number(last.get("epoch"), 0),
                _number(minutes, 1),
            ]
            + [_number(min(losses) if losses else None, 3)]
            + [_number(valid[-1].get("bits_per_unit"), 3) if valid else UNDEFINED]
            + [percent(valid[-1].get("accuracy")) if valid else UNDEFINED]
        )
    names = ["experiment", "head", "steps", "epoch", "minutes", "lowest validation loss"]
    names += ["last validation bits a unit", "last validation accuracy, %"]
    return plain_table(names, rows, caption=caption) if rows else ""


def settings_table(experiments: Sequence[Experiment], *, caption: str) -> str:
    """The settings in which the experiments differ; "" for a single one, or where nothing differs."""
    flat = [_flatten(experiment.settings) for experiment in experiments]
    keys = sorted({key for settings in flat for key in settings})
    rows = [[key, *(str(settings.get(key, "—")) for settings in flat)] for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    names = ["setting", *(experiment.name for experiment in experiments)]
    return plain_table(names, rows, caption=caption) if rows else ""


def conditions_table(experiments: Sequence[Experiment], *, caption: str) -> str:
    """Signature, counts and missing hypotheses of each score."""
    rows = [
        [experiment.name, mode, report.signature, letters(report.micro.counts), f"{len(report.missing):,}"]
        for experiment in experiments
        for mode, report in experiment.scores.items()
    ]
    return plain_table(["experiment", "mode", "signature", "counts", "missing"], rows, caption=caption)


def provenance_table(experiments: Sequence[Experiment], *, caption: str) -> str:
    """Command, commit, versions and machine of each training; "" where none is known."""
    keys = list(dict.fromkeys(key for experiment in experiments for key in experiment.provenance))
    rows = [[key, *(experiment.provenance.get(key, UNDEFINED) for experiment in experiments)] for key in keys]
    names = ["training", *(experiment.name for experiment in experiments)]
    return plain_table(names, rows, caption=caption) if rows else ""


def _flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _number(value: object, digits: int) -> str:
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else UNDEFINED
