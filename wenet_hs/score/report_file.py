# SPDX-License-Identifier: Apache-2.0
"""Scorings as JSON, in which rates are fractions: writing for `score --json`, and reading."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wenet_hs.base.files import read_lines
from wenet_hs.score.alignments import ConfusionReport
from wenet_hs.score.bootstrap import CONFIDENCE, SEED, Interval
from wenet_hs.score.edit_distance import ErrorCounts
from wenet_hs.score.error_rate import Grouping, LanguageScore, MacroScore, Report, ScoredUtterance
from wenet_hs.score.rules import Rules
from wenet_hs.tree.errors import DataError

FORMAT = "wenet_hs.score/1"


def report_to_json(report: Report, confusions: ConfusionReport | None = None) -> str:
    """The report as JSON text, with one line per language, per utterance and per grouping.

    The rules and the averages are first, and confusions, if they are given, follow them.
    """
    values: dict[str, Any] = {
        "format": FORMAT,
        "name": report.name,
        "signature": report.signature,
        "rules": asdict(report.rules),
        "bootstrap": {
            "num_resamples": report.num_resamples,
            "seed": SEED,
            "confidence": CONFIDENCE,
        },
        "macro": _macro_record(report.macro),
        "micro": _group_record(report.micro),
        "missing": report.missing,
        "extra": report.extra,
    }
    if confusions is not None:
        values["confusions"] = asdict(confusions)
    tables: dict[str, dict[str, Any]] = {}
    if report.by:
        tables["by"] = {name: _grouping_record(grouping) for name, grouping in report.by.items()}
    tables["languages"] = {lang: _group_record(score) for lang, score in report.languages.items()}
    tables["utterances"] = {
        key: _utterance_record(utterance) for key, utterance in report.utterances.items()
    }
    entries = [f"{_dump(name)}: {_dump(value)}" for name, value in values.items()]
    for name, records in tables.items():
        rows = [f"  {_dump(key)}: {_dump(record)}" for key, record in records.items()]
        table = "{\n" + ",\n".join(rows) + "\n}"
        entries.append(f"{_dump(name)}: {table}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _dump(value: object) -> str:
    """A value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def _grouping_record(grouping: Grouping) -> dict[str, Any]:
    """The scores per speaker or length, and their averages."""
    return {
        "macro": _macro_record(grouping.macro),
        "micro": _group_record(grouping.micro),
        "groups": {group: _group_record(score) for group, score in grouping.groups.items()},
    }


def _macro_record(score: MacroScore) -> dict[str, Any]:
    """The macro average, with the number of groups that it is of."""
    return {"languages": score.num_languages, **_rate_record(score)}


def _group_record(score: LanguageScore) -> dict[str, Any]:
    """The score of one group, or the micro average, with its counts."""
    return {
        "utterances": score.utterances,
        **_counts_record(score.counts),
        **_rate_record(score),
    }


def _rate_record(score: LanguageScore | MacroScore) -> dict[str, Any]:
    """Rate and interval, and those of the phone features if the score has them."""
    record: dict[str, Any] = {"rate": score.rate, "interval": score.interval}
    if score.features is not None:
        record["pfer"] = {"rate": score.features.rate, "interval": score.features.interval}
    return record


def _counts_record(counts: ErrorCounts) -> dict[str, int]:
    """The numbers of reference units and of errors."""
    return {
        "N": counts.num_units,
        "S": counts.substitutions,
        "D": counts.deletions,
        "I": counts.insertions,
    }


def _utterance_record(utterance: ScoredUtterance) -> dict[str, Any]:
    """Language, counts and transcripts of an utterance, and its feature distance if it has one."""
    record: dict[str, Any] = {"lang": utterance.lang, **_counts_record(utterance.counts)}
    if utterance.feature_distance is not None:
        record["feature_distance"] = utterance.feature_distance
    record["ref"] = utterance.ref
    record["hyp"] = utterance.hyp
    return record


def read_report(path: Path | str) -> Report:
    """Read a `score --json` file, without what `--by`, `--features` and `--confusions` added to it.

    Raises DataError with the file's name if it is not such a file.
    """
    try:
        record = json.loads("\n".join(read_lines(path)))
        if record.get("format") != FORMAT:
            raise ValueError(f"format is {record.get('format')!r}, expected {FORMAT!r}")
        macro = record["macro"]
        return Report(
            name=record["name"],
            rules=Rules(**record["rules"]),
            signature=record["signature"],
            languages={lang: _read_group(value) for lang, value in record["languages"].items()},
            macro=_read_macro(macro),
            micro=_read_group(record["micro"]),
            missing=tuple(record["missing"]),
            extra=tuple(record["extra"]),
            utterances={key: _read_utterance(value) for key, value in record["utterances"].items()},
            num_resamples=record["bootstrap"]["num_resamples"],
        )
    except KeyError as error:
        raise _make_other_file_error(path, f"no {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise _make_other_file_error(path, str(error)) from error


def _make_other_file_error(path: Path | str, fault: str) -> DataError:
    """The error for a file that `score --json` did not write; `fault` says why it is not one."""
    found = f"not written by `score --json` ({fault})"
    return DataError(path, found, "run `wenet-hs score` again")


def _read_macro(record: dict[str, Any]) -> MacroScore:
    """What `_macro_record` wrote, without features."""
    return MacroScore(
        rate=record["rate"],
        num_languages=record["languages"],
        interval=_read_interval(record),
    )


def _read_group(record: dict[str, Any]) -> LanguageScore:
    """What `_group_record` wrote, without features."""
    return LanguageScore(
        utterances=record["utterances"],
        counts=_read_counts(record),
        interval=_read_interval(record),
    )


def _read_utterance(record: dict[str, Any]) -> ScoredUtterance:
    """What `_utterance_record` wrote, without the feature distance."""
    return ScoredUtterance(
        lang=record["lang"], ref=record["ref"], hyp=record["hyp"], counts=_read_counts(record)
    )


def _read_counts(record: dict[str, Any]) -> ErrorCounts:
    """The counts in a record of an utterance or a group."""
    return ErrorCounts(
        num_units=record["N"],
        substitutions=record["S"],
        deletions=record["D"],
        insertions=record["I"],
    )


def _read_interval(record: dict[str, Any]) -> Interval | None:
    """The interval in a record; None if it has none."""
    bounds = record["interval"]
    return None if bounds is None else Interval(*bounds)
