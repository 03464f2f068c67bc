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


def speed_fault(experiments: Sequence[ExperimentResults]) -> str:
    """Why the speeds cannot be compared; empty if they can."""
    num_timed = sum(bool(experiment.speeds) for experiment in experiments)
    if num_timed < 2:
        return ""
    without = names_without_encoder_time(experiments)
    if without:
        return f"Speeds are not shown: rtf.json of {list_names(without)} has no encoder time. Decode again."
    unequal = find_unequal_work(experiments)
    if unequal is None:
        return ""
    fast = unequal.fast
    slow = unequal.slow
    return (
        "Speeds are not shown because they cannot be compared. Per second of speech the same work "
        f"({', '.join(unequal.stages)}) takes {slow.seconds:.4f} s in {slow.experiment}, {fast.seconds:.4f} s in "
        f"{fast.experiment}. These times differ only by the load of the machine. Decode one after the other on an "
        "idle machine."
    )


@dataclass(frozen=True)
class _TimedExperiment:
    """An experiment whose speeds are shown."""

    experiment: ExperimentResults
    conditions: Mapping[str, str]


def speed_section(data: ReportData) -> dict[str, Any]:
    """Real-time factors per mode, language and part. Conditions that differ are columns."""
    fault = speed_fault(data.experiments)
    timed = list[_TimedExperiment]()
    if not fault:
        for experiment in data.experiments:
            if experiment.speeds:
                timed.append(
                    _TimedExperiment(experiment, _describe_conditions(experiment.decoding))
                )
    names = dict.fromkeys(name for training in timed for name in training.conditions)
    differing = [
        name for name in names if len({training.conditions.get(name) for training in timed}) > 1
    ]
    return {
        "fault": fault,
        "table": [record for training in timed for record in _speed_records(training, differing)],
        "common": {name: timed[0].conditions[name] for name in names if name not in differing},
        "languages": [
            record for training in timed for record in _language_records(training.experiment)
        ],
        "parts": [
            _parts_record(training.experiment)
            for training in timed
            if training.experiment.decoding.seconds
        ],
    }


def _describe_conditions(decoding: DecodingRecord) -> dict[str, str]:
    """Device, threads, options of the decoding and other conditions."""
    conditions = dict[str, str]()
    for name, value in decoding.options.items():
        conditions[_CONDITION_NAMES.get(name, name.replace("_", " "))] = format_setting(value)
    return conditions


def _speed_records(timed: _TimedExperiment, columns: Sequence[str]) -> list[TableRecord]:
    """A record per mode. `columns`: names of conditions."""
    records = list[TableRecord]()
    for mode, speed in timed.experiment.speeds.items():
        record = {
            "experiment": timed.experiment.name,
            "mode": mode,
            "speech, s": format_number(timed.experiment.decoding.audio_seconds, 1),
            "decoding, s": format_number(speed.wall_seconds, 1),
            "RTF": format_number(speed.rtf, 4),
        }
        records.append(record | {name: timed.conditions.get(name, NONE) for name in columns})
    return records


def _language_records(experiment: ExperimentResults) -> list[TableRecord]:
    """A record per mode with several languages."""
    records = list[TableRecord]()
    for mode, speed in experiment.speeds.items():
        rates = speed.sum_rtf_by_lang
        if len(rates) > 1:
            record = {"experiment": experiment.name, "mode": mode}
            records.append(record | {lang: format_number(rates[lang], 4) for lang in sorted(rates)})
    return records


def _parts_record(experiment: ExperimentResults) -> TableRecord:
    parts = experiment.decoding.seconds
    seconds = {part.replace("_", " "): format_number(value, 2) for part, value in parts.items()}
    return {"experiment": experiment.name, **seconds}
