# SPDX-License-Identifier: Apache-2.0
"""The sections of the report about lengths, training, trees, corpora and conditions.

Each public function returns the variables of the template with the same name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
from wenet_hs.results.report_data import ReportData, ShownExperiment
from wenet_hs.runs.sentences import describe_facts
from wenet_hs.score.error_rate import LENGTH, UNDEFINED, by_length, percent
from wenet_hs.score.rules import UNIT_NAMES
from wenet_hs.score.tables import TableRecord
from wenet_hs.tree.tree import NaryTree, Tree
from wenet_hs.tree_kinds.plot import tree_svg

# ---- length against error

MAX_RATE = 2.0
"""Larger rates are drawn at this one: an utterance with many insertions must not flatten the
others."""


def lengths_section(data: ReportData) -> dict[str, Any]:
    """The variables of `lengths.html`, which are two charts of the shown experiments.

    The first chart has the error rate per range of reference lengths, the second the error rate of
    each utterance by its length. In the second one, rates above MAX_RATE are drawn at MAX_RATE, and
    their number is `num_clipped`. At least one experiment must be shown.
    """
    metric = data.shown[0].report.rules.metric
    unit = f"{UNIT_NAMES[metric]}s"
    dots = list[Dot]()
    clouds = list[Series]()
    num_clipped = 0
    for shown in data.shown:
        dots += _list_length_dots(shown, unit)
        cloud = _find_lengths_and_rates(shown)
        num_clipped += sum(rate > MAX_RATE for _, rate in cloud)
        clipped = [(length, min(MAX_RATE, rate)) for length, rate in cloud]
        clouds.append(Series(points=clipped, colour=shown.number))
    interval_label = f"Error rates by length of the reference in {unit}"
    scatter_label = f"Error rate of each utterance by its length in {unit}"
    return {
        "metric": metric.upper(),
        "bins": interval_chart(dots, label=interval_label),
        "scatter": scatter_chart(clouds, label=scatter_label, unit=unit),
        "num_clipped": num_clipped,
        "max_percent": format(100 * MAX_RATE, "g"),
    }


def _list_length_dots(shown: ShownExperiment, unit: str) -> list[Dot]:
    """The pooled error rate of each range of reference lengths; `unit` is their unit."""
    dots = list[Dot]()
    for bin_name, score in by_length(shown.report).by[LENGTH].groups.items():
        size = f"{score.utterances:,}"
        dot = Dot(
            row=f"{bin_name} (n={size})",
            score=score,
            colour=shown.number,
            label=f"{shown.experiment.name}, {bin_name} {unit}, {size} utterances",
        )
        dots.append(dot)
    return dots


def _find_lengths_and_rates(shown: ShownExperiment) -> list[tuple[float, float]]:
    """The length and the error rate of each utterance whose reference has units."""
    all_counts = [utterance.counts for utterance in shown.report.utterances.values()]
    return [
        (float(counts.num_units), counts.rate) for counts in all_counts if counts.rate is not None
    ]


# ---- training


def training_section(data: ReportData) -> dict[str, Any]:
    """The variables of `training.html`.

    These are final values, curves over steps and over wall time, and the settings that differ.
    Experiments without curves are not in the table of final values.
    """
    experiments = data.experiments
    curves = [experiment.curves for experiment in experiments]
    trained = [
        experiment
        for experiment in experiments
        if experiment.curves.get("train") or experiment.curves.get("valid")
    ]
    return {
        "table": [_training_record(experiment) for experiment in trained],
        "step_charts": curve_charts(curves, "steps"),
        "time_charts": curve_charts(curves, "minutes"),
        "settings": _compare_settings(experiments),
    }


def _training_record(experiment: ExperimentResults) -> TableRecord:
    """The length of a training, and what its validations gave; n/a for values that it lacks.

    It must have a record of training or of validation.
    """
    train = experiment.curves.get("train", [])
    valid = experiment.curves.get("valid", [])
    # Of records with the same step `max` takes the first one, a validation.
    last_record = max(valid + train, key=lambda record: record["step"])
    last_validation = valid[-1] if valid else {}
    seconds = last_validation.get("seconds")
    minutes = None if seconds is None else seconds / 60
    losses = [record["loss"] for record in valid if "loss" in record]
    lowest_loss = min(losses, default=None)
    bits_per_unit = last_validation.get("bits_per_unit")
    return {
        "experiment": experiment.name,
        "head": experiment.head,
        "steps": f"{last_record['step']:,.0f}",
        "epoch": format_number(last_record.get("epoch"), 0),
        "minutes": format_number(minutes, 1),
        "lowest validation loss, nats per target": format_number(lowest_loss, 3),
        "last validation, bits per unit": format_number(bits_per_unit, 3),
        "last validation accuracy, %": percent(last_validation.get("accuracy")),
    }


def _compare_settings(experiments: Sequence[ExperimentResults]) -> list[TableRecord]:
    """A row per setting that is not equal in all experiments, sorted by name of the setting."""
    texts = dict[str, dict[str, str]]()
    for experiment in experiments:
        settings = flatten(experiment.settings)
        texts[experiment.name] = {key: format_setting(value) for key, value in settings.items()}
    differing = list[TableRecord]()
    for record in compare_columns("setting", texts, NONE):
        different_texts = {record[experiment] for experiment in texts}
        if len(different_texts) > 1:
            differing.append(record)
    # The first value of a record is the name of the setting.
    return sorted(differing, key=lambda record: next(iter(record.values())))


# ---- trees

MAX_LEAVES = 60


class DrawnTree(NamedTuple):
    """A tree of an output layer."""

    tree: Tree | NaryTree
    names: str
    """The experiments that have it."""
    svg: Markup


def trees_section(data: ReportData) -> dict[str, Any]:
    """The variables of `trees.html`: the different trees of the output layers, each once.

    The MAX_LEAVES most probable branches of each are drawn. Experiments without a tree are left
    out.
    """
    trees = list[DrawnTree]()
    for experiment in data.experiments:
        tree = experiment.tree
        is_drawn = any(tree == drawn.tree for drawn in trees)
        if tree is None or is_drawn:
            continue
        owners = [other.name for other in data.experiments if other.tree == tree]
        svg = Markup(tree_svg(tree, max_leaves=MAX_LEAVES))  # nosec: its text is escaped
        trees.append(DrawnTree(tree, ", ".join(owners), svg))
    return {"trees": trees, "max_leaves": MAX_LEAVES}


# ---- corpora

_SPLITS = ("train", "dev", "test")
_SIZES = {"hours": 4, "utterances": 0, "speakers": 0}
"""The numbers of each split in a stats.json, and how many decimals they are shown with."""


class _SamplingColumn(NamedTuple):
    """A number of a language that was sampled: its key in a stats.json, and how it is shown."""

    key: str
    name: str
    digits: int


_SAMPLING_COLUMNS = (
    _SamplingColumn("hours_before", "hours released", digits=2),
    _SamplingColumn("lambda", "λ", digits=4),
    _SamplingColumn("hours_wanted", "λ × hours", digits=2),
)


@dataclass(frozen=True)
class CorpusStatistics:
    """The sizes of one corpus."""

    path: str
    """Of its stats.json."""
    name: str
    licence: str | None
    table: list[TableRecord]
    """A row per language; empty if the stats.json has no languages."""
    total: list[TableRecord]
    """One row with the sums, or none."""


def corpora_section(data: ReportData) -> dict[str, Any]:
    """The variables of `corpora.html`: the sizes of each corpus by language and split.

    The sizes are hours, utterances and speakers. A sampled corpus also has the released hours, and
    λ, the share of them that was to be kept.
    """
    corpora = [_read_corpus(path, stats, data.note) for path, stats in data.stats.items()]
    return {"corpora": corpora}


def _read_corpus(path: Path, stats: Mapping[str, Any], note: str) -> CorpusStatistics:
    """The sizes in a stats.json.

    Args:
        path: of the stats.json; it is shown as the name if the file does not name its corpus.
        stats: the content of the file.
        note: the kind of speech, which the title of the page has; it is removed from the name.
    """
    langs = stats.get("langs")
    total = stats.get("total")
    records = list[TableRecord]()
    if isinstance(langs, dict):
        records = [_sizes_record(lang, sizes) for lang, sizes in sorted(langs.items())]
    totals = list[TableRecord]()
    if total and len(records) > 1:  # the sum of one language would repeat its row
        totals.append(_sizes_record("all", total))
    return CorpusStatistics(
        path=str(path),
        name=str(stats.get("corpus", path)).removesuffix(note),
        licence=stats.get("licence"),
        table=records,
        total=totals,
    )


def _sizes_record(lang: str, sizes: Mapping[str, Any]) -> TableRecord:
    """A row of the sizes of a language, or of all languages; n/a for those that are not known.

    The columns of sampling are left out if the corpus was not sampled.
    """
    record = {"language": lang}
    for column in _SAMPLING_COLUMNS:
        if column.key in sizes:
            record[column.name] = format_number(sizes[column.key], column.digits)
    for size, digits in _SIZES.items():
        by_split = sizes.get(size, {})
        for split in _SPLITS:
            record[f"{split} {size}"] = format_number(by_split.get(split), digits)
    return record


# ---- conditions

_SHOWN_SETTINGS = ("seed", "encoder", "encoder_conf.layers", "encoder_conf.freeze")


def conditions_section(data: ReportData) -> dict[str, Any]:
    """The variables of `conditions.html`.

    These are signatures and counts of the error rates, facts about the trainings, and all input
    files. Reads each input file for its hash.
    """
    scores = list[TableRecord]()
    facts = dict[str, dict[str, str]]()
    for experiment in data.experiments:
        scores += _signature_records(experiment)
        facts[experiment.name] = _facts_of_training(experiment)
    return {
        "scores": scores,
        "provenance": compare_columns("training", facts, UNDEFINED),
        "files": [_file_record(file) for file in read_input_files(data)],
    }


def _signature_records(experiment: ExperimentResults) -> list[TableRecord]:
    """A row per scored mode: how its scores were computed."""
    records = list[TableRecord]()
    for mode, report in experiment.scores.items():
        record = {
            "experiment": experiment.name,
            "mode": mode,
            "signature": report.signature,
            "counts": format_counts(report.micro),
            "resamples": f"{report.num_resamples:,}",
            "missing": f"{len(report.missing):,}",
        }
        records.append(record)
    return records


def _facts_of_training(experiment: ExperimentResults) -> dict[str, str]:
    """The facts in the run record and the settings in _SHOWN_SETTINGS, by name."""
    facts = dict(describe_facts(experiment.run))
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
