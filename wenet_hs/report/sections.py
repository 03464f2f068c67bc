# SPDX-License-Identifier: Apache-2.0
"""Values of the report's sections.

Each function returns the variables of the template with the same name.
"""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from wenet_hs.config.load import flatten
from wenet_hs.report.curve_charts import curve_charts
from wenet_hs.report.page_table import (
    NONE,
    compare_columns,
    format_counts,
    format_number,
    format_setting,
)
from wenet_hs.report.plots import Dot, Series, interval_chart, scatter_chart
from wenet_hs.results.experiment import ExperimentResults
from wenet_hs.results.input_files import InputFile, read_input_files
from wenet_hs.results.report_data import ReportData
from wenet_hs.runs.sentences import describe_facts
from wenet_hs.score.error_rate import LENGTH, UNDEFINED, by_length, percent
from wenet_hs.score.rules import UNIT_NAMES
from wenet_hs.score.tables import TableRecord
from wenet_hs.tree_kinds.plot import tree_svg

# ---- corpora

_SAMPLING = (
    ("hours_before", "hours released", 2),
    ("lambda", "λ", 4),
    ("hours_wanted", "λ × hours", 2),
)


def corpora_section(data: ReportData) -> dict[str, Any]:
    """Hours, utterances and speakers per language and split of each corpus; for a sampled corpus
    the paper's λ.
    """
    corpora = []
    for path, stats in data.stats.items():
        name = str(stats.get("corpus", path)).removesuffix(data.note)  # the title has the note
        corpus = {"path": path, "name": name, "licence": stats.get("licence")}
        langs, total = stats.get("langs"), stats.get("total")
        records = (
            [_corpus_record(*item) for item in sorted(langs.items())]
            if isinstance(langs, dict)
            else []
        )
        totals = [_corpus_record("all", total)] if total and len(records) > 1 else []
        corpora.append(corpus | {"table": records, "total": totals})
    return {"corpora": corpora}


def _corpus_record(lang: str, found: Mapping[str, Any]) -> TableRecord:
    record = {"language": lang}
    record |= {
        name: format_number(found[key], digits) for key, name, digits in _SAMPLING if key in found
    }
    for what, digits in {"hours": 4, "utterances": 0, "speakers": 0}.items():
        for split in ("train", "dev", "test"):
            record[f"{split} {what}"] = format_number(found.get(what, {}).get(split), digits)
    return record


# ---- training


def training_section(data: ReportData) -> dict[str, Any]:
    """Final values, curves over steps and over wall time, and the settings that differ."""
    records = []
    for found in data.experiments:
        train, valid = found.curves.get("train", []), found.curves.get("valid", [])
        if not (train or valid):
            continue
        last, end = (
            max(valid + train, key=lambda record: record["step"]),
            valid[-1] if valid else {},
        )
        lowest = min((record["loss"] for record in valid if "loss" in record), default=None)
        record = {"experiment": found.name, "head": found.head, "steps": f"{last['step']:,.0f}"}
        record["epoch"] = format_number(last.get("epoch"), 0)
        record["minutes"] = format_number(end["seconds"] / 60 if "seconds" in end else None, 1)
        record["lowest validation loss, nats per target"] = format_number(lowest, 3)
        record["last validation, bits per unit"] = format_number(end.get("bits_per_unit"), 3)
        record["last validation accuracy, %"] = percent(end.get("accuracy"))
        records.append(record)
    settings = {
        found.name: {key: format_setting(value) for key, value in flatten(found.settings).items()}
        for found in data.experiments
    }
    compared = sorted(
        compare_columns("setting", settings, NONE), key=lambda record: next(iter(record.values()))
    )
    curves = [found.curves for found in data.experiments]
    return {
        "table": records,
        "step_charts": curve_charts(curves, "steps"),
        "time_charts": curve_charts(curves, "minutes"),
        "settings": [of for of in compared if len({of[name] for name in settings}) > 1],
    }


# ---- trees

