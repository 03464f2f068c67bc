# SPDX-License-Identifier: Apache-2.0
"""The section of the report about the speed of decoding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wenet_hs.report.page_table import NONE, format_number, format_setting
from wenet_hs.results.experiment import ExperimentResults
from wenet_hs.results.folder import DecodingRecord
from wenet_hs.results.report_data import ReportData
from wenet_hs.results.speeds import find_unequal_work, names_without_encoder_time
from wenet_hs.score.tables import TableRecord
from wenet_hs.tree.errors import list_names

_CONDITION_NAMES = {
    "num_threads": "threads",
    "num_ranks": "processes",
    "max_segment_s": "maximum seconds of a segment",
    "nbest": "n-best",
}
"""The names of options on the page; other options have their own, with spaces."""


@dataclass(frozen=True)
class _TimedExperiment:
    """An experiment whose speeds are shown."""

    experiment: ExperimentResults
    conditions: Mapping[str, str]
    """Device, threads, options of the decoding and other conditions, by their name on the page."""


def speed_section(data: ReportData) -> dict[str, Any]:
    """The variables of `speed.html`: real-time factors per mode, language and part of the decoding.

    Conditions that differ between experiments are columns of the table; the others are `common`.
    If the speeds cannot be compared, `fault` says why, and all tables are empty.
    """
    fault = speed_fault(data.experiments)
    timed = list[_TimedExperiment]()
    if not fault:
        for experiment in data.experiments:
            if experiment.speeds:
                conditions = _describe_conditions(experiment.decoding)
                timed.append(_TimedExperiment(experiment, conditions))
    differing = _differing_conditions(timed)
    conditions_of_first = timed[0].conditions if timed else {}
    common = {name: text for name, text in conditions_of_first.items() if name not in differing}
    speed_table = list[TableRecord]()
    languages_table = list[TableRecord]()
    parts_table = list[TableRecord]()
    for timed_experiment in timed:
        experiment = timed_experiment.experiment
        speed_table += _speed_records(timed_experiment, differing)
        languages_table += _language_records(experiment)
        if experiment.decoding.seconds:
            parts_table.append(_parts_record(experiment))
    return {
        "fault": fault,
        "table": speed_table,
        "common": common,
        "languages": languages_table,
        "parts": parts_table,
    }


def speed_fault(experiments: Sequence[ExperimentResults]) -> str:
    """Why the speeds cannot be compared; empty if they can, or if fewer than two were measured."""
    num_timed = sum(bool(experiment.speeds) for experiment in experiments)
    if num_timed < 2:
        return ""
    without_time = names_without_encoder_time(experiments)
    if without_time:
        names = list_names(without_time)
        return f"Speeds are not shown: rtf.json of {names} has no encoder time. Decode again."
    unequal = find_unequal_work(experiments)
    if unequal is None:
        return ""
    stages = ", ".join(unequal.stages)
    slow = f"{unequal.slow.seconds:.4f} s in {unequal.slow.experiment}"
    fast = f"{unequal.fast.seconds:.4f} s in {unequal.fast.experiment}"
    return (
        "Speeds are not shown because they cannot be compared. "
        f"Per second of speech the same work ({stages}) takes {slow}, {fast}. "
        "These times differ only by the load of the machine. "
        "Decode one after the other on an idle machine."
    )


def _describe_conditions(decoding: DecodingRecord) -> dict[str, str]:
    """Device, threads, options of the decoding and other conditions, as texts by readable names."""
    conditions = dict[str, str]()
    for key, value in decoding.options.items():
        name = _CONDITION_NAMES.get(key, key.replace("_", " "))
        conditions[name] = format_setting(value)
    return conditions


def _differing_conditions(timed: Sequence[_TimedExperiment]) -> list[str]:
    """The names of the conditions that are not the same in all experiments.

    A condition that one of them does not record differs.
    """
    names = dict[str, None]()  # as an ordered set
    for timed_experiment in timed:
        names |= dict.fromkeys(timed_experiment.conditions)
    differing = list[str]()
    for name in names:
        values = {timed_experiment.conditions.get(name) for timed_experiment in timed}
        if len(values) > 1:
            differing.append(name)
    return differing


def _speed_records(timed: _TimedExperiment, condition_names: Sequence[str]) -> list[TableRecord]:
    """A row per mode, with a column per named condition; a dash if it is not recorded."""
    records = list[TableRecord]()
    for mode, speed in timed.experiment.speeds.items():
        record = {
            "experiment": timed.experiment.name,
            "mode": mode,
            "speech, s": format_number(timed.experiment.decoding.audio_seconds, 1),
            "decoding, s": format_number(speed.wall_seconds, 1),
            "RTF": format_number(speed.rtf, 4),
        }
        for name in condition_names:
            record[name] = timed.conditions.get(name, NONE)
        records.append(record)
    return records


def _language_records(experiment: ExperimentResults) -> list[TableRecord]:
    """A row per mode with the real-time factor of each language; none for a single language."""
    records = list[TableRecord]()
    for mode, speed in experiment.speeds.items():
        factors = speed.sum_rtf_by_lang
        if len(factors) > 1:
            record = {"experiment": experiment.name, "mode": mode}
            for lang in sorted(factors):
                record[lang] = format_number(factors[lang], 4)
            records.append(record)
    return records


def _parts_record(experiment: ExperimentResults) -> TableRecord:
    """A row with the seconds of each part of the decoding."""
    record = {"experiment": experiment.name}
    for part, seconds in experiment.decoding.seconds.items():
        record[part.replace("_", " ")] = format_number(seconds, 2)
    return record