MAX_LEAVES = 60


def trees_section(data: ReportData) -> dict[str, Any]:
    """The trees of the output layers with their most probable units; equal trees once."""
    trees: list[tuple[Any, str, Markup]] = []
    for owner in data.experiments:
        if owner.tree is not None and owner.tree not in [tree for tree, _, _ in trees]:
            names = [
                experiment.name for experiment in data.experiments if experiment.tree == owner.tree
            ]
            drawing = tree_svg(owner.tree, max_leaves=MAX_LEAVES)
            trees.append((owner.tree, ", ".join(names), Markup(drawing[drawing.index("<svg") :])))
    return {"trees": trees, "max_leaves": MAX_LEAVES}


# ---- length against error

MAX_RATE = 2.0  # larger rates are drawn at this rate, so that one utterance with many insertions does not flatten all


def lengths_section(data: ReportData) -> dict[str, Any]:
    """Two charts: the error rate per range of reference lengths, and the error rate of each
    utterance by its length.
    """
    metric = data.shown[0].report.rules.metric
    unit = f"{UNIT_NAMES[metric]}s"
    dots, clouds, num_clipped = list[Dot](), list[Series](), 0
    for index, experiment, report in data.shown:
        for name, score in by_length(report).by[LENGTH].groups.items():
            label = f"{experiment.name}, {name} {unit}, {score.utterances:,} utterances"
            dots.append(
                Dot(row=f"{name} (n={score.utterances:,})", score=score, colour=index, label=label)
            )
        counts = [utterance.counts for utterance in report.utterances.values()]
        points = [
            (float(count.num_units), count.rate) for count in counts if count.rate is not None
        ]
        num_clipped += sum(rate > MAX_RATE for _, rate in points)
        clouds.append(
            Series(points=[(length, min(MAX_RATE, rate)) for length, rate in points], colour=index)
        )
    label = f"Error rate of each utterance by its length in {unit}"
    return {
        "metric": metric.upper(),
        "bins": interval_chart(dots, label=f"Error rates by length of the reference in {unit}"),
        "scatter": scatter_chart(clouds, label=label, unit=unit),
        "num_clipped": num_clipped,
        "max_percent": format(100 * MAX_RATE, "g"),
    }


# ---- conditions

_SHOWN_SETTINGS = ("seed", "encoder", "encoder_conf.layers", "encoder_conf.freeze")


def conditions_section(data: ReportData) -> dict[str, Any]:
    """Signatures and counts of the error rates, the facts about the trainings, and the hashes of
    all input files.
    """
    scores = [
        record for experiment in data.experiments for record in _signature_records(experiment)
    ]
    facts = {experiment.name: _facts_of_training(experiment) for experiment in data.experiments}
    return {
        "scores": scores,
        "provenance": compare_columns("training", facts, UNDEFINED),
        "files": [_file_record(file) for file in read_input_files(data)],
    }


def _signature_records(experiment: ExperimentResults) -> list[TableRecord]:
    """How the scores of each mode were computed."""
    return [
        {
            "experiment": experiment.name,
            "mode": mode,
            "signature": report.signature,
            "counts": format_counts(report.micro),
            "resamples": f"{report.num_resamples:,}",
            "missing": f"{len(report.missing):,}",
        }
        for mode, report in experiment.scores.items()
    ]


def _facts_of_training(experiment: ExperimentResults) -> TableRecord:
    """The facts in the run record, and some settings."""
    facts = {str(name): str(value) for name, value in describe_facts(experiment.run).items()}
    for name, value in flatten(experiment.settings).items():
        if name in _SHOWN_SETTINGS:
            facts[name] = str(value)
    return facts


def _file_record(file: InputFile) -> TableRecord:
    return {
        "file": str(file.path),
        "changed, UTC": f"{file.changed:%Y-%m-%d %H:%M:%S}",
        "bytes": f"{file.num_bytes:,}",
        "SHA-256": file.sha256,
    }
